//! The copy of ephemeral instances on disk, for a cold start of the whole cluster. Where it lies is the shell's affair.

use rollcall_core::Now;
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_distro::message::Frame;
use rollcall_distro::{CopyTime, Effects};

use crate::action::Actions;
use crate::node::Node;

impl Node {
    /// The parts of a copy, made one after the other so that it is never in memory as a whole. May be called from any
    /// thread; a row that changes meanwhile is in it as it was before or after.
    pub fn copy_parts(&self) -> impl Iterator<Item = Frame> + '_ {
        (0..N_BUCKETS).flat_map(|bucket| self.engine.copy_bucket(bucket))
    }

    /// The copy that [`Action::WriteCopy`](crate::Action::WriteCopy) asked for is written, or could not be.
    pub fn copy_written(&self) {
        self.engine.copy_written();
    }

    /// The time of a copy that is begun now; to be kept with it.
    pub fn copy_time(&self, now: Now) -> CopyTime {
        self.engine.copy_time(now)
    }

    /// Begins with the copy that [`Action::ReadCopy`](crate::Action::ReadCopy) asked for, which was begun at this time;
    /// false when it is too old to be used.
    pub fn open_copy(&self, begun: CopyTime, now: Now) -> bool {
        self.engine.open_copy(begun, now)
    }

    /// Takes a part of the copy.
    pub fn take_copy(&self, part: Frame, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.take_copy(part, now, &mut effects);
        self.settle(effects, now, actions);
    }

    /// All parts of the copy were handed in, or there is none that will do.
    pub fn copy_taken(&self, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.copy_taken(now, &mut effects);
        self.settle(effects, now, actions);
    }
}
