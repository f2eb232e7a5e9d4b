//! `/v1/ns/instance`: what v1 has of its own. The rest is in [`crate::http::shared::instance`].

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::instance;
use crate::http::udp_poll;

/// GET: one row, also a disabled one.
///
/// # Errors
/// 400 for what is missing; 404 when there is no such row.
pub fn detail(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, row) = instance::find(app, params)?;
    Ok(Reply::data(params.api(), |out| {
        instance::write_detail(out, "service", &service, &row);
    }))
}

/// PATCH: changes the operator's values that are named. `healthy` is read and means nothing.
///
/// # Errors
/// 400 for what is missing or refused; 404 when there is no such row.
pub async fn patch(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, target) = instance::row(app, params)?;
    let has_enabled = params.first(&["enabled", "enable"]).is_some();
    let weight = params.fraction("weight")?;
    let enabled = has_enabled.then_some(params.flag(&["enabled", "enable"], true)?);
    let metadata = params.get("metadata").map(|_| params.metadata()).transpose()?;
    instance::patch(app, service, target, weight, enabled, metadata).await?;
    Ok(Reply::done(params.api()))
}

/// GET list: the enabled instances of a service; what 1.x clients discover through. A client that names a UDP port is
/// subscribed.
///
/// # Errors
/// 400 for what is missing or refused.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let port = params.integer("udpPort")?.unwrap_or(0);
    let clusters = params.get("clusters").unwrap_or_default();
    let service = checked.require_service()?;
    let reply = instance::list(app, params, service, clusters)?;
    if let Some(caller) = params.caller() {
        let ip = params.get("clientIP");
        udp_poll::polled(app.exec(), caller, ip, port, service, clusters);
    }
    Ok(reply)
}
