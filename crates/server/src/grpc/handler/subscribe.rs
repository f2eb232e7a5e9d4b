//! `SubscribeServiceRequest`: starts or ends a subscription and answers with the current list.

use rollcall_core::limits;
use smol_str::SmolStr;

use super::{Answer, Context, Names, sent};
use crate::grpc::lenient::{self, Bool, Text, object};
use crate::grpc::payload::{OK_HEAD, OK_TAIL};
use crate::load::Want;
use crate::service_info::{self, Header};

object! {
    /// A subscription.
    SubscribeServiceRequest<'a> {
        /// Namespace.
        namespace ("namespace"): Text<'a> = Text(None),
        /// Name.
        service ("serviceName"): Text<'a> = Text(None),
        /// Group.
        group ("groupName"): Text<'a> = Text(None),
        /// Comma list of clusters; echoed as it came, and left out where it did not come.
        clusters ("clusters"): Text<'a> = Text(None),
        /// Start (true) or end.
        subscribe ("subscribe"): Bool = Bool(false),
    }
}

/// Subscribes or unsubscribes.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let request: SubscribeServiceRequest<'_> = lenient::parse(body)?;
    let names = Names {
        namespace: &request.namespace,
        service: &request.service,
        group: &request.group,
    };
    names.check()?;
    limits::check_clusters(request.clusters.as_str())?;
    let service = names.require_service()?;
    let clusters = sent(&request.clusters).map(SmolStr::new);
    if request.subscribe.0 {
        context.exec.admit(Want::Work)?;
    }
    let id = context.connection.id;
    let answer = context.with_node(|node, now, actions| {
        if request.subscribe.0 {
            node.subscribe(id, &service, clusters.clone(), now, actions)
        } else {
            node.unsubscribe(id, &service, clusters.clone(), now, actions)
        }
    })?;
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(OK_HEAD);
    out.extend_from_slice(b",\"message\":\"success\",\"serviceInfo\":");
    let header = Header {
        name: Some(service.name()),
        group: Some(service.group()),
        clusters: clusters.as_deref(),
        last_ref_time: answer.last_ref_time,
        cache: answer.cache,
        generation: context.connection.generation,
    };
    service_info::write_view(&mut out, header, &answer.view, false);
    out.extend_from_slice(OK_TAIL);
    Ok(out.into())
}
