//! The health of instances: what operators set, and how instances may be probed.

use http::StatusCode;
use rollcall_core::model::service_key::DEFAULT_CLUSTER;

use crate::error::HttpFailure;
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::instance;

/// PUT: sets the health of an instance that is not checked. Those kept by beats or a connection always are.
///
/// # Errors
/// 400 always, for lack of instances that are not checked.
pub fn set(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let lacks_value = match params.api() {
        Api::V1 => params.first(&["healthy", "valid"]).is_none(),
        Api::V2 | Api::V3 => params.get("healthy").is_none(),
    };
    if lacks_value {
        return Err(HttpFailure::missing(params.lack(), "healthy", "Boolean"));
    }
    params.flag(&["healthy", "valid"], true)?;
    let (service, target) = instance::row(app, params)?;
    let cluster = target.cluster.as_deref().unwrap_or(DEFAULT_CLUSTER);
    let name = service.grouped_name();
    let text = format!("health check is still working, service: {name}, cluster: {cluster}");
    Err(HttpFailure::text(StatusCode::BAD_REQUEST, text))
}

/// GET checkers: the ways of probing, with their settings when nothing is said.
///
/// # Errors
/// None.
pub fn checkers(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    const CHECKERS: &[u8] = br#"{"TCP":{},"HTTP":{"path":"","headers":"","expectedResponseCode":200},"MYSQL":{"user":null,"pwd":null,"cmd":null},"NONE":{}}"#;
    Ok(Reply::data(params.api(), |out| out.extend_from_slice(CHECKERS)))
}
