//! Services as operators see them. What operators set for them is not stored yet: all have the values of a service
//! that came with its first instance.

use std::sync::Arc;

use http::StatusCode;
use rollcall_core::{Instance, ServiceKey, ServiceView};
use rollcall_node::request::ServiceNames;
use rollcall_node::{NodeError, ServiceSubscriber};
use serde::Serialize;
use smol_str::SmolStr;

use crate::error::{Code, HttpFailure};
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// A set of text pairs without any.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub struct NoPairs {}

/// How instances are selected: not at all.
#[derive(Clone, Copy, Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    r#type: &'static str,
    context_type: &'static str,
}

impl Selector {
    /// Selects everything.
    pub const NONE: Selector = Selector {
        r#type: "none",
        context_type: "NONE",
    };
}

/// How instances of a cluster are probed.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct HealthChecker {
    r#type: &'static str,
}

impl HealthChecker {
    /// By opening a connection; what clusters have of which nothing else was said.
    pub const TCP: HealthChecker = HealthChecker { r#type: "TCP" };
}

/// A service and what it holds.
#[derive(Clone, Debug)]
pub struct ServiceStatus {
    /// Its identity.
    pub key: ServiceKey,
    /// Its list.
    pub view: Arc<ServiceView>,
}

impl ServiceStatus {
    /// The clusters that hold an instance, sorted.
    pub fn clusters(&self) -> Vec<SmolStr> {
        let mut clusters: Vec<_> = self.view.instances().map(|i| i.cluster.clone()).collect();
        clusters.sort_unstable();
        clusters.dedup();
        clusters
    }

    /// The instances of a cluster, disabled ones included, sorted by address.
    pub fn in_cluster(&self, cluster: &str) -> Vec<&Arc<Instance>> {
        self.view.instances().filter(|i| i.cluster == cluster).collect()
    }
}

/// The service of this key, if it is listed.
///
/// # Errors
/// 503 while the node is loading.
pub fn status(app: &HttpApp, key: &ServiceKey) -> Result<Option<ServiceStatus>, HttpFailure> {
    let node = app.exec().node();
    let view = node.query(key, app.exec().now())?.view;
    let is_listed = node.registry().catalog().contains(key);
    let key = key.clone();
    Ok(is_listed.then_some(ServiceStatus { key, view }))
}

/// The service that a call names.
///
/// # Errors
/// 400 when none is named, or there is no such service.
pub fn find(app: &HttpApp, params: &Params) -> Result<ServiceStatus, HttpFailure> {
    let checked = app.check(params)?;
    let key = checked.require_service()?;
    status(app, key)?.ok_or_else(|| {
        let (namespace, name) = (key.namespace(), key.grouped_name());
        let text = format!("service not found, namespace: {namespace}, serviceName: {name}");
        HttpFailure::text(StatusCode::BAD_REQUEST, text).with(Code::NO_SERVICE)
    })
}

/// A page of the plain names of a group.
///
/// # Errors
/// 400 for a negative page size.
pub fn names(
    app: &HttpApp,
    params: &Params,
    page_no: i64,
    page_size: i64,
) -> Result<ServiceNames, NodeError> {
    let (node, now) = (app.exec().node(), app.exec().now());
    node.service_names(params.namespace(), params.group(), page_no, page_size, now)
}

/// Connections of this node that subscribe to a service in whose group and name those of `key` stand, as recorded.
pub fn subscribers(app: &HttpApp, key: &ServiceKey) -> Vec<ServiceSubscriber> {
    let is_meant = |service: &ServiceKey| {
        service.namespace() == key.namespace()
            && service.group().contains(key.group())
            && service.name().contains(key.name())
    };
    app.exec().node().subscribers(&is_meant)
}

/// GET selector/types: the kinds of selectors. v1 answers it as a call that has nothing to do with naming.
///
/// # Errors
/// None.
pub fn selector_types(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let types = ["label", "none"];
    Ok(match params.api() {
        Api::V1 => Reply::rest(&types),
        api => Reply::value(api, &types),
    })
}
