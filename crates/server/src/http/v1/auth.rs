//! `/v1/auth`: logging in. There are no users yet, so nobody can, and no call asks for a token.

use http::StatusCode;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// GET or POST login: as a server without users answers it.
///
/// # Errors
/// 500 always.
pub fn login(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let given = |name: &str| params.get(name).ok_or_else(|| missing(name));
    let user = given("username")?;
    given("password")?;
    Err(failed(&format!("User {user} not found")))
}

/// The refusal of a call of consoles and of logging in that lacks a parameter.
pub(super) fn missing(name: &str) -> HttpFailure {
    failed(&format!(
        "Required request parameter &#39;{name}&#39; for method parameter type String is not present"
    ))
}

/// A failure of a call of consoles or of logging in.
pub(super) fn failed(cause: &str) -> HttpFailure {
    HttpFailure::text(StatusCode::INTERNAL_SERVER_ERROR, format!("caused: {cause};"))
}
