//! Clients whose connections have ended: what they registered goes a few clients at a time, so that the end of a fleet is a
//! little work many times. Called by connections that close and by the node's tick.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rollcall_core::Now;
use rollcall_core::registry::change::ClientId;
use rollcall_distro::Effects;

use crate::action::Actions;
use crate::node::Node;

/// Clients that are to go, in the order in which they ended. Each was a connection of this node, so that there are never
/// more than may connect between two ticks, or, while the node is unlisted, than were connected before.
#[derive(Debug, Default)]
pub(crate) struct Closing(Mutex<VecDeque<ClientId>>);

impl Closing {
    /// Takes note of a client that has ended.
    pub(crate) fn add(&self, client: ClientId) {
        self.0.lock().push_back(client);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// True when none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn next(&self) -> Option<ClientId> {
        self.0.lock().pop_front()
    }
}

impl Node {
    /// Removes some clients that have ended, with some `limit` rows all told, at least one client. Those of one go together,
    /// as the other members are told of its end by one operation.
    pub(crate) fn close_some(&self, limit: usize, now: Now, effects: &mut Effects) {
        let mut n_seen = 0;
        while n_seen < limit
            && let Some(client) = self.closing.next()
        {
            let (log, changes) = (self.engine.log(), &mut effects.changes);
            // One without rows costs something as well.
            n_seen += 1 + self.registry.close_client(client, now, log, changes);
        }
    }

    /// This node is listed again: what the connections had registered that ended meanwhile, or whose clients were on
    /// their way before, goes now. They have arrived long ago, and may have withdrawn it there.
    ///
    /// All in one go: whoever takes this node again shall be told nothing of it, and nobody is served here until then.
    pub(crate) fn close_left_behind(&self, now: Now, actions: &mut Actions) {
        for client in self.movers.take_all() {
            self.closing.add(client);
        }
        let mut effects = Effects::default();
        self.close_some(usize::MAX, now, &mut effects);
        self.settle(effects, now, actions);
    }
}
