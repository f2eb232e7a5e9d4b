//! `/v1/ns/operator/metrics`: the status that clients ask for, and counts for operators.

use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;

/// GET: `UP`, since a node that is not ready does not come this far; with `onlyStatus=false` counts as well.
pub fn metrics(app: &HttpApp, params: &Params) -> Reply {
    if params
        .get("onlyStatus")
        .is_none_or(|only| only.eq_ignore_ascii_case("true"))
    {
        return Reply::json(b"{\"status\":\"UP\"}".to_vec());
    }
    let metrics = app.exec().node().metrics();
    let mut out = b"{\"status\":\"UP\"".to_vec();
    for (name, metric) in [
        ("serviceCount", "rollcall_services"),
        ("instanceCount", "rollcall_instances"),
        ("subscribeCount", "rollcall_subscriptions"),
        ("clientCount", "rollcall_clients"),
        ("connectionBasedClientCount", "rollcall_connections"),
    ] {
        out.push(b',');
        json::string(&mut out, name);
        out.push(b':');
        json::unsigned(&mut out, metrics.get(metric).unwrap_or_default());
    }
    out.push(b'}');
    Reply::json(out)
}
