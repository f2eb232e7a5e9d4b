//! What is counted, and how it is shown. The node and the peer side keep their own numbers; they are read when asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rollcall_node::{MetricKind, NodeMetrics};

use crate::executor::Executor;
use crate::json;

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of the shell.
#[derive(Debug, Default)]
pub struct ShellMetrics {
    /// Connections closed because their queue of outgoing messages was full.
    pub queue_overflows: Counter,
    /// Unary gRPC calls.
    pub grpc_requests: Counter,
    /// Unary gRPC calls that were refused.
    pub grpc_failures: Counter,
    /// Pushes over UDP put off because the queue of the socket was full.
    pub udp_overflows: Counter,
    /// Pushes over UDP that no datagram can hold.
    pub udp_too_large: Counter,
    /// Datagrams that are no acknowledgement.
    pub udp_bad_acks: Counter,
    /// Polls whose host name was not looked up because too many were.
    pub udp_lookups_refused: Counter,
    /// Member lists taken while the process runs.
    pub member_list_changes: Counter,
    /// Looks at the member list that found none that will do.
    pub member_list_failures: Counter,
    /// The last look at the member list found none that will do.
    pub member_list_is_stale: AtomicBool,
    /// HTTP answers by class of status, from 1xx to 5xx.
    http_responses: [Counter; 5],
}

impl ShellMetrics {
    /// Counts an HTTP answer.
    pub fn count_response(&self, status: StatusCode) {
        if let Some(counter) = self
            .http_responses
            .get(usize::from(status.as_u16() / 100).wrapping_sub(1))
        {
            counter.increment();
        }
    }

    fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
        let [_, ok, redirect, client, server] = &self.http_responses;
        vec![
            (
                "rollcall_queue_overflows",
                "Connections closed because their queue was full",
                self.queue_overflows.value(),
            ),
            (
                "rollcall_grpc_requests",
                "Unary gRPC calls",
                self.grpc_requests.value(),
            ),
            (
                "rollcall_grpc_failures",
                "Unary gRPC calls that were refused",
                self.grpc_failures.value(),
            ),
            (
                "rollcall_udp_overflows",
                "Pushes over UDP put off because the queue of the socket was full",
                self.udp_overflows.value(),
            ),
            (
                "rollcall_udp_too_large",
                "Pushes over UDP not sent because no datagram holds the list",
                self.udp_too_large.value(),
            ),
            (
                "rollcall_member_list_changes",
                "Member lists taken while the process runs",
                self.member_list_changes.value(),
            ),
            (
                "rollcall_member_list_failures",
                "Looks at the member list that found none that will do",
                self.member_list_failures.value(),
            ),
            (
                "rollcall_udp_bad_acks",
                "Datagrams that are no acknowledgement",
                self.udp_bad_acks.value(),
            ),
            (
                "rollcall_udp_lookups_refused",
                "Polls whose host name was not looked up because too many were",
                self.udp_lookups_refused.value(),
            ),
            (
                "rollcall_http_responses_2xx",
                "HTTP answers with a status of 2xx",
                ok.value(),
            ),
            (
                "rollcall_http_responses_3xx",
                "HTTP answers with a status of 3xx",
                redirect.value(),
            ),
            (
                "rollcall_http_responses_4xx",
                "HTTP answers with a status of 4xx",
                client.value(),
            ),
            (
                "rollcall_http_responses_5xx",
                "HTTP answers with a status of 5xx",
                server.value(),
            ),
        ]
    }
}

/// Writes metrics of the node as further members of a JSON object: `,"name":value` each.
pub fn write_members(out: &mut Vec<u8>, metrics: &NodeMetrics, members: &[(&str, &str)]) {
    for (name, metric) in members {
        json::member(out, name);
        json::unsigned(out, metrics.get(metric).unwrap_or_default());
    }
}

/// All metrics in the OpenMetrics text format.
pub fn text(exec: &Executor) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot::take(exec)));
    let mut out = String::new();
    let _ = text::encode(&mut out, &registry); // Writing to a string cannot fail.
    out
}

/// All numbers at one moment.
#[derive(Debug)]
struct Snapshot(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    value: u64,
}

impl Snapshot {
    fn take(exec: &Executor) -> Self {
        let mut samples: Vec<Sample> = Vec::new();
        let mut add = |name: &'static str, help, is_counter, value| {
            // The encoder appends the ending of counters itself.
            let name = name.strip_suffix("_total").unwrap_or(name);
            if !samples.iter().any(|sample| sample.name == name) {
                samples.push(Sample {
                    name,
                    help,
                    is_counter,
                    value,
                });
            }
        };
        for (name, help, kind, value) in exec.node().metrics().list() {
            add(name, help, matches!(kind, MetricKind::Counter), value);
        }
        for (name, help, value) in exec.metrics().list() {
            add(name, help, true, value);
        }
        for (name, help, value) in exec
            .peers()
            .map(|peers| peers.metrics().list())
            .unwrap_or_default()
        {
            add(name, help.trim_end_matches('.'), true, value);
        }
        if let Some(store) = exec.store() {
            add(
                "rollcall_store_waiting",
                "Rows and records that wait for the disk",
                false,
                store.n_waiting(),
            );
            add(
                "rollcall_store_failures",
                "Writes to the disk that failed and are tried again",
                true,
                store.n_failures(),
            );
        }
        add(
            "rollcall_member_list_stale",
            "1 while the member list cannot be used as its file or address server has it",
            false,
            u64::from(exec.metrics().member_list_is_stale.load(Ordering::Relaxed)),
        );
        add(
            "rollcall_streams",
            "Connections known to the shell",
            false,
            exec.connections().len() as u64,
        );
        Snapshot(samples)
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for sample in &self.0 {
            if sample.is_counter {
                let metric = ConstCounter::new(sample.value);
                metric.encode(encoder.encode_descriptor(
                    sample.name,
                    sample.help,
                    None,
                    metric.metric_type(),
                )?)?;
            } else {
                let metric = ConstGauge::new(i64::try_from(sample.value).unwrap_or(i64::MAX));
                metric.encode(encoder.encode_descriptor(
                    sample.name,
                    sample.help,
                    None,
                    metric.metric_type(),
                )?)?;
            }
        }
        Ok(())
    }
}
