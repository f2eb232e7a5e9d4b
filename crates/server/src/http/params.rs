//! Parameters of a request, from the query and from a form body alike; the query wins.

use bytes::Bytes;
use http::StatusCode;
use rollcall_core::model::service_key::{DEFAULT_GROUP, DEFAULT_NAMESPACE, GROUP_SEPARATOR};
use rollcall_core::{Metadata, ServiceKey, limits};
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::grpc::lenient::Pairs;
use crate::http::multipart;

/// Decoded parameters, those of the query first.
#[derive(Clone, Debug, Default)]
pub struct Params(Vec<(SmolStr, SmolStr)>);

/// How a body is to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BodyKind {
    /// As a form; also when nothing is said of it.
    Form,
    /// As parts separated by this boundary.
    Multipart(String),
    /// Not at all, such as JSON.
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
            BodyKind::Ignored => {}
        }
        Ok(Params(pairs))
    }

    /// The trimmed value of `name`, unless absent or blank.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self
            .0
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
        self.get(name).ok_or_else(|| HttpFailure::missing(name))
    }

    /// A truth value as registrations have it: `true`, `yes`, `on`, `y` or `t` in any case of letters.
    pub fn flag(&self, names: &[&str], default: bool) -> bool {
        match self.first(names) {
            Some(value) => ["true", "yes", "on", "y", "t"]
                .iter()
                .any(|word| value.eq_ignore_ascii_case(word)),
            None => default,
        }
    }

    /// A truth value as queries have it: only `true` in any case of letters is true.
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
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

    /// Runs the filters that stand before every naming handler and reads the service, if one is named.
    ///
    /// # Errors
    /// As recorded: a page for a malformed grouped name, bare text for anything the parameter checker refuses.
    pub fn check(&self, metadata_limit: usize) -> Result<Checked, HttpFailure> {
        let named = match self.get("serviceName") {
            Some(name) => Some(split_service(name, self.group())?),
            None => None,
        };
        limits::check_namespace(self.namespace())?;
        let group = match named {
            Some((group, name)) => {
                limits::check_service_name(name)?;
                group
            }
            None => self.group(),
        };
        limits::check_group(group)?;
        for name in ["clusterName", "cluster"] {
            limits::check_cluster(self.get(name).unwrap_or_default())?;
        }
        limits::check_clusters(self.get("clusters").unwrap_or_default())?;
        limits::check_ip(self.get("ip").unwrap_or_default())?;
        let port = match self.get("port") {
            Some(port) => Some(limits::check_port(port.parse().unwrap_or(-1))?),
            None => None,
        };
        let metadata = self.metadata()?;
        limits::check_metadata(&metadata, metadata_limit)?;
        let service = named.map(|(group, name)| ServiceKey::new(self.namespace(), group, name));
        Ok(Checked {
            service,
            port,
            metadata,
        })
    }
}

/// What the filters have read on their way.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The service, if one is named.
    pub service: Option<ServiceKey>,
    /// The port, if one is given.
    pub port: Option<u16>,
    /// The metadata, empty unless given.
    pub metadata: Metadata,
}

impl Checked {
    /// The service.
    ///
    /// # Errors
    /// 400 when none is named.
    pub fn require_service(&self) -> Result<&ServiceKey, HttpFailure> {
        self.service
            .as_ref()
            .ok_or_else(|| HttpFailure::missing("serviceName"))
    }

    /// The port.
    ///
    /// # Errors
    /// 400 when none is given.
    pub fn require_port(&self) -> Result<u16, HttpFailure> {
        self.port.ok_or_else(|| HttpFailure::missing("port"))
    }
}

/// Group and name of `service`, which is grouped or plain.
fn split_service<'a>(service: &'a str, group: &'a str) -> Result<(&'a str, &'a str), HttpFailure> {
    let Some((own_group, name)) = service.split_once(GROUP_SEPARATOR) else {
        return Ok((group, service));
    };
    let refuse = |text: &str| {
        let text = format!("Service name filter error,caused: Param 'serviceName' is illegal, {text};");
        Err(HttpFailure::page(StatusCode::BAD_REQUEST, text))
    };
    // As a split that drops empty parts at the end sees it.
    if name.split(GROUP_SEPARATOR).all(str::is_empty) {
        return refuse("it should be format as 'groupName@@serviceName'");
    }
    if own_group.is_empty() {
        return refuse("groupName can't be empty");
    }
    Ok((own_group, name))
}

/// Reads metadata in either form.
///
/// # Errors
/// 400 when it fits neither.
pub fn parse_metadata(text: &str) -> Result<Metadata, HttpFailure> {
    if let Ok(Some(pairs)) = serde_json::from_str::<Option<Pairs>>(text) {
        return Ok(pairs.into_metadata());
    }
    let refuse = || {
        HttpFailure::text(
            StatusCode::BAD_REQUEST,
            format!("metadata format incorrect:{text}"),
        )
    };
    let mut pairs = Vec::new();
    for pair in text.trim_end_matches(',').split(',') {
        match pair.split_once('=') {
            Some((key, value)) if !value.is_empty() && !value.contains('=') => {
                pairs.push((SmolStr::new(key), SmolStr::new(value)));
            }
            _ => return Err(refuse()),
        }
    }
    Ok(Metadata::from_pairs(pairs))
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
    HttpFailure::text(StatusCode::BAD_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::HttpForm;

    fn read(query: &str, body: &str) -> Params {
        Params::read(query, &Bytes::copy_from_slice(body.as_bytes()), &BodyKind::Form).unwrap_or_default()
    }

    fn refused(query: &str) -> HttpFailure {
        match Params::read(query, &Bytes::new(), &BodyKind::Form).and_then(|params| params.check(1024)) {
            Err(failure) => failure,
            Ok(checked) => panic!("{query} was taken: {checked:?}"),
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
            assert_eq!(params.flag(&[name], true), expected, "{name}");
        }
        assert!(params.is_true("a") && !params.is_true("b") && !params.is_true("h"));
    }

    #[test]
    fn a_grouped_name_beats_the_group_beside_it() {
        let checked = read("serviceName=g%40%40s&groupName=x", "").check(1024).ok();
        assert_eq!(
            checked.and_then(|c| c.service),
            Some(ServiceKey::new("public", "g", "s"))
        );
        let checked = read("serviceName=s&groupName=x&namespaceId=dev", "")
            .check(1024)
            .ok();
        assert_eq!(
            checked.and_then(|c| c.service),
            Some(ServiceKey::new("dev", "x", "s"))
        );
    }

    #[test]
    fn malformed_names_are_refused_as_recorded() {
        let page = refused("serviceName=@@a");
        assert_eq!(page.form, HttpForm::Page);
        assert_eq!(
            page.text,
            "Service name filter error,caused: Param 'serviceName' is illegal, groupName can't be empty;"
        );
        assert!(
            refused("serviceName=a@@")
                .text
                .contains("it should be format as 'groupName@@serviceName'")
        );
        for query in [
            "serviceName=a@@b@@c",
            "serviceName=grp@@@@a",
            "serviceName=a+b",
            "serviceName=s&clusterName=a,b",
            "serviceName=s&groupName=a@b",
            "namespaceId=a.b",
            "ip=not+an+ip",
        ] {
            assert_eq!(refused(query).form, HttpForm::Bare, "{query}");
        }
        for port in ["abc", "-1", "65536", "99999999999", "1.5"] {
            assert_eq!(
                refused(&format!("port={port}")).text,
                "Param 'port' is illegal, the value should be between 0 and 65535.\r\n"
            );
        }
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
        assert_eq!(pairs("v=1,zone=a").as_deref(), Some("v:1 zone:a"));
        assert_eq!(pairs("a=1,").as_deref(), Some("a:1"));
        assert_eq!(pairs("a= 1, b=2").as_deref(), Some("a: 1  b:2"));
        assert_eq!(pairs("{}").as_deref(), Some(""));
        for bad in ["abc", "a=b=c", "a=", r#"{"a":{"b":1}}"#, "[1]", r#"{"a":"#] {
            assert_eq!(
                parse_metadata(bad).err().map(|f| f.text),
                Some(format!("metadata format incorrect:{bad}"))
            );
        }
    }
}
