//! How often and how long something took, by what it was.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use rollcall_core::{Micros, Now, Peak};
use rollcall_node::Value;

/// How often and how long.
#[derive(Debug, Default)]
pub struct Timer {
    count: AtomicU64,
    sum: AtomicU64,
    peak: Peak,
}

impl Timer {
    fn record(&self, latency: Micros, now: Micros) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(latency.0, Ordering::Relaxed);
        self.peak.record(latency, now);
    }
}

/// A timer for each of a bounded number of things.
#[derive(Debug)]
pub struct Timers<K: Eq + Hash>(DashMap<K, Timer, RandomState>);

impl<K: Eq + Hash> Default for Timers<K> {
    fn default() -> Self {
        Timers(DashMap::default())
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    /// Something has taken from `began` until `now`. Whoever calls sees to it that there are only so many keys.
    pub fn record(&self, key: K, began: Now, now: Now) {
        let latency = now.fine.since(began.fine);
        match self.0.get(&key) {
            Some(timer) => timer.record(latency, now.fine),
            None => self.0.entry(key).or_default().record(latency, now.fine),
        }
    }

    /// Everything that was timed, sorted: how often and how long, and how long at most in this minute and the one before,
    /// in seconds.
    pub fn list(&self, now: Now) -> Vec<(K, Value, f64)> {
        let entry = |entry: dashmap::mapref::multiple::RefMulti<'_, K, Timer>| {
            let timer = entry.value();
            let summary = Value::Summary {
                count: timer.count.load(Ordering::Relaxed),
                sum: Micros(timer.sum.load(Ordering::Relaxed)),
            };
            let max = timer.peak.read(now.fine).unwrap_or_default().as_secs();
            (*entry.key(), summary, max)
        };
        let mut all: Vec<_> = self.0.iter().map(entry).collect();
        all.sort_by_key(|(key, ..)| *key);
        all
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::Millis;

    use super::*;

    #[test]
    fn each_thing_has_its_own_timer() {
        let timers = Timers::default();
        let at = |ms: u64| Now::at(Millis(ms), Millis(0));
        timers.record("b", at(1_000), at(1_500));
        timers.record("a", at(1_000), at(1_250));
        timers.record("b", at(2_000), at(2_250));
        let summary = |count, sum| Value::Summary {
            count,
            sum: Micros(sum),
        };
        let expected = vec![("a", summary(1, 250_000), 0.25), ("b", summary(2, 750_000), 0.5)];
        assert_eq!(timers.list(at(3_000)), expected);
        assert_eq!(timers.list(at(130_000))[1], ("b", summary(2, 750_000), 0.0));
    }
}
