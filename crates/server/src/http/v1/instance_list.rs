//! `/v1/ns/instance/list`: what 1.x clients discover through.

use crate::error::HttpFailure;
use crate::http::params::{Checked, Params};
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::service_info::{self, Header};
use crate::transport::Generation;

/// GET: the enabled instances of a service; an unknown service has none.
pub fn list(app: &HttpApp, params: &Params, checked: &Checked) -> Result<Reply, HttpFailure> {
    let service = checked.require_service()?;
    if let Some(port) = params.get("udpPort") {
        port.parse::<i32>().map_err(|_| HttpFailure::no_number(port))?;
    }
    let answer = app.exec().node().query(service, app.exec().now())?;
    let header = Header {
        name: Some(service.grouped_name()),
        group: Some(service.group()),
        clusters: Some(params.get("clusters").unwrap_or_default()),
        last_ref_time: answer.last_ref_time,
        generation: Generation::Two,
    };
    let mut out = Vec::new();
    service_info::write_view(&mut out, header, &answer.view, params.is_true("healthyOnly"));
    Ok(Reply::json(out))
}
