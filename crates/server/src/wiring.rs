//! Builds the process: which part is connected to which, and in what order they start and end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rollcall_core::Millis;
use rollcall_core::registry::change::RowOp;
use rollcall_node::Node;
use rollcall_node::action::Actions;
use smol_str::SmolStr;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use tracing_appender::non_blocking::ErrorCounter;

use crate::client_app::{ClientApp, ClientLimits};
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::ephemeral_copy::EphemeralCopy;
use crate::executor::Executor;
use crate::http::app::{HttpApp, HttpSettings};
use crate::load::Load;
use crate::log_levels::LogLevels;
use crate::member_list::MemberList;
use crate::net::{self, Newcomers, Port};
use crate::peer::{AddressTaken, PeerConfig, PeerError, Peers};
use crate::shutdown::{self, Signals};
use crate::sockets::{self, Dialer, Listener, Tcp};
use crate::store::{self, Store, StoreError};
use crate::udp::{self, Udp};

/// Longest sleep of the tick task.
const TICK_MAX: Duration = Duration::from_secs(1);
/// How long open connections may take to end after the drain.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Why the process cannot start, or go on. A text leaves out its source, which is printed behind it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be bound.
    #[error("cannot bind {address}, {role}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What it is for, and which key moves it.
        role: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// Signals cannot be listened for.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// The address server has no member list that will do.
    #[error(transparent)]
    Members(#[from] ConfigError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The peer side.
    #[error("cannot start the peer side")]
    Peers(#[source] PeerError),
    /// Somebody else is at the advertised address. This may also turn out while the process runs.
    #[error(transparent)]
    Taken(#[from] AddressTaken),
}

impl From<PeerError> for StartError {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Taken(taken) => StartError::Taken(taken),
            error => StartError::Peers(error),
        }
    }
}

/// Runs the process until a signal asks it to end. `log_levels` changes the log, which is started; `lost_lines` counts what
/// could not be written of it.
///
/// # Errors
/// It cannot start, or has to give way to another process at its advertised address.
pub async fn run(config: Config, log_levels: LogLevels, lost_lines: ErrorCounter) -> Result<(), StartError> {
    // Everything that can fail comes first, so that a process that is up stays up.
    let mut signals = Signals::listen().map_err(StartError::Signals)?;
    let main = bind(config.address(config.port), "the main port (port)")?;
    let grpc = bind(
        config.address(config.grpc_port),
        "the gRPC port (grpc_port, by default port + 1000)",
    )?;
    let peer = match config.is_cluster() {
        true => Some(bind(
            config.address(config.peer_port),
            "the peer port (peer_port, by default port + 1001)",
        )?),
        false => None,
    };
    let udp = udp::bind(config.address(config.udp_port)).map_err(|error| StartError::Bind {
        address: config.address(config.udp_port),
        role: "the port for pushes over UDP (udp_port)",
        error,
    })?;
    let (store, kept) = match &config.data_dir {
        Some(dir) => {
            let (store, kept) = Store::open(dir, &config.node.self_address)?;
            (Some(store), kept)
        }
        None => (None, Vec::new()),
    };
    raise_file_limit();
    let network: Arc<dyn Dialer> = Arc::new(Tcp);
    let list = MemberList::start(&config, &network).await?;

    let clock = Clock::start();
    let members = list.as_ref().map(|list| list.members().to_vec());
    warn_of_strange_files(&config, members.as_deref().unwrap_or(&config.node.members));
    let sockets = Sockets {
        main,
        grpc,
        peer,
        udp: Some(udp),
        network,
    };
    let process = Process::start(&config, members, clock.clone(), sockets, store, kept, log_levels).await?;
    let exec = process.exec.clone();
    exec.set_lost_lines(lost_lines);
    // A matter of this machine, so no part of a process in a simulated network.
    let load = Load::new(config.busy_after);
    load.watch(clock, process.stop.clone());
    exec.set_load(load);
    let following = list.map(|list| tokio::spawn(list.follow(exec.clone())));

    let taken = tokio::select! {
        signal = signals.received() => {
            info!(signal, "ending");
            None
        }
        taken = taken(&exec) => Some(taken),
    };
    if let Some(following) = following {
        following.abort();
    }
    if taken.is_none() {
        // Whoever gives way says nothing: what it said would be taken for the other process's word.
        shutdown::drain(&exec, config.drain_time).await;
    }
    process.stop().await;
    if exec.store().is_some() {
        let _ = tokio::task::spawn_blocking(move || exec.store().map(Store::close)).await;
    }
    info!("ended");
    taken.map_or(Ok(()), |taken| Err(taken.into()))
}

/// Completes when this process has to give way to another one at its advertised address.
async fn taken(exec: &Executor) -> AddressTaken {
    match exec.peers() {
        Some(peers) => peers.taken().await,
        None => std::future::pending().await,
    }
}

/// What a process hears and reaches others by.
pub struct Sockets<L> {
    /// The main port.
    pub main: L,
    /// The port for gRPC of clients.
    pub grpc: L,
    /// The port for other members, where there may be some.
    pub peer: Option<L>,
    /// The socket for pushes over UDP; without it, polls are granted none.
    pub udp: Option<UdpSocket>,
    /// How other members are reached.
    pub network: Arc<dyn Dialer>,
}

/// A node that serves, in whatever network.
pub struct Process {
    /// The node, and what carries out what it asks for.
    pub exec: Executor,
    tasks: TaskTracker,
    ticking: JoinHandle<()>,
    stop: CancellationToken,
    peers_stop: CancellationToken,
}

impl Process {
    /// Starts a node with `members`, or those of `config`, and serves it on `sockets`. It begins with `kept`, what
    /// operators set before.
    ///
    /// # Errors
    /// The peer side cannot work with these settings.
    pub async fn start<L: Listener>(
        config: &Config,
        members: Option<Vec<SmolStr>>,
        clock: Clock,
        sockets: Sockets<L>,
        store: Option<Store>,
        kept: Vec<RowOp>,
        log_levels: LogLevels,
    ) -> Result<Process, StartError> {
        let mut node_config = config.node.clone();
        if let Some(members) = members {
            node_config.members = members;
        }
        let n_members = node_config.members.len();
        node_config.seed = fastrand::u64(..);
        let node = Arc::new(Node::new(node_config, fastrand::u64(1..), clock.now()));
        if !kept.is_empty() {
            node.restore(kept, clock.now());
        }
        let exec = Executor::new(node.clone(), clock.clone(), store);
        if let Some(dir) = &config.data_dir
            && config.node.copy_period > Millis(0)
        {
            exec.set_copy(EphemeralCopy::new(dir, &config.node.self_address));
        }
        let (stop, peers_stop) = (CancellationToken::new(), CancellationToken::new());
        let tasks = TaskTracker::new();
        if let Some(udp) = sockets.udp {
            exec.set_udp(Udp::start(udp, exec.clone(), stop.clone()));
        }
        if let Some(listener) = sockets.peer {
            let network = (listener, sockets.network);
            Peers::start(
                node,
                exec.clone(),
                network,
                peer_config(config),
                peers_stop.clone(),
            )
            .await?;
        }
        let ticking = tokio::spawn(tick(exec.clone()));
        let app = client_app(config, &exec, log_levels);
        let mut port = Port::new(app, clock, stop.clone());
        port.newcomers = Newcomers::new(config.newcomer_limit);
        exec.set_newcomers(port.newcomers.clone());
        port.held = exec.held_answers().clone();
        tasks.spawn(net::serve(sockets.main, port.clone(), tasks.clone()));
        tasks.spawn(net::serve(sockets.grpc, port, tasks.clone()));
        info!(
            address = %config.node.self_address,
            bind = %config.address(config.port),
            grpc_port = config.grpc_port,
            peer_port = config.peer_port,
            members = n_members,
            "started"
        );
        Ok(Process {
            exec,
            tasks,
            ticking,
            stop,
            peers_stop,
        })
    }

    /// Ends serving. Calls in progress get some time.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(STOP_GRACE, self.tasks.wait()).await;
        self.peers_stop.cancel();
        self.ticking.abort();
    }
}

fn bind(address: SocketAddr, role: &'static str) -> Result<TcpListener, StartError> {
    sockets::bind(address).map_err(|error| StartError::Bind { address, role, error })
}

/// Calls the node whenever something is due there, or when it asks for it.
async fn tick(exec: Executor) {
    loop {
        let mut actions = Actions::default();
        if let Some(store) = exec.store() {
            let now = exec.now();
            exec.node().note_disk(store.is_slow(now.mono), now, &mut actions);
        }
        let due: Millis = exec.node().tick(exec.now(), &mut actions);
        exec.run(actions);
        let rest = exec.clock().until(due).min(TICK_MAX);
        if rest.is_zero() {
            // More is due than one tick does: what others want comes in between.
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            () = exec.woken() => {}
            () = tokio::time::sleep(rest) => {}
        }
    }
}

fn client_app(config: &Config, exec: &Executor, log_levels: LogLevels) -> ClientApp {
    let http = HttpApp::new(
        exec.clone(),
        HttpSettings {
            context_path: config.context_path.clone(),
            body_limit: config.message_limit,
            metadata_limit: config.node.metadata_limit,
            main_port: config.port,
            log_levels: Arc::new(log_levels),
        },
    );
    let limits = ClientLimits {
        message: config.message_limit,
        queue_length: config.queue_length,
        metadata: config.node.metadata_limit,
    };
    ClientApp::new(exec.clone(), limits, http)
}

fn peer_config(config: &Config) -> PeerConfig {
    let mut peers = PeerConfig::new(config.cluster_secret.clone());
    peers.port_offset = config.peer_port.wrapping_sub(config.port);
    peers.addresses = config.peer_addresses.clone();
    peers.probe_timeout = Duration::from_millis(config.node.probe_timeout.0);
    peers.probe_misses = config.node.probe_misses;
    peers
}

/// Members may share a directory. A file of anybody else is most likely this node's own, under another address.
fn warn_of_strange_files(config: &Config, members: &[SmolStr]) {
    let files = config
        .data_dir
        .iter()
        .flat_map(|dir| store::strange_files(dir, members));
    for file in files {
        warn!(
            file = %file.display(),
            "data_dir holds operator data of an address that is no member's, which nobody reads; if this node had that \
             address before, it starts without what was set then"
        );
    }
}

/// Every client holds a connection, so the usual soft limit of 1,024 open files is no limit for a server.
fn raise_file_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => info!(limit, "limit of open files"),
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_reason_for_not_starting_is_printed_once() {
        let path = PathBuf::from("data/operator-a_1.redb");
        let io = || io::Error::other("broken");
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let role = "the main port (port)";
        for (error, text) in [
            (
                StartError::Store(StoreError::Locked { path }),
                "data/operator-a_1.redb is in use by another process (data_dir)",
            ),
            (
                StartError::Peers(PeerError::Random(io())),
                "cannot start the peer side: no random bytes: broken",
            ),
            (
                StartError::Peers(PeerError::Address("a".into())),
                "cannot start the peer side: member a has no usable port, want host:port",
            ),
            (StartError::Signals(io()), "cannot listen for signals: broken"),
            (
                StartError::Bind {
                    address,
                    role,
                    error: io(),
                },
                "cannot bind 127.0.0.1:1, the main port (port): broken",
            ),
        ] {
            // As `main` prints it.
            assert_eq!(format!("{:#}", anyhow::Error::from(error)), text);
        }
    }
}
