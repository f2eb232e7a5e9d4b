//! Which path and method means what. Every request over HTTP comes through here.
//!
//! Headers by which members of other registries mark what they forward mean nothing: members have a port of their
//! own, and on this one every caller is a client.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, ACCESS_CONTROL_REQUEST_METHOD, CONNECTION, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use rollcall_node::action::Actions;
use rollcall_node::request::{HttpWrite, WriteDone};

use crate::error::{HttpFailure, HttpForm};
use crate::executor::Executor;
use crate::http::params::{BodyKind, Params};
use crate::http::reply::{self, Reply, Taste};
use crate::http::v1::{beat, cluster, console, instance, instance_list, operator, service};
use crate::http::{loader, own, prometheus};
use crate::machine::Machine;

/// Longest wait for the answer to a write. The node answers far sooner; this is for a node that does not.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Longest time that the body of a request may take to come.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// The HTTP side. A clone costs one reference count.
#[derive(Clone)]
pub struct HttpApp(Arc<Shared>);

struct Shared {
    exec: Executor,
    settings: HttpSettings,
    machine: Machine,
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
}

/// What a path stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resource {
    Instance,
    InstanceList,
    Beat,
    ServiceList,
    Metrics,
    Nodes,
    SelfNode,
    ClusterHealth,
    ServerState,
    Liveness,
    Readiness,
    Prometheus,
    State,
    Rows,
    Owner,
    Loader(loader::Call),
}

impl Resource {
    /// What a path below the context path stands for.
    fn below_context(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/ns/instance" => Resource::Instance,
            "/v1/ns/instance/list" => Resource::InstanceList,
            "/v1/ns/instance/beat" => Resource::Beat,
            "/v1/ns/service/list" => Resource::ServiceList,
            "/v1/ns/operator/metrics" | "/v1/ns/ops/metrics" => Resource::Metrics,
            "/v1/core/cluster/nodes" => Resource::Nodes,
            "/v1/core/cluster/self" => Resource::SelfNode,
            "/v1/core/cluster/health" => Resource::ClusterHealth,
            "/v1/console/server/state" => Resource::ServerState,
            "/v1/console/health/liveness" => Resource::Liveness,
            "/v1/console/health/readiness" => Resource::Readiness,
            "/actuator/prometheus" => Resource::Prometheus,
            _ => return loader::Call::of(path).map(Resource::Loader),
        })
    }

    /// What a path of our own stands for.
    fn own(path: &str) -> Option<Self> {
        Some(match path {
            "/rollcall/state" => Resource::State,
            "/rollcall/rows" => Resource::Rows,
            "/rollcall/owner" => Resource::Owner,
            _ => return None,
        })
    }

    /// The methods it has, as the header `Allow` names them.
    fn methods(self) -> &'static str {
        match self {
            Resource::Instance => "GET, HEAD, POST, PUT, DELETE",
            Resource::Beat => "PUT",
            Resource::Loader(call) => call.methods(),
            _ => "GET, HEAD",
        }
    }

    fn has(self, method: &Method) -> bool {
        self.methods().split(", ").any(|name| name == method.as_str())
    }

    /// Only answered once the node is ready.
    fn is_naming(self) -> bool {
        matches!(
            self,
            Resource::Instance
                | Resource::InstanceList
                | Resource::Beat
                | Resource::ServiceList
                | Resource::Metrics
                | Resource::Rows
        )
    }
}

impl HttpApp {
    /// The HTTP side over the node behind `exec`.
    pub fn new(exec: Executor, settings: HttpSettings) -> Self {
        HttpApp(Arc::new(Shared {
            exec,
            settings,
            machine: Machine::new(),
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

    /// Largest sum of metadata lengths.
    pub fn metadata_limit(&self) -> usize {
        self.0.settings.metadata_limit
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

    /// Answers a request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let taste = taste(&parts.headers);
        let mut response = if is_preflight(&parts.method, &parts.headers) {
            let failure = HttpFailure {
                status: StatusCode::FORBIDDEN,
                text: "Invalid CORS request".into(),
                form: HttpForm::Bare,
            };
            reply::failure(failure, taste, parts.uri.path(), self.exec().now().wall)
        } else {
            self.route(&parts, body, taste).await
        };
        let status = response.status();
        self.exec().metrics().count_response(status);
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

    async fn route<B>(&self, parts: &http::request::Parts, body: B, taste: Taste) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = parts.uri.path();
        let now = self.exec().now().wall;
        let trimmed = path.strip_suffix('/').unwrap_or(path);
        let below = trimmed.strip_prefix(self.0.settings.context_path.as_str());
        let Some(resource) = below
            .and_then(Resource::below_context)
            .or_else(|| Resource::own(trimmed))
        else {
            // Outside the context path there is nothing of the protocol, so the answer is a page for people.
            let taste = if below.is_some() { taste } else { Taste::Html };
            let failure = HttpFailure::page(
                StatusCode::NOT_FOUND,
                format!("no such api:{}:{path}", parts.method),
            );
            return reply::failure(failure, taste, path, now);
        };
        if !resource.has(&parts.method) {
            return reply::method_not_allowed(resource.methods(), parts.method.as_str(), taste, path, now);
        }
        match self.handle(resource, parts, body).await {
            Ok(success) => reply::success(success, taste),
            Err(failure) => reply::failure(failure, taste, path, now),
        }
    }

    async fn handle<B>(
        &self,
        resource: Resource,
        parts: &http::request::Parts,
        body: B,
    ) -> Result<Reply, HttpFailure>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let node = self.exec().node();
        // A node that leaves still reads, and answers a write with what the node says.
        if resource.is_naming() && !node.is_ready() && !node.is_leaving() {
            return Err(node.not_serving().into());
        }
        let body = self.read_body(body).await?;
        let content_type = parts
            .headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let params = Params::read(
            parts.uri.query().unwrap_or_default(),
            &body,
            &BodyKind::of(content_type),
        )?;
        let check = || params.check(self.metadata_limit());
        match (resource, parts.method.as_str()) {
            (Resource::Instance, "POST") => instance::register(self, &params, check()?).await,
            (Resource::Instance, "DELETE") => instance::deregister(self, &params, check()?).await,
            (Resource::Instance, "PUT") => instance::update(self, &params, check()?).await,
            (Resource::Instance, _) => instance::detail(self, &params, &check()?),
            (Resource::InstanceList, _) => instance_list::list(self, &params, &check()?, parts),
            (Resource::Beat, _) => beat::beat(self, &params, check()?).await,
            (Resource::ServiceList, _) => check().and_then(|_| service::list(self, &params)),
            (Resource::Metrics, _) => Ok(operator::metrics(self, &params).await),
            (Resource::Nodes, _) => Ok(cluster::nodes(self, &params)),
            (Resource::SelfNode, _) => Ok(cluster::this(self)),
            (Resource::ClusterHealth, _) => Ok(cluster::health()),
            (Resource::ServerState, _) => Ok(console::server_state(self)),
            (Resource::Liveness, _) => Ok(console::liveness()),
            (Resource::Readiness, _) => console::readiness(self),
            (Resource::Prometheus, _) => Ok(prometheus::metrics(self)),
            (Resource::State, _) => Ok(own::state(self)),
            (Resource::Rows, _) => own::rows(self, &check()?),
            (Resource::Loader(call), _) => loader::answer(self, call, &params),
            (Resource::Owner, _) => own::owner(self, &check()?),
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
    let wants_html = headers
        .get(ACCEPT)
        .is_some_and(|accept| accept.as_bytes().trim_ascii_start().starts_with(b"text/html"));
    if wants_html { Taste::Html } else { Taste::Plain }
}

fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use rollcall_node::request::ConnectionInfo;
    use rollcall_node::{Node, NodeConfig};
    use serde_json::Value;

    use super::*;
    use crate::clock::Clock;

    const BODY_MAX: usize = 64;

    /// A single node that is ready.
    fn app() -> HttpApp {
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

    #[test]
    fn each_resource_has_its_methods() {
        assert!(Resource::Instance.has(&Method::DELETE) && Resource::InstanceList.has(&Method::HEAD));
        assert!(!Resource::InstanceList.has(&Method::POST) && !Resource::Beat.has(&Method::GET));
        assert!(!Resource::Beat.has(&Method::OPTIONS));
    }

    #[test]
    fn paths_of_later_versions_are_unknown() {
        assert_eq!(
            Resource::below_context("/v1/ns/instance"),
            Some(Resource::Instance)
        );
        for path in ["", "/v1/ns/nope", "/v2/ns/instance", "/rollcall/state"] {
            assert_eq!(Resource::below_context(path), None, "{path}");
        }
    }
}
