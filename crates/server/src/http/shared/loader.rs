//! Connections of this node: how many there are, and asking their clients to move. v2 answers bare, v3 in a result.

use std::collections::BTreeMap;

use rollcall_core::Millis;
use rollcall_node::action::Actions;
use rollcall_node::inspect::ConnectionStatus;
use serde::Serialize;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::page;
use crate::http::params::Params;
use crate::http::reply::Reply;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connection<'a> {
    connected: bool,
    meta_info: MetaInfo<'a>,
}

/// What is known of a connection: the part of the protocol's that operators look at.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MetaInfo<'a> {
    connect_type: &'static str,
    client_ip: &'a str,
    remote_ip: &'a str,
    version: &'a str,
    connection_id: &'a str,
    create_time: String,
    last_active_time: u64,
    app_name: &'a str,
    sdk_source: bool,
    cluster_source: bool,
}

/// GET current: the connections by their id.
///
/// # Errors
/// None.
pub fn current(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let now = app.exec().now();
    let connections = app.exec().node().connections(now);
    let shown = |status: &ConnectionStatus| {
        let (id, info) = (status.info.text_id.clone(), status.info.clone());
        (
            id,
            info,
            page::timestamp(status.opened),
            now.wall.since(status.idle),
        )
    };
    let shown: Vec<_> = connections.iter().map(shown).collect();
    let by_id: BTreeMap<&str, Connection<'_>> = shown
        .iter()
        .map(|(id, info, created, Millis(active))| {
            let meta_info = MetaInfo {
                connect_type: "GRPC",
                client_ip: &info.client_ip,
                remote_ip: &info.remote_ip,
                version: &info.client_version,
                connection_id: id,
                create_time: created.clone(),
                last_active_time: *active,
                app_name: &info.app,
                sdk_source: info.is_sdk,
                cluster_source: false,
            };
            let connected = true;
            (id.as_str(), Connection { connected, meta_info })
        })
        .collect();
    Ok(match params.api() {
        Api::V1 | Api::V2 => Reply::bare(&by_id),
        Api::V3 => Reply::value(Api::V3, &by_id),
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Load<D, T> {
    detail: [D; 1],
    member_count: usize,
    metrics_count: usize,
    completed: bool,
    max: usize,
    min: usize,
    avg: usize,
    threshold: T,
    total: usize,
}

#[derive(Serialize)]
struct MemberOfV2 {
    address: SmolStr,
    metric: Metric<String>,
}

#[derive(Serialize)]
struct MemberOfV3 {
    address: SmolStr,
    #[serde(flatten)]
    metric: Metric<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metric<N> {
    sdk_con_count: N,
    con_count: N,
    load: String,
    cpu: String,
}

fn summary<D, T>(detail: D, n_members: usize, n_sdk: usize, threshold: T) -> Load<D, T> {
    Load {
        detail: [detail],
        member_count: n_members,
        metrics_count: 1,
        completed: n_members == 1,
        max: n_sdk,
        min: n_sdk,
        avg: n_sdk,
        threshold,
        total: n_sdk,
    }
}

/// GET cluster: how many connections there are. Only this node's are known; `completed` says whether that is all.
///
/// # Errors
/// None.
pub fn cluster(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (node, now) = (app.exec().node(), app.exec().now());
    let members = node.members(now);
    let this = members.iter().find(|member| member.is_self);
    let address = this.map(|member| member.address.clone()).unwrap_or_default();
    let connections = node.connections(now);
    let n_sdk = connections.iter().filter(|c| c.info.is_sdk).count();
    let machine = app.machine().load();
    let (load, cpu) = (machine.load.to_string(), machine.cpu.to_string());
    let threshold = n_sdk as f64 * 1.1;
    Ok(match params.api() {
        Api::V1 | Api::V2 => {
            let metric = Metric {
                sdk_con_count: n_sdk.to_string(),
                con_count: connections.len().to_string(),
                load,
                cpu,
            };
            let detail = MemberOfV2 { address, metric };
            Reply::bare(&summary(detail, members.len(), n_sdk, threshold))
        }
        Api::V3 => {
            let metric = Metric {
                sdk_con_count: n_sdk,
                con_count: connections.len(),
                load,
                cpu,
            };
            let detail = MemberOfV3 { address, metric };
            let threshold = format!("{threshold:?}");
            Reply::value(Api::V3, &summary(detail, members.len(), n_sdk, threshold))
        }
    })
}

/// reloadClient: asks the client of one connection to move; an unknown one is no failure.
///
/// # Errors
/// 400 when none is named.
pub fn reload_client(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let id = params.required("connectionId")?;
    let mut actions = Actions::default();
    app.exec()
        .node()
        .move_connection(id, redirect(params), &mut actions);
    app.exec().run(actions);
    Ok(done(params.api()))
}

/// reloadCurrent: asks clients to move until `count` connections remain; 0 and less do nothing.
///
/// # Errors
/// 400 when no count is given.
pub fn reload_current(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    params.required_as("count", "Integer")?;
    let count = params.integer("count")?.unwrap_or_default();
    if let Some(n_kept) = usize::try_from(count).ok().filter(|count| *count > 0) {
        let mut actions = Actions::default();
        let to = redirect(params);
        app.exec()
            .node()
            .move_connections(n_kept, to.as_ref(), &mut actions);
        app.exec().run(actions);
    }
    Ok(done(params.api()))
}

/// The member to move to; an address without a port means nothing.
fn redirect(params: &Params) -> Option<SmolStr> {
    let address = params.get("redirectAddress")?;
    let (_, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok().map(|_| SmolStr::new(address))
}

fn done(api: Api) -> Reply {
    match api {
        Api::V1 | Api::V2 => Reply::Text("success"),
        Api::V3 => Reply::value(api, &None::<()>),
    }
}
