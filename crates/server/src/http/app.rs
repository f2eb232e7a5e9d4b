//! The HTTP side: reads a request, hands it to the handler that `router` names, and writes the answer.
//!
//! Headers by which members of other registries mark what they forward mean nothing: members have a port of their
//! own, and on this one every caller is a client.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, ACCESS_CONTROL_REQUEST_METHOD, CONNECTION, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use rollcall_node::Node;
use rollcall_node::action::Actions;
use rollcall_node::error::NodeError;
use rollcall_node::request::{HttpWrite, WriteDone};
use rollcall_node::switches::Access;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::ask::{Asker, Question};
use crate::error::{HttpFailure, HttpForm};
use crate::executor::Executor;
use crate::http::api::Api;
use crate::http::check::Checked;
use crate::http::params::Params;
use crate::http::reply::{self, Reply, Taste};
use crate::http::router::{self, Handler, Route};
use crate::http::udp_poll::{self, Caller};
use crate::load::Want;
use crate::log_levels::LogLevels;
use crate::machine::Machine;
use crate::metrics::text::Form;

/// Longest wait for the answer to a write. The node answers far sooner; this is for a node that does not.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for what another member says of itself.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Longest time that the body of a request may take to come.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// The HTTP side. A clone costs one reference count.
#[derive(Clone)]
pub struct HttpApp(Arc<Shared>);

struct Shared {
    exec: Executor,
    settings: HttpSettings,
    machine: Machine,
    /// Held while members are compared: it asks all of them.
    comparing: Semaphore,
    /// Made when the first other member is asked; `None` when it cannot be.
    asker: OnceLock<Option<Asker>>,
}

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Path before all paths of the protocol, such as `/nacos`; empty for none.
    pub context_path: String,
    /// Largest body, in bytes.
    pub body_limit: usize,
    /// Largest sum of metadata lengths.
    pub metadata_limit: usize,
    /// Main port, told to tools that ask.
    pub main_port: u16,
    /// Levels of the log.
    pub log_levels: Arc<LogLevels>,
}

impl HttpApp {
    /// The HTTP side over the node behind `exec`.
    pub fn new(exec: Executor, settings: HttpSettings) -> Self {
        HttpApp(Arc::new(Shared {
            exec,
            settings,
            machine: Machine::new(),
            comparing: Semaphore::new(1),
            asker: OnceLock::new(),
        }))
    }

    /// The node and its effects.
    pub fn exec(&self) -> &Executor {
        &self.0.exec
    }

    /// How busy the machine is.
    pub fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// Leave to compare the members, to be held meanwhile.
    ///
    /// # Errors
    /// 503 when somebody else does.
    pub fn may_compare(&self) -> Result<SemaphorePermit<'_>, HttpFailure> {
        let permit = self.0.comparing.try_acquire();
        permit.map_err(|_| NodeError::OverLimit("comparisons of the members").into())
    }

    /// What the other members that serve answer on their main ports about themselves; one that does not in time is left
    /// out.
    pub async fn ask_others<T: DeserializeOwned>(&self, question: &Question<'_>) -> Vec<T> {
        let members = self.exec().node().members(self.exec().now()).into_iter();
        let others = members.filter(|member| member.ready && !member.is_self);
        let others: Vec<_> = others.map(|member| member.address).collect();
        let Some(asker) = self.0.asker.get_or_init(|| Asker::new(ASK_LIMIT).ok()) else {
            return Vec::new();
        };
        let answers = asker.ask_all(&others, question).await;
        answers.into_iter().filter_map(Result::ok).collect()
    }

    /// Largest sum of metadata lengths.
    pub fn metadata_limit(&self) -> usize {
        self.0.settings.metadata_limit
    }

    /// Levels of the log.
    pub fn log_levels(&self) -> &LogLevels {
        &self.0.settings.log_levels
    }

    /// Runs the filters that stand before naming handlers.
    ///
    /// # Errors
    /// As [`Params::check`].
    pub fn check(&self, params: &Params) -> Result<Checked, HttpFailure> {
        params.check(self.metadata_limit())
    }

    /// Path before all paths of the protocol; empty for none.
    pub fn context_path(&self) -> &str {
        &self.0.settings.context_path
    }

    /// Main port.
    pub fn main_port(&self) -> u16 {
        self.0.settings.main_port
    }

    /// Hands a write to the node and waits for its answer.
    ///
    /// # Errors
    /// What the node says, or 500 when it says nothing in time.
    ///
    /// # Cancellation
    /// The write may be done all the same.
    pub async fn write(&self, write: HttpWrite) -> Result<WriteDone, HttpFailure> {
        let exec = self.exec();
        let (ticket, answer) = exec.ticket();
        let mut actions = Actions::default();
        exec.node().write(ticket, write, exec.now(), &mut actions);
        exec.run(actions);
        match tokio::time::timeout(WRITE_LIMIT, answer).await {
            Ok(Ok((result, _))) => Ok(result?),
            _ => {
                exec.forget(ticket);
                Err(HttpFailure::text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "caused: the write was not answered in time;",
                ))
            }
        }
    }

    /// What `look` finds in the node; for looks at every row or service, which would keep other requests of the thread
    /// waiting.
    pub async fn look<T: Default + Send + 'static>(
        &self,
        look: impl FnOnce(&Node) -> T + Send + 'static,
    ) -> T {
        let node = self.exec().node().clone();
        tokio::task::spawn_blocking(move || look(&node))
            .await
            .unwrap_or_default()
    }

    /// Answers a request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let taste = taste(&parts.headers);
        let (exec, began) = (self.exec(), self.exec().now());
        let (route, mut response) = if is_preflight(&parts.method, &parts.headers) {
            let text = "Invalid CORS request";
            let failure = HttpFailure::new(HttpForm::Bare, StatusCode::FORBIDDEN, text);
            let page = reply::failure(failure, Api::V1, taste, parts.uri.path(), began.wall);
            (None, page)
        } else {
            self.route(&parts, body, taste).await
        };
        let status = response.status();
        exec.metrics().count_response(status);
        let path = route.map_or("UNKNOWN", Route::path);
        let call = (path, method_name(&parts.method), status.as_u16());
        exec.metrics().http_calls.record(call, began, exec.now());
        if is_cut_short(status) && parts.version < Version::HTTP_2 {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        if parts.method == Method::HEAD {
            response.map(|_| Body::empty())
        } else {
            response
        }
    }

    /// The answer, and the route of the path if there is one.
    async fn route<B>(
        &self,
        parts: &http::request::Parts,
        body: B,
        taste: Taste,
    ) -> (Option<&'static Route>, Response<Body>)
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = parts.uri.path();
        let now = self.exec().now().wall;
        let trimmed = path.strip_suffix('/').unwrap_or(path);
        let below = trimmed.strip_prefix(self.0.settings.context_path.as_str());
        let Some((route, in_path)) = below
            .and_then(router::below_context)
            .or_else(|| router::outside(trimmed))
        else {
            return (None, self.no_such_path(&parts.method, path, below, taste));
        };
        let method = if parts.method == Method::HEAD {
            "GET"
        } else {
            parts.method.as_str()
        };
        let Some(handler) = route.handler(method) else {
            let method = parts.method.as_str();
            let response = reply::method_not_allowed(&route.methods(), method, route.api, taste, path, now);
            return (Some(route), response);
        };
        let response = match self.handle(route, handler, &in_path, parts, body).await {
            Ok(success) => reply::success(success, taste),
            Err(failure) => reply::failure(failure, route.api, taste, path, now),
        };
        (Some(route), response)
    }

    /// The answer to a path that does not exist; `below` is its part below the context path.
    fn no_such_path(&self, method: &Method, path: &str, below: Option<&str>, taste: Taste) -> Response<Body> {
        let text = match below {
            Some(below) if Api::of(below) == Api::V3 => format!("No endpoint {method} {path}."),
            Some(below) if !below.starts_with("/v1/ns") => "No message available".to_owned(),
            _ => format!("no such api:{method}:{path}"),
        };
        // Outside the context path there is nothing of the protocol, so the answer is a page for people.
        let taste = if below.is_some() { taste } else { Taste::Html };
        let failure = HttpFailure::page(StatusCode::NOT_FOUND, text);
        reply::failure(failure, Api::V1, taste, path, self.exec().now().wall)
    }

    async fn handle<B>(
        &self,
        route: &Route,
        handler: &Handler,
        in_path: &[(&'static str, &str)],
        parts: &http::request::Parts,
        body: B,
    ) -> Result<Reply, HttpFailure>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let node = self.exec().node();
        // A node that leaves or is unlisted still reads, and answers a write with what the node says.
        if route.is_naming && !node.is_ready() && !node.serves_reads(self.exec().now()) {
            return Err(node.not_serving().into());
        }
        if route.is_switched() {
            self.check_switches(parts)?;
        }
        if route.is_work(&parts.method) {
            self.exec().admit(Want::Work)?;
        }
        let body = self.read_body(body).await?;
        let content_type = parts
            .headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let query = parts.uri.query().unwrap_or_default();
        let params = Params::read(query, &body, &route.body_kind(content_type))?;
        let mut params = params.of(route.api, route.api.lack(&parts.method));
        for (name, raw) in in_path {
            params.add_from_path(name, raw)?;
        }
        if params.has(udp_poll::port_name(route.api)) {
            params.set_caller(Caller::of(parts));
        }
        match handler {
            Handler::Now(handler) => handler(self, &params),
            Handler::Waits(handler) => handler(self, &params).await,
        }
    }

    /// What operators refuse by switches, on the naming paths of v1 (recorded: later generations go on).
    fn check_switches(&self, parts: &http::request::Parts) -> Result<(), HttpFailure> {
        let node = self.exec().node();
        let is_read = [Method::GET, Method::HEAD].contains(&parts.method);
        node.check_status(if is_read { Access::Read } else { Access::Write })?;
        let heeded = node.heeded();
        if heeded.limits.is_empty() {
            return Ok(());
        }
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let limit = heeded
            .limits
            .iter()
            .find(|(start, _)| path.starts_with(start.as_str()));
        match limit.and_then(|(_, status)| StatusCode::from_u16(*status).ok()) {
            Some(status) => Err(HttpFailure::new(HttpForm::Bare, status, "")),
            None => Ok(()),
        }
    }

    async fn read_body<B>(&self, body: B) -> Result<Bytes, HttpFailure>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        let limit = self.0.settings.body_limit;
        let Ok(collected) = tokio::time::timeout(BODY_LIMIT, Limited::new(body, limit).collect()).await
        else {
            let text = format!("the body did not come within {} s", BODY_LIMIT.as_secs());
            return Err(HttpFailure::text(StatusCode::REQUEST_TIMEOUT, text));
        };
        match collected {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(HttpFailure::text(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is above the limit of {limit} bytes"),
            )),
            Err(_) => Err(HttpFailure::text(StatusCode::BAD_REQUEST, "the body broke off")),
        }
    }
}

/// The rest of the body is not read after these, so an HTTP/1 connection cannot be used again.
fn is_cut_short(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
    )
}

fn taste(headers: &HeaderMap) -> Taste {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let accept = accept.unwrap_or_default().trim_start();
    if accept.starts_with("text/html") {
        Taste::Html
    } else if Form::wanted(accept) == Form::OpenMetrics {
        Taste::OpenMetrics
    } else {
        Taste::Plain
    }
}

/// The method in metrics: one of a fixed number.
fn method_name(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "PATCH" => "PATCH",
        "OPTIONS" => "OPTIONS",
        _ => "UNKNOWN",
    }
}

fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
pub(crate) mod tests {
    use http_body_util::Full;
    use rollcall_node::NodeConfig;
    use rollcall_node::request::ConnectionInfo;
    use serde_json::Value;

    use super::*;
    use crate::clock::Clock;

    const BODY_MAX: usize = 64;

    /// A single node that is ready.
    pub(crate) fn app() -> HttpApp {
        let address = "127.0.0.1:8848";
        let clock = Clock::start();
        let config = NodeConfig::new(address, &[address], 1);
        let exec = Executor::new(Arc::new(Node::new(config, 1, clock.now())), clock, None);
        let mut actions = Actions::default();
        exec.node().tick(exec.now(), &mut actions);
        exec.run(actions);
        let settings = HttpSettings {
            context_path: "/nacos".into(),
            body_limit: BODY_MAX,
            metadata_limit: 1024,
            main_port: 8848,
            log_levels: Arc::new(LogLevels::new("info", |_| Ok(()))),
        };
        HttpApp::new(exec, settings)
    }

    /// Sends a request; the answer's status, its header `Connection`, and its body.
    async fn send(
        app: &HttpApp,
        method: &str,
        path: &str,
        version: Version,
        body: &'static [u8],
    ) -> (u16, Option<HeaderValue>, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .version(version)
            .body(Full::new(Bytes::from_static(body)))
            .unwrap();
        let response = app.answer(request).await;
        let (status, connection) = (
            response.status().as_u16(),
            response.headers().get(CONNECTION).cloned(),
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, connection, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(app: &HttpApp, path: &str) -> (u16, String) {
        let (status, _, body) = send(app, "GET", path, Version::HTTP_11, b"").await;
        (status, body)
    }

    fn leave(app: &HttpApp) {
        let exec = app.exec();
        exec.node().start_leaving(exec.now(), &mut Actions::default());
    }

    #[tokio::test]
    async fn a_body_above_the_limit_ends_its_connection() {
        let app = app();
        let path = "/nacos/v1/ns/instance";
        for (version, length, status, connection) in [
            (Version::HTTP_11, BODY_MAX + 1, 413, Some("close")),
            (Version::HTTP_10, BODY_MAX + 1, 413, Some("close")),
            (Version::HTTP_2, BODY_MAX + 1, 413, None),
            (Version::HTTP_11, BODY_MAX, 400, None),
        ] {
            let body = &[b'x'; BODY_MAX + 1][..length];
            let answer = send(&app, "POST", path, version, body).await;
            let expected = connection.map(HeaderValue::from_static);
            assert_eq!((answer.0, answer.1), (status, expected), "{version:?} {length}");
        }
    }

    #[tokio::test]
    async fn a_node_that_leaves_says_that_it_is_down_and_goes_on_to_answer_reads() {
        let app = app();
        leave(&app);
        let write = "/nacos/v1/ns/instance?serviceName=s&ip=10.0.0.1&port=80";
        for method in ["POST", "DELETE"] {
            let (status, _, text) = send(&app, method, write, Version::HTTP_11, b"").await;
            assert_eq!(
                (status, text.as_str()),
                (503, "server is DOWNnow, please try again later!"),
                "{method}"
            );
        }
        let metrics = get(&app, "/nacos/v1/ns/operator/metrics").await;
        assert_eq!(metrics, (200, r#"{"status":"DOWN"}"#.to_owned()));
        let (_, nodes) = get(&app, "/nacos/v1/core/cluster/nodes").await;
        assert!(nodes.contains(r#""state":"DOWN""#), "{nodes}");
        assert_eq!(get(&app, "/nacos/v1/ns/instance/list?serviceName=s").await.0, 200);
    }

    #[tokio::test]
    async fn a_row_in_quarantine_is_hidden_until_it_is_lifted() {
        let app = app();
        let row = "serviceName=s&ip=10.0.0.1&port=80";
        let register = format!("/nacos/v1/ns/instance?{row}");
        assert_eq!(send(&app, "POST", &register, Version::HTTP_11, b"").await.0, 200);
        let n_listed = async || {
            let (_, body) = get(&app, "/nacos/v1/ns/instance/list?serviceName=s").await;
            let list: Value = serde_json::from_str(&body).unwrap();
            list["hosts"].as_array().unwrap().len()
        };
        assert_eq!(n_listed().await, 1);
        let bad = format!("/rollcall/quarantine?{row}&seconds=0");
        let (status, _, text) = send(&app, "POST", &bad, Version::HTTP_11, b"").await;
        assert_eq!((status, text.contains("'seconds'")), (400, true), "{text}");
        let hide = format!("/rollcall/quarantine?{row}&seconds=60&reason=sick");
        assert_eq!(send(&app, "POST", &hide, Version::HTTP_11, b"").await.0, 200);
        assert_eq!(n_listed().await, 0);
        assert_eq!(send(&app, "POST", &register, Version::HTTP_11, b"").await.0, 200);
        assert_eq!(n_listed().await, 0, "a registration does not lift it");
        let (_, body) = get(&app, "/rollcall/quarantine").await;
        assert!(body.contains(r#""reason":"sick""#), "{body}");
        let lift = format!("/rollcall/quarantine?{row}");
        assert_eq!(send(&app, "DELETE", &lift, Version::HTTP_11, b"").await.0, 200);
        assert_eq!(n_listed().await, 1);
        assert_eq!(get(&app, "/rollcall/quarantine").await.1, "[]");
        let (status, _, text) = send(&app, "DELETE", &lift, Version::HTTP_11, b"").await;
        let fault = "10.0.0.1:80 of service DEFAULT_GROUP@@s is not in quarantine";
        assert_eq!((status, text.trim()), (404, fault));
        let elsewhere = format!("{hide}&namespaceId=dev");
        let (status, _, text) = send(&app, "POST", &elsewhere, Version::HTTP_11, b"").await;
        assert_eq!((status, text.trim()), (404, "namespaceId [ dev ] not exist"));
    }

    #[tokio::test]
    async fn a_process_that_is_far_behind_takes_beats_and_removals_and_turns_the_rest_away() {
        let app = app();
        let row = "serviceName=s&ip=10.0.0.1&port=80";
        let register = format!("/nacos/v1/ns/instance?{row}");
        assert_eq!(send(&app, "POST", &register, Version::HTTP_11, b"").await.0, 200);
        app.exec().set_load(crate::load::Load::behind());
        let beat = format!("/nacos/v1/ns/instance/beat?{row}");
        for (method, path, status) in [
            ("GET", "/nacos/v1/ns/instance/list?serviceName=s", 503),
            ("POST", register.as_str(), 503),
            ("PUT", beat.as_str(), 200),
            ("GET", "/nacos/v1/console/health/readiness", 200),
            ("GET", "/rollcall/rows?serviceName=s", 200),
            ("DELETE", register.as_str(), 200),
        ] {
            let (answered, _, text) = send(&app, method, path, Version::HTTP_11, b"").await;
            assert_eq!(answered, status, "{method} {path}: {text}");
            if status == 503 {
                assert_eq!(text, "server is BUSYnow, please try again later!");
            }
        }
        let request = Request::builder().uri("/nacos/v1/ns/instance/list?serviceName=s");
        let response = app.answer(request.body(Full::new(Bytes::new())).unwrap()).await;
        assert_eq!(response.headers()[http::header::RETRY_AFTER], "1");
    }

    #[tokio::test]
    async fn a_guard_is_set_for_a_namespace_or_a_service_and_shown() {
        let app = app();
        let path = "/rollcall/emptyPushGuard";
        for (query, fault) in [
            ("seconds=61", "'seconds'"),
            ("seconds=-1", "'seconds'"),
            ("serviceName=s", "seconds"),
            ("groupName=g&seconds=1", "serviceName"),
            ("serviceName=a+b&seconds=1", "serviceName"),
        ] {
            let (status, _, text) =
                send(&app, "PUT", &format!("{path}?{query}"), Version::HTTP_11, b"").await;
            assert_eq!((status, text.contains(fault)), (400, true), "{query}: {text}");
        }
        for service in ["", "&serviceName=s"] {
            let set = format!("{path}?namespaceId=dev{service}&seconds=8");
            let (status, _, text) = send(&app, "PUT", &set, Version::HTTP_11, b"").await;
            assert_eq!((status, text.trim()), (404, "namespaceId [ dev ] not exist"));
        }
        let make = "/nacos/v1/console/namespaces?customNamespaceId=dev&namespaceName=dev";
        assert_eq!(send(&app, "POST", make, Version::HTTP_11, b"").await.0, 200);
        for query in [
            "namespaceId=dev&seconds=8",
            "serviceName=s&namespaceId=dev&seconds=0",
        ] {
            let set = format!("{path}?{query}");
            assert_eq!(send(&app, "PUT", &set, Version::HTTP_11, b"").await.0, 200);
        }
        let all = get(&app, path).await.1;
        assert_eq!(
            all,
            concat!(
                r#"[{"namespaceId":"dev","serviceName":null,"seconds":8},"#,
                r#"{"namespaceId":"dev","serviceName":"DEFAULT_GROUP@@s","seconds":0}]"#
            )
        );
        let other = get(&app, &format!("{path}?namespaceId=dev&serviceName=other"))
            .await
            .1;
        assert_eq!(
            other,
            r#"{"guard":{"namespaceId":"dev","serviceName":null,"seconds":8},"heldFor":null}"#
        );
        let end = format!("{path}?namespaceId=dev");
        assert_eq!(send(&app, "DELETE", &end, Version::HTTP_11, b"").await.0, 200);
        for (query, fault) in [
            ("namespaceId=dev", "no guard is set for namespace dev"),
            (
                "namespaceId=dev&serviceName=other",
                "no guard of its own is set for service DEFAULT_GROUP@@other of namespace dev",
            ),
        ] {
            let end = format!("{path}?{query}");
            let (status, _, text) = send(&app, "DELETE", &end, Version::HTTP_11, b"").await;
            assert_eq!((status, text.trim()), (404, fault), "{query}");
        }
        let other = get(&app, &format!("{path}?namespaceId=dev&serviceName=other"))
            .await
            .1;
        assert_eq!(other, r#"{"guard":null,"heldFor":null}"#);
        let switches = get(&app, "/nacos/v1/ns/operator/switches").await.1;
        assert!(!switches.contains("emptyPushGuard"), "{switches}");
    }

    #[tokio::test]
    async fn operators_see_who_is_there_and_how_busy_the_machine_is() {
        let app = app();
        let short = get(&app, "/nacos/v1/ns/operator/metrics").await;
        assert_eq!(short, (200, r#"{"status":"UP"}"#.to_owned()));
        let exec = app.exec();
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let opened = exec
            .node()
            .open_connection(info, exec.now(), &mut Actions::default());
        assert!(opened.is_ok());
        for (service, port) in [("a", 80), ("b", 80), ("b", 81)] {
            let path = format!("/nacos/v1/ns/instance?serviceName={service}&ip=10.0.0.1&port={port}");
            assert_eq!(send(&app, "POST", &path, Version::HTTP_11, b"").await.0, 200);
        }
        let (status, body) = get(&app, "/nacos/v1/ns/operator/metrics?onlyStatus=false").await;
        assert_eq!(status, 200);
        let metrics: Value = serde_json::from_str(&body).unwrap();
        for (name, count) in [
            ("serviceCount", 2),
            ("instanceCount", 3),
            ("subscribeCount", 0),
            ("responsibleInstanceCount", 3),
            ("clientCount", 3),
            ("connectionBasedClientCount", 1),
            ("ephemeralIpPortClientCount", 2),
            ("persistentIpPortClientCount", 0),
            ("responsibleClientCount", 3),
        ] {
            assert_eq!(metrics[name], count, "{name}: {body}");
        }
        for (name, most) in [("cpu", 1.0), ("load", f64::MAX), ("mem", 1.0)] {
            let value = metrics[name].as_f64().unwrap();
            assert!((0.0..=most).contains(&value), "{name}: {body}");
        }
    }

    #[tokio::test]
    async fn a_member_list_says_when_each_was_heard() {
        let app = app();
        let before = app.exec().now().wall;
        let (_, body) = get(&app, "/nacos/v1/core/cluster/nodes").await;
        let nodes: Value = serde_json::from_str(&body).unwrap();
        let at = nodes["data"][0]["extendInfo"]["lastRefreshTime"]
            .as_u64()
            .unwrap();
        assert!(at >= before.0, "{body}");
    }

    /// Sends a request without a body; status and body parsed as JSON, as text where it is none.
    async fn call(app: &HttpApp, method: &str, path: &str) -> (u16, Value) {
        let (status, _, body) = send(app, method, path, Version::HTTP_11, b"").await;
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    async fn register(app: &HttpApp, row: &str) {
        let path = format!("/nacos/v1/ns/instance?serviceName=s&{row}");
        assert_eq!(call(app, "POST", &path).await.0, 200, "{row}");
    }

    #[tokio::test]
    async fn all_generations_read_and_write_the_same_rows() {
        let app = app();
        let row = "serviceName=s&ip=10.0.0.1&port=80";
        for (method, path) in [("POST", "/v2/ns/instance"), ("PUT", "/v3/admin/ns/instance")] {
            let (status, body) = call(&app, method, &format!("/nacos{path}?{row}&weight=2")).await;
            assert_eq!((status, &body["data"]), (200, &Value::from("ok")), "{body}");
        }
        let (_, one) = call(&app, "GET", "/nacos/v1/ns/instance/list?serviceName=s").await;
        let (_, two) = call(&app, "GET", "/nacos/v2/ns/instance/list?serviceName=s").await;
        let (_, three) = call(&app, "GET", "/nacos/v3/client/ns/instance/list?serviceName=s").await;
        assert_eq!(one["hosts"][0]["weight"], 2.0, "{one}");
        assert_eq!(
            (&one["hosts"], &one["hosts"]),
            (&two["data"]["hosts"], &three["data"])
        );
        let (_, gone) = call(&app, "DELETE", &format!("/nacos/v3/client/ns/instance?{row}")).await;
        assert_eq!(gone["code"], 0);
        let (_, one) = call(&app, "GET", "/nacos/v1/ns/instance/list?serviceName=s").await;
        assert_eq!(one["hosts"], Value::Array(Vec::new()));
    }

    #[tokio::test]
    async fn a_beat_of_v3_tells_by_its_code_whether_the_row_is_known() {
        let app = app();
        let path = "/nacos/v3/client/ns/instance?serviceName=s&ip=10.0.0.1&port=80";
        let (status, body) = call(&app, "POST", &format!("{path}&heartBeat=true")).await;
        assert_eq!(
            (status, &body["code"], &body["data"]),
            (200, &21003.into(), &Value::Null)
        );
        call(&app, "POST", path).await;
        let (_, body) = call(&app, "POST", &format!("{path}&heartBeat=true")).await;
        assert_eq!(body["data"], "ok");
    }

    #[tokio::test]
    async fn a_patch_keeps_what_earlier_ones_set() {
        let app = app();
        register(&app, "ip=10.0.0.1&port=80&weight=5&clusterName=c1").await;
        let row = "/nacos/v1/ns/instance?serviceName=s&ip=10.0.0.1&port=80";
        for patch in ["metadata=a%3D1", "weight=3", "enabled=false"] {
            // No cluster named: the only row with that address.
            assert_eq!(
                call(&app, "PATCH", &format!("{row}&{patch}")).await.0,
                200,
                "{patch}"
            );
        }
        let (_, body) = call(&app, "GET", &format!("{row}&clusterName=c1")).await;
        assert_eq!(
            (&body["weight"], &body["metadata"]["a"]),
            (&3.0.into(), &"1".into())
        );
        let (_, list) = call(&app, "GET", "/nacos/v1/ns/instance/list?serviceName=s").await;
        assert_eq!(list["hosts"], Value::Array(Vec::new()));
        assert_eq!(call(&app, "PATCH", &format!("{row}&weight=-1")).await.0, 400);
    }

    #[tokio::test]
    async fn metadata_for_many_rows_leave_weight_and_disabling_alone() {
        let app = app();
        register(&app, "ip=10.0.0.1&port=80&weight=5&enabled=false").await;
        register(&app, "ip=10.0.0.2&port=80&metadata=a%3D1").await;
        let batch = "/nacos/v2/ns/instance/metadata/batch?serviceName=s&metadata=b%3D2";
        let (_, body) = call(&app, "PUT", batch).await;
        assert_eq!(
            body["data"]["updated"][1],
            "10.0.0.2:80:unknown:DEFAULT:ephemeral"
        );
        let detail = |ip: &str| format!("/nacos/v3/admin/ns/instance?serviceName=s&port=80&ip={ip}");
        let (_, first) = call(&app, "GET", &detail("10.0.0.1")).await;
        assert_eq!(
            (&first["data"]["weight"], &first["data"]["enabled"]),
            (&5.0.into(), &false.into())
        );
        call(
            &app,
            "DELETE",
            &batch.replace("b%3D2", "%7B%22b%22:%22%22,%22a%22:%22%22%7D"),
        )
        .await;
        let (_, second) = call(&app, "GET", &detail("10.0.0.2")).await;
        assert_eq!(second["data"]["metadata"], serde_json::json!({"a": "1"}));
    }

    #[tokio::test]
    async fn a_connection_is_shown_with_what_it_publishes_and_subscribes_to() {
        let app = app();
        let (exec, mut actions) = (app.exec(), Actions::default());
        let info = ConnectionInfo {
            text_id: "17_10.0.0.9_5000".into(),
            client_ip: "10.0.0.9".into(),
            client_version: "Nacos-Java-Client:v2.5.1".into(),
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let (node, now) = (exec.node(), exec.now());
        let id = node.open_connection(info, now, &mut actions).unwrap();
        let service = rollcall_core::ServiceKey::new("", "", "s");
        let rows = vec![rollcall_core::Instance::at("10.1.0.1", 80)];
        node.register(id, &service, rows, now, &mut actions).unwrap();
        node.subscribe(id, &service, None, now, &mut actions).unwrap();
        let client = "clientId=17_10.0.0.9_5000";
        for (path, pointer, value) in [
            (format!("/v2/ns/client?{client}"), "/data/clientPort", "5000"),
            (
                format!("/v3/admin/ns/client?{client}"),
                "/data/connectType",
                "GRPC",
            ),
            (
                format!("/v2/ns/client/publish/list?{client}"),
                "/data/0/registeredInstance/ip",
                "10.1.0.1",
            ),
            (
                format!("/v3/admin/ns/client/subscribe/list?{client}"),
                "/data/0/serviceName",
                "s",
            ),
            ("/v2/ns/client/list?".into(), "/data/0", "17_10.0.0.9_5000"),
            (
                "/v3/admin/ns/client/service/publisher/list?serviceName=s".into(),
                "/data/0/clientId",
                "17_10.0.0.9_5000",
            ),
            (
                "/v2/ns/client/service/subscriber/list?serviceName=s".into(),
                "/data/0/ip",
                "10.0.0.9",
            ),
            (
                "/v1/ns/service/subscribers?serviceName=s".into(),
                "/subscribers/0/addrStr",
                "10.0.0.9",
            ),
            (
                "/v3/console/ns/service/subscribers?serviceName=s".into(),
                "/data/pageItems/0/agent",
                "Nacos-Java-Client:v2.5.1",
            ),
        ] {
            let (status, body) = call(&app, "GET", &format!("/nacos{path}")).await;
            assert_eq!(status, 200, "{path}: {body}");
            assert_eq!(body.pointer(pointer), Some(&value.into()), "{path}: {body}");
        }
        node.unsubscribe(id, &service, None, now, &mut actions).unwrap();
        let (_, body) = call(
            &app,
            "GET",
            &format!("/nacos/v2/ns/client/subscribe/list?{client}"),
        )
        .await;
        assert_eq!(body["data"], Value::Array(Vec::new()));
    }

    #[tokio::test]
    async fn a_node_that_is_not_ready_refuses_every_generation() {
        let clock = Clock::start();
        let config = NodeConfig::new("127.0.0.1:8848", &["127.0.0.1:8848", "127.0.0.2:8848"], 1);
        let exec = Executor::new(Arc::new(Node::new(config, 1, clock.now())), clock, None);
        let app = HttpApp::new(exec, app().0.settings.clone());
        let text = "server is STARTINGnow, please try again later!";
        let (status, body) = call(&app, "GET", "/nacos/v1/ns/instance/list?serviceName=s").await;
        assert_eq!((status, body), (503, text.into()));
        for path in ["/v2/ns/instance/list", "/v3/client/ns/instance/list"] {
            let (status, body) = call(&app, "GET", &format!("/nacos{path}?serviceName=s")).await;
            assert_eq!(
                (status, &body["code"], &body["data"]),
                (503, &30000.into(), &text.into())
            );
        }
        for (path, expected) in [
            ("/v1/console/health/readiness", 500),
            ("/v2/console/health/readiness", 503),
            ("/v3/admin/core/state/readiness", 503),
            ("/v3/console/health/readiness", 503),
            ("/v3/admin/core/state/liveness", 200),
        ] {
            assert_eq!(
                call(&app, "GET", &format!("/nacos{path}")).await.0,
                expected,
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn no_call_panics_or_hangs_whatever_it_is_sent() {
        let app = app();
        let odd = [
            "",
            "serviceName=s&ip=10.0.0.1&port=80&metadata=a%3D1&weight=1&enabled=true&healthy=true&clientId=x&key=x",
            "serviceName=%40%40&groupName=%20&namespaceId=%E8%AF%B4&pageNo=0&pageSize=0",
            "serviceName=s&pageNo=-9223372036854775808&pageSize=9223372036854775807&clusterName=DEFAULT",
            "serviceName=s&port=99999999999&weight=NaN&healthyOnly=maybe&onlyStatus=1&instances=%5B1%5D&metadata=%7B",
            "clientId=%40&key=%23%23&serviceNameParam=**&instances=%5B%7B%22port%22:-1%7D%5D&serviceName=s&metadata=x%3Dy",
            "clientId=:%23true&ip=&port=&show=all&state=x&address=%00",
        ];
        for route in router::paths() {
            for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"] {
                for query in odd {
                    let path = format!("/nacos{}x?{query}", route.path().replace(['{', '}'], ""));
                    for path in [path.clone(), path.replace("x?", "?")] {
                        let status = send(&app, method, &path, Version::HTTP_11, b"").await.0;
                        assert!((200..=501).contains(&status), "{method} {path}: {status}");
                    }
                }
            }
        }
    }
}
