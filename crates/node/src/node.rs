//! The whole node: one registry, one Distro engine, the connections of clients and the pushes to them.
//!
//! Requests, frames, probe results and ticks come in by `&self` methods from any thread; answers are returned, effects
//! are collected as [`Action`]s for the shell to carry out. No I/O, no clock, no randomness of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollcall_core::ownership::ModuloMapper;
use rollcall_core::registry::change::ClientId;
use rollcall_core::registry::clean::Lives;
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::registry::row::Publisher;
use rollcall_core::{Instance, MemberId, Millis, Now, Registry, RowKey, ServiceKey, ServiceView};
use rollcall_distro::message::{Frame, LinkHello, LinkRefusal, Probe, Reply, Welcome};
use rollcall_distro::{
    DistroConfig, Effect, Effects, Engine, Fault, LinkError, LinkId, MemberState, ProbeResult,
};
use smol_str::SmolStr;

use crate::action::{Action, Actions};
use crate::config::NodeConfig;
use crate::connection::{Awaited, Connections};
use crate::error::NodeError;
use crate::metrics::{Counters, NodeMetrics};
use crate::pending::Pending;
use crate::push::{Outcome, Pusher};
use crate::request::{ConnectionId, ConnectionInfo, ServiceNames};

/// Longest time between two ticks.
const TICK_MAX: Millis = Millis(1_000);
/// All buckets are cleaned once in this time.
const CLEAN_ROUND: Millis = Millis(10_000);

/// The list of a service with the time that its message carries.
#[derive(Clone, Debug)]
pub struct ServiceAnswer {
    /// The list.
    pub view: Arc<ServiceView>,
    /// `lastRefTime` of the message, in milliseconds since the Unix epoch.
    pub last_ref_time: Millis,
}

/// A member as operators see it.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Advertised address.
    pub address: SmolStr,
    /// Its state.
    pub state: MemberState,
    /// It is this node.
    pub is_self: bool,
    /// It serves reads and owns services.
    pub ready: bool,
    /// Its epoch; 0 when it has not been heard of.
    pub epoch: u64,
    /// Age of its last answer to a probe.
    pub last_seen: Option<Millis>,
}

/// A row as operators see it.
#[derive(Clone, Debug)]
pub struct RowStatus {
    /// Its key.
    pub row: RowKey,
    /// Who publishes it, newest first.
    pub publishers: Vec<PublisherStatus>,
    /// What readers see of it.
    pub instance: Arc<Instance>,
}

/// A publisher of a row as operators see it.
#[derive(Clone, Debug)]
pub struct PublisherStatus {
    /// `connection` or `beat`.
    pub kind: &'static str,
    /// Advertised address of the member that holds the connection or accepted the write.
    pub member: SmolStr,
    /// Its member is not alive.
    pub is_orphan: bool,
    /// Hybrid time of the registration.
    pub stamp: u64,
}

/// One node of a cluster.
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) registry: Arc<Registry>,
    pub(crate) engine: Engine,
    pub(crate) pending: Pending,
    pub(crate) counters: Counters,
    connections: Connections,
    pusher: Pusher,
    next_clean: AtomicU64,
    clean_bucket: AtomicU64,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.config.self_address)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// A node whose process starts now. `boot` is random: it tells this process from others of the same member.
    pub fn new(config: NodeConfig, boot: u64, now: Now) -> Self {
        let me = MemberId::of(&config.self_address);
        let registry = Arc::new(Registry::new(me, config.seed, config.answer_budget, now.mono));
        let mut peers: Vec<_> = config
            .members
            .iter()
            .filter(|m| **m != config.self_address)
            .cloned()
            .collect();
        peers.sort();
        peers.dedup();
        let distro = DistroConfig {
            cluster: config.cluster_name.clone(),
            address: config.self_address.clone(),
            peers,
            mapper: Arc::new(ModuloMapper),
            log_capacity: config.log_capacity,
            probe_interval: config.probe_interval,
            probe_misses: config.probe_misses,
            verify_interval: config.verify_interval,
            gate_limit: config.gate_limit,
            orphan_gone: config.orphan_gone,
            orphan_unreachable: config.orphan_unreachable,
            faults: config.faults,
        };
        Node {
            engine: Engine::new(distro, registry.clone(), boot, now),
            connections: Connections::new(&config, now.mono),
            pusher: Pusher::new(&config),
            pending: Pending::default(),
            counters: Counters::default(),
            next_clean: AtomicU64::new(now.mono.0),
            clean_bucket: AtomicU64::new(0),
            registry,
            config,
        }
    }

    /// The registry, for reading.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// True when reads, writes and connections of clients are served.
    pub fn is_ready(&self) -> bool {
        self.engine.is_ready()
    }

    /// True once the node has begun to leave.
    pub fn is_leaving(&self) -> bool {
        self.engine.is_leaving()
    }

    /// Does what is due, and returns when to come back at the latest.
    pub fn tick(&self, now: Now, actions: &mut Actions) -> Millis {
        let mut effects = Effects::default();
        let mut next = self.engine.tick(now, &mut effects).min(now.mono + TICK_MAX);
        self.judge_beats(now, &mut effects);
        self.clean(now, &mut effects);
        self.settle(effects, now, actions);
        for id in self.connections.look_for_idle(&self.pusher, now, actions) {
            Counters::add(&self.counters.connections_idle_closed);
            self.close_connection(id, now, actions);
            actions.push(Action::Close { connection: id });
        }
        for (connection, request_id) in self.pusher.timed_out(now.mono) {
            self.push_ended(connection, request_id, Outcome::TimedOut, now, actions);
        }
        self.give(self.pending.overdue(now.mono), actions);
        let sent = |id, request_id, service: &ServiceKey, clusters: &Option<SmolStr>| {
            let awaited = || Awaited::Push(service.clone(), clusters.clone());
            self.connections
                .get(id)
                .is_some_and(|c| c.expect(request_id, awaited()))
        };
        self.pusher
            .push_due(&self.registry, &self.counters, now, actions, &sent);
        let due = [
            self.pusher.next_due(),
            self.pending.next_due(),
            self.connections.next_look(),
        ];
        for due in due.into_iter().flatten() {
            next = next.min(due);
        }
        next.min(self.registry.next_beat_look().max(now.mono + Millis(1)))
            .max(now.mono)
    }

    fn judge_beats(&self, now: Now, effects: &mut Effects) {
        if !self.is_ready() || self.config.faults.has(Fault::NoExpiry) {
            return;
        }
        let view = self.engine.view();
        let judge = |service: &ServiceKey| view.judge(service);
        let log = self.engine.log();
        let n_removed = self.registry.judge_beats(now, &judge, log, &mut effects.changes);
        self.counters
            .beat_rows_expired
            .fetch_add(n_removed as u64, Ordering::Relaxed);
        self.engine.signal_writes(effects);
    }

    fn clean(&self, now: Now, effects: &mut Effects) {
        let step = CLEAN_ROUND.0 / N_BUCKETS as u64;
        let mut due = self.next_clean.load(Ordering::Relaxed);
        let view = self.engine.view();
        let owns = |service: &ServiceKey| self.is_ready() && view.owner(service) == Some(self.engine.me());
        let lives = Lives {
            empty_service: self.config.empty_service_life,
            tombstone: self.config.tombstone_life,
            over: self.config.override_life,
        };
        let mut n_cleaned = 0;
        while due <= now.mono.0 && n_cleaned < N_BUCKETS {
            let bucket = self.clean_bucket.fetch_add(1, Ordering::Relaxed) as usize % N_BUCKETS;
            let log = self.engine.log();
            self.registry
                .clean(bucket, lives, now, &owns, log, &mut effects.changes);
            due += step;
            n_cleaned += 1;
        }
        self.next_clean.store(
            due.max(now.mono.0.saturating_sub(CLEAN_ROUND.0)),
            Ordering::Relaxed,
        );
        self.engine.signal_writes(effects);
    }

    /// Begins to leave: not ready any more, owner of nothing, and every member is told at once.
    pub fn start_leaving(&self, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.start_leaving(now, &mut effects);
        self.settle(effects, now, actions);
    }

    /// Asks every SDK connection to move to another member; returns how many. The shell spreads the messages.
    pub fn reset_connections(&self, actions: &mut Actions) -> usize {
        let members = self.engine.members();
        let serving: Vec<_> = members
            .iter()
            .filter(|m| m.is_serving())
            .map(|m| m.address.clone())
            .collect();
        let mut n_asked = 0;
        for connection in self.connections.all().into_iter().filter(|c| c.info.is_sdk) {
            let request_id = self.pusher.next_request_id();
            let to = serving.get(n_asked % serving.len().max(1)).cloned();
            if connection.expect(request_id, Awaited::Reset) {
                actions.push(Action::Reset {
                    connection: connection.id,
                    request_id,
                    to,
                });
                n_asked += 1;
            }
        }
        n_asked
    }

    /// Turns what the engine and the registry did into actions.
    pub(crate) fn settle(&self, mut effects: Effects, now: Now, actions: &mut Actions) {
        self.engine.signal_writes(&mut effects);
        effects.changes.sort();
        effects.changes.dedup();
        for service in effects.changes {
            self.pusher.changed(&service, now, actions);
        }
        for effect in effects.list {
            match effect {
                Effect::LinkReady(member) => actions.push(Action::LinkReady { member }),
                Effect::RepliesReady(member) => actions.push(Action::RepliesReady { member }),
                Effect::Redial(member) => actions.push(Action::Redial { member }),
                Effect::Probe(to, probe) => actions.push(Action::Probe { to, probe }),
                Effect::Acked(_, seq) => self.give(self.pending.reached(None, seq), actions),
                Effect::Applied(origin, seq) => {
                    self.give(self.pending.reached(Some(origin), seq), actions);
                }
                Effect::Ready { .. } => actions.wake(),
            }
        }
    }

    // === connections ===

    /// A client has set its connection up.
    ///
    /// # Errors
    /// [`NodeError::NotReady`] while this node is loading or leaving.
    pub fn open_connection(
        &self,
        info: ConnectionInfo,
        now: Now,
        actions: &mut Actions,
    ) -> Result<ConnectionId, NodeError> {
        if !self.is_ready() {
            return Err(NodeError::NotReady);
        }
        let number = self.registry.clock().tick(now.wall);
        let client = ClientId {
            origin: self.engine.me(),
            number,
        };
        self.registry.open_client(client);
        actions.wake();
        Ok(self.connections.open(client, info, now))
    }

    /// A connection is gone: so is everything it registered and subscribed.
    pub fn close_connection(&self, id: ConnectionId, now: Now, actions: &mut Actions) {
        let Some(connection) = self.connections.close(id, &self.pusher) else {
            return;
        };
        let mut effects = Effects::default();
        let log = self.engine.log();
        self.registry
            .close_client(connection.client, now, log, &mut effects.changes);
        self.settle(effects, now, actions);
    }

    /// Notes that a client lives.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`] when the connection is not, or no longer, set up.
    pub fn touch(&self, id: ConnectionId, now: Now) -> Result<(), NodeError> {
        let connection = self.connections.get(id).ok_or(NodeError::UnknownConnection)?;
        connection.touch(now.mono);
        Ok(())
    }

    /// The connections that are set up.
    pub fn n_connections(&self) -> usize {
        self.connections.len()
    }

    /// Replaces all that a connection publishes for a service: one instance, a batch, or nothing.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`].
    pub fn register(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        instances: Vec<Instance>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let client = self.naming_client(id, now)?;
        let mut effects = Effects::default();
        let log = self.engine.log();
        let done = self
            .registry
            .publish(client, service, instances, now, log, &mut effects.changes);
        self.settle(effects, now, actions);
        done.map_err(|_| NodeError::UnknownConnection)
    }

    /// Removes what a connection publishes for a service, or only the named row of its batch.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`].
    pub fn deregister(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        row: &RowKey,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let client = self.naming_client(id, now)?;
        let mut effects = Effects::default();
        let log = self.engine.log();
        let hash = row.stable_hash(service);
        let done = self
            .registry
            .unpublish(client, service, hash, now, log, &mut effects.changes);
        self.settle(effects, now, actions);
        done.map_err(|_| NodeError::UnknownConnection)
    }

    fn naming_client(&self, id: ConnectionId, now: Now) -> Result<ClientId, NodeError> {
        let connection = self.connections.get(id).ok_or(NodeError::UnknownConnection)?;
        connection.touch(now.mono);
        if !connection.info.is_naming {
            return Err(NodeError::NotNaming(connection.info.text_id.to_string()));
        }
        Ok(connection.client)
    }

    /// Subscribes first, then reads: a change between the two is pushed, not lost.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`].
    pub fn subscribe(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        clusters: Option<SmolStr>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<ServiceAnswer, NodeError> {
        self.naming_client(id, now)?;
        let connection = self.connections.get(id).ok_or(NodeError::UnknownConnection)?;
        self.pusher.subscribe(id, service, clusters.clone(), now, actions);
        if !connection.add_subscription(service) {
            self.pusher.forget(id, service);
            return Err(NodeError::UnknownConnection);
        }
        let answer = self.read(service, now);
        self.pusher
            .answered(id, service, clusters.as_ref(), answer.view.version());
        Ok(answer)
    }

    /// Ends the subscription with this clusters text, if there is one, and returns the current list.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`].
    pub fn unsubscribe(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        clusters: Option<SmolStr>,
        now: Now,
        _actions: &mut Actions,
    ) -> Result<ServiceAnswer, NodeError> {
        self.naming_client(id, now)?;
        self.pusher.unsubscribe(id, service, clusters.as_ref());
        Ok(self.read(service, now))
    }

    /// A client answered a push, a detection or a reset; `is_ok` by its result code.
    pub fn push_acked(
        &self,
        id: ConnectionId,
        request_id: u64,
        is_ok: bool,
        now: Now,
        actions: &mut Actions,
    ) {
        if self.touch(id, now).is_ok() {
            let outcome = if is_ok { Outcome::Acked } else { Outcome::Refused };
            self.push_ended(id, request_id, outcome, now, actions);
        }
    }

    fn push_ended(
        &self,
        id: ConnectionId,
        request_id: u64,
        outcome: Outcome,
        now: Now,
        actions: &mut Actions,
    ) {
        let Some(connection) = self.connections.get(id) else {
            return;
        };
        let Some(Awaited::Push(service, clusters)) = connection.answered(request_id) else {
            return;
        };
        Counters::add(match outcome {
            Outcome::Acked => &self.counters.pushes_acked,
            Outcome::Refused => &self.counters.pushes_failed,
            Outcome::TimedOut => &self.counters.pushes_timed_out,
        });
        let registry = &self.registry;
        self.pusher.ended(
            registry, id, request_id, &service, &clusters, outcome, now, actions,
        );
    }

    // === reads ===

    fn read(&self, service: &ServiceKey, now: Now) -> ServiceAnswer {
        let (view, last_ref_time) = self.registry.read(service, now.wall);
        ServiceAnswer { view, last_ref_time }
    }

    /// The list of a service, answered from what is held here.
    ///
    /// # Errors
    /// [`NodeError::NotReady`] while this node is loading.
    pub fn query(&self, service: &ServiceKey, now: Now) -> Result<ServiceAnswer, NodeError> {
        self.check_readable()?;
        Ok(self.read(service, now))
    }

    /// A node that leaves goes on to answer reads: it still holds everything.
    fn check_readable(&self) -> Result<(), NodeError> {
        if self.is_ready() || self.is_leaving() {
            Ok(())
        } else {
            Err(NodeError::NotReady)
        }
    }

    /// A page of the service names of a group, sorted.
    ///
    /// # Errors
    /// [`NodeError::NotReady`]; [`NodeError::Page`] for a negative page size.
    pub fn service_names(
        &self,
        namespace: &str,
        group: &str,
        page_no: i64,
        page_size: i64,
    ) -> Result<ServiceNames, NodeError> {
        self.check_readable()?;
        if page_size < 0 {
            return Err(NodeError::Page(page_size));
        }
        let start = page_no.saturating_sub(1).saturating_mul(page_size).max(0) as usize;
        let (count, names) = self
            .registry
            .catalog()
            .page(namespace, group, start, page_size as usize);
        Ok(ServiceNames { count, names })
    }

    /// One instance, disabled ones too.
    ///
    /// # Errors
    /// [`NodeError::NotReady`], [`NodeError::ClusterEmpty`], [`NodeError::InstanceNotFound`].
    pub fn instance(
        &self,
        service: &ServiceKey,
        ip: &str,
        port: u16,
        cluster: &str,
    ) -> Result<Arc<Instance>, NodeError> {
        self.check_readable()?;
        let view = self.registry.service(service).map(|s| s.view());
        let view = view
            .filter(|v| !v.is_empty())
            .ok_or_else(|| NodeError::ClusterEmpty {
                cluster: cluster.to_owned(),
                service: service.grouped_name().to_owned(),
            })?;
        view.get(ip, port, cluster)
            .cloned()
            .ok_or(NodeError::InstanceNotFound)
    }

    // === operators ===

    /// All members, sorted by address.
    pub fn members(&self) -> Vec<MemberStatus> {
        let now_seen = |m: &rollcall_distro::Member| m.last_seen;
        let mut members: Vec<_> = self
            .engine
            .members()
            .iter()
            .map(|m| MemberStatus {
                address: m.address.clone(),
                state: m.state(),
                is_self: false,
                ready: m.is_serving(),
                epoch: m.said.as_ref().map_or(0, |s| s.epoch),
                last_seen: now_seen(m),
            })
            .collect();
        members.push(MemberStatus {
            address: self.config.self_address.clone(),
            state: if self.is_ready() {
                MemberState::Up
            } else {
                MemberState::Starting
            },
            is_self: true,
            ready: self.is_ready(),
            epoch: self.engine.epoch(),
            last_seen: None,
        });
        members.sort_by(|a, b| a.address.cmp(&b.address));
        members
    }

    /// The rows of a service with their publishers, sorted.
    pub fn rows(&self, service: &ServiceKey) -> Vec<RowStatus> {
        let view = self.engine.view();
        let address = |id: MemberId| match view.address(id) {
            Some(address) => address.clone(),
            None => smol_str::format_smolstr!("{id:?}"),
        };
        let rows = self
            .registry
            .publications(service)
            .into_iter()
            .map(|(instance, publications)| {
                let publishers = publications.iter().map(|p| match p.publisher {
                    Publisher::Connection(client) => PublisherStatus {
                        kind: "connection",
                        member: address(client.origin),
                        is_orphan: p.is_orphan,
                        stamp: p.stamp.time,
                    },
                    Publisher::Beats => PublisherStatus {
                        kind: "beat",
                        member: address(p.stamp.member),
                        is_orphan: false,
                        stamp: p.stamp.time,
                    },
                });
                RowStatus {
                    row: instance.row_key(),
                    publishers: publishers.collect(),
                    instance,
                }
            });
        rows.collect()
    }

    /// Root digest of the rows of each origin, by the origin's address; equal on all nodes of a quiet cluster.
    pub fn digests(&self) -> Vec<(SmolStr, u64)> {
        let view = self.engine.view();
        let digests = self.registry.digests();
        let mut roots: Vec<_> = digests
            .origins()
            .into_iter()
            .map(|id| {
                let address = view
                    .address(id)
                    .cloned()
                    .unwrap_or_else(|| smol_str::format_smolstr!("{id:?}"));
                (address, digests.root(id))
            })
            .filter(|(_, root)| *root != 0)
            .collect();
        roots.sort();
        roots
    }

    /// Advertised address of the owner of a service.
    pub fn owner(&self, service: &ServiceKey) -> Option<SmolStr> {
        let view = self.engine.view();
        view.owner(service).and_then(|id| view.address(id).cloned())
    }

    /// Counters and gauges.
    pub fn metrics(&self) -> NodeMetrics {
        let mut m = NodeMetrics::default();
        let c = &self.counters;
        m.counter(
            "rollcall_pushes_sent",
            "Lists pushed to subscribers",
            &c.pushes_sent,
        );
        m.counter("rollcall_pushes_acked", "Pushes acknowledged", &c.pushes_acked);
        m.counter(
            "rollcall_pushes_failed",
            "Pushes refused by the client",
            &c.pushes_failed,
        );
        m.counter(
            "rollcall_pushes_timed_out",
            "Pushes without an acknowledgement",
            &c.pushes_timed_out,
        );
        m.counter(
            "rollcall_forwards_sent",
            "Writes forwarded to another member",
            &c.forwards_sent,
        );
        m.counter(
            "rollcall_forwards_received",
            "Writes forwarded by another member",
            &c.forwards_received,
        );
        m.counter(
            "rollcall_forwards_failed",
            "Forwards without a usable reply",
            &c.forwards_failed,
        );
        m.counter(
            "rollcall_writes_over_limit",
            "Writes refused because too many wait",
            &c.writes_over_limit,
        );
        m.counter(
            "rollcall_connections_idle_closed",
            "Connections closed for silence",
            &c.connections_idle_closed,
        );
        m.counter(
            "rollcall_beat_rows_expired",
            "Instances removed for missing beats",
            &c.beat_rows_expired,
        );
        let d = self.engine.counters();
        m.counter(
            "rollcall_digests_agreed",
            "Digests of members that agreed",
            &d.digests_agreed,
        );
        m.counter(
            "rollcall_digests_differed",
            "Digests of members that differed",
            &d.digests_differed,
        );
        m.counter(
            "rollcall_rows_repaired",
            "Rows brought or removed by repair",
            &d.rows_repaired,
        );
        m.counter(
            "rollcall_log_gaps",
            "Peers that fell out of the operation log",
            &d.log_gaps,
        );
        m.counter(
            "rollcall_beats_dropped",
            "Relayed beats dropped, the link being full",
            &d.beats_dropped,
        );
        m.counter(
            "rollcall_orphans_dropped",
            "Orphans dropped after their grace",
            &d.orphans_dropped,
        );
        m.gauge(
            "rollcall_gate_limit_reached",
            "1 when this node became ready without all members' data",
            d.gate_limit_reached.load(Ordering::Relaxed) as usize,
        );
        m.gauge(
            "rollcall_ready",
            "1 when this node serves",
            usize::from(self.is_ready()),
        );
        m.gauge(
            "rollcall_connections",
            "Connections of clients",
            self.connections.len(),
        );
        m.gauge(
            "rollcall_subscriptions",
            "Subscriptions of connections",
            self.pusher.n_subscriptions(),
        );
        m.gauge(
            "rollcall_services",
            "Services listed",
            self.registry.catalog().len(),
        );
        m.gauge("rollcall_instances", "Instances held", self.registry.n_rows());
        m.gauge(
            "rollcall_clients",
            "Publishing clients known, of all members",
            self.registry.n_clients(),
        );
        m.gauge(
            "rollcall_pushes_waiting",
            "Services waiting to be pushed",
            self.pusher.n_waiting(),
        );
        m.gauge(
            "rollcall_pushes_unacked",
            "Pushes not acknowledged yet",
            self.pusher.n_unacked(),
        );
        m.gauge(
            "rollcall_writes_waiting",
            "Writes whose answer waits",
            self.pending.len(),
        );
        m.gauge(
            "rollcall_answer_bytes",
            "Bytes of encoded answers kept",
            self.registry.answer_bytes(),
        );
        m
    }

    // === members ===

    /// Whom to dial: all configured members but this one.
    pub fn peers(&self) -> Vec<(MemberId, SmolStr)> {
        self.engine
            .members()
            .iter()
            .map(|m| (m.id, m.address.clone()))
            .collect()
    }

    /// What this node says when it dials another.
    pub fn link_hello(&self) -> LinkHello {
        self.engine.hello()
    }

    /// A member dials this one.
    ///
    /// # Errors
    /// [`LinkRefusal`]; nothing has changed then.
    pub fn accept_link(
        &self,
        hello: &LinkHello,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(LinkId, MemberId, Welcome), LinkRefusal> {
        let mut effects = Effects::default();
        let accepted = self.engine.accept_link(hello, now, &mut effects);
        self.settle(effects, now, actions);
        accepted
    }

    /// An inbound link broke.
    pub fn inbound_down(&self, link: LinkId, _now: Now, _actions: &mut Actions) {
        self.engine.inbound_down(link);
    }

    /// A frame on an inbound link.
    ///
    /// # Errors
    /// [`LinkError`]: drop the link.
    pub fn on_frame(
        &self,
        link: LinkId,
        frame: Frame,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), LinkError> {
        let mut effects = Effects::default();
        let done = self.engine.on_frame(link, frame, now, &mut effects);
        self.settle(effects, now, actions);
        done
    }

    /// The next reply for an inbound link.
    pub fn poll_reply(&self, link: LinkId) -> Option<Reply> {
        self.engine.poll_reply(link)
    }

    /// An outbound link is set up.
    pub fn link_up(&self, to: MemberId, welcome: Welcome, now: Now, actions: &mut Actions) -> LinkId {
        let mut effects = Effects::default();
        let link = self.engine.link_up(to, &welcome, &mut effects);
        self.engine.step_gate(now, &mut effects);
        self.settle(effects, now, actions);
        link
    }

    /// A member refused this node's hello.
    pub fn link_refused(&self, _to: MemberId, refusal: &LinkRefusal, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.link_refused(refusal, &mut effects);
        self.settle(effects, now, actions);
    }

    /// An outbound link broke.
    pub fn link_down(&self, link: LinkId, _now: Now, _actions: &mut Actions) {
        self.engine.link_down(link);
    }

    /// The next frame for an outbound link; `None`: wait for [`Action::LinkReady`].
    pub fn poll_link(&self, link: LinkId, now: Now) -> Option<Frame> {
        self.engine.poll_link(link, now)
    }

    /// A reply on an outbound link.
    ///
    /// # Errors
    /// [`LinkError`]: drop the link.
    pub fn on_reply(
        &self,
        link: LinkId,
        reply: Reply,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), LinkError> {
        let mut effects = Effects::default();
        let done = self.engine.on_reply(link, reply, now, &mut effects);
        self.settle(effects, now, actions);
        done
    }

    /// A probe of another member.
    ///
    /// # Errors
    /// [`LinkRefusal`] when the sender is not a member of this cluster.
    pub fn on_probe(&self, probe: &Probe, now: Now, actions: &mut Actions) -> Result<Probe, LinkRefusal> {
        let mut effects = Effects::default();
        let answer = self.engine.on_probe(probe, now, &mut effects);
        self.settle(effects, now, actions);
        answer
    }

    /// The result of a probe that this node asked for.
    pub fn probe_done(&self, to: MemberId, result: ProbeResult, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.probe_done(to, result, now, &mut effects);
        self.settle(effects, now, actions);
    }
}
