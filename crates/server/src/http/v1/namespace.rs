//! `/v1/console/namespaces`: namespaces as consoles of v1 read them.

use rollcall_core::limits;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::namespace;
use crate::http::v1::auth;

/// GET: all; with `show=all` the one with the id `namespaceId`; with `checkNamespaceIdExist=true` whether the one
/// with the id `customNamespaceId` exists.
///
/// # Errors
/// 500 for an unknown namespace and a missing id, as recorded.
pub fn namespaces(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let api = params.api();
    if params.get("show") == Some("all") {
        let id = params.get("namespaceId").unwrap_or_default();
        return match namespace::find(app, api, id) {
            Some(namespace) => Ok(Reply::bare(&namespace)),
            None => Err(auth::failed(&namespace::unknown(id))),
        };
    }
    if params.choice("checkNamespaceIdExist", false)? {
        if !params.has("customNamespaceId") {
            return Err(auth::missing("customNamespaceId"));
        }
        let id = params.get("customNamespaceId");
        return Ok(Reply::bare(&id.is_some_and(|id| namespace::exists(app, id))));
    }
    Ok(Reply::rest(&namespace::all(app, api)))
}

/// The parameter, which may be empty where that means something.
fn given<'a>(params: &'a Params, name: &str) -> Result<&'a str, HttpFailure> {
    match params.get(name) {
        None if !params.has(name) => Err(auth::missing(name)),
        value => Ok(value.unwrap_or_default()),
    }
}

/// POST: makes a namespace with the id `customNamespaceId`, a new one when that is blank; false when it is taken.
///
/// # Errors
/// 400 for what is refused, 500 for what is missing.
pub fn create(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let desc = params.get("namespaceDesc").unwrap_or_default();
    limits::check_namespace(params.get("customNamespaceId").unwrap_or_default())?;
    limits::check_namespace_name(params.get("namespaceName").unwrap_or_default())?;
    limits::check_namespace_desc(desc)?;
    given(params, "customNamespaceId")?;
    let name = given(params, "namespaceName")?;
    let id = namespace::id_or_new(params.get("customNamespaceId"))?;
    let is_new = !namespace::exists(app, &id);
    if is_new {
        namespace::set(app, &id, name, desc)?;
    }
    Ok(Reply::bare(&is_new))
}

/// PUT: changes name and description; true for an unknown namespace, false for what is refused.
///
/// # Errors
/// 500 for what is missing.
pub fn update(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (id, name) = (given(params, "namespace")?, given(params, "namespaceShowName")?);
    let desc = params.get("namespaceDesc").unwrap_or_default();
    if limits::check_namespace_name(name).is_err() || limits::check_namespace_desc(desc).is_err() {
        return Ok(Reply::bare(&false));
    }
    if namespace::exists(app, id) {
        namespace::set(app, id, name, desc)?;
    }
    Ok(Reply::bare(&true))
}

/// DELETE: true, also for an unknown namespace.
///
/// # Errors
/// 500 when none is named.
pub fn remove(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    namespace::unset(app, given(params, "namespaceId")?)?;
    Ok(Reply::bare(&true))
}
