//! `/v3/admin/core/namespace` and `/v3/console/core/namespace`: what differs from v2.

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::namespace;

/// GET check: the number of namespaces with the id `namespaceId`.
///
/// # Errors
/// 400 when none is given.
pub fn count(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let id = params.required("namespaceId")?;
    let exists = namespace::exists(app, id);
    Ok(Reply::value(params.api(), &u8::from(exists)))
}

/// GET exist: whether there is a namespace with the id `customNamespaceId`.
///
/// # Errors
/// 400 when none is given.
pub fn exists(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let id = params.required("customNamespaceId")?;
    Ok(Reply::value(params.api(), &namespace::exists(app, id)))
}

/// POST of consoles: makes a namespace with the id `customNamespaceId`, a new one without.
///
/// # Errors
/// As [`namespace::create`].
pub fn create(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    namespace::create_with(app, params, "customNamespaceId", false)
}
