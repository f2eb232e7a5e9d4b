//! `/prometheus`: the registry as targets for Prometheus, in the form of its HTTP service discovery (`http_sd`).
//!
//! Every registered row is a target, unhealthy and disabled ones too: who watches a fleet wants to go on watching what is
//! sick. Labels tell which is which. Paths and the label of the cluster are those of Nacos (`spec/security-ops.md` §9).

use std::collections::BTreeMap;

use rollcall_core::model::service_key::GROUP_SEPARATOR;
use rollcall_core::{Instance, ServiceKey};
use rollcall_node::Node;
use serde::Serialize;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// What every target is told to be reached at; a row's metadata has no say in it.
const ADDRESS: &str = "__address__";

/// GET: the rows of all services; below `namespaceId` those of a namespace, below `service` those of a service. A plain
/// name means the services of that name in every group, unless `groupName` names one.
///
/// # Errors
/// 400 for names that are refused.
pub async fn targets(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let service = app.check(params)?.service;
    let namespace = params.get("namespaceId").map(str::to_owned);
    let is_grouped = params
        .get("serviceName")
        .is_some_and(|name| name.contains(GROUP_SEPARATOR));
    let group = match &service {
        Some(service) if is_grouped => Some(service.group().to_owned()),
        _ => params.get("groupName").map(str::to_owned),
    };
    let is_meant = move |key: &ServiceKey| {
        let is_in_group = group.as_ref().is_none_or(|group| key.group() == group);
        is_in_group
            && service
                .as_ref()
                .is_none_or(|service| key.name() == service.name())
    };
    let document = app
        .look(move |node| write(node, namespace.as_deref(), is_meant))
        .await;
    Ok(Reply::json(document))
}

fn write(node: &Node, namespace: Option<&str>, is_meant: impl Fn(&ServiceKey) -> bool) -> Vec<u8> {
    let registry = node.registry();
    let services = match namespace {
        Some(namespace) => {
            let mut services = registry.catalog().in_namespace(namespace);
            services.retain(is_meant);
            services
        }
        None => registry.catalog().matching(usize::MAX, is_meant),
    };
    let views = services
        .iter()
        .filter_map(|key| registry.service(key))
        .map(|s| s.view());
    let mut out = vec![b'['];
    for view in views {
        for instance in view.instances() {
            if out.len() > 1 {
                out.push(b',');
            }
            json::value(&mut out, &Target::of(view.service(), instance));
        }
    }
    out.push(b']');
    out
}

/// One target.
#[derive(Serialize)]
struct Target<'a> {
    targets: [String; 1],
    labels: BTreeMap<String, &'a str>,
}

impl<'a> Target<'a> {
    fn of(service: &'a ServiceKey, instance: &'a Instance) -> Self {
        let word = |is: bool| if is { "true" } else { "false" };
        let own = [
            ("__meta_clusterName", instance.cluster.as_str()),
            ("__meta_namespaceId", service.namespace()),
            ("__meta_groupName", service.group()),
            ("__meta_serviceName", service.name()),
            ("__meta_healthy", word(instance.healthy)),
            ("__meta_enabled", word(instance.enabled)),
        ];
        let mut labels: BTreeMap<_, _> = own.map(|(name, value)| (name.to_owned(), value)).into();
        let mut pairs: Vec<_> = instance
            .metadata
            .iter()
            .filter(|(key, _)| key != ADDRESS)
            .collect();
        // Keys that are legal names go first, so that `a_b` is not taken by `a.b`; each by its order, not by the client's.
        pairs.sort_unstable_by_key(|(key, _)| (!is_label(key), key));
        for (key, value) in pairs {
            if is_label(key) {
                labels.entry(key.to_string()).or_insert(value);
                continue;
            }
            let name = label(key);
            let numbered = (2..).map(|n| format!("{name}_{n}"));
            let mut names = [name.clone()].into_iter().chain(numbered);
            let free = names.find(|name| !labels.contains_key(name));
            labels.insert(free.unwrap_or(name), value);
        }
        let Instance { ip, port, .. } = instance;
        let is_bare_v6 = ip.contains(':') && !ip.starts_with('[');
        let address = if is_bare_v6 {
            format!("[{ip}]:{port}")
        } else {
            format!("{ip}:{port}")
        };
        Target {
            targets: [address],
            labels,
        }
    }
}

/// True for what Prometheus takes as the name of a label.
fn is_label(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The name of the label for a key that is none: every other character is an underscore.
fn label(key: &str) -> String {
    let underscored = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name: String = key.chars().map(underscored).collect();
    if !is_label(&name) {
        name.insert(0, '_');
    }
    name
}

#[cfg(test)]
mod tests {
    use rollcall_core::Metadata;

    use super::*;

    fn target(ip: &str, metadata: &[(&str, &str)]) -> (String, BTreeMap<String, String>) {
        let service = ServiceKey::new("dev", "g", "s");
        let instance = Instance {
            metadata: Metadata::from_pairs(metadata.iter().map(|(k, v)| ((*k).into(), (*v).into()))),
            ..Instance::at(ip, 80)
        };
        let Target { targets, labels } = Target::of(&service, &instance);
        let labels = labels.into_iter().map(|(name, value)| (name, value.to_owned()));
        let [address] = targets;
        (address, labels.collect())
    }

    #[test]
    fn addresses_of_ipv6_are_bracketed() {
        assert_eq!(target("10.0.0.1", &[]).0, "10.0.0.1:80");
        assert_eq!(target("fd00::1", &[]).0, "[fd00::1]:80");
        assert_eq!(target("[fd00::1]", &[]).0, "[fd00::1]:80");
        assert_eq!(target("app.example", &[]).0, "app.example:80");
    }

    #[test]
    fn labels_tell_where_a_row_belongs_and_how_it_is() {
        let (_, labels) = target("10.0.0.1", &[]);
        for (name, value) in [
            ("__meta_namespaceId", "dev"),
            ("__meta_groupName", "g"),
            ("__meta_serviceName", "s"),
            ("__meta_clusterName", "DEFAULT"),
            ("__meta_healthy", "true"),
            ("__meta_enabled", "true"),
        ] {
            assert_eq!(labels[name], value, "{name}");
        }
        assert_eq!(labels.len(), 6);
    }

    #[test]
    fn every_key_becomes_a_legal_label_of_its_own() {
        let (_, labels) = target(
            "10.0.0.1",
            &[
                ("a.b", "dot"),
                ("a-b", "dash"),
                ("a_b", "exact"),
                ("9", "digit"),
                ("区域", "two"),
                ("", "empty"),
                ("__meta_clusterName", "forged"),
                ("__address__", "10.9.9.9:1"),
                ("__metrics_path__", "/m"),
            ],
        );
        assert!(labels.keys().all(|name| is_label(name)), "{labels:?}");
        assert_eq!(labels["a_b"], "exact");
        assert_eq!((&*labels["a_b_2"], &*labels["a_b_3"]), ("dash", "dot"));
        assert_eq!(
            (&*labels["_9"], &*labels["__"], &*labels["_"]),
            ("digit", "two", "empty")
        );
        assert_eq!(labels["__meta_clusterName"], "DEFAULT");
        assert_eq!(labels["__metrics_path__"], "/m");
        assert_eq!(labels.len(), 6 + 7);
    }
}
