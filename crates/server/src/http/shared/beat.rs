//! The sign of life of clients that register over HTTP: that of 1.x, and the light one of v3.

use http::StatusCode;
use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::{Instance, limits};
use rollcall_node::error::NodeError;
use rollcall_node::request::{HttpWrite, RowTarget, WriteDone};
use smol_str::SmolStr;

use crate::error::{Code, HttpFailure, HttpForm};
use crate::grpc::lenient::{Double, Int, Pairs, Text, object};
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::check::Checked;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::instance;
use crate::json;

object! {
    /// The JSON of a full beat. A weight that is missing is 0, as for the servers this comes from.
    BeatInfo<'a> {
        /// Address.
        ip ("ip"): Text<'a> = Text(None),
        /// Port.
        port ("port"): Int = Int(0),
        /// Cluster; counts before that of the parameters.
        cluster ("cluster"): Text<'a> = Text(None),
        /// Weight.
        weight ("weight"): Double = Double(0.0),
        /// Text pairs.
        metadata ("metadata"): Pairs = Pairs::default(),
    }
}

/// PUT: renews a row; a full beat of an unknown row registers it, a light one is told so by its code.
///
/// # Errors
/// 400 for what is missing or refused; what the node says.
pub async fn beat(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?.clone();
    let (target, full) = match params.get("beat") {
        None => (light(params, &checked), None),
        Some(json) => {
            let (target, instance) = full(app, params, &checked, json)?;
            (target, Some(instance))
        }
    };
    let done = app
        .write(HttpWrite::Beat {
            service,
            target,
            full,
        })
        .await?;
    Ok(answer(done, app.exec().node().heeded().has_light_beat))
}

/// POST of a v3 client with `heartBeat=true`: renews a row. An unknown one is no failure, but the client is told by the
/// code, and registers again.
///
/// # Errors
/// 400 for what is missing or refused; what the node says.
pub async fn light_beat(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, target) = instance::row(app, params)?;
    let full = None;
    match app
        .write(HttpWrite::Beat {
            service,
            target,
            full,
        })
        .await?
    {
        WriteDone::BeatUnknown { .. } => {
            let code = Code::NO_INSTANCE;
            Err(HttpFailure::new(HttpForm::Message, StatusCode::OK, code.message).with(code))
        }
        WriteDone::BeatKnown { .. } | WriteDone::Ok => Ok(Reply::done(params.api())),
    }
}

fn light(params: &Params, checked: &Checked) -> RowTarget {
    RowTarget {
        ip: SmolStr::new(params.get("ip").unwrap_or_default()),
        port: checked.port.unwrap_or_default(),
        cluster: params.get("clusterName").map(SmolStr::new),
    }
}

fn full(
    app: &HttpApp,
    params: &Params,
    checked: &Checked,
    json: &str,
) -> Result<(RowTarget, Instance), HttpFailure> {
    let info: BeatInfo<'_> = serde_json::from_str(json)
        .map_err(|error| HttpFailure::invalid(format!("the beat cannot be read: {error}")))?;
    let mut target = light(params, checked);
    let (ip, cluster) = (info.ip.as_str().trim(), info.cluster.as_str().trim());
    limits::check_cluster(cluster)?;
    limits::check_ip(ip)?;
    let port = limits::check_port(i64::from(info.port.0))?;
    if !ip.is_empty() {
        target.ip = SmolStr::new(ip);
        target.port = port;
    }
    if !cluster.is_empty() {
        target.cluster = Some(SmolStr::new(cluster));
    }
    if target.ip.is_empty() {
        return Err(HttpFailure::missing(params.lack(), "ip", "String")); // A row without an address helps nobody.
    }
    let metadata = info.metadata.into_metadata();
    limits::check_metadata(&metadata, app.metadata_limit())?;
    limits::check_weight(info.weight.0).map_err(NodeError::from)?;
    let instance = Instance {
        ip: target.ip.clone(),
        port: target.port,
        cluster: target
            .cluster
            .clone()
            .unwrap_or(SmolStr::new_static(DEFAULT_CLUSTER)),
        weight: info.weight.0,
        enabled: true,
        healthy: true,
        metadata,
        instance_id: None,
    };
    limits::check_instance(&instance).map_err(NodeError::from)?;
    Ok((target, instance))
}

fn answer(done: WriteDone, has_light_beat: bool) -> Reply {
    let (interval, code) = match done {
        WriteDone::BeatKnown { interval } => (interval, "10200"),
        WriteDone::BeatUnknown { interval } => (interval, "20404"),
        WriteDone::Ok => return Reply::done(Api::V1), // Not an answer to a beat.
    };
    let mut out = b"{\"clientBeatInterval\":".to_vec();
    json::unsigned(&mut out, interval.0);
    out.extend_from_slice(b",\"code\":");
    out.extend_from_slice(code.as_bytes());
    json::member(&mut out, "lightBeatEnabled");
    json::boolean(&mut out, has_light_beat);
    out.push(b'}');
    Reply::json(out)
}

#[cfg(test)]
mod tests {
    use rollcall_core::Millis;

    use super::*;

    fn text(reply: Reply) -> String {
        match reply {
            Reply::Json(json) => String::from_utf8_lossy(&json).into_owned(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_code_says_whether_the_row_is_known() {
        let interval = Millis(5000);
        assert_eq!(
            text(answer(WriteDone::BeatKnown { interval }, true)),
            r#"{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}"#
        );
        let unknown = text(answer(WriteDone::BeatUnknown { interval }, false));
        assert!(unknown.ends_with(r#""code":20404,"lightBeatEnabled":false}"#));
    }

    #[test]
    fn a_beat_skips_what_it_does_not_know() {
        let info: BeatInfo<'_> =
            serde_json::from_str(r#"{"ip":"1.1.1.1","port":"80","zzz":1,"period":5000}"#).unwrap_or_default();
        assert_eq!(
            (info.ip.as_str(), info.port.0, info.weight.0),
            ("1.1.1.1", 80, 0.0)
        );
    }
}
