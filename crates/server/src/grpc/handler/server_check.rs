//! `ServerCheckRequest`: the first call on every connection. Its body is never read.

use bytes::Bytes;

use crate::grpc::payload::{OK_HEAD, OK_TAIL};
use crate::json;
use crate::transport::Transport;

/// Tells the client the id of its connection, and that an ability table will be acknowledged.
pub fn answer(transport: &Transport) -> Bytes {
    let mut body = Vec::with_capacity(160);
    body.extend_from_slice(OK_HEAD);
    body.extend_from_slice(b",\"connectionId\":");
    json::string(&mut body, transport.text_id());
    body.extend_from_slice(b",\"supportAbilityNegotiation\":true");
    body.extend_from_slice(OK_TAIL);
    body.into()
}
