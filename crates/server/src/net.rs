//! Listening sockets: an accept loop, one task per connection, HTTP/1 and HTTP/2 on each.
//!
//! Knows nothing of what is served: an [`App`] answers requests and is told when a connection ends. The loop is our
//! own because a connection must be seen as a whole: its end is the end of a client, and the server closes
//! connections that have gone silent.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::explain::Explain;
use crate::transport::Transport;

/// Pause after a failed accept, which mostly means that there are no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that is closed from this side still answers, so that a call which is already on its way is
/// told why (the client registers again then) instead of breaking off.
const LINGER: Duration = Duration::from_millis(300);
/// How long a connection that is closed from this side may take to end its streams.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// How long a client may take over the head of an HTTP/1 request, and rest between two.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Calls in progress on one HTTP/2 connection.
const MAX_STREAMS: u32 = 4096;
/// Idle time after which the kernel probes the other end, and how often then. Finds ends that vanished.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// A boxed answer to come.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// What is served on a socket.
pub trait App: Clone + Send + Sync + 'static {
    /// Starts to answer a request. Called in the order in which the requests of a connection arrive.
    fn call(&self, transport: &Arc<Transport>, request: Request<Incoming>) -> Answering;

    /// The connection has ended.
    fn ended(&self, transport: &Transport);
}

/// Binds a port.
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
    socket.listen(4096)
}

/// Accepts connections until `stop`, then lets those that are open end within a grace.
///
/// # Cancellation
/// Stops accepting; open connections go on in tasks of their own.
pub async fn serve<A: App>(
    listener: TcpListener,
    app: A,
    clock: Clock,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, remote)) => {
                tasks.spawn(connection(
                    stream,
                    remote,
                    app.clone(),
                    clock.clone(),
                    stop.clone(),
                ));
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<A: App>(
    stream: TcpStream,
    remote: SocketAddr,
    app: A,
    clock: Clock,
    stop: CancellationToken,
) {
    let Ok(local) = stream.local_addr() else { return };
    // Whoever connects and says nothing at all holds a socket, but not for ever.
    if !matches!(
        tokio::time::timeout(HEADER_TIMEOUT, stream.readable()).await,
        Ok(Ok(()))
    ) {
        return;
    }
    let _ = stream.set_nodelay(true); // Answers are small and must not wait for the next one.
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE.0)
        .with_interval(KEEPALIVE.1);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);

    let transport = Arc::new(Transport::new(remote, local, clock.now().wall));
    let guard = EndGuard {
        app: app.clone(),
        transport: transport.clone(),
    };
    let service = hyper::service::service_fn({
        let transport = transport.clone();
        move |request| {
            let answering = app.call(&transport, request);
            async move { Ok::<_, Infallible>(answering.await) }
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    // Pings of clients are answered and not counted: SDKs ping far more often than the specification of gRPC allows.
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(Explain::new(stream)), service));
    let closing = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = async {
                transport.closing().await;
                tokio::time::sleep(LINGER).await;
            } => {}
        }
    };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = closing => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        debug!(connection = %transport.text_id(), %error, "connection broke off");
    }
    drop(guard);
}

/// Tells the app that the connection has ended, even when its task is dropped or panics.
struct EndGuard<A: App> {
    app: A,
    transport: Arc<Transport>,
}

impl<A: App> Drop for EndGuard<A> {
    fn drop(&mut self) {
        self.app.ended(&self.transport);
    }
}
