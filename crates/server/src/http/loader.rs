//! `/v2/core/loader`, `/v3/admin/core/loader`: who is connected, and moving connections to other members.
//!
//! Recorded of Nacos 2.5.1 (`spec/http-v2.md` §6); in 3.x the calls that change something are POST and their answers
//! stand in a result (`spec/http-v3.md` §5).

use http::StatusCode;
use rollcall_node::action::Actions;
use rollcall_node::{ConnectionStatus, MemberLoad};
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::page;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;

/// Deviation from the mean from which on a member has too many connections, unless the request says otherwise.
const LOADER_FACTOR: f64 = 0.1;

/// One of the calls, of one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    kind: Kind,
    is_v3: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Current,
    Cluster,
    ReloadCurrent,
    ReloadClient,
    SmartReload,
}

impl Call {
    /// What a path below the context path means.
    pub fn of(path: &str) -> Option<Self> {
        let (is_v3, name) = match path.strip_prefix("/v2/core/loader/") {
            Some(name) => (false, name),
            None => (true, path.strip_prefix("/v3/admin/core/loader/")?),
        };
        let kind = match name {
            "current" => Kind::Current,
            "cluster" => Kind::Cluster,
            "reloadCurrent" => Kind::ReloadCurrent,
            "reloadClient" => Kind::ReloadClient,
            "smartReloadCluster" => Kind::SmartReload,
            _ => return None,
        };
        Some(Call { kind, is_v3 })
    }

    /// The methods it has: in 2.x also changes are GET.
    pub fn methods(self) -> &'static str {
        match (self.kind, self.is_v3) {
            (Kind::Current | Kind::Cluster, _) | (_, false) => "GET, HEAD",
            (_, true) => "POST",
        }
    }
}

/// Answers a call.
pub fn answer(app: &HttpApp, call: Call, params: &Params) -> Result<Reply, HttpFailure> {
    let exec = app.exec();
    let (node, now) = (exec.node(), exec.now());
    let to = params.get("redirectAddress").and_then(target);
    let mut actions = Actions::default();
    let done = match call.kind {
        Kind::Current => return Ok(in_result(call, current(&node.connection_list(now)))),
        Kind::Cluster => return Ok(in_result(call, cluster(app, &node.member_loads(), call.is_v3))),
        Kind::ReloadCurrent => {
            let count = params.required("count")?;
            let count: i32 = count.parse().map_err(|_| HttpFailure::no_number(count))?;
            node.shed_connections(usize::try_from(count).unwrap_or(0), to, now, &mut actions);
            "success"
        }
        Kind::ReloadClient => {
            node.reset_connection(params.required("connectionId")?, to, now, &mut actions);
            "success"
        }
        Kind::SmartReload => {
            let factor = match params.get("loaderFactor") {
                Some(text) => text.parse().ok().filter(|f: &f64| f.is_finite()).ok_or_else(|| {
                    HttpFailure::text(
                        StatusCode::BAD_REQUEST,
                        format!("caused: For input string: \"{text}\";"),
                    )
                })?,
                None => LOADER_FACTOR,
            };
            node.even_out(factor, now, &mut actions);
            "Ok"
        }
    };
    exec.run(actions);
    Ok(match call.is_v3 {
        true => in_result(call, b"null".to_vec()),
        false => Reply::Text(done),
    })
}

/// An address to send clients to; what has no port is none.
fn target(address: &str) -> Option<SmolStr> {
    address.rsplit_once(':').map(|_| SmolStr::new(address))
}

/// A document as its version answers it.
fn in_result(call: Call, document: Vec<u8>) -> Reply {
    if !call.is_v3 {
        return Reply::json(document);
    }
    let mut out = b"{\"code\":0,\"message\":\"success\",\"data\":".to_vec();
    out.extend_from_slice(&document);
    out.push(b'}');
    Reply::json(out)
}

fn current(connections: &[ConnectionStatus]) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (at, connection) in connections.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::string(&mut out, &connection.info.text_id);
        out.push(b':');
        write_connection(&mut out, connection);
    }
    out.push(b'}');
    out
}

fn write_connection(out: &mut Vec<u8>, connection: &ConnectionStatus) {
    let info = &connection.info;
    let mut labels = vec![b'{'];
    let known = [
        info.is_sdk.then_some(("source", "sdk")),
        info.is_naming.then_some(("module", "naming")),
        (info.app != "-").then_some(("AppName", info.app.as_str())),
    ];
    for (at, (name, value)) in known.into_iter().flatten().enumerate() {
        if at > 0 {
            labels.push(b',');
        }
        json::string(&mut labels, name);
        labels.push(b':');
        json::string(&mut labels, value);
    }
    labels.push(b'}');
    let mut app_labels = b"{\"ClientVersion\":".to_vec();
    json::string(&mut app_labels, &info.client_version);
    app_labels.extend_from_slice(b",\"AppName\":");
    match info.app.as_str() {
        "-" => app_labels.extend_from_slice(b"null"),
        app => json::string(&mut app_labels, app),
    }
    app_labels.push(b'}');
    // The id tells when the connection was accepted, and its port.
    let accepted = info.text_id.split('_').next().and_then(|ms| ms.parse().ok());
    let port = info.text_id.rsplit('_').next().and_then(|port| port.parse().ok());

    out.extend_from_slice(b"{\"traced\":false,\"abilityTable\":{},\"metaInfo\":{\"connectType\":\"GRPC\"");
    for (name, value) in [
        ("clientIp", info.client_ip.as_str()),
        ("remoteIp", &info.remote_ip),
        ("version", &info.client_version),
        ("connectionId", &info.text_id),
        (
            "createTime",
            &page::timestamp(rollcall_core::Millis(accepted.unwrap_or(0))),
        ),
        ("appName", &info.app),
        ("tenant", ""),
    ] {
        json::member(out, name);
        json::string(out, value);
    }
    json::member(out, "remotePort");
    json::unsigned(out, port.unwrap_or(0));
    json::member(out, "lastActiveTime");
    json::unsigned(out, connection.last_active.0);
    json::member(out, "labels");
    out.extend_from_slice(&labels);
    json::member(out, "appLabels");
    out.extend_from_slice(&app_labels);
    out.extend_from_slice(b",\"tlsProtected\":false,\"clusterSource\":false,\"tag\":null");
    json::member(out, "sdkSource");
    json::boolean(out, info.is_sdk);
    out.extend_from_slice(b"},\"connected\":true,\"labels\":");
    out.extend_from_slice(&labels);
    out.extend_from_slice(b",\"appLabels\":");
    out.extend_from_slice(&app_labels);
    out.push(b'}');
}

fn cluster(app: &HttpApp, loads: &[MemberLoad], is_v3: bool) -> Vec<u8> {
    let known: Vec<_> = loads.iter().filter(|load| load.connections.is_some()).collect();
    let counts = || known.iter().map(|load| load.sdk_connections);
    let total: usize = counts().sum();
    let mean = total / known.len().max(1);
    let mut out = b"{\"detail\":[".to_vec();
    for (at, load) in known.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"address\":");
        json::string(&mut out, &load.address);
        let mut values = vec![
            ("sdkConCount", load.sdk_connections.to_string()),
            ("conCount", load.connections.unwrap_or(0).to_string()),
        ];
        if load.is_self {
            let machine = app.machine().load();
            values.extend([
                ("load", machine.load.to_string()),
                ("cpu", machine.cpu.to_string()),
            ]);
        }
        out.extend_from_slice(if is_v3 { b"" } else { b",\"metric\":{" });
        for (at, (name, value)) in values.iter().enumerate() {
            if is_v3 || at > 0 {
                out.push(b',');
            }
            json::string(&mut out, name);
            out.push(b':');
            json::string(&mut out, value);
        }
        out.extend_from_slice(if is_v3 { b"}" } else { b"}}" });
    }
    out.push(b']');
    for (name, value) in [
        ("memberCount", loads.len()),
        ("metricsCount", known.len()),
        ("max", counts().max().unwrap_or(0)),
        ("min", counts().min().unwrap_or(0)),
        ("avg", mean),
        ("total", total),
    ] {
        json::member(&mut out, name);
        json::unsigned(&mut out, value as u64);
    }
    json::member(&mut out, "completed");
    json::boolean(&mut out, known.len() == loads.len());
    json::member(&mut out, "threshold");
    let threshold = mean as f64 * (1.0 + LOADER_FACTOR);
    match is_v3 {
        true => json::string(&mut out, &threshold.to_string()),
        false => json::double(&mut out, threshold),
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_get_in_v2_and_post_in_v3() {
        let methods = |path| Call::of(path).map(Call::methods);
        assert_eq!(methods("/v2/core/loader/reloadCurrent"), Some("GET, HEAD"));
        assert_eq!(methods("/v3/admin/core/loader/reloadCurrent"), Some("POST"));
        assert_eq!(methods("/v3/admin/core/loader/cluster"), Some("GET, HEAD"));
        for path in [
            "/v1/core/loader/current",
            "/v2/core/loader/reload",
            "/v2/core/loader/",
        ] {
            assert_eq!(Call::of(path), None, "{path}");
        }
    }

    #[test]
    fn an_address_needs_a_port() {
        assert_eq!(target("10.9.8.7:8848").as_deref(), Some("10.9.8.7:8848"));
        assert_eq!(target("10.9.8.7"), None);
    }
}
