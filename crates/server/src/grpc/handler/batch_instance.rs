//! `BatchInstanceRequest`: replaces all that the connection publishes for a service by a list.

use bytes::Bytes;

use super::instance::unsupported;
use super::wire_instance::MaybeInstances;
use super::{Answer, Context, Names};
use crate::error::GrpcFailure;
use crate::grpc::lenient::{self, Text, object};

object! {
    /// A request with a list of instances.
    BatchInstanceRequest<'a> {
        /// Namespace.
        namespace ("namespace"): Text<'a> = Text(None),
        /// Name.
        service ("serviceName"): Text<'a> = Text(None),
        /// Group.
        group ("groupName"): Text<'a> = Text(None),
        /// What to do; only one thing is known.
        operation ("type"): Text<'a> = Text(None),
        /// The instances.
        instances ("instances"): MaybeInstances<'a> = MaybeInstances(None),
    }
}

/// Registers the list; an empty one leaves the connection publishing nothing.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let mut request: BatchInstanceRequest<'_> = lenient::parse(body)?;
    let names = Names {
        namespace: &request.namespace,
        service: &request.service,
        group: &request.group,
    };
    names.check()?;
    let sent = request.instances.0.take();
    let mut ports = Vec::new();
    for instance in sent.iter().flatten() {
        ports.push(instance.check(context.metadata_limit)?);
    }
    let service = names.require_service()?;
    match request.operation.0.as_deref() {
        Some("batchRegisterInstance") => {}
        other => return Err(unsupported(other)),
    }
    let sent = sent.ok_or_else(|| GrpcFailure::error(500, 500, "the request has no list of instances"))?;
    let instances = sent
        .into_iter()
        .zip(ports)
        .map(|(one, port)| one.into_instance(&service, port))
        .collect();
    let id = context.connection.id;
    context.with_node(|node, now, actions| node.register(id, &service, instances, now, actions))?;
    Ok(Bytes::from_static(
        b"{\"resultCode\":200,\"errorCode\":0,\"type\":\"batchRegisterInstance\",\"success\":true}",
    ))
}
