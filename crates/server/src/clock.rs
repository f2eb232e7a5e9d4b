//! The only place of the process that reads a clock.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollcall_core::{Micros, Millis, Now};
use tokio::time::Instant;

/// Reads both clocks of the process.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Arc<Instant>,
    /// The wall time at the start, where it goes on with the monotonic clock.
    wall_start: Option<Millis>,
}

impl Clock {
    /// A clock whose monotonic part starts at 1 ms now, so that 0 can stand for "never".
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Clock {
            start: Arc::new(Instant::now()),
            wall_start: None,
        }
    }

    /// The same, and a wall clock that shows `wall` now and goes on with the monotonic one: for simulated time.
    pub fn start_at(wall: Millis) -> Self {
        Clock {
            wall_start: Some(wall),
            ..Clock::start()
        }
    }

    /// The time now.
    #[allow(clippy::disallowed_methods)]
    pub fn now(&self) -> Now {
        let since_start = self.start.elapsed();
        let wall = match self.wall_start {
            Some(start) => start + Millis(since_start.as_millis() as u64),
            None => Millis(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or(Duration::ZERO)
                    .as_millis() as u64,
            ),
        };
        Now {
            mono: Millis(since_start.as_millis() as u64 + 1),
            fine: Micros(since_start.as_micros() as u64 + 1000),
            wall,
        }
    }

    /// How long it is from now until `due` on the monotonic clock; zero when `due` has passed.
    pub fn until(&self, due: Millis) -> Duration {
        Duration::from_millis(due.since(self.now().mono).0)
    }
}
