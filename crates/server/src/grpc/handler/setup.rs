//! `ConnectionSetupRequest`: what makes a transport a connection. Comes on the stream.

use rollcall_node::request::ConnectionInfo;
use smol_str::{SmolStr, format_smolstr};

use crate::error::GrpcFailure;
use crate::grpc::lenient::{self, Pairs, Present, Text, object};
use crate::transport::Transport;

object! {
    /// What a client says of itself.
    ConnectionSetupRequest<'a> {
        /// Name and version.
        client_version ("clientVersion"): Text<'a> = Text(None),
        /// Labels.
        labels ("labels"): Pairs = Pairs::default(),
        /// Its abilities; when there is a table, the set-up is acknowledged.
        ability_table ("abilityTable"): Present = Present(false),
    }
}

/// A set-up request, read.
pub struct Setup {
    /// For the node.
    pub info: ConnectionInfo,
    /// The client waits for an acknowledgement.
    pub wants_ack: bool,
}

/// Reads a set-up request that came over `transport` with `client_ip` in its envelope.
///
/// # Errors
/// The body is no fitting JSON object.
pub fn read(transport: &Transport, client_ip: &str, body: &[u8]) -> Result<Setup, GrpcFailure> {
    let request: ConnectionSetupRequest<'_> = lenient::parse(body)?;
    let remote_ip = format_smolstr!("{}", transport.remote().ip());
    let label = |key: &str| request.labels.get(key);
    let info = ConnectionInfo {
        text_id: transport.text_id().clone(),
        client_ip: if client_ip.is_empty() {
            remote_ip.clone()
        } else {
            SmolStr::new(client_ip)
        },
        remote_ip,
        client_version: SmolStr::new(request.client_version.as_str()),
        app: SmolStr::new(label("AppName").unwrap_or("-")),
        is_sdk: label("source").is_some_and(|source| source.eq_ignore_ascii_case("sdk")),
        // Some SDKs send no labels at all: they are taken for what nearly all of them are.
        is_naming: label("module").is_none_or(|module| module == "naming"),
    };
    Ok(Setup {
        info,
        wants_ack: request.ability_table.0,
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rollcall_core::Millis;

    use super::*;

    fn setup(body: &str) -> Option<Setup> {
        let address = SocketAddr::from(([127, 0, 0, 1], 5000));
        read(&Transport::new(address, address, Millis(1)), "", body.as_bytes()).ok()
    }

    #[test]
    fn labels_say_what_a_connection_is_for() {
        let read = |labels: &str| {
            setup(&format!(r#"{{"labels":{labels}}}"#)).map(|s| (s.info.is_sdk, s.info.is_naming))
        };
        assert_eq!(read(r#"{"source":"SDK","module":"naming"}"#), Some((true, true)));
        assert_eq!(read(r#"{"source":"sdk","module":"config"}"#), Some((true, false)));
        assert_eq!(read("{}"), Some((false, true)));
        assert_eq!(read("null"), Some((false, true)));
    }

    #[test]
    fn only_an_ability_table_asks_for_an_acknowledgement() {
        assert_eq!(setup(r#"{"abilityTable":{}}"#).map(|s| s.wants_ack), Some(true));
        assert_eq!(
            setup(r#"{"abilityTable":null}"#).map(|s| s.wants_ack),
            Some(false)
        );
        assert_eq!(setup(r#"{"abilities":{}}"#).map(|s| s.wants_ack), Some(false));
        assert!(setup("{zz").is_none());
    }
}
