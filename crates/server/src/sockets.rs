//! Where TCP connections come from: the operating system's sockets in a process, those of a simulated network in tests.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, lookup_host};

/// Idle time after which the kernel probes a client, and how often then. Finds ends that vanished.
const CLIENT_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// The same for a member.
const MEMBER_KEEPALIVE: (Duration, Duration) = (MEMBER_SILENCE, Duration::from_secs(5));
/// A member that acknowledges nothing for so long is given up, instead of after the kernel's quarter of an hour.
const MEMBER_SILENCE: Duration = Duration::from_secs(10);
/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 4096;

/// A connection that was accepted.
pub struct Accepted<S> {
    /// What is read and written.
    pub stream: S,
    /// The other end.
    pub remote: SocketAddr,
    /// This end.
    pub local: SocketAddr,
}

/// A bound port.
pub trait Listener: Send + Sync + 'static {
    /// Its connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for a connection.
    fn accept(&self) -> impl Future<Output = io::Result<Accepted<Self::Stream>>> + Send;

    /// The address it is bound to.
    ///
    /// # Errors
    /// As the network says.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Accepted<TcpStream>> {
        let (stream, remote) = TcpListener::accept(self).await?;
        let local = stream.local_addr()?;
        let _ = stream.set_nodelay(true); // Answers are small and must not wait for the next one.
        keep_alive(&stream, CLIENT_KEEPALIVE);
        Ok(Accepted {
            stream,
            remote,
            local,
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }
}

/// Binds a port of this machine.
///
/// # Errors
/// As the operating system says.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        tokio::net::TcpSocket::new_v4()?
    } else {
        tokio::net::TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?; // A restart must not wait for connections of the former process to time out.
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A connection to a member, of whatever network.
pub type Dialed = Box<dyn Duplex>;

/// What a [`Dialed`] can do.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Duplex for S {}

/// An answer of the network to come.
pub type Dialing<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// Reaches other members.
pub trait Dialer: Send + Sync + 'static {
    /// The addresses of `target` (`host:port`), asked anew each time.
    fn look_up<'a>(&'a self, target: &'a str) -> Dialing<'a, Vec<SocketAddr>>;

    /// Connects to one address.
    fn connect(&self, address: SocketAddr) -> Dialing<'_, Dialed>;
}

/// The network of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dialer for Tcp {
    fn look_up<'a>(&'a self, target: &'a str) -> Dialing<'a, Vec<SocketAddr>> {
        Box::pin(async move { Ok(lookup_host(target).await?.collect()) })
    }

    fn connect(&self, address: SocketAddr) -> Dialing<'_, Dialed> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let _ = stream.set_nodelay(true); // Only slower without.
            #[cfg(target_os = "linux")]
            let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(MEMBER_SILENCE));
            keep_alive(&stream, MEMBER_KEEPALIVE);
            Ok(Box::new(stream) as Dialed)
        })
    }
}

fn keep_alive(stream: &TcpStream, (idle, interval): (Duration, Duration)) {
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}
