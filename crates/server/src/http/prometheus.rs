//! `/actuator`: everything that is counted, in the OpenMetrics text format, and the health of the process.

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::metrics;

/// GET prometheus: all metrics.
///
/// # Errors
/// None.
pub fn metrics(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::Metrics(metrics::text(app.exec())))
}

/// GET health: the process answers.
///
/// # Errors
/// None.
pub fn health(_app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::Actuator(r#"{"status":"UP"}"#))
}
