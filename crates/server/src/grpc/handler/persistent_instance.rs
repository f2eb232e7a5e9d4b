//! `PersistentInstanceRequest`: registering is refused, since there is no consensus store. The server does not advertise
//! it either.

use rollcall_node::error::NodeError;

use super::instance::{DEREGISTER, DEREGISTERED, InstanceRequest, REGISTER, unsupported};
use super::{Answer, Context};
use crate::error::GrpcFailure;
use crate::grpc::lenient;

/// Checks the request as if it could be done, then refuses it.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let request: InstanceRequest<'_> = lenient::parse(body)?;
    request.check(context.metadata_limit)?;
    let service = request.names().require_service()?;
    if request.instance.0.is_none() {
        return Err(GrpcFailure::invalid("Instance can not be null."));
    }
    match request.operation.0.as_deref() {
        Some(REGISTER) => {
            context.exec.node().check_kind(&service, false)?;
            Err(NodeError::PersistentUnavailable.into())
        }
        // There is none to remove.
        Some(DEREGISTER) => Ok(DEREGISTERED),
        other => Err(unsupported(other)),
    }
}
