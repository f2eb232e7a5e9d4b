//! `InstanceRequest`: registers or removes what the connection publishes for a service.

use bytes::Bytes;
use rollcall_core::limits;
use rollcall_node::error::NodeError;

use super::wire_instance::MaybeInstance;
use super::{Answer, Context, Names};
use crate::error::GrpcFailure;
use crate::grpc::lenient::{self, Text, object};
use crate::load::Want;

object! {
    /// A request with one instance, ephemeral or persistent.
    InstanceRequest<'a> {
        /// Namespace.
        namespace ("namespace"): Text<'a> = Text(None),
        /// Name.
        service ("serviceName"): Text<'a> = Text(None),
        /// Group.
        group ("groupName"): Text<'a> = Text(None),
        /// What to do.
        operation ("type"): Text<'a> = Text(None),
        /// The instance.
        instance ("instance"): MaybeInstance<'a> = MaybeInstance(None),
    }
}

/// Type text of a registration.
pub const REGISTER: &str = "registerInstance";
/// Type text of a removal.
pub const DEREGISTER: &str = "deregisterInstance";

/// The answer to a removal.
pub const DEREGISTERED: Bytes = Bytes::from_static(
    b"{\"resultCode\":200,\"errorCode\":0,\"type\":\"deregisterInstance\",\"success\":true}",
);

impl InstanceRequest<'_> {
    /// The names in it.
    pub fn names(&self) -> Names<'_> {
        Names {
            namespace: &self.namespace,
            service: &self.service,
            group: &self.group,
        }
    }

    /// Runs the checks that come before any handler. Returns the port.
    pub fn check(&self, metadata_limit: usize) -> Result<u16, GrpcFailure> {
        self.names().check()?;
        Ok(match &self.instance.0 {
            Some(instance) => instance.check(metadata_limit)?,
            None => 0,
        })
    }
}

/// Registers or removes.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let mut request: InstanceRequest<'_> = lenient::parse(body)?;
    let port = request.check(context.metadata_limit)?;
    let service = request.names().require_service()?;
    let instance = request
        .instance
        .0
        .take()
        .ok_or_else(|| GrpcFailure::invalid("Instance can not be null."))?;
    let instance = instance.into_instance(&service, port);
    let id = context.connection.id;
    match request.operation.0.as_deref() {
        Some(REGISTER) => {
            limits::check_instance(&instance).map_err(NodeError::from)?;
            context.exec.admit(Want::Work)?;
            context
                .with_node(|node, now, actions| node.register(id, &service, vec![instance], now, actions))?;
            Ok(Bytes::from_static(
                b"{\"resultCode\":200,\"errorCode\":0,\"type\":\"registerInstance\",\"success\":true}",
            ))
        }
        Some(DEREGISTER) => {
            let row = instance.row_key();
            context.with_node(|node, now, actions| node.deregister(id, &service, &row, now, actions))?;
            Ok(DEREGISTERED)
        }
        other => Err(unsupported(other)),
    }
}

/// The refusal of an operation that is not known, or not named.
pub fn unsupported(operation: Option<&str>) -> GrpcFailure {
    match operation {
        Some(operation) => GrpcFailure::invalid(format!("Unsupported request type {operation}")),
        None => GrpcFailure::error(500, 500, "the request names no type of operation"),
    }
}
