//! Clients that were asked to move and have closed their connection. They connect elsewhere first and register there
//! some seconds later, so what they registered here stays until somebody registers it anew, or a grace is over:
//! moving a client shows nobody a shorter list. Called by connections that close and by the node's tick.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rollcall_core::registry::change::ClientId;
use rollcall_core::{Millis, Now};
use rollcall_distro::Effects;

use crate::config::NodeConfig;
use crate::connection::Connection;
use crate::node::Node;

/// A client that was asked to move and closes its connection within this time is on its way.
const LEAVES_WITHIN: Millis = Millis(30_000);
/// Between two looks at whether what a client left behind is registered anew.
const LOOK_AGAIN: Millis = Millis(50);
/// Most clients that are waited for; what further ones registered goes with their connection.
const MOVERS_MAX: usize = 10_000;

/// Clients on their way, with the time until which what they registered stays.
#[derive(Debug, Default)]
pub(crate) struct Movers(Mutex<VecDeque<(ClientId, Millis)>>);

impl Movers {
    /// Number of clients on their way.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes note of a client whose connection has closed; false when it is not on its way, or there are too many.
    pub(crate) fn take(&self, connection: &Connection, config: &NodeConfig, now: Millis) -> bool {
        let Some(asked) = connection.asked_to_move() else {
            return false;
        };
        let mut movers = self.0.lock();
        if now.since(asked) > LEAVES_WITHIN || movers.len() >= MOVERS_MAX {
            return false;
        }
        let client = connection.client;
        let grace = if client.returns_slowly() {
            config.orphan_gone + config.orphan_slow_extra
        } else {
            config.orphan_gone
        };
        movers.push_back((client, now + grace));
        true
    }

    /// When to look again.
    pub(crate) fn next_due(&self, now: Millis) -> Option<Millis> {
        (self.len() > 0).then(|| now + LOOK_AGAIN)
    }
}

impl Node {
    /// Takes away what is registered anew by now, and all of those whose grace is over.
    pub(crate) fn tick_movers(&self, now: Now, effects: &mut Effects) {
        let mut movers = self.movers.0.lock();
        movers.retain(|(client, until)| {
            let log = self.engine.log();
            let is_done = *until <= now.mono
                || self
                    .registry
                    .yield_to_newer(*client, now, log, &mut effects.changes);
            if is_done {
                self.registry
                    .close_client(*client, now, log, &mut effects.changes);
            }
            !is_done
        });
    }
}
