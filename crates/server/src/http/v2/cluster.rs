//! `/v2/core/cluster/node`, and the same in v3: the members as this node sees them.

use rollcall_node::MemberStatus;

use crate::error::{Code, HttpFailure};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::cluster;

/// The states that a member may have anywhere.
const STATES: [&str; 5] = ["STARTING", "UP", "SUSPICIOUS", "DOWN", "ISOLATION"];

/// GET list: the members whose address starts with `address` and that are in `state`.
///
/// # Errors
/// 400 for a state that does not exist.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let address = params.get("address").unwrap_or_default();
    let state = params.get("state");
    if let Some(state) = state.filter(|state| !STATES.iter().any(|s| s.eq_ignore_ascii_case(state))) {
        return Err(HttpFailure::invalid(format!("Illegal state: {state}")).with(Code::STATE));
    }
    let is_meant = |member: &MemberStatus| {
        member.address.starts_with(address)
            && state.is_none_or(|state| member.state.to_string().eq_ignore_ascii_case(state))
    };
    Ok(Reply::data(params.api(), |out| {
        cluster::write_members(out, app, params.api(), is_meant);
    }))
}

/// GET self: this member.
///
/// # Errors
/// None.
pub fn this(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::data(params.api(), |out| {
        cluster::write_self(out, app, params.api())
    }))
}

/// GET self/health: the process answers.
///
/// # Errors
/// None.
pub fn health(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::value(params.api(), "UP"))
}
