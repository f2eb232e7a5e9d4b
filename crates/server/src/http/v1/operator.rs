//! `/v1/ns/operator/metrics`: the status that clients ask for, and counts for operators.

use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::metrics;

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
    let members = [
        ("serviceCount", "rollcall_services"),
        ("instanceCount", "rollcall_instances"),
        ("subscribeCount", "rollcall_subscriptions"),
        ("clientCount", "rollcall_clients"),
        ("connectionBasedClientCount", "rollcall_connections"),
    ];
    metrics::write_members(&mut out, &metrics, &members);
    out.push(b'}');
    Reply::json(out)
}
