//! `/v1/ns/instance`: register, deregister, update, detail.

use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::{Instance, ServiceKey, limits};
use rollcall_node::error::NodeError;
use rollcall_node::request::{HttpWrite, RowTarget};
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::params::{Checked, Params};
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;
use crate::service_info;

/// An instance as the parameters describe it, with the service and the cluster text as sent.
struct Described {
    service: ServiceKey,
    instance: Instance,
    cluster: Option<SmolStr>,
}

/// Reads what register, update and deregister have in common.
fn describe(params: &Params, checked: Checked) -> Result<Described, HttpFailure> {
    let service = checked.require_service()?.clone();
    let ip = params.required("ip")?;
    let port = checked.require_port()?;
    let cluster = params.first(&["clusterName", "cluster"]).map(SmolStr::new);
    let weight = match params.get("weight") {
        Some(weight) => weight.parse().map_err(|_| HttpFailure::no_number(weight))?,
        None => 1.0,
    };
    limits::check_weight(weight).map_err(NodeError::from)?;
    let instance = Instance {
        ip: SmolStr::new(ip),
        port,
        cluster: cluster.clone().unwrap_or(SmolStr::new_static(DEFAULT_CLUSTER)),
        weight,
        enabled: params.flag(&["enabled", "enable"], true),
        healthy: params.flag(&["healthy"], true),
        metadata: checked.metadata,
        instance_id: None,
    };
    if !params.flag(&["ephemeral"], true) {
        return Err(NodeError::PersistentUnavailable.into());
    }
    Ok(Described {
        service,
        instance,
        cluster,
    })
}

impl Described {
    fn target(&self) -> RowTarget {
        RowTarget {
            ip: self.instance.ip.clone(),
            port: self.instance.port,
            cluster: self.cluster.clone(),
        }
    }
}

/// POST: registers or replaces one row.
pub async fn register(app: &HttpApp, params: &Params, checked: Checked) -> Result<Reply, HttpFailure> {
    let described = describe(params, checked)?;
    limits::check_instance(&described.instance).map_err(NodeError::from)?;
    app.write(HttpWrite::Register {
        service: described.service,
        instance: described.instance,
    })
    .await?;
    Ok(Reply::OK)
}

/// DELETE: removes one row; `ok` also when there is none.
pub async fn deregister(app: &HttpApp, params: &Params, checked: Checked) -> Result<Reply, HttpFailure> {
    let described = describe(params, checked)?;
    let target = described.target();
    app.write(HttpWrite::Deregister {
        service: described.service,
        target,
    })
    .await?;
    Ok(Reply::OK)
}

/// PUT: sets the operator's values of one row, replacing former ones as a whole.
pub async fn update(app: &HttpApp, params: &Params, checked: Checked) -> Result<Reply, HttpFailure> {
    let described = describe(params, checked)?;
    limits::check_instance(&described.instance).map_err(NodeError::from)?;
    let target = described.target();
    let Described {
        service, instance, ..
    } = described;
    let Instance {
        weight,
        enabled,
        metadata,
        ..
    } = instance;
    app.write(HttpWrite::Update {
        service,
        target,
        weight,
        enabled,
        metadata,
    })
    .await?;
    Ok(Reply::OK)
}

/// GET: one row, also a disabled one.
pub fn detail(app: &HttpApp, params: &Params, checked: &Checked) -> Result<Reply, HttpFailure> {
    let service = checked.require_service()?;
    let ip = params.required("ip")?;
    let port = checked.require_port()?;
    let cluster = params.get("clusterName").unwrap_or(DEFAULT_CLUSTER);
    let now = app.exec().now();
    let instance = app.exec().node().instance(service, ip, port, cluster, now)?;
    let mut out = Vec::with_capacity(384);
    out.extend_from_slice(b"{\"service\":");
    json::string(&mut out, service.grouped_name());
    out.extend_from_slice(b",\"ip\":");
    json::string(&mut out, &instance.ip);
    out.extend_from_slice(b",\"port\":");
    json::unsigned(&mut out, u64::from(instance.port));
    out.extend_from_slice(b",\"clusterName\":");
    json::string(&mut out, &instance.cluster);
    out.extend_from_slice(b",\"weight\":");
    json::double(&mut out, instance.weight);
    out.extend_from_slice(b",\"healthy\":");
    json::boolean(&mut out, instance.healthy);
    out.extend_from_slice(b",\"instanceId\":");
    json::string(&mut out, &instance.id(service));
    out.extend_from_slice(b",\"metadata\":");
    service_info::metadata(&mut out, &instance.metadata);
    out.push(b'}');
    Ok(Reply::json(out))
}
