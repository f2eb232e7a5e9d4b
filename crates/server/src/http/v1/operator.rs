//! `/v1/ns/operator/metrics`: the status that clients ask for, and counts for operators.

use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;
use crate::metrics;

/// GET: `UP`, or `DOWN` while the node leaves; one that is not ready does not come this far. With `onlyStatus=false`
/// counts as well.
pub fn metrics(app: &HttpApp, params: &Params) -> Reply {
    let mut out = b"{\"status\":".to_vec();
    json::string(&mut out, &app.exec().node().state().to_string());
    if params
        .get("onlyStatus")
        .is_none_or(|only| only.eq_ignore_ascii_case("true"))
    {
        out.push(b'}');
        return Reply::json(out);
    }
    let metrics = app.exec().node().metrics();
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
