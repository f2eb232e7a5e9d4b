//! What a scrape of a node reads, checked by the rules of the text formats.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::registry::census::Census;
use rollcall_node::{Node, NodeConfig};

use super::*;
use crate::clock::Clock;
use crate::metrics::text::Form;

fn scrape(form: Form) -> String {
    let clock = Clock::start();
    let members = ["127.0.0.1:8848", "[::1]:8848"];
    let node = Node::new(NodeConfig::new(members[0], &members, 1), 1, clock.now());
    let exec = Executor::new(Arc::new(node), clock, None);
    let now = exec.now();
    for (code, call) in [(0, "InstanceRequest"), (400, "InstanceRequest")] {
        exec.metrics().grpc_calls.record((call, "naming", code), now, now);
    }
    exec.metrics().http_calls.record(("/a", "GET", 200), now, now);
    let census = Census {
        busiest: vec![(rollcall_core::ServiceKey::new("", "", "说\"\\"), 3)],
        ..Census::default()
    };
    let load = MachineLoad {
        cpu: 0.5,
        load: -1.0,
        memory: 0.5,
    };
    text::write(&gather(&exec, &census, load), form)
}

/// Name of the family of a line, and its whole series: name and labels.
fn series(text: &str) -> Vec<(String, String)> {
    let mut family = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            found.push((family.clone(), series.to_owned()));
        }
    }
    found
}

#[test]
fn every_series_is_there_once_and_belongs_to_the_family_above_it() {
    for form in [Form::Plain, Form::OpenMetrics] {
        let text = scrape(form);
        let mut seen = BTreeMap::new();
        for (family, series) in series(&text) {
            assert!(series.starts_with(&family), "{series} below {family}");
            assert!(seen.insert(series.clone(), family).is_none(), "{series} twice");
        }
        let types: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let mut distinct = types.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(types.len(), distinct.len(), "a family is split");
    }
}

#[test]
fn the_recorded_names_are_there_as_gauges_and_summaries() {
    let text = scrape(Form::Plain);
    for line in [
        "# TYPE nacos_monitor gauge",
        "nacos_monitor{module=\"naming\",name=\"serviceCount\"} 0.0",
        "nacos_monitor{module=\"naming\",name=\"avgPushCost\"} -1.0",
        "nacos_monitor{module=\"core\",name=\"longConnection\"} 0.0",
        "nacos_naming_publisher{version=\"v1\"} 0.0",
        "nacos_naming_subscriber{version=\"v2\"} 0.0",
        "service_change_count{service=\"public##DEFAULT_GROUP@@说\\\"\\\\\"} 3.0",
        "# TYPE grpc_server_requests_seconds summary",
        "grpc_server_requests_seconds_count{errorCode=\"400\",module=\"naming\",requestClass=\"InstanceRequest\",\
         success=\"false\",throwableClass=\"None\"} 1",
        "http_server_requests_seconds_count{exception=\"None\",method=\"GET\",outcome=\"SUCCESS\",status=\"200\",uri=\"/a\"} 1",
        "system_cpu_usage 0.5",
        "rollcall_peer_link_up{member=\"[::1]:8848\"} 0.0",
        "rollcall_push_acked_seconds_bucket{way=\"udp\",le=\"+Inf\"} 0",
    ] {
        assert!(text.lines().any(|known| known == line), "no {line} in\n{text}");
    }
    for absent in [
        "module=\"config\"",
        "HealthCheck\"",
        "raft",
        "system_load_average_1m",
        "leaderStatus",
    ] {
        assert!(!text.contains(absent), "{absent}");
    }
}
