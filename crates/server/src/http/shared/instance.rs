//! Instances: register, deregister, update, patch, and what reads of them have in common.

use std::sync::Arc;

use rollcall_core::model::service_key::{DEFAULT_CLUSTER, DEFAULT_NAMESPACE};
use rollcall_core::registry::change::{Override, OverrideEdit};
use rollcall_core::{Instance, Metadata, ServiceKey, limits};
use rollcall_node::error::NodeError;
use rollcall_node::request::{HttpWrite, RowTarget};
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::api::Lack;
use crate::http::app::HttpApp;
use crate::http::check::split_grouped;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;
use crate::service_info::{self, Header};
use crate::transport::Generation;

/// An instance as the parameters describe it, with the service and the cluster text as sent.
struct Described {
    service: ServiceKey,
    instance: Instance,
    cluster: Option<SmolStr>,
}

/// Reads what register, update and deregister have in common.
fn describe(app: &HttpApp, params: &Params) -> Result<Described, HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?.clone();
    let ip = params.required("ip")?;
    let port = checked.require_port()?;
    let cluster = named_cluster(params).map(SmolStr::new);
    let weight = params.fraction("weight")?.unwrap_or(1.0);
    limits::check_weight(weight).map_err(NodeError::from)?;
    let instance = Instance {
        ip: SmolStr::new(ip),
        port,
        cluster: cluster.clone().unwrap_or(SmolStr::new_static(DEFAULT_CLUSTER)),
        weight,
        enabled: params.flag(&["enabled", "enable"], true)?,
        healthy: params.flag(&["healthy"], true)?,
        metadata: checked.metadata,
        instance_id: None,
    };
    Ok(Described {
        service,
        instance,
        cluster,
    })
}

/// The cluster that a call names, by the name of today or the old one.
fn named_cluster(params: &Params) -> Option<&str> {
    params.first(&["clusterName", "cluster"])
}

/// True when a call is about an ephemeral instance, by what it says or what operators set for those that do not.
fn is_ephemeral(app: &HttpApp, params: &Params) -> Result<bool, HttpFailure> {
    params.flag(&["ephemeral"], app.exec().node().heeded().is_ephemeral_by_default)
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

/// The service and the row that a call names, of which nothing else is read.
///
/// # Errors
/// 400 for a part that is missing or refused.
pub fn row(app: &HttpApp, params: &Params) -> Result<(ServiceKey, RowTarget), HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?.clone();
    let target = RowTarget {
        ip: SmolStr::new(params.required("ip")?),
        port: checked.require_port()?,
        cluster: named_cluster(params).map(SmolStr::new),
    };
    Ok((service, target))
}

/// POST: registers or replaces one row.
///
/// # Errors
/// 400 for what is missing or refused; what the node says.
pub async fn register(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let described = describe(app, params)?;
    let is_ephemeral = is_ephemeral(app, params)?;
    limits::check_instance(&described.instance).map_err(NodeError::from)?;
    if !is_ephemeral {
        app.exec().node().check_kind(&described.service, false)?;
        return Err(NodeError::PersistentUnavailable.into());
    }
    app.write(HttpWrite::Register {
        service: described.service,
        instance: described.instance,
    })
    .await?;
    Ok(Reply::done(params.api()))
}

/// DELETE: removes one row; `ok` also when there is none.
///
/// # Errors
/// As [`register`].
pub async fn deregister(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let described = describe(app, params)?;
    if !is_ephemeral(app, params)? {
        return Ok(Reply::done(params.api())); // There is no persistent instance to remove.
    }
    let target = described.target();
    app.write(HttpWrite::Deregister {
        service: described.service,
        target,
    })
    .await?;
    Ok(Reply::done(params.api()))
}

/// PUT: sets the operator's values of one row, replacing former ones as a whole. Whether the row is persistent does
/// not matter: they stand beside it.
///
/// # Errors
/// As [`register`]; 404 when there is no such row.
pub async fn update(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let described = describe(app, params)?;
    is_ephemeral(app, params)?;
    limits::check_instance(&described.instance).map_err(NodeError::from)?;
    let target = described.target();
    let Described {
        service, instance, ..
    } = described;
    let edit = OverrideEdit::Replace(Override {
        weight: instance.weight,
        enabled: instance.enabled,
        metadata: instance.metadata,
    });
    edit_override(app, service, target, edit).await?;
    Ok(Reply::done(params.api()))
}

/// PATCH: changes some of the operator's values of one row.
///
/// # Errors
/// As [`update`].
pub async fn patch(
    app: &HttpApp,
    service: ServiceKey,
    target: RowTarget,
    weight: Option<f64>,
    enabled: Option<bool>,
    metadata: Option<Metadata>,
) -> Result<(), HttpFailure> {
    if let Some(weight) = weight {
        limits::check_weight(weight).map_err(NodeError::from)?;
    }
    let edit = OverrideEdit::Patch {
        weight,
        enabled,
        metadata,
    };
    edit_override(app, service, target, edit).await
}

/// Changes the operator's values of a row.
///
/// # Errors
/// What the node says.
pub async fn edit_override(
    app: &HttpApp,
    service: ServiceKey,
    target: RowTarget,
    edit: OverrideEdit,
) -> Result<(), HttpFailure> {
    app.write(HttpWrite::Update {
        service,
        target,
        edit,
    })
    .await?;
    Ok(())
}

/// One row, also a disabled one.
///
/// # Errors
/// 400 for what is missing; 404 when there is no such row.
pub fn find(app: &HttpApp, params: &Params) -> Result<(ServiceKey, Arc<Instance>), HttpFailure> {
    let (service, target) = row(app, params)?;
    let cluster = params.get("clusterName").unwrap_or(DEFAULT_CLUSTER);
    let node = app.exec().node();
    let instance = node.instance(&service, &target.ip, target.port, cluster, app.exec().now())?;
    Ok((service, instance))
}

/// A row as detail calls of v1 and v2 show it, with this name for its service.
pub fn write_detail(out: &mut Vec<u8>, service_field: &str, service: &ServiceKey, instance: &Instance) {
    out.push(b'{');
    json::string(out, service_field);
    out.push(b':');
    json::string(out, service.grouped_name());
    json::member(out, "ip");
    json::string(out, &instance.ip);
    json::member(out, "port");
    json::unsigned(out, u64::from(instance.port));
    json::member(out, "clusterName");
    json::string(out, &instance.cluster);
    json::member(out, "weight");
    json::double(out, instance.weight);
    json::member(out, "healthy");
    json::boolean(out, instance.healthy);
    json::member(out, "instanceId");
    json::string(out, &instance.id(service));
    json::member(out, "metadata");
    service_info::metadata(out, &instance.metadata);
    out.push(b'}');
}

/// The enabled instances of a service with what stands around them; an unknown service has none.
///
/// # Errors
/// 503 while the node is loading.
pub fn list(
    app: &HttpApp,
    params: &Params,
    service: &ServiceKey,
    clusters: &str,
) -> Result<Reply, HttpFailure> {
    let answer = app.exec().node().query(service, app.exec().now())?;
    let header = Header {
        name: Some(service.grouped_name()),
        group: Some(service.group()),
        clusters: Some(clusters),
        last_ref_time: answer.last_ref_time,
        cache: answer.cache,
        generation: Generation::Two,
    };
    let healthy_only = params.choice("healthyOnly", false)?;
    Ok(Reply::data(params.api(), |out| {
        service_info::write_view(out, header, &answer.view, healthy_only);
    }))
}

/// The rows of a service as `ip:port_healthy`, by the key `[namespace##]group@@name`.
///
/// # Errors
/// 400 when there is no key, or none of that form.
pub fn statuses(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let key = params
        .get("key")
        .ok_or_else(|| HttpFailure::missing(Lack::Parameter, "key", "String"))?;
    let (namespace, grouped) = key.split_once("##").unwrap_or((DEFAULT_NAMESPACE, key));
    let (group, name) = split_grouped(grouped)?;
    let service = ServiceKey::new(namespace, group, name);
    let answer = app.exec().node().query(&service, app.exec().now())?;
    let status = |i: &Arc<Instance>| format!("{}:{}_{}", i.ip, i.port, i.healthy);
    let ips: Vec<String> = answer.view.instances().map(status).collect();
    let mut out = b"{\"ips\":".to_vec();
    json::value(&mut out, &ips);
    out.push(b'}');
    Ok(Reply::json(out))
}
