//! Namespaces: the default one, and those that hold a service.

use http::StatusCode;
use rollcall_core::model::service_key::DEFAULT_NAMESPACE;
use serde::Serialize;

use crate::error::{Code, HttpFailure};
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// A namespace as consoles see it.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    namespace: String,
    namespace_show_name: String,
    namespace_desc: Option<&'static str>,
    quota: u32,
    config_count: u32,
    r#type: u8,
}

/// All namespaces, the default one first.
pub fn all(app: &HttpApp, api: Api) -> Vec<Namespace> {
    let default = Namespace {
        namespace: api.default_namespace().to_owned(),
        namespace_show_name: DEFAULT_NAMESPACE.to_owned(),
        namespace_desc: Some("Default Namespace"),
        quota: 200,
        config_count: 0,
        r#type: 0,
    };
    let holding = app.exec().node().registry().catalog().namespaces();
    let others = holding.iter().filter(|id| *id != DEFAULT_NAMESPACE);
    let others = others.map(|id| Namespace {
        namespace: id.to_string(),
        namespace_show_name: id.to_string(),
        namespace_desc: None,
        quota: 200,
        config_count: 0,
        r#type: if api == Api::V3 { 1 } else { 2 },
    });
    std::iter::once(default).chain(others).collect()
}

/// The namespace with this id.
pub fn find(app: &HttpApp, api: Api, id: &str) -> Option<Namespace> {
    all(app, api)
        .into_iter()
        .find(|namespace| namespace.namespace == id)
}

/// The text that refuses an unknown namespace.
pub fn unknown(id: &str) -> String {
    format!("namespaceId [ {id} ] not exist")
}

/// GET list.
///
/// # Errors
/// None.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::value(params.api(), &all(app, params.api())))
}

/// GET: the one with the id `namespaceId`.
///
/// # Errors
/// 400 when none is given, 404 for an unknown one.
pub fn get(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let id = params.get("namespaceId").unwrap_or_default();
    if !params.has("namespaceId") {
        return Err(HttpFailure::missing(params.lack(), "namespaceId", "String"));
    }
    match find(app, params.api(), id) {
        Some(namespace) => Ok(Reply::value(params.api(), &namespace)),
        None => Err(HttpFailure::text(StatusCode::NOT_FOUND, unknown(id)).with(Code::NO_NAMESPACE)),
    }
}
