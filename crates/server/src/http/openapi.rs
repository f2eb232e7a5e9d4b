//! `/openapi.json`: the HTTP surface as an OpenAPI 3 document.
//!
//! Paths, methods and generations come from the table of routes; what each handler takes and answers is said in
//! [`ABOUT`], once for all routes that share it. Tests hold the two together and against what handlers do.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::error::HttpFailure;
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::{self, Route};

/// What a handler takes and answers.
struct About {
    /// Its name in the table of routes, or several that are alike.
    handlers: &'static [&'static str],
    summary: &'static str,
    /// Parameters without which it refuses; `v1:name` in this generation only.
    required: &'static str,
    /// Parameters that may be left out, in the same form.
    optional: &'static str,
    answer: Answer,
}

/// What a success looks like.
#[derive(Clone, Copy)]
enum Answer {
    /// Text `ok` in v1, a result later.
    Done,
    /// JSON in v1, a result with it later.
    Data,
    /// JSON in every generation.
    Json,
    /// Text in every generation.
    Text,
}

/// A kind of parameter values.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Whole,
    Number,
    Truth,
}

const fn about(
    handlers: &'static [&'static str],
    summary: &'static str,
    required: &'static str,
    optional: &'static str,
    answer: Answer,
) -> About {
    About {
        handlers,
        summary,
        required,
        optional,
        answer,
    }
}

/// What every handler takes and answers.
#[rustfmt::skip]
static ABOUT: &[About] = &[
    // === rows ===
    about(&["v1::instance::detail", "v2::instance::detail", "v3::instance::detail"],
        "One row of a service", "serviceName ip port", "namespaceId groupName clusterName cluster", Answer::Data),
    about(&["instance::register"], "Registers a row that lives as long as its client beats",
        "serviceName ip port",
        "namespaceId groupName clusterName cluster weight enabled enable healthy metadata ephemeral", Answer::Done),
    about(&["instance::deregister"], "Removes a row",
        "serviceName ip port",
        "namespaceId groupName clusterName cluster weight enabled enable healthy metadata ephemeral", Answer::Done),
    about(&["instance::update"], "Sets weight, enabling and metadata of a row for readers",
        "serviceName ip port",
        "namespaceId groupName clusterName cluster weight enabled enable healthy metadata ephemeral", Answer::Done),
    about(&["v1::instance::patch"], "Sets for readers what is named of a row, and keeps the rest",
        "serviceName ip port", "namespaceId groupName clusterName cluster weight enabled enable metadata", Answer::Done),
    about(&["v2::instance::patch"], "Sets weight, enabling and metadata of a row for readers",
        "serviceName ip port weight enabled metadata", "namespaceId groupName clusterName cluster", Answer::Done),
    about(&["v3::instance::patch"], "Sets weight, enabling and what is named of a row for readers",
        "serviceName ip port", "namespaceId groupName clusterName cluster weight enabled metadata", Answer::Done),
    about(&["v3::client_instance::register"], "Registers a row, or renews it with `heartBeat=true`",
        "serviceName ip port",
        "namespaceId groupName clusterName cluster weight enabled enable healthy metadata ephemeral heartBeat",
        Answer::Done),
    about(&["v1::instance::list"], "The list of a service, and a subscription over UDP if a port is named",
        "serviceName", "namespaceId groupName clusters healthyOnly udpPort clientIP", Answer::Json),
    about(&["v2::instance::list"], "The list of a service, and a subscription over UDP if a port is named",
        "serviceName", "namespaceId groupName clusterName healthyOnly ip port", Answer::Data),
    about(&["v3::client_instance::list", "v3::instance::list"], "The rows of a service",
        "serviceName", "namespaceId groupName clusterName healthyOnly", Answer::Data),
    about(&["v3::instance::page"], "A page of the rows of a service",
        "serviceName", "namespaceId groupName clusterName pageNo pageSize", Answer::Data),
    about(&["beat::beat", "v2::instance::beat"], "Renews a row, and registers one that is described whole",
        "serviceName", "namespaceId groupName ip port clusterName beat", Answer::Json),
    about(&["instance::statuses"], "The rows of a service with their health", "key", "", Answer::Json),
    about(&["metadata_batch::update"], "Adds metadata to many rows of a service",
        "serviceName metadata", "namespaceId groupName instances", Answer::Data),
    about(&["metadata_batch::remove"], "Removes metadata from many rows of a service",
        "serviceName metadata", "namespaceId groupName instances", Answer::Data),
    about(&["health::set"], "Sets the health of a row; refused for rows that live by beats",
        "serviceName ip port healthy", "namespaceId groupName clusterName cluster v1:valid", Answer::Done),
    about(&["health::checkers"], "The ways of probing", "", "", Answer::Data),
    // === services ===
    about(&["v1::service::get", "v2::service::get", "v3::service::get"],
        "A service with its settings", "serviceName", "namespaceId groupName", Answer::Data),
    about(&["settings::create"], "Creates a service",
        "serviceName", "namespaceId groupName protectThreshold metadata selector ephemeral", Answer::Done),
    about(&["settings::update"], "Changes the settings of a service",
        "serviceName v1:protectThreshold", "namespaceId groupName protectThreshold metadata selector ephemeral",
        Answer::Done),
    about(&["settings::delete"], "Removes a service without rows", "serviceName", "namespaceId groupName", Answer::Done),
    about(&["settings::update_cluster"], "Says how a cluster of a service is checked",
        "serviceName clusterName checkPort useInstancePort4Check healthChecker", "namespaceId groupName metadata",
        Answer::Done),
    about(&["v1::service::list"], "A page of the names of a group",
        "pageNo pageSize", "namespaceId groupName", Answer::Json),
    about(&["v2::service::list"], "A page of the names of a group",
        "", "namespaceId groupName pageNo pageSize", Answer::Data),
    about(&["v3::service::list"], "A page of the services of a namespace",
        "", "namespaceId serviceNameParam groupNameParam ignoreEmptyService withInstances pageNo pageSize", Answer::Data),
    about(&["v1::service::names"], "The names of services by namespace", "", "namespaceId expr", Answer::Json),
    about(&["v1::service::subscribers", "v3::service::subscribers"], "A page of the subscribers of a service",
        "serviceName", "namespaceId groupName pageNo pageSize aggregation", Answer::Data),
    about(&["service::selector_types"], "The kinds of selectors", "", "", Answer::Data),
    about(&["v1::catalog::services"], "A page of the services of a namespace",
        "pageNo pageSize", "namespaceId serviceNameParam groupNameParam hasIpCount withInstances", Answer::Json),
    about(&["v1::catalog::service"], "A service with its clusters", "serviceName", "namespaceId groupName", Answer::Json),
    about(&["v1::catalog::instances"], "A page of the rows of a cluster",
        "serviceName clusterName pageNo pageSize", "namespaceId groupName", Answer::Json),
    about(&["v1::catalog::instances_of_all"], "A page of the rows of a service",
        "serviceName pageNo pageSize", "namespaceId groupName healthyOnly enabledOnly", Answer::Json),
    // === clients ===
    about(&["client::list"], "The clients that this node knows", "", "", Answer::Data),
    about(&["v2::client::detail", "v3::client::detail"], "A client", "clientId", "", Answer::Data),
    about(&["v2::client::publications", "v3::client::publications"], "What a client publishes",
        "clientId", "", Answer::Data),
    about(&["v2::client::subscriptions", "v3::client::subscriptions"], "What a client subscribes to",
        "clientId", "", Answer::Data),
    about(&["v2::client::publishers", "v3::client::publishers"], "Who publishes a service",
        "serviceName", "namespaceId groupName ip port ephemeral", Answer::Data),
    about(&["v2::client::subscribers", "v3::client::subscribers"], "Who subscribes to a service",
        "serviceName", "namespaceId groupName ip port", Answer::Data),
    about(&["client::responsible", "v1::operator::responsible"], "The member that takes care of an address that beats",
        "ip port", "", Answer::Data),
    about(&["loader::current"], "The connections of this node", "", "", Answer::Json),
    about(&["loader::cluster"], "The connections of every member, counted", "", "", Answer::Json),
    about(&["loader::reload_client"], "Asks a connection to move", "connectionId", "redirectAddress", Answer::Text),
    about(&["loader::reload_current"], "Asks connections to move until so many are left",
        "count", "redirectAddress", Answer::Text),
    about(&["loader::smart_reload"], "Evens out the connections of the members", "", "loaderFactor", Answer::Text),
    // === this server and its cluster ===
    about(&["metrics::metrics"], "Whether this node serves, and counts", "", "onlyStatus", Answer::Data),
    about(&["switches::get"], "The switches", "", "", Answer::Data),
    about(&["switches::set"], "Sets a switch", "entry value", "debug", Answer::Done),
    about(&["v1::operator::push_state"], "How pushes ended", "", "detail", Answer::Json),
    about(&["v1::health::server"], "Whether this node serves", "", "", Answer::Json),
    about(&["v1::cluster::nodes", "v3::console::nodes"], "The members", "", "keyword", Answer::Data),
    about(&["v2::cluster::list"], "The members", "", "address state", Answer::Data),
    about(&["v1::cluster::this", "v2::cluster::this"], "This member", "", "", Answer::Data),
    about(&["v1::cluster::simple_nodes"], "The addresses of the members", "", "", Answer::Json),
    about(&["v1::cluster::health", "v2::cluster::health"], "Whether this member serves", "", "", Answer::Data),
    about(&["cluster::refuse_update", "cluster::refuse_leave"], "Refused: members come and go by their list",
        "", "", Answer::Json),
    about(&["cluster::refuse_lookup"], "Refused: where the member list comes from is a setting",
        "type", "", Answer::Json),
    about(&["v1::cluster::server_list"], "The addresses of the members, a line each", "", "", Answer::Text),
    about(&["state::server_state", "state::console_state"], "What this server is", "", "", Answer::Json),
    about(&["state::liveness"], "The process answers", "", "", Answer::Done),
    about(&["state::readiness"], "This node serves", "", "", Answer::Done),
    about(&["v1::auth::login"], "Logs in; there are no users yet", "username password", "", Answer::Json),
    about(&["v1::namespace::namespaces"], "The namespaces, one of them, or whether there is one",
        "", "show namespaceId checkNamespaceIdExist customNamespaceId", Answer::Json),
    about(&["namespace::list"], "The namespaces", "", "", Answer::Data),
    about(&["namespace::get"], "A namespace", "namespaceId", "", Answer::Data),
    about(&["v1::namespace::create"], "Makes a namespace",
        "customNamespaceId namespaceName", "namespaceDesc", Answer::Json),
    about(&["namespace::create"], "Makes a namespace", "namespaceId namespaceName", "namespaceDesc", Answer::Data),
    about(&["v3::namespace::create"], "Makes a namespace",
        "namespaceName", "customNamespaceId namespaceDesc", Answer::Data),
    about(&["v1::namespace::update"], "Names a namespace", "namespace namespaceShowName", "namespaceDesc", Answer::Json),
    about(&["namespace::update"], "Names a namespace", "namespaceId namespaceName", "namespaceDesc", Answer::Data),
    about(&["v1::namespace::remove", "namespace::remove"], "Forgets what is said of a namespace",
        "namespaceId", "", Answer::Data),
    about(&["v3::namespace::count"], "How many namespaces have an id", "namespaceId", "", Answer::Data),
    about(&["v3::namespace::exists"], "Whether a namespace exists", "customNamespaceId", "", Answer::Data),
    about(&["prometheus::metrics"], "Metrics for Prometheus", "", "", Answer::Text),
    about(&["prometheus::health"], "The process answers", "", "", Answer::Json),
    about(&["discovery::targets"], "Rows as targets for Prometheus", "", "namespaceId groupName serviceName", Answer::Json),
    about(&["operations::page"], "A page for people", "", "", Answer::Text),
    about(&["operations::announcement", "operations::guide"], "Texts for consoles", "", "", Answer::Data),
    about(&["operations::set_log_level", "operations::set_core_log_level"], "Sets a level of this node's log",
        "logName logLevel", "", Answer::Done),
    about(&["operations::command_raft"], "Refused: there is no consensus store to command", "", "command", Answer::Json),
    about(&["operations::ids"], "The generators of numbers, of which there are none", "", "", Answer::Json),
    about(&["openapi::document"], "This document", "", "", Answer::Json),
    about(&["own::state"], "This node, its members, and digests of what it holds", "", "", Answer::Json),
    about(&["own::rows"], "The rows of a service with their publishers",
        "serviceName", "namespaceId groupName", Answer::Json),
    about(&["own::owner"], "The member that takes the writes of a service",
        "serviceName", "namespaceId groupName", Answer::Json),
    about(&["service::own_subscribers"], "The subscribers of a service at this node alone",
        "serviceName", "namespaceId groupName", Answer::Json),
    about(&["loader::even_out_here"], "Evens out the connections of this node alone", "", "loaderFactor", Answer::Json),
    about(&["own::digests"], "What rows amount to, by writer, bucket and service", "", "origin bucket", Answer::Json),
    about(&["own::repairs"], "What differed from other members and was mended", "", "", Answer::Json),
    about(&["own::agreement"], "Whether all members hold the same", "", "", Answer::Json),
    about(&["quarantine::list"], "Rows that nobody sees", "", "", Answer::Json),
    about(&["quarantine::set"], "Hides rows whatever their publishers do",
        "serviceName ip port", "namespaceId groupName clusterName seconds reason", Answer::Done),
    about(&["quarantine::lift"], "Shows rows again that were hidden",
        "serviceName ip port", "namespaceId groupName clusterName", Answer::Done),
    about(&["guard::get"], "For how long lists are held whose instances have all fallen silent",
        "", "serviceName namespaceId groupName", Answer::Json),
    about(&["guard::set"], "Holds lists whose instances have all fallen silent",
        "seconds", "serviceName namespaceId groupName", Answer::Done),
    about(&["guard::end"], "Ends what was set to hold lists", "", "serviceName namespaceId groupName", Answer::Done),
];

/// Every parameter: what it means, its kind, and a value that fits.
#[rustfmt::skip]
static PARAMS: &[(&str, &str, Kind, &str)] = &[
    ("address", "Part of the address of a member", Kind::Text, "127.0.0.1"),
    ("aggregation", "Of all members, true unless given", Kind::Truth, "true"),
    ("beat", "The row as a JSON object; without it the row must be known", Kind::Text,
        r#"{"ip":"10.0.0.7","port":8080,"cluster":"DEFAULT"}"#),
    ("bucket", "One of the 256 buckets of services", Kind::Whole, "0"),
    ("checkNamespaceIdExist", "Ask whether `customNamespaceId` exists", Kind::Truth, "true"),
    ("checkPort", "Port that is checked", Kind::Whole, "80"),
    ("clientId", "Id of a client, as the list of clients has it", Kind::Text, "10.0.0.7:8080#true"),
    ("clientIP", "Address to push to over UDP, instead of the sender's", Kind::Text, "10.0.0.7"),
    ("cluster", "Another name of `clusterName`", Kind::Text, "DEFAULT"),
    ("clusterName", "Cluster of the row, DEFAULT unless given", Kind::Text, "DEFAULT"),
    ("clusters", "Clusters, separated by commas; all unless given", Kind::Text, "DEFAULT"),
    ("command", "What the consensus store shall do", Kind::Text, "transferLeader"),
    ("connectionId", "Id of a connection", Kind::Text, "1_10.0.0.7_5000"),
    ("count", "Connections that shall be left", Kind::Whole, "100"),
    ("customNamespaceId", "Id of a namespace", Kind::Text, "dev"),
    ("debug", "For this node only", Kind::Truth, "false"),
    ("detail", "With what pushes cost", Kind::Truth, "true"),
    ("enable", "Another name of `enabled`", Kind::Truth, "true"),
    ("enabled", "Readers see the row, true unless given", Kind::Truth, "true"),
    ("enabledOnly", "Whether only enabled or only disabled rows are meant", Kind::Truth, "true"),
    ("entry", "Name of a switch", Kind::Text, "pushEnabled"),
    ("ephemeral", "The row goes with its client; only those are there yet", Kind::Truth, "true"),
    ("expr", "Part of the names", Kind::Text, "ord"),
    ("groupName", "Group, DEFAULT_GROUP unless given", Kind::Text, "DEFAULT_GROUP"),
    ("groupNameParam", "Part of the group", Kind::Text, "DEFAULT"),
    ("hasIpCount", "Leave services without rows out", Kind::Truth, "false"),
    ("healthChecker", "How it is checked, as a JSON object", Kind::Text, r#"{"type":"TCP"}"#),
    ("healthy", "The row is healthy", Kind::Truth, "true"),
    ("healthyOnly", "Leave unhealthy rows out", Kind::Truth, "false"),
    ("heartBeat", "Renew the row only", Kind::Truth, "false"),
    ("ignoreEmptyService", "Leave services without rows out", Kind::Truth, "false"),
    ("instances", "The rows as a JSON array, all unless given", Kind::Text, r#"[{"ip":"10.0.0.7","port":8080}]"#),
    ("ip", "Address of the row", Kind::Text, "10.0.0.7"),
    ("key", "The service as `[namespace##]group@@name`", Kind::Text, "DEFAULT_GROUP@@orders"),
    ("keyword", "Part of the address of a member", Kind::Text, "127"),
    ("loaderFactor", "Share above and below the mean that is left alone", Kind::Number, "0.1"),
    ("logLevel", "trace, debug, info, warn, error or off", Kind::Text, "info"),
    ("logName", "Part of the log", Kind::Text, "naming-main"),
    ("metadata", "Pairs, as a JSON object or as `k=v,k=v`", Kind::Text, r#"{"zone":"a"}"#),
    ("namespace", "Id of a namespace", Kind::Text, "dev"),
    ("namespaceDesc", "Description of a namespace", Kind::Text, "for developers"),
    ("namespaceId", "Id of the namespace, public unless given", Kind::Text, "public"),
    ("namespaceName", "Name of a namespace", Kind::Text, "Development"),
    ("namespaceShowName", "Name of a namespace", Kind::Text, "Development"),
    ("onlyStatus", "Leave the counts out, true unless given", Kind::Truth, "false"),
    ("origin", "Id of a writer, as the list of digests has it", Kind::Text, "0"),
    ("pageNo", "Page, from 1", Kind::Whole, "1"),
    ("pageSize", "Entries of a page", Kind::Whole, "10"),
    ("password", "Password", Kind::Text, "secret"),
    ("port", "Port of the row; in the list of v2 the port to push to over UDP", Kind::Whole, "8080"),
    ("protectThreshold", "Share of healthy rows at which all are shown as healthy", Kind::Number, "0.5"),
    ("reason", "Why, for people", Kind::Text, "sick"),
    ("redirectAddress", "Member to move to, `host:port`", Kind::Text, "127.0.0.1:8848"),
    ("seconds", "How long, until it is lifted unless given", Kind::Whole, "60"),
    ("selector", "Selector of the service, as a JSON object", Kind::Text, r#"{"type":"none"}"#),
    ("serviceName", "Name of the service, plain or `group@@name`", Kind::Text, "DEFAULT_GROUP@@orders"),
    ("serviceNameParam", "Part of the name", Kind::Text, "ord"),
    ("show", "`all`: only the namespace `namespaceId`", Kind::Text, "all"),
    ("state", "State of a member", Kind::Text, "UP"),
    ("type", "Where a member list comes from", Kind::Text, "file"),
    ("udpPort", "Port to push to over UDP", Kind::Whole, "0"),
    ("useInstancePort4Check", "The port of the row is checked", Kind::Truth, "true"),
    ("username", "Name of a user", Kind::Text, "nacos"),
    ("valid", "Another name of `healthy`", Kind::Truth, "true"),
    ("value", "What to set it to", Kind::Text, "true"),
    ("weight", "Share of calls that the row takes, 1 unless given", Kind::Number, "1"),
    ("withInstances", "With the rows of each service", Kind::Truth, "false"),
];

/// GET: the document.
///
/// # Errors
/// None.
pub fn document(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(paths);
    let context = app.context_path();
    let server = |url: &str| json!([{ "url": if url.is_empty() { "/" } else { url } }]);
    let document = json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Rollcall",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Parameters may come in the query or as a form. What answers GET answers HEAD as well.",
        },
        "servers": server(context),
        "paths": *DOCUMENT,
        "components": { "schemas": { "Result": result() } },
    });
    Ok(Reply::Json(Bytes::from(document.to_string())))
}

fn result() -> Value {
    json!({
        "type": "object",
        "description": "How v2 and v3 answer and refuse: code 0 is a success.",
        "required": ["code", "message", "data"],
        "properties": {
            "code": { "type": "integer" },
            "message": { "type": "string", "nullable": true },
            "data": { "nullable": true },
        },
    })
}

fn paths() -> Value {
    let below = router::paths().iter().map(|route| (route, false));
    let own = router::own_paths().iter().map(|route| (route, true));
    let mut paths = Map::new();
    for (route, is_own) in below.chain(own) {
        let mut item = Map::new();
        if is_own {
            item.insert("servers".into(), json!([{ "url": "/" }]));
        }
        for (method, handler) in route.calls() {
            if let Some(about) = about_of(handler) {
                item.insert(method.to_ascii_lowercase(), operation(route, method, about));
            }
        }
        paths.insert(path_of(route).to_owned(), Value::Object(item));
    }
    Value::Object(paths)
}

/// The path of a route in the document, where none is empty.
fn path_of(route: &Route) -> &'static str {
    match route.path() {
        "" => "/",
        path => path,
    }
}

fn about_of(handler: &str) -> Option<&'static About> {
    ABOUT.iter().find(|about| about.handlers.contains(&handler))
}

impl About {
    /// The parameters of one route: name, and whether it must be there.
    fn params(&self, route: &Route) -> Vec<(&'static str, bool)> {
        let named = |list: &'static str| {
            list.split_ascii_whitespace()
                .filter_map(|name| match name.split_once(':') {
                    None => Some(name),
                    Some((api, name)) => (api == api_name(route.api)).then_some(name),
                })
        };
        let mut params: Vec<_> = named(self.required).map(|name| (name, true)).collect();
        for name in named(self.optional) {
            if !params.iter().any(|(known, _)| *known == name) {
                params.push((name, route.has_in_path(name)));
            }
        }
        params
    }
}

fn api_name(api: Api) -> &'static str {
    match api {
        Api::V1 => "v1",
        Api::V2 => "v2",
        Api::V3 => "v3",
    }
}

fn operation(route: &Route, method: &str, about: &About) -> Value {
    let id = route.path().replace(['/', '-', '.'], "_").replace(['{', '}'], "");
    let params: Vec<_> = about
        .params(route)
        .into_iter()
        .map(|(name, is_required)| parameter(route, name, is_required))
        .collect();
    let mut responses = json!({
        "200": success(route.api, about.answer),
        "default": { "description": "Refused or failed; the text says why.", "content": failure(route.api) },
    });
    if route.is_naming {
        responses["503"] = json!({ "description": "This node does not serve yet, or no more." });
    }
    json!({
        "operationId": format!("{}{id}", method.to_ascii_lowercase()),
        "tags": [tag(route.path())],
        "summary": about.summary,
        "parameters": params,
        "responses": responses,
    })
}

/// The first segments of a path tell who it is for.
fn tag(path: &str) -> String {
    let segments: Vec<_> = path.split('/').skip(1).collect();
    match segments.as_slice() {
        ["v3", who, ..] => format!("v3 {who}"),
        [first @ ("v1" | "v2"), ..] => (*first).to_owned(),
        ["rollcall", ..] => "rollcall".to_owned(),
        _ => "tools".to_owned(),
    }
}

fn parameter(route: &Route, name: &str, is_required: bool) -> Value {
    let known = PARAMS.iter().find(|(known, ..)| *known == name);
    let (_, description, kind, example) = known.copied().unwrap_or((name, "", Kind::Text, ""));
    let (kind, example) = match kind {
        Kind::Text => ("string", Value::from(example)),
        Kind::Whole => ("integer", example.parse::<i64>().map_or(Value::Null, Value::from)),
        Kind::Number => ("number", example.parse::<f64>().map_or(Value::Null, Value::from)),
        Kind::Truth => ("boolean", Value::from(example == "true")),
    };
    json!({
        "name": name,
        "in": if route.has_in_path(name) { "path" } else { "query" },
        "required": is_required,
        "description": description,
        "schema": { "type": kind },
        "example": example,
    })
}

fn success(api: Api, answer: Answer) -> Value {
    let content = match (answer, api) {
        (Answer::Text, _) | (Answer::Done, Api::V1) => {
            json!({ "text/plain": { "schema": { "type": "string" } } })
        }
        (Answer::Json, _) | (Answer::Data, Api::V1) => json!({ "application/json": { "schema": {} } }),
        (Answer::Done | Answer::Data, Api::V2 | Api::V3) => result_content(),
    };
    json!({ "description": "Done, or what was asked for.", "content": content })
}

fn failure(api: Api) -> Value {
    match api {
        Api::V1 => json!({ "text/plain": { "schema": { "type": "string" } } }),
        Api::V2 | Api::V3 => result_content(),
    }
}

fn result_content() -> Value {
    json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Result" } } })
}

#[cfg(test)]
mod tests;
