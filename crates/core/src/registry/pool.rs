//! One copy of equal metadata: instances of a service mostly say the same.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use parking_lot::Mutex;

use crate::model::metadata::Metadata;

/// Entries from which on unused ones are looked for.
const SWEEP_FROM: usize = 1024;

/// Shared metadata. What nobody else holds is dropped whenever the pool has doubled since the last sweep, so that it
/// stays within twice of what is in use.
#[derive(Debug)]
pub(crate) struct MetadataPool {
    entries: Mutex<Entries>,
}

#[derive(Debug)]
struct Entries {
    set: HashSet<Metadata, FixedState>,
    sweep_at: usize,
}

impl MetadataPool {
    pub(crate) fn new(seed: u64) -> Self {
        let set = HashSet::with_hasher(FixedState::with_seed(seed));
        MetadataPool {
            entries: Mutex::new(Entries {
                set,
                sweep_at: SWEEP_FROM,
            }),
        }
    }

    /// The pool's copy of `metadata`.
    pub(crate) fn share(&self, metadata: Metadata) -> Metadata {
        if metadata.is_empty() {
            return metadata;
        }
        let mut entries = self.entries.lock();
        if let Some(shared) = entries.set.get(&metadata) {
            return shared.clone();
        }
        if entries.set.len() >= entries.sweep_at {
            entries.set.retain(|entry| !entry.is_unshared());
            entries.set.shrink_to_fit();
            entries.sweep_at = (entries.set.len() * 2).max(SWEEP_FROM);
        }
        entries.set.insert(metadata.clone());
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(value: &str) -> Metadata {
        Metadata::from_pairs([("k".into(), value.into())])
    }

    #[test]
    fn equal_metadata_are_one_copy() {
        let pool = MetadataPool::new(1);
        let (a, b) = (pool.share(meta("v")), pool.share(meta("v")));
        assert_eq!(a, b);
        assert_eq!(pool.entries.lock().set.len(), 1);
        assert!(!a.is_unshared());
    }

    #[test]
    fn what_nobody_holds_is_dropped() {
        let pool = MetadataPool::new(1);
        let held = pool.share(meta("held"));
        for n in 0..10 * SWEEP_FROM {
            pool.share(meta(&n.to_string()));
        }
        let entries = pool.entries.lock();
        assert!(entries.set.len() <= 2 * SWEEP_FROM);
        assert!(entries.set.contains(&held));
    }
}
