//! Connections to other members: name resolution at each dial, what a failure means, socket settings.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::pb::distro_client::DistroClient;
use super::{MESSAGE_LIMIT, STALL};

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
pub(super) async fn connect(target: &str) -> Result<TcpStream, DialError> {
    let mut failure = None;
    let mut is_refused = true;
    for address in lookup_host(target).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                tune(&stream);
                return Ok(stream);
            }
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

/// Settings of a socket towards a member: small messages leave at once, and a peer that acknowledges
/// nothing for [`STALL`] is given up, instead of after the kernel's quarter of an hour.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true); // Only slower without.
    #[cfg(target_os = "linux")]
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(STALL));
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(STALL)
        .with_interval(Duration::from_secs(5));
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

/// A client on an open connection. It never dials again by itself: when the connection ends, so does the client.
pub(super) async fn client(stream: TcpStream) -> Result<Client, DialError> {
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn each_address_of_a_name_is_tried_whenever_it_is_dialed() {
        // On many machines the name has an IPv6 address too, where nobody listens.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("localhost:{}", listener.local_addr().unwrap().port());
        for _ in 0..2 {
            let stream = connect(&target).await.unwrap();
            assert!(stream.peer_addr().unwrap().ip().is_loopback());
        }
        drop(listener);
        assert!(matches!(connect(&target).await, Err(DialError::Refused)));
    }
}
