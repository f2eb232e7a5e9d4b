//! Reads, answered from what this node holds.

use std::sync::Arc;

use rollcall_core::{Instance, Millis, Now, ServiceKey, ServiceView};

use crate::error::NodeError;
use crate::node::Node;
use crate::request::ServiceNames;

/// The list of a service with the time that its message carries.
#[derive(Clone, Debug)]
pub struct ServiceAnswer {
    /// The list.
    pub view: Arc<ServiceView>,
    /// `lastRefTime` of the message, in milliseconds since the Unix epoch.
    pub last_ref_time: Millis,
    /// How long clients may use the list before they ask again.
    pub cache: Millis,
}

impl Node {
    pub(crate) fn read(&self, service: &ServiceKey, now: Now) -> ServiceAnswer {
        let (view, last_ref_time) = self.registry.read(service, now.wall);
        ServiceAnswer {
            view,
            last_ref_time,
            cache: self.push_cache(),
        }
    }

    /// The list of a service, answered from what is held here.
    ///
    /// # Errors
    /// [`NodeError::NotReady`] while this node is loading.
    pub fn query(&self, service: &ServiceKey, now: Now) -> Result<ServiceAnswer, NodeError> {
        self.check_readable(now)?;
        Ok(self.read(service, now))
    }

    /// A node that leaves goes on to answer reads: it still holds everything. So does one that is unlisted: it has
    /// nothing newer, and its clients have been told to go.
    pub(crate) fn check_readable(&self, now: Now) -> Result<(), NodeError> {
        if self.engine.is_readable_at(now) || self.is_leaving() {
            Ok(())
        } else {
            Err(NodeError::NotReady)
        }
    }

    /// True when reads are answered: also while this node leaves, or is unlisted.
    pub fn serves_reads(&self, now: Now) -> bool {
        self.check_readable(now).is_ok()
    }

    /// A page of the service names of a group, sorted.
    ///
    /// # Errors
    /// [`NodeError::NotReady`]; [`NodeError::Page`] for a negative page size.
    pub fn service_names(
        &self,
        namespace: &str,
        group: &str,
        page_no: i64,
        page_size: i64,
        now: Now,
    ) -> Result<ServiceNames, NodeError> {
        self.check_readable(now)?;
        if page_size < 0 {
            return Err(NodeError::Page(page_size));
        }
        let start = page_no.saturating_sub(1).saturating_mul(page_size).max(0) as usize;
        let (count, names) = self
            .registry
            .catalog()
            .page(namespace, group, start, page_size as usize);
        Ok(ServiceNames { count, names })
    }

    /// One instance, disabled ones too.
    ///
    /// # Errors
    /// [`NodeError::NotReady`], [`NodeError::ClusterEmpty`], [`NodeError::InstanceNotFound`].
    pub fn instance(
        &self,
        service: &ServiceKey,
        ip: &str,
        port: u16,
        cluster: &str,
        now: Now,
    ) -> Result<Arc<Instance>, NodeError> {
        self.check_readable(now)?;
        let view = self.registry.service(service).map(|s| s.view());
        let view = view
            .filter(|v| !v.is_empty())
            .ok_or_else(|| NodeError::ClusterEmpty {
                cluster: cluster.to_owned(),
                service: service.grouped_name().to_owned(),
            })?;
        view.get(ip, port, cluster)
            .cloned()
            .ok_or(NodeError::InstanceNotFound)
    }
}
