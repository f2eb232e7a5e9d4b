//! Which instances of a service a reader gets (`spec/validation.md` §9).

use std::sync::Arc;

use crate::model::instance::Instance;

/// What a reader asks for. Disabled instances are never part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Selection<'a> {
    /// Comma list of clusters, elements not trimmed; blank for all.
    pub clusters: &'a str,
    /// Leave out unhealthy instances.
    pub healthy_only: bool,
}

impl Selection<'_> {
    /// True when no instance is left out for its cluster.
    pub fn is_all_clusters(&self) -> bool {
        self.clusters.trim().is_empty()
    }

    /// True when `instance` is part of the answer.
    pub fn takes(&self, instance: &Instance) -> bool {
        instance.enabled
            && (!self.healthy_only || instance.healthy)
            && (self.is_all_clusters() || self.clusters.split(',').any(|c| c == instance.cluster))
    }
}

/// What a reader gets.
#[derive(Clone, Debug, Default)]
pub struct Selected {
    /// The instances, sorted by address and cluster.
    pub instances: Vec<Arc<Instance>>,
    /// So few are healthy that all are shown as healthy. Only for services with settings (`spec/validation.md` §9).
    pub reach_protection: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_not_trimmed_and_blank_means_all() {
        let mut instance = Instance::at("1.1.1.1", 1);
        instance.cluster = "B".into();
        let takes = |clusters| {
            Selection {
                clusters,
                healthy_only: false,
            }
            .takes(&instance)
        };
        assert!(takes("") && takes(" ") && takes("A,B") && takes("B,A"));
        assert!(!takes("A, B") && !takes("b"));
    }
}
