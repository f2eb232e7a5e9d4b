//! `/v2/ns/client`: clients as v2 shows them.

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
    #[serde(flatten)]
    connection: Option<Connection<'a>>,
    client_ip: &'a str,
    client_port: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connection<'a> {
    connect_type: &'static str,
    app_name: &'a str,
    version: &'a str,
}

/// GET: one client.
///
/// # Errors
/// 400 when none is named, 404 when there is no such client.
pub async fn detail(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::find(app, params).await?;
    let connection = match &found.kind {
        ClientKind::Connection(info) => Some(Connection {
            connect_type: "GRPC",
            app_name: &info.app,
            version: &info.client_version,
        }),
        ClientKind::Remote | ClientKind::Address { .. } => None,
    };
    let is_address = matches!(found.kind, ClientKind::Address { .. });
    let (client_ip, port) = client::address(&found);
    let detail = Detail {
        client_id: &found.id,
        ephemeral: true,
        last_updated_time: found.updated.0,
        client_type: if is_address { "ipPort" } else { "connection" },
        connection,
        client_ip,
        client_port: port.to_string(),
    };
    Ok(Reply::value(params.api(), &detail))
}

/// A service that a client publishes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Published<'a> {
    namespace: &'a str,
    group: &'a str,
    service_name: &'a str,
    registered_instance: Row<'a>,
}

#[derive(Serialize)]
struct Row<'a> {
    ip: &'a str,
    port: u16,
    cluster: &'a str,
}

/// GET publish/list: the rows that a client publishes.
///
/// # Errors
/// As [`detail`].
pub async fn publications(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::publications(app, params).await?;
    let list = found.iter().map(|(service, row)| Published {
        namespace: service.namespace(),
        group: service.group(),
        service_name: service.name(),
        registered_instance: Row {
            ip: &row.ip,
            port: row.port,
            cluster: &row.cluster,
        },
    });
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}

/// A service that a client subscribes to.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscribed<'a> {
    namespace: &'a str,
    group: &'a str,
    service_name: &'a str,
    subscriber_info: SubscriberInfo<'a>,
}

#[derive(Serialize)]
struct SubscriberInfo<'a> {
    app: &'a str,
    agent: &'a str,
    addr: SmolStr,
}

/// GET subscribe/list: the services that a client subscribes to.
///
/// # Errors
/// As [`detail`].
pub async fn subscriptions(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::subscriptions(app, params).await?;
    let list = found.iter().map(|found| Subscribed {
        namespace: found.service.namespace(),
        group: found.service.group(),
        service_name: found.service.name(),
        subscriber_info: SubscriberInfo {
            app: &found.app,
            agent: &found.agent,
            addr: found.address(),
        },
    });
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Publisher {
    ip: SmolStr,
    port: u16,
    cluster: SmolStr,
    client_id: SmolStr,
}

/// GET service/publisher/list: who publishes a service.
///
/// # Errors
/// 400 when no service is named.
pub fn publishers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::publishers(app, params)?.into_iter();
    let list = found.map(|found| Publisher {
        ip: found.ip,
        port: found.port,
        cluster: found.cluster,
        client_id: found.client,
    });
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscriber<'a> {
    client_id: &'a str,
    ip: &'a str,
    port: u16,
}

/// GET service/subscriber/list: who subscribes to a service.
///
/// # Errors
/// 400 when no service is named.
pub fn subscribers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let found = client::subscribers(app, params)?;
    let list = found.iter().map(|found| Subscriber {
        client_id: &found.client,
        ip: &found.ip,
        port: found.port,
    });
    Ok(Reply::value(params.api(), &list.collect::<Vec<_>>()))
}
