//! The identity of a member in stamps and row keys.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// Identity of one member: a stable 64-bit hash of its advertised address `host:port`.
///
/// Small enough to stand in every row. Two configured addresses that collide are refused at start.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl MemberId {
    /// The identity of the member that is advertised under `address` (`host:port`).
    pub fn of(address: &str) -> Self {
        MemberId(xxh3_64(address.as_bytes()))
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
