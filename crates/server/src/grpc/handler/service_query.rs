//! `ServiceQueryRequest`: the current list of a service.

use rollcall_core::limits;

use super::{Answer, Context, Names, sent};
use crate::grpc::lenient::{self, Bool, Int, Text, object};
use crate::grpc::payload::{OK_HEAD, OK_TAIL};
use crate::service_info::{self, Header};

object! {
    /// A query.
    ServiceQueryRequest<'a> {
        /// Namespace.
        namespace ("namespace"): Text<'a> = Text(None),
        /// Name.
        service ("serviceName"): Text<'a> = Text(None),
        /// Group.
        group ("groupName"): Text<'a> = Text(None),
        /// Comma list of clusters.
        clusters ("cluster"): Text<'a> = Text(None),
        /// Leave unhealthy ones out.
        healthy_only ("healthyOnly"): Bool = Bool(false),
        /// Not used, but checked.
        udp_port ("udpPort"): Int = Int(0),
    }
}

/// Answers with the list; an unknown service, or one that is not named in full, has none.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let request: ServiceQueryRequest<'_> = lenient::parse(body)?;
    let names = Names {
        namespace: &request.namespace,
        service: &request.service,
        group: &request.group,
    };
    names.check()?;
    limits::check_clusters(request.clusters.as_str())?;
    limits::check_port(i64::from(request.udp_port.0))?;

    let now = context.exec.now();
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(OK_HEAD);
    out.extend_from_slice(b",\"serviceInfo\":");
    let mut header = Header {
        name: sent(names.service).map(|_| names.plain_name()),
        group: sent(names.group),
        clusters: Some(request.clusters.as_str()),
        last_ref_time: now.wall,
        cache: context.exec.node().push_cache(),
        generation: context.connection.generation,
    };
    match names.service() {
        Some(service) => {
            let answer = context.exec.node().query(&service, now)?;
            header.last_ref_time = answer.last_ref_time;
            service_info::write_view(&mut out, header, &answer.view, request.healthy_only.0);
        }
        None => service_info::write_empty(&mut out, header),
    }
    out.extend_from_slice(OK_TAIL);
    Ok(out.into())
}
