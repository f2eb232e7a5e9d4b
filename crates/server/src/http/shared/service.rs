//! Services as operators see them.

use std::sync::Arc;

use http::{Method, StatusCode};
use rollcall_core::registry::records::{ClusterSettings, ServiceSettings};
use rollcall_core::{Instance, Metadata, ServiceKey, ServiceView};
use rollcall_node::request::ServiceNames;
use rollcall_node::{NodeError, ServiceSubscriber};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::ask::Question;
use crate::error::{Code, HttpFailure};
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// A set of text pairs.
#[derive(Clone, Debug, Default)]
pub struct Pairs(pub Metadata);

impl Serialize for Pairs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

/// How instances are selected.
#[derive(Clone, Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<String>>,
    context_type: &'static str,
}

impl Selector {
    /// Selects everything.
    pub const NONE: Selector = Selector {
        r#type: "none",
        expression: None,
        labels: None,
        context_type: "NONE",
    };

    /// By labels that consumer and provider share, as an expression such as
    /// `CONSUMER.label.a=PROVIDER.label.a` says.
    fn label(text: &str) -> Selector {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let expression = value
            .get("expression")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let terms = expression.split('&').filter_map(|term| term.split('=').next());
        let labels = terms.filter_map(|side| side.trim().rsplit_once(".label."));
        Selector {
            r#type: "label",
            expression: Some(expression.to_owned()),
            labels: Some(labels.map(|(_, label)| label.to_owned()).collect()),
            context_type: "CMDB",
        }
    }
}

/// A cluster as operators see it.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Its name.
    pub name: SmolStr,
    /// How its instances are probed: a JSON object with `type`.
    pub health_checker: Value,
    /// Port that is probed, unless the instance's own is.
    pub check_port: u16,
    /// The instance's own port is probed.
    pub uses_instance_port: bool,
    /// What was said beside it.
    pub metadata: Pairs,
}

impl ClusterStatus {
    fn of(name: SmolStr, settings: Option<Arc<ClusterSettings>>) -> Self {
        let Some(settings) = settings else {
            return ClusterStatus {
                name,
                health_checker: json!({"type": "TCP"}),
                check_port: 80,
                uses_instance_port: true,
                metadata: Pairs::default(),
            };
        };
        let checker: Value = serde_json::from_str(&settings.health_checker).unwrap_or_default();
        let kind = checker.get("type").and_then(Value::as_str).unwrap_or_default();
        // A kind that is not known is none, as recorded.
        let is_known = ["TCP", "HTTP", "MYSQL", "NONE"].contains(&kind);
        ClusterStatus {
            name,
            health_checker: if is_known {
                checker
            } else {
                json!({"type": "NONE"})
            },
            check_port: settings.check_port,
            uses_instance_port: settings.uses_instance_port,
            metadata: Pairs(settings.metadata.clone()),
        }
    }
}

/// A service and what it holds.
#[derive(Clone, Debug)]
pub struct ServiceStatus {
    /// Its identity.
    pub key: ServiceKey,
    /// Its list.
    pub view: Arc<ServiceView>,
    /// What operators said of it, if anything.
    pub settings: Option<Arc<ServiceSettings>>,
}

impl ServiceStatus {
    /// Share of healthy instances at or below which all are shown as healthy.
    pub fn protect_threshold(&self) -> f64 {
        self.settings.as_ref().map_or(0.0, |s| s.protect_threshold)
    }

    /// What was said beside it.
    pub fn metadata(&self) -> Pairs {
        Pairs(
            self.settings
                .as_ref()
                .map(|s| s.metadata.clone())
                .unwrap_or_default(),
        )
    }

    /// How instances are selected. Kept and shown; none has an effect, as there are no labels of consumers.
    pub fn selector(&self) -> Selector {
        match &self.settings {
            Some(settings) if !settings.selector.is_empty() => Selector::label(&settings.selector),
            _ => Selector::NONE,
        }
    }

    /// False when it was made for persistent instances.
    pub fn is_ephemeral(&self) -> bool {
        self.settings.as_ref().is_none_or(|s| s.is_ephemeral)
    }

    /// The clusters that hold an instance, sorted.
    pub fn clusters(&self) -> Vec<SmolStr> {
        let mut clusters: Vec<_> = self.view.instances().map(|i| i.cluster.clone()).collect();
        clusters.sort_unstable();
        clusters.dedup();
        clusters
    }

    /// The clusters that hold an instance with what operators said of them, sorted by name.
    pub fn described_clusters(&self, app: &HttpApp) -> Vec<ClusterStatus> {
        let node = app.exec().node();
        let names = self.clusters().into_iter();
        names
            .map(|name| {
                let settings = node.cluster_settings(&self.key, &name);
                ClusterStatus::of(name, settings)
            })
            .collect()
    }

    /// The instances of a cluster, disabled ones included, sorted by address.
    pub fn in_cluster(&self, cluster: &str) -> Vec<&Arc<Instance>> {
        self.view.instances().filter(|i| i.cluster == cluster).collect()
    }
}

/// The service of this key, if it is listed.
///
/// # Errors
/// 503 while the node is loading.
pub fn status(app: &HttpApp, key: &ServiceKey) -> Result<Option<ServiceStatus>, HttpFailure> {
    let node = app.exec().node();
    let view = node.query(key, app.exec().now())?.view;
    let is_listed = node.registry().catalog().contains(key);
    let settings = node.registry().service_settings(key);
    let key = key.clone();
    Ok(is_listed.then_some(ServiceStatus { key, view, settings }))
}

/// The service that a call names.
///
/// # Errors
/// 400 when none is named, or there is no such service.
pub fn find(app: &HttpApp, params: &Params) -> Result<ServiceStatus, HttpFailure> {
    let checked = app.check(params)?;
    let key = checked.require_service()?;
    status(app, key)?.ok_or_else(|| {
        let (namespace, name) = (key.namespace(), key.grouped_name());
        let text = format!("service not found, namespace: {namespace}, serviceName: {name}");
        HttpFailure::text(StatusCode::BAD_REQUEST, text).with(Code::NO_SERVICE)
    })
}

/// A page of the plain names of a group.
///
/// # Errors
/// 400 for a negative page size.
pub fn names(
    app: &HttpApp,
    params: &Params,
    page_no: i64,
    page_size: i64,
) -> Result<ServiceNames, NodeError> {
    let (node, now) = (app.exec().node(), app.exec().now());
    node.service_names(params.namespace(), params.group(), page_no, page_size, now)
}

/// Clients that nodes push a service to in whose group and name those of `key` stand, as recorded. Those of this node
/// come first; those of the other members come too, unless `aggregation` says otherwise. A member that does not answer
/// is left out.
pub async fn subscribers(
    app: &HttpApp,
    params: &Params,
    key: &ServiceKey,
) -> Result<Vec<ServiceSubscriber>, HttpFailure> {
    let mut found = subscribers_here(app, key);
    if params.choice("aggregation", true)? {
        let question = Question {
            method: Method::GET,
            path: "/rollcall/subscribers",
            params: &[
                ("namespaceId", key.namespace()),
                ("groupName", key.group()),
                ("serviceName", key.name()),
            ],
        };
        let answers = app.ask_others::<Vec<Told>>(&question).await;
        found.extend(answers.into_iter().flatten().map(ServiceSubscriber::from));
    }
    Ok(found)
}

/// `/rollcall/subscribers`: those of this node alone, for the other members.
///
/// # Errors
/// 400 when no service is named.
pub fn own_subscribers(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let found = subscribers_here(app, checked.require_service()?).into_iter();
    Ok(Reply::bare(&found.map(Told::from).collect::<Vec<_>>()))
}

/// A subscriber as one node tells another.
#[derive(Serialize, Deserialize)]
struct Told {
    namespace: SmolStr,
    group: SmolStr,
    name: SmolStr,
    client: SmolStr,
    ip: SmolStr,
    port: u16,
    agent: SmolStr,
    app: SmolStr,
}

impl From<ServiceSubscriber> for Told {
    fn from(subscriber: ServiceSubscriber) -> Self {
        let ServiceSubscriber {
            service,
            client,
            ip,
            port,
            agent,
            app,
        } = subscriber;
        Told {
            namespace: service.namespace().into(),
            group: service.group().into(),
            name: service.name().into(),
            client,
            ip,
            port,
            agent,
            app,
        }
    }
}

impl From<Told> for ServiceSubscriber {
    fn from(told: Told) -> Self {
        let Told {
            namespace,
            group,
            name,
            client,
            ip,
            port,
            agent,
            app,
        } = told;
        ServiceSubscriber {
            service: ServiceKey::new(&namespace, &group, &name),
            client,
            ip,
            port,
            agent,
            app,
        }
    }
}

fn subscribers_here(app: &HttpApp, key: &ServiceKey) -> Vec<ServiceSubscriber> {
    let is_meant = |service: &ServiceKey| {
        service.namespace() == key.namespace()
            && service.group().contains(key.group())
            && service.name().contains(key.name())
    };
    app.exec().node().subscribers(&is_meant)
}

/// GET selector/types: the kinds of selectors. v1 answers it as a call that has nothing to do with naming.
///
/// # Errors
/// None.
pub fn selector_types(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let types = ["label", "none"];
    Ok(match params.api() {
        Api::V1 => Reply::rest(&types),
        api => Reply::value(api, &types),
    })
}
