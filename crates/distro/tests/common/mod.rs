//! Settings that the tests of the engine share.

use std::sync::Arc;

use rollcall_core::Millis;
use rollcall_core::ownership::ModuloMapper;
use rollcall_distro::{DistroConfig, Faults};
use smol_str::SmolStr;

/// The default times, a log that is soon full, and a gate that is open at once.
pub(crate) fn config(address: SmolStr, members: Vec<SmolStr>, newest_format: u8) -> DistroConfig {
    DistroConfig {
        cluster: "rollcall".into(),
        address,
        members,
        mapper: Arc::new(ModuloMapper),
        log_capacity: 16,
        probe_interval: Millis::secs(1),
        probe_misses: 3,
        newest_format,
        rows_at_a_time: rollcall_distro::ROWS_AT_A_TIME,
        copy_period: Millis(0),
        verify_interval: Millis::secs(1),
        gate_limit: Millis(0),
        orphan_gone: Millis::secs(15),
        orphan_unreachable: Millis::secs(30),
        orphan_slow_extra: Millis::secs(25),
        faults: Faults::default(),
    }
}
