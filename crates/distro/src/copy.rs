//! The copy of all rows on disk: when it is written, what is in it, and when it is offered (`spec/distro.md` §12, W18).
//!
//! A cluster that loses power at once has no member left to load from, and every list would be empty until its clients
//! have returned. The copy fills that gap: rows of connections come back as orphans, each replaced when its publisher
//! appears, the rest dropped after a grace; rows that beat come back as they were, and their silence is counted from then
//! on. They are versioned, so that whatever is newer wins, and a client that still beats does not notice. For that, what
//! is written after the start has to be newer than all that any member's copy holds, wherever the clocks stand by then:
//! the hybrid clock goes on from beyond the time at which the copy was begun.
//!
//! A copy is used in a cold start only: when no member that answered served when it was first heard of. Beside live members
//! it is never read. The member with the newest copy serves first, and all others load from it: one that has lost its
//! copy, or has an old one, would show lists that lack what the newest has.

use std::collections::BTreeMap;

use rollcall_core::registry::change::{RowOp, VersionedKind};
use rollcall_core::registry::repair::Scope;
use rollcall_core::{MemberId, Millis, Now};

use crate::effect::{Effect, Effects};
use crate::engine::Engine;
use crate::faults::Fault;
use crate::gate::{Contact, PeerProgress};
use crate::message::{ColdStart, Frame, Op, Probe};

/// Age from which on a copy is not used.
pub const COPY_LIFE: Millis = Millis::secs(600);
/// A copy is written anew after this time although nothing has changed, so that it does not grow old.
const REWRITE: Millis = Millis::secs(120);
/// How long the gate waits for copies to be read, the own one and newer ones of others.
const READ_LIMIT: Millis = Millis::secs(30);
/// A copy is older than this many periods only if its disk hangs or nothing has changed: one period until the next is
/// begun, one in which that is written, and one more.
const COPIES_APART: u64 = 3;
/// Rows in one frame of a copy.
const MAX_ROWS: usize = 512;

/// When a copy was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyTime {
    /// By the wall clock, from which its age counts.
    pub wall: Millis,
    /// By the hybrid clock: no write that was known then is later.
    pub hybrid: Millis,
}

/// Where reading and writing of the copy stand.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    /// Members that did not serve when they were first heard of, with their process.
    cold: BTreeMap<MemberId, u64>,
    /// Some member served when it was first heard of.
    has_live: bool,
    /// Since when the gate waits for the copy.
    asked: Option<Millis>,
    /// When the copy that is used was begun, by the hybrid clock.
    begun: Option<Millis>,
    /// Nothing more comes of a copy.
    is_read: bool,
    /// Members of whose rows the copy has told.
    told_of: Vec<MemberId>,
    is_writing: bool,
    /// When the last copy was begun, and what was held then.
    written: Option<(Millis, u64)>,
}

impl Engine {
    fn has_copies(&self) -> bool {
        self.config.copy_period > Millis(0)
    }

    // === reading ===

    /// Notes whether a member that is heard of for the first time serves.
    pub(crate) fn note_cold(&self, said: &Probe) {
        if !self.has_copies() || self.is_past_gate() {
            return;
        }
        let mut copying = self.copying.lock();
        let (id, state) = (MemberId::of(said.member()), said.state());
        if copying.cold.get(&id) == Some(&state.boot) {
            return;
        }
        // Rows alone prove nothing: they may come from a copy.
        if state.ready || state.leaving {
            copying.has_live = true;
        } else {
            copying.cold.insert(id, state.boot);
        }
    }

    /// What this member says of its copy.
    pub(crate) fn cold_start(&self) -> ColdStart {
        if !self.has_copies() || self.is_past_gate() {
            return ColdStart::No;
        }
        let copying = self.copying.lock();
        match copying.asked {
            _ if !copying.is_read => ColdStart::Reading,
            None => ColdStart::No,
            Some(_) => ColdStart::Read(copying.begun.map(|begun| begun.0)),
        }
    }

    /// True when the gate, which has `waited` so long, need not wait for a copy, or no longer. Asks for the own one when
    /// that has not been done yet.
    pub(crate) fn has_settled_copies(
        &self,
        peers: &[PeerProgress],
        waited: Millis,
        now: Now,
        effects: &mut Effects,
    ) -> bool {
        if !self.has_copies() {
            return true;
        }
        let mut copying = self.copying.lock();
        if let Some(asked) = copying.asked {
            if copying.is_read && self.config.faults.has(Fault::NoCopyOrder) {
                return true;
            }
            let is_early = waited < self.config.gate_limit;
            let own = copying.begun.map(|begun| (begun.0, self.me));
            let has_better = |peer: &PeerProgress| match peer.cold {
                _ if peer.contact != Contact::Loading => false,
                None | Some(ColdStart::No | ColdStart::Read(None)) => false,
                Some(ColdStart::Reading) => true,
                Some(ColdStart::Read(Some(begun))) => Some((begun, peer.id)) > own,
            };
            // Whoever is still to come may bring what none of those here has.
            let is_here = |peer: &PeerProgress| matches!(peer.contact, Contact::Loading | Contact::Ready);
            let may_come = own.is_none() && is_early && !peers.iter().all(is_here);
            let is_settled = copying.is_read && !may_come && !peers.iter().any(has_better);
            return is_settled || now.mono.since(asked) >= READ_LIMIT;
        }
        if copying.is_read {
            return true;
        }
        // A few that hear nothing of the others may be cut off from members that live.
        let n_heard = peers
            .iter()
            .filter(|p| matches!(p.contact, Contact::Loading | Contact::Ready))
            .count();
        let is_silent = peers
            .iter()
            .any(|p| matches!(p.contact, Contact::Unknown | Contact::Lost));
        let n_members = peers.len() + 1;
        let is_majority = n_heard + 1 > n_members / 2;
        let is_cold = !copying.has_live && (is_majority || !is_silent);
        if !is_cold && !self.config.faults.has(Fault::CopyBesideLive) {
            copying.is_read = true;
            return true;
        }
        copying.asked = Some(now.mono);
        effects.push(Effect::ReadCopy);
        false
    }

    /// Begins with a copy; false when it is too old to be used. One from the future says nothing of its age.
    pub fn open_copy(&self, begun: CopyTime, now: Now) -> bool {
        let age = now.wall.0.abs_diff(begun.wall.0);
        let is_young = age < COPY_LIFE.0 || self.config.faults.has(Fault::OldCopy);
        if is_young {
            // The last writes before the loss are in the copies of those members only that were about to write one.
            let lost_by = begun.hybrid.0 + COPIES_APART * self.config.copy_period.0;
            self.registry.clock().observe(lost_by << 16);
            self.copying.lock().begun = Some(begun.hybrid);
        }
        is_young
    }

    /// Takes a part of the copy that was asked for.
    pub fn take_copy(&self, part: Frame, now: Now, effects: &mut Effects) {
        if self.is_past_gate() {
            return;
        }
        match part {
            Frame::Orphans { origin, rows, .. } => {
                let origin = MemberId(origin);
                let mut copying = self.copying.lock();
                if !copying.told_of.contains(&origin) {
                    copying.told_of.push(origin);
                }
                drop(copying);
                if self.config.faults.has(Fault::CopyLives) {
                    rows.into_iter()
                        .for_each(|op| self.apply(origin, op, now, effects));
                } else {
                    self.take_orphans(origin, self.longest_grace(), rows, now, effects);
                }
            }
            Frame::SnapshotRows { rows, .. } => {
                // Each names its writer.
                rows.into_iter()
                    .for_each(|op| self.apply(self.me, op, now, effects));
            }
            _ => {}
        }
    }

    /// All of the copy was handed in, or there is none that will do.
    pub fn copy_taken(&self, now: Now, effects: &mut Effects) {
        self.copying.lock().is_read = true;
        self.tell_cold_start(effects);
        self.step_gate(now, effects);
    }

    /// The graces of rows from the copy begin when their readers find them.
    pub(crate) fn renew_copied_graces(&self, now: Now) {
        for origin in std::mem::take(&mut self.copying.lock().told_of) {
            self.graces.grant_rest(origin, self.longest_grace(), now.mono);
        }
    }

    // === writing ===

    /// The time of a copy that is begun now.
    pub fn copy_time(&self, now: Now) -> CopyTime {
        CopyTime {
            wall: now.wall,
            hybrid: self.registry.clock().wall(now.wall),
        }
    }

    /// Asks for a copy when one is due: by a ready member only, as others do not hold everything.
    pub(crate) fn tick_copy(&self, now: Now, effects: &mut Effects) {
        if !self.has_copies() || !self.is_ready() {
            return;
        }
        let mut copying = self.copying.lock();
        let since = copying.written.map(|(at, _)| now.mono.since(at));
        if copying.is_writing || since.is_some_and(|since| since < self.config.copy_period) {
            return;
        }
        let held = self.held();
        let is_same = copying.written.is_some_and(|(_, former)| former == held);
        if is_same && since.is_some_and(|since| since < REWRITE) {
            return;
        }
        copying.is_writing = true;
        copying.written = Some((now.mono, held));
        effects.push(Effect::WriteCopy);
    }

    /// The copy that was asked for is written, or has failed.
    pub fn copy_written(&self) {
        self.copying.lock().is_writing = false;
    }

    /// A number that changes with the rows that are held.
    fn held(&self) -> u64 {
        let digests = self.registry.digests();
        let origins = digests.origins().into_iter();
        let mix = |sum: u64, number: u64| sum.rotate_left(9) ^ number;
        let live = origins.fold(0, |sum, origin| mix(mix(sum, origin.0), digests.root(origin)));
        mix(live, self.registry.n_orphans() as u64)
    }

    /// What the copy holds of one bucket.
    pub fn copy_bucket(&self, bucket: usize) -> Vec<Frame> {
        let mut by_origin: BTreeMap<MemberId, Vec<Op>> = BTreeMap::new();
        for (client, op) in self.registry.bucket_connection_rows(bucket) {
            by_origin.entry(client.origin).or_default().push(Op::from(&op));
        }
        let mut frames = Vec::new();
        for (origin, rows) in by_origin {
            frames.extend(rows.chunks(MAX_ROWS).map(|chunk| Frame::Orphans {
                origin: origin.0,
                remaining: 0,
                rows: chunk.to_vec(),
            }));
        }
        // Operator data has a store of its own. Removals are told, as another member's copy may be older.
        let is_beat =
            |op: &RowOp| matches!(op, RowOp::Versioned { value, .. } if value.kind() == VersionedKind::Beat);
        let versioned = self.registry.bucket_rows(bucket, Scope::Versioned, true);
        let beats: Vec<Op> = versioned.iter().filter(|op| is_beat(op)).map(Op::from).collect();
        frames.extend(beats.chunks(MAX_ROWS).map(|chunk| Frame::SnapshotRows {
            bucket: bucket as u16,
            all: true,
            rows: chunk.to_vec(),
            last: false,
        }));
        frames
    }
}
