//! The log of what this member itself writes: ordered, bounded, pulled by each peer from its own position.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rollcall_core::MemberId;
use rollcall_core::registry::change::{Journal, RowOp};
use rollcall_core::registry::digest::Digests;

/// The operation log of this member. Sequence numbers start at 1.
#[derive(Debug)]
pub struct Log {
    me: MemberId,
    ring: Mutex<Ring>,
    is_dirty: AtomicBool,
}

#[derive(Debug, Default)]
struct Ring {
    /// Sequence number of the newest operation; 0 before the first.
    head: u64,
    ops: VecDeque<RowOp>,
    /// Operations that are kept; 0 while nobody asks for them.
    capacity: usize,
}

/// What a peer that has everything up to some position gets next.
#[derive(Debug)]
pub(crate) enum Next {
    /// It has everything.
    Nothing,
    /// Operations from this sequence number on.
    Ops(u64, Vec<RowOp>),
    /// The ring no longer holds what it lacks; the log stands at this position.
    Gap(u64),
}

impl Log {
    /// An empty log of member `me` that keeps `capacity` operations; none for a member without peers.
    pub fn new(me: MemberId, capacity: usize) -> Self {
        let ring = Ring {
            capacity,
            ..Ring::default()
        };
        Log {
            me,
            ring: Mutex::new(ring),
            is_dirty: AtomicBool::new(false),
        }
    }

    /// Keeps so many operations from now on.
    pub(crate) fn set_capacity(&self, capacity: usize) {
        let mut ring = self.ring.lock();
        ring.capacity = capacity;
        let n_over = ring.ops.len().saturating_sub(capacity);
        ring.ops.drain(..n_over);
    }

    /// Sequence number of the newest operation.
    pub fn head(&self) -> u64 {
        self.ring.lock().head
    }

    /// True once after something was recorded.
    pub(crate) fn take_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed) && self.is_dirty.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn after(&self, position: u64, limit: usize) -> Next {
        let ring = self.ring.lock();
        if position >= ring.head {
            return Next::Nothing;
        }
        let oldest = ring.head + 1 - ring.ops.len() as u64;
        if position + 1 < oldest {
            return Next::Gap(ring.head);
        }
        let skip = (position + 1 - oldest) as usize;
        Next::Ops(
            position + 1,
            ring.ops.iter().skip(skip).take(limit).cloned().collect(),
        )
    }

    /// The root over this member's rows, if the log stands at `position`: digest and position belong together.
    pub(crate) fn root_at(&self, position: u64, digests: &Digests) -> Option<u64> {
        let ring = self.ring.lock();
        (ring.head == position).then(|| digests.root(self.me))
    }
}

impl Journal for Log {
    fn record(&self, op: RowOp, digests: &Digests, bucket: usize, delta: u64) {
        let mut ring = self.ring.lock();
        digests.add(self.me, bucket, delta);
        ring.head += 1;
        if ring.capacity > 0 {
            if ring.ops.len() == ring.capacity {
                ring.ops.pop_front();
            }
            ring.ops.push_back(op);
        }
        drop(ring);
        self.is_dirty.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::registry::change::ClientId;
    use rollcall_core::{Millis, Registry};

    use super::*;

    #[test]
    fn a_reader_gets_what_it_lacks_or_learns_of_the_gap() {
        let me = MemberId(1);
        let registry = Registry::new(me, 1, 0, Millis(0));
        let log = Log::new(me, 3);
        assert!(matches!(log.after(0, 10), Next::Nothing));
        for number in 1..=5 {
            let op = RowOp::ClientGone {
                client: ClientId { origin: me, number },
            };
            log.record(op, registry.digests(), 0, number);
        }
        assert!(matches!(log.after(5, 10), Next::Nothing));
        assert!(matches!(log.after(1, 10), Next::Gap(5)));
        let Next::Ops(first, ops) = log.after(2, 2) else {
            panic!("expected operations")
        };
        assert_eq!((first, ops.len()), (3, 2));
        assert!(log.root_at(4, registry.digests()).is_none());
        assert!(log.root_at(5, registry.digests()).is_some());
        assert!(log.take_dirty() && !log.take_dirty());
        log.set_capacity(1);
        assert!(matches!(log.after(3, 10), Next::Gap(5)));
        assert!(matches!(log.after(4, 10), Next::Ops(5, _)));
        log.set_capacity(0);
        assert!(matches!(log.after(4, 10), Next::Gap(5)));
    }
}
