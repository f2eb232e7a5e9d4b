//! `/actuator`: everything that is counted, in the form that the scraper asks for, and the health of the process.

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::metrics;

/// GET prometheus: all metrics.
///
/// # Errors
/// None.
pub async fn metrics(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    let census = app.look(|node| node.census()).await;
    let families = metrics::gather(app.exec(), &census, app.machine().load());
    Ok(Reply::Metrics(families))
}

/// GET health: the process answers.
///
/// # Errors
/// None.
pub fn health(_app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::Actuator(r#"{"status":"UP"}"#))
}
