//! `/v1/console/health` and `/v1/console/server`: for load balancers and tools that look for a version.

use http::StatusCode;

use crate::error::HttpFailure;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;

/// Version that clients are told: the one whose behaviour is kept.
pub const COMPATIBLE_VERSION: &str = "2.5.1";

/// GET liveness: the process answers.
pub fn liveness() -> Reply {
    Reply::Text("OK")
}

/// GET readiness: the node serves reads.
pub fn readiness(app: &HttpApp) -> Result<Reply, HttpFailure> {
    if app.exec().node().is_ready() {
        Ok(Reply::Text("OK"))
    } else {
        Err(HttpFailure::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "naming not in readiness",
        ))
    }
}

/// GET server/state: what this server is, all values as text.
pub fn server_state(app: &HttpApp) -> Reply {
    let mode = if app.exec().node().peers().is_empty() {
        "standalone"
    } else {
        "cluster"
    };
    let port = app.main_port().to_string();
    let mut out = vec![b'{'];
    for (key, value) in [
        ("startup_mode", mode),
        ("function_mode", "naming"),
        ("version", COMPATIBLE_VERSION),
        ("server_port", &port),
        ("auth_enabled", "false"),
        ("auth_system_type", "nacos"),
        ("auth_admin_request", "false"),
        ("login_page_enabled", "false"),
        ("console_ui_enabled", "false"),
        ("datasource_platform", ""),
        ("config_retention_days", "30"),
    ] {
        if out.len() > 1 {
            out.push(b',');
        }
        json::string(&mut out, key);
        out.push(b':');
        json::string(&mut out, value);
    }
    out.push(b'}');
    Reply::json(out)
}
