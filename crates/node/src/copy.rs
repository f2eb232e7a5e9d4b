//! The copy of ephemeral instances on disk, for a cold start of the whole cluster. Where it lies is the shell's affair.

use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::{Millis, Now};
use rollcall_distro::Effects;
use rollcall_distro::message::Frame;

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

    /// Whether a copy may be used that was written at this wall time.
    pub fn is_copy_young(&self, written: Millis, now: Now) -> bool {
        self.engine.is_copy_young(written, now)
    }

    /// Takes a part of the copy that [`Action::ReadCopy`](crate::Action::ReadCopy) asked for.
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
