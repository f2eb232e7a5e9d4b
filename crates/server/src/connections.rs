//! The client connections of this process: where to put what is to be sent to each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use rollcall_core::Millis;
use rollcall_node::request::ConnectionId;
use tokio::sync::mpsc;

use crate::grpc::outgoing::Outgoing;
use crate::transport::Transport;

/// All connections that are set up, by their identity at the node.
#[derive(Default)]
pub struct Connections(DashMap<ConnectionId, Handle, foldhash::fast::RandomState>);

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
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// The stream takes a message, or the first one after a rest begins to wait.
    pub fn note(&self, now: Millis) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    fn at(&self) -> Millis {
        Millis(self.0.load(Ordering::Relaxed))
    }
}

/// How long a message may wait while the stream takes none: its client keeps the connection alive and does not read, and
/// each further message would hold another version of a list.
const STUCK_AFTER: Millis = Millis(60_000);

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
        self.0.insert(id, handle);
    }

    /// Takes a connection out.
    pub fn remove(&self, id: ConnectionId) -> Option<Handle> {
        self.0.remove(&id).map(|(_, handle)| handle)
    }

    /// Puts a message into a connection's queue, never waiting.
    pub fn send(&self, id: ConnectionId, message: Outgoing, now: Millis) -> Delivery {
        let Some(handle) = self.0.get(&id) else {
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

    /// True when the stream of the connection is open.
    pub fn has_stream(&self, id: ConnectionId) -> bool {
        self.0.get(&id).is_some_and(|handle| !handle.queue.is_closed())
    }

    /// The identities of all connections, in no order.
    pub fn ids(&self) -> Vec<ConnectionId> {
        self.0.iter().map(|entry| *entry.key()).collect()
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Messages that wait in all queues, and in the longest.
    pub fn n_waiting(&self) -> (usize, usize) {
        let queues = self.0.iter().map(|handle| {
            let queue = &handle.queue;
            queue.max_capacity() - queue.capacity()
        });
        queues.fold((0, 0), |(sum, most), n| (sum + n, most.max(n)))
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
}
