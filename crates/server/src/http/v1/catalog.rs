//! `/v1/ns/catalog`: what consoles of v1 and v2 read.

use serde::Serialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::api::{Api, Lack};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::catalog::{self, Summary};
use crate::http::shared::paging;
use crate::http::shared::service::{self, Pairs, Selector, ServiceStatus};
use crate::json;
use crate::service_info;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Services {
    count: usize,
    service_list: Vec<Summary>,
}

/// GET services: a page of the services of a namespace, with their instances if `withInstances` says so.
///
/// # Errors
/// 400 without paging.
pub async fn services(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (no, size) = page(params)?;
    let found = catalog::services(app, params, "hasIpCount").await?;
    // All of them when they fit into one page, whichever is asked for.
    let page = if found.len() < size {
        &found
    } else {
        paging::slice(&found, no, size)
    };
    if params.choice("withInstances", false)? {
        return Ok(Reply::data(params.api(), |out| {
            json::list(out, page, write_with_instances);
        }));
    }
    Ok(Reply::bare(&Services {
        count: found.len(),
        service_list: page.iter().map(Summary::of).collect(),
    }))
}

fn write_with_instances(out: &mut Vec<u8>, status: &ServiceStatus) {
    out.extend_from_slice(b"{\"namespace\":null");
    json::member(out, "serviceName");
    json::string(out, status.key.name());
    json::member(out, "groupName");
    json::string(out, status.key.group());
    json::member(out, "clusterMap");
    out.push(b'{');
    for (at, cluster) in status.clusters().iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::string(out, cluster);
        out.extend_from_slice(b":{\"clusterName\":null,\"healthChecker\":null,\"metadata\":null,\"hosts\":");
        json::list(out, status.in_cluster(cluster), |out, row| {
            out.extend_from_slice(b"{\"valid\":");
            json::boolean(out, row.healthy);
            json::member(out, "metadata");
            service_info::metadata(out, &row.metadata);
            json::member(out, "port");
            json::unsigned(out, row.port.into());
            json::member(out, "ip");
            json::string(out, &row.ip);
            json::member(out, "weight");
            json::double(out, row.weight);
            json::member(out, "enabled");
            json::boolean(out, row.enabled);
            out.push(b'}');
        });
        out.push(b'}');
    }
    out.extend_from_slice(
        b"},\"metadata\":{},\"protectThreshold\":0.0,\"selector\":null,\"ephemeral\":null}",
    );
}

#[derive(Serialize)]
struct Detail<'a> {
    service: Service<'a>,
    clusters: Vec<Cluster<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Service<'a> {
    name: &'a str,
    group_name: &'a str,
    protect_threshold: f64,
    selector: Selector,
    metadata: Pairs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster<'a> {
    service_name: &'a str,
    name: SmolStr,
    health_checker: Value,
    default_port: u16,
    default_check_port: u16,
    #[serde(rename = "useIPPort4Check")]
    use_ip_port4_check: bool,
    metadata: Pairs,
}

/// GET service: one service with its clusters.
///
/// # Errors
/// 404 when there is no such service.
pub fn service(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let Some(key) = checked.service else {
        return Err(catalog::no_service("@@"));
    };
    let Some(status) = service::status(app, &key)? else {
        return Err(catalog::no_service(key.grouped_name()));
    };
    let clusters = status.described_clusters(app).into_iter().map(|cluster| Cluster {
        service_name: key.grouped_name(),
        name: cluster.name,
        health_checker: cluster.health_checker,
        default_port: 80,
        default_check_port: cluster.check_port,
        use_ip_port4_check: cluster.uses_instance_port,
        metadata: cluster.metadata,
    });
    Ok(Reply::bare(&Detail {
        service: Service {
            name: key.name(),
            group_name: key.group(),
            protect_threshold: status.protect_threshold(),
            selector: status.selector(),
            metadata: status.metadata(),
        },
        clusters: clusters.collect(),
    }))
}

/// GET instances: a page of the instances of one cluster, disabled ones included.
///
/// # Errors
/// 400 for what is missing; 404 when there is no such service, or nothing in that cluster.
pub fn instances(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let params = params.clone().of(Api::V1, Lack::Parameter);
    let checked = app.check(&params)?;
    let key = checked.require_service()?;
    let cluster = params.required("clusterName")?;
    let (no, size) = page(&params)?;
    let found = catalog::instances(app, key, cluster)?;
    Ok(Reply::data(Api::V1, |out| {
        out.extend_from_slice(b"{\"list\":");
        json::list(out, paging::slice(&found, no, size), |out, row| {
            catalog::write_host(out, key, row)
        });
        json::member(out, "count");
        json::unsigned(out, found.len() as u64);
        out.push(b'}');
    }))
}

/// GET instances of v2: a page of the instances of all clusters. It answers in a result, but fails in plain text.
///
/// # Errors
/// 400 for what is missing.
pub fn instances_of_all(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let params = params.clone().of(Api::V1, Lack::Parameter);
    let checked = app.check(&params)?;
    let key = checked.require_service()?;
    let (no, size) = page(&params)?;
    let wanted = |name| params.get(name).map(|value| value.eq_ignore_ascii_case("true"));
    let (healthy, enabled) = (wanted("healthyOnly"), wanted("enabledOnly"));
    let answer = app.exec().node().query(key, app.exec().now())?;
    let is_wanted = |wanted: Option<bool>, is: bool| wanted.is_none_or(|wanted| wanted == is);
    let found: Vec<_> = answer
        .view
        .instances()
        .filter(|i| is_wanted(healthy, i.healthy) && is_wanted(enabled, i.enabled))
        .collect();
    let page = paging::slice(&found, no, size);
    Ok(Reply::data(Api::V2, |out| {
        out.push(b'{');
        if !page.is_empty() {
            out.extend_from_slice(b"\"instances\":");
            json::list(out, page, |out, row| catalog::write_host(out, key, row));
            out.push(b',');
        }
        out.extend_from_slice(b"\"count\":");
        json::unsigned(out, found.len() as u64);
        out.push(b'}');
    }))
}

/// Number and size of the page asked for. Negative numbers count as 0.
fn page(params: &Params) -> Result<(usize, usize), HttpFailure> {
    let params = params.clone().of(Api::V1, Lack::Parameter);
    let number = |name| {
        params.required(name)?;
        let number = params.integer(name)?.unwrap_or_default();
        Ok::<usize, HttpFailure>(usize::try_from(number).unwrap_or_default())
    };
    Ok((number("pageNo")?, number("pageSize")?))
}
