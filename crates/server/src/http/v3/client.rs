//! `/v3/admin/ns/client`: clients as v3 shows them.

use rollcall_core::ServiceKey;
use rollcall_node::ServiceSubscriber;
use rollcall_node::inspect::ClientKind;
use serde::Serialize;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::client;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail<'a> {
    client_id: &'a str,
    ephemeral: bool,
    last_updated_time: u64,
    client_type: &'static str,
    connect_type: Option<&'static str>,
    app_name: Option<&'a str>,
    version: Option<&'a str>,
    client_ip: &'a str,
    client_port: u16,
}

/// GET: one client.
///
/// # Errors
/// 400 when none is named, 404 when there is no such client.
pub async fn detail(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::find(app, params).await?;
    let info = match &found.kind {
        ClientKind::Connection(info) => Some(info),
        ClientKind::Remote | ClientKind::Address { .. } => None,
    };
    let is_address = matches!(found.kind, ClientKind::Address { .. });
    let (client_ip, client_port) = client::address(&found);
    let detail = Detail {
        client_id: &found.id,
        ephemeral: true,
        last_updated_time: found.updated.0,
        client_type: if is_address { "ipPort" } else { "connection" },
        connect_type: info.map(|_| "GRPC"),
        app_name: info.map(|info| info.app.as_str()),
        version: info.map(|info| info.client_version.as_str()),
        client_ip,
        client_port,
    };
    Ok(Reply::value(params.api(), &detail))
}

/// What a client has to do with a service.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Service<'a> {
    namespace_id: &'a str,
    group_name: &'a str,
    service_name: &'a str,
    publisher_info: Option<Publisher>,
    subscriber_info: Option<Subscriber<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Publisher {
    client_id: Option<SmolStr>,
    ip: SmolStr,
    port: u16,
    cluster_name: SmolStr,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscriber<'a> {
    client_id: &'a str,
    app_name: &'a str,
    agent: &'a str,
    address: SmolStr,
}

impl<'a> Subscriber<'a> {
    fn of(found: &'a ServiceSubscriber) -> Self {
        Subscriber {
            client_id: &found.client,
            app_name: &found.app,
            agent: &found.agent,
            address: found.address(),
        }
    }
}

impl<'a> Service<'a> {
    fn of(key: &'a ServiceKey, publisher: Option<Publisher>, subscriber: Option<Subscriber<'a>>) -> Self {
        Service {
            namespace_id: key.namespace(),
            group_name: key.group(),
            service_name: key.name(),
            publisher_info: publisher,
            subscriber_info: subscriber,
        }
    }
}

/// GET publish/list: the rows that a client publishes. Whose they are is not repeated, as recorded.
///
/// # Errors
/// As [`detail`].
pub async fn publications(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::publications(app, params).await?;
    let list = found.iter().map(|(key, row)| {
        let publisher = Publisher {
            client_id: None,
            ip: row.ip.clone(),
            port: row.port,
            cluster_name: row.cluster.clone(),
        };
        Service::of(key, Some(publisher), None)
    });
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}

/// GET subscribe/list: the services that a client subscribes to.
///
/// # Errors
/// As [`detail`].
pub async fn subscriptions(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::subscriptions(app, params).await?;
    let list = found
        .iter()
        .map(|found| Service::of(&found.service, None, Some(Subscriber::of(found))));
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}

/// GET service/publisher/list: who publishes a service.
///
/// # Errors
/// 400 when no service is named.
pub fn publishers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::publishers(app, params)?.into_iter();
    let list = found.map(|found| Publisher {
        client_id: Some(found.client),
        ip: found.ip,
        port: found.port,
        cluster_name: found.cluster,
    });
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}

/// GET service/subscriber/list: who subscribes to a service.
///
/// # Errors
/// 400 when no service is named.
pub fn subscribers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::subscribers(app, params)?;
    let list: Vec<_> = found.iter().map(Subscriber::of).collect();
    Ok(Reply::value(params.api(), &list))
}
