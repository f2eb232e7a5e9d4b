//! What clients with a connection ask: setting up, registering, subscribing, acknowledging.

use rollcall_core::registry::change::ClientId;
use rollcall_core::{Instance, Micros, Now, RowKey, ServiceKey};
use rollcall_distro::Effects;
use smol_str::SmolStr;

use crate::action::Actions;
use crate::connection::Awaited;
use crate::error::NodeError;
use crate::metrics::Counters;
use crate::movers::LEAVES_WITHIN;
use crate::node::Node;
use crate::push::Outcome;
use crate::push::costs::PushWay;
use crate::push::udp::Poll;
use crate::reads::ServiceAnswer;
use crate::request::{ConnectionId, ConnectionInfo, UdpTarget};
use crate::switches::Access;

/// Clients that register again only at the next turn of a timer of half a minute, however soon they connect again: by
/// the start of their version text.
const SLOW_TO_RETURN: &[&str] = &["Nacos-Python-Client"];

fn returns_slowly(info: &ConnectionInfo) -> bool {
    SLOW_TO_RETURN
        .iter()
        .any(|name| info.client_version.starts_with(name))
}

impl Node {
    /// A client has set its connection up.
    ///
    /// # Errors
    /// [`NodeError::NotReady`] while this node is loading, [`NodeError::Leaving`] while it leaves,
    /// [`NodeError::Overridden`], [`NodeError::Unlisted`], [`NodeError::TooManyConnections`].
    pub fn open_connection(
        &self,
        info: ConnectionInfo,
        now: Now,
        actions: &mut Actions,
    ) -> Result<ConnectionId, NodeError> {
        if !self.is_ready() {
            return Err(self.not_serving());
        }
        self.check_status(Access::Connect)?;
        if !self.connections.take_place(&info) {
            Counters::add(&self.counters.connections_refused);
            return Err(NodeError::TooManyConnections);
        }
        let number = self.registry.clock().tick(now.wall);
        let client = ClientId::new(self.engine.me(), number, returns_slowly(&info));
        self.registry.open_client(client);
        actions.wake();
        Ok(self.connections.open(client, info, now))
    }

    /// A connection is gone: so is everything it subscribed, and soon what it registered.
    ///
    /// What a client registered that was asked to move stays until it is registered anew, or for a grace; so does that of a
    /// client that goes soon after this node stood still, since it may have gone elsewhere long before. While this node
    /// leaves or is unlisted, what it registered stays: the client is on its way to another member, and the others keep
    /// the rows as orphans until it is there.
    pub fn close_connection(&self, id: ConnectionId, now: Now, actions: &mut Actions) {
        let Some(connection) = self.connections.close(id, &self.pusher) else {
            return;
        };
        self.fuzzy.forget(id);
        if self.is_leaving() {
            return;
        }
        let stood_still = self.engine.has_stood_still(now, LEAVES_WITHIN);
        let grace = self.mover_grace(connection.client);
        let (movers, registry) = (&self.movers, &self.registry);
        if self.is_unlisted() || !movers.take(&connection, stood_still, registry, grace, now.mono) {
            self.closing.add(connection.client);
        }
        actions.wake();
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
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`], [`NodeError::WrongKind`], [`NodeError::Unlisted`].
    pub fn register(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        instances: Vec<Instance>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let client = self.writing_client(id, now)?;
        if !instances.is_empty() {
            self.check_kind(service, true)?;
        }
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
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`], [`NodeError::Unlisted`].
    pub fn deregister(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        row: &RowKey,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let client = self.writing_client(id, now)?;
        let mut effects = Effects::default();
        let log = self.engine.log();
        let hash = row.stable_hash(service);
        let done = self
            .registry
            .unpublish(client, service, hash, now, log, &mut effects.changes);
        self.settle(effects, now, actions);
        done.map_err(|_| NodeError::UnknownConnection)
    }

    /// The client, if what it registers here reaches the other members.
    fn writing_client(&self, id: ConnectionId, now: Now) -> Result<ClientId, NodeError> {
        let client = self.naming_client(id, now)?;
        if self.is_unlisted() {
            return Err(NodeError::Unlisted);
        }
        Ok(client)
    }

    pub(crate) fn naming_client(&self, id: ConnectionId, now: Now) -> Result<ClientId, NodeError> {
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
    /// [`NodeError::NotReady`], [`NodeError::UnknownConnection`], [`NodeError::NotNaming`].
    pub fn subscribe(
        &self,
        id: ConnectionId,
        service: &ServiceKey,
        clusters: Option<SmolStr>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<ServiceAnswer, NodeError> {
        self.check_readable(now)?;
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

    /// A 1.x client has polled a list and named the port where it wants pushes: subscribes it, or lets the subscription
    /// live longer. The first poll is followed by one push, like the first subscription of a connection. `agent` is what
    /// the client calls itself.
    pub fn udp_polled(
        &self,
        target: &UdpTarget,
        service: &ServiceKey,
        clusters: &str,
        agent: &str,
        now: Now,
        actions: &mut Actions,
    ) {
        if !self.has_push() {
            return; // As recorded: no subscription begins or is prolonged meanwhile.
        }
        let counters = &self.counters;
        let poll = Poll {
            service,
            clusters: clusters.into(),
            agent: agent.into(),
        };
        self.pusher.udp_polled(target, poll, counters, now, actions);
    }

    /// A push has left: the stream took it, or the datagram was sent. `changed` is what the push says.
    pub fn push_sent(&self, way: PushWay, changed: Option<Micros>, now: Now) {
        self.counters.push_costs.sent(way, changed, now);
    }

    /// An acknowledgement of a push came from `target`; one that nobody waits for is ignored.
    pub fn udp_acked(&self, target: &UdpTarget, stamp: u64, now: Now) {
        self.pusher.udp_acked(target, stamp, &self.counters, now);
    }

    /// A push could not be sent from here.
    pub fn udp_failed(&self, target: &UdpTarget, stamp: u64, now: Now, actions: &mut Actions) {
        self.pusher
            .udp_failed(target, stamp, &self.counters, now, actions);
    }

    /// The addresses subscribed to a service over UDP at this member, sorted, each with its clusters text.
    pub fn udp_subscribers(&self, service: &ServiceKey) -> Vec<(UdpTarget, SmolStr)> {
        self.pusher.udp_subscribers(service)
    }

    pub(crate) fn push_ended(
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
        let (service, clusters) = match connection.answered(request_id) {
            Some(Awaited::Push(service, clusters)) => (service, clusters),
            Some(Awaited::Fuzzy(pattern)) => {
                let is_ok = outcome == Outcome::Acked;
                return self.fuzzy_answered(id, request_id, pattern, is_ok, now, actions);
            }
            Some(Awaited::Reset) => return self.reset_answered(request_id, now, actions),
            _ => return,
        };
        Counters::add(match outcome {
            Outcome::Acked => &self.counters.pushes_acked,
            Outcome::Refused => &self.counters.pushes_failed,
            Outcome::TimedOut => &self.counters.pushes_timed_out,
        });
        let registry = &self.registry;
        let sent = self.pusher.ended(
            registry, id, request_id, &service, &clusters, outcome, now, actions,
        );
        if let Some(sent) = sent.filter(|_| outcome == Outcome::Acked) {
            self.counters.push_costs.acked(PushWay::Grpc, sent.changed, now);
            if sent.is_empty {
                Counters::add(&self.counters.pushes_empty);
            }
        }
    }
}
