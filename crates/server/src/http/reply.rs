//! Answers: what a handler returns, and how it becomes a response.

use axum::body::Body;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, PRAGMA};
use http::{HeaderValue, Response, StatusCode};
use rollcall_core::Millis;

use crate::error::{HttpFailure, HttpForm};
use crate::http::page;

/// A success.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A text.
    Text(&'static str),
    /// A JSON document.
    Json(Bytes),
    /// Metrics in the OpenMetrics text format.
    Metrics(String),
}

impl Reply {
    /// The usual answer to a write.
    pub const OK: Reply = Reply::Text("ok");

    /// A JSON document.
    pub fn json(document: Vec<u8>) -> Self {
        Reply::Json(document.into())
    }
}

/// What the asking side wants to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taste {
    /// Text as `text/plain`, pages as JSON.
    Plain,
    /// Text as `text/html`, pages as HTML: the list of accepted types starts with it.
    Html,
}

const TEXT_PLAIN: HeaderValue = HeaderValue::from_static("text/plain;charset=UTF-8");
const TEXT_HTML: HeaderValue = HeaderValue::from_static("text/html;charset=UTF-8");
const HTML_PAGE: HeaderValue = HeaderValue::from_static("text/html;charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

impl Taste {
    fn text(self) -> HeaderValue {
        match self {
            Taste::Plain => TEXT_PLAIN,
            Taste::Html => TEXT_HTML,
        }
    }
}

/// The response to a success.
pub fn success(reply: Reply, taste: Taste) -> Response<Body> {
    let (content_type, body) = match reply {
        Reply::Text(text) => (taste.text(), Bytes::from_static(text.as_bytes())),
        Reply::Json(document) => (JSON, document),
        Reply::Metrics(text) => (METRICS, text.into()),
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The response to a failure on `path`.
pub fn failure(failure: HttpFailure, taste: Taste, path: &str, now: Millis) -> Response<Body> {
    let HttpFailure { status, text, form } = failure;
    let (content_type, body) = match (form, taste) {
        (HttpForm::Text, _) => (Some(taste.text()), text.into_bytes()),
        (HttpForm::Bare, _) => (None, text.into_bytes()),
        (HttpForm::Page, Taste::Plain) => (Some(JSON), page::json_page(status, &text, path, now)),
        (HttpForm::Page, Taste::Html) => (Some(HTML_PAGE), page::html_page(status, &text)),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    match content_type {
        Some(content_type) => {
            headers.insert(CONTENT_TYPE, content_type);
        }
        None => {
            headers.insert(PRAGMA, HeaderValue::from_static("no-cache"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache,no-store"));
        }
    }
    response
}

/// The response to a method that the path does not have.
pub fn method_not_allowed(
    allowed: &str,
    method: &str,
    taste: Taste,
    path: &str,
    now: Millis,
) -> Response<Body> {
    let text = format!("Request method '{method}' is not supported, use {allowed}");
    let mut response = failure(
        HttpFailure::page(StatusCode::METHOD_NOT_ALLOWED, text),
        taste,
        path,
        now,
    );
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}
