//! The body of an envelope, wire-compatible with `google.protobuf.Any`, but without copying what it receives.

use bytes::Bytes;

/// A JSON text with an (always empty) type address.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Any {
    /// Empty in both directions.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The JSON text.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}
