//! What this server is and whether it serves: for load balancers and tools that look for a version.

use http::StatusCode;
use rollcall_node::switches::Access;

use crate::error::{HttpFailure, HttpForm};
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// GET liveness: the process answers.
///
/// # Errors
/// None.
pub fn liveness(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(alive(params.api()))
}

/// GET readiness: the node serves reads, and operators did not say otherwise.
///
/// # Errors
/// 500 in v1 and 503 later while it does not.
pub fn readiness(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let node = app.exec().node();
    if node.is_ready() && node.check_status(Access::Read).is_ok() {
        return Ok(alive(params.api()));
    }
    let status = match params.api() {
        Api::V1 => StatusCode::INTERNAL_SERVER_ERROR,
        Api::V2 | Api::V3 => StatusCode::SERVICE_UNAVAILABLE,
    };
    Err(HttpFailure::new(
        HttpForm::Message,
        status,
        "naming not in readiness",
    ))
}

fn alive(api: Api) -> Reply {
    match api {
        Api::V1 => Reply::Text("OK"),
        Api::V2 | Api::V3 => Reply::value(api, "ok"),
    }
}

/// GET state: what this server is, all values as text, in a result in v3.
///
/// # Errors
/// None.
pub fn server_state(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::data(params.api(), |out| {
        write_state(out, app, params.api())
    }))
}

/// GET state for consoles: the same, bare.
///
/// # Errors
/// None.
pub fn console_state(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let mut out = Vec::new();
    write_state(&mut out, app, params.api());
    Ok(Reply::json(out))
}

fn write_state(out: &mut Vec<u8>, app: &HttpApp, api: Api) {
    let mode = if app.exec().node().peers().is_empty() {
        "standalone"
    } else {
        "cluster"
    };
    let port = app.main_port().to_string();
    let fields = [
        ("startup_mode", mode),
        ("function_mode", "naming"),
        ("version", api.version()),
        ("server_port", &port),
        ("auth_enabled", "false"),
        ("auth_system_type", "nacos"),
        ("auth_admin_request", "false"),
        ("login_page_enabled", "false"),
        ("console_ui_enabled", "false"),
        ("datasource_platform", ""),
        ("config_retention_days", "30"),
    ];
    for (at, (key, value)) in fields.into_iter().enumerate() {
        out.push(if at == 0 { b'{' } else { b',' });
        json::string(out, key);
        out.push(b':');
        json::string(out, value);
    }
    out.push(b'}');
}
