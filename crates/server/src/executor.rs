//! Carries out what the node asks for: the one way from an [`Action`] to a queue, a task or a socket.
//!
//! Called by everything that calls the node, right after each call. Never blocks and never awaits: each effect is
//! handed to a bounded queue or to a task of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use rollcall_core::Now;
use rollcall_node::action::{Accepted, Action, Actions, Ticket};
use rollcall_node::error::NodeError;
use rollcall_node::request::{ConnectionId, WriteDone};
use rollcall_node::{Death, Node, ProbeResult, Report};
use tokio::sync::{Notify, oneshot};
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::connections::{Connections, Delivery};
use crate::ephemeral_copy::EphemeralCopy;
use crate::grpc::outgoing::Outgoing;
use crate::metrics::ShellMetrics;
use crate::peer::Peers;
use crate::store::Store;
use crate::udp::Udp;

/// What a write or a forwarded write comes to: its result, and for a forwarded one where its change stands.
pub type Answer = (Result<WriteDone, NodeError>, Option<Accepted>);

/// The node, and all that is needed to do what it asks for. A clone costs one reference count.
#[derive(Clone)]
pub struct Executor(Arc<Shell>);

struct Shell {
    node: Arc<Node>,
    clock: Clock,
    connections: Connections,
    metrics: ShellMetrics,
    tickets: DashMap<u64, oneshot::Sender<Answer>, foldhash::fast::RandomState>,
    next_ticket: AtomicU64,
    wake: Notify,
    peers: OnceLock<Peers>,
    store: Option<Store>,
    udp: OnceLock<Udp>,
    copy: OnceLock<EphemeralCopy>,
}

impl Executor {
    /// An executor for `node` with empty tables; without a store, nothing is kept on disk.
    pub fn new(node: Arc<Node>, clock: Clock, store: Option<Store>) -> Self {
        Executor(Arc::new(Shell {
            node,
            clock,
            connections: Connections::default(),
            metrics: ShellMetrics::default(),
            tickets: DashMap::default(),
            next_ticket: AtomicU64::new(1),
            wake: Notify::new(),
            peers: OnceLock::new(),
            store,
            udp: OnceLock::new(),
            copy: OnceLock::new(),
        }))
    }

    /// Connects the peer side; called once at start. Until then forwards and probes fail at once.
    pub fn set_peers(&self, peers: Peers) {
        let _ = self.0.peers.set(peers);
    }

    /// The peer side, once it is there.
    pub fn peers(&self) -> Option<&Peers> {
        self.0.peers.get()
    }

    /// Connects the UDP socket; called once at start. Until then polls are granted no pushes.
    pub fn set_udp(&self, udp: Udp) {
        let _ = self.0.udp.set(udp);
    }

    /// The UDP socket, once it is there.
    pub fn udp(&self) -> Option<&Udp> {
        self.0.udp.get()
    }

    /// Connects the copy of ephemeral instances on disk; called once at start, if there is to be one.
    pub fn set_copy(&self, copy: EphemeralCopy) {
        let _ = self.0.copy.set(copy);
    }

    /// The copy of ephemeral instances on disk, if there is to be one.
    pub fn copy(&self) -> Option<&EphemeralCopy> {
        self.0.copy.get()
    }

    /// Lets a thread of its own work on the copy on disk. The node asks for one piece of work at a time.
    fn with_copy(&self, work: impl FnOnce(&EphemeralCopy, &Executor) + Send + 'static) {
        let exec = self.clone();
        tokio::task::spawn_blocking(move || {
            if let Some(copy) = exec.copy() {
                work(copy, &exec);
            }
        });
    }

    /// What keeps operator data on disk, if anything does.
    pub fn store(&self) -> Option<&Store> {
        self.0.store.as_ref()
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    /// Both clocks now.
    pub fn now(&self) -> Now {
        self.0.clock.now()
    }

    /// The clock of the process.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The client connections.
    pub fn connections(&self) -> &Connections {
        &self.0.connections
    }

    /// What the shell counts.
    pub fn metrics(&self) -> &ShellMetrics {
        &self.0.metrics
    }

    /// A ticket for one write and the place where its answer arrives.
    pub fn ticket(&self) -> (Ticket, oneshot::Receiver<Answer>) {
        let number = self.0.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.0.tickets.insert(number, sender);
        (Ticket(number), receiver)
    }

    /// Gives a ticket up whose answer nobody waits for any more.
    pub fn forget(&self, ticket: Ticket) {
        self.0.tickets.remove(&ticket.0);
    }

    /// Completes when the node asked for an early tick; a request that came while nobody waited is kept.
    pub async fn woken(&self) {
        self.0.wake.notified().await;
    }

    /// Carries out `actions` in order.
    pub fn run(&self, actions: Actions) {
        for action in actions.0 {
            self.run_one(action);
        }
    }

    fn run_one(&self, action: Action) {
        match action {
            Action::Push(push) => self.send(push.connection, Outgoing::Push(Box::new(push))),
            Action::PushUdp(push) => {
                if let Some(Err(push)) = self.udp().map(|udp| udp.push(push)) {
                    self.0.metrics.udp_overflows.increment();
                    self.tell_later(move |node, now, actions| {
                        node.udp_failed(&push.target, push.stamp, now, actions);
                    });
                }
            }
            Action::Detect {
                connection,
                request_id,
            } => self.send(connection, Outgoing::Detect { request_id }),
            Action::Reset {
                connection,
                request_id,
                to,
            } => {
                self.send(connection, Outgoing::Reset(Box::new((request_id, to))));
            }
            Action::Fuzzy {
                connection,
                request_id,
                message,
            } => self.send(connection, Outgoing::Fuzzy(Box::new((request_id, *message)))),
            Action::Close { connection } => {
                if let Some(handle) = self.0.connections.remove(connection) {
                    handle.close();
                }
            }
            Action::Answer {
                ticket,
                result,
                accepted,
            } => {
                if let Some((_, sender)) = self.0.tickets.remove(&ticket.0) {
                    let _ = sender.send((result, accepted)); // The client may have gone.
                }
            }
            Action::Store(ops) => {
                if let Some(store) = self.store() {
                    store.keep(&ops);
                }
            }
            Action::WriteCopy => self.with_copy(EphemeralCopy::write),
            Action::ReadCopy => self.with_copy(EphemeralCopy::offer),
            Action::Report(report) => self.log(report),
            Action::Wake => self.0.wake.notify_one(),
            Action::Joined { member } => self.with_peers(|peers| peers.join(member)),
            Action::Left { member } => self.with_peers(|peers| peers.leave(member)),
            Action::LinkReady { member } => self.with_peers(|peers| peers.link_ready(member)),
            Action::RepliesReady { member } => self.with_peers(|peers| peers.replies_ready(member)),
            Action::Redial { member } => self.with_peers(|peers| peers.redial(member)),
            Action::Forward { id, to, forward } => match self.0.peers.get() {
                Some(peers) => peers.forward(id, to, forward),
                None => self.tell_later(move |node, now, actions| node.forward_failed(id, now, actions)),
            },
            Action::Probe { to, probe } => match self.0.peers.get() {
                Some(peers) => peers.probe(to, probe),
                None => self.tell_later(move |node, now, actions| {
                    node.probe_done(to, ProbeResult::Missed, now, actions);
                }),
            },
        }
    }

    fn log(&self, report: Report) {
        let address = |id| {
            let peers = self.0.node.peers();
            peers
                .into_iter()
                .find(|(member, _)| *member == id)
                .map(|(_, address)| address.to_string())
        };
        match report {
            Report::Ready { complete: true } => info!("ready: the data of every live member is in"),
            Report::Ready { complete: false } => {
                warn!("ready without the data of all members: the gate_limit is reached");
            }
            Report::CatchingUp => warn!("this process stood still: serving nothing until it has caught up"),
            Report::MemberDead(id, Death::Gone) => {
                warn!(
                    member = address(id),
                    "member is down: its address refuses connections"
                );
            }
            Report::MemberDead(id, Death::Unreachable) => {
                warn!(member = address(id), "member is down: it does not answer");
            }
            Report::MemberBack(id) => info!(member = address(id), "member answers again"),
            Report::Unlisted => warn!(
                "no other member that answers lists this one: serving reads only, and sending clients to the others"
            ),
            Report::Listed => info!("listed by another member again: catching up before it serves"),
        }
    }

    fn with_peers(&self, tell: impl FnOnce(&Peers)) {
        if let Some(peers) = self.0.peers.get() {
            tell(peers);
        }
    }

    /// Reports to the node from a task of its own, so that a report never runs inside the call that asked for it.
    fn tell_later(&self, tell: impl FnOnce(&Node, Now, &mut Actions) + Send + 'static) {
        let exec = self.clone();
        tokio::spawn(async move {
            let mut actions = Actions::default();
            tell(exec.node(), exec.now(), &mut actions);
            exec.run(actions);
        });
    }

    /// Puts a message into a connection's queue. A client that does not read until its queue is full is cut off:
    /// it would hold memory without bound otherwise, and it registers again when it comes back.
    fn send(&self, connection: ConnectionId, message: Outgoing) {
        match self.0.connections.send(connection, message) {
            Delivery::Queued => {}
            Delivery::NoStream => debug!(connection = connection.0, "no open stream to send to"),
            Delivery::Full => {
                warn!(
                    connection = connection.0,
                    "queue of outgoing messages is full, connection closed"
                );
                self.0.metrics.queue_overflows.increment();
                if let Some(handle) = self.0.connections.remove(connection) {
                    handle.close();
                }
                self.tell_later(move |node, now, actions| node.close_connection(connection, now, actions));
            }
        }
    }
}
