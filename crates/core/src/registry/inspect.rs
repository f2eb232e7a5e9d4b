//! What operators ask about clients and rows: who publishes what, and what stands beside a row.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::clock::Stamp;
use crate::model::instance::Instance;
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::ClientId;
use crate::registry::digest::N_BUCKETS;
use crate::registry::row::{Publication, Publisher};
use crate::registry::service::Service;

impl Registry {
    /// What a connection publishes, as it said it, sorted by service and row. `None` when it is not known here.
    pub fn publications_of(&self, client: ClientId) -> Option<Vec<(ServiceKey, Arc<Instance>)>> {
        let published = self.clients.get(client)?.lock().all();
        let mut found = Vec::new();
        for (key, hashes) in published {
            let Some(service) = self.service(&key) else {
                continue;
            };
            let rows = service.rows.lock();
            let mut instances: Vec<_> = hashes
                .iter()
                .filter_map(|hash| rows.find(*hash)?.publication(Publisher::Connection(client)))
                .map(|publication| publication.instance.clone())
                .collect();
            drop(rows);
            instances.sort_by_key(|instance| instance.row_key());
            found.extend(instances.into_iter().map(|instance| (key.clone(), instance)));
        }
        Some(found)
    }

    /// The addresses (ip and port) that beat in any service, sorted. Looks at every row.
    pub fn beating_addresses(&self) -> Vec<(SmolStr, u16)> {
        let mut found = Vec::new();
        for service in self.all_services() {
            let rows = service.rows.lock();
            let beating = rows.iter().filter_map(|row| row.publication(Publisher::Beats));
            found.extend(beating.map(|p| (p.instance.ip.clone(), p.instance.port)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The rows for which an address beats, as it said them, sorted by service. Looks at every service.
    pub fn beat_rows_at(&self, ip: &str, port: u16) -> Vec<(ServiceKey, Arc<Instance>, Stamp)> {
        let mut found = Vec::new();
        for service in self.all_services() {
            let view = service.view();
            let at_address = view.at(ip, port);
            if at_address.is_empty() {
                continue;
            }
            let rows = service.rows.lock();
            for instance in at_address {
                let hash = instance.row_key().stable_hash(&service.key);
                if let Some(beat) = rows.find(hash).and_then(|row| row.publication(Publisher::Beats)) {
                    found.push((service.key.clone(), beat.instance.clone(), beat.stamp));
                }
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// All that is said about the rows of a service, sorted by row, newest first.
    pub fn publications_in(&self, service: &ServiceKey) -> Vec<Publication> {
        let rows = self.publications(service);
        rows.into_iter()
            .flat_map(|(_, publications)| publications)
            .collect()
    }

    fn all_services(&self) -> impl Iterator<Item = Arc<Service>> {
        (0..N_BUCKETS).flat_map(|bucket| self.services_in(bucket))
    }
}
