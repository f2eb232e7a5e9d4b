//! The brake on mass expiry at work: whether verdicts on the silent are held now.

use std::sync::atomic::{AtomicU64, Ordering};

use rollcall_core::expiry::brake::Silence;
use rollcall_core::{Millis, Now};

use crate::action::{Action, Actions, Silenced};
use crate::metrics::Counters;
use crate::node::Node;

/// Time after the last suspicious moment in which verdicts are still held: two intervals of signs of life, so that
/// those who are heard again last are not judged because others were heard first.
const REST: Millis = Millis(10_000);

/// Until when verdicts are held, by what they are about; 0 when they are not.
#[derive(Debug, Default)]
pub(crate) struct Brakes {
    beats: AtomicU64,
    connections: AtomicU64,
}

impl Node {
    /// Decides whether verdicts on the silent are held now, and tells when that changes.
    pub(crate) fn is_suspect(
        &self,
        what: Silenced,
        silence: Silence,
        now: Now,
        actions: &mut Actions,
    ) -> bool {
        let until = match what {
            Silenced::Beats => &self.brakes.beats,
            Silenced::Connections => &self.brakes.connections,
        };
        let before = until.load(Ordering::Relaxed);
        let after = match silence.is_suspect(self.config.expiry_brake) {
            true => (now.mono + REST).0,
            false if before > now.mono.0 => before,
            false => 0,
        };
        until.store(after, Ordering::Relaxed);
        let holds = after > 0;
        if holds != (before > 0) {
            if holds {
                Counters::add(&self.counters.expiry_brakes);
            }
            actions.push(Action::Brake { what, silence, holds });
        }
        holds
    }
}
