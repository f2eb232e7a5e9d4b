//! Which path and method means which handler: the one table of all paths.
//!
//! A path that answers once the node is ready is `naming`, one that always does is `open`. `GET` means `HEAD` as well.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::LazyLock;

use foldhash::fast::RandomState;
use http::Method;

use crate::error::HttpFailure;
use crate::http::api::Api::{self, V1, V2, V3};
use crate::http::app::HttpApp;
use crate::http::params::{BodyKind, Params};
use crate::http::reply::Reply;
use crate::http::shared::{
    beat, client, cluster, health, instance, loader, metadata_batch, metrics, namespace, operations, service,
    settings, state, switches,
};
use crate::http::{discovery, guard, openapi, own, prometheus, quarantine, v1, v2, v3};

/// What comes of a call, later.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Reply, HttpFailure>> + Send + 'a>>;

/// What answers a call.
#[derive(Clone, Copy)]
pub enum Handler {
    /// At once.
    Now(fn(&HttpApp, &Params) -> Result<Reply, HttpFailure>),
    /// After something else has happened.
    Waits(for<'a> fn(&'a HttpApp, &'a Params) -> Answer<'a>),
}

/// A path and what it means.
pub struct Route {
    /// The path; a segment `{name}` stands for any text, which becomes that parameter.
    path: &'static str,
    /// Generation of the API that it answers as.
    pub api: Api,
    /// Only answered once the node is ready.
    pub is_naming: bool,
    /// Parameters may also stand in a JSON body.
    takes_json: bool,
    calls: &'static [Call],
}

/// A method of a path.
struct Call {
    method: &'static str,
    handler: Handler,
    /// The handler as it is named in the table, for the document that describes it.
    name: &'static str,
}

impl Route {
    const fn new(api: Api, path: &'static str, is_naming: bool, calls: &'static [Call]) -> Self {
        Route {
            path,
            api,
            is_naming,
            takes_json: false,
            calls,
        }
    }

    /// The path, below the context path if it stands there.
    pub fn path(&self) -> &'static str {
        self.path
    }

    fn is_template(&self) -> bool {
        self.path.contains('{')
    }

    /// The parameters that stand in `path`; `None` when it is no such path.
    fn read<'a>(&self, path: &'a str) -> Option<Vec<(&'static str, &'a str)>> {
        let mut found = Vec::new();
        let mut segments = path.split('/');
        for expected in self.path.split('/') {
            let segment = segments.next()?;
            match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                Some(name) if !segment.is_empty() => found.push((name, segment)),
                None if segment == expected => {}
                _ => return None,
            }
        }
        segments.next().is_none().then_some(found)
    }

    /// How a body with this content type is read.
    pub fn body_kind(&self, content_type: Option<&str>) -> BodyKind {
        let is_json = content_type.is_some_and(|kind| kind.starts_with("application/json"));
        if self.takes_json && is_json {
            BodyKind::Json
        } else {
            BodyKind::of(content_type)
        }
    }

    /// True for the naming paths of v1, which operators can refuse by switches.
    pub fn is_switched(&self) -> bool {
        self.path.starts_with("/v1/ns/")
    }

    /// True for what a process that is too far behind turns away: registrations and queries, but no beats, no removals and
    /// nothing of our own.
    pub fn is_work(&self, method: &Method) -> bool {
        let is_own = self.path.starts_with("/rollcall/");
        self.is_naming && !is_own && method != Method::DELETE && !self.path.ends_with("/beat")
    }

    /// What answers a method; `None` when the path does not have it.
    pub fn handler(&self, method: &str) -> Option<&Handler> {
        let call = self.calls.iter().find(|call| call.method == method);
        call.map(|call| &call.handler)
    }

    /// The methods it has, as the header `Allow` names them.
    pub fn methods(&self) -> String {
        let names: Vec<_> = self.calls.iter().map(|call| call.method).collect();
        names.join(", ").replace("GET", "GET, HEAD")
    }

    /// Its methods, each with the name of its handler.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
        let calls: &'static [Call] = self.calls;
        calls.iter().map(|call| (call.method, call.name))
    }

    /// True when the parameter stands in the path.
    pub fn has_in_path(&self, name: &str) -> bool {
        self.path.contains(&format!("{{{name}}}"))
    }
}

macro_rules! calls {
    ($($method:ident $kind:ident $handler:path),+) => {
        &[$(Call {
            method: stringify!($method),
            handler: calls!(@ $kind $handler),
            name: stringify!($handler),
        }),+]
    };
    (@ now $handler:path) => { Handler::Now($handler) };
    (@ waits $handler:path) => { Handler::Waits(|app, params| Box::pin($handler(app, params))) };
}

macro_rules! naming {
    ($api:expr, $path:literal, $($calls:tt)+) => { Route::new($api, $path, true, calls!($($calls)+)) };
}

macro_rules! open {
    ($api:expr, $path:literal, $($calls:tt)+) => { Route::new($api, $path, false, calls!($($calls)+)) };
}

macro_rules! with_json {
    ($api:expr, $path:literal, $($calls:tt)+) => {
        Route { takes_json: true, ..open!($api, $path, $($calls)+) }
    };
}

/// The paths below the context path.
#[rustfmt::skip]
static PATHS: &[Route] = &[
    // === v1, naming ===
    naming!(V1, "/v1/ns/instance",
        GET now v1::instance::detail, POST waits instance::register, PUT waits instance::update,
        DELETE waits instance::deregister, PATCH waits v1::instance::patch),
    naming!(V1, "/v1/ns/instance/list", GET now v1::instance::list),
    naming!(V1, "/v1/ns/instance/beat", PUT waits beat::beat),
    naming!(V1, "/v1/ns/instance/statuses", GET now instance::statuses),
    naming!(V1, "/v1/ns/instance/metadata/batch",
        PUT waits metadata_batch::update, DELETE waits metadata_batch::remove),
    naming!(V1, "/v1/ns/service",
        GET now v1::service::get, POST now settings::create, PUT now settings::update, DELETE now settings::delete),
    naming!(V1, "/v1/ns/cluster", PUT now settings::update_cluster),
    naming!(V1, "/v1/ns/service/list", GET now v1::service::list),
    naming!(V1, "/v1/ns/service/names", GET waits v1::service::names),
    naming!(V1, "/v1/ns/service/subscribers", GET waits v1::service::subscribers),
    naming!(V1, "/v1/ns/service/selector/types", GET now service::selector_types),
    naming!(V1, "/v1/ns/catalog/services", GET waits v1::catalog::services),
    naming!(V1, "/v1/ns/catalog/service", GET now v1::catalog::service),
    naming!(V1, "/v1/ns/catalog/instances", GET now v1::catalog::instances),
    naming!(V1, "/v1/ns/health", PUT now health::set),
    naming!(V1, "/v1/ns/health/instance", PUT now health::set),
    naming!(V1, "/v1/ns/health/server", GET now v1::health::server),
    naming!(V1, "/v1/ns/health/checkers", GET now health::checkers),
    naming!(V1, "/v1/ns/operator/metrics", GET waits metrics::metrics),
    naming!(V1, "/v1/ns/ops/metrics", GET waits metrics::metrics),
    naming!(V1, "/v1/ns/operator/switches", GET now switches::get, PUT now switches::set),
    naming!(V1, "/v1/ns/ops/switches", GET now switches::get, PUT now switches::set),
    naming!(V1, "/v1/ns/operator/push/state", GET now v1::operator::push_state),
    naming!(V1, "/v1/ns/ops/push/state", GET now v1::operator::push_state),
    naming!(V1, "/v1/ns/operator/distro/client", GET waits v1::operator::responsible),
    naming!(V1, "/v1/ns/ops/distro/client", GET waits v1::operator::responsible),
    naming!(V1, "/v1/ns/operator/log", PUT now operations::set_log_level),
    naming!(V1, "/v1/ns/ops/log", PUT now operations::set_log_level),
    // === v1, the rest ===
    open!(V1, "", GET now operations::page),
    open!(V1, "/index.html", GET now operations::page),
    with_json!(V1, "/v1/core/ops/raft", POST now operations::command_raft),
    open!(V1, "/v1/core/ops/idInfo", GET now operations::ids),
    open!(V1, "/v1/core/ops/log", PUT now operations::set_core_log_level),
    open!(V1, "/v1/console/server/announcement", GET now operations::announcement),
    open!(V1, "/v1/console/server/guide", GET now operations::guide),
    open!(V1, "/v1/core/cluster/nodes", GET now v1::cluster::nodes),
    open!(V1, "/v1/core/cluster/self", GET now v1::cluster::this),
    open!(V1, "/v1/core/cluster/simple/nodes", GET now v1::cluster::simple_nodes),
    open!(V1, "/v1/core/cluster/health", GET now v1::cluster::health),
    open!(V1, "/v1/core/cluster/switch/lookup", POST now cluster::refuse_lookup),
    open!(V1, "/v1/core/cluster/server/leave", POST now cluster::refuse_leave),
    open!(V1, "/v1/console/server/state", GET now state::console_state),
    open!(V1, "/v1/console/health/liveness", GET now state::liveness),
    open!(V1, "/v1/console/health/readiness", GET now state::readiness),
    open!(V1, "/v1/console/namespaces",
        GET now v1::namespace::namespaces, POST now v1::namespace::create, PUT now v1::namespace::update,
        DELETE now v1::namespace::remove),
    open!(V1, "/v1/auth/login", POST now v1::auth::login, GET now v1::auth::login),
    open!(V1, "/v1/auth/users/login", POST now v1::auth::login, GET now v1::auth::login),
    open!(V1, "/serverlist", GET now v1::cluster::server_list),
    open!(V1, "/actuator/prometheus", GET waits prometheus::metrics),
    open!(V1, "/actuator/health", GET now prometheus::health),
    open!(V1, "/openapi.json", GET now openapi::document),
    naming!(V1, "/prometheus", GET waits discovery::targets),
    naming!(V1, "/prometheus/namespaceId/{namespaceId}", GET waits discovery::targets),
    naming!(V1, "/prometheus/namespaceId/{namespaceId}/service/{serviceName}", GET waits discovery::targets),
    // === v2, naming ===
    naming!(V2, "/v2/ns/instance",
        GET now v2::instance::detail, POST waits instance::register, PUT waits instance::update,
        DELETE waits instance::deregister, PATCH waits v2::instance::patch),
    naming!(V2, "/v2/ns/instance/list", GET now v2::instance::list),
    naming!(V2, "/v2/ns/instance/beat", PUT waits v2::instance::beat),
    naming!(V2, "/v2/ns/instance/metadata/batch",
        PUT waits metadata_batch::update, DELETE waits metadata_batch::remove),
    naming!(V2, "/v2/ns/instance/statuses/{key}", GET now instance::statuses),
    naming!(V2, "/v2/ns/service",
        GET now v2::service::get, POST now settings::create, PUT now settings::update, DELETE now settings::delete),
    naming!(V2, "/v2/ns/service/list", GET now v2::service::list),
    naming!(V2, "/v2/ns/client", GET waits v2::client::detail),
    naming!(V2, "/v2/ns/client/list", GET waits client::list),
    naming!(V2, "/v2/ns/client/publish/list", GET waits v2::client::publications),
    naming!(V2, "/v2/ns/client/subscribe/list", GET waits v2::client::subscriptions),
    naming!(V2, "/v2/ns/client/service/publisher/list", GET now v2::client::publishers),
    naming!(V2, "/v2/ns/client/service/subscriber/list", GET now v2::client::subscribers),
    // Its failures are those of v1.
    naming!(V1, "/v2/ns/catalog/instances", GET now v1::catalog::instances_of_all),
    naming!(V2, "/v2/ns/health", PUT now health::set),
    naming!(V2, "/v2/ns/health/instance", PUT now health::set),
    naming!(V2, "/v2/ns/operator/metrics", GET waits metrics::metrics),
    naming!(V2, "/v2/ns/ops/metrics", GET waits metrics::metrics),
    naming!(V2, "/v2/ns/operator/switches", GET now switches::get, PUT now switches::set),
    naming!(V2, "/v2/ns/ops/switches", GET now switches::get, PUT now switches::set),
    // === v2, the rest ===
    with_json!(V2, "/v2/core/ops/raft", POST now operations::command_raft),
    open!(V2, "/v2/core/ops/ids", GET now operations::ids),
    with_json!(V2, "/v2/core/ops/log", PUT now operations::set_core_log_level),
    open!(V2, "/v2/core/cluster/node/self", GET now v2::cluster::this),
    open!(V2, "/v2/core/cluster/node/self/health", GET now v2::cluster::health),
    open!(V2, "/v2/core/cluster/node/list", GET now v2::cluster::list, PUT now cluster::refuse_update),
    open!(V2, "/v2/core/cluster/lookup", PUT now cluster::refuse_lookup),
    open!(V2, "/v2/core/cluster/nodes", DELETE now cluster::refuse_leave),
    open!(V2, "/v2/core/loader/current", GET now loader::current),
    open!(V2, "/v2/core/loader/cluster", GET now loader::cluster),
    open!(V2, "/v2/core/loader/reloadClient", GET now loader::reload_client),
    open!(V2, "/v2/core/loader/reloadCurrent", GET now loader::reload_current),
    open!(V2, "/v2/core/loader/smartReloadCluster", GET waits loader::smart_reload),
    open!(V2, "/v2/console/health/liveness", GET now state::liveness),
    open!(V2, "/v2/console/health/readiness", GET now state::readiness),
    open!(V2, "/v2/console/namespace",
        GET now namespace::get, POST now namespace::create, PUT now namespace::update, DELETE now namespace::remove),
    open!(V2, "/v2/console/namespace/list", GET now namespace::list),
    // === v3, clients ===
    naming!(V3, "/v3/client/ns/instance",
        POST waits v3::client_instance::register, DELETE waits instance::deregister),
    naming!(V3, "/v3/client/ns/instance/list", GET now v3::client_instance::list),
    // === v3, operators ===
    naming!(V3, "/v3/admin/ns/instance",
        GET now v3::instance::detail, POST waits instance::register, PUT waits instance::update,
        DELETE waits instance::deregister),
    naming!(V3, "/v3/admin/ns/instance/partial", PUT waits v3::instance::patch),
    naming!(V3, "/v3/admin/ns/instance/list", GET now v3::instance::list),
    naming!(V3, "/v3/admin/ns/instance/metadata/batch",
        PUT waits metadata_batch::update, DELETE waits metadata_batch::remove),
    naming!(V3, "/v3/admin/ns/service",
        GET now v3::service::get, POST now settings::create, PUT now settings::update, DELETE now settings::delete),
    naming!(V3, "/v3/admin/ns/cluster", PUT now settings::update_cluster),
    naming!(V3, "/v3/admin/ns/service/list", GET waits v3::service::list),
    naming!(V3, "/v3/admin/ns/service/subscribers", GET waits v3::service::subscribers),
    naming!(V3, "/v3/admin/ns/service/selector/types", GET now service::selector_types),
    naming!(V3, "/v3/admin/ns/health/instance", PUT now health::set),
    naming!(V3, "/v3/admin/ns/health/checkers", GET now health::checkers),
    naming!(V3, "/v3/admin/ns/ops/metrics", GET waits metrics::metrics),
    naming!(V3, "/v3/admin/ns/ops/switches", GET now switches::get, PUT now switches::set),
    naming!(V3, "/v3/admin/ns/ops/log", PUT now operations::set_log_level),
    naming!(V3, "/v3/admin/ns/client", GET waits v3::client::detail),
    naming!(V3, "/v3/admin/ns/client/list", GET waits client::list),
    naming!(V3, "/v3/admin/ns/client/publish/list", GET waits v3::client::publications),
    naming!(V3, "/v3/admin/ns/client/subscribe/list", GET waits v3::client::subscriptions),
    naming!(V3, "/v3/admin/ns/client/service/publisher/list", GET now v3::client::publishers),
    naming!(V3, "/v3/admin/ns/client/service/subscriber/list", GET now v3::client::subscribers),
    naming!(V3, "/v3/admin/ns/client/distro", GET waits client::responsible),
    open!(V3, "/v3/admin/core/state", GET now state::server_state),
    open!(V3, "/v3/admin/core/state/liveness", GET now state::liveness),
    open!(V3, "/v3/admin/core/state/readiness", GET now state::readiness),
    open!(V3, "/v3/admin/core/cluster/node/self", GET now v2::cluster::this),
    open!(V3, "/v3/admin/core/cluster/node/self/health", GET now v2::cluster::health),
    open!(V3, "/v3/admin/core/cluster/node/list", GET now v2::cluster::list, PUT now cluster::refuse_update),
    open!(V3, "/v3/admin/core/cluster/lookup", PUT now cluster::refuse_lookup),
    open!(V3, "/v3/admin/core/loader/current", GET now loader::current),
    open!(V3, "/v3/admin/core/loader/cluster", GET now loader::cluster),
    open!(V3, "/v3/admin/core/loader/reloadClient", POST now loader::reload_client),
    open!(V3, "/v3/admin/core/loader/reloadCurrent", POST now loader::reload_current),
    open!(V3, "/v3/admin/core/loader/smartReloadCluster", POST waits loader::smart_reload),
    with_json!(V3, "/v3/admin/core/ops/raft", POST now operations::command_raft),
    open!(V3, "/v3/admin/core/ops/ids", GET now operations::ids),
    with_json!(V3, "/v3/admin/core/ops/log", PUT now operations::set_core_log_level),
    open!(V3, "/v3/admin/core/namespace",
        GET now namespace::get, POST now namespace::create, PUT now namespace::update, DELETE now namespace::remove),
    open!(V3, "/v3/admin/core/namespace/list", GET now namespace::list),
    open!(V3, "/v3/admin/core/namespace/check", GET now v3::namespace::count),
    // === v3, consoles ===
    naming!(V3, "/v3/console/ns/instance", PUT waits instance::update),
    naming!(V3, "/v3/console/ns/instance/list", GET now v3::instance::page),
    naming!(V3, "/v3/console/ns/service",
        GET now v3::service::get, POST now settings::create, PUT now settings::update, DELETE now settings::delete),
    naming!(V3, "/v3/console/ns/service/cluster", PUT now settings::update_cluster),
    naming!(V3, "/v3/console/ns/service/list", GET waits v3::service::list),
    naming!(V3, "/v3/console/ns/service/subscribers", GET waits v3::service::subscribers),
    naming!(V3, "/v3/console/ns/service/selector/types", GET now service::selector_types),
    open!(V3, "/v3/console/core/cluster/nodes", GET now v3::console::nodes),
    open!(V3, "/v3/console/core/namespace",
        GET now namespace::get, POST now v3::namespace::create, PUT now namespace::update,
        DELETE now namespace::remove),
    open!(V3, "/v3/console/core/namespace/list", GET now namespace::list),
    open!(V3, "/v3/console/core/namespace/exist", GET now v3::namespace::exists),
    open!(V3, "/v3/console/health/liveness", GET now state::liveness),
    open!(V3, "/v3/console/health/readiness", GET now state::readiness),
    open!(V3, "/v3/console/server/state", GET now state::console_state),
    open!(V3, "/v3/console/server/announcement", GET now operations::announcement),
    open!(V3, "/v3/console/server/guide", GET now operations::guide),
];

/// Paths of our own, outside the context path.
#[rustfmt::skip]
static OWN_PATHS: &[Route] = &[
    open!(V1, "/rollcall/state", GET now own::state),
    naming!(V1, "/rollcall/rows", GET now own::rows),
    open!(V1, "/rollcall/owner", GET now own::owner),
    naming!(V1, "/rollcall/subscribers", GET now service::own_subscribers),
    open!(V1, "/rollcall/evenOut", POST now loader::even_out_here),
    open!(V1, "/rollcall/digests", GET now own::digests),
    open!(V1, "/rollcall/repairs", GET now own::repairs),
    open!(V1, "/rollcall/agreement", GET waits own::agreement),
    naming!(V1, "/rollcall/quarantine",
        GET now quarantine::list, POST now quarantine::set, DELETE now quarantine::lift),
    naming!(V1, "/rollcall/emptyPushGuard", GET now guard::get, PUT now guard::set, DELETE now guard::end),
];

/// What consoles of 3.x call on a port of their own, where there is no context path. Here it is one port.
const CONSOLE: &str = "/v3/console/";

type Table = HashMap<&'static str, &'static Route, RandomState>;

static TABLE: LazyLock<Table> = LazyLock::new(|| PATHS.iter().map(|route| (route.path, route)).collect());

/// All paths below the context path.
pub fn paths() -> &'static [Route] {
    PATHS
}

/// All paths outside the context path.
pub fn own_paths() -> &'static [Route] {
    OWN_PATHS
}

/// A route, and the parameters that stand in the path, not decoded.
pub type Found<'a> = (&'static Route, Vec<(&'static str, &'a str)>);

/// What a path below the context path means.
pub fn below_context(path: &str) -> Option<Found<'_>> {
    if let Some(route) = TABLE.get(path) {
        return (!route.is_template()).then_some((*route, Vec::new()));
    }
    let mut templates = PATHS.iter().filter(|route| route.is_template());
    templates.find_map(|route| Some((route, route.read(path)?)))
}

/// What a path outside the context path means.
pub fn outside(path: &str) -> Option<Found<'_>> {
    if path.starts_with(CONSOLE) {
        return below_context(path);
    }
    OWN_PATHS
        .iter()
        .find(|route| route.path == path)
        .map(|route| (route, Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(found: Option<Found<'_>>) -> Option<(&'static str, String)> {
        let texts = |params: Vec<(&str, &str)>| {
            let texts: Vec<_> = params
                .iter()
                .map(|(name, text)| format!("{name}={text}"))
                .collect();
            texts.join(" ")
        };
        found.map(|(route, params)| (route.path, texts(params)))
    }

    #[test]
    fn each_path_has_its_methods() {
        let methods = |path| below_context(path).map(|(route, _)| route.methods());
        assert_eq!(
            methods("/v1/ns/instance").as_deref(),
            Some("GET, HEAD, POST, PUT, DELETE, PATCH")
        );
        assert_eq!(methods("/v1/ns/instance/list").as_deref(), Some("GET, HEAD"));
        assert_eq!(methods("/v1/ns/instance/beat").as_deref(), Some("PUT"));
    }

    #[test]
    fn no_path_is_there_twice_and_each_is_of_its_generation() {
        assert_eq!(TABLE.len(), PATHS.len());
        for route in PATHS
            .iter()
            .filter(|route| route.path != "/v2/ns/catalog/instances")
        {
            assert_eq!(route.api, Api::of(route.path), "{}", route.path);
        }
    }

    #[test]
    fn unknown_paths_mean_nothing() {
        for unknown in [
            "/",
            "/v1/ns/nope",
            "/v2/ns/instance/",
            "/v2/ns/instance/statuses",
            "/v2/ns/instance/statuses/",
            "/v2/ns/instance/statuses/a/b",
            "/prometheus/namespaceId",
            "/prometheus/namespaceId//service/s",
            "/prometheus/namespaceId/dev/services/s",
            "/rollcall/state",
        ] {
            assert_eq!(path(below_context(unknown)), None, "{unknown}");
        }
        assert_eq!(path(outside("/v1/ns/instance")), None);
    }

    #[test]
    fn parameters_may_stand_in_the_path() {
        for (asked, template, params) in [
            (
                "/v2/ns/instance/statuses/g@@s",
                "/v2/ns/instance/statuses/{key}",
                "key=g@@s",
            ),
            ("/prometheus", "/prometheus", ""),
            (
                "/prometheus/namespaceId/dev",
                "/prometheus/namespaceId/{namespaceId}",
                "namespaceId=dev",
            ),
            (
                "/prometheus/namespaceId/dev/service/g@@s",
                "/prometheus/namespaceId/{namespaceId}/service/{serviceName}",
                "namespaceId=dev serviceName=g@@s",
            ),
        ] {
            assert_eq!(
                path(below_context(asked)),
                Some((template, params.into())),
                "{asked}"
            );
        }
    }

    #[test]
    fn beats_and_removals_are_no_work_to_be_turned_away() {
        let is_work = |path, method| {
            let found = below_context(path).or_else(|| outside(path));
            found.is_some_and(|(route, _)| route.is_work(&method))
        };
        assert!(is_work("/v1/ns/instance", Method::POST) && is_work("/v1/ns/instance/list", Method::GET));
        assert!(is_work("/v3/client/ns/instance/list", Method::GET));
        for (path, method) in [
            ("/v1/ns/instance", Method::DELETE),
            ("/v1/ns/instance/beat", Method::PUT),
            ("/v2/ns/instance/beat", Method::PUT),
            ("/rollcall/quarantine", Method::POST),
            ("/v1/console/health/readiness", Method::GET),
            ("/actuator/prometheus", Method::GET),
        ] {
            assert!(!is_work(path, method), "{path}");
        }
    }

    #[test]
    fn consoles_need_no_context_path() {
        let state = "/v3/console/server/state";
        assert_eq!(path(outside(state)), path(below_context(state)));
        assert!(path(outside("/rollcall/state")).is_some());
    }
}
