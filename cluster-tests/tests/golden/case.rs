//! One recorded case, in a form in which all files look alike: what to send, and the answer as one JSON value.
//!
//! The answer of a call over HTTP and of a unary call is `{"response": {...}}`. What arrives on a stream is
//! `{"received": {"0": {...}, "1": {...}}}`: an object instead of an array, so that a message that is missing or too
//! many is one difference and does not shift the others. Pointers start at the answer in every file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// Files that are replayed. Those of the third generation of the HTTP API come from another release.
pub(crate) const FILES: [&str; 28] = [
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
];

/// The release that a file was recorded from.
pub(crate) fn release(file: &str) -> &'static str {
    if file.starts_with("http_v3_") {
        "nacos-3.0.3"
    } else {
        "nacos-2.5.1"
    }
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
    let path = folder().join(release(file)).join(format!("{file}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Value::Array(cases) = serde_json::from_str(&text).with_context(|| format!("{file} is not JSON"))?
    else {
        bail!("{file} is not an array");
    };
    let cases: Vec<Case> = cases
        .iter()
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
const KNOWN: [&str; 13] = [
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
];

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
    // HTTP files have no `call`, and their pointers start at the body.
    let (call, base) = match raw["call"].as_str() {
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
    let answer = match &call {
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
    let mut volatile = pointers("volatile");
    // Pages that the recorder did not keep.
    if answer
        .pointer("/response/body")
        .and_then(Value::as_str)
        .is_some_and(|b| b.ends_with("not kept)"))
    {
        volatile.push("/response/body".into());
    }
    Ok(Case {
        name,
        call,
        request: raw["request"].clone(),
        answer,
        volatile,
        unordered: pointers("unordered"),
        wait: millis("wait_ms"),
    })
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
                23, 28, 18, 24, 34
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
