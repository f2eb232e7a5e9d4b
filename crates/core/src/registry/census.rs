//! How many clients and instances there are, counted when an operator asks.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::digest::N_BUCKETS;
use crate::registry::row::Publisher;

/// Numbers of clients and instances. A client is a connection that publishes or could publish, or an address (ip and
/// port) that beats, in however many services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Connections of all members.
    pub connections: usize,
    /// Addresses that beat, anywhere.
    pub beating: usize,
    /// Connections of this member, and addresses that beat in a service that it owns.
    pub own_clients: usize,
    /// Instances that connections of this member publish, and instances that beat in a service that it owns.
    pub own_instances: usize,
}

impl Registry {
    /// Counts; `owns` says which services this member owns. Takes the lock of one service after another.
    pub fn census(&self, owns: &dyn Fn(&ServiceKey) -> bool) -> Census {
        // Addresses by their hash: two that share one are counted once, which is as good as never.
        let set = || HashSet::<u64, _>::with_hasher(FixedState::with_seed(self.seed));
        let (mut beating, mut own_beating) = (set(), set());
        let mut own_instances = 0;
        for service in (0..N_BUCKETS).flat_map(|bucket| self.services_in(bucket)) {
            let is_own = owns(&service.key);
            let rows = service.rows.lock();
            for row in rows.iter() {
                let mut is_own_row = false;
                for publication in &row.publications {
                    match publication.publisher {
                        Publisher::Connection(client) => is_own_row |= client.origin == self.me,
                        Publisher::Beats => {
                            let instance = &publication.instance;
                            let address = xxh3_64_with_seed(instance.ip.as_bytes(), u64::from(instance.port));
                            beating.insert(address);
                            if is_own {
                                own_beating.insert(address);
                                is_own_row = true;
                            }
                        }
                    }
                }
                own_instances += usize::from(is_own_row);
            }
        }
        Census {
            connections: self.clients.len(),
            beating: beating.len(),
            own_clients: self.clients.n_of(self.me) + own_beating.len(),
            own_instances,
        }
    }
}
