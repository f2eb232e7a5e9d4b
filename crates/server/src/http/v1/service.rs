//! `/v1/ns/service`: services as v1 shows them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::api::Lack;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::paging;
use crate::http::shared::service::{self, Pairs, Selector};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail<'a> {
    namespace_id: &'a str,
    group_name: &'a str,
    name: &'a str,
    protect_threshold: f64,
    metadata: Pairs,
    selector: Selector,
    clusters: Vec<Cluster>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    name: SmolStr,
    health_checker: Value,
    metadata: Pairs,
}

/// GET: one service.
///
/// # Errors
/// 400 when none is named, or there is no such service.
pub fn get(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let params = params.clone().of(params.api(), Lack::Parameter);
    let status = service::find(app, &params)?;
    let clusters = status.described_clusters(app).into_iter().map(|cluster| Cluster {
        name: cluster.name,
        health_checker: cluster.health_checker,
        metadata: cluster.metadata,
    });
    Ok(Reply::bare(&Detail {
        namespace_id: status.key.namespace(),
        group_name: status.key.group(),
        name: status.key.name(),
        protect_threshold: status.protect_threshold(),
        metadata: status.metadata(),
        selector: status.selector(),
        clusters: clusters.collect(),
    }))
}

#[derive(Serialize)]
struct Names {
    count: usize,
    doms: Vec<SmolStr>,
}

/// GET list: a page of plain names.
///
/// # Errors
/// 400 without paging, and for a negative page size.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    app.check(params)?;
    let number = |text: &str| text.parse::<i64>().unwrap_or(0); // What is no number counts as 0, as recorded.
    let page_no = number(params.required("pageNo")?);
    let page_size = number(params.required("pageSize")?);
    let page = service::names(app, params, page_no, page_size)?;
    Ok(Reply::bare(&Names {
        count: page.count,
        doms: page.names,
    }))
}

#[derive(Serialize)]
struct NamesOfAll<'a> {
    /// The key of most releases, by a slip in them.
    #[serde(rename = "META-INF/services")]
    by_namespace: &'a BTreeMap<SmolStr, Vec<String>>,
    /// The key of the first ones.
    services: &'a BTreeMap<SmolStr, Vec<String>>,
    count: usize,
}

/// GET names: the grouped names in which `expr` stands, of one namespace or of all.
///
/// # Errors
/// 400 for a namespace that is refused.
pub async fn names(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    app.check(params)?;
    let expr = params.get("expr").unwrap_or_default().to_owned();
    let namespace = params.get("namespaceId").map(SmolStr::new);
    let by_namespace = app.look(move |node| {
        let catalog = node.registry().catalog();
        let names = |namespace: &str| -> Vec<String> {
            let services = catalog.in_namespace(namespace).into_iter();
            let meant = services.filter(|key| key.name().contains(&expr));
            meant.map(|key| key.grouped_name().to_owned()).collect()
        };
        let namespaces = namespace.map_or_else(|| catalog.namespaces(), |one| vec![one]);
        namespaces
            .into_iter()
            .map(|id| (id.clone(), names(&id)))
            .collect()
    });
    let by_namespace: BTreeMap<_, _> = by_namespace.await;
    Ok(Reply::bare(&NamesOfAll {
        count: by_namespace.values().map(Vec::len).sum(),
        by_namespace: &by_namespace,
        services: &by_namespace,
    }))
}

#[derive(Serialize)]
struct Subscribers<'a> {
    subscribers: Vec<Subscriber<'a>>,
    count: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscriber<'a> {
    addr_str: SmolStr,
    agent: &'a str,
    app: &'a str,
    ip: &'a str,
    port: u16,
    namespace_id: &'a str,
    service_name: &'a str,
    cluster: &'a str,
}

/// GET subscribers: the clients that are pushed to.
///
/// # Errors
/// 400 when no service is named.
pub async fn subscribers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let found = service::subscribers(app, params, checked.require_service()?).await?;
    let number = |name: &str, default| params.get(name).and_then(|n| n.parse().ok()).unwrap_or(default);
    let page = paging::slice(&found, number("pageNo", 1), number("pageSize", 1000));
    let subscribers = page.iter().map(|found| Subscriber {
        addr_str: found.address(),
        agent: &found.agent,
        app: &found.app,
        ip: &found.ip,
        port: found.port,
        namespace_id: found.service.namespace(),
        service_name: found.service.grouped_name(),
        cluster: "",
    });
    Ok(Reply::bare(&Subscribers {
        subscribers: subscribers.collect(),
        count: found.len(),
    }))
}
