//! The clocks of a node: both run a little fast or slow, the wall clock is wrong and may be set.

/// The clocks of one node, as functions of the true time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    /// What the monotonic clock gains on the true time, in millionths.
    mono_gain: i64,
    /// The same of the wall clock.
    wall_gain: i64,
    /// What the monotonic clock showed at the start of time.
    mono_base: u64,
    /// By how much the wall clock is ahead.
    wall_offset: i64,
}

const MILLION: u64 = 1_000_000;
const WALL_START: u64 = 1_700_000_000_000;
/// Most that a clock gains or loses: one in a hundred.
const MOST_GAIN: i64 = 10_000;

impl Clocks {
    /// Clocks of a machine. That of the process is given by [`Clocks::restart`].
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        Clocks {
            mono_gain: rng.i64(-MOST_GAIN..=MOST_GAIN),
            wall_gain: rng.i64(-MOST_GAIN..=MOST_GAIN),
            mono_base: 0,
            wall_offset: rng.i64(-45_000..45_000),
        }
    }

    /// Another process has another start of its monotonic clock.
    pub(super) fn restart(&mut self, rng: &mut fastrand::Rng) {
        self.mono_base = rng.u64(0..1_000_000);
    }

    /// Somebody sets the wall clock.
    pub(super) fn set_wall(&mut self, by: i64) {
        self.wall_offset += by;
    }

    pub(super) fn mono(&self, now: u64) -> u64 {
        self.mono_base + gained(now, self.mono_gain)
    }

    pub(super) fn wall(&self, now: u64) -> u64 {
        (WALL_START + gained(now, self.wall_gain)).saturating_add_signed(self.wall_offset)
    }

    /// The first true time at which the monotonic clock shows `mono` or more.
    pub(super) fn true_time(&self, mono: u64) -> u64 {
        let elapsed = mono.saturating_sub(self.mono_base);
        (elapsed * MILLION).div_ceil(MILLION.saturating_add_signed(self.mono_gain))
    }
}

fn gained(now: u64, gain: i64) -> u64 {
    now * MILLION.saturating_add_signed(gain) / MILLION
}
