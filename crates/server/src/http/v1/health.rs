//! `/v1/ns/health`: what v1 has of its own.

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// GET server: a greeting with the number of services.
///
/// # Errors
/// None.
pub fn server(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    let services = app.exec().node().registry().catalog().len();
    let port = app.main_port();
    let text = format!("Hello! I am Nacos-Naming and healthy! total services: {services}, local port:{port}");
    let mut out = b"{\"msg\":".to_vec();
    json::string(&mut out, &text);
    out.push(b'}');
    Ok(Reply::json(out))
}
