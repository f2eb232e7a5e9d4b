//! Latencies, counted: how many were how long. Recording one costs two or three atomic additions.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Micros;

/// Upper bounds of the buckets, from half a millisecond to ten seconds: three to a power of ten, so that a quantile read
/// from them is off by a factor of two and a half at most.
pub const BOUNDS: [Micros; 14] = [
    Micros(500),
    Micros(1_000),
    Micros(2_500),
    Micros(5_000),
    Micros(10_000),
    Micros(25_000),
    Micros(50_000),
    Micros(100_000),
    Micros(250_000),
    Micros(500_000),
    Micros(1_000_000),
    Micros(2_500_000),
    Micros(5_000_000),
    Micros(10_000_000),
];

/// Latencies by bucket.
#[derive(Debug, Default)]
pub struct Latencies {
    /// The last bucket has no bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

/// What was counted at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyCounts {
    /// Latencies above the bound before and not above the own one; the last bucket has no bound.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// Their sum.
    pub sum: Micros,
}

impl Latencies {
    /// Counts one.
    pub fn record(&self, latency: Micros) {
        let at = BOUNDS.partition_point(|bound| *bound < latency);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(latency.0, Ordering::Relaxed);
    }

    /// What is counted so far.
    pub fn counts(&self) -> LatencyCounts {
        LatencyCounts {
            buckets: array::from_fn(|at| {
                self.buckets
                    .get(at)
                    .map_or(0, |bucket| bucket.load(Ordering::Relaxed))
            }),
            sum: Micros(self.sum.load(Ordering::Relaxed)),
        }
    }
}

impl LatencyCounts {
    /// How many there were.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Microseconds of a minute, which with the one before it is what is called recent.
pub const MINUTE: u64 = 60_000_000;
/// Bits of a slot that hold the latency, the rest holds the minute: twelve days and a million minutes.
const LATENCY_BITS: u32 = 40;

/// The longest latency of this minute and the one before.
///
/// A slot for odd and one for even minutes; the minute is the upper part of a slot, so that the first latency of a minute
/// replaces what was there two minutes ago.
#[derive(Debug, Default)]
pub struct Peak([AtomicU64; 2]);

impl Peak {
    /// Takes note of one.
    pub fn record(&self, latency: Micros, now: Micros) {
        let minute = now.0 / MINUTE;
        // One more than the latency: zero stands for none.
        let value = minute << LATENCY_BITS | latency.0.saturating_add(1).min((1 << LATENCY_BITS) - 1);
        let [even, odd] = &self.0;
        let slot = if minute.is_multiple_of(2) { even } else { odd };
        slot.fetch_max(value, Ordering::Relaxed);
    }

    /// The longest; `None` when there was none.
    pub fn read(&self, now: Micros) -> Option<Micros> {
        let minute = now.0 / MINUTE;
        self.0
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|value| *value > 0 && (value >> LATENCY_BITS) + 1 >= minute)
            .map(|value| Micros((value & ((1 << LATENCY_BITS) - 1)).saturating_sub(1)))
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_counts_in_the_first_bucket_that_holds_it() {
        let latencies = Latencies::default();
        for micros in [0, 500, 501, 1_000, 10_000_000, 10_000_001] {
            latencies.record(Micros(micros));
        }
        let counts = latencies.counts();
        let filled: Vec<_> = counts
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .collect();
        assert_eq!(filled, [(0, &2), (1, &2), (13, &1), (14, &1)]);
        assert_eq!((counts.total(), counts.sum), (6, Micros(20_002_002)));
    }

    #[test]
    fn a_peak_lasts_for_its_minute_and_the_next() {
        let at = |seconds: u64| Micros(seconds * 1_000_000);
        let peak = Peak::default();
        assert_eq!(peak.read(at(1)), None);
        peak.record(Micros(0), at(2));
        assert_eq!(peak.read(at(3)), Some(Micros(0)));
        peak.record(Micros(900), at(59));
        peak.record(Micros(300), at(61));
        assert_eq!(peak.read(at(119)), Some(Micros(900)));
        assert_eq!(peak.read(at(120)), Some(Micros(300)));
        peak.record(Micros(100), at(121));
        assert_eq!(peak.read(at(179)), Some(Micros(300)));
        assert_eq!(peak.read(at(180)), Some(Micros(100)));
        assert_eq!(peak.read(at(300)), None);
    }
}
