//! The document against the table of routes and against what handlers do.

use std::collections::BTreeSet;

use http::Method;

use super::*;
use crate::error::Code;
use crate::http::app::tests::app;
use crate::http::params::BodyKind;
use crate::http::router::Handler;
use crate::http::shared::instance;
use crate::http::udp_poll::Caller;

/// Names that the filters before every naming handler look at, whether the handler means them or not.
const FILTERED: [&str; 9] = [
    "namespaceId",
    "groupName",
    "serviceName",
    "clusterName",
    "cluster",
    "clusters",
    "ip",
    "port",
    "metadata",
];

/// A method of a route.
struct Call {
    route: &'static Route,
    method: &'static str,
    handler: &'static str,
}

fn all_calls() -> Vec<Call> {
    let routes = router::paths().iter().chain(router::own_paths());
    let calls = routes.flat_map(|route| {
        let calls = route.calls();
        calls.map(move |(method, handler)| Call {
            route,
            method,
            handler,
        })
    });
    calls.collect()
}

impl Call {
    fn name(&self) -> String {
        format!("{} {}", self.method, path_of(self.route))
    }

    fn params(&self) -> Vec<(&'static str, bool)> {
        about_of(self.handler).unwrap().params(self.route)
    }

    /// Calls the handler with fitting values for `names`; what it read, and what it refused.
    async fn run(&self, app: &HttpApp, names: &[&str]) -> (BTreeSet<String>, Option<HttpFailure>) {
        let mut query = String::new();
        for name in names {
            let (.., example) = PARAMS.iter().find(|(known, ..)| known == name).unwrap();
            let escaped: String = example.bytes().map(|b| format!("%{b:02X}")).collect();
            query.push_str(&format!("{name}={escaped}&"));
        }
        let lack = self
            .route
            .api
            .lack(&Method::from_bytes(self.method.as_bytes()).unwrap());
        let params = Params::read(&query, &Bytes::new(), &BodyKind::Form).unwrap();
        let mut params = params.of(self.route.api, lack);
        params.set_caller(Caller::default());
        let result = match self.route.handler(self.method).unwrap() {
            Handler::Now(handler) => handler(app, &params),
            Handler::Waits(handler) => handler(app, &params).await,
        };
        (params.names_read(), result.err())
    }
}

/// A node that holds the row which the examples name.
async fn node_with_row() -> HttpApp {
    let app = app();
    let query = "serviceName=orders&ip=10.0.0.7&port=8080";
    let params = Params::read(query, &Bytes::new(), &BodyKind::Form).unwrap();
    instance::register(&app, &params).await.unwrap();
    app
}

/// True for the refusal of a request that lacks a parameter.
fn is_lack(failure: &HttpFailure) -> bool {
    let texts = ["is required", "is not present", "is missing"];
    failure.code == Code::MISSING || texts.iter().any(|text| failure.text.contains(text))
}

#[test]
fn every_handler_is_described_once_and_every_parameter_is_known() {
    let used: BTreeSet<_> = all_calls().iter().map(|call| call.handler).collect();
    let described: Vec<_> = ABOUT.iter().flat_map(|about| about.handlers).copied().collect();
    assert_eq!(
        described.len(),
        described.iter().collect::<BTreeSet<_>>().len(),
        "one twice"
    );
    assert_eq!(described.into_iter().collect::<BTreeSet<_>>(), used);
    let mut meant = BTreeSet::new();
    for call in all_calls() {
        meant.extend(call.params().into_iter().map(|(name, _)| name));
    }
    assert_eq!(
        PARAMS.iter().map(|(name, ..)| *name).collect::<BTreeSet<_>>(),
        meant
    );
}

#[tokio::test]
async fn the_document_has_every_route_with_its_methods_and_no_other() {
    let app = app();
    let Ok(Reply::Json(document)) = document(&app, &Params::default()) else {
        panic!("no document");
    };
    let document: Value = serde_json::from_slice(&document).unwrap();
    let mut shown = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| *key != "servers") {
            shown.insert(format!("{} {path}", method.to_ascii_uppercase()));
        }
    }
    assert_eq!(shown, all_calls().iter().map(Call::name).collect());
    assert_eq!(document["servers"][0]["url"], "/nacos");
    assert_eq!(document["paths"]["/rollcall/state"]["servers"][0]["url"], "/");
    let params = &document["paths"]["/prometheus/namespaceId/{namespaceId}"]["get"]["parameters"];
    assert_eq!(
        (&params[0]["name"], &params[0]["in"]),
        (&"namespaceId".into(), &"path".into())
    );
}

#[tokio::test]
async fn what_is_required_is_what_handlers_refuse_to_do_without() {
    for call in all_calls() {
        let required = call.params().into_iter().filter(|(_, is_required)| *is_required);
        let required: Vec<_> = required.map(|(name, _)| name).collect();
        let (_, failure) = call.run(&node_with_row().await, &required).await;
        let lacks = failure.as_ref().is_some_and(is_lack);
        assert!(!lacks, "{} lacks something: {failure:?}", call.name());
        // What stands in the path cannot be left out.
        for left_out in required.iter().filter(|name| !call.route.has_in_path(name)) {
            let names: Vec<_> = required.iter().copied().filter(|name| name != left_out).collect();
            let (_, failure) = call.run(&node_with_row().await, &names).await;
            assert!(failure.is_some(), "{} does without {left_out}", call.name());
        }
    }
}

#[tokio::test]
async fn the_parameters_are_those_that_handlers_read() {
    for call in all_calls() {
        let names: Vec<_> = call.params().into_iter().map(|(name, _)| name).collect();
        let (mut read, _) = call.run(&node_with_row().await, &names).await;
        for left_out in &names {
            let rest: Vec<_> = names.iter().copied().filter(|name| name != left_out).collect();
            read.extend(call.run(&node_with_row().await, &rest).await.0);
        }
        let meant: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let unread: Vec<_> = meant.difference(&read).collect();
        assert!(unread.is_empty(), "{} does not read {unread:?}", call.name());
        let unsaid = read
            .difference(&meant)
            .filter(|name| !FILTERED.contains(&name.as_str()));
        assert_eq!(
            unsaid.collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{}",
            call.name()
        );
    }
}
