//! `/v2/ns/instance`: what v2 has of its own. The rest is in [`crate::http::shared::instance`].

use crate::error::HttpFailure;
use crate::http::api::{Api, Lack};
use crate::http::app::HttpApp;
use crate::http::check::split_grouped;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::beat;
use crate::http::shared::instance;
use crate::http::udp_poll;

/// GET: one row, also a disabled one.
///
/// # Errors
/// 400 for what is missing; 404 when there is no such row.
pub fn detail(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, row) = instance::find(app, params)?;
    Ok(Reply::data(params.api(), |out| {
        instance::write_detail(out, "serviceName", &service, &row);
    }))
}

/// GET list: the enabled instances of a service. A 1.x client is pushed to at `ip` and `port`.
///
/// # Errors
/// 400 for what is missing or refused.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = params.check_list(app.metadata_limit())?;
    let clusters = params.get("clusterName").unwrap_or_default();
    let service = checked.require_service()?;
    let reply = instance::list(app, params, service, clusters)?;
    if let (Some(caller), Some(port)) = (params.caller(), params.integer("port")?) {
        let ip = params.get("ip");
        udp_poll::polled(app.exec(), caller, ip, port, service, clusters);
    }
    Ok(reply)
}

/// PATCH: changes the operator's values. All of them must be given, and the name must be grouped; the answer is that
/// of v1.
///
/// # Errors
/// 400 for what is missing or refused; 404 when there is no such row.
pub async fn patch(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, target) = instance::row(app, params)?;
    params.required_as("weight", "Double")?;
    params.required_as("enabled", "Boolean")?;
    params.required("metadata")?;
    require_grouped(params)?;
    let weight = params.fraction("weight")?;
    let enabled = Some(params.flag(&["enabled"], true)?);
    let metadata = Some(params.metadata()?);
    instance::patch(app, service, target, weight, enabled, metadata).await?;
    Ok(Reply::done(Api::V1))
}

/// PUT beat: as in v1, but the name must be grouped.
///
/// # Errors
/// 400 for what is missing or refused.
pub async fn beat(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let params = params.clone().of(params.api(), Lack::Argument);
    app.check(&params)?;
    require_grouped(&params)?;
    beat::beat(app, &params).await
}

fn require_grouped(params: &Params) -> Result<(), HttpFailure> {
    match params.get("serviceName") {
        Some(name) => split_grouped(name).map(|_| ()),
        None => Ok(()),
    }
}
