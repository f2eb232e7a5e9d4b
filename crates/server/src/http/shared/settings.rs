//! What operators set for services and for their clusters, in all generations.

use std::sync::Arc;

use http::StatusCode;
use rollcall_core::registry::records::{ClusterSettings, Record, RecordKey, ServiceSettings};
use rollcall_core::{Now, ServiceKey};
use rollcall_node::Actions;
use rollcall_node::NodeError;
use rollcall_node::node::Node;
use serde_json::Value;
use smol_str::SmolStr;

use crate::error::{Code, HttpFailure};
use crate::http::api::{Api, Lack};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// Longest text of a selector or of a health checker.
const TEXT_MAX: usize = 4096;

/// POST: creates a service, which is listed from now on without instances as well.
///
/// # Errors
/// 400 when there is such a service, and for values that cannot be.
pub fn create(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, params) = named(app, params)?;
    let settings = read(&params)?;
    act(app, &params, |node, now, actions| {
        node.create_service(&service, settings, now, actions)
    })
}

/// PUT: changes a service. What is not named is set back.
///
/// # Errors
/// 400 when there is no such service, and for values that cannot be.
pub fn update(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, params) = named(app, params)?;
    if params.api() == Api::V1 {
        params
            .clone()
            .of(Api::V1, Lack::Param)
            .required("protectThreshold")?;
    }
    let mut settings = read(&params)?;
    // The kind of a service does not change. One that instances made is for ephemeral ones.
    let former = app.exec().node().registry().service_settings(&service);
    settings.is_ephemeral = former.is_none_or(|former| former.is_ephemeral);
    act(app, &params, |node, now, actions| {
        node.update_service(&service, settings, now, actions)
    })
}

/// DELETE: removes a service without instances.
///
/// # Errors
/// 400 when there is no such service, and when it has an instance.
pub fn delete(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let params = match params.api() {
        Api::V2 => params.clone().of(Api::V2, Lack::Argument),
        Api::V1 | Api::V3 => params.clone(),
    };
    let (service, params) = named(app, &params)?;
    act(app, &params, |node, now, actions| {
        node.delete_service(&service, now, actions)
    })
}

/// PUT cluster: says how a cluster is checked, and its metadata. Kept and shown; instances that beat are not checked.
///
/// # Errors
/// 400 when there is no such service, and for values that cannot be.
pub fn update_cluster(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    if params.api() != Api::V1 {
        checked.require_service()?; // What is missing is told in the order of the generation.
    }
    let cluster = SmolStr::new(params.required("clusterName")?);
    let service = checked.require_service()?.clone();
    let port = params.required("checkPort")?;
    let settings = ClusterSettings {
        check_port: port.parse().map_err(|_| HttpFailure::no_number(port))?,
        uses_instance_port: params
            .required("useInstancePort4Check")?
            .eq_ignore_ascii_case("true"),
        health_checker: json_text("healthChecker", params.required("healthChecker")?)?,
        metadata: params.metadata()?,
    };
    if !app.exec().node().is_service(&service) {
        let text = format!("service not found:{}", service.grouped_name());
        return Err(HttpFailure::text(StatusCode::BAD_REQUEST, text).with(Code::SERVER));
    }
    let key = RecordKey::Cluster(service, cluster);
    let record = Some(Record::Cluster(Arc::new(settings)));
    act(app, params, |node, now, actions| {
        node.set_record(&key, record, now, actions)
    })
}

/// The service that a call names; what is missing is told as for writes of services.
fn named(app: &HttpApp, params: &Params) -> Result<(ServiceKey, Params), HttpFailure> {
    let params = match params.api() {
        Api::V1 => params.clone().of(Api::V1, Lack::Parameter),
        _ => params.clone(),
    };
    let service = app.check(&params)?.require_service()?.clone();
    Ok((service, params))
}

fn read(params: &Params) -> Result<ServiceSettings, HttpFailure> {
    let threshold = params.get("protectThreshold").unwrap_or_default();
    let protect_threshold = match threshold.trim().parse::<f64>() {
        _ if threshold.is_empty() => 0.0,
        Ok(number) if number.is_finite() => number,
        _ => {
            let text = format!("Param 'protectThreshold' is illegal, {threshold:?} is no number.");
            return Err(HttpFailure::invalid(text));
        }
    };
    Ok(ServiceSettings {
        protect_threshold,
        metadata: params.metadata()?,
        selector: selector(params.get("selector").unwrap_or_default())?,
        is_ephemeral: params.flag(&["ephemeral"], false)?,
    })
}

/// The selector's text, if it is of a kind that there is.
fn selector(text: &str) -> Result<SmolStr, HttpFailure> {
    if text.trim().is_empty() {
        return Ok(SmolStr::default());
    }
    let refuse = || {
        let text = "not match any type of selector!";
        HttpFailure::text(StatusCode::BAD_REQUEST, text).with(Code::SELECTOR)
    };
    let value: Value = serde_json::from_str(text).map_err(|_| refuse())?;
    match value.get("type").and_then(Value::as_str) {
        Some("none") => Ok(SmolStr::default()),
        Some("label") if text.len() <= TEXT_MAX => Ok(text.into()),
        _ => Err(refuse()),
    }
}

fn json_text(name: &str, text: &str) -> Result<SmolStr, HttpFailure> {
    let is_object = serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    if is_object && text.len() <= TEXT_MAX {
        Ok(text.into())
    } else {
        let text =
            format!("Param '{name}' is illegal, it must be a JSON object of at most {TEXT_MAX} bytes.");
        Err(HttpFailure::invalid(text))
    }
}

fn act(
    app: &HttpApp,
    params: &Params,
    set: impl FnOnce(&Node, Now, &mut Actions) -> Result<(), NodeError>,
) -> Result<Reply, HttpFailure> {
    let exec = app.exec();
    let mut actions = Actions::default();
    let result = set(exec.node(), exec.now(), &mut actions);
    exec.run(actions);
    result?;
    Ok(Reply::done(params.api()))
}
