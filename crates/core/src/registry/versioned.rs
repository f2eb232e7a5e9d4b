//! Rows whose newest stamp wins on whatever member it arrives: instances kept alive by beats, and overrides.
//!
//! Ownership says only who accepts their writes; taking over moves nothing (`design.md` §3).

use std::sync::Arc;

use crate::clock::{Millis, Now, Stamp};
use crate::model::instance::{Instance, RowAddress, RowKey};
use crate::model::limits::{Violation, check_metadata};
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::beats::Heard;
use crate::registry::change::{
    Changes, Journal, OverrideEdit, RowOp, Versioned, VersionedKind, VersionedValue,
};
use crate::registry::digest::{contribution, versioned_row_id};
use crate::registry::edit::Edit;
use crate::registry::row::{Publication, Publisher};
use crate::registry::service::{OverrideRow, Rows, Tombstone};

/// Why a write of a versioned row changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unwritten {
    /// No such service.
    #[error("service is not known")]
    NoService,
    /// No such row in the service.
    #[error("row is not known")]
    NoRow,
    /// The row was written later than this write was taken from its client.
    #[error("the row has a newer version")]
    Outdated {
        /// Hybrid time of that version.
        newest: u64,
    },
    /// What would be laid over the row is more than `metadata_limit` allows.
    #[error(transparent)]
    Refused(Violation),
}

impl Registry {
    /// Registers a row that beats will keep alive; counts as a beat. An identical registration is a new version that
    /// readers do not see: a removal that was meant for the former one must not win over it.
    ///
    /// `taken` is the hybrid time at which another member took this write from its client, in all writes below; `None`
    /// when this member takes it now, and then it is the newest.
    ///
    /// # Errors
    /// [`Unwritten::Outdated`].
    pub fn register_beat_row(
        &self,
        service: &ServiceKey,
        instance: Instance,
        taken: Option<u64>,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> Result<(), Unwritten> {
        let key = instance.row_key();
        let hash = key.stable_hash(service);
        let instance = self.pooled(instance);
        self.edit(service, now.mono, changes, |edit| {
            self.write_versioned(edit, &key, VersionedValue::Beat(instance), taken, now, journal)?;
            self.hear(edit, hash, Heard::Direct, now.mono);
            Ok(())
        })
    }

    /// Removes a beat row at its client's or an operator's wish, and the override beside it: an explicit deregister
    /// ends it. False when there was no such row.
    ///
    /// # Errors
    /// [`Unwritten::Outdated`].
    pub fn deregister_beat_row(
        &self,
        service: &ServiceKey,
        address: RowAddress<'_>,
        taken: Option<u64>,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> Result<bool, Unwritten> {
        let Some(key) = self.target(service, address) else {
            return Ok(false);
        };
        let hash = key.stable_hash(service);
        self.edit_existing(service, now.mono, changes, |edit| {
            let has_row = edit
                .rows
                .find(hash)
                .is_some_and(|r| r.publication(Publisher::Beats).is_some());
            if has_row {
                // All or nothing: an override that is left behind would show on the next registration.
                if edit.rows.overrides.contains_key(&key) {
                    refuse_outdated(&edit.rows, VersionedKind::Override, &key, hash, taken)?;
                }
                let value = VersionedValue::NoBeat { expired: false };
                self.write_versioned(edit, &key, value, taken, now, journal)?;
                self.end_override(edit, &key, taken, now, journal);
            }
            Ok(has_row)
        })
        .unwrap_or(Ok(false))
    }

    /// Changes the override of a row of any publisher. Its metadata may have `metadata_limit` UTF-16 units.
    ///
    /// # Errors
    /// [`Unwritten`], also when there is nothing to stand beside.
    #[expect(clippy::too_many_arguments, reason = "what, when, and where to note it")]
    pub fn edit_override(
        &self,
        service: &ServiceKey,
        address: RowAddress<'_>,
        change: OverrideEdit,
        metadata_limit: usize,
        taken: Option<u64>,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> Result<(), Unwritten> {
        self.service(service).ok_or(Unwritten::NoService)?;
        let key = self.target(service, address).ok_or(Unwritten::NoRow)?;
        let hash = key.stable_hash(service);
        self.edit_existing(service, now.mono, changes, |edit| {
            let shown = edit.rows.overlaid(hash, &key).ok_or(Unwritten::NoRow)?;
            let former = edit.rows.overrides.get(&key).map(|over| &*over.value);
            let Some(value) = change.applied(former, &shown) else {
                return Ok(());
            };
            check_metadata(&value.metadata, metadata_limit).map_err(Unwritten::Refused)?;
            let value = VersionedValue::Override(Arc::new(value));
            self.write_versioned(edit, &key, value, taken, now, journal)
        })
        .unwrap_or(Err(Unwritten::NoService))
    }

    /// The row that a request means: the named cluster's; with none named, the `DEFAULT` row, else the only row with
    /// that address (`design.md` §2).
    pub fn target(&self, service: &ServiceKey, address: RowAddress<'_>) -> Option<RowKey> {
        let RowAddress { ip, port, cluster } = address;
        let service = self.service(service)?;
        if let Some(hidden) = service.rows.lock().hidden_target(address) {
            return Some(hidden);
        }
        let view = service.view();
        if let Some(cluster) = cluster {
            return view.get(ip, port, cluster).map(|i| i.row_key());
        }
        let default = crate::model::service_key::DEFAULT_CLUSTER;
        if let Some(found) = view.get(ip, port, default) {
            return Some(found.row_key());
        }
        match view.at(ip, port).as_slice() {
            [only] => Some(only.row_key()),
            _ => None,
        }
    }

    /// Applies a versioned row that another member reports. False when what is here is as new.
    ///
    /// When the judge of beats condemns a row whose beats this member hears, from the client or from members that the
    /// judge did not hear, this member objects: it writes the row again as healthy, just above the verdict.
    pub fn apply_versioned(
        &self,
        service: &ServiceKey,
        key: &RowKey,
        versioned: Versioned,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> bool {
        self.clock.observe(versioned.stamp.time);
        let Versioned { stamp, value } = versioned;
        let value = match value {
            VersionedValue::Beat(instance) => VersionedValue::Beat(self.pooled_arc(instance)),
            value => value,
        };
        let versioned = Versioned { stamp, value };
        let hash = key.stable_hash(service);
        self.edit(service, now.mono, changes, |edit| {
            let objection = self.objection(edit, hash, &versioned.value, now.mono);
            if !self.put_versioned(edit, key, versioned, now.mono, None) {
                return false;
            }
            if let Some((instance, heard_at)) = objection {
                self.write_health(edit, key, stamp, VersionedValue::Beat(instance), now, journal);
                self.hear(edit, hash, Heard::Direct, heard_at);
            }
            true
        })
    }

    /// The healthy instance to answer a condemnation with, and when its client was last heard here.
    fn objection(
        &self,
        edit: &Edit<'_>,
        hash: u64,
        verdict: &VersionedValue,
        now: Millis,
    ) -> Option<(Arc<Instance>, Millis)> {
        let row = edit.rows.find(hash)?;
        let own = row.publication(Publisher::Beats)?;
        let heard_at = row.beats.as_deref()?.alive?;
        let is_condemned = match verdict {
            VersionedValue::NoBeat { expired } => *expired,
            VersionedValue::Beat(judged) => {
                let healthy_again = Instance {
                    healthy: true,
                    ..(**judged).clone()
                };
                !judged.healthy && own.instance.healthy && healthy_again == *own.instance
            }
            _ => false,
        };
        let is_alive = now.since(heard_at) < own.instance.beat_times().timeout;
        let healthy = || {
            Arc::new(Instance {
                healthy: true,
                ..(*own.instance).clone()
            })
        };
        (is_condemned && is_alive).then(|| (healthy(), heard_at))
    }

    /// A write that this member applies: stamped with the time it was taken, put, and taken down in the journal.
    ///
    /// A forward may arrive late or twice, after its sender has given up and had the write, and later ones, applied
    /// elsewhere; its time tells. Equal times are refused too: two members may take two writes at one time, and a
    /// sender that still waits comes again with a newer one.
    fn write_versioned(
        &self,
        edit: &mut Edit<'_>,
        key: &RowKey,
        value: VersionedValue,
        taken: Option<u64>,
        now: Now,
        journal: &dyn Journal,
    ) -> Result<(), Unwritten> {
        let Some(time) = taken else {
            self.write_newest(edit, key, value, now, journal);
            return Ok(());
        };
        self.clock.observe(time);
        let hash = key.stable_hash(&edit.service.key);
        refuse_outdated(&edit.rows, value.kind(), key, hash, taken)?;
        let stamp = Stamp {
            time,
            member: self.me,
        };
        self.put_versioned(edit, key, Versioned { stamp, value }, now.mono, Some(journal));
        Ok(())
    }

    /// A write that this member makes now: newer than every version it knows.
    pub(crate) fn write_newest(
        &self,
        edit: &mut Edit<'_>,
        key: &RowKey,
        value: VersionedValue,
        now: Now,
        journal: &dyn Journal,
    ) {
        let stamp = self.stamp(now.wall);
        self.put_versioned(edit, key, Versioned { stamp, value }, now.mono, Some(journal));
    }

    /// Puts a versioned value if its stamp is newer than what is there; with a journal it is this member's own.
    pub(crate) fn put_versioned(
        &self,
        edit: &mut Edit<'_>,
        key: &RowKey,
        versioned: Versioned,
        now: Millis,
        journal: Option<&dyn Journal>,
    ) -> bool {
        let Versioned { stamp, value } = versioned;
        let hash = key.stable_hash(&edit.service.key);
        let kind = value.kind();
        let live = live_stamp(&edit.rows, kind, key, hash);
        if newest_stamp(&edit.rows, kind, key, hash) >= Some(stamp) {
            return false;
        }
        let op = journal.map(|_| RowOp::Versioned {
            service: edit.service.key.clone(),
            row: key.clone(),
            stamp,
            value: value.clone(),
        });
        if kind == VersionedKind::Override {
            self.durable.lock().push(RowOp::Versioned {
                service: edit.service.key.clone(),
                row: key.clone(),
                stamp,
                value: value.clone(),
            });
        }
        let id = versioned_row_id(hash, kind);
        let bucket = edit.service.bucket;
        let is_live = self.set_value(edit, key, Versioned { stamp, value }, now);
        let more = if is_live { contribution(id, stamp) } else { 0 };
        let mut own_delta = 0u64;
        if let Some(former) = live {
            let less = contribution(id, former).wrapping_neg();
            if journal.is_some() && former.member == self.me {
                own_delta = less;
            } else {
                self.digests.add(former.member, bucket, less);
            }
        }
        match (journal, op) {
            (Some(journal), Some(op)) => {
                journal.record(op, &self.digests, bucket, own_delta.wrapping_add(more));
            }
            _ => self.digests.add(stamp.member, bucket, more),
        }
        true
    }

    fn set_value(&self, edit: &mut Edit<'_>, key: &RowKey, versioned: Versioned, now: Millis) -> bool {
        let Versioned { stamp, value } = versioned;
        let hash = key.stable_hash(&edit.service.key);
        let grave = (value.kind(), key.clone());
        match value {
            VersionedValue::Beat(instance) => {
                edit.rows.tombstones.remove(&grave);
                let publisher = Publisher::Beats;
                edit.set(
                    hash,
                    key,
                    Publication {
                        publisher,
                        stamp,
                        instance,
                        is_orphan: false,
                        is_superseded: false,
                    },
                );
                self.watch_beats(edit, hash, now);
                true
            }
            VersionedValue::Override(value) => {
                edit.rows.tombstones.remove(&grave);
                edit.touch(hash, key);
                edit.rows.overrides.insert(
                    key.clone(),
                    OverrideRow {
                        stamp,
                        value,
                        row_seen: now,
                    },
                );
                true
            }
            VersionedValue::NoBeat { expired } => {
                edit.is_wanted = !expired;
                edit.remove(hash, Publisher::Beats);
                edit.rows.tombstones.insert(
                    grave,
                    Tombstone {
                        stamp,
                        is_expiry: expired,
                        at: now,
                    },
                );
                false
            }
            VersionedValue::NoOverride => {
                edit.touch(hash, key);
                edit.rows.overrides.remove(key);
                edit.rows.tombstones.insert(
                    grave,
                    Tombstone {
                        stamp,
                        is_expiry: false,
                        at: now,
                    },
                );
                false
            }
        }
    }

    /// Ends the override of a row; one that was set after `taken` stays.
    pub(crate) fn end_override(
        &self,
        edit: &mut Edit<'_>,
        key: &RowKey,
        taken: Option<u64>,
        now: Now,
        journal: &dyn Journal,
    ) {
        if edit.rows.overrides.contains_key(key) {
            // Whoever ends a row with it has made sure that it is older.
            let _ = self.write_versioned(edit, key, VersionedValue::NoOverride, taken, now, journal);
        }
    }
}

fn refuse_outdated(
    rows: &Rows,
    kind: VersionedKind,
    key: &RowKey,
    hash: u64,
    taken: Option<u64>,
) -> Result<(), Unwritten> {
    let newest = newest_stamp(rows, kind, key, hash).map(|stamp| stamp.time);
    match (newest, taken) {
        (Some(newest), Some(taken)) if newest >= taken => Err(Unwritten::Outdated { newest }),
        _ => Ok(()),
    }
}

/// The newest stamp of a kind of a row, of its live value or its tombstone.
fn newest_stamp(rows: &Rows, kind: VersionedKind, key: &RowKey, hash: u64) -> Option<Stamp> {
    let dead = rows.tombstones.get(&(kind, key.clone())).map(|t| t.stamp);
    live_stamp(rows, kind, key, hash).max(dead)
}

/// The stamp of the live value of a kind, if there is one.
fn live_stamp(rows: &Rows, kind: VersionedKind, key: &RowKey, hash: u64) -> Option<Stamp> {
    match kind {
        VersionedKind::Beat => rows.find(hash)?.publication(Publisher::Beats).map(|p| p.stamp),
        VersionedKind::Override => rows.overrides.get(key).map(|o| o.stamp),
    }
}

impl Registry {
    /// The current state of a versioned row as an operation: its content, or its removal if that is remembered.
    pub fn versioned(&self, service: &ServiceKey, key: &RowKey, kind: VersionedKind) -> Option<RowOp> {
        let found = self.service(service)?;
        let rows = found.rows.lock();
        let hash = key.stable_hash(service);
        let live = match kind {
            VersionedKind::Beat => rows
                .find(hash)
                .and_then(|row| row.publication(Publisher::Beats))
                .map(|p| (p.stamp, VersionedValue::Beat(p.instance.clone()))),
            VersionedKind::Override => rows
                .overrides
                .get(key)
                .map(|o| (o.stamp, VersionedValue::Override(o.value.clone()))),
        };
        let dead = || {
            let grave = rows.tombstones.get(&(kind, key.clone()))?;
            let value = match kind {
                VersionedKind::Beat => VersionedValue::NoBeat {
                    expired: grave.is_expiry,
                },
                VersionedKind::Override => VersionedValue::NoOverride,
            };
            Some((grave.stamp, value))
        };
        let (stamp, value) = live.or_else(dead)?;
        Some(RowOp::Versioned {
            service: service.clone(),
            row: key.clone(),
            stamp,
            value,
        })
    }

    /// Writes the removal of a row again that another member still holds.
    pub fn remove_again(
        &self,
        service: &ServiceKey,
        key: &RowKey,
        held: &Versioned,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) {
        let removal = held.removal(self.me());
        self.edit(service, now.mono, changes, |edit| {
            self.put_versioned(edit, key, removal, now.mono, Some(journal));
        });
    }
}
