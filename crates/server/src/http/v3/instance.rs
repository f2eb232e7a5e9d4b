//! `/v3/admin/ns/instance` and `/v3/console/ns/instance`: what operators call.

use std::sync::Arc;

use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::{Instance, ServiceKey};

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::catalog::{self, write_host};
use crate::http::shared::instance;
use crate::http::shared::paging::Page;
use crate::json;

/// GET: one row as lists show it, also a disabled one.
///
/// # Errors
/// 400 for what is missing; 404 when there is no such row.
pub fn detail(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, row) = instance::find(app, params)?;
    Ok(Reply::data(params.api(), |out| write_host(out, &service, &row)))
}

/// PUT partial: changes the operator's values. A form without weight says 1, one without `enabled` says true.
///
/// # Errors
/// 400 for what is missing or refused; 404 when there is no such row.
pub async fn patch(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, target) = instance::row(app, params)?;
    let weight = Some(params.fraction("weight")?.unwrap_or(1.0));
    let enabled = Some(params.flag(&["enabled"], true)?);
    let metadata = params.get("metadata").map(|_| params.metadata()).transpose()?;
    instance::patch(app, service, target, weight, enabled, metadata).await?;
    Ok(Reply::done(params.api()))
}

/// GET list: the instances of one cluster, disabled ones included.
///
/// # Errors
/// 400 when no service is named; 404 when there is no such service, or nothing in that cluster.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, mut found) = in_cluster(app, params)?;
    if params.choice("healthyOnly", false)? {
        found.retain(|row| row.healthy);
    }
    Ok(Reply::data(params.api(), |out| {
        json::list(out, &found, |out, row| write_host(out, &service, row));
    }))
}

/// GET list for consoles: a page of the same.
///
/// # Errors
/// As [`list`]; 400 for a page that cannot be.
pub fn page(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let page = Page::read(params)?;
    let (service, found) = in_cluster(app, params)?;
    Ok(page.reply(params, &found, |out, row| write_host(out, &service, row)))
}

fn in_cluster(app: &HttpApp, params: &Params) -> Result<(ServiceKey, Vec<Arc<Instance>>), HttpFailure> {
    let checked = app.check(params)?;
    let service = checked.require_service()?;
    let cluster = params.get("clusterName").unwrap_or(DEFAULT_CLUSTER);
    Ok((service.clone(), catalog::instances(app, service, cluster)?))
}
