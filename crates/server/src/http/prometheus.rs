//! `/actuator/prometheus`: everything that is counted, in the OpenMetrics text format.

use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::metrics;

/// GET: all metrics.
pub fn metrics(app: &HttpApp) -> Reply {
    Reply::Metrics(metrics::text(app.exec()))
}
