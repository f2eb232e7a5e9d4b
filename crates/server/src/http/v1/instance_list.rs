//! `/v1/ns/instance/list`: what 1.x clients discover through.

use http::request::Parts;

use crate::error::HttpFailure;
use crate::http::params::{Checked, Params};
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::http::udp_poll;
use crate::service_info::{self, Header};
use crate::transport::Generation;

/// GET: the enabled instances of a service; an unknown service has none. A client that names a UDP port is subscribed.
pub fn list(app: &HttpApp, params: &Params, checked: &Checked, parts: &Parts) -> Result<Reply, HttpFailure> {
    let service = checked.require_service()?;
    let port = match params.get("udpPort") {
        Some(port) => port.parse::<i32>().map_err(|_| HttpFailure::no_number(port))?,
        None => 0,
    };
    let clusters = params.get("clusters").unwrap_or_default();
    let answer = app.exec().node().query(service, app.exec().now())?;
    udp_poll::polled(app.exec(), parts, params.get("clientIP"), port, service, clusters);
    let header = Header {
        name: Some(service.grouped_name()),
        group: Some(service.group()),
        clusters: Some(clusters),
        last_ref_time: answer.last_ref_time,
        generation: Generation::Two,
    };
    let mut out = Vec::new();
    service_info::write_view(&mut out, header, &answer.view, params.is_true("healthyOnly"));
    Ok(Reply::json(out))
}
