//! Cleaning: services that have been empty for a while, removals that every member knows by now, overrides whose row
//! does not come back.

use crate::clock::{Millis, Now};
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, Journal, VersionedKind};

/// How long things are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lives {
    /// An empty service stays listed.
    pub empty_service: Millis,
    /// A removal of an instance is remembered.
    pub tombstone: Millis,
    /// A removal of operator data is remembered: as long as a member may be away that has it on its disk.
    pub operator_tombstone: Millis,
    /// An override outlives its row.
    pub over: Millis,
}

impl Registry {
    /// Cleans one bucket. Overrides are only ended by the owner of their service.
    pub fn clean(
        &self,
        bucket: usize,
        lives: Lives,
        now: Now,
        owns: &dyn Fn(&ServiceKey) -> bool,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) {
        for service in self.services_in(bucket) {
            let is_owner = owns(&service.key);
            self.edit_existing(&service.key, now.mono, changes, |edit| {
                edit.rows.tombstones.retain(|(kind, _), grave| {
                    let life = match kind {
                        VersionedKind::Beat => lives.tombstone,
                        VersionedKind::Override => lives.operator_tombstone,
                    };
                    now.mono.since(grave.at) <= life
                });
                let mut ended = Vec::new();
                let keys: Vec<_> = edit.rows.overrides.keys().cloned().collect();
                for key in keys {
                    let has_row = edit.rows.find(key.stable_hash(&service.key)).is_some();
                    if let Some(over) = edit.rows.overrides.get_mut(&key) {
                        if has_row {
                            over.row_seen = now.mono;
                        } else if is_owner && now.mono.since(over.row_seen) > lives.over {
                            ended.push(key);
                        }
                    }
                }
                ended.sort();
                for key in ended {
                    self.end_override(edit, &key, None, now, journal);
                }
            });
            self.clean_empty(&service.key, lives.empty_service, now.mono);
        }
    }

    fn clean_empty(&self, key: &ServiceKey, life: Millis, now: Millis) {
        let mut shard = self.shard(key).write();
        let Some(service) = shard.get(key).cloned() else {
            return;
        };
        let mut rows = service.rows.lock();
        let is_over = rows.len() == 0
            && rows.settings.is_none()
            && service.held_until().is_none()
            && rows.empty_since.is_some_and(|since| now.since(since) > life);
        if !is_over {
            return;
        }
        if rows.listed.take().is_some() {
            self.catalog.remove(key);
        }
        if rows.overrides.is_empty() && rows.tombstones.is_empty() {
            rows.is_gone = true;
            shard.remove(key);
        }
    }
}
