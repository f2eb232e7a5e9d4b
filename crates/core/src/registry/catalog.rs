//! Names of the services that exist, sorted, for listing by namespace and group.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use smol_str::SmolStr;

use crate::model::service_key::{GROUP_SEPARATOR, ServiceKey};

/// The services that are listed: from their first instance until they are cleaned.
#[derive(Debug, Default)]
pub struct Catalog {
    /// And whether each has an instance.
    services: RwLock<BTreeMap<ServiceKey, bool>>,
    version: AtomicU64,
}

impl Catalog {
    /// Lists a service, or says anew whether it has an instance.
    pub(crate) fn set(&self, service: &ServiceKey, has_instance: bool) {
        let former = self.services.write().insert(service.clone(), has_instance);
        if former.unwrap_or_default() != has_instance {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn remove(&self, service: &ServiceKey) {
        if self.services.write().remove(service).unwrap_or_default() {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Rises whenever a service gets its first instance or loses its last one.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The first services with an instance, at most `limit`, that pass `is_meant`, sorted.
    pub fn matching(&self, limit: usize, is_meant: impl Fn(&ServiceKey) -> bool) -> Vec<ServiceKey> {
        let services = self.services.read();
        services
            .iter()
            .filter(|(service, has_instance)| **has_instance && is_meant(service))
            .take(limit)
            .map(|(service, _)| service.clone())
            .collect()
    }

    /// The number of services by namespace.
    pub fn n_by_namespace(&self) -> BTreeMap<SmolStr, usize> {
        let mut counts = BTreeMap::new();
        for service in self.services.read().keys() {
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
        self.services.read().contains_key(service)
    }

    /// The services of a namespace, sorted by group and name.
    pub fn in_namespace(&self, namespace: &str) -> Vec<ServiceKey> {
        let prefix = format!("{namespace}##");
        let services = self.services.read();
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        services
            .range::<str, _>(from)
            .map(|(service, _)| service)
            .take_while(|service| service.as_str().starts_with(&prefix))
            .filter(|service| service.namespace() == namespace)
            .cloned()
            .collect()
    }

    /// The namespaces that hold a service, sorted.
    pub fn namespaces(&self) -> Vec<SmolStr> {
        let services = self.services.read();
        let mut found: Vec<SmolStr> = Vec::new();
        let mut next = services.keys().next();
        while let Some(service) = next {
            let namespace = SmolStr::new(service.namespace());
            // `$` follows `#`: the first name behind all those of this namespace.
            let behind = format!("{namespace}#$");
            found.push(namespace);
            let from = (Bound::Included(behind.as_str()), Bound::Unbounded);
            next = services.range::<str, _>(from).next().map(|(service, _)| service);
        }
        found
    }

    /// The number of services in a group of a namespace, and the names from `start` on, at most `limit` of them.
    pub fn page(&self, namespace: &str, group: &str, start: usize, limit: usize) -> (usize, Vec<SmolStr>) {
        let prefix = format!("{namespace}##{group}{GROUP_SEPARATOR}");
        let services = self.services.read();
        let mut count = 0;
        let mut names = Vec::new();
        for (service, _) in services.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded)) {
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
            catalog.set(&ServiceKey::new("", "", &format!("s{n:02}")), true);
            catalog.set(&ServiceKey::new("", "G", &format!("s{n:02}")), true);
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
            catalog.set(&ServiceKey::new(namespace, "", name), true);
        }
        assert_eq!(catalog.namespaces(), ["dev", "dev-2", "public"]);
        let dev = catalog.in_namespace("dev");
        assert_eq!(dev.iter().map(ServiceKey::name).collect::<Vec<_>>(), ["a", "b"]);
        assert!(
            catalog.contains(&ServiceKey::new("dev-2", "", "a"))
                && !catalog.contains(&ServiceKey::new("dev-2", "", "b"))
        );
    }

    #[test]
    fn only_first_and_last_instances_change_what_matches() {
        let catalog = Catalog::default();
        let service = ServiceKey::new("", "", "a");
        let state = || {
            (
                catalog.version(),
                catalog.matching(9, |_| true).len(),
                catalog.len(),
            )
        };
        catalog.set(&service, false);
        assert_eq!(state(), (0, 0, 1));
        catalog.set(&service, true);
        catalog.set(&service, true);
        assert_eq!(state(), (1, 1, 1));
        catalog.set(&service, false);
        assert_eq!(state(), (2, 0, 1));
        catalog.remove(&service);
        assert_eq!(state(), (2, 0, 0));
    }
}
