//! `/v1/ns/operator/metrics`: the status that clients ask for, and counts for operators.

use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;

/// GET: `UP`, or `DOWN` while the node leaves; one that is not ready does not come this far. With `onlyStatus=false`
/// counts as well.
pub async fn metrics(app: &HttpApp, params: &Params) -> Reply {
    let node = app.exec().node().clone();
    let mut out = b"{\"status\":".to_vec();
    json::string(&mut out, &node.state().to_string());
    let is_short = params
        .get("onlyStatus")
        .is_none_or(|only| only.eq_ignore_ascii_case("true"));
    if !is_short {
        let metrics = node.metrics();
        // Looks at every row, which would keep other requests of this thread waiting.
        let census = tokio::task::spawn_blocking(move || node.census())
            .await
            .unwrap_or_default();
        let metric = |name| metrics.get(name).unwrap_or_default();
        for (name, count) in [
            ("serviceCount", metric("rollcall_services")),
            ("instanceCount", metric("rollcall_instances")),
            ("subscribeCount", metric("rollcall_subscriptions")),
            ("responsibleInstanceCount", census.own_instances as u64),
            ("clientCount", (census.connections + census.beating) as u64),
            ("connectionBasedClientCount", census.connections as u64),
            ("ephemeralIpPortClientCount", census.beating as u64),
            ("persistentIpPortClientCount", 0), // There are no persistent instances yet.
            ("responsibleClientCount", census.own_clients as u64),
        ] {
            json::member(&mut out, name);
            json::unsigned(&mut out, count);
        }
        let machine = app.machine().load();
        for (name, value) in [
            ("cpu", machine.cpu),
            ("load", machine.load),
            ("mem", machine.memory),
        ] {
            json::member(&mut out, name);
            json::double(&mut out, value);
        }
    }
    out.push(b'}');
    Reply::json(out)
}
