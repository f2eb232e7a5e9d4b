//! How many clients and instances there are, counted when an operator asks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::ClientId;
use crate::registry::digest::N_BUCKETS;
use crate::registry::row::Publisher;

/// Numbers of clients and instances. A client is a connection that publishes or could publish, or an address (ip and
/// port) that beats, in however many services.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Connections of all members.
    pub connections: usize,
    /// Addresses that beat, anywhere.
    pub beating: usize,
    /// Connections of this member, and addresses that beat in a service that it owns.
    pub own_clients: usize,
    /// Instances that connections of this member publish, and instances that beat in a service that it owns.
    pub own_instances: usize,
    /// Services that a connection publishes, summed over all connections.
    pub connection_publications: usize,
    /// Services that an address beats in, summed over all addresses.
    pub beat_publications: usize,
    /// The services whose lists changed most often since they were made here, at most [`N_BUSIEST`], with how often.
    pub busiest: Vec<(ServiceKey, u64)>,
}

/// Services in [`Census::busiest`].
pub const N_BUSIEST: usize = 10;

impl Registry {
    /// Counts; `owns` says which services this member owns. Takes the lock of one service after another.
    pub fn census(&self, owns: &dyn Fn(&ServiceKey) -> bool) -> Census {
        // Addresses by their hash: two that share one are counted once, which is as good as never.
        let set = || HashSet::<u64, _>::with_hasher(FixedState::with_seed(self.seed));
        let (mut beating, mut own_beating) = (set(), set());
        let mut own_instances = 0;
        let (mut connection_publications, mut beat_publications) = (0, 0);
        let mut busiest: BinaryHeap<Reverse<(u64, ServiceKey)>> = BinaryHeap::new();
        let mut clients: Vec<ClientId> = Vec::new();
        let mut addresses: Vec<u64> = Vec::new();
        for service in (0..N_BUCKETS).flat_map(|bucket| self.services_in(bucket)) {
            let is_own = owns(&service.key);
            let rows = service.rows.lock();
            for row in rows.iter() {
                let mut is_own_row = false;
                for publication in &row.publications {
                    match publication.publisher {
                        Publisher::Connection(client) => {
                            clients.push(client);
                            is_own_row |= client.origin == self.me;
                        }
                        Publisher::Beats => {
                            let instance = &publication.instance;
                            let address = xxh3_64_with_seed(instance.ip.as_bytes(), u64::from(instance.port));
                            addresses.push(address);
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
            let n_changes = rows.n_changes;
            drop(rows);
            connection_publications += drain_distinct(&mut clients);
            beat_publications += drain_distinct(&mut addresses);
            let is_busier =
                |Reverse((n, key)): &Reverse<(u64, ServiceKey)>| (n_changes, &service.key) > (*n, key);
            if busiest.len() < N_BUSIEST || busiest.peek().is_some_and(is_busier) {
                busiest.push(Reverse((n_changes, service.key.clone())));
            }
            if busiest.len() > N_BUSIEST {
                busiest.pop();
            }
        }
        let busiest = busiest.into_sorted_vec().into_iter();
        let busiest = busiest
            .map(|Reverse((n_changes, service))| (service, n_changes))
            .collect();
        Census {
            connections: self.clients.len(),
            beating: beating.len(),
            own_clients: self.clients.n_of(self.me) + own_beating.len(),
            own_instances,
            connection_publications,
            beat_publications,
            busiest,
        }
    }
}

/// Empties a list and says how many distinct values there were.
fn drain_distinct<T: Ord>(list: &mut Vec<T>) -> usize {
    list.sort_unstable();
    list.dedup();
    let n_distinct = list.len();
    list.clear();
    n_distinct
}
