//! Clients of this node as operators see them: what each publishes and subscribes to. The generations show the same
//! under other names.

use std::sync::Arc;

use rollcall_core::{Instance, ServiceKey};
use rollcall_node::inspect::{ClientKind, ServicePublisher};
use rollcall_node::{ClientStatus, ServiceSubscriber};
use smol_str::SmolStr;

use crate::error::{Code, HttpFailure};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// GET list: the ids of all clients.
///
/// # Errors
/// None.
pub async fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let ids = app.look(|node| node.client_ids()).await;
    Ok(Reply::value(params.api(), &ids))
}

/// The client that a call names.
///
/// # Errors
/// 400 when none is named, 404 when there is no such client.
pub async fn find(app: &HttpApp, params: &Params) -> Result<ClientStatus, HttpFailure> {
    let id = id(params)?;
    let name = id.clone();
    let now = app.exec().now();
    app.look(move |node| node.client(&name, now))
        .await
        .ok_or_else(|| unknown(&id))
}

/// What the client publishes that a call names.
///
/// # Errors
/// As [`find`].
pub async fn publications(
    app: &HttpApp,
    params: &Params,
) -> Result<Vec<(ServiceKey, Arc<Instance>)>, HttpFailure> {
    let id = id(params)?;
    let name = id.clone();
    let found = app.look(move |node| node.client_publications(&name)).await;
    found.ok_or_else(|| unknown(&id))
}

/// What the client subscribes to that a call names.
///
/// # Errors
/// As [`find`].
pub async fn subscriptions(app: &HttpApp, params: &Params) -> Result<Vec<ServiceSubscriber>, HttpFailure> {
    let id = id(params)?;
    let name = id.clone();
    let now = app.exec().now();
    let found = app.look(move |node| node.client_subscriptions(&name, now)).await;
    found.ok_or_else(|| unknown(&id))
}

/// Who publishes the service that a call names; only those with the address that it names, if it names one.
///
/// # Errors
/// 400 when no service is named.
pub fn publishers(app: &HttpApp, params: &Params) -> Result<Vec<ServicePublisher>, HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?;
    if !params.flag(&["ephemeral"], true)? {
        return Ok(Vec::new()); // There are no persistent instances yet.
    }
    let ip = params.get("ip");
    let mut found = app.exec().node().publishers(service);
    found.retain(|p| ip.is_none_or(|ip| ip == p.ip) && checked.port.is_none_or(|port| port == p.port));
    Ok(found)
}

/// Who subscribes to the service that a call names; only those with the address that it names, if it names one.
///
/// # Errors
/// 400 when no service is named.
pub fn subscribers(app: &HttpApp, params: &Params) -> Result<Vec<ServiceSubscriber>, HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?;
    let ip = params.get("ip");
    let mut found = app.exec().node().subscribers(&|key| key == service);
    found.retain(|s| ip.is_none_or(|ip| ip == s.ip) && checked.port.is_none_or(|port| port == s.port));
    Ok(found)
}

/// GET distro: the member that takes care of an address that beats.
///
/// # Errors
/// 400 when it is missing or refused.
pub async fn responsible(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let ip = params.required("ip")?.to_owned();
    let port = checked.require_port()?;
    let server = app.look(move |node| node.judge_of(&ip, port)).await;
    Ok(Reply::data(params.api(), |out| {
        out.extend_from_slice(b"{\"responsibleServer\":");
        json::string(out, &server);
        out.push(b'}');
    }))
}

/// Address and port at which a client stands: those of its connection, or those that beat.
pub fn address(client: &ClientStatus) -> (&str, u16) {
    match &client.kind {
        ClientKind::Connection(info) => {
            let port = info.text_id.rsplit('_').next();
            let port = port.and_then(|port| port.parse().ok()).unwrap_or_default();
            (&info.client_ip, port)
        }
        ClientKind::Address { ip, port } => (ip, *port),
        ClientKind::Remote => ("", 0),
    }
}

fn id(params: &Params) -> Result<SmolStr, HttpFailure> {
    params.required("clientId").map(SmolStr::new)
}

fn unknown(id: &str) -> HttpFailure {
    HttpFailure::not_found(format!("clientId [ {id} ] not exist")).with(Code::NOT_FOUND)
}
