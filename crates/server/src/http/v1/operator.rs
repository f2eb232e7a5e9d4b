//! `/v1/ns/operator`: what v1 has of its own.

use serde::Serialize;

use crate::error::HttpFailure;
use crate::http::api::Lack;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// How many pushes there were and how they ended.
#[derive(Serialize)]
struct PushState {
    succeed: u64,
    total: u64,
    ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<PushCost>,
    reset: bool,
}

/// How long pushes of this minute and the one before took, in milliseconds; -1 stands for none.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PushCost {
    avg_push_cost: i64,
    max_push_cost: i64,
}

/// GET push/state: pushes since this node started. They cannot be counted anew.
///
/// # Errors
/// None.
pub fn push_state(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let metrics = app.exec().node().metrics(app.exec().now());
    let metric = |name| metrics.get(name).unwrap_or_default();
    let (total, succeed) = (metric("rollcall_pushes_sent"), metric("rollcall_pushes_acked"));
    let costs = metrics.recent_costs();
    let ms = |span: Option<u64>| span.map_or(-1, |micros| (micros / 1000) as i64);
    let cost = PushCost {
        avg_push_cost: ms(costs.sum.0.checked_div(costs.n_acked)),
        max_push_cost: ms(costs.max.map(|max| max.0)),
    };
    Ok(Reply::bare(&PushState {
        succeed,
        total,
        ratio: if total == 0 {
            0.0
        } else {
            succeed as f64 / total as f64
        },
        detail: params.choice("detail", false)?.then_some(cost),
        reset: false,
    }))
}

/// GET distro/client: the member that takes care of an address that beats.
///
/// # Errors
/// 400 when it is missing or refused.
pub async fn responsible(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let params = params.clone().of(params.api(), Lack::Parameter);
    crate::http::shared::client::responsible(app, &params).await
}
