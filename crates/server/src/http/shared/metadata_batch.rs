//! Metadata that an operator lays over many rows of a service at once, or takes away again.

use http::StatusCode;
use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::registry::change::OverrideEdit;
use rollcall_core::{Metadata, RowAddress, ServiceKey};
use rollcall_node::request::RowTarget;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::grpc::lenient::{Int, Text, object};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::instance::edit_override;
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
    change(app, params, OverrideEdit::Lay).await
}

/// DELETE: takes away the keys of what was laid over before. What a row was registered with stays.
///
/// # Errors
/// As [`update`].
pub async fn remove(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    change(app, params, |given| {
        OverrideEdit::TakeAway(given.iter().map(|(key, _)| key.clone()).collect())
    })
    .await
}

async fn change(
    app: &HttpApp,
    params: &Params,
    edit: impl FnOnce(Metadata) -> OverrideEdit,
) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?;
    params.required("metadata")?;
    let targets = targets(app, params, service)?;
    let edit = edit(checked.metadata.clone());
    let mut updated = Vec::new();
    for target in targets {
        let RowAddress { ip, port, cluster } = target.address();
        let row = format!(
            "{ip}:{port}:unknown:{}:ephemeral",
            cluster.unwrap_or(DEFAULT_CLUSTER)
        );
        match edit_override(app, service.clone(), target, edit.clone()).await {
            Ok(()) => updated.push(row),
            // There is none of that name, or no longer.
            Err(failure) if failure.status == StatusCode::NOT_FOUND => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(Reply::data(params.api(), |out| {
        out.extend_from_slice(b"{\"updated\":");
        json::value(out, &updated);
        out.push(b'}');
    }))
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
