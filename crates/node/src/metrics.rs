//! Counters and gauges of a node.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a metric only rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Counters that the node keeps itself.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) pushes_sent: AtomicU64,
    pub(crate) pushes_acked: AtomicU64,
    pub(crate) pushes_failed: AtomicU64,
    pub(crate) pushes_timed_out: AtomicU64,
    pub(crate) udp_pushes_sent: AtomicU64,
    pub(crate) udp_pushes_repeated: AtomicU64,
    pub(crate) udp_pushes_acked: AtomicU64,
    pub(crate) udp_pushes_failed: AtomicU64,
    pub(crate) udp_pushes_timed_out: AtomicU64,
    pub(crate) udp_subscriptions_refused: AtomicU64,
    pub(crate) forwards_sent: AtomicU64,
    pub(crate) forwards_received: AtomicU64,
    pub(crate) forwards_failed: AtomicU64,
    pub(crate) writes_over_limit: AtomicU64,
    pub(crate) connections_idle_closed: AtomicU64,
    pub(crate) beat_rows_expired: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// All metrics of a node at one moment.
#[derive(Clone, Debug, Default)]
pub struct NodeMetrics(pub(crate) Vec<Metric>);

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without a unit or `_total` suffix.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: MetricKind,
    /// Value.
    pub value: u64,
}

impl NodeMetrics {
    /// The metrics, in a fixed order.
    pub fn list(&self) -> Vec<(&'static str, &'static str, MetricKind, u64)> {
        self.0.iter().map(|m| (m.name, m.help, m.kind, m.value)).collect()
    }

    /// The value of one metric.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|m| m.name == name).map(|m| m.value)
    }

    pub(crate) fn counter(&mut self, name: &'static str, help: &'static str, value: &AtomicU64) {
        let value = value.load(Ordering::Relaxed);
        self.0.push(Metric {
            name,
            help,
            kind: MetricKind::Counter,
            value,
        });
    }

    pub(crate) fn gauge(&mut self, name: &'static str, help: &'static str, value: usize) {
        self.0.push(Metric {
            name,
            help,
            kind: MetricKind::Gauge,
            value: value as u64,
        });
    }
}
