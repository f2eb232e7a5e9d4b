//! The status that clients ask for, and counts for operators.

use crate::error::HttpFailure;
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// GET: `UP`, what operators set instead, or `DOWN` while the node leaves; one that is not ready does not come this far. With `onlyStatus=false`
/// counts as well.
///
/// # Errors
/// For a word that is no truth value, in v2 and v3.
pub async fn metrics(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let api = params.api();
    let mut body = b"{\"status\":".to_vec();
    let node = app.exec().node();
    match node.heeded().status {
        Some(status) => json::string(&mut body, status.name()),
        None => json::string(&mut body, &node.state().to_string()),
    }
    if !params.choice("onlyStatus", true)? {
        write_counts(&mut body, app, api).await;
    }
    body.push(b'}');
    Ok(Reply::data(api, |out| out.extend_from_slice(&body)))
}

async fn write_counts(out: &mut Vec<u8>, app: &HttpApp, api: Api) {
    let metrics = app.exec().node().metrics(app.exec().now());
    let census = app.look(|node| node.census()).await;
    let metric = |name| metrics.get(name).unwrap_or_default();
    let own_instances = (api == Api::V1).then_some(census.own_instances as u64);
    for (name, count) in [
        ("serviceCount", Some(metric("rollcall_services"))),
        ("instanceCount", Some(metric("rollcall_instances"))),
        ("subscribeCount", Some(metric("rollcall_subscriptions"))),
        ("responsibleInstanceCount", own_instances),
        ("clientCount", Some((census.connections + census.beating) as u64)),
        ("connectionBasedClientCount", Some(census.connections as u64)),
        ("ephemeralIpPortClientCount", Some(census.beating as u64)),
        ("persistentIpPortClientCount", Some(0)), // There are no persistent instances yet.
        ("responsibleClientCount", Some(census.own_clients as u64)),
    ] {
        if let Some(count) = count {
            json::member(out, name);
            json::unsigned(out, count);
        }
    }
    if api == Api::V3 {
        return;
    }
    let machine = app.machine().load();
    for (name, value) in [
        ("cpu", machine.cpu),
        ("load", machine.load),
        ("mem", machine.memory),
    ] {
        json::member(out, name);
        json::double(out, value);
    }
}
