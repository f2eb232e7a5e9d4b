//! One TCP connection of a client: its identity, and how far its set-up has come.
//!
//! A naming connection *is* a transport: the stream sets it up, unary calls on the same transport act for it, and
//! when the transport ends all that it published ends with it.

use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use rollcall_core::Millis;
use rollcall_node::request::ConnectionId;
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long a unary call waits for the first message of the stream on its connection.
///
/// Clients send the set-up and the first call back to back, and the two are handled by different tasks.
const SETUP_WAIT: Duration = Duration::from_millis(500);

/// One TCP connection, shared by all that is going on over it.
#[derive(Debug)]
pub struct Transport {
    text_id: SmolStr,
    remote: SocketAddr,
    local: SocketAddr,
    stage: Mutex<Stage>,
    changed: Notify,
    close: CancellationToken,
}

/// A connection that is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// Its identity at the node.
    pub id: ConnectionId,
    /// What generation of field names its client reads.
    pub generation: Generation,
}

/// Which generation of field names a client reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Generation {
    /// As of 2.x: `allIPs`.
    #[default]
    Two,
    /// As of 3.x: `allIps`.
    Three,
}

impl Generation {
    /// The generation of a client that names its version like `Nacos-Java-Client:v3.0.3`.
    pub fn of_client(version: &str) -> Self {
        let number = version
            .rsplit(':')
            .next()
            .unwrap_or_default()
            .trim_start_matches(['v', 'V']);
        let major = number
            .split('.')
            .next()
            .and_then(|major| major.parse::<u32>().ok());
        // Only the Java client has a third generation of field names: Python's 3.x and others read the old ones.
        if version.starts_with("Nacos-Java-Client") && major.is_some_and(|major| major >= 3) {
            Generation::Three
        } else {
            Generation::Two
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No stream is open, or its first message was no set-up.
    Fresh,
    /// A stream is open and its first message is still to be handled.
    Opening,
    /// Set up.
    Established(Established),
    /// The transport has ended, or the node has dropped the connection.
    Ended,
}

impl Transport {
    /// A transport accepted at the wall time `accepted`.
    pub fn new(remote: SocketAddr, local: SocketAddr, accepted: Millis) -> Self {
        let ip = remote.ip().to_canonical();
        Transport {
            text_id: format_smolstr!("{}_{}_{}", accepted.0, ip, remote.port()),
            remote: SocketAddr::new(ip, remote.port()),
            local,
            stage: Mutex::new(Stage::Fresh),
            changed: Notify::new(),
            close: CancellationToken::new(),
        }
    }

    /// The id that clients see: `<epoch ms>_<remote ip>_<remote port>`.
    pub fn text_id(&self) -> &SmolStr {
        &self.text_id
    }

    /// The other end.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// This end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// A stream is being opened. Called in the order in which requests arrive, before any later one is handled.
    pub fn stream_opens(&self) {
        let mut stage = self.stage.lock();
        if *stage == Stage::Fresh {
            *stage = Stage::Opening;
        }
    }

    /// The first message of the stream was handled and set nothing up, or the stream ended before.
    pub fn stream_without_setup(&self) {
        {
            let mut stage = self.stage.lock();
            if *stage == Stage::Opening {
                *stage = Stage::Fresh;
            }
        }
        self.changed.notify_waiters();
    }

    /// The connection is set up. False when the transport has ended meanwhile: the caller gives it back then.
    #[must_use]
    pub fn establish(&self, established: Established) -> bool {
        let is_alive = {
            let mut stage = self.stage.lock();
            let is_alive = *stage != Stage::Ended;
            if is_alive {
                *stage = Stage::Established(established);
            }
            is_alive
        };
        self.changed.notify_waiters();
        is_alive
    }

    /// What is set up now, without waiting.
    pub fn established(&self) -> Option<Established> {
        match *self.stage.lock() {
            Stage::Established(established) => Some(established),
            _ => None,
        }
    }

    /// What is set up; waits a bounded time while the first message of an open stream is on its way.
    ///
    /// # Cancellation
    /// Safe: nothing is held.
    pub async fn wait_established(&self) -> Option<Established> {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        let stage = *self.stage.lock();
        match stage {
            Stage::Established(established) => return Some(established),
            Stage::Fresh | Stage::Ended => return None,
            Stage::Opening => {}
        }
        // Registered before the second look, so that a change in between is not missed.
        changed.as_mut().enable();
        if let Some(established) = self.established() {
            return Some(established);
        }
        let _ = tokio::time::timeout(SETUP_WAIT, changed).await;
        self.established()
    }

    /// The transport ended. Returns the connection that ends with it, once.
    pub fn end(&self) -> Option<ConnectionId> {
        let before = {
            let mut stage = self.stage.lock();
            std::mem::replace(&mut *stage, Stage::Ended)
        };
        self.changed.notify_waiters();
        match before {
            Stage::Established(established) => Some(established.id),
            _ => None,
        }
    }

    /// Closes the transport from this side: calls on it count as calls of a stranger at once, streams end, then the
    /// connection. The caller tells the node, or was told by it.
    pub fn close(&self) {
        let _ = self.end();
        self.close.cancel();
    }

    /// Completes when the transport is to be closed from this side.
    pub async fn closing(&self) {
        self.close.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn transport() -> Arc<Transport> {
        let remote = SocketAddr::from(([127, 0, 0, 1], 4000));
        Arc::new(Transport::new(remote, remote, Millis(17)))
    }

    fn established() -> Established {
        Established {
            id: ConnectionId(7),
            generation: Generation::Two,
        }
    }

    #[test]
    fn the_text_id_names_time_address_and_port() {
        assert_eq!(transport().text_id(), "17_127.0.0.1_4000");
    }

    #[test]
    fn only_the_third_java_generation_reads_new_names() {
        assert_eq!(
            Generation::of_client("Nacos-Java-Client:v3.0.3"),
            Generation::Three
        );
        assert_eq!(Generation::of_client("Nacos-Java-Client:v2.5.1"), Generation::Two);
        assert_eq!(
            Generation::of_client("Nacos-Python-Client:v3.0.0"),
            Generation::Two
        );
        assert_eq!(Generation::of_client(""), Generation::Two);
    }

    #[tokio::test]
    async fn a_call_waits_for_the_setup_of_an_open_stream() {
        let transport = transport();
        transport.stream_opens();
        let waiting = tokio::spawn({
            let transport = transport.clone();
            async move { transport.wait_established().await }
        });
        tokio::task::yield_now().await;
        assert!(transport.establish(established()));
        assert_eq!(waiting.await.ok().flatten(), Some(established()));
    }

    #[tokio::test]
    async fn a_call_without_a_stream_does_not_wait() {
        let started = tokio::time::Instant::now();
        assert_eq!(transport().wait_established().await, None);
        assert!(started.elapsed() < SETUP_WAIT);
    }

    #[tokio::test]
    async fn a_closed_transport_is_a_strangers() {
        let transport = transport();
        assert!(transport.establish(established()));
        transport.close();
        assert_eq!(transport.wait_established().await, None);
        assert_eq!(transport.end(), None);
    }

    #[test]
    fn an_ended_transport_cannot_be_set_up() {
        let transport = transport();
        assert_eq!(transport.end(), None);
        assert!(!transport.establish(established()));
    }
}
