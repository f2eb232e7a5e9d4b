//! Parameters of a request, from the query and from a form body alike; the query wins.

#[cfg(test)]
use std::collections::BTreeSet;
use std::str::FromStr;
#[cfg(test)]
use std::sync::Arc;

use bytes::Bytes;
#[cfg(test)]
use parking_lot::Mutex;
use rollcall_core::Metadata;
use rollcall_core::model::service_key::{DEFAULT_GROUP, DEFAULT_NAMESPACE};
use serde::de::IgnoredAny;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::grpc::lenient::Pairs;
use crate::http::api::{Api, Lack};
use crate::http::multipart;
use crate::http::udp_poll::Caller;

/// Decoded parameters, those of the query first, and how calls of their kind read and refuse them.
#[derive(Clone, Debug, Default)]
pub struct Params {
    pairs: Vec<(SmolStr, SmolStr)>,
    api: Api,
    lack: Lack,
    caller: Option<Caller>,
    /// Names that were asked for.
    #[cfg(test)]
    read: Arc<Mutex<BTreeSet<String>>>,
}

/// How a body is to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BodyKind {
    /// As a form; also when nothing is said of it.
    Form,
    /// As parts separated by this boundary.
    Multipart(String),
    /// As a JSON object with texts and numbers, for the few calls that have one.
    Json,
    /// Not at all, such as JSON elsewhere.
    Ignored,
}

impl BodyKind {
    /// What a content type says.
    pub fn of(content_type: Option<&str>) -> Self {
        let Some(content_type) = content_type else {
            return BodyKind::Form;
        };
        let kind = content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        match kind.as_str() {
            "" | "application/x-www-form-urlencoded" | "text/plain" => BodyKind::Form,
            "multipart/form-data" => match multipart::boundary(content_type) {
                Some(boundary) => BodyKind::Multipart(boundary.to_owned()),
                None => BodyKind::Ignored,
            },
            _ => BodyKind::Ignored,
        }
    }
}

impl Params {
    /// Reads the query and the body.
    ///
    /// # Errors
    /// 400 for a broken escape, for text that is not UTF-8, and for raw characters that must be escaped in a query.
    pub fn read(query: &str, body: &Bytes, kind: &BodyKind) -> Result<Self, HttpFailure> {
        if let Some(raw) = query.chars().find(|c| matches!(c, '"' | '{' | '}' | '<' | '>')) {
            return Err(unreadable(&format!(
                "the query holds a raw {raw:?}, which must be percent-escaped"
            )));
        }
        let mut pairs = Vec::with_capacity(8);
        add_form(&mut pairs, query.as_bytes(), "query")?;
        match kind {
            BodyKind::Form => add_form(&mut pairs, body, "body")?,
            BodyKind::Multipart(boundary) => {
                let parts = multipart::fields(body, boundary)
                    .ok_or_else(|| unreadable("the parts of the body cannot be read"))?;
                pairs.extend(parts);
            }
            BodyKind::Json => add_json(&mut pairs, body)?,
            BodyKind::Ignored => {}
        }
        Ok(Params {
            pairs,
            ..Params::default()
        })
    }

    /// The same for a call of this generation.
    pub fn of(self, api: Api, lack: Lack) -> Self {
        Params { api, lack, ..self }
    }

    /// Adds what stands in the path; it wins over what the query says.
    ///
    /// # Errors
    /// 400 for what cannot be decoded.
    pub fn add_from_path(&mut self, name: &'static str, raw: &str) -> Result<(), HttpFailure> {
        let value = decode(raw.as_bytes(), "path")?;
        self.pairs.insert(0, (SmolStr::new_static(name), value));
        Ok(())
    }

    /// Notes who called, for calls that ask to be pushed to.
    pub fn set_caller(&mut self, caller: Caller) {
        self.caller = Some(caller);
    }

    /// Who called, if the call asks to be pushed to.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Names that were asked for so far.
    #[cfg(test)]
    pub(crate) fn names_read(&self) -> BTreeSet<String> {
        self.read.lock().clone()
    }

    /// The generation of the call.
    pub fn api(&self) -> Api {
        self.api
    }

    /// How the call refuses a request that lacks a parameter.
    pub fn lack(&self) -> Lack {
        self.lack
    }

    /// True when the parameter is there, blank or not.
    pub fn has(&self, name: &str) -> bool {
        #[cfg(test)]
        self.read.lock().insert(name.to_owned());
        self.pairs.iter().any(|(key, _)| key == name)
    }

    /// The trimmed value of `name`, unless absent or blank.
    pub fn get(&self, name: &str) -> Option<&str> {
        #[cfg(test)]
        self.read.lock().insert(name.to_owned());
        let value = self
            .pairs
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.trim())?;
        (!value.is_empty()).then_some(value)
    }

    /// The trimmed value of the first of `names` that has one.
    pub fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The trimmed value of `name`.
    ///
    /// # Errors
    /// 400 when absent or blank.
    pub fn required(&self, name: &str) -> Result<&str, HttpFailure> {
        self.required_as(name, "String")
    }

    /// The same for a value of another type than text.
    ///
    /// # Errors
    /// 400 when absent or blank.
    pub fn required_as(&self, name: &str, kind: &str) -> Result<&str, HttpFailure> {
        self.get(name)
            .ok_or_else(|| HttpFailure::missing(self.lack, name, kind))
    }

    /// A truth value of a registration. v1: `true`, `yes`, `on`, `y` or `t` in any case of letters, anything else is
    /// false. Later: `true`, `on`, `yes`, `1` and their opposites.
    ///
    /// # Errors
    /// For another word, in v2 and v3.
    pub fn flag(&self, names: &[&str], default: bool) -> Result<bool, HttpFailure> {
        match self.first(names) {
            None => Ok(default),
            Some(value) if self.api == Api::V1 => Ok(is_one_of(value, &["true", "yes", "on", "y", "t"])),
            Some(value) => parse_boolean(names.first().copied().unwrap_or_default(), value),
        }
    }

    /// A truth value of a query. v1: only `true` in any case of letters is true. Later: as [`Params::flag`].
    ///
    /// # Errors
    /// For another word, in v2 and v3.
    pub fn choice(&self, name: &str, default: bool) -> Result<bool, HttpFailure> {
        match self.get(name) {
            None => Ok(default),
            Some(value) if self.api == Api::V1 => Ok(value.eq_ignore_ascii_case("true")),
            Some(value) => parse_boolean(name, value),
        }
    }

    /// A fraction, `None` unless given.
    ///
    /// # Errors
    /// When it is no number.
    pub fn fraction(&self, name: &str) -> Result<Option<f64>, HttpFailure> {
        self.number(name, "Double")
    }

    /// A whole number, `None` unless given.
    ///
    /// # Errors
    /// When it is no number.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, HttpFailure> {
        self.number(name, "Integer")
    }

    fn number<T: FromStr>(&self, name: &str, kind: &str) -> Result<Option<T>, HttpFailure> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match (value.parse(), self.api) {
            (Ok(number), _) => Ok(Some(number)),
            (Err(_), Api::V1) => Err(HttpFailure::no_number(value)),
            (Err(_), _) => Err(HttpFailure::unfit(name, value, kind)),
        }
    }

    /// The namespace, the default one unless given.
    pub fn namespace(&self) -> &str {
        self.get("namespaceId").unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The group, the default one unless given.
    pub fn group(&self) -> &str {
        self.get("groupName").unwrap_or(DEFAULT_GROUP)
    }

    /// The metadata, a JSON object or a list `k=v,k=v`.
    ///
    /// # Errors
    /// 400 when it is neither.
    pub fn metadata(&self) -> Result<Metadata, HttpFailure> {
        self.get("metadata")
            .map_or(Ok(Metadata::default()), parse_metadata)
    }
}

fn is_one_of(value: &str, words: &[&str]) -> bool {
    words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

fn parse_boolean(name: &str, value: &str) -> Result<bool, HttpFailure> {
    if is_one_of(value, &["true", "on", "yes", "1"]) {
        Ok(true)
    } else if is_one_of(value, &["false", "off", "no", "0"]) {
        Ok(false)
    } else {
        Err(HttpFailure::unfit(name, value, "Boolean"))
    }
}

/// Reads metadata in either form.
///
/// # Errors
/// 400 when it fits neither.
pub fn parse_metadata(text: &str) -> Result<Metadata, HttpFailure> {
    if let Ok(Some(pairs)) = serde_json::from_str::<Option<Pairs>>(text) {
        return Ok(pairs.into_metadata());
    }
    // JSON of another shape is no list of pairs either, even where it holds a `=`.
    if text.starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok() {
        return Err(HttpFailure::no_metadata(text));
    }
    let mut pairs = Vec::new();
    for pair in text.trim_end_matches(',').split(',') {
        match pair.split_once('=') {
            Some((key, value)) if !value.is_empty() && !value.contains('=') => {
                pairs.push((SmolStr::new(key), SmolStr::new(value)));
            }
            _ => return Err(HttpFailure::no_metadata(text)),
        }
    }
    Ok(Metadata::from_pairs(pairs))
}

fn add_json(pairs: &mut Vec<(SmolStr, SmolStr)>, body: &[u8]) -> Result<(), HttpFailure> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body)
        .map_err(|error| unreadable(&format!("the body is no JSON object: {error}")))?;
    for (name, value) in object {
        match value {
            serde_json::Value::String(text) => pairs.push((name.into(), text.into())),
            serde_json::Value::Number(number) => pairs.push((name.into(), number.to_string().into())),
            _ => {
                return Err(unreadable(&format!(
                    "'{name}' in the body is neither a text nor a number"
                )));
            }
        }
    }
    Ok(())
}

fn add_form(pairs: &mut Vec<(SmolStr, SmolStr)>, form: &[u8], place: &str) -> Result<(), HttpFailure> {
    for pair in form.split(|&b| b == b'&').filter(|pair| !pair.is_empty()) {
        let mut halves = pair.splitn(2, |&b| b == b'=');
        let key = decode(halves.next().unwrap_or_default(), place)?;
        let value = decode(halves.next().unwrap_or_default(), place)?;
        pairs.push((key, value));
    }
    Ok(())
}

fn decode(raw: &[u8], place: &str) -> Result<SmolStr, HttpFailure> {
    let not_utf8 = || unreadable(&format!("the {place} holds text that is not UTF-8"));
    if !raw.iter().any(|&b| b == b'%' || b == b'+') {
        return std::str::from_utf8(raw).map(SmolStr::new).map_err(|_| not_utf8());
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => match (bytes.next().and_then(hex), bytes.next().and_then(hex)) {
                (Some(high), Some(low)) => out.push(high << 4 | low),
                _ => return Err(unreadable(&format!("the {place} holds a broken percent escape"))),
            },
            _ => out.push(byte),
        }
    }
    std::str::from_utf8(&out)
        .map(SmolStr::new)
        .map_err(|_| not_utf8())
}

fn hex(digit: &u8) -> Option<u8> {
    char::from(*digit)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

fn unreadable(text: &str) -> HttpFailure {
    HttpFailure::invalid(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, body: &str) -> Params {
        Params::read(query, &Bytes::copy_from_slice(body.as_bytes()), &BodyKind::Form).unwrap_or_default()
    }

    fn refused(query: &str) -> HttpFailure {
        match Params::read(query, &Bytes::new(), &BodyKind::Form) {
            Err(failure) => failure,
            Ok(params) => panic!("{query} was taken: {params:?}"),
        }
    }

    #[test]
    fn the_query_wins_over_the_body_and_values_are_trimmed() {
        let params = read("a=1&b=%20x+", "a=2&c=%E8%AF%B4&d=");
        assert_eq!(params.get("a"), Some("1"));
        assert_eq!(params.get("b"), Some("x"));
        assert_eq!(params.get("c"), Some("说"));
        assert_eq!((params.get("d"), params.get("e")), (None, None));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (query, text) in [
            ("a=%FF%FE", "the query holds text that is not UTF-8"),
            ("a=%4", "the query holds a broken percent escape"),
            ("a=%zz", "the query holds a broken percent escape"),
            (
                "metadata={\"a\":\"b\"}",
                "the query holds a raw '{', which must be percent-escaped",
            ),
        ] {
            let failure = refused(query);
            assert_eq!((failure.status.as_u16(), failure.text.as_str()), (400, text));
        }
    }

    #[test]
    fn only_forms_are_read() {
        for (content_type, kind) in [
            (None, BodyKind::Form),
            (
                Some("application/x-www-form-urlencoded;charset=UTF-8"),
                BodyKind::Form,
            ),
            (Some("text/plain"), BodyKind::Form),
            (Some("application/json"), BodyKind::Ignored),
            (
                Some("multipart/form-data; boundary=xyz"),
                BodyKind::Multipart("xyz".into()),
            ),
        ] {
            assert_eq!(BodyKind::of(content_type), kind, "{content_type:?}");
        }
    }

    #[test]
    fn flags_take_five_words_and_queries_only_one() {
        let params = read("a=TRUE&b=yes&c=on&d=Y&e=T&f=1&g=abc&h=", "");
        for (name, expected) in [
            ("a", true),
            ("b", true),
            ("c", true),
            ("d", true),
            ("e", true),
            ("f", false),
            ("g", false),
            ("h", true),
        ] {
            assert_eq!(params.flag(&[name], true), Ok(expected), "{name}");
        }
        let is_true = |name| params.choice(name, false) == Ok(true);
        assert!(is_true("a") && !is_true("b") && !is_true("h"));
    }

    #[test]
    fn later_generations_refuse_values_of_another_type() {
        let params = read("a=TRUE&b=1&c=off&d=abc&e=&n=1e3&i=7", "").of(Api::V2, Lack::Form);
        for (name, expected) in [("a", true), ("b", true), ("c", false), ("e", true)] {
            assert_eq!(params.flag(&[name], true), Ok(expected), "{name}");
            assert_eq!(params.choice(name, true), Ok(expected), "{name}");
        }
        assert_eq!(params.fraction("n"), Ok(Some(1000.0)));
        assert_eq!(
            (params.integer("i"), params.integer("e")),
            (Ok(Some(7)), Ok(None))
        );
        for refused in [
            params.flag(&["d"], true).map(|_| ()),
            params.choice("d", true).map(|_| ()),
            params.fraction("d").map(|_| ()),
            params.integer("n").map(|_| ()),
        ] {
            assert_eq!(
                refused.map_err(|f| (f.status.as_u16(), f.code.number)),
                Err((500, 30000))
            );
        }
        assert_eq!(
            read("w=x", "").fraction("w").map_err(|f| f.text),
            Err("For input string: \"x\"".into())
        );
    }

    #[test]
    fn metadata_comes_in_two_forms() {
        let pairs = |text: &str| {
            parse_metadata(text).ok().map(|m| {
                m.iter()
                    .map(|(k, v)| format!("{k}:{v}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            })
        };
        assert_eq!(pairs(r#"{"a":"1","b":2,"c":null}"#).as_deref(), Some("a:1 b:2"));
        assert_eq!(pairs(r#"{"a":"1","b":"2","a":null}"#).as_deref(), Some("b:2"));
        assert_eq!(pairs("v=1,zone=a").as_deref(), Some("v:1 zone:a"));
        assert_eq!(pairs("a=1,").as_deref(), Some("a:1"));
        assert_eq!(pairs("a= 1, b=2").as_deref(), Some("a: 1  b:2"));
        assert_eq!(pairs("{}").as_deref(), Some(""));
        for bad in [
            "abc",
            "a=b=c",
            "a=",
            r#"{"a":{"b":1}}"#,
            r#"{"a":{"b":"="}}"#,
            r#"["a=b"]"#,
            "[1]",
            r#"{"a":"#,
        ] {
            assert_eq!(
                parse_metadata(bad).err().map(|f| f.text),
                Some(format!("metadata format incorrect:{bad}"))
            );
        }
    }
}
