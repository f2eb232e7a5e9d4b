//! `ServiceListRequest`: a page of service names.

use super::{Answer, Context, Names};
use crate::grpc::lenient::{self, Int, Text, object};
use crate::grpc::payload::{OK_HEAD, OK_TAIL};
use crate::json;

object! {
    /// A page asked for. The selector that may come with it is not read, as in the servers it is known from.
    ServiceListRequest<'a> {
        /// Namespace.
        namespace ("namespace"): Text<'a> = Text(None),
        /// Only checked.
        service ("serviceName"): Text<'a> = Text(None),
        /// Group.
        group ("groupName"): Text<'a> = Text(None),
        /// Number of the page, from 1.
        page_no ("pageNo"): Int = Int(0),
        /// Names on a page.
        page_size ("pageSize"): Int = Int(0),
    }
}

/// Answers with the page. Without a group there is nothing to list.
pub fn handle(context: &Context<'_>, body: &[u8]) -> Answer {
    let request: ServiceListRequest<'_> = lenient::parse(body)?;
    let names = Names {
        namespace: &request.namespace,
        service: &request.service,
        group: &request.group,
    };
    names.check()?;
    let (page_no, page_size) = (i64::from(request.page_no.0), i64::from(request.page_size.0));
    let group = request.group.as_str();
    let page = if group.trim().is_empty() {
        Default::default()
    } else {
        context.exec.node().service_names(
            super::namespace_or_default(&request.namespace),
            group,
            page_no,
            page_size,
            context.exec.now(),
        )?
    };
    let mut out = Vec::with_capacity(96 + page.names.len() * 32);
    out.extend_from_slice(OK_HEAD);
    out.extend_from_slice(b",\"count\":");
    json::unsigned(&mut out, page.count as u64);
    out.extend_from_slice(b",\"serviceNames\":[");
    for (at, name) in page.names.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::string(&mut out, name);
    }
    out.push(b']');
    out.extend_from_slice(OK_TAIL);
    Ok(out.into())
}
