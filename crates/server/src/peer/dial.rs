//! Connections to other members: name resolution at each dial, what a failure means.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};
use tower::{Service, service_fn};

use super::MESSAGE_LIMIT;
use super::pb::distro_client::DistroClient;
use crate::sockets::{Dialed, Dialer};

/// Client of one connection to one member.
pub(super) type Client = DistroClient<Channel>;

/// Receive window of a stream, in bytes. A snapshot fills it, so it is above the default of 64 KiB.
const STREAM_WINDOW: u32 = 1 << 20;
/// Receive window of a connection, in bytes.
const CONNECTION_WINDOW: u32 = 2 << 20;

/// Why a member could not be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// Every address of the member refused: no process listens there.
    #[error("connection refused")]
    Refused,
    /// Anything else, and not in the power of the member's process to cause.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection is there, but no HTTP/2 on it.
    #[error("{0}")]
    Http(#[from] tonic::transport::Error),
}

/// Connects to `target` (`host:port`), trying each of its addresses in turn. The caller sets the time limit.
pub(super) async fn connect(network: &dyn Dialer, target: &str) -> Result<Dialed, DialError> {
    let mut failure = None;
    let mut is_refused = true;
    for address in network.look_up(target).await? {
        match network.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                is_refused &= error.kind() == io::ErrorKind::ConnectionRefused;
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(_) if is_refused => Err(DialError::Refused),
        Some(error) => Err(error.into()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into()),
    }
}

/// A client on an open connection. It never dials again by itself: when the connection ends, so does the client.
pub(super) async fn client(stream: Dialed) -> Result<Client, DialError> {
    let once = Arc::new(Mutex::new(Some(TokioIo::new(stream))));
    let connector = service_fn(move |_| {
        let stream = once.lock().take();
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let channel = Endpoint::from_static("http://member.rollcall")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect_with_connector(connector)
        .await?;
    Ok(DistroClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT))
}

/// Connects the HTTP client for forwards, which keeps connections by itself.
#[derive(Clone)]
pub(super) struct Connector(pub(super) Arc<dyn Dialer>);

impl Service<Uri> for Connector {
    type Response = HttpStream;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpStream, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let network = self.0.clone();
        Box::pin(async move {
            let target = url.authority().map_or("", |authority| authority.as_str());
            Ok(HttpStream(TokioIo::new(connect(&*network, target).await?)))
        })
    }
}

/// A connection for forwards.
pub(super) struct HttpStream(TokioIo<Dialed>);

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl Write for HttpStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, from)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::sockets::Tcp;

    #[tokio::test]
    async fn each_address_of_a_name_is_tried_whenever_it_is_dialed() {
        // On many machines the name has an IPv6 address too, where nobody listens.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("localhost:{}", listener.local_addr().unwrap().port());
        for _ in 0..2 {
            let (dialed, accepted) = tokio::join!(connect(&Tcp, &target), listener.accept());
            assert!(dialed.is_ok() && accepted.unwrap().1.ip().is_loopback());
        }
        drop(listener);
        assert!(matches!(connect(&Tcp, &target).await, Err(DialError::Refused)));
    }
}
