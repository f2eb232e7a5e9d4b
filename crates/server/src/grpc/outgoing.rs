//! What goes down the stream to a client. Kept small while it waits: the JSON is written when it is sent.

use rollcall_core::Millis;
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
    /// End the stream.
    End,
}

impl Outgoing {
    /// The envelope to send; `None` ends the stream.
    pub fn into_payload(self, transport: &Transport) -> Option<Payload> {
        let (type_name, body) = match self {
            // Nothing is advertised: clients register persistent instances over HTTP then, and no SDK waits for more.
            Outgoing::SetupAck => (
                "SetupAckRequest",
                b"{\"headers\":{},\"abilityTable\":{},\"module\":\"internal\"}".to_vec(),
            ),
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

fn push_body(push: &Push, generation: Generation) -> Vec<u8> {
    let mut body = head(push.request_id);
    body.extend_from_slice(b",\"serviceInfo\":");
    let header = Header {
        name: Some(push.service.name()),
        group: Some(push.service.group()),
        clusters: push.clusters.as_deref(),
        last_ref_time: Millis(push.last_ref_time.0),
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
