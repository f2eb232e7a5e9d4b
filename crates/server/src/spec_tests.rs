//! What requests name, over HTTP and gRPC, against slow models written out from `spec/validation.md`: names (§1, §2,
//! §4), clusters (§3, §4, §5), addresses, ports, weights (§4, §5), instance ids (§6) and metadata texts (§4, §11).
//!
//! The models share no code with what they check. A failing input is printed and kept in `proptest-regressions`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use rollcall_core::{Instance, ServiceKey, limits};
use serde_json::{Value, json};

use crate::error::HttpFailure;
use crate::grpc::handler::Names;
use crate::grpc::handler::wire_instance::WireInstance;
use crate::grpc::lenient::{Text, parse};
use crate::http::api::{Api, Lack};
use crate::http::params::{BodyKind, Params, parse_metadata};

const METADATA_MAX: usize = 1024;

// === texts ===

/// Texts in which every rule has something to find, mostly short, some about as long as a limit.
fn text() -> impl Strategy<Value = String> {
    let letter = proptest::sample::select(vec![
        "a", "B", "7", "-", "_", ".", ":", "@", "@@", ",", "#", "/", "{", "=", " ", "中", "龥", "龦", "ü",
        "‐", "😀",
    ]);
    let short = proptest::collection::vec(letter.clone(), 0..7).prop_map(|letters| letters.concat());
    let plain = "[a-zA-Z0-9-]{1,6}";
    let long =
        (proptest::sample::select(vec![64, 128, 512]), -2i64..3, letter).prop_map(|(limit, off, letter)| {
            // In units of UTF-16, which is what the limits count.
            let units = letter.encode_utf16().count() as i64;
            let n_more = (limit + off - units).max(0) as usize;
            format!("{}{letter}", "x".repeat(n_more))
        });
    prop_oneof![4 => short, 4 => plain, 2 => long]
}

/// A parameter that is absent, or has this value.
fn maybe(value: impl Strategy<Value = String>) -> impl Strategy<Value = Option<String>> {
    proptest::option::weighted(0.8, value)
}

fn grouped() -> impl Strategy<Value = String> {
    prop_oneof![
        text(),
        (text(), text()).prop_map(|(group, name)| format!("{group}@@{name}"))
    ]
}

// === the models ===

fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c == ' ')
}

fn is_cjk(c: char) -> bool {
    (0x4E00..=0x9FA5).contains(&(c as u32))
}

fn is_white(c: char) -> bool {
    [' ', '\t', '\n', '\u{0B}', '\u{0C}', '\r'].contains(&c)
}

fn all_of(text: &str, more: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

/// §4: the rules, each by the name under which a refusal names it. A blank value passes each of them.
fn passes(param: &str, value: &str) -> bool {
    if is_blank(value) {
        return true;
    }
    let (limit, is_legal) = match param {
        "namespaceId/tenant" => (64, all_of(value, "_-")),
        "group" => (128, all_of(value, "-_:.")),
        "cluster" => (64, all_of(value, "-_")),
        "ip" => (128, !value.chars().any(|c| is_cjk(c) || is_white(c))),
        "serviceName" => {
            let chars: Vec<char> = value.chars().collect();
            let mut is_legal = chars[0] != '@';
            for (at, &c) in chars.iter().enumerate().skip(1) {
                let is_pair = c == '@' && chars.get(at + 1) == Some(&'@');
                is_legal &= !is_pair && !is_cjk(c) && !is_white(c);
            }
            (512, is_legal)
        }
        other => panic!("no rule for {other}"),
    };
    units(value) <= limit && is_legal
}

/// What a request names, or the parameter for which it is refused.
type Named = Result<Option<(String, String, String)>, &'static str>;

/// §2, the filter of v1 and what later generations are to do, and §4: namespace, group and name.
fn http_model(namespace: &Option<String>, group: &Option<String>, name: &Option<String>) -> Named {
    let given = |param: &Option<String>, default: &str| match param {
        Some(value) if !is_blank(value) => value.trim_matches(' ').to_owned(),
        _ => default.to_owned(),
    };
    let name = given(name, "");
    let mut parts = None;
    if !name.is_empty() {
        parts = Some(match name.contains("@@") {
            true => {
                // As a split that drops empty parts at the end; the checker then splits once.
                let mut split: Vec<&str> = name.split("@@").collect();
                while split.last().is_some_and(|part| part.is_empty()) {
                    split.pop();
                }
                if split.len() < 2 || split[0].is_empty() {
                    return Err("serviceName");
                }
                let (group, name) = name.split_once("@@").unwrap();
                (group.to_owned(), name.to_owned())
            }
            false => (given(group, "DEFAULT_GROUP"), name),
        });
    }
    let namespace = given(namespace, "public");
    let group = match &parts {
        Some((group, _)) => group.clone(),
        None => given(group, "DEFAULT_GROUP"),
    };
    if !passes("namespaceId/tenant", &namespace) {
        return Err("namespaceId/tenant");
    }
    if let Some((_, name)) = &parts
        && !passes("serviceName", name)
    {
        return Err("serviceName");
    }
    if !passes("group", &group) {
        return Err("group");
    }
    Ok(parts.map(|(group, name)| (namespace, group, name)))
}

/// §1, §2, §4 and KF-022: a name that repeats its group is the plain name; a blank namespace is `public`.
fn grpc_model(namespace: &Option<String>, group: &Option<String>, name: &Option<String>) -> Named {
    let [namespace, group, name] = [namespace, group, name].map(|text| text.clone().unwrap_or_default());
    let prefix = format!("{group}@@");
    let plain = match name.len() > prefix.len() && name.starts_with(&prefix) && !group.is_empty() {
        true => name[prefix.len()..].to_owned(),
        false => name,
    };
    for (param, value) in [
        ("namespaceId/tenant", &namespace),
        ("serviceName", &plain),
        ("group", &group),
    ] {
        if !passes(param, value) {
            return Err(param);
        }
    }
    if is_blank(&plain) || is_blank(&group) {
        return Ok(None);
    }
    let namespace = if is_blank(&namespace) {
        "public".to_owned()
    } else {
        namespace
    };
    Ok(Some((namespace, group, plain)))
}

/// §11: a JSON object of scalars, or pairs; `None` for what is neither.
fn pairs_model(text: &str) -> Option<BTreeMap<String, String>> {
    let mut pieces: Vec<&str> = text.split(',').collect();
    // Commas at the end are ignored.
    while pieces.last().is_some_and(|piece| piece.is_empty()) {
        pieces.pop();
    }
    if pieces.is_empty() {
        return None;
    }
    let mut pairs = BTreeMap::new();
    for piece in pieces {
        let halves: Vec<&str> = piece.split('=').collect();
        let [key, value] = halves[..] else { return None };
        if value.is_empty() {
            return None;
        }
        pairs.insert(key.to_owned(), value.to_owned());
    }
    Some(pairs)
}

// === ours ===

/// A form of these parameters, each byte escaped.
fn form(pairs: &[(&str, &Option<String>)]) -> String {
    let escaped = |text: &str| {
        text.bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect::<String>()
    };
    let given = pairs
        .iter()
        .filter_map(|(key, value)| Some((key, value.as_ref()?)));
    let pairs = given.map(|(key, value)| format!("{key}={}", escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}

fn http(pairs: &[(&str, &Option<String>)], api: Api) -> Params {
    let body = Bytes::from(form(pairs));
    Params::read("", &body, &BodyKind::Form)
        .unwrap()
        .of(api, Lack::default())
}

/// The parameter that a refusal names.
fn refused(failure: &HttpFailure) -> &str {
    assert_eq!(failure.status.as_u16(), 400, "{failure:?}");
    let (_, rest) = failure.text.split_once("Param '").unwrap();
    rest.split_once('\'').unwrap().0
}

fn triple(key: &ServiceKey) -> (String, String, String) {
    let parts = [key.namespace(), key.group(), key.name()].map(str::to_owned);
    parts.into()
}

fn wire(text: &Option<String>) -> Text<'_> {
    Text(text.as_deref().map(Cow::Borrowed))
}

proptest! {
    /// Names over HTTP mean the service that the rules say, in each generation, or are refused by the first parameter
    /// that breaks one.
    /// KF-025: names at their limits work on every node, above them they are refused.
    #[test]
    fn http_names_mean_what_the_rules_say(
        namespace in maybe(text()), group in maybe(text()), name in maybe(grouped()),
    ) {
        let wanted = http_model(&namespace, &group, &name);
        let pairs = [("namespaceId", &namespace), ("groupName", &group), ("serviceName", &name)];
        for api in [Api::V1, Api::V2, Api::V3] {
            let checked = http(&pairs, api).check(METADATA_MAX);
            let ours = checked.as_ref().map(|checked| checked.service.as_ref().map(triple));
            match (&ours, &wanted) {
                (Err(failure), Err(param)) => prop_assert_eq!(refused(failure), *param),
                (Ok(ours), Ok(wanted)) => prop_assert_eq!(ours, wanted),
                _ => prop_assert!(false, "{:?} is not {:?}", ours, wanted),
            }
        }
    }

    /// The same over gRPC.
    /// KF-022: a grouped name beside its group means the plain name; another group is refused.
    #[test]
    fn grpc_names_mean_what_the_rules_say(
        namespace in maybe(text()), group in maybe(text()), name in maybe(grouped()), repeats in proptest::bool::ANY,
    ) {
        // As a client does that sends the joined name besides the group.
        let name = match (&group, repeats) {
            (Some(group), true) => Some(format!("{group}@@{}", name.unwrap_or_default())),
            _ => name,
        };
        let wanted = grpc_model(&namespace, &group, &name);
        let (namespace, group, service) = (wire(&namespace), wire(&group), wire(&name));
        let names = Names { namespace: &namespace, service: &service, group: &group };
        match (names.check(), &wanted) {
            (Err(violation), Err(param)) => {
                let named = format!("Param '{param}'");
                prop_assert!(violation.to_string().contains(&named));
            }
            (Ok(()), Ok(wanted)) => {
                prop_assert_eq!(names.service().as_ref().map(triple), wanted.clone());
                prop_assert_eq!(names.require_service().is_ok(), wanted.is_some());
            }
            (ours, _) => prop_assert!(false, "{:?} is not {:?}", ours, wanted),
        }
    }

    /// Keys of services are equal and ordered as their parts are, whatever stands in them, and give them back.
    #[test]
    fn keys_give_back_their_parts(a in (text(), text(), text()), b in (text(), text(), text())) {
        let key = |parts: &(String, String, String)| ServiceKey::new(&parts.0, &parts.1, &parts.2);
        let full = |parts: &(String, String, String)| {
            let or = |text: &str, default: &str| {
                if is_blank(text) { default.to_owned() } else { text.to_owned() }
            };
            (or(&parts.0, "public"), or(&parts.1, "DEFAULT_GROUP"), parts.2.clone())
        };
        prop_assert_eq!(triple(&key(&a)), full(&a));
        prop_assert_eq!(key(&a) == key(&b), full(&a) == full(&b));
        let grouped = format!("{}@@{}", full(&a).1, full(&a).2);
        let a = key(&a);
        prop_assert_eq!(a.grouped_name(), grouped.as_str());
    }

    /// A cluster of an instance is one legal name; a list filter is a comma list of them, taken as it is.
    #[test]
    fn clusters_are_one_name_or_a_list_of_them(cluster in text(), list in proptest::collection::vec(text(), 0..4)) {
        let trimmed = cluster.trim_matches(' ');
        let is_legal = is_blank(&cluster) || (units(trimmed) <= 64 && passes("cluster", trimmed));
        let params = http(&[("serviceName", &Some("s".into())), ("clusterName", &Some(cluster.clone()))], Api::V1);
        match params.check(METADATA_MAX) {
            Ok(_) => prop_assert!(is_legal),
            Err(failure) => prop_assert!(!is_legal && refused(&failure) == "cluster"),
        }
        // §5: stricter where it is stored.
        let mut instance = Instance::at("10.0.0.1", 80);
        instance.cluster = trimmed.into();
        prop_assert_eq!(limits::check_instance(&instance).is_ok(), all_of(trimmed, "-"));

        let list = list.join(",");
        let is_legal = list.trim_matches(' ').split(',').all(|one| passes("cluster", one));
        let params = http(&[("serviceName", &Some("s".into())), ("clusters", &Some(list))], Api::V1);
        match params.check_list(METADATA_MAX) {
            Ok(_) => prop_assert!(is_legal),
            Err(failure) => prop_assert!(!is_legal && refused(&failure) == "cluster"),
        }
    }

    /// Addresses are any text without white space and ideographs: names, IPv4, IPv6. Ports are 0 to 65535.
    /// KF-002: ports are 0 to 65535 over both protocols.
    #[test]
    fn addresses_and_ports_follow_their_rules(
        ip in prop_oneof![
            text(),
            any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|ip| ip.to_string()),
        ],
        port in prop_oneof![
            (-10i64..10).prop_map(|port| port.to_string()),
            (65_530i64..65_540).prop_map(|port| port.to_string()),
            any::<i64>().prop_map(|port| port.to_string()),
            text().prop_filter("a number", |text| text.trim().parse::<i64>().is_err()),
        ],
    ) {
        let trimmed = ip.trim_matches(' ');
        let params = http(&[("ip", &Some(ip.clone()))], Api::V1);
        match params.check(METADATA_MAX) {
            Ok(_) => prop_assert!(passes("ip", trimmed)),
            Err(failure) => prop_assert!(!passes("ip", trimmed) && refused(&failure) == "ip"),
        }
        let number = port.parse::<i64>().ok().filter(|port| (0..=65_535).contains(port));
        match http(&[("port", &Some(port.clone()))], Api::V1).check(METADATA_MAX) {
            Ok(checked) => prop_assert_eq!(checked.port.map(i64::from), number),
            Err(failure) => prop_assert!(!is_blank(&port) && number.is_none() && refused(&failure) == "port"),
        }
        // The same over gRPC, where a port is a number of 32 bits.
        if let Ok(port) = port.parse::<i32>() {
            let body = json!({"ip": ip, "port": port}).to_string();
            let wire: WireInstance<'_> = parse(body.as_bytes()).unwrap();
            let is_legal = passes("ip", &ip) && number.is_some();
            prop_assert_eq!(wire.check(METADATA_MAX).ok().map(i64::from), number.filter(|_| is_legal));
        }
    }

    /// Weights over HTTP are 0 to 10000, however the number is written.
    #[test]
    fn weights_follow_their_rule(
        weight in prop_oneof![-1.0..1.0, 9_999.0..10_001.0, any::<f64>(), Just(0.0), Just(10_000.0)],
        written in 0..3,
    ) {
        let text = match written {
            0 => format!("{weight}"),
            1 => format!("{weight:e}"),
            _ => format!("{weight:?}"),
        };
        let is_legal = (0.0..=10_000.0).contains(&weight);
        let params = http(&[("weight", &Some(text.clone()))], Api::V1);
        let read = params.fraction("weight").ok().flatten();
        let ours = read.filter(|weight| limits::check_weight(*weight).is_ok());
        prop_assert_eq!(ours, is_legal.then_some(weight), "{}", text);
    }

    /// Metadata as JSON: texts stay, numbers become texts, null drops its key, the last of a key counts; what is nested
    /// is refused.
    /// KF-031: `k=v,k=v` is metadata too; what fits neither form is refused by name.
    #[test]
    fn metadata_as_json_follow_their_rules(
        pairs in proptest::collection::vec((text(), 0..6, text(), any::<i32>()), 0..5),
    ) {
        let mut wanted = Some(BTreeMap::new());
        let mut written = Vec::new();
        for (key, kind, text, number) in &pairs {
            let value = match kind {
                0 => Value::Null,
                1 => json!(number),
                2 if *number % 4 == 0 => json!({"a": text}),
                3 if *number % 4 == 0 => json!([text]),
                _ => json!(text),
            };
            written.push(format!("{}:{value}", json!(key)));
            match (&value, &mut wanted) {
                (Value::Object(_) | Value::Array(_), _) => wanted = None,
                (Value::Null, Some(wanted)) => _ = wanted.remove(key),
                (Value::String(text), Some(wanted)) => _ = wanted.insert(key.clone(), text.clone()),
                (other, Some(wanted)) => _ = wanted.insert(key.clone(), other.to_string()),
                (_, None) => {}
            }
        }
        let text = format!("{{{}}}", written.join(","));
        let ours = parse_metadata(&text);
        match (&ours, &wanted) {
            (Ok(ours), Some(wanted)) => {
                let ours: BTreeMap<_, _> = ours.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
                prop_assert_eq!(&ours, wanted);
            }
            (Err(failure), None) => prop_assert!(failure.text.ends_with(&text)),
            _ => prop_assert!(false, "{:?} is not {:?}", ours, wanted),
        }
    }

    /// Metadata as pairs, and texts that are neither.
    /// KF-031: `k=v,k=v` is metadata too; what fits neither form is refused by name.
    #[test]
    fn metadata_as_pairs_follow_their_rules(
        pieces in proptest::collection::vec(
            prop_oneof![4 => "[a-c .]{0,2}=[x-z -]{0,2}", 1 => "[a=]{0,4}", 1 => text()], 0..5
        ),
    ) {
        let text = pieces.join(",");
        // Blank ones are none, and JSON has its own rules.
        if text.trim().is_empty() || serde_json::from_str::<Value>(&text).is_ok() {
            return Ok(());
        }
        match (parse_metadata(&text), pairs_model(&text)) {
            (Ok(ours), wanted) => {
                let ours: BTreeMap<_, _> = ours.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
                prop_assert_eq!(Some(ours), wanted);
            }
            (Err(failure), wanted) => {
                prop_assert_eq!(wanted, None);
                prop_assert_eq!(failure.text, format!("metadata format incorrect:{text}"));
            }
        }
    }

    /// The limit of metadata counts UTF-16 units of all keys and values that are not blank, over both protocols.
    #[test]
    fn metadata_are_limited_by_their_sum(pairs in proptest::collection::btree_map(text(), text(), 0..6), limit in 0..1500usize) {
        let lengths = pairs.iter().flat_map(|(key, value)| [key, value]);
        let sum: usize = lengths.filter(|text| !is_blank(text)).map(|text| units(text)).sum();
        let metadata = json!(pairs).to_string();
        let checked = http(&[("metadata", &Some(metadata.clone()))], Api::V1).check(limit);
        prop_assert_eq!(checked.is_ok(), sum <= limit);
        if let Err(failure) = checked {
            prop_assert_eq!(refused(&failure), "Metadata");
        }
        let body = format!("{{\"metadata\":{metadata}}}");
        let wire: WireInstance<'_> = parse(body.as_bytes()).unwrap();
        prop_assert_eq!(wire.check(limit).is_ok(), sum <= limit);
    }

    /// Ids of instances over gRPC: the given one, else of what was sent.
    #[test]
    fn instance_ids_are_made_of_what_was_sent(
        id in maybe(text()), ip in text(), port in any::<u16>(), cluster in maybe(text()), own in maybe(grouped()),
        metadata in proptest::bool::ANY,
    ) {
        let service = ServiceKey::new("n", "g", "s");
        let mut sent = json!({
            "instanceId": id, "ip": ip, "port": port, "clusterName": cluster, "serviceName": own,
        });
        if metadata {
            sent["metadata"] = json!({"preserved.instance.id.generator": "simple"});
        }
        let wanted = match &id {
            Some(id) if !id.is_empty() => id.clone(),
            _ => {
                let cluster = cluster.clone().unwrap_or("null".into());
                let own = own.clone().filter(|own| !is_blank(own)).unwrap_or("g@@s".into());
                format!("{ip}#{port}#{cluster}#{own}")
            }
        };
        let body = sent.to_string();
        let wire: WireInstance<'_> = parse(body.as_bytes()).unwrap();
        let instance = wire.into_instance(&service, port);
        let ours = instance.id(&service);
        prop_assert_eq!(ours.as_str(), wanted);
        let stored = cluster.filter(|cluster| !is_blank(cluster)).unwrap_or("DEFAULT".into());
        prop_assert_eq!(instance.cluster.as_str(), stored);
    }
}
