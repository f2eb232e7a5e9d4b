//! Names of the services that exist, sorted, for listing by namespace and group.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use smol_str::SmolStr;

use crate::model::service_key::{GROUP_SEPARATOR, ServiceKey};

/// The services that are listed: from their first instance until they are cleaned.
#[derive(Debug, Default)]
pub struct Catalog {
    services: RwLock<BTreeSet<ServiceKey>>,
    version: AtomicU64,
}

impl Catalog {
    pub(crate) fn add(&self, service: &ServiceKey) {
        if self.services.write().insert(service.clone()) {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn remove(&self, service: &ServiceKey) {
        if self.services.write().remove(service) {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Rises whenever a service comes or goes.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The first services, at most `limit`, that pass `is_meant`, sorted.
    pub fn matching(&self, limit: usize, is_meant: impl Fn(&ServiceKey) -> bool) -> Vec<ServiceKey> {
        let services = self.services.read();
        services
            .iter()
            .filter(|s| is_meant(s))
            .take(limit)
            .cloned()
            .collect()
    }

    /// The number of services by namespace.
    pub fn n_by_namespace(&self) -> BTreeMap<SmolStr, usize> {
        let mut counts = BTreeMap::new();
        for service in self.services.read().iter() {
            match counts.get_mut(service.namespace()) {
                Some(count) => *count += 1,
                None => {
                    counts.insert(SmolStr::new(service.namespace()), 1);
                }
            }
        }
        counts
    }

    /// The number of services.
    pub fn len(&self) -> usize {
        self.services.read().len()
    }

    /// True when no service is listed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True when the service is listed.
    pub fn contains(&self, service: &ServiceKey) -> bool {
        self.services.read().contains(service)
    }

    /// The services of a namespace, sorted by group and name.
    pub fn in_namespace(&self, namespace: &str) -> Vec<ServiceKey> {
        let prefix = format!("{namespace}##");
        let services = self.services.read();
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        services
            .range::<str, _>(from)
            .take_while(|service| service.as_str().starts_with(&prefix))
            .filter(|service| service.namespace() == namespace)
            .cloned()
            .collect()
    }

    /// The namespaces that hold a service, sorted.
    pub fn namespaces(&self) -> Vec<SmolStr> {
        let services = self.services.read();
        let mut found: Vec<SmolStr> = Vec::new();
        let mut next = services.first();
        while let Some(service) = next {
            let namespace = SmolStr::new(service.namespace());
            // `$` follows `#`: the first name behind all those of this namespace.
            let behind = format!("{namespace}#$");
            found.push(namespace);
            let from = (Bound::Included(behind.as_str()), Bound::Unbounded);
            next = services.range::<str, _>(from).next();
        }
        found
    }

    /// The number of services in a group of a namespace, and the names from `start` on, at most `limit` of them.
    pub fn page(&self, namespace: &str, group: &str, start: usize, limit: usize) -> (usize, Vec<SmolStr>) {
        let prefix = format!("{namespace}##{group}{GROUP_SEPARATOR}");
        let services = self.services.read();
        let mut count = 0;
        let mut names = Vec::new();
        for service in services.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded)) {
            if !service.as_str().starts_with(&prefix) {
                break;
            }
            if service.namespace() == namespace && service.group() == group {
                if count >= start && names.len() < limit {
                    names.push(SmolStr::new(service.name()));
                }
                count += 1;
            }
        }
        (count, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_stable_and_keep_groups_apart() {
        let catalog = Catalog::default();
        for n in 0..25 {
            catalog.add(&ServiceKey::new("", "", &format!("s{n:02}")));
            catalog.add(&ServiceKey::new("", "G", &format!("s{n:02}")));
        }
        let sizes: Vec<_> = (0..4)
            .map(|p| catalog.page("public", "DEFAULT_GROUP", p * 10, 10).1.len())
            .collect();
        assert_eq!(sizes, [10, 10, 5, 0]);
        assert_eq!(
            catalog.page("public", "G", 0, 2),
            (25, vec!["s00".into(), "s01".into()])
        );
        assert_eq!(catalog.page("dev", "G", 0, 2), (0, vec![]));
    }

    #[test]
    fn namespaces_are_those_that_hold_services() {
        let catalog = Catalog::default();
        for (namespace, name) in [("", "a"), ("dev", "a"), ("dev", "b"), ("dev-2", "a")] {
            catalog.add(&ServiceKey::new(namespace, "", name));
        }
        assert_eq!(catalog.namespaces(), ["dev", "dev-2", "public"]);
        let dev = catalog.in_namespace("dev");
        assert_eq!(dev.iter().map(ServiceKey::name).collect::<Vec<_>>(), ["a", "b"]);
        assert!(
            catalog.contains(&ServiceKey::new("dev-2", "", "a"))
                && !catalog.contains(&ServiceKey::new("dev-2", "", "b"))
        );
    }
}
