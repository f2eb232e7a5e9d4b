//! Connections of this node: how many there are, and asking their clients to move. v2 answers bare, v3 in a result.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use rollcall_core::Millis;
use rollcall_node::MemberLoad;
use rollcall_node::action::Actions;
use rollcall_node::inspect::ConnectionStatus;
use serde::Serialize;
use smol_str::SmolStr;

use crate::ask::Question;
use crate::error::HttpFailure;
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::page;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// Deviation from the mean from which on a member has too many connections, unless the request says otherwise.
const LOADER_FACTOR: f64 = 0.1;

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
    detail: Vec<D>,
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

/// How busy a member is. Of the machines of others nothing is known.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metric<N> {
    sdk_con_count: N,
    con_count: N,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
}

fn summary<D, T>(loads: &[MemberLoad], detail: Vec<D>, threshold: impl FnOnce(f64) -> T) -> Load<D, T> {
    let known = || loads.iter().filter(|load| load.connections.is_some());
    let counts = || known().map(|load| load.sdk_connections);
    let (n_known, total) = (known().count(), counts().sum::<usize>());
    let avg = total / n_known.max(1);
    Load {
        detail,
        member_count: loads.len(),
        metrics_count: n_known,
        completed: n_known == loads.len(),
        max: counts().max().unwrap_or_default(),
        min: counts().min().unwrap_or_default(),
        avg,
        threshold: threshold(avg as f64 * (1.0 + LOADER_FACTOR)),
        total,
    }
}

/// GET cluster: how many connections each member has, those of the others as of their last probe.
///
/// # Errors
/// None.
pub fn cluster(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let loads = app.exec().node().member_loads();
    let machine = app.machine().load();
    let of_this = |load: &MemberLoad, value: f64| load.is_self.then(|| value.to_string());
    let known = loads
        .iter()
        .filter_map(|load| load.connections.map(|connections| (load, connections)));
    Ok(match params.api() {
        Api::V1 | Api::V2 => {
            let detail = known.map(|(load, connections)| MemberOfV2 {
                address: load.address.clone(),
                metric: Metric {
                    sdk_con_count: load.sdk_connections.to_string(),
                    con_count: connections.to_string(),
                    load: of_this(load, machine.load),
                    cpu: of_this(load, machine.cpu),
                },
            });
            Reply::bare(&summary(&loads, detail.collect(), |threshold| threshold))
        }
        Api::V3 => {
            let detail = known.map(|(load, connections)| MemberOfV3 {
                address: load.address.clone(),
                metric: Metric {
                    sdk_con_count: load.sdk_connections,
                    con_count: connections,
                    load: of_this(load, machine.load),
                    cpu: of_this(load, machine.cpu),
                },
            });
            let threshold = |threshold: f64| format!("{threshold:?}");
            Reply::value(Api::V3, &summary(&loads, detail.collect(), threshold))
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
        .reset_connection(id, redirect(params), app.exec().now(), &mut actions);
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
            .shed_connections(n_kept, to, app.exec().now(), &mut actions);
        app.exec().run(actions);
    }
    Ok(done(params.api()))
}

/// smartReloadCluster: asks clients of each member to move that has more than the mean of all.
///
/// # Errors
/// 400 when the factor is no number.
pub async fn smart_reload(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let factor = even_out(app, params)?.to_string();
    let question = Question {
        method: Method::POST,
        path: "/rollcall/evenOut",
        params: &[("loaderFactor", &factor)],
    };
    app.ask_others::<bool>(&question).await;
    Ok(match params.api() {
        Api::V1 | Api::V2 => Reply::Text("Ok"),
        Api::V3 => Reply::value(Api::V3, &None::<()>),
    })
}

/// `/rollcall/evenOut`: asks clients of this node to move if it has more than the mean of all members.
///
/// # Errors
/// As [`smart_reload`].
pub fn even_out_here(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    even_out(app, params)?;
    Ok(Reply::bare(&true))
}

fn even_out(app: &HttpApp, params: &Params) -> Result<f64, HttpFailure> {
    let factor = match params.get("loaderFactor") {
        Some(text) => match text.parse::<f64>() {
            Ok(factor) if factor.is_finite() => factor,
            _ => {
                let text = format!("caused: For input string: \"{text}\";");
                return Err(HttpFailure::text(StatusCode::BAD_REQUEST, text));
            }
        },
        None => LOADER_FACTOR,
    };
    let mut actions = Actions::default();
    app.exec().node().even_out(factor, app.exec().now(), &mut actions);
    app.exec().run(actions);
    Ok(factor)
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
