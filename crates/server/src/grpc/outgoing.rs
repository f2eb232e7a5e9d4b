//! What goes down the stream to a client. Kept small while it waits: the JSON is written when it is sent.

use rollcall_core::ServiceKey;
use rollcall_node::FuzzyMessage;
use rollcall_node::action::Push;
use smol_str::SmolStr;

use crate::grpc::payload::envelope;
use crate::json;
use crate::pb::Payload;
use crate::service_info::{self, Header};
use crate::transport::{Generation, Transport};

/// One message for a client.
#[derive(Debug)]
pub enum Outgoing {
    /// The connection is set up, and this is what the server can do.
    SetupAck,
    /// The current list of a service.
    Push(Box<Push>),
    /// Is anybody there?
    Detect {
        /// Id that the answer repeats.
        request_id: u64,
    },
    /// Please connect elsewhere; with the id that the answer repeats and the member to go to, if any.
    Reset(Box<(u64, Option<SmolStr>)>),
    /// Services that match a pattern; with the id that the answer repeats.
    Fuzzy(Box<(u64, FuzzyMessage)>),
    /// End the stream.
    End,
}

impl Outgoing {
    /// The envelope to send; `None` ends the stream.
    pub fn into_payload(self, transport: &Transport) -> Option<Payload> {
        let (type_name, body) = match self {
            // Only what is implemented: clients register persistent instances over HTTP then.
            Outgoing::SetupAck => {
                let body: &[u8] = match transport.established().map(|e| e.generation) {
                    Some(Generation::Three) => {
                        b"{\"headers\":{},\"abilityTable\":{\"fuzzyWatch\":true},\"module\":\"internal\"}"
                    }
                    _ => b"{\"headers\":{},\"abilityTable\":{},\"module\":\"internal\"}",
                };
                ("SetupAckRequest", body.to_vec())
            }
            Outgoing::Push(push) => {
                let generation = transport.established().map(|e| e.generation).unwrap_or_default();
                ("NotifySubscriberRequest", push_body(&push, generation))
            }
            Outgoing::Detect { request_id } => {
                let mut body = head(request_id);
                body.extend_from_slice(b",\"module\":\"internal\"}");
                ("ClientDetectionRequest", body)
            }
            Outgoing::Reset(reset) => (
                "ConnectResetRequest",
                reset_body(reset.0, reset.1.as_deref(), transport),
            ),
            Outgoing::Fuzzy(fuzzy) => fuzzy_body(fuzzy.0, &fuzzy.1),
            Outgoing::End => return None,
        };
        Some(envelope(
            type_name,
            transport.local().ip().to_canonical().to_string(),
            body,
        ))
    }
}

fn head(request_id: u64) -> Vec<u8> {
    let mut body = b"{\"headers\":{},\"requestId\":\"".to_vec();
    json::unsigned(&mut body, request_id);
    body.push(b'"');
    body
}

fn fuzzy_body(request_id: u64, message: &FuzzyMessage) -> (&'static str, Vec<u8>) {
    const SYNC: &str = "NamingFuzzyWatchSyncRequest";
    let mut body = head(request_id);
    let mut sync = |kind: &str, pattern: &str, added: &[ServiceKey], n_batches, batch| {
        json::member(&mut body, "syncType");
        json::string(&mut body, kind);
        json::member(&mut body, "groupKeyPattern");
        json::string(&mut body, pattern);
        body.extend_from_slice(b",\"contexts\":[");
        for (at, service) in added.iter().enumerate() {
            if at > 0 {
                body.push(b',');
            }
            body.extend_from_slice(b"{\"serviceKey\":");
            write_change(&mut body, service, true);
        }
        body.push(b']');
        json::member(&mut body, "totalBatch");
        json::unsigned(&mut body, n_batches);
        json::member(&mut body, "currentBatch");
        json::unsigned(&mut body, batch);
    };
    let type_name = match message {
        FuzzyMessage::Sync {
            pattern,
            is_initial,
            added,
            n_batches,
            batch,
        } => {
            let kind = match is_initial {
                true => "FUZZY_WATCH_INIT_NOTIFY",
                false => "FUZZY_WATCH_DIFF_SYNC_NOTIFY",
            };
            sync(kind, pattern, added, *n_batches as u64, *batch as u64);
            SYNC
        }
        FuzzyMessage::Finished { pattern } => {
            sync("FINISH_FUZZY_WATCH_INIT_NOTIFY", pattern, &[], 1, 1);
            SYNC
        }
        FuzzyMessage::Changed {
            service,
            has_instance,
        } => {
            body.extend_from_slice(b",\"syncType\":\"FUZZY_WATCH_RESOURCE_CHANGED\",\"serviceKey\":");
            write_change(&mut body, service, *has_instance);
            body.pop(); // The end of the object that stands in a list otherwise.
            "NamingFuzzyWatchChangeNotifyRequest"
        }
    };
    body.extend_from_slice(b",\"module\":\"naming\"}");
    (type_name, body)
}

/// The key of a service and what became of it, up to the end of the object that they stand in.
fn write_change(out: &mut Vec<u8>, service: &ServiceKey, has_instance: bool) {
    let key = format!("{}@@{}@@{}", service.namespace(), service.group(), service.name());
    json::string(out, &key);
    json::member(out, "changedType");
    json::string(
        out,
        if has_instance {
            "ADD_SERVICE"
        } else {
            "DELETE_SERVICE"
        },
    );
    out.push(b'}');
}

fn push_body(push: &Push, generation: Generation) -> Vec<u8> {
    let mut body = head(push.request_id);
    body.extend_from_slice(b",\"serviceInfo\":");
    let header = Header {
        name: Some(push.service.name()),
        group: Some(push.service.group()),
        clusters: push.clusters.as_deref(),
        last_ref_time: push.last_ref_time,
        cache: push.cache,
        generation,
    };
    service_info::write_view(&mut body, header, &push.view, false);
    body.extend_from_slice(b",\"module\":\"naming\"}");
    body
}

fn reset_body(request_id: u64, to: Option<&str>, transport: &Transport) -> Vec<u8> {
    let mut body = head(request_id);
    // The last colon: the address may be an IPv6 one.
    if let Some((host, port)) = to.and_then(|to| to.rsplit_once(':')) {
        for (field, value) in [
            (
                &b",\"serverIp\":"[..],
                host.trim_start_matches('[').trim_end_matches(']'),
            ),
            (b",\"serverPort\":", port),
            (b",\"connectionId\":", transport.text_id()),
        ] {
            body.extend_from_slice(field);
            json::string(&mut body, value);
        }
    }
    body.extend_from_slice(b",\"module\":\"internal\"}");
    body
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rollcall_core::Millis;

    use super::*;
    use crate::grpc::payload;

    fn sent(message: Outgoing) -> (String, String) {
        let address = SocketAddr::from(([127, 0, 0, 1], 5000));
        let transport = Transport::new(address, address, Millis(1));
        let Some(payload) = message.into_payload(&transport) else {
            return Default::default();
        };
        assert_eq!(
            payload.metadata.as_ref().map(|m| m.client_ip.as_str()),
            Some("127.0.0.1")
        );
        (
            payload::type_name(&payload).to_owned(),
            String::from_utf8_lossy(payload::body(&payload)).into_owned(),
        )
    }

    #[test]
    fn resets_name_the_member_to_go_to() {
        assert_eq!(
            sent(Outgoing::Reset(Box::new((2, Some("127.0.0.1:8858".into()))))).1,
            r#"{"headers":{},"requestId":"2","serverIp":"127.0.0.1","serverPort":"8858","connectionId":"1_127.0.0.1_5000","module":"internal"}"#
        );
        assert_eq!(
            sent(Outgoing::Reset(Box::new((1, None)))).1,
            r#"{"headers":{},"requestId":"1","module":"internal"}"#
        );
        assert!(
            sent(Outgoing::Reset(Box::new((1, Some("[::1]:8858".into())))))
                .1
                .contains(r#""serverIp":"::1""#)
        );
    }

    #[test]
    fn a_detection_is_as_recorded() {
        let (type_name, body) = sent(Outgoing::Detect { request_id: 23 });
        assert_eq!(type_name, "ClientDetectionRequest");
        assert_eq!(body, r#"{"headers":{},"requestId":"23","module":"internal"}"#);
    }
}
