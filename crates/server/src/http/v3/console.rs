//! `/v3/console/core/cluster`: the members as consoles ask for them.

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
    Ok(Reply::data(params.api(), |out| {
        cluster::write_members(out, app, params.api(), |member| {
            member.address.starts_with(keyword)
        });
    }))
}
