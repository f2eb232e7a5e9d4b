//! Digests of rows by origin and bucket: incremental and independent of order, so that two members can compare any
//! number of rows by a few numbers (`design.md` §3, Verify).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::clock::Stamp;
use crate::member_id::MemberId;
use crate::registry::change::{ClientId, VersionedKind};

/// Number of buckets; a row's bucket is the lowest byte of its service's stable hash.
pub const N_BUCKETS: usize = 256;

/// Digest sums of every origin that has rows here.
#[derive(Debug)]
pub struct Digests {
    origins: RwLock<HashMap<MemberId, Arc<Buckets>, FixedState>>,
}

#[derive(Debug)]
struct Buckets([AtomicU64; N_BUCKETS]);

impl Digests {
    pub(crate) fn new(seed: u64) -> Self {
        Digests {
            origins: RwLock::new(HashMap::with_hasher(FixedState::with_seed(seed))),
        }
    }

    fn buckets(&self, origin: MemberId) -> Arc<Buckets> {
        if let Some(found) = self.origins.read().get(&origin) {
            return found.clone();
        }
        let fresh = || Arc::new(Buckets(std::array::from_fn(|_| AtomicU64::new(0))));
        self.origins.write().entry(origin).or_insert_with(fresh).clone()
    }

    /// Adds `delta` to one bucket of `origin`; a removal adds the negated contribution.
    pub fn add(&self, origin: MemberId, bucket: usize, delta: u64) {
        if delta != 0
            && let Some(sum) = self.buckets(origin).0.get(bucket)
        {
            sum.fetch_add(delta, Ordering::Relaxed);
        }
    }

    /// The digests of all buckets of `origin`.
    pub fn all(&self, origin: MemberId) -> Vec<u64> {
        match self.origins.read().get(&origin) {
            Some(buckets) => buckets.0.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
            None => vec![0; N_BUCKETS],
        }
    }

    /// One number over all buckets of `origin`; zero when it has no row.
    pub fn root(&self, origin: MemberId) -> u64 {
        root_of(&self.all(origin))
    }

    /// Every origin that ever had a row here, sorted.
    pub fn origins(&self) -> Vec<MemberId> {
        let mut origins: Vec<_> = self.origins.read().keys().copied().collect();
        origins.sort_unstable();
        origins
    }
}

/// The root over bucket digests: depends on which bucket holds what.
pub fn root_of(buckets: &[u64]) -> u64 {
    buckets
        .iter()
        .enumerate()
        .fold(0, |sum, (i, b)| sum.wrapping_add(mix(*b, i as u64 + 1)))
}

/// Mixes two numbers into one that depends on every bit of both; zero stays zero so that nothing adds nothing.
fn mix(value: u64, salt: u64) -> u64 {
    if value == 0 {
        return 0;
    }
    let product = u128::from(value ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * 0xD6E8_FEB8_6659_FD93;
    (product as u64) ^ ((product >> 64) as u64) | 1
}

/// Identity of a connection's row within its origin.
pub(crate) fn connection_row_id(row_hash: u64, client: ClientId) -> u64 {
    mix(row_hash ^ 1, client.number)
}

/// Identity of a versioned row.
pub(crate) fn versioned_row_id(row_hash: u64, kind: VersionedKind) -> u64 {
    mix(row_hash ^ 2, 17 + kind as u64)
}

/// Identity of a record of operator data.
pub(crate) fn record_id(key_hash: u64) -> u64 {
    mix(key_hash ^ 3, 29)
}

/// What a row's version adds to identities and digests.
pub(crate) fn version_of(stamp: Stamp) -> u64 {
    mix(stamp.time | 1 << 63, stamp.member.0)
}

/// What one row adds to its bucket.
pub(crate) fn contribution(row_id: u64, stamp: Stamp) -> u64 {
    mix(row_id, version_of(stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_added_and_removed_leaves_nothing() {
        let digests = Digests::new(1);
        let member = MemberId(7);
        let a = contribution(1, Stamp { time: 5, member });
        let b = contribution(2, Stamp { time: 5, member });
        assert_ne!(a, b);
        digests.add(member, 3, a);
        digests.add(member, 3, b);
        let both = digests.root(member);
        digests.add(member, 3, a.wrapping_neg());
        assert_ne!(digests.root(member), both);
        digests.add(member, 3, b.wrapping_neg());
        assert_eq!(digests.root(member), 0);
    }

    #[test]
    fn the_same_rows_in_other_buckets_have_another_root() {
        let digests = Digests::new(1);
        digests.add(MemberId(1), 3, 99);
        digests.add(MemberId(2), 4, 99);
        assert_ne!(digests.root(MemberId(1)), digests.root(MemberId(2)));
    }
}
