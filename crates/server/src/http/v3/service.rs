//! `/v3/admin/ns/service` and `/v3/console/ns/service`: services as v3 shows them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::catalog::{self, Summary};
use crate::http::shared::paging::Page;
use crate::http::shared::service::{self, Pairs, Selector, ServiceStatus};
use crate::json;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail<'a> {
    namespace_id: &'a str,
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
    healthy_check_port: u16,
    use_instance_port_for_check: bool,
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
            healthy_check_port: described.check_port,
            use_instance_port_for_check: described.uses_instance_port,
            metadata: described.metadata,
            hosts: None,
        };
        (described.name, cluster)
    });
    let detail = Detail {
        namespace_id: status.key.namespace(),
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

/// GET list: a page of the services of a namespace, with their instances if `withInstances` says so.
///
/// # Errors
/// 400 for a page that cannot be.
pub async fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let page = Page::read(params)?;
    let found = catalog::services(app, params, "ignoreEmptyService").await?;
    if params.choice("withInstances", false)? {
        return Ok(page.reply(params, &found, write_with_instances));
    }
    Ok(page.reply(params, &found, |out, status| {
        json::value(out, &Summary::of(status))
    }))
}

fn write_with_instances(out: &mut Vec<u8>, status: &ServiceStatus) {
    out.extend_from_slice(b"{\"namespaceId\":null");
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
        out.extend_from_slice(
            b":{\"clusterName\":null,\"healthChecker\":null,\"healthyCheckPort\":80,\
              \"useInstancePortForCheck\":true,\"metadata\":null,\"hosts\":",
        );
        json::list(out, status.in_cluster(cluster), |out, row| {
            catalog::write_host(out, &status.key, row);
        });
        out.push(b'}');
    }
    out.extend_from_slice(
        b"},\"metadata\":{},\"protectThreshold\":0.0,\"selector\":null,\"ephemeral\":null}",
    );
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscriber<'a> {
    namespace_id: &'a str,
    group_name: &'a str,
    service_name: &'a str,
    ip: &'a str,
    port: u16,
    agent: &'a str,
    app_name: &'a str,
}

/// GET subscribers: a page of the clients that are pushed to.
///
/// # Errors
/// 400 when no service is named, or for a page that cannot be.
pub async fn subscribers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let page = Page::read(params)?;
    let checked = app.check(params)?;
    let found = service::subscribers(app, params, checked.require_service()?).await?;
    Ok(page.reply(params, &found, |out, found| {
        let subscriber = Subscriber {
            namespace_id: found.service.namespace(),
            group_name: found.service.group(),
            service_name: found.service.name(),
            ip: &found.ip,
            port: found.port,
            agent: &found.agent,
            app_name: &found.app,
        };
        json::value(out, &subscriber);
    }))
}
