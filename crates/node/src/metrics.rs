//! What a node counts, and the form in which metrics are shown.

use std::sync::atomic::{AtomicU64, Ordering};

use rollcall_core::{LatencyCounts, Micros};
use smol_str::SmolStr;

use crate::push::costs::{PushCosts, RecentCosts};

/// One metric: what is known under one name, with one value or one for each set of labels.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name, that of a counter without `_total`.
    pub name: &'static str,
    /// What it tells.
    pub help: &'static str,
    /// Its values, all of one kind.
    pub samples: Vec<Sample>,
}

/// One value of a metric.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What tells it from the other values of its metric.
    pub labels: Vec<(&'static str, SmolStr)>,
    /// The value.
    pub value: Value,
}

/// A value by its kind.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// Only rises.
    Counter(u64),
    /// Goes up and down.
    Gauge(f64),
    /// Latencies by bucket.
    Histogram(LatencyCounts),
    /// Latencies, counted and summed.
    Summary {
        /// How many.
        count: u64,
        /// Their sum.
        sum: Micros,
    },
}

impl Family {
    /// A metric with one value.
    pub fn single(name: &'static str, help: &'static str, value: Value) -> Self {
        let labels = Vec::new();
        let samples = vec![Sample { labels, value }];
        Family { name, help, samples }
    }
}

/// Counters that the node keeps itself.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) pushes_sent: AtomicU64,
    pub(crate) pushes_acked: AtomicU64,
    pub(crate) pushes_failed: AtomicU64,
    pub(crate) pushes_timed_out: AtomicU64,
    pub(crate) pushes_empty: AtomicU64,
    pub(crate) push_costs: PushCosts,
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
    pub(crate) connections_refused: AtomicU64,
    pub(crate) fuzzy_sent: AtomicU64,
    pub(crate) resets_sent: AtomicU64,
    pub(crate) resets_acked: AtomicU64,
    pub(crate) balance_moved: AtomicU64,
    pub(crate) minority_moved: AtomicU64,
    pub(crate) connections_idle_closed: AtomicU64,
    pub(crate) expiry_brakes: AtomicU64,
    pub(crate) beat_rows_expired: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// All metrics of a node at one moment.
#[derive(Clone, Debug, Default)]
pub struct NodeMetrics {
    pub(crate) families: Vec<Family>,
    pub(crate) recent_costs: RecentCosts,
}

impl NodeMetrics {
    /// The metrics, in a fixed order.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The value of a counter or gauge without labels.
    pub fn get(&self, name: &str) -> Option<u64> {
        let family = self.families.iter().find(|family| family.name == name)?;
        match family.samples.first()?.value {
            Value::Counter(value) => Some(value),
            Value::Gauge(value) => Some(value as u64),
            Value::Histogram(_) | Value::Summary { .. } => None,
        }
    }

    /// What the pushes cost that were acknowledged of late.
    pub fn recent_costs(&self) -> RecentCosts {
        self.recent_costs
    }

    pub(crate) fn counter(&mut self, name: &'static str, help: &'static str, value: &AtomicU64) {
        let value = Value::Counter(value.load(Ordering::Relaxed));
        self.families.push(Family::single(name, help, value));
    }

    pub(crate) fn gauge(&mut self, name: &'static str, help: &'static str, value: usize) {
        self.families
            .push(Family::single(name, help, Value::Gauge(value as f64)));
    }

    /// Adds a metric with one label.
    pub(crate) fn labelled(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (SmolStr, Value)>,
    ) {
        let samples = values.into_iter().map(|(text, value)| Sample {
            labels: vec![(label, text)],
            value,
        });
        let samples = samples.collect();
        self.families.push(Family { name, help, samples });
    }
}
