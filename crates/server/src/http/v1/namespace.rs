//! `/v1/console/namespaces`: namespaces as consoles of v1 read them.

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
        return Ok(Reply::bare(
            &id.is_some_and(|id| namespace::find(app, api, id).is_some()),
        ));
    }
    Ok(Reply::rest(&namespace::all(app, api)))
}
