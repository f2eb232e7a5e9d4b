//! Answers: what a handler returns, and how it becomes a response.

use axum::body::Body;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, PRAGMA, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use rollcall_core::Millis;
use rollcall_node::Family;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Code, HttpFailure, HttpForm};
use crate::http::api::Api;
use crate::http::page;
use crate::json;
use crate::metrics::text::{self, Form};

const RESULT: &[u8] = b"{\"code\":0,\"message\":\"success\",\"data\":";
const REST_RESULT: &[u8] = b"{\"code\":200,\"message\":null,\"data\":";

/// A success.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A text.
    Text(&'static str),
    /// A text that was made for this answer.
    Owned(String),
    /// A JSON document.
    Json(Bytes),
    /// A page for people.
    Page(&'static str),
    /// The health of the process, as a JSON document of a type of its own.
    Actuator(&'static str),
    /// Metrics.
    Metrics(Vec<Family>),
}

impl Reply {
    /// The usual answer to a write.
    pub fn done(api: Api) -> Self {
        match api {
            Api::V1 => Reply::Text("ok"),
            Api::V2 | Api::V3 => Reply::value(api, "ok"),
        }
    }

    /// A JSON document.
    pub fn json(document: Vec<u8>) -> Self {
        Reply::Json(document.into())
    }

    /// A value as a JSON document.
    pub fn bare(value: &(impl Serialize + ?Sized)) -> Self {
        Reply::data(Api::V1, |out| json::value(out, value))
    }

    /// The data that `write` writes as JSON: bare in v1, in a result later.
    pub fn data(api: Api, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut out = Vec::new();
        match api {
            Api::V1 => write(&mut out),
            Api::V2 | Api::V3 => {
                out.extend_from_slice(RESULT);
                write(&mut out);
                out.push(b'}');
            }
        }
        Reply::json(out)
    }

    /// A value: bare in v1, in a result later.
    pub fn value(api: Api, value: &(impl Serialize + ?Sized)) -> Self {
        Reply::data(api, |out| json::value(out, value))
    }

    /// A value as calls of v1 answer it that have nothing to do with naming.
    pub fn rest(value: &(impl Serialize + ?Sized)) -> Self {
        Reply::rest_data(|out| json::value(out, value))
    }

    /// A failure that such a call answers with status 200.
    pub fn rest_failure(code: u32, message: &str) -> Self {
        Reply::bare(&json!({"code": code, "message": message, "data": Value::Null}))
    }

    /// The same for data that `write` writes as JSON.
    pub fn rest_data(write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut out = REST_RESULT.to_vec();
        write(&mut out);
        out.push(b'}');
        Reply::json(out)
    }
}

/// What the asking side wants to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taste {
    /// Text as `text/plain`, pages as JSON.
    Plain,
    /// Text as `text/html`, pages as HTML: the list of accepted types starts with it.
    Html,
    /// As `Plain`, and metrics in the form of OpenMetrics.
    OpenMetrics,
}

const TEXT_PLAIN: HeaderValue = HeaderValue::from_static("text/plain;charset=UTF-8");
const TEXT_HTML: HeaderValue = HeaderValue::from_static("text/html;charset=UTF-8");
const HTML_PAGE: HeaderValue = HeaderValue::from_static("text/html;charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const ACTUATOR: HeaderValue = HeaderValue::from_static("application/vnd.spring-boot.actuator.v3+json");

impl Taste {
    fn text(self) -> HeaderValue {
        match self {
            Taste::Plain | Taste::OpenMetrics => TEXT_PLAIN,
            Taste::Html => TEXT_HTML,
        }
    }
}

/// The response to a success.
pub fn success(reply: Reply, taste: Taste) -> Response<Body> {
    let (content_type, body) = match reply {
        Reply::Text(text) => (taste.text(), Bytes::from_static(text.as_bytes())),
        Reply::Owned(text) => (taste.text(), text.into()),
        Reply::Page(page) => (TEXT_HTML, Bytes::from_static(page.as_bytes())),
        Reply::Json(document) => (JSON, document),
        Reply::Actuator(document) => (ACTUATOR, Bytes::from_static(document.as_bytes())),
        Reply::Metrics(families) => {
            let form = match taste {
                Taste::OpenMetrics => Form::OpenMetrics,
                Taste::Plain | Taste::Html => Form::Plain,
            };
            let content_type = HeaderValue::from_static(form.content_type());
            (content_type, text::write(&families, form).into())
        }
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The response to a failure of a call of this generation on `path`.
pub fn failure(failure: HttpFailure, api: Api, taste: Taste, path: &str, now: Millis) -> Response<Body> {
    let HttpFailure {
        status,
        text,
        form,
        code,
    } = failure;
    let is_result = api != Api::V1;
    let (content_type, body) = match (form, taste) {
        (HttpForm::Text | HttpForm::State, _) if is_result => {
            (Some(JSON), result(code, code.message, Some(&text)))
        }
        (HttpForm::Message, _) if is_result => (Some(JSON), result(code, &text, None)),
        (HttpForm::Text | HttpForm::Message, _) => (Some(taste.text()), text.into_bytes()),
        (HttpForm::Bare | HttpForm::State, _) => (None, text.into_bytes()),
        (HttpForm::Page, Taste::Plain | Taste::OpenMetrics) => {
            (Some(JSON), page::json_page(status, &text, path, now))
        }
        (HttpForm::Page, Taste::Html) => (Some(HTML_PAGE), page::html_page(status, &text)),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
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

fn result(code: Code, message: &str, data: Option<&str>) -> Vec<u8> {
    let mut out = b"{\"code\":".to_vec();
    json::unsigned(&mut out, code.number.into());
    json::member(&mut out, "message");
    json::string(&mut out, message);
    json::member(&mut out, "data");
    json::value(&mut out, &data);
    out.push(b'}');
    out
}

/// The response to a method that the path does not have.
pub fn method_not_allowed(
    allowed: &str,
    method: &str,
    api: Api,
    taste: Taste,
    path: &str,
    now: Millis,
) -> Response<Body> {
    let text = match api {
        Api::V1 | Api::V2 => format!("Request method '{method}' is not supported, use {allowed}"),
        Api::V3 => format!("Method '{method}' is not supported."),
    };
    let page = HttpFailure::page(StatusCode::METHOD_NOT_ALLOWED, text);
    let mut response = failure(page, api, taste, path, now);
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn body(response: Response<Body>) -> String {
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn data_are_bare_in_v1_and_in_a_result_later() {
        for (api, done, data) in [
            (Api::V1, "ok", "[1]"),
            (
                Api::V2,
                r#"{"code":0,"message":"success","data":"ok"}"#,
                r#"{"code":0,"message":"success","data":[1]}"#,
            ),
        ] {
            assert_eq!(body(success(Reply::done(api), Taste::Plain)).await, done);
            assert_eq!(body(success(Reply::value(api, &[1]), Taste::Plain)).await, data);
        }
        let rest = success(Reply::rest("UP"), Taste::Plain);
        assert_eq!(body(rest).await, r#"{"code":200,"message":null,"data":"UP"}"#);
    }

    #[tokio::test]
    async fn a_failure_is_text_in_v1_and_a_result_later() {
        let refused = || HttpFailure::invalid("x \"y\"");
        let answer = |failed, api| failure(failed, api, Taste::Plain, "/p", Millis(0));
        assert_eq!(body(answer(refused(), Api::V1)).await, "x \"y\"");
        assert_eq!(
            body(answer(refused(), Api::V2)).await,
            r#"{"code":20002,"message":"parameter validate error","data":"x \"y\""}"#
        );
        assert_eq!(
            body(answer(HttpFailure::unfit("a", "b", "Double"), Api::V3)).await,
            r#"{"code":30000,"message":"the value 'b' of 'a' is no Double","data":null}"#
        );
        let bare = HttpFailure::new(HttpForm::Bare, StatusCode::BAD_REQUEST, "t");
        let response = answer(bare, Api::V3);
        assert!(!response.headers().contains_key(CONTENT_TYPE));
        assert_eq!(body(response).await, "t");
    }
}
