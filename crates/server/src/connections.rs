//! The client connections of this process: where to put what is to be sent to each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use rollcall_core::Millis;
use rollcall_node::request::ConnectionId;
use tokio::sync::mpsc;

use crate::grpc::outgoing::Outgoing;
use crate::transport::Transport;

/// All connections that are set up, by their identity at the node.
#[derive(Default)]
pub struct Connections {
    table: DashMap<ConnectionId, Handle, foldhash::fast::RandomState>,
    /// Bytes of messages that streams have taken and not passed on.
    n_unread: AtomicUsize,
    /// When the slowest were last looked for.
    last_cut: AtomicU64,
}

/// One connection: its transport and the queue of its stream.
#[derive(Clone)]
pub struct Handle {
    /// The transport.
    pub transport: Arc<Transport>,
    /// The queue that its stream drains.
    pub queue: mpsc::Sender<Outgoing>,
    /// When its stream last went on.
    pub progress: Progress,
}

/// When a stream last took a message from its queue, or had none to take.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Gone>);

#[derive(Debug, Default)]
struct Gone {
    at: AtomicU64,
    /// Bytes of the message that the stream has taken last and not passed on.
    n_unread: AtomicUsize,
}

impl Progress {
    /// The stream takes a message, or the first one after a rest begins to wait.
    pub fn note(&self, now: Millis) {
        self.0.at.store(now.0, Ordering::Relaxed);
    }

    fn at(&self) -> Millis {
        Millis(self.0.at.load(Ordering::Relaxed))
    }

    fn n_unread(&self) -> usize {
        self.0.n_unread.load(Ordering::Relaxed)
    }
}

/// How long a message may wait while the stream takes none: its client keeps the connection alive and does not read, and
/// each further message would hold another version of a list.
const STUCK_AFTER: Millis = Millis(60_000);
/// Bytes of messages, over all streams, that may be taken and not passed on before the slowest clients are cut off. One
/// list of a large service is a third of a megabyte, and each stream holds one.
const UNREAD_MAX: usize = 256 << 20;
/// Whoever has read nothing for so long is one of the slowest.
const SLOW_AFTER: Millis = Millis(5_000);
/// Between two looks for them.
const CUT_AGAIN: Millis = Millis(1_000);

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It waits in the queue.
    Queued,
    /// The connection is gone, or its client has closed the stream.
    NoStream,
    /// The queue is full.
    Full,
    /// The stream has taken nothing for too long.
    Stuck,
}

impl Connections {
    /// Adds a connection, or gives it the queue of a newer stream.
    pub fn insert(&self, id: ConnectionId, handle: Handle) {
        self.table.insert(id, handle);
    }

    /// Takes a connection out.
    pub fn remove(&self, id: ConnectionId) -> Option<Handle> {
        self.table.remove(&id).map(|(_, handle)| handle)
    }

    /// Puts a message into a connection's queue, never waiting.
    pub fn send(&self, id: ConnectionId, message: Outgoing, now: Millis) -> Delivery {
        let Some(handle) = self.table.get(&id) else {
            return Delivery::NoStream;
        };
        if handle.queue.capacity() == handle.queue.max_capacity() {
            handle.progress.note(now);
        } else if now.since(handle.progress.at()) > STUCK_AFTER {
            return Delivery::Stuck;
        }
        match handle.queue.try_send(message) {
            Ok(()) => Delivery::Queued,
            Err(mpsc::error::TrySendError::Closed(_)) => Delivery::NoStream,
            Err(mpsc::error::TrySendError::Full(_)) => Delivery::Full,
        }
    }

    /// A stream has passed on what it took last, or has ended.
    pub fn passed_on(&self, progress: &Progress) {
        let n_bytes = progress.0.n_unread.swap(0, Ordering::Relaxed);
        self.n_unread.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    /// A stream has taken a message of so many bytes. Returns whom to cut off, mostly nobody: when too much is unread in
    /// all, those who have not read for long.
    pub fn taken(&self, progress: &Progress, n_bytes: usize, now: Millis) -> Vec<ConnectionId> {
        progress.0.n_unread.fetch_add(n_bytes, Ordering::Relaxed);
        let n_unread = self.n_unread.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        if n_unread <= UNREAD_MAX {
            return Vec::new();
        }
        let last = self.last_cut.load(Ordering::Relaxed);
        let is_due = now.since(Millis(last)) >= CUT_AGAIN;
        let claim = || {
            self.last_cut
                .compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed)
        };
        if !is_due || claim().is_err() {
            return Vec::new();
        }
        let is_slow = |progress: &Progress| progress.n_unread() > 0 && now.since(progress.at()) > SLOW_AFTER;
        let slow = self.table.iter().filter(|handle| is_slow(&handle.progress));
        slow.map(|handle| *handle.key()).collect()
    }

    /// Bytes of messages that streams have taken and not passed on.
    pub fn n_unread(&self) -> usize {
        self.n_unread.load(Ordering::Relaxed)
    }

    /// True when the stream of the connection is open.
    pub fn has_stream(&self, id: ConnectionId) -> bool {
        self.table
            .get(&id)
            .is_some_and(|handle| !handle.queue.is_closed())
    }

    /// The identities of all connections, in no order.
    pub fn ids(&self) -> Vec<ConnectionId> {
        self.table.iter().map(|entry| *entry.key()).collect()
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Messages that wait in all queues, and in the longest.
    pub fn n_waiting(&self) -> (usize, usize) {
        let queues = self.table.iter().map(|handle| {
            let queue = &handle.queue;
            queue.max_capacity() - queue.capacity()
        });
        queues.fold((0, 0), |(sum, most), n| (sum + n, most.max(n)))
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Handle {
    /// Closes the stream and the transport.
    pub fn close(&self) {
        let _ = self.queue.try_send(Outgoing::End); // A full queue ends with the transport.
        self.transport.close();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_takes_nothing_for_a_minute_is_stuck_and_a_slow_one_is_not() {
        let (connections, id) = (Connections::default(), ConnectionId(1));
        let remote = SocketAddr::from(([127, 0, 0, 1], 4000));
        let (queue, mut stream) = mpsc::channel(8);
        let progress = Progress::default();
        let handle = Handle {
            transport: Arc::new(Transport::new(remote, remote, Millis(17))),
            queue,
            progress: progress.clone(),
        };
        connections.insert(id, handle);
        let send = |at| connections.send(id, Outgoing::SetupAck, Millis(at));
        assert_eq!(send(500_000), Delivery::Queued, "the first after a rest");
        assert_eq!(send(560_000), Delivery::Queued);
        stream.recv().await.unwrap();
        progress.note(Millis(560_000));
        assert_eq!(send(620_000), Delivery::Queued, "it is slow");
        assert_eq!(send(620_001), Delivery::Stuck);
    }

    #[tokio::test]
    async fn when_too_much_is_unread_those_who_have_not_read_for_long_are_cut_off() {
        let connections = Connections::default();
        let remote = SocketAddr::from(([127, 0, 0, 1], 4000));
        let open = |id| {
            let progress = Progress::default();
            let handle = Handle {
                transport: Arc::new(Transport::new(remote, remote, Millis(17))),
                queue: mpsc::channel(8).0,
                progress: progress.clone(),
            };
            connections.insert(ConnectionId(id), handle);
            progress
        };
        let take = |progress: &Progress, n_bytes, at| {
            connections.passed_on(progress);
            progress.note(Millis(at));
            connections.taken(progress, n_bytes, Millis(at))
        };
        let (stuck, reading, resting) = (open(1), open(2), open(3));
        assert_eq!(take(&resting, 1, 1_000), []);
        connections.passed_on(&resting);
        assert_eq!(take(&stuck, UNREAD_MAX, 10_000), []);
        assert_eq!(take(&reading, 1, 15_000), [], "not for long");
        assert_eq!(take(&reading, 1, 15_001), [], "looked for just now");
        assert_eq!(take(&reading, 1, 16_000), [ConnectionId(1)]);
        connections.passed_on(&stuck);
        assert_eq!(take(&reading, 2, 20_000), []);
        assert_eq!(connections.n_unread(), 2);
    }
}
