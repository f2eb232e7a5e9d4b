//! `/v1/ns/service/list`: names of services.

use crate::error::HttpFailure;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::json;

/// GET: a page of plain names.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let number = |text: &str| text.parse::<i64>().unwrap_or(0); // What is no number counts as 0, as recorded.
    let page_no = number(params.required("pageNo")?);
    let page_size = number(params.required("pageSize")?);
    let (node, now) = (app.exec().node(), app.exec().now());
    let page = node.service_names(params.namespace(), params.group(), page_no, page_size, now)?;
    let mut out = b"{\"count\":".to_vec();
    json::unsigned(&mut out, page.count as u64);
    out.extend_from_slice(b",\"doms\":[");
    for (at, name) in page.names.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::string(&mut out, name);
    }
    out.extend_from_slice(b"]}");
    Ok(Reply::json(out))
}
