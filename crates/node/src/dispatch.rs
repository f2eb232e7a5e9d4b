//! The one door for writes of HTTP clients: validated by the shell, then applied here or forwarded to the owner.
//!
//! A write fails only when this node is not ready: when the owner cannot be reached, the next in rank takes it, at last
//! this node. It is a versioned row, so nothing has to be undone later (`design.md` §2).

use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::registry::beats::Heard;
use rollcall_core::registry::change::OverrideEdit;
use rollcall_core::registry::versioned::Unwritten;
use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey, Violation, limits};
use rollcall_distro::message::{Forward, ForwardReply, WireDone, WireError, WireWrite};
use rollcall_distro::{Effects, Fault};

use crate::action::{Accepted, Action, Actions, ForwardId, Ticket};
use crate::error::NodeError;
use crate::metrics::Counters;
use crate::node::Node;
use crate::pending::{Answer, Forwarded, Way};
use crate::request::{HttpWrite, RowTarget, WriteDone};

/// How often a write may be passed on before whoever has it applies it.
const MAX_HOPS: u8 = 2;
/// How often a member may know a newer version of a row before the next in rank is asked. Needs two clients that write
/// one row at the same moment, through members whose clocks differ.
const MAX_OUTDATED: u8 = 3;
/// Longest wait of a forwarder for the change to be visible here.
const VISIBLE_WAIT: Millis = Millis(500);

impl Node {
    /// Takes a write of an HTTP client. The answer comes as [`Action::Answer`] with `ticket`, at once or later.
    pub fn write(&self, ticket: Ticket, write: HttpWrite, now: Now, actions: &mut Actions) {
        if !self.engine.is_ready_at(now) {
            return answer(ticket, Err(self.not_serving()), None, actions);
        }
        if let HttpWrite::Beat { service, target, .. } = &write
            && let Some(interval) = self.beat_here(service, target, now, actions)
        {
            return answer(ticket, Ok(WriteDone::BeatKnown { interval }), None, actions);
        }
        self.route(ticket, write, Vec::new(), Way::default(), now, actions);
    }

    /// Takes a write that another member forwarded. It may come late or twice: what was written after it was taken from
    /// its client stays.
    pub fn forwarded(&self, ticket: Ticket, forward: Forward, now: Now, actions: &mut Actions) {
        Counters::add(&self.counters.forwards_received);
        let write = from_wire(forward.write);
        // Whoever sees the same members has sent the write past its owner on purpose, if this node is not the owner: the
        // owner has not answered, and shall not be waited for once more from here.
        let sees_the_same = forward.view == self.engine.view().number();
        let way = Way {
            hops: if sees_the_same { MAX_HOPS } else { forward.hops },
            taken: Some(forward.time),
            is_forwarded: true,
            ..Way::default()
        };
        self.route(ticket, write, Vec::new(), way, now, actions);
    }

    /// The reply to a forward.
    pub fn forward_replied(&self, id: ForwardId, reply: ForwardReply, now: Now, actions: &mut Actions) {
        let Some(mut forwarded) = self.pending.take_forward(id) else {
            return;
        };
        if matches!(reply.result, Err(WireError::NotReady | WireError::OverLimit)) {
            return self.forward_unanswered(forwarded, now, actions);
        }
        let result = match reply.result {
            Ok(done) => Ok(from_wire_done(done)),
            Err(WireError::Outdated(newest)) if forwarded.way.is_own_and_prompt() => {
                self.registry.clock().observe(newest);
                forwarded.way.taken = None;
                forwarded.way.n_outdated += 1;
                if forwarded.way.n_outdated < MAX_OUTDATED {
                    forwarded.tried.retain(|id| *id != forwarded.to);
                }
                return self.route_again(forwarded, now, actions);
            }
            Err(WireError::Outdated(_)) if !forwarded.way.is_forwarded => {
                Ok(self.overtaken(&forwarded.write))
            }
            Err(error) => Err(from_wire_error(error)),
        };
        let ticket = forwarded.ticket;
        let Some((origin, epoch, seq)) = reply.accepted else {
            return answer(ticket, result, None, actions);
        };
        let origin = MemberId(origin);
        let accepted = Some(Accepted { origin, epoch, seq });
        if origin == self.engine.me() || self.engine.applied(origin) >= seq {
            return answer(ticket, result, accepted, actions);
        }
        let deadline = now.mono + VISIBLE_WAIT;
        self.pending.add_wait(
            Some(origin),
            seq,
            deadline,
            Answer {
                ticket,
                result,
                accepted,
            },
        );
        // It may have arrived between the look and the wait.
        if self.engine.applied(origin) >= seq {
            self.give(self.pending.reached(Some(origin), seq), actions);
        }
        actions.wake();
    }

    /// A forward got no reply: the next in rank is asked, at last this node takes the write. So it is done with all that
    /// wait for the same member, which gets no further write before it has answered a probe: when a member hangs, its
    /// clients wait once, and none of them longer than the first.
    pub fn forward_failed(&self, id: ForwardId, now: Now, actions: &mut Actions) {
        let Some(forwarded) = self.pending.take_forward(id) else {
            return;
        };
        let member = forwarded.to;
        self.forward_unanswered(forwarded, now, actions);
        self.forward_elsewhere(member, now, actions);
    }

    /// A member does not take a write: the next in rank is asked, at last this node takes it.
    fn forward_unanswered(&self, mut forwarded: Forwarded, now: Now, actions: &mut Actions) {
        forwarded.way.has_failed = true;
        Counters::add(&self.counters.forwards_failed);
        self.engine.suspect(forwarded.to);
        self.route_again(forwarded, now, actions);
    }

    /// A member has left or does not answer: what it was to answer goes to who is next. Whatever it may have done with it
    /// is as old as the write itself.
    pub(crate) fn forward_elsewhere(&self, member: MemberId, now: Now, actions: &mut Actions) {
        for mut forwarded in self.pending.take_forwards_to(member) {
            forwarded.way.has_failed = true;
            self.route_again(forwarded, now, actions);
        }
    }

    fn route_again(&self, forwarded: Forwarded, now: Now, actions: &mut Actions) {
        let Forwarded {
            ticket,
            write,
            tried,
            mut way,
            ..
        } = forwarded;
        way.hops -= 1;
        self.route(ticket, write, tried, way, now, actions);
    }

    fn route(
        &self,
        ticket: Ticket,
        write: HttpWrite,
        mut tried: Vec<MemberId>,
        mut way: Way,
        now: Now,
        actions: &mut Actions,
    ) {
        // Also a forward that failed while this node stood still is old: its client has turned elsewhere.
        if !self.engine.is_ready_at(now) {
            return answer(ticket, Err(self.not_serving()), None, actions);
        }
        let view = self.engine.view();
        let me = self.engine.me();
        let is_candidate = |id: &MemberId| *id == me || (!tried.contains(id) && self.engine.is_trusted(*id));
        let to = view.ranked(write.service()).find(is_candidate);
        let to = to.filter(|id| *id != me && way.hops < MAX_HOPS);
        let Some(to) = to else {
            return self.apply(ticket, write, way, now, actions);
        };
        if self.pending.is_full() {
            Counters::add(&self.counters.writes_over_limit);
            return answer(
                ticket,
                Err(NodeError::OverLimit("forwards in flight")),
                None,
                actions,
            );
        }
        tried.push(to);
        way.hops += 1;
        let time = way.taken.unwrap_or_else(|| self.registry.clock().tick(now.wall));
        way.taken = Some(time);
        let forward = Forward {
            view: view.number(),
            hops: way.hops,
            time,
            write: to_wire(&write),
        };
        let id = self.pending.add_forward(Forwarded {
            ticket,
            write,
            to,
            tried,
            way,
        });
        Counters::add(&self.counters.forwards_sent);
        actions.push(Action::Forward { id, to, forward });
    }

    /// Applies a write here and answers when a second member has it, or after a short while.
    fn apply(&self, ticket: Ticket, write: HttpWrite, way: Way, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        let before = self.engine.log().head();
        let is_registration = matches!(
            write,
            HttpWrite::Register { .. } | HttpWrite::Beat { full: Some(_), .. }
        );
        let if_overtaken = self.overtaken(&write);
        let mut result = self.apply_write(write, way.taken_before(), now, &mut effects);
        if !way.is_forwarded && matches!(result, Err(NodeError::Outdated { .. })) {
            result = Ok(if_overtaken);
        }
        let seq = self.engine.log().head();
        self.settle(effects, now, actions);
        let accepted = Some(Accepted {
            origin: self.engine.me(),
            epoch: self.engine.epoch(),
            seq,
        });
        let must_wait = is_registration && seq > before && self.engine.has_trusted_peer();
        if !must_wait || self.pending.is_full() {
            return answer(ticket, result, accepted, actions);
        }
        let deadline = now.mono + self.config.replicate_wait;
        self.pending.add_wait(
            None,
            seq,
            deadline,
            Answer {
                ticket,
                result,
                accepted,
            },
        );
        actions.wake();
    }

    /// What is answered to a write that another one has overtaken while its owner did not answer: as if it had been
    /// applied and then replaced.
    fn overtaken(&self, write: &HttpWrite) -> WriteDone {
        match write {
            HttpWrite::Beat { .. } => WriteDone::BeatKnown {
                interval: self.beat_interval(),
            },
            HttpWrite::Register { .. } | HttpWrite::Deregister { .. } | HttpWrite::Update { .. } => {
                WriteDone::Ok
            }
        }
    }

    fn apply_write(
        &self,
        write: HttpWrite,
        taken: Option<u64>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<WriteDone, NodeError> {
        let (registry, log) = (&self.registry, self.engine.log());
        let changes = &mut effects.changes;
        match write {
            HttpWrite::Register { service, instance } => {
                self.check_kind(&service, true)?;
                registry
                    .register_beat_row(&service, instance, taken, now, log, changes)
                    .map_err(|why| unwritten(why, &service))?;
                Ok(WriteDone::Ok)
            }
            HttpWrite::Deregister { service, target } => {
                registry
                    .deregister_beat_row(&service, target.address(), taken, now, log, changes)
                    .map_err(|why| unwritten(why, &service))?;
                Ok(WriteDone::Ok)
            }
            HttpWrite::Update {
                service,
                target,
                edit,
            } => {
                let (row, limit) = (target.address(), self.config.metadata_limit);
                let is_partial = !matches!(edit, OverrideEdit::Replace(_));
                let done = registry.edit_override(&service, row, edit, limit, taken, now, log, changes);
                if is_partial && matches!(done, Err(Unwritten::NoService | Unwritten::NoRow)) {
                    // What is missing is told as a read of the row would (`http-v1.md` §3.4).
                    let cluster = row.cluster.unwrap_or(DEFAULT_CLUSTER);
                    self.instance(&service, row.ip, row.port, cluster, now)?;
                }
                done.map_err(|why| unwritten(why, &service))?;
                Ok(WriteDone::Ok)
            }
            HttpWrite::Beat {
                service,
                target,
                full,
            } => {
                let known = registry.beat(&service, target.address(), Heard::Direct, now, log, changes);
                if let Some(row) = known {
                    let interval = self.interval(&row);
                    return Ok(WriteDone::BeatKnown { interval });
                }
                let Some(instance) = full else {
                    let interval = self.beat_interval();
                    return Ok(WriteDone::BeatUnknown { interval });
                };
                self.check_kind(&service, true)?;
                let interval = self.interval(&instance);
                registry
                    .register_beat_row(&service, instance, taken, now, log, changes)
                    .map_err(|why| unwritten(why, &service))?;
                Ok(WriteDone::BeatKnown { interval })
            }
        }
    }

    /// Answers a beat of a row that is known here, and lets the owner know.
    fn beat_here(
        &self,
        service: &ServiceKey,
        target: &RowTarget,
        now: Now,
        actions: &mut Actions,
    ) -> Option<Millis> {
        let mut effects = Effects::default();
        let (log, changes) = (self.engine.log(), &mut effects.changes);
        let row = self
            .registry
            .beat(service, target.address(), Heard::Direct, now, log, changes);
        self.settle(effects, now, actions);
        let row = row?;
        self.tell_hearers(service, &row, now, actions);
        Some(self.interval(&row))
    }

    /// Lets the owner of a service and its deputy hear of a beat, in their next batch.
    fn tell_hearers(&self, service: &ServiceKey, row: &Instance, now: Now, actions: &mut Actions) {
        if self.config.faults.has(Fault::NoRelay) {
            return;
        }
        let view = self.engine.view();
        for id in view.hearers(service).filter(|id| *id != self.engine.me()) {
            self.engine.relay_beat(id, service, row.row_key(), now);
            actions.wake();
        }
    }

    fn interval(&self, row: &Instance) -> Millis {
        let key = rollcall_core::model::instance::KEY_BEAT_INTERVAL;
        match row.metadata.get(key) {
            Some(_) => row.beat_times().interval,
            None => self.beat_interval(),
        }
    }

    pub(crate) fn give(&self, answers: Vec<Answer>, actions: &mut Actions) {
        for Answer {
            ticket,
            result,
            accepted,
        } in answers
        {
            actions.push(Action::Answer {
                ticket,
                result,
                accepted,
            });
        }
    }

    /// The reply to a forwarded write with this result.
    pub fn forward_reply(result: Result<WriteDone, NodeError>, accepted: Option<Accepted>) -> ForwardReply {
        ForwardReply {
            result: match result {
                Ok(WriteDone::Ok) => Ok(WireDone::Ok),
                Ok(WriteDone::BeatKnown { interval }) => Ok(WireDone::BeatKnown(interval.0)),
                Ok(WriteDone::BeatUnknown { interval }) => Ok(WireDone::BeatUnknown(interval.0)),
                Err(error) => Err(to_wire_error(&error)),
            },
            accepted: accepted.map(|a| (a.origin.0, a.epoch, a.seq)),
        }
    }
}

fn unwritten(why: Unwritten, service: &ServiceKey) -> NodeError {
    match why {
        Unwritten::NoService => NodeError::service_not_found(service),
        Unwritten::NoRow => NodeError::InstanceNotFound,
        Unwritten::Outdated { newest } => NodeError::Outdated { newest },
        Unwritten::Refused(violation) => NodeError::Param(violation),
    }
}

fn answer(
    ticket: Ticket,
    result: Result<WriteDone, NodeError>,
    accepted: Option<Accepted>,
    actions: &mut Actions,
) {
    actions.push(Action::Answer {
        ticket,
        result,
        accepted,
    });
}

// === to and from the wire ===

fn to_wire(write: &HttpWrite) -> WireWrite {
    let cluster = |target: &RowTarget| target.cluster.as_ref().map(|c| c.to_string());
    match write {
        HttpWrite::Register { service, instance } => WireWrite::Register {
            service: service.into(),
            instance: instance.into(),
        },
        HttpWrite::Deregister { service, target } => WireWrite::Deregister {
            service: service.into(),
            ip: target.ip.to_string(),
            port: target.port,
            cluster: cluster(target),
        },
        HttpWrite::Update {
            service,
            target,
            edit,
        } => WireWrite::Update {
            service: service.into(),
            ip: target.ip.to_string(),
            port: target.port,
            cluster: cluster(target),
            edit: edit.into(),
        },
        HttpWrite::Beat {
            service,
            target,
            full,
        } => WireWrite::Beat {
            service: service.into(),
            ip: target.ip.to_string(),
            port: target.port,
            cluster: cluster(target),
            full: full.as_ref().map(Into::into),
        },
    }
}

fn from_wire(write: WireWrite) -> HttpWrite {
    let target = |ip: String, port, cluster: Option<String>| RowTarget {
        ip: ip.into(),
        port,
        cluster: cluster.map(Into::into),
    };
    match write {
        WireWrite::Register { service, instance } => HttpWrite::Register {
            service: (&service).into(),
            instance: instance.into(),
        },
        WireWrite::Deregister {
            service,
            ip,
            port,
            cluster,
        } => HttpWrite::Deregister {
            service: (&service).into(),
            target: target(ip, port, cluster),
        },
        WireWrite::Update {
            service,
            ip,
            port,
            cluster,
            edit,
        } => HttpWrite::Update {
            service: (&service).into(),
            target: target(ip, port, cluster),
            edit: edit.into(),
        },
        WireWrite::Beat {
            service,
            ip,
            port,
            cluster,
            full,
        } => HttpWrite::Beat {
            service: (&service).into(),
            target: target(ip, port, cluster),
            full: full.map(Into::into),
        },
    }
}

fn from_wire_done(done: WireDone) -> WriteDone {
    match done {
        WireDone::Ok => WriteDone::Ok,
        WireDone::BeatKnown(ms) => WriteDone::BeatKnown { interval: Millis(ms) },
        WireDone::BeatUnknown(ms) => WriteDone::BeatUnknown { interval: Millis(ms) },
    }
}

fn to_wire_error(error: &NodeError) -> WireError {
    match error {
        NodeError::ServiceNotFound {
            namespace,
            group,
            name,
        } => WireError::ServiceNotFound((&ServiceKey::new(namespace, group, name)).into()),
        NodeError::ClusterEmpty { cluster, service } => {
            WireError::ClusterEmpty(cluster.clone(), service.clone())
        }
        NodeError::InstanceNotFound => WireError::InstanceNotFound,
        NodeError::WrongKind {
            service,
            is_ephemeral,
        } => WireError::WrongKind(service.clone(), *is_ephemeral),
        NodeError::OverLimit(_) => WireError::OverLimit,
        NodeError::Outdated { newest } => WireError::Outdated(*newest),
        NodeError::Param(Violation::TooLong { max, .. }) => WireError::MetadataTooLong(*max),
        _ => WireError::NotReady,
    }
}

fn from_wire_error(error: WireError) -> NodeError {
    match error {
        WireError::ServiceNotFound(service) => NodeError::service_not_found(&(&service).into()),
        WireError::ClusterEmpty(cluster, service) => NodeError::ClusterEmpty { cluster, service },
        WireError::InstanceNotFound => NodeError::InstanceNotFound,
        WireError::WrongKind(service, is_ephemeral) => NodeError::WrongKind {
            service,
            is_ephemeral,
        },
        WireError::OverLimit => NodeError::OverLimit("the owner"),
        WireError::NotReady => NodeError::NotReady,
        WireError::Outdated(newest) => NodeError::Outdated { newest },
        WireError::MetadataTooLong(max) => NodeError::Param(limits::metadata_too_long(max)),
    }
}
