//! Metadata that an operator lays over many rows of a service at once, or takes away again.

use http::StatusCode;
use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::registry::change::Override;
use rollcall_core::{Instance, Metadata, ServiceKey};
use rollcall_node::request::RowTarget;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::grpc::lenient::{Int, Text, object};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::instance::set_override;
use crate::json;

object! {
    /// A row that is meant, as its JSON names it.
    Named<'a> {
        /// Address.
        ip ("ip"): Text<'a> = Text(None),
        /// Port.
        port ("port"): Int = Int(0),
        /// Cluster.
        cluster ("clusterName"): Text<'a> = Text(None),
    }
}

/// PUT: lays pairs over the metadata of the rows that are named, or of all.
///
/// # Errors
/// 400 for what is missing or refused; what the node says.
pub async fn update(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    change(app, params, |former, given| former.overlaid(given)).await
}

/// DELETE: takes away the keys of what was laid over before. What a row was registered with stays.
///
/// # Errors
/// As [`update`].
pub async fn remove(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    change(app, params, |former, given| {
        let kept = former.iter().filter(|(key, _)| given.get(key).is_none());
        Metadata::from_pairs(kept.cloned())
    })
    .await
}

async fn change(
    app: &HttpApp,
    params: &Params,
    apply: impl Fn(&Metadata, &Metadata) -> Metadata,
) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?;
    params.required("metadata")?;
    let mut updated = Vec::new();
    for target in targets(app, params, service)? {
        let node = app.exec().node();
        let Ok((row, over)) = node.row_with_override(service, &target, app.exec().now()) else {
            continue; // There is none of that name.
        };
        let former = over
            .as_ref()
            .map(|over| over.metadata.clone())
            .unwrap_or_default();
        let metadata = apply(&former, &checked.metadata);
        if metadata != former && !set(app, service, &row, metadata).await? {
            continue; // It is gone meanwhile.
        }
        updated.push(format!(
            "{}:{}:unknown:{}:ephemeral",
            row.ip, row.port, row.cluster
        ));
    }
    Ok(Reply::data(params.api(), |out| {
        out.extend_from_slice(b"{\"updated\":");
        json::value(out, &updated);
        out.push(b'}');
    }))
}

/// Sets the metadata laid over a row; weight and whether clients see it stay as they are shown. False when the row does
/// not exist.
async fn set(
    app: &HttpApp,
    service: &ServiceKey,
    row: &Instance,
    metadata: Metadata,
) -> Result<bool, HttpFailure> {
    let value = Override {
        weight: row.weight,
        enabled: row.enabled,
        metadata,
    };
    match set_override(app, service, row, value).await {
        Ok(()) => Ok(true),
        Err(failure) if failure.status == StatusCode::NOT_FOUND => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// The rows that are meant, each once: those named, or all of the service.
fn targets(app: &HttpApp, params: &Params, service: &ServiceKey) -> Result<Vec<RowTarget>, HttpFailure> {
    let target = |ip: &str, port: u16, cluster: &str| RowTarget {
        ip: SmolStr::new(ip),
        port,
        cluster: Some(SmolStr::new(cluster)),
    };
    let Some(text) = params.get("instances") else {
        let answer = app.exec().node().query(service, app.exec().now())?;
        let all = answer.view.instances();
        return Ok(all.map(|i| target(&i.ip, i.port, &i.cluster)).collect());
    };
    let named: Vec<Named<'_>> = serde_json::from_str(text)
        .map_err(|error| HttpFailure::invalid(format!("the instances cannot be read: {error}")))?;
    let mut targets: Vec<RowTarget> = Vec::new();
    for named in &named {
        let cluster = match named.cluster.as_str() {
            "" => DEFAULT_CLUSTER,
            cluster => cluster,
        };
        // What is no port belongs to no row.
        if let Ok(port) = u16::try_from(named.port.0) {
            targets.push(target(named.ip.as_str(), port, cluster));
        }
    }
    targets.sort_by(|a, b| (&a.ip, a.port, &a.cluster).cmp(&(&b.ip, b.port, &b.cluster)));
    targets.dedup();
    Ok(targets)
}
