//! Members talking to each other: links, probes and forwarded writes over the peer port.
//!
//! ```text
//!            executor                                 the node
//!   link_ready | redial | probe | forward              ^  ^  ^
//!              v                                       |  |  |
//!   grpc_peer (one task per member: dials, sends)  ----+  |  |        handshake: proofs, pure
//!   probe     (asks and answers)                   -------+  |        dial: sockets towards members
//!   inbound   (one task per link: checks, applies) ----------+        forward: writes to and from owners
//!                                                                     own_address: who is at this member's
//! ```
//!
//! Knows sockets, tonic and the secret; knows nothing of what frames mean. The node decides who is alive and what to
//! send; this module reports what became of it. The port is of use to members only: nothing on it is believed
//! before the secret of the cluster is proven, and no other port accepts any of it.

mod dial;
mod forward;
mod grpc_peer;
mod handshake;
mod inbound;
mod metrics;
mod news;
mod own_address;
mod probe;
mod random;
mod serve;
mod sessions;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rollcall_core::{MemberId, Now};
use rollcall_distro::codec;
use rollcall_distro::message::{Forward, Probe};
use rollcall_node::Node;
use rollcall_node::action::{Actions, ForwardId};
use smol_str::SmolStr;
use tokio::sync::{Notify, Semaphore, SetOnce, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::dial::{Client, Connector};
use self::handshake::{Secret, Session};
use self::inbound::InboundLinks;
pub use self::metrics::{Count, PeerMetrics};
use self::news::News;
pub use self::own_address::AddressTaken;
use self::sessions::Sessions;
use crate::executor::Executor;
use crate::sockets::{Dialer, Listener};

/// Generated code of `proto/distro.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::large_futures
)]
pub(crate) mod pb {
    tonic::include_proto!("rollcall.distro.v1");
}

/// Distance from a member's main port to its peer port, unless it is configured.
pub const PEER_PORT_OFFSET: u16 = 1001;
/// Largest message that is read from a member, in bytes: the codec's limit and room for heads and MACs.
const MESSAGE_LIMIT: usize = codec::MAX_BODY + (64 << 10);
/// Largest question of a probe that is read, in bytes: a full member list of long names. Small, as it is read before
/// anything is proven.
const PROBE_LIMIT: usize = 64 << 10;
/// How long a write to its owner may take, see [`PeerConfig::forward_timeout`].
pub const FORWARD_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a link may be unable to write before it is dropped.
const STALL: Duration = Duration::from_secs(10);
/// Frames and replies that wait in a stream. Few, so that what waits longer is merged by the node instead.
const STREAM_DEPTH: usize = 2;
/// Forwards to one member at a time; more wait, within the time limit of each.
const FORWARDS_AT_ONCE: usize = 256;

/// Settings of the peer side. Has no `Debug`: it holds the secret.
pub struct PeerConfig {
    /// Secret that all members share. May be empty, which proves nothing.
    pub secret: String,
    /// Distance from a member's main port to its peer port, modulo 2^16 so that it may lie below. Default
    /// [`PEER_PORT_OFFSET`].
    pub port_offset: u16,
    /// Peer addresses (`host:port`) of members whose peer port is elsewhere, by advertised address.
    pub addresses: HashMap<SmolStr, SmolStr>,
    /// How long a probe may take. Default 900 ms.
    pub probe_timeout: Duration,
    /// Missed probes in a row after which an open link is dropped and dialed again. Default 3.
    pub probe_misses: u32,
    /// How long dialing a link may take before the handshake. Default 2 s.
    pub dial_timeout: Duration,
    /// How long a forward may take, connecting included. After that the next in rank is asked, so it is also how long a
    /// client waits when an owner hangs. Default [`FORWARD_TIMEOUT`].
    pub forward_timeout: Duration,
}

impl PeerConfig {
    /// Defaults around a secret.
    pub fn new(secret: String) -> Self {
        PeerConfig {
            secret,
            port_offset: PEER_PORT_OFFSET,
            addresses: HashMap::new(),
            probe_timeout: Duration::from_millis(900),
            probe_misses: 3,
            dial_timeout: Duration::from_secs(2),
            forward_timeout: FORWARD_TIMEOUT,
        }
    }
}

/// Why the peer side cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The secret makes no key.
    #[error("the cluster secret cannot be used as a key")]
    Secret,
    /// A member's address has no port, or none that a peer port can be reckoned from.
    #[error("member {0} has no usable port, want host:port")]
    Address(SmolStr),
    /// The operating system gives no random bytes.
    #[error("no random bytes")]
    Random(#[from] std::io::Error),
    /// Somebody else is at the advertised address.
    #[error(transparent)]
    Taken(#[from] AddressTaken),
}

/// The peer side of a running process. A clone costs one reference count.
#[derive(Clone)]
pub struct Peers(Arc<Shared>);

/// What all tasks of the peer side share.
struct Shared {
    node: Arc<Node>,
    executor: Executor,
    secret: Secret,
    limits: Limits,
    /// This member, as others reach it.
    own: Peer,
    /// Somebody else is at the advertised address: this process gives way.
    taken: SetOnce<AddressTaken>,
    /// The members of the list now, and those that only other members list.
    peers: RwLock<HashMap<MemberId, Arc<Peer>>>,
    routes: Routes,
    inbound: InboundLinks,
    sessions: Sessions,
    /// Handshakes and probes of others that were refused, by who asked.
    refused: News,
    network: Arc<dyn Dialer>,
    http: forward::HttpClient,
    metrics: PeerMetrics,
    shutdown: CancellationToken,
}

/// Where members are dialed.
struct Routes {
    port_offset: u16,
    /// Peer addresses that are elsewhere, by advertised address.
    addresses: HashMap<SmolStr, SmolStr>,
}

impl Routes {
    fn target(&self, address: &SmolStr) -> Result<SmolStr, PeerError> {
        match self.addresses.get(address) {
            Some(target) => Ok(target.clone()),
            None => {
                peer_address(address, self.port_offset).ok_or_else(|| PeerError::Address(address.clone()))
            }
        }
    }
}

/// The time limits of [`PeerConfig`].
struct Limits {
    probe: Duration,
    misses: u32,
    dial: Duration,
    forward: Duration,
}

/// One member, as this process reaches it.
struct Peer {
    member: MemberId,
    /// Advertised address.
    address: SmolStr,
    /// Peer address to dial, `host:port`.
    target: SmolStr,
    /// Frames may wait at the node.
    ready: Notify,
    /// The member has shown that it is there: a pause before the next dial ends.
    awake: Notify,
    /// Raised to drop the link and dial again.
    redial: watch::Sender<u64>,
    /// Connection kept for probes.
    probe_client: Mutex<Option<Client>>,
    /// Probes missed in a row; a refused connection counts as all that may be missed.
    missed: AtomicU32,
    /// Token of the last handshake, shown with forwards, and the format version that both sides speak since then.
    session: Mutex<Option<(Session, u8)>>,
    forwards: Arc<Semaphore>,
    /// The member has left the list, or the process stops.
    gone: CancellationToken,
    /// What goes wrong on the way to this member, by subject.
    trouble: News,
}

impl Peers {
    /// Starts the peer side: serves the peer port behind `listener`, looks who is at the advertised address, and keeps a
    /// link to every other member over `network`, until `shutdown`. Connects itself to the executor.
    ///
    /// # Errors
    /// [`PeerError`] when the settings cannot work. What can change later, as an unreachable member, is not an error.
    pub async fn start(
        node: Arc<Node>,
        executor: Executor,
        (listener, network): (impl Listener, Arc<dyn Dialer>),
        config: PeerConfig,
        shutdown: CancellationToken,
    ) -> Result<Peers, PeerError> {
        random::bytes()?; // Fail now rather than at the first handshake.
        let routes = Routes {
            port_offset: config.port_offset,
            addresses: config.addresses,
        };
        let address = SmolStr::new(node.link_hello().member);
        let target = routes.target(&address)?;
        let shared = Arc::new(Shared {
            own: Peer::new(MemberId::of(&address), address, target, shutdown.child_token()),
            taken: SetOnce::new(),
            node,
            executor,
            secret: Secret::new(&config.secret).map_err(|_| PeerError::Secret)?,
            limits: Limits {
                probe: config.probe_timeout,
                misses: config.probe_misses.max(1),
                dial: config.dial_timeout,
                forward: config.forward_timeout,
            },
            peers: RwLock::default(),
            routes,
            inbound: InboundLinks::default(),
            sessions: Sessions::default(),
            refused: News::default(),
            http: forward::client(Connector(network.clone())),
            network,
            metrics: PeerMetrics::default(),
            shutdown,
        });
        let started = Peers(shared.clone());
        shared.executor.set_peers(started.clone());
        tokio::spawn(serve::run(shared.clone(), listener));
        own_address::first_look(&shared).await?;
        tokio::spawn(own_address::watch(shared.clone()));
        for (member, address) in shared.node.peers() {
            started.add(member, address)?;
        }
        Ok(started)
    }

    fn add(&self, member: MemberId, address: SmolStr) -> Result<(), PeerError> {
        let target = self.0.routes.target(&address)?;
        let gone = self.0.shutdown.child_token();
        let peer = Arc::new(Peer::new(member, address, target, gone));
        if let Some(former) = self.0.peers.write().insert(member, peer.clone()) {
            former.gone.cancel();
        }
        tokio::spawn(grpc_peer::run(self.0.clone(), peer));
        Ok(())
    }

    /// A member has come to the list: keeps a link to it from now on.
    pub fn join(&self, member: MemberId) {
        let mut peers = self.0.node.peers().into_iter();
        let Some((_, address)) = peers.find(|(id, _)| *id == member) else {
            return; // It has left again.
        };
        match self.add(member, address.clone()) {
            Ok(()) => info!(%address, "member joins"),
            Err(error) => warn!(%address, %error, "member cannot be dialed"),
        }
    }

    /// A member has left the list: ends the links both ways. What it was told to show with forwards is worth nothing now.
    pub fn leave(&self, member: MemberId) {
        let former = self.0.peers.write().remove(&member);
        if let Some(peer) = former {
            info!(address = %peer.address, "member leaves");
            peer.gone.cancel();
        }
        self.0.sessions.remove(member);
        self.0.inbound.end(member);
    }

    /// Frames wait for `member` at the node.
    pub fn link_ready(&self, member: MemberId) {
        if let Some(peer) = self.0.peer(member) {
            peer.ready.notify_one();
        }
    }

    /// Replies wait for `member` at the node.
    pub fn replies_ready(&self, member: MemberId) {
        self.0.inbound.replies_ready(member);
    }

    /// Drops the link to `member`, if any, and dials it at once.
    pub fn redial(&self, member: MemberId) {
        if let Some(peer) = self.0.peer(member) {
            peer.redial();
            peer.awake.notify_one();
        }
    }

    /// Sends a write to `to` and tells the node what became of it.
    pub fn forward(&self, id: ForwardId, to: MemberId, forward: Forward) {
        forward::send(self.0.clone(), id, to, forward);
    }

    /// Asks `to` whether it lives and tells the node.
    pub fn probe(&self, to: MemberId, probe: Probe) {
        tokio::spawn(probe::ask(self.0.clone(), to, probe));
    }

    /// Completes when somebody else turns out to be at the advertised address, and this process has to give way.
    pub async fn taken(&self) -> AddressTaken {
        self.0.taken.wait().await.clone()
    }

    /// What is wrong with the advertised address of this node, as far as it can tell.
    pub fn own_trouble(&self) -> Option<String> {
        self.0.own.trouble.last(own_address::OWN)
    }

    /// What goes wrong on the way to a member right now: its answer to a probe is missing or refuses this node, or the
    /// link cannot be set up. For this node, [`Peers::own_trouble`].
    pub fn trouble(&self, address: &str) -> Option<String> {
        if address == self.0.own.address {
            return self.own_trouble();
        }
        let peer = self.0.peer(MemberId::of(address))?;
        peer.trouble
            .last(probe::PROBE)
            .or_else(|| peer.trouble.last(grpc_peer::LINK))
    }

    /// What the peer side has counted so far.
    pub fn metrics(&self) -> &PeerMetrics {
        &self.0.metrics
    }
}

impl Shared {
    fn peer(&self, member: MemberId) -> Option<Arc<Peer>> {
        self.peers.read().get(&member).cloned()
    }

    fn now(&self) -> Now {
        self.executor.now()
    }

    /// Calls the node and carries out what it asks for.
    fn with_node<T>(&self, call: impl FnOnce(&Node, Now, &mut Actions) -> T) -> T {
        let mut actions = Actions::default();
        let result = call(&self.node, self.now(), &mut actions);
        self.executor.run(actions);
        result
    }
}

impl Peer {
    fn new(member: MemberId, address: SmolStr, target: SmolStr, gone: CancellationToken) -> Self {
        Peer {
            member,
            address,
            target,
            ready: Notify::new(),
            awake: Notify::new(),
            redial: watch::Sender::new(0),
            probe_client: Mutex::new(None),
            missed: AtomicU32::new(0),
            session: Mutex::new(None),
            forwards: Arc::new(Semaphore::new(FORWARDS_AT_ONCE)),
            gone,
            trouble: News::default(),
        }
    }

    fn redial(&self) {
        self.redial.send_modify(|count| *count += 1);
    }
}

/// The peer address of a member: same host, its main port and `offset`.
fn peer_address(address: &str, offset: u16) -> Option<SmolStr> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.wrapping_add(offset);
    (!host.is_empty() && port > 0).then(|| SmolStr::new(format!("{host}:{port}")))
}

#[cfg(test)]
mod tests;
