//! Faults between members: a TCP proxy for each directed pair that can pass bytes on, hold them back, cut or refuse.
//!
//! A link from A to B is what A dials at B's peer port: A's stream to B, A's probes of B and A's forwards to B. Nodes
//! are sent to the proxies by their setting `peer_addresses`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use crate::ports::Block;

/// What a link does with bytes and connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// Bytes pass in both directions.
    Open,
    /// Connections stay and new ones are taken, but nothing passes: a black hole.
    Paused,
    /// Connections are reset, new ones too.
    Cut,
    /// Connections are reset and the port is closed: new ones are refused, as of a process that is gone.
    Refused,
}

/// The proxies between the nodes of a cluster.
#[derive(Debug)]
pub struct Links {
    proxies: BTreeMap<(usize, usize), Proxy>,
}

impl Links {
    /// Starts a proxy for each two nodes and direction.
    ///
    /// # Panics
    /// A port cannot be opened.
    pub fn between(block: &Block, n_nodes: usize) -> Self {
        let mut proxies = BTreeMap::new();
        for from in 0..n_nodes {
            for to in (0..n_nodes).filter(|to| *to != from) {
                let target = block.place(to).peer();
                match Proxy::start((block.proxy_ip(), 0).into(), target) {
                    Ok(proxy) => proxies.insert((from, to), proxy),
                    Err(error) => panic!("no proxy from node {from} to node {to}: {error:#}"),
                };
            }
        }
        Links { proxies }
    }

    /// Where node `from` dials node `to`.
    pub fn address(&self, from: usize, to: usize) -> SocketAddr {
        self.proxies[&(from, to)].address
    }

    /// Sets the state of what `from` dials at `to`.
    pub fn set(&self, from: usize, to: usize, state: LinkState) {
        self.proxies[&(from, to)].set(state);
    }

    /// Sets the state of everything between two nodes.
    pub fn set_pair(&self, a: usize, b: usize, state: LinkState) {
        self.set(a, b, state);
        self.set(b, a, state);
    }

    /// Sets the state of everything between one node and all others.
    pub fn set_around(&self, node: usize, state: LinkState) {
        for ((from, to), proxy) in &self.proxies {
            if *from == node || *to == node {
                proxy.set(state);
            }
        }
    }

    /// Opens all links.
    pub fn heal(&self) {
        for proxy in self.proxies.values() {
            proxy.set(LinkState::Open);
        }
    }

    /// Bytes that passed on what `from` dialled at `to`: from dialler to acceptor, and back.
    pub fn bytes(&self, from: usize, to: usize) -> (u64, u64) {
        let counters = &self.proxies[&(from, to)].counters;
        (
            counters.there.load(Ordering::Relaxed),
            counters.back.load(Ordering::Relaxed),
        )
    }
}

#[derive(Debug, Default)]
struct Counters {
    there: AtomicU64,
    back: AtomicU64,
}

/// A TCP proxy with a switch.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<LinkState>,
    counters: Arc<Counters>,
}

impl Proxy {
    /// Starts a proxy that listens at `listen` (port 0: any) and dials `target` for each connection.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub fn start(listen: SocketAddr, target: SocketAddr) -> Result<Self> {
        let _runtime = background().enter();
        let listener = open(listen)?;
        let address = listener.local_addr()?;
        let (state, seen) = watch::channel(LinkState::Open);
        let counters = Arc::new(Counters::default());
        let proxy = Proxy {
            address,
            state,
            counters: Arc::clone(&counters),
        };
        background().spawn(async move {
            // Ends with an error when the `Proxy` is dropped.
            let _ = accept_all(listener, address, target, seen, counters).await;
        });
        Ok(proxy)
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what the proxy does, for connections it has and for new ones.
    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }
}

/// Proxies outlive the runtime of the test that started them.
fn background() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME
        .get_or_init(
            || match Builder::new_multi_thread().worker_threads(1).enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => panic!("no runtime for proxies: {error}"),
            },
        )
        .handle()
}

fn open(address: SocketAddr) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket.listen(1024)?)
}

async fn accept_all(
    listener: TcpListener,
    address: SocketAddr,
    target: SocketAddr,
    mut state: watch::Receiver<LinkState>,
    counters: Arc<Counters>,
) -> Result<()> {
    let mut listener = Some(listener);
    loop {
        let now = *state.borrow_and_update();
        if now == LinkState::Refused {
            listener = None;
        } else if listener.is_none() {
            listener = Some(open(address)?);
        }
        let Some(open) = &listener else {
            state.changed().await?;
            continue;
        };
        tokio::select! {
            changed = state.changed() => changed?,
            accepted = open.accept() => {
                let (stream, _) = accepted?;
                let (state, counters) = (state.clone(), Arc::clone(&counters));
                tokio::spawn(async move {
                    // A connection that breaks is what proxies are for.
                    let _ = serve(stream, target, state, counters).await;
                });
            }
        }
    }
}

async fn serve(
    mut dialler: TcpStream,
    target: SocketAddr,
    mut state: watch::Receiver<LinkState>,
    counters: Arc<Counters>,
) -> Result<()> {
    if until_open(&mut state).await.is_err() {
        return reset(&dialler);
    }
    let mut acceptor = TcpStream::connect(target)
        .await
        .inspect_err(|_| drop(reset(&dialler)))?;
    dialler.set_nodelay(true)?;
    acceptor.set_nodelay(true)?;
    let (from_dialler, to_dialler) = dialler.split();
    let (from_acceptor, to_acceptor) = acceptor.split();
    let end = tokio::try_join!(
        pump(from_dialler, to_acceptor, state.clone(), &counters.there),
        pump(from_acceptor, to_dialler, state.clone(), &counters.back),
    );
    if end.is_err() {
        reset(&dialler)?;
        reset(&acceptor)?;
    }
    Ok(())
}

/// Makes the end of a connection a reset instead of an orderly close: a cut line says no goodbye.
fn reset(stream: &TcpStream) -> Result<()> {
    Ok(socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?)
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut state: watch::Receiver<LinkState>,
    counter: &AtomicU64,
) -> Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        until_open(&mut state).await?;
        let n = tokio::select! {
            changed = state.changed() => { changed?; continue }
            n = from.read(&mut buffer) => n?,
        };
        until_open(&mut state).await?;
        if n == 0 {
            return Ok(to.shutdown().await?);
        }
        tokio::select! {
            done = to.write_all(&buffer[..n]) => done?,
            cut = until_cut(state.clone()) => cut?,
        }
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// Waits while paused.
async fn until_open(state: &mut watch::Receiver<LinkState>) -> Result<()> {
    loop {
        match *state.borrow_and_update() {
            LinkState::Open => return Ok(()),
            LinkState::Paused => {}
            LinkState::Cut | LinkState::Refused => bail!("cut"),
        }
        state.changed().await?;
    }
}

async fn until_cut(mut state: watch::Receiver<LinkState>) -> Result<()> {
    let is_cut = |state: &LinkState| matches!(state, LinkState::Cut | LinkState::Refused);
    state.wait_for(is_cut).await?;
    bail!("cut")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::timeout;

    use super::*;

    /// A proxy before an echo server, and a connection through it.
    async fn echo() -> Result<(Proxy, TcpStream)> {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, 0).into(), server.local_addr()?)?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = server.accept().await {
                let (mut from, mut to) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        let stream = TcpStream::connect(proxy.address()).await?;
        Ok((proxy, stream))
    }

    async fn round_trip(stream: &mut TcpStream) -> Result<()> {
        stream.write_all(b"x").await?;
        stream.read_exact(&mut [0]).await?;
        Ok(())
    }

    #[tokio::test]
    async fn what_is_held_back_while_paused_passes_after_healing() -> Result<()> {
        let (proxy, mut stream) = echo().await?;
        round_trip(&mut stream).await?;
        proxy.set(LinkState::Paused);
        let held = timeout(Duration::from_millis(100), round_trip(&mut stream)).await;
        assert!(held.is_err(), "nothing passes while paused");
        proxy.set(LinkState::Open);
        stream.read_exact(&mut [0]).await?;
        Ok(())
    }

    #[tokio::test]
    async fn a_cut_resets_and_healing_allows_new_connections() -> Result<()> {
        let (proxy, mut stream) = echo().await?;
        round_trip(&mut stream).await?;
        proxy.set(LinkState::Cut);
        let end = timeout(Duration::from_secs(5), stream.read(&mut [0])).await?;
        assert!(end.is_err(), "reset, not closed: {end:?}");
        proxy.set(LinkState::Open);
        round_trip(&mut TcpStream::connect(proxy.address()).await?).await
    }

    #[tokio::test]
    async fn a_refused_link_has_no_listener() -> Result<()> {
        let (proxy, _stream) = echo().await?;
        proxy.set(LinkState::Refused);
        crate::wait::eventually("refused", Duration::from_secs(5), || async {
            anyhow::ensure!(TcpStream::connect(proxy.address()).await.is_err(), "connected");
            Ok(())
        })
        .await;
        proxy.set(LinkState::Open);
        crate::wait::eventually("healed", Duration::from_secs(5), || async {
            round_trip(&mut TcpStream::connect(proxy.address()).await?).await
        })
        .await;
        Ok(())
    }
}
