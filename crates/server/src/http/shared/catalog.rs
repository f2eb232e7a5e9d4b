//! The catalogue of services for consoles: which there are in a namespace, and what each holds.

use std::sync::Arc;

use rollcall_core::registry::view::HostEncoder;
use rollcall_core::{Instance, ServiceKey};
use serde::Serialize;

use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::shared::service::{self, ServiceStatus};
use crate::service_info::Host;

/// A service in a list of the catalogue.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    name: String,
    group_name: String,
    cluster_count: usize,
    ip_count: usize,
    healthy_instance_count: usize,
    /// `true` as text when so few are healthy that all are shown as healthy.
    trigger_flag: &'static str,
}

impl Summary {
    /// Of this service.
    pub fn of(status: &ServiceStatus) -> Self {
        let healthy = status.view.instances().filter(|i| i.healthy).count();
        let is_triggered = healthy == 0 && !status.view.is_empty();
        Summary {
            name: status.key.name().to_owned(),
            group_name: status.key.group().to_owned(),
            cluster_count: status.clusters().len(),
            ip_count: status.view.len(),
            healthy_instance_count: healthy,
            trigger_flag: if is_triggered { "true" } else { "false" },
        }
    }
}

/// The services of the namespace that a call asks for, sorted by group and name. `serviceNameParam` and
/// `groupNameParam` may stand anywhere in name and group; the parameter named by `no_empty` leaves out those without
/// instances.
///
/// # Errors
/// 400 for a namespace that is refused.
pub async fn services(
    app: &HttpApp,
    params: &Params,
    no_empty: &str,
) -> Result<Vec<ServiceStatus>, HttpFailure> {
    app.check(params)?;
    let pattern = |name| params.get(name).unwrap_or_default().to_owned();
    let (name, group) = (pattern("serviceNameParam"), pattern("groupNameParam"));
    let namespace = params.namespace().to_owned();
    let leaves_out_empty = params.choice(no_empty, false)?;
    let found = app.look(move |node| {
        let registry = node.registry();
        let mut keys = registry.catalog().in_namespace(&namespace);
        keys.retain(|key| stands_in(&name, key.name()) && stands_in(&group, key.group()));
        let status = |key: ServiceKey| {
            let view = registry.service(&key)?.view();
            let is_left_out = leaves_out_empty && view.is_empty();
            let settings = registry.service_settings(&key);
            (!is_left_out).then_some(ServiceStatus { key, view, settings })
        };
        keys.into_iter().filter_map(status).collect()
    });
    Ok(found.await)
}

/// The instances of one cluster of a service, disabled ones included, sorted by address.
///
/// # Errors
/// 404 when there is no such service, or no instance in that cluster.
pub fn instances(app: &HttpApp, key: &ServiceKey, cluster: &str) -> Result<Vec<Arc<Instance>>, HttpFailure> {
    let status = service::status(app, key)?.ok_or_else(|| no_service(key.grouped_name()))?;
    let instances = status.in_cluster(cluster);
    if instances.is_empty() {
        return Err(HttpFailure::not_found(format!("cluster {cluster} is not found!")));
    }
    Ok(instances.into_iter().cloned().collect())
}

/// The refusal of a service that does not exist, by its grouped name.
pub fn no_service(name: &str) -> HttpFailure {
    HttpFailure::not_found(format!("service {name} is not found!"))
}

/// True when the pieces of `pattern` between stars stand in `text` one after another. Consoles send plain words, or
/// put stars around them.
fn stands_in(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    pattern
        .split('*')
        .map(|piece| piece.trim_end_matches('.'))
        .all(|piece| {
            let found = rest.find(piece);
            if let Some(at) = found {
                rest = rest.get(at + piece.len()..).unwrap_or_default();
            }
            found.is_some()
        })
}

/// Writes an instance as lists do.
pub fn write_host(out: &mut Vec<u8>, service: &ServiceKey, instance: &Instance) {
    Host.encode(service, instance, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_may_stand_anywhere_and_have_stars() {
        for (pattern, text, expected) in [
            ("", "orders", true),
            ("der", "orders", true),
            ("*der*", "orders", true),
            (".*o.*s", "orders", true),
            ("o*r*x", "orders", false),
            ("Orders", "orders", false),
            ("a.b", "a.b", true),
            ("说", "a说b", true),
        ] {
            assert_eq!(stands_in(pattern, text), expected, "{pattern} in {text}");
        }
    }
}
