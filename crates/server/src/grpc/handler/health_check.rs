//! `HealthCheckRequest`: is the connection still known? What it is asked for is already proven when it comes here.

use bytes::Bytes;

use super::Answer;
use crate::grpc::lenient::{self, object};

object! {
    /// Nothing of interest; it only has to be an object.
    HealthCheckRequest<'a> {}
}

/// Answers yes.
pub fn handle(body: &[u8]) -> Answer {
    lenient::parse::<HealthCheckRequest<'_>>(body)?;
    Ok(Bytes::from_static(
        b"{\"resultCode\":200,\"errorCode\":0,\"success\":true}",
    ))
}
