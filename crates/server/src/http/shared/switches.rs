//! Switches: the object that shows them all, and setting one. Only some have an effect (`docs/http.md`).

use std::collections::BTreeMap;

use http::StatusCode;
use rollcall_core::model::instance::DEFAULT_BEAT_TIMEOUT;
use rollcall_node::action::Actions;
use rollcall_node::switches::{
    CHECK, CLIENT_BEAT_INTERVAL, DEFAULT_INSTANCE_EPHEMERAL, LIGHT_BEAT_ENABLED, LIMITED_URL_MAP,
    OVERRIDDEN_SERVER_STATUS, PUSH_CACHE_MILLIS, PUSH_ENABLED, ServerStatus,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use smol_str::SmolStr;

use crate::error::{Code, HttpFailure};
use crate::http::api::{Api, Lack};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::udp_poll::{PUSH_VERSIONS, PushVersion};

/// The entry that says from which version on clients of a kind are pushed to.
const PUSH_VERSION: &str = "pushVersion";
/// Longest value, in bytes.
const MAX_VALUE: usize = 1024;

/// What an entry takes.
#[derive(Clone, Copy)]
enum Kind {
    Flag,
    /// Milliseconds, not less than the first, and the text that refuses less.
    Least(u64, &'static str),
    BeatInterval,
    Share,
    List,
    Limits,
    Status,
    /// Bounds and factor of the time between probes, as a JSON object.
    Params,
}

/// The entries with the fields that show them.
const ENTRIES: [(&str, &str, Kind); 23] = [
    ("healthCheckTimes", "checkTimes", Kind::Least(0, "")),
    (
        "distroServerExpiredMillis",
        "distroServerExpiredMillis",
        Kind::Least(0, ""),
    ),
    ("httpHealthParams", "httpHealthParams", Kind::Params),
    ("tcpHealthParams", "tcpHealthParams", Kind::Params),
    ("mysqlHealthParams", "mysqlHealthParams", Kind::Params),
    ("distroThreshold", "distroThreshold", Kind::Share),
    (CLIENT_BEAT_INTERVAL, CLIENT_BEAT_INTERVAL, Kind::BeatInterval),
    (
        PUSH_CACHE_MILLIS,
        "defaultPushCacheMillis",
        Kind::Least(10_000, "min cache time for http or tcp is too small(<10000)"),
    ),
    (
        "defaultCacheMillis",
        "defaultCacheMillis",
        Kind::Least(1_000, "min default cache time  is too small(<1000)"),
    ),
    (
        "serviceStatusSynchronizationPeriodMillis",
        "serviceStatusSynchronizationPeriodMillis",
        Kind::Least(
            5_000,
            "serviceStatusSynchronizationPeriodMillis is too small(<5000)",
        ),
    ),
    (
        "serverStatusSynchronizationPeriodMillis",
        "serverStatusSynchronizationPeriodMillis",
        Kind::Least(
            1_000,
            "serverStatusSynchronizationPeriodMillis is too small(<15000)",
        ),
    ),
    ("masters", "masters", Kind::List),
    (LIMITED_URL_MAP, LIMITED_URL_MAP, Kind::Limits),
    (OVERRIDDEN_SERVER_STATUS, OVERRIDDEN_SERVER_STATUS, Kind::Status),
    ("distro", "distroEnabled", Kind::Flag),
    (CHECK, "healthCheckEnabled", Kind::Flag),
    (
        "autoChangeHealthCheckEnabled",
        "autoChangeHealthCheckEnabled",
        Kind::Flag,
    ),
    (PUSH_ENABLED, PUSH_ENABLED, Kind::Flag),
    ("disableAddIP", "disableAddIP", Kind::Flag),
    ("sendBeatOnly", "sendBeatOnly", Kind::Flag),
    ("enableStandalone", "enableStandalone", Kind::Flag),
    (DEFAULT_INSTANCE_EPHEMERAL, DEFAULT_INSTANCE_EPHEMERAL, Kind::Flag),
    (LIGHT_BEAT_ENABLED, LIGHT_BEAT_ENABLED, Kind::Flag),
];

fn entry(name: &str) -> Option<(&'static str, &'static str, Kind)> {
    ENTRIES.into_iter().find(|(entry, _, _)| *entry == name)
}

/// The value as it is kept, if the entry takes it.
fn read(kind: Kind, value: &str) -> Result<String, HttpFailure> {
    if value.len() > MAX_VALUE {
        return Err(HttpFailure::invalid(format!(
            "the value is above {MAX_VALUE} bytes"
        )));
    }
    let not_a_number = || {
        let text = format!("For input string: \"{value}\"");
        HttpFailure::text(StatusCode::INTERNAL_SERVER_ERROR, text).with(Code::SERVER)
    };
    let whole = || value.parse::<u64>().map_err(|_| not_a_number());
    match kind {
        Kind::Flag => {
            let is_among = |words: [&str; 6]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
            if is_among(["true", "yes", "on", "y", "t", "1"]) {
                return Ok("true".to_owned());
            }
            if is_among(["false", "no", "off", "n", "f", "0"]) {
                return Ok("false".to_owned());
            }
            // Nacos takes anything else for off, so a slip of the finger stops all pushes.
            let text = format!("the value is neither true nor false: {value}");
            Err(HttpFailure::invalid(text))
        }
        Kind::Least(least, refusal) => {
            let number = whole()?;
            if number < least {
                return Err(HttpFailure::invalid(refusal));
            }
            Ok(number.to_string())
        }
        Kind::BeatInterval => {
            let (number, limit) = (whole()?, DEFAULT_BEAT_TIMEOUT.0);
            if number == 0 || number >= limit {
                let text = format!(
                    "clientBeatInterval must be above 0 and below {limit}, where clients count as silent"
                );
                return Err(HttpFailure::invalid(text));
            }
            Ok(number.to_string())
        }
        Kind::Share => {
            let share: f64 = value.parse().map_err(|_| not_a_number())?;
            if share > 0.0 && share.is_finite() {
                return Ok(share.to_string());
            }
            let text = format!("distroThreshold can not be zero or negative: {share:?}");
            Err(HttpFailure::invalid(text))
        }
        Kind::List => Ok(value.to_owned()),
        Kind::Limits => {
            for limit in value.split(',').filter(|limit| !limit.is_empty()) {
                let is_status = |status: &str| status.parse().is_ok_and(|s: u16| (100..1000).contains(&s));
                let parts = limit.rsplit_once(':');
                if !parts.is_some_and(|(path, status)| path.starts_with('/') && is_status(status)) {
                    return Err(HttpFailure::invalid(format!("illegal entry: {limit}")));
                }
            }
            Ok(value.to_owned())
        }
        Kind::Status => {
            let status = value.to_ascii_uppercase();
            match status.as_str() {
                "UP" => Ok(status),
                "" | "NULL" => Ok(String::new()),
                name if ServerStatus::of(name).is_some() => Ok(status),
                _ => Err(HttpFailure::invalid(format!("no such status: {value}"))),
            }
        }
        Kind::Params => {
            let refuse = || HttpFailure::invalid("json param invalid.");
            let params: HealthParams = serde_json::from_str(value).map_err(|_| refuse())?;
            let is_in_bounds =
                params.min >= 500 && params.max >= 3_000 && (0.0..=1.0).contains(&params.factor);
            if !is_in_bounds {
                return Err(refuse());
            }
            Ok(value.to_owned())
        }
    }
}

/// A kept value as it is shown.
fn shown(kind: Kind, value: &str) -> Value {
    match kind {
        Kind::Flag => Value::Bool(value == "true"),
        Kind::Least(..) | Kind::BeatInterval => value.parse::<u64>().map_or(Value::Null, Value::from),
        Kind::Share => value.parse::<f64>().map_or(Value::Null, Value::from),
        Kind::List => value.split(',').filter(|item| !item.is_empty()).collect(),
        Kind::Limits => {
            let limits = value.split(',').filter_map(|limit| limit.rsplit_once(':'));
            let limits = limits.map(|(path, status)| (path.to_owned(), json!(status.parse::<u16>().ok())));
            Value::Object(limits.collect())
        }
        Kind::Status if value.is_empty() => Value::Null,
        Kind::Status => Value::from(value),
        Kind::Params => serde_json::from_str(value).unwrap_or_default(),
    }
}

/// How often instances are probed.
#[derive(Deserialize)]
struct HealthParams {
    max: u32,
    min: u32,
    factor: f64,
}

/// The kind of clients and the version in a value such as `java:1.4.0`.
fn push_version(value: &str) -> Result<(PushVersion, &str), HttpFailure> {
    let (kind, version) = value.split_once(':').unwrap_or((value, ""));
    let parts: Vec<_> = version.split('.').collect();
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit()) && part.parse::<u32>().is_ok();
    if parts.len() != 3 || !parts.iter().all(is_number) {
        let text = r"illegal version, must match: [0-9]+\.[0-9]+\.[0-9]+";
        return Err(HttpFailure::invalid(text));
    }
    let found = PUSH_VERSIONS.into_iter().find(|known| known.kind == kind);
    let found = found.ok_or_else(|| HttpFailure::invalid(format!("unsupported client type: {kind}")))?;
    Ok((found, version))
}

fn object(api: Api, beat_interval: u64, set: &BTreeMap<SmolStr, SmolStr>) -> Value {
    let mut all = json!({
        "masters": null,
        "adWeightMap": {},
        "defaultPushCacheMillis": 10_000,
        "clientBeatInterval": beat_interval,
        "defaultCacheMillis": 3_000,
        "distroThreshold": 0.7,
        "healthCheckEnabled": true,
        "autoChangeHealthCheckEnabled": true,
        "distroEnabled": true,
        "enableStandalone": true,
        "pushEnabled": true,
        "checkTimes": 3,
        "httpHealthParams": {"max": 5_000, "min": 500, "factor": 0.85},
        "tcpHealthParams": {"max": 5_000, "min": 1_000, "factor": 0.75},
        "mysqlHealthParams": {"max": 3_000, "min": 2_000, "factor": 0.65},
        "incrementalList": [],
        "serverStatusSynchronizationPeriodMillis": 2_000,
        "serviceStatusSynchronizationPeriodMillis": 5_000,
        "disableAddIP": false,
        "sendBeatOnly": false,
        "lightBeatEnabled": true,
        "limitedUrlMap": {},
        "distroServerExpiredMillis": 10_000,
        "enableAuthentication": false,
        "overriddenServerStatus": null,
        "defaultInstanceEphemeral": true,
        "healthCheckWhiteList": [],
        "name": "00-00---000-NACOS_SWITCH_DOMAIN-000---00-00",
        "checksum": null,
    });
    let Some(fields) = all.as_object_mut() else {
        return all;
    };
    write_versions(fields, api, set);
    for (name, value) in set {
        if let Some((_, field, kind)) = entry(name) {
            fields.insert(field.to_owned(), shown(kind, value));
        }
    }
    all
}

/// The oldest clients that are pushed to.
fn write_versions(fields: &mut Map<String, Value>, api: Api, set: &BTreeMap<SmolStr, SmolStr>) {
    for version in PUSH_VERSIONS {
        let name = match api {
            Api::V1 | Api::V2 => version.field,
            Api::V3 => version.v3_field,
        };
        let first = set.get(version.field).map_or(version.default, SmolStr::as_str);
        fields.insert(name.to_owned(), first.into());
    }
}

/// GET: all switches as this node heeds them.
///
/// # Errors
/// None.
pub fn get(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let node = app.exec().node();
    let set = node.switches();
    let all = object(params.api(), node.beat_interval().0, &set);
    Ok(Reply::value(params.api(), &all))
}

/// PUT: gives `entry` a `value`, with `debug=true` on this node only. An unknown entry is no failure.
///
/// # Errors
/// 400 for what is missing or refused, 500 in v2 and v3 for what is no number.
pub fn set(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let lack = match params.api() {
        Api::V1 => Lack::Parameter,
        Api::V2 | Api::V3 => params.lack(),
    };
    let given = |name: &str| match params.get(name) {
        None if !params.has(name) => Err(HttpFailure::missing(lack, name, "String")),
        value => Ok(value.unwrap_or_default()),
    };
    let (name, value) = (given("entry")?, given("value")?);
    let is_local = params.choice("debug", false)?;
    let kept = match entry(name) {
        _ if name == PUSH_VERSION => {
            Some(push_version(value).map(|(version, first)| (version.field, first.to_owned())))
        }
        Some((name, _, kind)) => Some(read(kind, value).map(|value| (name, value))),
        None => None,
    };
    if let Some(kept) = kept {
        let (name, value) = kept.map_err(|failure| match params.api() {
            Api::V1 => HttpFailure {
                status: StatusCode::BAD_REQUEST,
                ..failure
            },
            Api::V2 | Api::V3 => failure,
        })?;
        let exec = app.exec();
        let mut actions = Actions::default();
        exec.node()
            .set_switch(name, value.into(), is_local, exec.now(), &mut actions)?;
        exec.run(actions);
    }
    Ok(Reply::done(params.api()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_takes_what_fits_and_shows_it() {
        for (name, value, field, is) in [
            ("check", "no", "healthCheckEnabled", json!(false)),
            (
                "pushCacheMillis",
                "12000",
                "defaultPushCacheMillis",
                json!(12_000),
            ),
            ("distroThreshold", "2", "distroThreshold", json!(2.0)),
            ("masters", "a,b", "masters", json!(["a", "b"])),
            ("limitedUrlMap", "/x:403", "limitedUrlMap", json!({"/x": 403})),
            ("limitedUrlMap", "", "limitedUrlMap", json!({})),
            (
                "overriddenServerStatus",
                "down",
                "overriddenServerStatus",
                json!("DOWN"),
            ),
        ] {
            let kept = read(entry(name).unwrap().2, value).unwrap();
            let set = BTreeMap::from([(SmolStr::new(name), SmolStr::new(kept))]);
            assert_eq!(object(Api::V1, 5_000, &set)[field], is, "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (name, value) in [
            ("clientBeatInterval", "abc"),
            ("clientBeatInterval", "15000"),
            ("pushCacheMillis", "9999"),
            ("distroThreshold", "0"),
            ("distroThreshold", "NaN"),
            ("limitedUrlMap", "x"),
            ("overriddenServerStatus", "zzz"),
            ("tcpHealthParams", "{}"),
            ("tcpHealthParams", r#"{"max":5000,"min":1,"factor":0.5}"#),
        ] {
            assert!(read(entry(name).unwrap().2, value).is_err(), "{name}={value}");
        }
        assert!(entry("defaultPushCacheMillis").is_none());
        let refused = |value: &str| push_version(value).map(|_| ()).unwrap_err().text;
        assert_eq!(refused("zzz:1.0.0"), "unsupported client type: zzz");
        for value in [
            "java:1.0",
            "java",
            "java:1.x.0",
            "java:1..0",
            "java:1.0.99999999999",
        ] {
            assert!(refused(value).starts_with("illegal version"), "{value}");
        }
    }
}
