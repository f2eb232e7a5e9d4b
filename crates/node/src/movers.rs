//! Clients that have gone elsewhere: they were asked to, or gave this node up while it stood still. They connect first and
//! register some seconds later, so what they registered here stays until somebody registers it anew, or a grace is over:
//! nobody sees a shorter list. Called by connections that close and by the node's tick.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use rollcall_core::registry::change::ClientId;
use rollcall_core::{Millis, Now, Registry, ServiceKey};
use rollcall_distro::Effects;

use crate::connection::Connection;
use crate::node::Node;

/// A client that closes its connection within this time after it was asked to move, or after this node stood still, is on
/// its way.
pub(crate) const LEAVES_WITHIN: Millis = Millis(30_000);
/// Between two looks at whether what a client left behind is registered anew.
const LOOK_AGAIN: Millis = Millis(50);
/// Most clients that are waited for; what further ones registered goes with their connection.
const MOVERS_MAX: usize = 10_000;

/// How long the row of a client that has arrived stays published here as well. Other members hear of its arrival and of
/// its end here from different members, in any order: by then a link is up again that broke on the way of the first. After
/// a cut, so long from when the others were reached again.
const BOTH_FOR: Millis = Millis(2_000);

/// A client on its way.
#[derive(Debug)]
struct Mover {
    client: ClientId,
    /// Rows that it registered.
    n_rows: usize,
    /// Until when what it registered stays.
    until: Millis,
    /// When to look whether it is registered anew.
    look: Millis,
    /// Since when somebody else publishes its rows.
    superseded: BTreeMap<(ServiceKey, u64), Millis>,
}

/// Clients on their way, in the order in which they are looked at.
#[derive(Debug, Default)]
pub(crate) struct Movers(Mutex<VecDeque<Mover>>);

impl Movers {
    /// Number of clients on their way.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes note of a client whose connection has closed, and whose rows stay for `grace` if it does not arrive; false
    /// when it is not on its way or has nothing here, or when there are too many. `stood_still`: so did this node a short
    /// time ago.
    pub(crate) fn take(
        &self,
        connection: &Connection,
        stood_still: bool,
        registry: &Registry,
        grace: Millis,
        now: Millis,
    ) -> bool {
        let is_asked = { connection.asked_to_move() }.is_some_and(|asked| now.since(asked) <= LEAVES_WITHIN);
        if !is_asked && !stood_still {
            return false;
        }
        let published = registry.published(connection.client).into_iter();
        let n_rows = published.map(|(_, n_rows)| n_rows).sum();
        if n_rows == 0 {
            return false;
        }
        let mut movers = self.0.lock();
        if movers.len() >= MOVERS_MAX {
            return false;
        }
        let client = connection.client;
        movers.push_back(Mover {
            client,
            n_rows,
            until: now + grace,
            look: now + LOOK_AGAIN,
            superseded: BTreeMap::new(),
        });
        true
    }

    /// Waits for nobody any more. Returns who was on its way.
    pub(crate) fn take_all(&self) -> Vec<ClientId> {
        let movers = std::mem::take(&mut *self.0.lock());
        movers.into_iter().map(|mover| mover.client).collect()
    }

    /// When to look again.
    pub(crate) fn next_due(&self) -> Option<Millis> {
        self.0.lock().front().map(|first| first.look)
    }
}

impl Node {
    /// How long the rows of a client stay that is on its way. Behind a cut its arrival is not heard of: then as long as
    /// those of the members there.
    pub(crate) fn mover_grace(&self, client: ClientId) -> Millis {
        let grace = if self.is_in_minority() {
            self.config.orphan_unreachable
        } else {
            self.config.orphan_gone
        };
        if client.returns_slowly() {
            grace + self.config.orphan_slow_extra
        } else {
            grace
        }
    }

    /// Takes away what has been registered anew for a while, and all of those whose grace is over. What an unlisted node
    /// has stays. Looks at clients with some `limit` rows all told, at least one, so that the return of a fleet is a little
    /// work many times.
    pub(crate) fn tick_movers(&self, limit: usize, now: Now, effects: &mut Effects) {
        if self.is_unlisted() {
            return;
        }
        let mut movers = self.movers.0.lock();
        let mut n_seen = 0;
        while n_seen < limit
            && let Some(mut mover) = movers.pop_front_if(|mover| mover.look <= now.mono)
        {
            n_seen += mover.n_rows;
            if mover.until <= now.mono || self.withdraw_superseded(&mut mover, now, effects) {
                self.closing.add(mover.client);
            } else {
                mover.look = now.mono + LOOK_AGAIN;
                movers.push_back(mover);
            }
        }
    }

    /// True when nothing of the client is left here.
    fn withdraw_superseded(&self, mover: &mut Mover, now: Now, effects: &mut Effects) -> bool {
        let former = std::mem::take(&mut mover.superseded);
        for (service, rows) in self.registry.superseded(mover.client) {
            for hash in rows {
                let row = (service.clone(), hash);
                let since = former.get(&row).copied().unwrap_or(now.mono);
                mover.superseded.insert(row, since);
            }
        }
        let mut due: BTreeMap<ServiceKey, Vec<u64>> = BTreeMap::new();
        let reached = self.engine.reached_again();
        mover.superseded.retain(|(service, hash), since| {
            let is_due = now.mono.since(reached.max(*since)) >= BOTH_FOR;
            if is_due {
                due.entry(service.clone()).or_default().push(*hash);
            }
            !is_due
        });
        let (log, changes) = (self.engine.log(), &mut effects.changes);
        let mut is_done = false;
        for (service, rows) in due {
            is_done |= self
                .registry
                .withdraw_rows(mover.client, &service, &rows, now, log, changes);
        }
        is_done
    }
}
