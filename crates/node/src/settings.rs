//! What operators set: services, clusters, namespaces, quarantines, switches (`design.md` §4, Operator data).
//!
//! Each write is a versioned record that any member takes by itself and that spreads like a row, so operators can act
//! without a quorum. The shell keeps the records on disk and gives them back at the next start.

use std::sync::Arc;

use rollcall_core::registry::change::{RowOp, Versioned};
use rollcall_core::registry::guard::{GUARD_MAX, Guarded};
use rollcall_core::registry::records::{
    ClusterSettings, HiddenRows, NamespaceSettings, Quarantine, Record, RecordKey, ServiceSettings,
};
use rollcall_core::{Millis, Now, ServiceKey};
use rollcall_distro::Effects;
use smol_str::SmolStr;

use crate::action::Actions;
use crate::error::NodeError;
use crate::node::Node;

/// The namespace that is always there.
pub const DEFAULT_NAMESPACE: &str = "public";

/// A namespace as operators see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceStatus {
    /// Its id.
    pub id: SmolStr,
    /// What operators said of it; `None` for one that only holds services.
    pub settings: Option<Arc<NamespaceSettings>>,
    /// Services in it.
    pub n_services: usize,
}

impl Node {
    /// Gives back what the shell has kept on disk, before the node serves. Newer versions that other members hold win.
    pub fn restore(&self, kept: Vec<RowOp>, now: Now) {
        let mut effects = Effects::default();
        for op in kept {
            match op {
                RowOp::Record { key, stamp, record } => {
                    let changes = &mut effects.changes;
                    self.registry.apply_record(&key, record, stamp, now, changes);
                }
                RowOp::Versioned {
                    service,
                    row,
                    stamp,
                    value,
                } => {
                    let (log, changes) = (self.engine.log(), &mut effects.changes);
                    let versioned = Versioned { stamp, value };
                    self.registry
                        .apply_versioned(&service, &row, versioned, now, log, changes);
                }
                RowOp::Publish { .. } | RowOp::Withdraw { .. } | RowOp::ClientGone { .. } => {}
            }
        }
        // It comes from the disk and need not go there again.
        self.registry.take_durable();
    }

    /// Sets or removes one record.
    ///
    /// # Errors
    /// [`NodeError::NotReady`], [`NodeError::Leaving`].
    pub fn set_record(
        &self,
        key: &RecordKey,
        record: Option<Record>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        if !self.engine.is_ready_at(now) {
            return Err(self.not_serving());
        }
        let mut effects = Effects::default();
        let (log, changes) = (self.engine.log(), &mut effects.changes);
        self.registry.set_record(key, record, now, log, changes);
        self.settle(effects, now, actions);
        Ok(())
    }

    /// Creates a service.
    ///
    /// # Errors
    /// [`NodeError::ServiceExists`] when it has settings or instances; as [`Node::set_record`].
    pub fn create_service(
        &self,
        service: &ServiceKey,
        settings: ServiceSettings,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        if self.is_service(service) {
            return Err(NodeError::ServiceExists(service.clone()));
        }
        self.set_service(service, Some(settings), now, actions)
    }

    /// Changes what is said of a service.
    ///
    /// # Errors
    /// [`NodeError::NoService`]; as [`Node::set_record`].
    pub fn update_service(
        &self,
        service: &ServiceKey,
        settings: ServiceSettings,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        if !self.is_service(service) {
            return Err(NodeError::NoService(service.clone()));
        }
        self.set_service(service, Some(settings), now, actions)
    }

    /// Removes a service that has no instance, and all that operators said of it.
    ///
    /// # Errors
    /// [`NodeError::NoService`], [`NodeError::ServiceNotEmpty`]; as [`Node::set_record`].
    pub fn delete_service(
        &self,
        service: &ServiceKey,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        if !self.is_service(service) {
            return Err(NodeError::NoService(service.clone()));
        }
        if !self.registry.publications(service).is_empty() {
            return Err(NodeError::ServiceNotEmpty(service.clone()));
        }
        for cluster in self.registry.set_clusters(service) {
            let key = RecordKey::Cluster(service.clone(), cluster);
            self.set_record(&key, None, now, actions)?;
        }
        self.set_service(service, None, now, actions)
    }

    fn set_service(
        &self,
        service: &ServiceKey,
        settings: Option<ServiceSettings>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let record = settings.map(|settings| Record::Service(Arc::new(settings)));
        self.set_record(&RecordKey::Service(service.clone()), record, now, actions)
    }

    /// True when a service is listed.
    pub fn is_service(&self, service: &ServiceKey) -> bool {
        self.registry.catalog().contains(service)
    }

    /// Refuses an instance of the other kind than the service's (`spec/validation.md` §5). A service is for persistent
    /// instances if operators made it so and it holds no ephemeral one; what is there counts more, as two members may
    /// take the first instance and the settings at one moment.
    ///
    /// # Errors
    /// [`NodeError::WrongKind`].
    pub fn check_kind(&self, service: &ServiceKey, is_ephemeral: bool) -> Result<(), NodeError> {
        let has_rows = self
            .registry
            .service(service)
            .is_some_and(|held| !held.view().is_empty());
        let kind = if has_rows {
            Some(true)
        } else {
            self.registry.service_settings(service).map(|s| s.is_ephemeral)
        };
        match kind {
            Some(kind) if kind != is_ephemeral => Err(NodeError::WrongKind {
                service: service.grouped_name().to_owned(),
                is_ephemeral: kind,
            }),
            _ => Ok(()),
        }
    }

    /// What operators said of a cluster.
    pub fn cluster_settings(&self, service: &ServiceKey, cluster: &str) -> Option<Arc<ClusterSettings>> {
        let key = RecordKey::Cluster(service.clone(), cluster.into());
        match self.registry.record(&key)? {
            Record::Cluster(settings) => Some(settings),
            _ => None,
        }
    }

    /// Hides rows of a service from readers, whatever their publishers do.
    ///
    /// # Errors
    /// As [`Node::set_record`].
    pub fn quarantine(
        &self,
        service: &ServiceKey,
        rows: HiddenRows,
        why: Quarantine,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let key = RecordKey::Quarantine(service.clone(), rows);
        self.set_record(&key, Some(Record::Quarantine(Arc::new(why))), now, actions)
    }

    /// For a while after the last instance of a service falls silent, readers go on to see the last list: for `time`, at
    /// most [`GUARD_MAX`]. `None` ends what was set; 0 for a service ends what is set for its namespace.
    ///
    /// # Errors
    /// As [`Node::set_record`].
    pub fn set_guard(
        &self,
        guarded: &Guarded,
        time: Option<Millis>,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        let record = time.map(|time| Guarded::record(time.min(GUARD_MAX)));
        self.set_record(&guarded.record_key(), record, now, actions)
    }

    /// All quarantines, sorted by service.
    pub fn quarantines(&self) -> Vec<(ServiceKey, HiddenRows, Arc<Quarantine>)> {
        let records = self.registry.all_records().into_iter();
        records
            .filter_map(|(key, record)| match (key, record) {
                (RecordKey::Quarantine(service, rows), Record::Quarantine(why)) => Some((service, rows, why)),
                _ => None,
            })
            .collect()
    }

    /// The namespaces that operators made and those that hold services; `public` first, then sorted by id.
    pub fn namespaces(&self) -> Vec<NamespaceStatus> {
        let mut counts = self.registry.catalog().n_by_namespace();
        counts.entry(DEFAULT_NAMESPACE.into()).or_default();
        let mut settings = std::collections::BTreeMap::new();
        for (key, record) in self.registry.all_records() {
            if let (RecordKey::Namespace(id), Record::Namespace(said)) = (key, record) {
                counts.entry(id.clone()).or_default();
                settings.insert(id, said);
            }
        }
        let mut all: Vec<_> = counts
            .into_iter()
            .map(|(id, n_services)| NamespaceStatus {
                settings: settings.get(&id).cloned(),
                id,
                n_services,
            })
            .collect();
        all.sort_by(|a, b| (a.id != DEFAULT_NAMESPACE, &a.id).cmp(&(b.id != DEFAULT_NAMESPACE, &b.id)));
        all
    }
}
