//! One recorded case, in a form in which all files look alike: what to send, and the answer as one JSON value.
//!
//! The answer of a call over HTTP and of a unary call is `{"response": {...}}`. What arrives on a stream is
//! `{"received": {"0": {...}, "1": {...}}}`: an object instead of an array, so that a message that is missing or too
//! many is one difference and does not shift the others. Pointers start at the answer in every file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::udp;

/// Files that are replayed. Those of the third generation of the HTTP API come from another release, and so do those
/// whose name says so, as there are two of them.
pub(crate) const FILES: [&str; 38] = [
    "grpc_connect",
    "grpc_naming",
    "grpc_push",
    "grpc_detection",
    "grpc_loader",
    "http_v1_instance",
    "http_v1_instance_errors",
    "http_v1_beat",
    "http_v1_expiry",
    "http_v1_metadata_batch",
    "http_v1_service",
    "http_v1_catalog",
    "http_v1_operator",
    "http_v1_console_core",
    "http_v2_instance",
    "http_v2_instance_errors",
    "http_v2_service",
    "http_v2_client",
    "http_v2_operator",
    "http_v2_console_core",
    "http_v3_client_instance",
    "http_v3_admin_instance",
    "http_v3_admin_service",
    "http_v3_admin_ops",
    "http_v3_admin_core",
    "http_v3_console",
    "http_v3_server_old_apis",
    "http_cluster_of_three",
    "http_v1_protect_threshold",
    "http_v1_server_down",
    "http_v1_persistent",
    "udp_push",
    "auth",
    "3.0.3/grpc_connect",
    "3.0.3/grpc_naming",
    "3.0.3/grpc_push",
    "3.0.3/auth",
    "3.0.3/auth_defaults",
];

/// How a file of the later release is told from one of the same name.
const LATER_RELEASE: &str = "3.0.3/";

/// True for files that were recorded from 3.0.3, false for those from 2.5.1.
pub(crate) fn is_later_release(file: &str) -> bool {
    file.starts_with("http_v3_") || file.starts_with(LATER_RELEASE)
}

/// The name of a file without its release.
pub(crate) fn script(file: &str) -> &str {
    file.strip_prefix(LATER_RELEASE).unwrap_or(file)
}

/// What a case does.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// One HTTP request.
    Http,
    /// One unary call on a connection.
    Unary {
        /// Letter of the connection.
        connection: String,
    },
    /// Messages sent on the stream of a connection, then a wait for what arrives.
    Stream {
        /// Letter of the connection.
        connection: String,
        /// Messages to send.
        sent: Vec<Value>,
        /// How long the recorder listened.
        waited: Duration,
    },
    /// Datagrams: what came, maybe after a request.
    Udp {
        /// How long the recorder listened.
        listened: Duration,
        /// The clients that listened, by what they called themselves, in the order of their ports.
        agents: Vec<Value>,
    },
    /// A table of acknowledgements of datagrams, each tried on a port of its own.
    Acks(Vec<Value>),
}

/// A recorded case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Name, unique in its file.
    pub(crate) name: String,
    /// What it does.
    pub(crate) call: Call,
    /// The request of an HTTP or unary call.
    pub(crate) request: Value,
    /// The recorded answer.
    pub(crate) answer: Value,
    /// Pointers into the answer whose values differ from run to run.
    pub(crate) volatile: Vec<String>,
    /// Pointers of arrays whose order means nothing.
    pub(crate) unordered: Vec<String>,
    /// A wait that is part of the case.
    pub(crate) wait: Duration,
}

/// Folder of the recordings and of the list of differences.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// The cases of a file, in order.
///
/// # Errors
/// The file cannot be read or has a form that is not known.
pub(crate) fn load(file: &str) -> Result<Vec<Case>> {
    let release = if is_later_release(file) {
        "nacos-3.0.3"
    } else {
        "nacos-2.5.1"
    };
    let path = folder().join(release).join(format!("{}.json", script(file)));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Value::Array(cases) = serde_json::from_str(&text).with_context(|| format!("{file} is not JSON"))?
    else {
        bail!("{file} is not an array");
    };
    let cases: Vec<Case> = cases
        .iter()
        .filter(|raw| raw[MEASURED].is_null())
        .map(parse)
        .collect::<Result<_>>()
        .with_context(|| format!("in {file}"))?;
    for (i, case) in cases.iter().enumerate() {
        if cases.iter().take(i).any(|other| other.name == case.name) {
            bail!("{file}: two cases are called {:?}", case.name);
        }
    }
    Ok(cases)
}

/// Fields of a case, of its request and of its response that are understood: another one stops the replay.
const KNOWN: [&str; 19] = [
    "name",
    "conn",
    "call",
    "request",
    "response",
    "sent",
    "received",
    "waited_ms",
    "wait_ms",
    "settle_ms",
    "volatile",
    "unordered",
    "note",
    "listened_ms",
    "datagrams",
    "user_agents",
    "acks",
    "token",
    "volatile_status",
];

/// In a case that only tells what the recorder measured: there is nothing to send.
const MEASURED: &str = "last_datagram_s";

fn parse(raw: &Value) -> Result<Case> {
    let name = raw["name"].as_str().context("a case without a name")?.to_owned();
    let fields = raw.as_object().context("a case is not an object")?;
    if let Some(unknown) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        bail!("{name}: field {unknown} is not known");
    }
    let millis = |field: &str| Duration::from_millis(raw[field].as_u64().unwrap_or(0));
    let connection = || {
        raw["conn"]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("{name}: no connection"))
    };
    // HTTP files have no `call`, and their pointers start at the body; those of the file of datagrams at the case.
    let (call, base) = match raw["call"].as_str() {
        None if raw["acks"].is_array() => (Call::Acks(list(raw, "acks")), ""),
        None if raw["listened_ms"].is_u64() => {
            let (listened, agents) = (millis("listened_ms"), list(raw, "user_agents"));
            (Call::Udp { listened, agents }, "")
        }
        None if points_at_the_case(raw) => (Call::Http, ""),
        None => (Call::Http, "/response/body"),
        Some("http") => (Call::Http, ""),
        Some("unary") => (
            Call::Unary {
                connection: connection()?,
            },
            "",
        ),
        Some("stream") => {
            let sent = raw["sent"]
                .as_array()
                .with_context(|| format!("{name}: nothing sent"))?
                .clone();
            (
                Call::Stream {
                    connection: connection()?,
                    sent,
                    waited: millis("waited_ms"),
                },
                "",
            )
        }
        Some(other) => bail!("{name}: call {other} is not known"),
    };
    let pointers = |field: &str| -> Vec<String> {
        let list = raw[field].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .filter_map(Value::as_str)
            .map(|pointer| format!("{base}{pointer}"))
            .collect()
    };
    let mut volatile = pointers("volatile");
    let mut unordered = pointers("unordered");
    if points_at_the_case(raw) {
        // Nacos keeps hosts in hash maps here as everywhere; only the datagrams are marked so.
        unordered.push("/response/body/hosts".into());
        unordered.push("/response/body/data/hosts".into());
    }
    if name.starts_with(udp::AGEING) {
        volatile.push("/response/body/hosts".into());
    }
    let answer = match &call {
        Call::Acks(table) => json!({ "acks": numbered(table) }),
        Call::Udp { agents, .. } => {
            let mut answer = Map::new();
            if raw["response"].is_object() {
                answer.insert("response".into(), raw["response"].clone());
            }
            if agents.is_empty() {
                let datagrams = udp::recorded(raw, &mut volatile, &mut unordered);
                answer.insert("received".into(), numbered(&datagrams));
            } else {
                answer.insert("user_agents".into(), numbered(agents));
            }
            Value::Object(answer)
        }
        Call::Stream { .. } => {
            let messages = raw["received"]
                .as_array()
                .with_context(|| format!("{name}: nothing received"))?;
            json!({ "received": numbered(messages) })
        }
        _ => {
            let mut response = raw["response"].clone();
            // Shows how keys were ordered, and a key that comes twice: neither is compared.
            if let Some(response) = response.as_object_mut() {
                response.remove("body_raw");
            }
            json!({ "response": response })
        }
    };
    // Pages that the recorder did not keep.
    if answer
        .pointer("/response/body")
        .and_then(Value::as_str)
        .is_some_and(|b| b.ends_with("not kept)") || b == "<page>")
    {
        volatile.push("/response/body".into());
    }
    if raw["volatile_status"] == true {
        volatile.extend(["/response/status".into(), "/response/content_type".into()]);
    }
    Ok(Case {
        name,
        call,
        request: raw["request"].clone(),
        answer,
        volatile,
        unordered,
        wait: millis("wait_ms"),
    })
}

fn list(raw: &Value, field: &str) -> Vec<Value> {
    raw[field].as_array().cloned().unwrap_or_default()
}

/// True in the file of datagrams, also for its cases without any.
fn points_at_the_case(raw: &Value) -> bool {
    list(raw, "volatile")
        .iter()
        .filter_map(Value::as_str)
        .any(|pointer| pointer.starts_with("/response/"))
}

/// An array as an object whose keys are the positions.
pub(crate) fn numbered(items: &[Value]) -> Value {
    Value::Object(
        items
            .iter()
            .enumerate()
            .map(|(i, item)| (i.to_string(), item.clone()))
            .collect::<Map<_, _>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_whole() {
        let counts: Vec<usize> = FILES.iter().map(|file| load(file).unwrap().len()).collect();
        assert_eq!(
            counts,
            [
                55, 120, 68, 5, 65, 145, 130, 35, 12, 28, 65, 38, 45, 63, 55, 61, 37, 18, 20, 45, 30, 28, 29,
                23, 28, 18, 24, 34, 70, 19, 53, 155, 544, 49, 120, 60, 628, 82
            ]
        );
    }

    #[test]
    fn pointers_of_http_files_start_at_the_body() {
        let case = parse(
            &json!({"name": "n", "request": {}, "response": {"status": 200, "body": {}}, "volatile": ["/a", ""]}),
        );
        assert_eq!(case.unwrap().volatile, ["/response/body/a", "/response/body"]);
    }

    #[test]
    fn a_field_that_is_not_known_stops_the_replay() {
        assert!(parse(&json!({"name": "n", "request": {}, "response": {}, "retries": 3})).is_err());
    }
}
