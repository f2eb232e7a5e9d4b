//! Carries out what the node asks for: the one way from an [`Action`] to a queue, a task or a socket.
//!
//! Called by everything that calls the node, right after each call. Never blocks and never awaits: each effect is
//! handed to a bounded queue or to a task of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use rollcall_core::Now;
use rollcall_core::expiry::brake::Silence;
use rollcall_node::action::{Accepted, Action, Actions, Silenced, Ticket};
use rollcall_node::error::NodeError;
use rollcall_node::request::{ConnectionId, WriteDone};
use rollcall_node::{Death, Node, ProbeResult, Report};
use tokio::sync::{Notify, oneshot};
use tracing::{debug, info, warn};
use tracing_appender::non_blocking::ErrorCounter;

use crate::clock::Clock;
use crate::connections::{Connections, Delivery, Progress};
use crate::ephemeral_copy::EphemeralCopy;
use crate::grpc::outgoing::Outgoing;
use crate::load::{Load, Want};
use crate::metrics::ShellMetrics;
use crate::net::Newcomers;
use crate::peer::Peers;
use crate::store::Store;
use crate::udp::Udp;
use crate::unread::Held;

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
    load: OnceLock<Load>,
    newcomers: OnceLock<Newcomers>,
    lost_lines: OnceLock<ErrorCounter>,
    held: Held,
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
            load: OnceLock::new(),
            newcomers: OnceLock::new(),
            lost_lines: OnceLock::new(),
            held: Held::default(),
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

    /// Connects what tells how far behind the process is; called once at start. Until then nobody is turned away.
    pub fn set_load(&self, load: Load) {
        let _ = self.0.load.set(load);
    }

    /// What tells how far behind the process is, once it is there.
    pub fn load(&self) -> Option<&Load> {
        self.0.load.get()
    }

    /// Connects the places of connections that have not asked yet, for metrics; called once at start.
    pub fn set_newcomers(&self, newcomers: Newcomers) {
        let _ = self.0.newcomers.set(newcomers);
    }

    /// Connects the count of what the log has lost, for metrics; called once at start.
    pub fn set_lost_lines(&self, lost: ErrorCounter) {
        let _ = self.0.lost_lines.set(lost);
    }

    /// Lines of the log that were not written, since too many waited.
    pub fn n_lost_lines(&self) -> usize {
        let lost = self.0.lost_lines.get();
        lost.map_or(0, ErrorCounter::dropped_lines)
    }

    /// What all connections hold of answers that are not read yet.
    pub fn held_answers(&self) -> &Held {
        &self.0.held
    }

    /// The number of connections that have not asked anything yet.
    pub fn n_newcomers(&self) -> usize {
        self.0.newcomers.get().map_or(0, Newcomers::n_taken)
    }

    /// Lets what a client wants pass, unless the process is too far behind.
    ///
    /// # Errors
    /// [`NodeError::Overloaded`].
    pub fn admit(&self, want: Want) -> Result<(), NodeError> {
        self.load().map_or(Ok(()), |load| load.admit(want, self.now()))
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
            Action::Brake { what, silence, holds } => log_brake(what, silence, holds),
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
            Report::Barred => warn!(
                "still not ready after gate_limit: members answer, and data of theirs does not come; see `trouble` in \
                 /rollcall/state, whether they list this node, can reach the peer port of the advertised address, and \
                 whether the settings agree"
            ),
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
            Report::MemberCut(id) => {
                warn!(
                    member = address(id),
                    "member answers others and not this node: its rows come through them"
                );
            }
            Report::MemberBack(id) => info!(member = address(id), "member answers again"),
            Report::Impaired(true) => {
                warn!("the disk hangs: other members own this node's services until it works again");
            }
            Report::Impaired(false) => info!("the disk works again"),
            Report::Unlisted => warn!(
                "no other member that answers lists this one: serving reads only, and sending clients to the others"
            ),
            Report::EveningOut => info!("connections are uneven: clients are sent to the members with few"),
            Report::EveningOutEnds => info!("no more clients are sent away to even out connections"),
            Report::InMinority { n_reached, n_cut_off } => warn!(
                n_reached,
                n_cut_off,
                "cut off with the fewer members: clients are sent to the others, who stays is served"
            ),
            Report::MinorityOver => info!("no longer in a minority"),
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

    /// Puts a message into a connection's queue. A client that does not read until its queue is full, or for long, is cut off:
    /// it would hold memory without bound otherwise, and it registers again when it comes back.
    fn send(&self, connection: ConnectionId, message: Outgoing) {
        let delivery = self.0.connections.send(connection, message, self.now().mono);
        match delivery {
            Delivery::Queued => {}
            Delivery::NoStream => debug!(connection = connection.0, "no open stream to send to"),
            Delivery::Full | Delivery::Stuck => {
                warn!(
                    connection = connection.0,
                    ?delivery,
                    "outgoing messages are not read, connection closed"
                );
                self.cut_off(connection);
            }
        }
    }

    /// A stream has taken a message of so many bytes to pass it on.
    pub fn taken(&self, progress: &Progress, n_bytes: usize, now: Now) {
        for connection in self.0.connections.taken(progress, n_bytes, now.mono) {
            warn!(
                connection = connection.0,
                "too much is unread in all, and this client has not read for long, connection closed"
            );
            self.cut_off(connection);
        }
    }

    fn cut_off(&self, connection: ConnectionId) {
        self.0.metrics.queue_overflows.increment();
        if let Some(handle) = self.0.connections.remove(connection) {
            handle.close();
        }
        self.tell_later(move |node, now, actions| node.close_connection(connection, now, actions));
    }
}

fn log_brake(what: Silenced, silence: Silence, holds: bool) {
    let Silence {
        n_silent, n_known, ..
    } = silence;
    let what = match what {
        Silenced::Beats => "instances",
        Silenced::Connections => "connections",
    };
    match holds {
        true => warn!(
            n_silent,
            n_known,
            "many {what} fell silent at once: it may be this node that does not hear them, so each is given its time once \
             more (expiry_brake)"
        ),
        false => info!(n_silent, n_known, "the silence of many {what} is over"),
    }
}
