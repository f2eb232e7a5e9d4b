//! What tools of the protocol ask of a server beside naming: log levels, commands to its consensus store, its number
//! generators, texts for consoles.

use http::StatusCode;
use serde_json::json;

use crate::error::{Code, HttpFailure, HttpForm};
use crate::http::api::{Api, Lack};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// What consoles show above their pages.
const ANNOUNCEMENT: &str = "Requests are not authenticated: let only trusted networks reach this server.";
/// What consoles show instead of pages that are switched off.
const GUIDE: &str = "This server has no console pages. Tools find everything over HTTP.";
/// The page at the root.
const PAGE: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Rollcall</title></head>\
    <body><h1>Rollcall</h1><p>This is a service registry. It has no console pages: everything is found over HTTP.</p>\
    <ul><li><a href=\"v3/console/server/state\">what this server is</a></li>\
    <li><a href=\"v1/core/cluster/nodes\">members</a></li>\
    <li><a href=\"v3/console/ns/service/list\">services</a></li>\
    <li><a href=\"actuator/prometheus\">metrics</a></li></ul></body></html>";

/// PUT log of a naming API: sets the level of a part of this node until it starts anew.
///
/// # Errors
/// 400 for what is missing or refused.
pub fn set_log_level(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    set_level(app, params)?;
    Ok(Reply::done(params.api()))
}

/// PUT log of a core API: the same with other answers.
///
/// # Errors
/// As [`set_log_level`].
pub fn set_core_log_level(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    set_level(app, params)?;
    Ok(match params.api() {
        Api::V1 => Reply::Text("200"),
        Api::V2 => Reply::rest(&()),
        Api::V3 => Reply::value(Api::V3, &()),
    })
}

fn set_level(app: &HttpApp, params: &Params) -> Result<(), HttpFailure> {
    let params = match params.api() {
        Api::V1 => params.clone().of(Api::V1, Lack::Parameter),
        Api::V2 | Api::V3 => params.clone(),
    };
    let (name, level) = (params.required("logName")?, params.required("logLevel")?);
    app.log_levels()
        .set(name, level)
        .map_err(|error| HttpFailure::invalid(error.to_string()))
}

/// POST raft: refused, as there is no consensus store to command. A failure of this call has status 200.
///
/// # Errors
/// Always.
pub fn command_raft(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let command = params.get("command").unwrap_or("null");
    let text = format!("Not support command : {command}");
    match params.api() {
        Api::V1 | Api::V2 => Ok(Reply::rest_failure(500, &text)),
        Api::V3 => Err(HttpFailure::new(HttpForm::Message, StatusCode::OK, text).with(Code::SERVER)),
    }
}

/// GET ids: the generators of numbers, of which there are none.
///
/// # Errors
/// None.
pub fn ids(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(match params.api() {
        Api::V1 => Reply::rest(&json!({})),
        Api::V2 => Reply::rest(&json!([])),
        Api::V3 => Reply::value(Api::V3, &json!([])),
    })
}

/// GET announcement: what consoles show above their pages.
///
/// # Errors
/// None.
pub fn announcement(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(text_for_consoles(params.api(), ANNOUNCEMENT))
}

/// GET guide: what consoles show instead of pages that are switched off.
///
/// # Errors
/// None.
pub fn guide(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(text_for_consoles(params.api(), GUIDE))
}

fn text_for_consoles(api: Api, text: &str) -> Reply {
    match api {
        Api::V1 => Reply::rest(text),
        Api::V2 | Api::V3 => Reply::value(api, text),
    }
}

/// GET of the root: a page for people who look here with a browser.
///
/// # Errors
/// None.
pub fn page(_app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::Page(PAGE))
}
