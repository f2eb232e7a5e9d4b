//! Signs of life of rows that beat, and the judgement on those that fall silent (`spec/health.md` §2).
//!
//! Silence is an age, counted where it is observed. Every member notes what it hears; only the owner judges.

use std::sync::Arc;

use crate::clock::{Millis, Now, Stamp};
use crate::model::instance::{BeatTimes, Instance, RowAddress};
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, Journal, Versioned, VersionedValue};
use crate::registry::edit::Edit;
use crate::registry::row::{BeatsHeard, Publisher};
use crate::registry::service::Service;

/// Metadata key with which an instance asks not to be judged by its beats (the name says the contrary).
pub const KEY_NOT_JUDGED: &str = "enableClientBeat";

/// Time between two looks at a row that this member does not own.
const FOREIGN_LOOK: Millis = Millis(5_000);

/// How much later than the judge this member may be told of a beat. So much older it counts against a verdict, which may
/// have known of it.
const RELAY_LATE: Millis = Millis(2_000);

/// How a sign of life came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// From the client itself.
    Direct,
    /// Told by another member.
    Relayed,
}

/// A row that shall be looked at again.
#[derive(Debug)]
pub(crate) struct BeatEntry {
    service: Arc<Service>,
    hash: u64,
    watch: u64,
}

/// What a member knows of its part in judging a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    /// It owns the service since then: no row is judged by an older silence.
    Since(Millis),
    /// Another member owns it.
    Elsewhere,
}

impl Registry {
    /// Takes a sign of life for a row. `None`: there is no such row; else the row as readers see it, whose metadata
    /// tell the interval.
    pub fn beat(
        &self,
        service: &ServiceKey,
        address: RowAddress<'_>,
        heard: Heard,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> Option<Arc<Instance>> {
        let key = self.target(service, address)?;
        let hash = key.stable_hash(service);
        self.edit_existing(service, now.mono, changes, |edit| {
            let own = edit.rows.find(hash)?.publication(Publisher::Beats)?;
            if !own.instance.healthy {
                let healthy = Arc::new(Instance {
                    healthy: true,
                    ..(*own.instance).clone()
                });
                self.write_newest(edit, &key, VersionedValue::Beat(healthy), now, journal);
            }
            self.hear(edit, hash, heard, now.mono);
            edit.rows.overlaid(hash, &key)
        })?
    }

    /// Looks at every row whose time has come: silent ones turn unhealthy, longer silent ones are removed. Returns
    /// how many were removed.
    ///
    /// The verdict's stamp is just above the stamp of the row it judges, so that a registration anywhere else wins.
    pub fn judge_beats(
        &self,
        now: Now,
        judge: &dyn Fn(&ServiceKey) -> Judge,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> usize {
        let due = self.beat_wheel.lock().advance(now.mono);
        let mut n_removed = 0;
        for entry in due {
            let service = entry.service.clone();
            let rows = service.rows.lock();
            if rows.is_gone {
                continue;
            }
            drop(rows);
            let role = judge(&service.key);
            let next = self.edit_existing(&service.key, now.mono, changes, |edit| {
                let next = self.judge_row(edit, &entry, role, now, journal, &mut n_removed)?;
                edit.rows.find_mut(entry.hash)?.beats.as_deref_mut()?.look = next;
                Some(next)
            });
            if let Some(Some(next)) = next {
                self.beat_wheel.lock().add(next, entry);
            }
        }
        n_removed
    }

    /// When the wheel next has to be looked at.
    pub fn next_beat_look(&self) -> Millis {
        self.beat_wheel.lock().next_due()
    }

    /// Judges one row and says when to look again; `None` when there is nothing to watch any more.
    fn judge_row(
        &self,
        edit: &mut Edit<'_>,
        entry: &BeatEntry,
        role: Judge,
        now: Now,
        journal: &dyn Journal,
        n_removed: &mut usize,
    ) -> Option<Millis> {
        let hash = entry.hash;
        let row = edit.rows.find(hash)?;
        let beats = row.beats.as_deref().filter(|b| b.watch == entry.watch)?;
        let own = row.publication(Publisher::Beats)?;
        let (judged, instance) = (own.stamp, own.instance.clone());
        let last = beats.last;
        let key = instance.row_key();
        let Judge::Since(since) = role else {
            return Some(now.mono + FOREIGN_LOOK);
        };
        let visible = edit.rows.overlaid(hash, &key)?;
        let BeatTimes { timeout, delete, .. } = visible.beat_times();
        let is_judged = !visible
            .metadata
            .get(KEY_NOT_JUDGED)
            .is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let base = last.max(since);
        // A row that an earlier owner found silent gets the rest of its time from a new one, not all of it again.
        let is_taken_over = since > last;
        let delete = if is_taken_over && !instance.healthy {
            delete - timeout
        } else {
            delete
        };
        let silence = now.mono.since(base);
        let stamp = Stamp {
            time: judged.time + 1,
            member: self.me(),
        };
        if is_judged && silence > delete {
            let value = VersionedValue::NoBeat { expired: true };
            self.put_versioned(edit, &key, Versioned { stamp, value }, now.mono, Some(journal));
            *n_removed += 1;
            return None;
        }
        if is_judged && instance.healthy && silence > timeout {
            let unhealthy = Arc::new(Instance {
                healthy: false,
                ..(*instance).clone()
            });
            let value = VersionedValue::Beat(unhealthy);
            self.put_versioned(edit, &key, Versioned { stamp, value }, now.mono, Some(journal));
            return Some(base + delete);
        }
        let next = if instance.healthy {
            timeout.min(delete)
        } else {
            delete
        };
        Some((base + next).max(now.mono + Millis(1)))
    }

    /// Notes a sign of life.
    pub(crate) fn hear(&self, edit: &mut Edit<'_>, hash: u64, heard: Heard, at: Millis) {
        if let Some(beats) = edit.rows.find_mut(hash).and_then(|row| row.beats.as_deref_mut()) {
            beats.last = beats.last.max(at);
            let alive = match heard {
                Heard::Direct => at,
                Heard::Relayed => at - RELAY_LATE,
            };
            beats.alive = beats.alive.max(Some(alive));
        }
    }

    /// Watches a beat row that has just been written. When another member wrote that it is healthy, its client was
    /// heard there; for a write of this member the caller says what was heard.
    pub(crate) fn watch_beats(&self, edit: &mut Edit<'_>, hash: u64, now: Millis) {
        let Some(row) = edit.rows.find_mut(hash) else {
            return;
        };
        let own = row.publication(Publisher::Beats);
        let is_heard_elsewhere = own.is_some_and(|own| own.stamp.member != self.me && own.instance.healthy);
        let times = own.map(|own| own.instance.beat_times());
        if let Some(beats) = row.beats.as_deref_mut() {
            if is_heard_elsewhere {
                beats.last = beats.last.max(now);
            }
            return;
        }
        let look = now + times.map_or(Millis(0), |t| t.timeout.min(t.delete));
        let watch = self.next_version();
        row.beats = Some(Box::new(BeatsHeard {
            last: now,
            alive: None,
            watch,
            look,
        }));
        self.watch_until(edit.service.clone(), hash, watch, look);
    }

    /// Looks earlier at a beat row whose times have become shorter, by a registration or by an operator.
    pub(crate) fn watch_sooner(&self, edit: &mut Edit<'_>, hash: u64, visible: &Instance) {
        let Some(beats) = edit.rows.find_mut(hash).and_then(|row| row.beats.as_deref_mut()) else {
            return;
        };
        let BeatTimes { timeout, delete, .. } = visible.beat_times();
        let limit = if visible.healthy {
            timeout.min(delete)
        } else {
            delete
        };
        let look = beats.last + limit;
        if look < beats.look {
            let watch = self.next_version();
            beats.watch = watch; // The former entry is stale now, and goes when it comes up.
            beats.look = look;
            self.watch_until(edit.service.clone(), hash, watch, look);
        }
    }

    fn watch_until(&self, service: Arc<Service>, hash: u64, watch: u64, look: Millis) {
        self.beat_wheel
            .lock()
            .add(look, BeatEntry { service, hash, watch });
    }

    /// Age of the last sign of life of a beat row, for operators.
    pub fn silence(&self, service: &ServiceKey, row_hash: u64, now: Millis) -> Option<Millis> {
        let service = self.service(service)?;
        let rows = service.rows.lock();
        rows.find(row_hash)?.beats.as_deref().map(|b| now.since(b.last))
    }
}
