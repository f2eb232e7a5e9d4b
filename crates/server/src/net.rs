//! Serving a port: an accept loop, one task per connection, HTTP/1 and HTTP/2 on each.
//!
//! Knows nothing of what is served: an [`App`] answers requests and is told when a connection ends. The loop is our
//! own because a connection must be seen as a whole: its end is the end of a client, and the server closes
//! connections that have gone silent.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::explain::Explain;
use crate::sockets::{Accepted, Listener};
use crate::transport::Transport;
use crate::unread::{Held, Unread};

/// Pause after a failed accept, which mostly means that there are no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that is closed from this side still answers, so that a call which is already on its way is
/// told why (the client registers again then) instead of breaking off.
const LINGER: Duration = Duration::from_millis(300);
/// How long a connection that is closed from this side may take to end its streams.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// How long a connection may be open without having asked anything, how long a client may take over the head of an
/// HTTP/1 request, and how long it may rest between two.
const HEADER_LIMIT: Duration = Duration::from_secs(60);
/// The same while more than half of all places for newcomers are taken.
const CROWDED_LIMIT: Duration = Duration::from_secs(5);
/// Connections that have not asked anything yet, unless set.
const NEWCOMERS: usize = 512;
/// How long a socket may take nothing before the connection is closed: it holds as much as the longest list.
const UNREAD_LIMIT: Duration = Duration::from_secs(30);
/// Calls in progress on one HTTP/2 connection: as many answers may lie unread.
const MAX_STREAMS: u32 = 256;
/// Bytes of one HTTP/2 stream that wait for the other end to read, before its answer is not asked for more.
const SEND_BUFFER: usize = 64 << 10;

/// A boxed answer to come.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// What is served on a socket.
pub trait App: Clone + Send + Sync + 'static {
    /// Starts to answer a request. Called in the order in which the requests of a connection arrive.
    fn call(&self, transport: &Arc<Transport>, request: Request<Incoming>) -> Answering;

    /// The connection has ended.
    fn ended(&self, transport: &Transport);
}

/// Places for connections that have not asked anything yet: so many are served at a time, further ones wait in the
/// operating system. Shared by all ports of a process; a clone costs one reference count.
#[derive(Clone, Debug)]
pub struct Newcomers {
    places: Arc<Semaphore>,
    limit: usize,
}

impl Newcomers {
    /// So many places.
    pub fn new(limit: usize) -> Self {
        Newcomers {
            places: Arc::new(Semaphore::new(limit)),
            limit,
        }
    }

    /// How many places are taken.
    pub fn n_taken(&self) -> usize {
        self.limit - self.places.available_permits()
    }

    fn is_crowded(&self) -> bool {
        self.n_taken() > self.limit / 2
    }
}

/// What all connections of a listening socket share.
#[derive(Clone)]
pub struct Port<A> {
    /// What is served.
    pub app: A,
    /// The clock of the process.
    pub clock: Clock,
    /// Ends accepting and asks open connections to end.
    pub stop: CancellationToken,
    /// Time from the accept to the first whole request, whatever the protocol; also for each head of HTTP/1. A
    /// connection that has asked once over HTTP/2 is not limited here. Default 60 s.
    pub header_limit: Duration,
    /// Places for connections that have not asked yet.
    pub newcomers: Newcomers,
    /// Bytes of answers that are open.
    pub held: Held,
}

impl<A: App> Port<A> {
    /// Serves `app` until `stop`, with the usual limits.
    pub fn new(app: A, clock: Clock, stop: CancellationToken) -> Self {
        Port {
            app,
            clock,
            stop,
            header_limit: HEADER_LIMIT,
            newcomers: Newcomers::new(NEWCOMERS),
            held: Held::default(),
        }
    }
}

/// Accepts connections until told to stop, then lets those that are open end within a grace.
///
/// # Cancellation
/// Stops accepting; open connections go on in tasks of their own.
pub async fn serve<L: Listener, A: App>(listener: L, port: Port<A>, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = port.stop.cancelled() => return,
        };
        match accepted {
            Ok(Accepted {
                stream,
                remote,
                local,
            }) => {
                let place = tokio::select! {
                    place = port.newcomers.places.clone().acquire_owned() => place,
                    () = port.stop.cancelled() => return,
                };
                tasks.spawn(connection(stream, remote, local, place.ok(), port.clone()));
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<S, A>(
    stream: S,
    remote: SocketAddr,
    local: SocketAddr,
    place: Option<Place>,
    port: Port<A>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: App,
{
    let Port {
        app,
        clock,
        stop,
        header_limit,
        newcomers,
        held,
    } = port;
    let transport = Arc::new(Transport::new(remote, local, clock.now().wall));
    let guard = EndGuard {
        app: app.clone(),
        transport: transport.clone(),
    };
    let asked = Arc::new(Asked::new(place));
    let unread = Unread::new(held);
    let service = hyper::service::service_fn({
        let (transport, asked, unread) = (transport.clone(), asked.clone(), unread.clone());
        move |request| {
            asked.note();
            let answering = app.call(&transport, request);
            let unread = unread.clone();
            async move { Ok::<_, Infallible>(unread.watch(answering.await)) }
        }
    });
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(UNREAD_LIMIT));
    let stream = Explain::new(Box::pin(stream));
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_limit);
    // Pings of clients are answered and not counted: SDKs ping far more often than the specification of gRPC allows.
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // The library limits heads of HTTP/1 only: who says nothing, or begins HTTP/2 and never asks, is limited here.
    let mute = async {
        let mut left = header_limit;
        while !left.is_zero() && !asked.is_so() {
            let step = left.min(CROWDED_LIMIT);
            tokio::time::sleep(step).await;
            left -= step;
            if newcomers.is_crowded() {
                break;
            }
        }
        if asked.is_so() {
            std::future::pending().await
        }
    };
    let closing = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = mute => {}
            () = unread.stalled() => {}
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

type Place = OwnedSemaphorePermit;

/// Whether a connection has asked anything; until then it holds a place for newcomers.
struct Asked {
    is_so: AtomicBool,
    place: Mutex<Option<Place>>,
}

impl Asked {
    fn new(place: Option<Place>) -> Self {
        Asked {
            is_so: AtomicBool::new(false),
            place: Mutex::new(place),
        }
    }

    fn note(&self) {
        if !self.is_so.swap(true, Ordering::Relaxed) {
            self.place.lock().take();
        }
    }

    fn is_so(&self) -> bool {
        self.is_so.load(Ordering::Relaxed)
    }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;
    use crate::sockets::bind;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const HEADERS: u8 = 1;

    /// Answers everything with an empty success.
    #[derive(Clone)]
    struct Empty;

    impl App for Empty {
        fn call(&self, _: &Arc<Transport>, _: Request<Incoming>) -> Answering {
            Box::pin(async { Response::new(Body::empty()) })
        }

        fn ended(&self, _: &Transport) {}
    }

    /// The client's end of a connection.
    fn connected() -> DuplexStream {
        connected_to(Empty)
    }

    fn connected_to(app: impl App) -> DuplexStream {
        let (client, server) = tokio::io::duplex(1 << 16);
        let address = SocketAddr::from(([127, 0, 0, 1], 4000));
        let port = Port::new(app, Clock::start(), CancellationToken::new());
        tokio::spawn(connection(server, address, address, None, port));
        client
    }

    /// GET / on an HTTP/2 stream, made of names that every table of headers begins with.
    fn get(stream: u8) -> Vec<u8> {
        vec![0, 0, 3, HEADERS, 5, 0, 0, 0, stream, 0x82, 0x84, 0x86]
    }

    /// Reads frames until the head of the answer on `stream` has come.
    async fn answered(client: &mut DuplexStream, stream: u8) {
        loop {
            let mut head = [0u8; 9];
            client.read_exact(&mut head).await.unwrap();
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            client.read_exact(&mut vec![0u8; length]).await.unwrap();
            if (head[3], head[8]) == (HEADERS, stream) {
                return;
            }
        }
    }

    /// Answers everything with more than fits anywhere.
    #[derive(Clone)]
    struct Long;

    impl App for Long {
        fn call(&self, _: &Arc<Transport>, _: Request<Incoming>) -> Answering {
            Box::pin(async { Response::new(Body::from(vec![b'x'; 4 << 20])) })
        }

        fn ended(&self, _: &Transport) {}
    }

    /// Waits until a connection is closed, reading nothing before `after`; how long it took.
    async fn closed_after(first: &[u8], reads: bool) -> Duration {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let address = SocketAddr::from(([127, 0, 0, 1], 4000));
        let port = Port::new(Long, Clock::start(), CancellationToken::new());
        let served = tokio::spawn(connection(server, address, address, None, port));
        let began = Instant::now();
        client.write_all(first).await.unwrap();
        if reads {
            // What comes is taken off the socket, but the window of the stream is never opened again.
            tokio::spawn(async move { tokio::io::copy(&mut client, &mut tokio::io::sink()).await });
            ended(served).await;
        } else {
            ended(served).await;
            drop(client);
        }
        began.elapsed()
    }

    async fn ended(served: tokio::task::JoinHandle<()>) {
        let patience = Duration::from_secs(600);
        tokio::time::timeout(patience, served).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_answers_are_not_read_is_closed() {
        let limit = Duration::from_secs(61); // Twice the limit, and the grace of the close.
        assert!(closed_after(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", false).await <= limit);
        let h2 = [PREFACE, SETTINGS, &get(1)].concat();
        assert!(closed_after(&h2, false).await <= limit);
        assert!(closed_after(&h2, true).await <= limit);
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_asks_is_closed_at_the_limit() {
        let half_a_request = [PREFACE, SETTINGS, &get(1)[..10]].concat();
        for said in [
            &b""[..],
            b"GET / HT",
            b"PRI * HT",
            PREFACE,
            &[PREFACE, SETTINGS].concat(),
            &half_a_request,
        ] {
            let mut client = connected();
            let start = Instant::now();
            client.write_all(said).await.unwrap();
            let mut rest = Vec::new();
            let end = tokio::time::timeout(HEADER_LIMIT + 2 * CLOSE_GRACE, client.read_to_end(&mut rest));
            assert!(end.await.is_ok(), "{said:?} holds a connection");
            assert!(start.elapsed() >= HEADER_LIMIT, "{said:?}");
        }
    }

    /// A port with few places, full of connections that say nothing, takes whoever comes next after a few seconds; one
    /// that has asked holds no place.
    #[tokio::test]
    async fn places_for_newcomers_are_given_back() {
        const PLACES: usize = 4;
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut port = Port::new(Empty, Clock::start(), stop.clone());
        let newcomers = Newcomers::new(PLACES);
        port.newcomers = newcomers.clone();
        tokio::spawn(serve(listener, port, TaskTracker::new()));
        let ask = async || {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                .await
                .unwrap();
            let mut first = [0u8; 15];
            client.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            client
        };
        let mut asked = Vec::new();
        for _ in 0..2 * PLACES {
            asked.push(ask().await);
        }
        assert_eq!(newcomers.n_taken(), 0);
        let mut mute = Vec::new();
        for _ in 0..PLACES {
            mute.push(TcpStream::connect(address).await.unwrap());
        }
        let began = Instant::now();
        ask().await;
        let waited = began.elapsed();
        assert!(waited >= CROWDED_LIMIT / 2, "a place too many: {waited:?}");
        assert!(waited < HEADER_LIMIT, "{waited:?}");
        stop.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_asked_over_http2_may_be_silent() {
        let mut client = connected();
        client
            .write_all(&[PREFACE, SETTINGS, &get(1)].concat())
            .await
            .unwrap();
        answered(&mut client, 1).await;
        tokio::time::sleep(100 * HEADER_LIMIT).await;
        client.write_all(&get(3)).await.unwrap();
        answered(&mut client, 3).await;
    }

    /// Answers everything with a stream on which nothing ever comes, as that of an idle link is.
    #[derive(Clone)]
    struct Quiet;

    impl App for Quiet {
        fn call(&self, _: &Arc<Transport>, _: Request<Incoming>) -> Answering {
            let nothing = futures_util::stream::pending::<Result<Vec<u8>, Infallible>>();
            Box::pin(async { Response::new(Body::from_stream(nothing)) })
        }

        fn ended(&self, _: &Transport) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_quiet_answer_stays_open() {
        let mut client = connected_to(Quiet);
        client
            .write_all(&[PREFACE, SETTINGS, &get(1)].concat())
            .await
            .unwrap();
        answered(&mut client, 1).await;
        tokio::time::sleep(100 * UNREAD_LIMIT).await;
        client.write_all(&get(3)).await.unwrap();
        answered(&mut client, 3).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_rests_between_requests_of_http1_is_closed() {
        let mut client = connected();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        let end = tokio::time::timeout(2 * HEADER_LIMIT, client.read_to_end(&mut answer));
        assert!(end.await.is_ok());
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
}
