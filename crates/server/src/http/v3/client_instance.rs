//! `/v3/client/ns/instance`: what light clients call.

use rollcall_core::Selection;
use rollcall_core::model::service_key::DEFAULT_CLUSTER;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::{beat, instance};
use crate::service_info::Host;

/// POST: registers or replaces one row; with `heartBeat=true` renews it.
///
/// # Errors
/// 400 for what is missing or refused; what the node says.
pub async fn register(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    if params.flag(&["heartBeat"], false)? {
        beat::light_beat(app, params).await
    } else {
        instance::register(app, params).await
    }
}

/// GET list: the enabled instances of one cluster, `DEFAULT` unless named. `healthyOnly` is read and means nothing.
///
/// # Errors
/// 400 when no service is named.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = params.check_list(app.metadata_limit())?;
    params.choice("healthyOnly", false)?;
    let service = checked.require_service()?;
    let view = app.exec().node().query(service, app.exec().now())?.view;
    let selection = Selection {
        clusters: params.get("clusterName").unwrap_or(DEFAULT_CLUSTER),
        healthy_only: false,
    };
    let hosts = view.encoded(&selection, &Host).hosts;
    Ok(Reply::data(params.api(), |out| {
        out.push(b'[');
        out.extend_from_slice(&hosts);
        out.push(b']');
    }))
}
