//! `/v1/core/cluster`, and the list of servers that clients poll: the members as this node sees them.

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::cluster;

/// GET nodes: all members whose address starts with `keyword`, sorted by address.
///
/// # Errors
/// None.
pub fn nodes(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let keyword = params.get("keyword").unwrap_or_default();
    Ok(Reply::rest_data(|out| {
        cluster::write_members(out, app, params.api(), |member| {
            member.address.starts_with(keyword)
        });
    }))
}

/// GET simple/nodes: the addresses of all members.
///
/// # Errors
/// None.
pub fn simple_nodes(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::rest(&addresses(app)))
}

/// GET self: this member.
///
/// # Errors
/// None.
pub fn this(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::rest_data(|out| {
        cluster::write_self(out, app, params.api())
    }))
}

/// GET health: the process answers.
///
/// # Errors
/// None.
pub fn health(_app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::rest("UP"))
}

/// GET `/serverlist`: the addresses of all members, one a line, as clients read them that are given an endpoint.
///
/// # Errors
/// None.
pub fn server_list(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::Owned(
        addresses(app)
            .iter()
            .map(|address| format!("{address}\n"))
            .collect(),
    ))
}

fn addresses(app: &HttpApp) -> Vec<String> {
    let members = app.exec().node().members(app.exec().now());
    members
        .into_iter()
        .map(|member| member.address.to_string())
        .collect()
}
