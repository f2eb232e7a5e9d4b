//! `NamingFuzzyWatchRequest`: starts or ends a watch of services by a pattern (`spec/grpc.md` §6.3).

use bytes::Bytes;
use rollcall_core::ServiceKey;
use rollcall_node::fuzzy::MAX_HELD;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Answer, Context};
use crate::error::GrpcFailure;
use crate::grpc::lenient::{self, Bool, Text, object};

object! {
    /// A watch.
    NamingFuzzyWatchRequest<'a> {
        /// `namespace>>group>>service`.
        pattern ("groupKeyPattern"): Text<'a> = Text(None),
        /// Start or end.
        watch_type ("watchType"): Text<'a> = Text(None),
        /// The client has not been told everything yet.
        initializing ("initializing"): Bool = Bool(false),
        /// Services that the client holds.
        held ("receivedGroupKeys"): Held = Held(Vec::new()),
    }
}

/// Services that a client holds, `namespace@@group@@service` each; what has another form, and what is too much, is
/// skipped.
#[derive(Clone, Debug)]
pub struct Held(pub Vec<ServiceKey>);

impl<'de> Deserialize<'de> for Held {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Held;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_unit<E>(self) -> Result<Held, E> {
                Ok(Held(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Held, A::Error> {
                let mut keys = Vec::new();
                while keys.len() < MAX_HELD {
                    match list.next_element::<Text<'_>>()? {
                        Some(text) => keys.extend(service(text.as_str())),
                        None => return Ok(Held(keys)),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Held(keys))
            }
        }
        deserializer.deserialize_any(Keys)
    }
}

fn service(key: &str) -> Option<ServiceKey> {
    let mut parts = key.splitn(3, "@@");
    let (namespace, group, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some(ServiceKey::new(namespace, group, name))
}

/// Starts or ends a watch.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let request: NamingFuzzyWatchRequest<'_> = lenient::parse(body)?;
    let (id, pattern) = (context.connection.id, request.pattern.as_str());
    let is_over = match request.watch_type.as_str() {
        "WATCH" => {
            let (held, is_initial) = (request.held.0, request.initializing.0);
            context.with_node(|node, now, actions| {
                node.watch_pattern(id, pattern, held, is_initial, now, actions)
            })?
        }
        "CANCEL_WATCH" => {
            context.with_node(|node, now, _| node.unwatch_pattern(id, pattern, now))?;
            false
        }
        other => {
            return Err(GrpcFailure::error(400, 400, format!("unsupported watch type {other:?}")).typed());
        }
    };
    if is_over {
        // The watch goes on with what is told.
        let text = "fuzzy watch pattern matched count over limit";
        return Err(GrpcFailure::error(500, 50311, text).typed());
    }
    Ok(Bytes::from_static(
        b"{\"resultCode\":200,\"errorCode\":0,\"success\":true}",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_a_client_holds_are_read_leniently() {
        let held = |list: &str| {
            let body = format!(r#"{{"receivedGroupKeys":{list}}}"#);
            let request = lenient::parse::<NamingFuzzyWatchRequest<'_>>(body.as_bytes());
            request.map(|request| request.held.0).unwrap_or_default()
        };
        assert_eq!(held("null"), []);
        assert_eq!(
            held(r#"["public@@G@@a@@b","zzz",null]"#),
            [ServiceKey::new("public", "G", "a@@b")]
        );
        let many = format!("[{}\"a@@b@@c\"]", "\"a@@b@@c\",".repeat(MAX_HELD));
        assert_eq!(held(&many).len(), MAX_HELD);
    }
}
