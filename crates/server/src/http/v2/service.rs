//! `/v2/ns/service`: services as v2 shows them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::service::{self, Pairs, Selector};

/// Largest page.
const PAGE_MAX: i64 = 500;
/// Size of a page unless given.
const PAGE_DEFAULT: i64 = 20;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail<'a> {
    namespace: &'a str,
    service_name: &'a str,
    group_name: &'a str,
    cluster_map: BTreeMap<SmolStr, Cluster>,
    metadata: Pairs,
    protect_threshold: f64,
    selector: Selector,
    ephemeral: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    cluster_name: SmolStr,
    health_checker: Value,
    metadata: Pairs,
    hosts: Option<()>,
}

/// GET: one service.
///
/// # Errors
/// 400 when none is named, or there is no such service.
pub fn get(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let status = service::find(app, params)?;
    let clusters = status.described_clusters(app).into_iter().map(|described| {
        let cluster = Cluster {
            cluster_name: described.name.clone(),
            health_checker: described.health_checker,
            metadata: described.metadata,
            hosts: None,
        };
        (described.name, cluster)
    });
    let detail = Detail {
        namespace: status.key.namespace(),
        service_name: status.key.name(),
        group_name: status.key.group(),
        cluster_map: clusters.collect(),
        metadata: status.metadata(),
        protect_threshold: status.protect_threshold(),
        selector: status.selector(),
        ephemeral: status.is_ephemeral(),
    };
    Ok(Reply::value(params.api(), &detail))
}

#[derive(Serialize)]
struct Names {
    count: usize,
    services: Vec<SmolStr>,
}

/// GET list: a page of plain names.
///
/// # Errors
/// For a number that is none, and for a negative page size.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    app.check(params)?;
    let page_no = params.integer("pageNo")?.unwrap_or(1);
    let page_size = params.integer("pageSize")?.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX);
    let page = service::names(app, params, page_no, page_size)?;
    let names = Names {
        count: page.count,
        services: page.names,
    };
    Ok(Reply::value(params.api(), &names))
}
