//! The receiving side of a link: applies another member's log and snapshot, compares digests, asks for what differs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::{HashMap, HashSet};
use rollcall_core::registry::beats::Heard;
use rollcall_core::registry::change::{RowOp, Versioned};
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::{MemberId, Millis, Now, Registry, RowKey, ServiceKey};

use crate::convert::row_op;
use crate::effect::{Effect, Effects};
use crate::engine::{Engine, LinkId, Peer, Process};
use crate::faults::Fault;
use crate::message::{
    ColdStart, Fixed64, Followed, Frame, LinkHello, LinkRefusal, Op, Reply, Resume, Welcome,
};
use crate::outbound::{LinkError, MAX_IDS};

/// Replies that may wait on one link.
const MAX_REPLIES: usize = 4096;
/// Rows of one bucket that are asked for at once; the rest still differs at the next digest.
const MAX_WANTED: usize = 16_384;
/// Rows in one offer.
const MAX_OFFER: usize = 512;

/// What is held of a member, and the link from it.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    pub(crate) link: Option<LinkId>,
    /// How it starts, as it has told on this link.
    pub(crate) cold: Option<ColdStart>,
    /// The member has left, and comes back as another peer if at all.
    is_retired: bool,
    /// The process whose rows are held.
    known: Option<Process>,
    /// Last applied sequence number of its log.
    applied: u64,
    /// First bucket of its snapshot that is missing, while it loads.
    loading: Option<u16>,
    /// Its own rows are complete.
    is_loaded: bool,
    /// This process stood still: what it holds of the member counts again once a digest agrees.
    is_stale: bool,
    /// Some of its rows were dropped here as orphans: resuming its log would leave them out.
    pub(crate) is_incomplete: bool,
    /// Among its orphans here are rows of the process whose log is followed.
    pub(crate) has_orphans: bool,
    is_ack_due: bool,
    /// When the last frame came, or the link was taken.
    heard: Millis,
    replies: VecDeque<Reply>,
}

impl Inbound {
    /// Nothing is held yet of a member, whose process `known` was the last that was here.
    pub(crate) fn of(known: Option<Process>) -> Self {
        Inbound {
            known,
            ..Inbound::default()
        }
    }

    /// The process whose rows are here.
    pub(crate) fn known_boot(&self) -> Option<u64> {
        self.known.map(|known| known.boot)
    }

    /// Ends for good: the member has left. Returns which process it was.
    pub(crate) fn retire(&mut self) -> Option<Process> {
        let known = self.known;
        *self = Inbound {
            is_retired: true,
            ..Inbound::default()
        };
        known
    }

    pub(crate) fn want_all(&mut self, bucket: u16) {
        self.reply(Reply::WantAll { bucket });
    }

    /// Its rows are complete and were so at the last look.
    pub(crate) fn is_current(&self) -> bool {
        self.is_loaded && !self.is_stale
    }

    /// Whether the link is up, and how many replies wait on it.
    pub(crate) fn backlog(&self) -> (bool, usize) {
        (
            self.link.is_some(),
            self.replies.len() + usize::from(self.is_ack_due),
        )
    }

    /// When its link brought something the last time; 0 for never.
    pub(crate) fn heard(&self) -> Millis {
        self.heard
    }

    /// A later process of the member than this one is followed.
    pub(crate) fn follows_later_than(&self, process: Process) -> bool {
        self.known
            .is_some_and(|known| known.boot != process.boot && known.epoch >= process.epoch)
    }

    /// Drops the link: what waits on it is old. The member will dial again and go on where it was.
    pub(crate) fn distrust(&mut self) {
        self.close();
        self.is_stale = true;
    }

    /// The link ends, with what waits on it.
    pub(crate) fn close(&mut self) {
        self.link = None;
        self.replies.clear();
    }

    fn reply(&mut self, reply: Reply) {
        // What does not fit is asked for again at the next digest.
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(reply);
        }
    }
}

/// The ids that `theirs` does not have. So many as `limit` are perhaps not all: the lowest ones, so that those above them
/// say nothing.
fn extra_ids(ours: &HashMap<u64, u64>, theirs: &HashMap<u64, u64>, limit: usize) -> HashSet<u64> {
    let told_up_to = match theirs.len() < limit {
        true => u64::MAX,
        false => theirs.keys().max().copied().unwrap_or(u64::MAX),
    };
    let ids = ours.keys().copied();
    ids.filter(|id| *id <= told_up_to && !theirs.contains_key(id))
        .collect()
}

fn not_a_member(hello: &LinkHello) -> LinkRefusal {
    LinkRefusal::NotAMember {
        member: hello.member.clone(),
    }
}

impl Engine {
    /// A member dials this one. Returns its link and where its log shall start.
    ///
    /// # Errors
    /// [`LinkRefusal`]; nothing has changed then.
    pub fn accept_link(
        &self,
        hello: &LinkHello,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(LinkId, MemberId, Welcome), LinkRefusal> {
        let peer = self.check_hello(hello)?;
        let mut inbound = peer.inbound.lock();
        if inbound.is_retired {
            return Err(not_a_member(hello));
        }
        let process = Process {
            epoch: hello.epoch,
            boot: hello.boot,
        };
        let is_same_process = inbound.known.is_some_and(|known| known.boot == hello.boot);
        if let Some(Process { epoch, .. }) = inbound.known
            && !is_same_process
            && !self.config.faults.has(Fault::ReusedEpoch)
        {
            if hello.epoch <= epoch {
                return Err(LinkRefusal::EpochUsed { at_least: epoch + 1 });
            }
            self.take_process(&peer, &mut inbound, process, now, effects);
        } else if is_same_process && self.graces.end(peer.id) {
            inbound.has_orphans = false;
            self.graces.begin_living(peer.id, self.registry.fleet_of(peer.id));
            effects.push(Effect::Wake);
        }
        // Where rows of an earlier process are among the orphans, digests tell which ones live.
        let has_nothing = !inbound.is_loaded && inbound.loading.is_none();
        let must_reload = has_nothing || inbound.is_incomplete;
        let resume = match inbound.loading {
            _ if must_reload => Resume::Fresh,
            Some(bucket) => Resume::Loading {
                seq: inbound.applied,
                bucket,
            },
            None => Resume::At { seq: inbound.applied },
        };
        inbound.known = Some(process);
        let link = self.new_link(peer.id);
        inbound.link = Some(link);
        inbound.cold = None;
        inbound.heard = now.mono;
        inbound.replies.clear();
        inbound.is_ack_due = false;
        peer.agreed.store(0, Ordering::Relaxed);
        let format = hello.formats.1.min(self.config.newest_format);
        self.members.lock().note_format(peer.id, format);
        drop(inbound);
        self.forget_all_load(peer.id);
        self.step_gate(now, effects);
        Ok((
            link,
            peer.id,
            Welcome {
                resume,
                epoch: self.epoch(),
                boot: self.boot(),
            },
        ))
    }

    /// Follows this process of a member from now on: what is held of a former one are orphans.
    pub(crate) fn take_process(
        &self,
        peer: &Peer,
        inbound: &mut Inbound,
        process: Process,
        now: Now,
        effects: &mut Effects,
    ) {
        if inbound.known.is_some_and(|known| known.boot != process.boot) {
            let (fleet, until) = (
                self.registry.fleet_of(peer.id),
                now.mono + self.config.orphan_gone,
            );
            self.graces.begin_orphans(peer.id, fleet, until, true);
            self.graces.are_former(peer.id);
            effects.push(Effect::Wake);
            *inbound = Inbound {
                heard: inbound.heard,
                ..Inbound::default()
            };
        }
        inbound.known = Some(process);
    }

    fn check_hello(&self, hello: &LinkHello) -> Result<Arc<Peer>, LinkRefusal> {
        self.hello().check(hello)?;
        let id = MemberId::of(&hello.member);
        self.peer(id).ok_or_else(|| not_a_member(hello))
    }

    /// An inbound link broke: whether the member lives is to be seen at once.
    pub fn inbound_down(&self, link: LinkId, now: Now, effects: &mut Effects) {
        if let Some(peer) = self.inbound_peer(link) {
            let mut inbound = peer.inbound.lock();
            if inbound.link == Some(link) {
                inbound.close();
                drop(inbound);
                self.forget_all_load(peer.id);
                self.doubt(peer.id, now, effects);
            }
        }
    }

    pub(crate) fn forget_all_load(&self, from: MemberId) {
        self.with_start(|start| {
            if start.all_from.is_some_and(|(member, _)| member == from) {
                start.all_from = None;
            }
        });
    }

    /// The position up to which a member's log is applied here.
    pub fn applied(&self, origin: MemberId) -> u64 {
        self.peer(origin).map_or(0, |peer| peer.inbound.lock().applied)
    }

    fn inbound_peer(&self, link: LinkId) -> Option<Arc<Peer>> {
        self.peer(link.member)
    }

    /// The next reply for an inbound link.
    pub fn poll_reply(&self, link: LinkId) -> Option<Reply> {
        let peer = self.inbound_peer(link)?;
        let mut inbound = peer.inbound.lock();
        if inbound.link != Some(link) {
            return None;
        }
        if std::mem::take(&mut inbound.is_ack_due) {
            return Some(Reply::Ack { seq: inbound.applied });
        }
        inbound.replies.pop_front()
    }

    /// Takes a frame on an inbound link.
    ///
    /// # Errors
    /// [`LinkError`] when the link is not in use or the peer breaks the protocol: drop the link.
    pub fn on_frame(
        &self,
        link: LinkId,
        frame: Frame,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(), LinkError> {
        let peer = self.inbound_peer(link).ok_or(LinkError::Closed)?;
        // Before the link is locked, as it locks other links.
        let relays = match &frame {
            Frame::Digest { .. } => self.relays_through(peer.id, now, effects),
            _ => Vec::new(),
        };
        let mut inbound = peer.inbound.lock();
        if inbound.link != Some(link) {
            return Err(LinkError::Closed);
        }
        inbound.heard = now.mono;
        if let Frame::BeatsFor { owner, rows } = frame {
            drop(inbound);
            self.pass_on_beats(MemberId(owner), rows, now);
            return Ok(());
        }
        self.take_frame(&peer, &mut inbound, frame, now, effects)?;
        for relay in relays {
            inbound.reply(relay);
        }
        if inbound.is_ack_due || !inbound.replies.is_empty() {
            effects.push(Effect::RepliesReady(peer.id));
        }
        drop(inbound);
        self.step_gate(now, effects);
        Ok(())
    }

    /// Notes how far the log of a member is followed, before its operations take effect: whoever is told of the effects
    /// is told of this position too.
    fn follow(&self, peer: &Peer, inbound: &mut Inbound, seq: u64) {
        inbound.applied = seq;
        *peer.followed.lock() = Followed {
            member: peer.id.0,
            boot: inbound.known.map_or(0, |known| known.boot),
            seq,
        };
    }

    fn take_frame(
        &self,
        peer: &Peer,
        inbound: &mut Inbound,
        frame: Frame,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(), LinkError> {
        match frame {
            Frame::Ops { first, ops } => {
                if first != inbound.applied + 1 && !self.config.faults.has(Fault::NoRepair) {
                    return Err(LinkError::Protocol("operations out of order"));
                }
                self.follow(peer, inbound, first + ops.len() as u64 - 1);
                for op in ops {
                    self.apply(peer.id, op, now, effects);
                }
                inbound.is_ack_due = true;
                effects.push(Effect::Applied(peer.id, inbound.applied));
            }
            Frame::SnapshotBegin { seq } => {
                self.follow(peer, inbound, seq);
                inbound.loading = Some(0);
                inbound.is_loaded = false;
                inbound.is_incomplete = false;
                self.note_process(*peer.followed.lock(), now.mono);
            }
            Frame::SnapshotRows {
                bucket,
                all,
                rows,
                last,
            } => {
                for op in rows {
                    self.apply(peer.id, op, now, effects);
                }
                if last && all {
                    self.with_start(|start| start.all_bucket = bucket + 1);
                } else if last {
                    inbound.loading = Some(bucket + 1);
                }
            }
            Frame::Orphans {
                origin,
                remaining,
                rows,
            } => {
                self.take_orphans(MemberId(origin), Millis(remaining), rows, now, effects);
            }
            Frame::SnapshotEnd => {
                inbound.loading = None;
                inbound.is_loaded = true;
                inbound.is_ack_due = true;
            }
            Frame::AllEnd { followed } => self.end_all_load(followed, now.mono),
            Frame::Jump { .. } if !self.is_past_gate() => {
                // Digests would find what is missing, but nobody waits for them before the gate: the member dials again
                // and tells everything.
                inbound.close();
                inbound.is_loaded = false;
                inbound.is_incomplete = true;
                return Err(LinkError::Closed);
            }
            Frame::Jump { seq } => {
                self.follow(peer, inbound, seq);
                inbound.is_ack_due = true;
            }
            Frame::Digest { seq, root, absent } => {
                // While rows turn, the digest here says nothing; the next one comes in a second.
                let is_whole = inbound.loading.is_none() && !self.graces.is_turning(peer.id);
                if u64::from(seq) == inbound.applied && is_whole {
                    self.compare_digest(peer, inbound, root.into(), &absent, now);
                }
            }
            Frame::Buckets { origin, digests } => self.compare_buckets(inbound, origin, &digests),
            Frame::Ids { origin, bucket, rows } => {
                self.compare_ids(peer, inbound, origin, bucket, rows, now, effects);
            }
            Frame::Rows { rows } => self.take_rows(peer, inbound, peer.id, rows, now, effects),
            Frame::RowsOf { origin, rows } => {
                let origin = MemberId(origin);
                if self.relay_of(origin) == Some(peer.id) {
                    { &self.counters.rows_relayed }.fetch_add(rows.len() as u64, Ordering::Relaxed);
                    self.take_rows(peer, inbound, origin, rows, now, effects);
                }
            }
            // Passed on before the link was locked.
            Frame::BeatsFor { .. } => {}
            Frame::Starting(cold) => inbound.cold = Some(cold),
            Frame::Beats { rows } => {
                for (service, keys) in rows {
                    let service = ServiceKey::from(&service);
                    for key in keys {
                        let key = RowKey::from(key);
                        let (changes, log) = (&mut effects.changes, &self.log);
                        self.registry
                            .beat(&service, (&key).into(), Heard::Relayed, now, log, changes);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes orphans that another member shows, or a copy on disk holds, with what is left of their grace.
    pub(crate) fn take_orphans(
        &self,
        origin: MemberId,
        rest: Millis,
        rows: Vec<Op>,
        now: Now,
        effects: &mut Effects,
    ) {
        let rest = rest.min(self.longest_grace());
        self.graces.grant_rest(origin, rest, now.mono);
        for op in rows {
            if let RowOp::Publish {
                client,
                service,
                instance,
                stamp,
            } = row_op(op, origin)
                // A member that lost sight of this one may still show what it has withdrawn meanwhile.
                && !self.has_opened(client)
            {
                let changes = &mut effects.changes;
                self.registry
                    .apply_orphan(client, &service, instance, stamp, now, changes);
            }
        }
    }

    fn end_all_load(&self, followed: Vec<Followed>, now: Millis) {
        let is_unknown = |f: &Followed| {
            let id = MemberId(f.member);
            f.boot != 0 && id != self.me && self.peer(id).is_none()
        };
        if followed.iter().any(is_unknown) {
            // A member has just left the list, and the source did not know yet: its rows were no orphans there.
            return self.load_again_after(1, now);
        }
        self.with_start(|start| {
            start.all_loaded = true;
            start.must_follow = followed;
        });
        for peer in self.peers().values() {
            self.note_process(*peer.followed.lock(), now);
        }
    }

    pub(crate) fn apply(&self, origin: MemberId, op: Op, now: Now, effects: &mut Effects) {
        self.apply_row(row_op(op, origin), false, now, effects);
    }

    fn apply_row(&self, op: RowOp, is_repair: bool, now: Now, effects: &mut Effects) {
        let changes = &mut effects.changes;
        match op {
            RowOp::Publish {
                client,
                service,
                instance,
                stamp,
            } => {
                let publish = match is_repair {
                    true => Registry::repair_publish,
                    false => Registry::apply_publish,
                };
                publish(&self.registry, client, &service, instance, stamp, now, changes);
            }
            RowOp::Withdraw { client, service, row } => {
                let hash = row.stable_hash(&service);
                self.registry.apply_withdraw(client, &service, hash, now, changes);
            }
            RowOp::ClientGone { client } => self.registry.apply_client_gone(client, now, changes),
            RowOp::Record { key, stamp, record } => {
                self.registry.apply_record(&key, record, stamp, now, changes);
            }
            RowOp::Versioned {
                service,
                row,
                stamp,
                value,
            } => {
                self.registry.apply_versioned(
                    &service,
                    &row,
                    Versioned { stamp, value },
                    now,
                    &self.log,
                    changes,
                );
            }
        }
    }

    // === verify ===

    fn compare_digest(
        &self,
        peer: &Peer,
        inbound: &mut Inbound,
        root: u64,
        absent: &[(Fixed64, Fixed64)],
        now: Now,
    ) {
        if self.config.faults.has(Fault::NoRepair) {
            inbound.is_stale = false;
            return;
        }
        let digests = self.registry.digests();
        let differs = |origin: MemberId, theirs: u64| {
            let is_different = digests.root(origin) != theirs;
            let counter = match is_different {
                true => &self.counters.digests_differed,
                false => &self.counters.digests_agreed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            is_different
        };
        if differs(peer.id, root) {
            inbound.reply(Reply::WantBuckets { origin: peer.id.0 });
        } else {
            inbound.is_stale = false;
            peer.agreed.store(now.mono.0.max(1), Ordering::Relaxed);
        }
        // Rows whose writer both see as absent: nobody else speaks for them.
        for (origin, theirs) in absent {
            let id = MemberId((*origin).into());
            let is_absent = id != peer.id && !self.has_alive(id) && !self.graces.is_turning(id);
            if is_absent && differs(id, (*theirs).into()) {
                inbound.reply(Reply::WantBuckets { origin: id.0 });
            }
        }
    }

    fn compare_buckets(&self, inbound: &mut Inbound, origin: u64, theirs: &[u64]) {
        let ours = self.registry.digests().all(MemberId(origin));
        let differing = ours.iter().zip(theirs).enumerate().filter(|(_, (a, b))| a != b);
        let buckets: Vec<u16> = differing.map(|(bucket, _)| bucket as u16).collect();
        if !buckets.is_empty() {
            inbound.reply(Reply::WantIds { origin, buckets });
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn compare_ids(
        &self,
        peer: &Peer,
        inbound: &mut Inbound,
        origin: u64,
        bucket: u16,
        theirs: Vec<(u64, u64)>,
        now: Now,
        effects: &mut Effects,
    ) {
        let at = usize::from(bucket);
        let id = MemberId(origin);
        // What is still to become an orphan must not be taken for a row that its member does not have.
        if at >= N_BUCKETS || self.graces.is_turning(id) {
            return;
        }
        let ours: HashMap<u64, u64> = self.registry.bucket_ids(at, id).into_iter().collect();
        let theirs: HashMap<u64, u64> = theirs.into_iter().collect();
        let mut wanted: Vec<u64> = theirs
            .iter()
            .filter(|(row, version)| ours.get(*row) != Some(version))
            .map(|(row, _)| *row)
            .collect();
        wanted.sort_unstable();
        wanted.truncate(MAX_WANTED);
        let is_replaced_later = !wanted.is_empty();
        if is_replaced_later {
            inbound.reply(Reply::WantRows {
                origin,
                bucket,
                rows: wanted,
            });
        }
        let extra = extra_ids(&ours, &theirs, MAX_IDS);
        if extra.is_empty() {
            return;
        }
        let rows = self.registry.rows_with_ids(at, id, &extra);
        let speaks_for_it = id == peer.id || self.relay_of(id) == Some(peer.id);
        // What is missing here may be the same instances by another connection, and no list may lack them meanwhile: the
        // next digest removes what is too much then.
        if speaks_for_it && !is_replaced_later && !self.config.faults.has(Fault::LostRemoval) {
            let n_forgotten = self
                .registry
                .forget_rows(at, id, &extra, now, &mut effects.changes);
            self.counters
                .rows_repaired
                .fetch_add(n_forgotten as u64, Ordering::Relaxed);
            let forgotten = rows.iter().filter(|op| op.version().is_none());
            for subject in forgotten.filter_map(RowOp::subject) {
                self.repairs.note(peer.id, subject, true, now);
            }
        }
        let versioned: Vec<Op> = rows
            .iter()
            .filter(|op| op.version().is_some())
            .map(Op::from)
            .collect();
        for chunk in versioned.chunks(MAX_OFFER) {
            inbound.reply(Reply::Offer { rows: chunk.to_vec() });
        }
    }

    /// Rows that were asked for. Where what is here is newer, the peer gets that.
    fn take_rows(
        &self,
        peer: &Peer,
        inbound: &mut Inbound,
        origin: MemberId,
        rows: Vec<Op>,
        now: Now,
        effects: &mut Effects,
    ) {
        let mut back = Vec::new();
        for op in rows {
            self.counters.rows_repaired.fetch_add(1, Ordering::Relaxed);
            let offered = row_op(op, origin);
            if let Some(subject) = offered.subject() {
                self.repairs.note(peer.id, subject, false, now);
            }
            let ours = self.registry.known(&offered);
            if let Some(newer) = ours.filter(|ours| ours.version() > offered.version()) {
                back.push(Op::from(&newer));
                continue;
            }
            self.apply_row(offered, true, now, effects);
        }
        for chunk in back.chunks(MAX_OFFER) {
            inbound.reply(Reply::Offer { rows: chunk.to_vec() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_ids_that_is_cut_off_says_nothing_of_those_above_it() {
        let ids = |of: &[u64]| -> HashMap<u64, u64> { of.iter().map(|id| (*id, 1)).collect() };
        let (ours, theirs) = (ids(&[1, 2, 3, 4, 5]), ids(&[1, 3, 4]));
        assert_eq!(extra_ids(&ours, &theirs, 4), HashSet::from([2, 5]));
        assert_eq!(extra_ids(&ours, &theirs, 3), HashSet::from([2]));
        assert_eq!(extra_ids(&ours, &ids(&[]), 4).len(), 5);
    }
}
