//! Signs of life of rows that beat, and the judgement on those that fall silent (`spec/health.md` §2).
//!
//! Silence is an age, counted where it is observed. Every member notes what it hears; only the owner judges.

use std::sync::Arc;

use crate::clock::{Millis, Now, Stamp};
use crate::expiry::brake::Silence;
use crate::expiry::wheel::Wheel;
use crate::model::instance::{BeatTimes, Instance, RowAddress, RowKey};
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
/// Time between two looks at a row whose verdict is held.
const HELD_LOOK: Millis = Millis(1_000);
/// Rows looked at in one call, so that the death of a fleet is a little work many times.
const LOOKS_AT_A_TIME: usize = 128;

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
    standing: Standing,
}

/// How a row stood when it was last looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Another member judges it, it has not been heard regularly, or it is unhealthy already.
    Apart,
    /// It is heard regularly.
    Heard,
    /// Two thirds of its time are over.
    Silent,
    /// Its time is over, and its verdict is held.
    Held,
}

/// The rows to look at again, and how they stand.
#[derive(Debug)]
pub(crate) struct BeatWatch {
    wheel: Wheel<BeatEntry>,
    /// Entries by their standing.
    counts: [usize; 4],
}

impl BeatWatch {
    pub(crate) fn new(now: Millis) -> Self {
        BeatWatch {
            wheel: Wheel::new(now),
            counts: [0; 4],
        }
    }

    fn add(&mut self, due: Millis, entry: BeatEntry) {
        self.counts[entry.standing as usize] += 1;
        self.wheel.add(due, entry);
    }

    fn advance(&mut self, now: Millis) -> Vec<BeatEntry> {
        let due = self.wheel.advance(now, LOOKS_AT_A_TIME);
        for entry in &due {
            self.counts[entry.standing as usize] -= 1;
        }
        due
    }

    fn silence(&self) -> Silence {
        let [_, n_heard, n_silent, n_held] = self.counts;
        Silence {
            n_known: n_heard + n_silent + n_held,
            n_silent: n_silent + n_held,
            n_held,
        }
    }
}

/// What a member knows of its part in judging a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    /// It owns the service since then: no row is judged by an older silence.
    Since(Millis),
    /// Another member owns it.
    Elsewhere,
}

/// What a look at a row comes to.
struct Seen {
    /// When to look again.
    next: Millis,
    standing: Standing,
    /// How long its verdict has been held.
    held: Millis,
}

impl Seen {
    fn apart(next: Millis, held: Millis) -> Self {
        let standing = Standing::Apart;
        Seen { next, standing, held }
    }
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
                let judged = own.stamp;
                self.write_health(edit, &key, judged, VersionedValue::Beat(healthy), now, journal);
            }
            self.hear(edit, hash, heard, now.mono);
            edit.rows.overlaid(hash, &key)
        })?
    }

    /// How many of the rows that this member judges are silent.
    pub fn beat_silence(&self) -> Silence {
        self.beat_watch.lock().silence()
    }

    /// Looks at rows whose time has come, a hundred or so at most: silent ones turn unhealthy, longer silent ones are
    /// removed. Returns how many were removed.
    ///
    /// With `is_suspect`, whoever was heard regularly until now is given another time-out before it turns unhealthy, and
    /// is removed so much later.
    ///
    pub fn judge_beats(
        &self,
        now: Now,
        is_suspect: bool,
        judge: &dyn Fn(&ServiceKey) -> Judge,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> usize {
        let due = self.beat_watch.lock().advance(now.mono);
        let mut n_removed = 0;
        for mut entry in due {
            let service = entry.service.clone();
            let rows = service.rows.lock();
            if rows.is_gone {
                continue;
            }
            drop(rows);
            let role = judge(&service.key);
            let next = self.edit_existing(&service.key, now.mono, changes, |edit| {
                let seen = self.judge_row(edit, &entry, role, is_suspect, now, journal, &mut n_removed)?;
                let beats = edit.rows.find_mut(entry.hash)?.beats.as_deref_mut()?;
                beats.look = seen.next;
                beats.held = seen.held;
                Some(seen)
            });
            if let Some(Some(seen)) = next {
                entry.standing = seen.standing;
                self.beat_watch.lock().add(seen.next, entry);
            }
        }
        n_removed
    }

    /// When the wheel next has to be looked at.
    pub fn next_beat_look(&self) -> Millis {
        self.beat_watch.lock().wheel.next_due()
    }

    /// Judges one row and says when to look again; `None` when there is nothing to watch any more.
    #[expect(
        clippy::too_many_arguments,
        reason = "what, by whom, when, and where to note it"
    )]
    fn judge_row(
        &self,
        edit: &mut Edit<'_>,
        entry: &BeatEntry,
        role: Judge,
        is_suspect: bool,
        now: Now,
        journal: &dyn Journal,
        n_removed: &mut usize,
    ) -> Option<Seen> {
        let hash = entry.hash;
        let row = edit.rows.find(hash)?;
        let beats = row.beats.as_deref().filter(|b| b.watch == entry.watch)?;
        let own = row.publication(Publisher::Beats)?;
        let (judged, instance) = (own.stamp, own.instance.clone());
        let BeatsHeard {
            last,
            is_regular,
            held,
            ..
        } = *beats;
        let key = instance.row_key();
        let Judge::Since(since) = role else {
            return Some(Seen::apart(now.mono + FOREIGN_LOOK, Millis(0)));
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
        let limit = match instance.healthy {
            true => timeout.min(delete),
            false => delete,
        };
        let may_be_held = is_judged && is_regular && instance.healthy;
        if may_be_held && is_suspect && silence > limit && silence <= limit + limit {
            let next = (now.mono + HELD_LOOK).min(base + limit + limit + Millis(1));
            return Some(Seen {
                next,
                standing: Standing::Held,
                held: silence - limit,
            });
        }
        let (timeout, delete) = (timeout + held, delete + held);
        if is_judged && silence > delete {
            let value = VersionedValue::NoBeat { expired: true };
            self.write_health(edit, &key, judged, value, now, journal);
            *n_removed += 1;
            return None;
        }
        if is_judged && instance.healthy && silence > timeout {
            let unhealthy = Arc::new(Instance {
                healthy: false,
                ..(*instance).clone()
            });
            let value = VersionedValue::Beat(unhealthy);
            self.write_health(edit, &key, judged, value, now, journal);
            return Some(Seen::apart(base + delete, held));
        }
        let late = Millis(limit.0 / 3 * 2);
        let (next, standing) = match may_be_held {
            true if silence < late => (late, Standing::Heard),
            true => (limit, Standing::Silent),
            false => (limit + held, Standing::Apart),
        };
        Some(Seen {
            next: (base + next).max(now.mono + Millis(1)),
            standing,
            held,
        })
    }

    /// Writes what beats, or their absence, say of one version of a row. The stamp is just above that version's, so that
    /// a registration anywhere else wins, whose content this member may not know yet.
    pub(crate) fn write_health(
        &self,
        edit: &mut Edit<'_>,
        key: &RowKey,
        judged: Stamp,
        value: VersionedValue,
        now: Now,
        journal: &dyn Journal,
    ) {
        let stamp = Stamp {
            time: judged.time + 1,
            member: self.me(),
        };
        self.clock().observe(stamp.time);
        self.put_versioned(edit, key, Versioned { stamp, value }, now.mono, Some(journal));
    }

    /// Notes a sign of life.
    pub(crate) fn hear(&self, edit: &mut Edit<'_>, hash: u64, heard: Heard, at: Millis) {
        if let Some(beats) = edit.rows.find_mut(hash).and_then(|row| row.beats.as_deref_mut()) {
            beats.is_regular |= at > beats.last;
            beats.last = beats.last.max(at);
            beats.held = Millis(0);
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
            is_regular: false,
            held: Millis(0),
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
        let standing = Standing::Apart;
        let entry = BeatEntry {
            service,
            hash,
            watch,
            standing,
        };
        self.beat_watch.lock().add(look, entry);
    }

    /// Age of the last sign of life of a beat row, for operators.
    pub fn silence(&self, service: &ServiceKey, row_hash: u64, now: Millis) -> Option<Millis> {
        let service = self.service(service)?;
        let rows = service.rows.lock();
        rows.find(row_hash)?.beats.as_deref().map(|b| now.since(b.last))
    }
}
