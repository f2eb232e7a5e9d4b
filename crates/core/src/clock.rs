//! Time as the registry sees it: milliseconds handed in from outside, and the hybrid logical clock that orders writes.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::member_id::MemberId;

/// A point in time or a span, in milliseconds. The only time type of the pure crates.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Millis(pub u64);

impl Millis {
    /// A span of `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Millis(n * 1000)
    }

    /// The span since `earlier`, or zero when `earlier` lies in the future.
    pub const fn since(self, earlier: Millis) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Millis {
    type Output = Millis;
    fn add(self, other: Millis) -> Millis {
        Millis(self.0.saturating_add(other.0))
    }
}

impl Sub for Millis {
    type Output = Millis;
    fn sub(self, other: Millis) -> Millis {
        Millis(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// A span in microseconds, or a point on the monotonic clock read that finely. Only latencies are measured in it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Micros(pub u64);

impl Micros {
    /// The span since `earlier`, or zero when `earlier` lies in the future.
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// The span in seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// The two clocks of a process at one moment, read outside and handed in with every call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Milliseconds since an arbitrary start; never goes back. Every age and every deadline counts on it.
    pub mono: Millis,
    /// The same clock in microseconds, for measuring latencies.
    pub fine: Micros,
    /// Milliseconds since the Unix epoch; may jump. Only feeds the hybrid clock and what clients read as a time.
    pub wall: Millis,
}

impl Now {
    /// A moment that is known to the millisecond only.
    pub const fn at(mono: Millis, wall: Millis) -> Self {
        Now {
            mono,
            fine: Micros(mono.0.saturating_mul(1000)),
            wall,
        }
    }
}

/// The order of writes over all members: hybrid logical time, then the member that wrote.
///
/// `time` holds the wall time in milliseconds in its upper 48 bits and a counter in the lower 16.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// Hybrid logical time.
    pub time: u64,
    /// The member that made the write.
    pub member: MemberId,
}

/// A hybrid logical clock: never behind the wall clock, never behind a time it has seen from elsewhere,
/// strictly rising for every [`tick`](HybridClock::tick).
#[derive(Debug, Default)]
pub struct HybridClock {
    last: AtomicU64,
    /// How far the fastest clock of the members is ahead of the wall clock here, in milliseconds.
    ahead: AtomicU64,
}

impl HybridClock {
    /// A time greater than every time ticked or observed so far.
    pub fn tick(&self, wall: Millis) -> u64 {
        let wall = self.fastest(wall).0 << 16;
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let next = wall.max(last + 1);
            match self
                .last
                .compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return next,
                Err(seen) => last = seen,
            }
        }
    }

    /// Takes note of a time that another member used, so that later ticks here are greater.
    pub fn observe(&self, time: u64) {
        self.last.fetch_max(time, Ordering::Relaxed);
    }

    /// Takes note of the [`wall`](HybridClock::wall) time that another member's clock shows now, and goes with it from
    /// here on if it is later. Without this a member would not know how far another one's clock is ahead that writes
    /// nothing.
    pub fn follow(&self, theirs: Millis, wall: Millis) {
        self.ahead.fetch_max(theirs.since(wall).0, Ordering::Relaxed);
    }

    fn fastest(&self, wall: Millis) -> Millis {
        wall + Millis(self.ahead.load(Ordering::Relaxed))
    }

    /// The wall time as this clock sees it: that of the fastest clock of the members, and not before the greatest time
    /// known, in milliseconds.
    ///
    /// What clients get as `lastRefTime` comes from here, so that a client that moves to a member with a slow clock
    /// is not told an older time than it holds.
    pub fn wall(&self, wall: Millis) -> Millis {
        Millis(self.fastest(wall).0.max(self.last.load(Ordering::Relaxed) >> 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_rise_when_the_wall_clock_stands_or_goes_back() {
        let clock = HybridClock::default();
        let a = clock.tick(Millis(100));
        let b = clock.tick(Millis(100));
        let c = clock.tick(Millis(50));
        assert!(a < b && b < c);
        assert_eq!(c >> 16, 100, "the wall part does not go back");
    }

    #[test]
    fn the_clock_goes_with_the_fastest_one() {
        let clock = HybridClock::default();
        clock.follow(Millis(700), Millis(500));
        clock.follow(Millis(600), Millis(550));
        assert_eq!(clock.wall(Millis(560)), Millis(760));
        assert_eq!(clock.tick(Millis(560)), 760 << 16);
        clock.follow(Millis(100), Millis(600));
        assert_eq!(clock.wall(Millis(600)), Millis(800));
    }

    #[test]
    fn an_observed_time_is_passed() {
        let clock = HybridClock::default();
        clock.observe(500 << 16);
        assert!(clock.tick(Millis(100)) > 500 << 16);
        assert_eq!(clock.wall(Millis(100)), Millis(500));
    }
}
