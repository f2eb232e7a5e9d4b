//! The catalogue of services for consoles: which there are in a namespace, and what each holds.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};
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
        let threshold = status.protect_threshold().max(0.0);
        // Of all instances; without any there is nothing to protect.
        let is_triggered = !status.view.is_empty() && healthy as f64 <= threshold * status.view.len() as f64;
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
/// `groupNameParam` are patterns that may stand anywhere in name and group; the parameter named by `no_empty` leaves
/// out those without instances.
///
/// # Errors
/// 400 for a namespace that is refused, or a pattern that is too large.
pub async fn services(
    app: &HttpApp,
    params: &Params,
    no_empty: &str,
) -> Result<Vec<ServiceStatus>, HttpFailure> {
    app.check(params)?;
    let pattern = |name| pattern(name, params.get(name).unwrap_or_default());
    let (name, group) = (pattern("serviceNameParam")?, pattern("groupNameParam")?);
    let namespace = params.namespace().to_owned();
    let leaves_out_empty = params.choice(no_empty, false)?;
    let found = app.look(move |node| {
        let registry = node.registry();
        let mut keys = registry.catalog().in_namespace(&namespace);
        keys.retain(|key| name.is_match(key.name()) && group.is_match(key.group()));
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

/// Largest size of a pattern that is made ready, in bytes.
const PATTERN_MAX: usize = 1 << 16;

/// A pattern of a filter: a regular expression as recorded servers take it, or plain words with stars for anything
/// between them, when it is no expression (consoles put stars around words).
fn pattern(name: &str, text: &str) -> Result<Regex, HttpFailure> {
    let made = |expression: &str| RegexBuilder::new(expression).size_limit(PATTERN_MAX).build();
    made(text)
        .or_else(|error| match error {
            regex::Error::Syntax(_) => {
                let words: Vec<_> = text.split('*').map(regex::escape).collect();
                made(&words.join(".*"))
            }
            error => Err(error),
        })
        .map_err(|error| HttpFailure::invalid(format!("Param '{name}' is illegal, {error}")))
}

/// Writes an instance as lists do.
pub fn write_host(out: &mut Vec<u8>, service: &ServiceKey, instance: &Instance) {
    Host.encode(service, instance, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_may_stand_anywhere_and_be_an_expression_or_have_stars() {
        for (text, name, expected) in [
            ("", "orders", true),
            ("der", "orders", true),
            ("*der*", "orders", true),
            ("*o*s", "orders", true),
            ("*o*x", "orders", false),
            (".*o.*s", "orders", true),
            ("^o.*s$", "orders", true),
            ("^der", "orders", false),
            ("or(d|x)ers", "orders", true),
            ("Orders", "orders", false),
            ("(?i)Orders", "orders", true),
            ("a.b", "a.b", true),
            ("*a.b", "axb", false),
            ("[", "a[b", true),
            ("说", "a说b", true),
        ] {
            assert_eq!(
                pattern("p", text).unwrap().is_match(name),
                expected,
                "{text} in {name}"
            );
        }
        let large = pattern("serviceNameParam", "(a{1000}){1000}").unwrap_err();
        assert_eq!(large.status.as_u16(), 400);
        assert!(large.text.contains("serviceNameParam"), "{}", large.text);
    }
}
