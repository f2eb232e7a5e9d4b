//! The sending side of a link: this member's log, snapshot, digests and answers, pulled by the shell as fast as the
//! stream takes them. Nothing is queued per peer but what the peer asked for.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use rollcall_core::registry::change::{ClientId, RowOp, Versioned};
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::registry::repair::Scope;
use rollcall_core::{Latencies, LatencyCounts, MemberId, Micros, Millis, Now, RowKey, ServiceKey};

use crate::beats::BeatQueue;
use crate::codec::Message;
use crate::convert::row_op;
use crate::effect::{Effect, Effects};
use crate::engine::{Engine, LinkId, Peer, PeerStatus};
use crate::faults::Fault;
use crate::log::Next;
use crate::message::{ColdStart, Followed, Frame, LinkRefusal, Op, Reply, Resume, Welcome};

/// Operations in one frame.
const MAX_OPS: usize = 512;
/// Ends of connections in one frame of operations. Each may take many rows with it, and all that a frame says is done at
/// once.
const MAX_ENDS: usize = 8;
/// Rows in one frame of a snapshot or repair.
const MAX_ROWS: usize = 512;
/// Ids in one frame: more than a bucket of one member holds in a cluster of millions of rows, and far below the codec's
/// limit.
pub(crate) const MAX_IDS: usize = 262_144;
/// Answers that may wait on one link.
const MAX_WANTS: usize = 1024;
/// Writes per link whose acknowledgement is timed.
const MAX_UNACKED: usize = 4096;
/// A digest after one that differed comes so many times earlier.
const EARLY_DIGEST: u64 = 4;

/// What a peer broke on a link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// The link is not, or no longer, the one in use.
    #[error("the link is closed")]
    Closed,
    /// The peer speaks against the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
}

/// State of an outbound link.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    link: Option<LinkId>,
    /// Format version that the peer reads on this link.
    format: u8,
    /// The member has left, and comes back as another peer if at all.
    is_retired: bool,
    /// Last sequence number that was handed to the stream.
    sent: u64,
    /// Where this member's log stood when the link came up: what comes up to there was written while the peer was away.
    missed_until: u64,
    /// Bucket that comes next in the snapshot of this member's own rows.
    own_bucket: Option<u16>,
    /// The same of the "all" load.
    all_bucket: Option<u16>,
    /// What [`Graces::n_ends`](crate::graces::Graces::n_ends) was when the "all" load began.
    all_since: Option<u64>,
    /// Frames made together that must follow each other.
    staged: VecDeque<Frame>,
    wants: VecDeque<Reply>,
    /// The last frame held operations: give the rest a turn.
    was_ops: bool,
    last_digest: Option<Millis>,
    /// The peer has found a difference: the next digest comes early, to tell whether that is mended.
    has_differed: bool,
    beats: BeatQueue,
    /// Last sequence number that the peer acknowledged.
    acked: u64,
    /// Where this member's log stood after some of its writes, and when they were made, until they are acknowledged.
    unacked: VecDeque<(u64, Micros)>,
}

impl Outbound {
    pub(crate) fn is_up(&self) -> bool {
        self.link.is_some()
    }

    /// When the link next has something to send by time alone.
    pub(crate) fn next_due(&self, verify_interval: Millis) -> Option<Millis> {
        self.link?;
        let digest = self.digest_due(verify_interval);
        Some(self.beats.due().map_or(digest, |beats| beats.min(digest)))
    }

    /// When the next digest is due.
    fn digest_due(&self, verify_interval: Millis) -> Millis {
        let pause = match self.has_differed {
            true => Millis(verify_interval.0 / EARLY_DIGEST),
            false => verify_interval,
        };
        self.last_digest.map_or(Millis(0), |last| last + pause)
    }

    /// Begins anew with another link, or with none; beats that wait for the owner stay.
    fn renew(&mut self, link: Option<LinkId>, format: u8, now: Now) {
        self.beats.tell_again(now.mono);
        *self = Outbound {
            link,
            format,
            beats: std::mem::take(&mut self.beats),
            acked: self.acked,
            unacked: std::mem::take(&mut self.unacked),
            all_since: self.all_since,
            ..Outbound::default()
        };
    }

    /// Notes when the log reached `head`, so that the acknowledgement tells how long it took. While many writes wait for
    /// theirs, further ones are not noted.
    pub(crate) fn note_write(&mut self, head: u64, now: Micros) {
        let is_newer = self.unacked.back().is_none_or(|last| last.0 < head);
        if is_newer && self.unacked.len() < MAX_UNACKED {
            self.unacked.push_back((head, now));
        }
    }

    /// Takes note of an acknowledgement.
    fn note_ack(&mut self, seq: u64, synced: &Latencies, now: Micros) {
        self.acked = seq;
        while let Some((_, made)) = self.unacked.pop_front_if(|(head, _)| *head <= seq) {
            synced.record(now.since(made));
        }
    }

    /// What waits on this side of the link.
    pub(crate) fn backlog(&self, head: u64) -> PeerStatus {
        PeerStatus {
            is_up: self.is_up(),
            is_followed: false,
            n_behind: head.saturating_sub(self.acked),
            n_frames: self.staged.len(),
            n_questions: self.wants.len(),
            n_beats: self.beats.len(),
            n_replies: 0,
            synced: LatencyCounts::default(),
        }
    }

    /// Ends for good: the member has left.
    pub(crate) fn retire(&mut self) {
        *self = Outbound {
            is_retired: true,
            ..Outbound::default()
        };
    }

    /// Tells the peer how this member starts.
    fn tell(&mut self, cold: ColdStart) {
        let starting = Frame::Starting(cold);
        if self.is_up() && starting.since() <= self.format {
            self.staged.push_back(starting);
        }
    }

    fn has_work(&self) -> bool {
        !self.staged.is_empty()
            || !self.wants.is_empty()
            || self.own_bucket.is_some()
            || self.all_bucket.is_some()
    }
}

/// Stages rows of connections as orphans of their members, each with the rest of its grace.
fn stage_as_orphans(
    outbound: &mut Outbound,
    rows: Vec<(ClientId, RowOp)>,
    rest: impl Fn(MemberId) -> Millis,
) {
    let mut by_origin: BTreeMap<MemberId, Vec<Op>> = BTreeMap::new();
    for (client, op) in rows {
        by_origin.entry(client.origin).or_default().push(Op::from(&op));
    }
    for (origin, rows) in by_origin {
        let remaining = rest(origin).0;
        for chunk in rows.chunks(MAX_ROWS) {
            let rows = chunk.to_vec();
            outbound.staged.push_back(Frame::Orphans {
                origin: origin.0,
                remaining,
                rows,
            });
        }
    }
}

impl Engine {
    /// The outbound link to a member is set up, who reads `format` on it.
    pub fn link_up(
        &self,
        to: MemberId,
        format: u8,
        welcome: &Welcome,
        now: Now,
        effects: &mut Effects,
    ) -> LinkId {
        let link = self.new_link(to);
        self.members.lock().note_owned(to);
        if let Some(peer) = self.peer(to)
            && let mut outbound = peer.outbound.lock()
            && !outbound.is_retired
        {
            outbound.renew(Some(link), format, now);
            outbound.missed_until = self.log.head();
            if !self.is_past_gate() {
                outbound.tell(self.cold_start());
            }
            match welcome.resume {
                Resume::Fresh => {
                    // It has nothing, and acknowledges the position before it has the rows that belong to it.
                    outbound.acked = 0;
                    outbound.unacked.clear();
                    outbound.sent = self.log.head();
                    let begin = Frame::SnapshotBegin { seq: outbound.sent };
                    outbound.staged.push_back(begin);
                    outbound.own_bucket = Some(0);
                }
                Resume::At { seq } => outbound.sent = seq.min(self.log.head()),
                Resume::Loading { seq, bucket } => {
                    outbound.sent = seq.min(self.log.head());
                    outbound.own_bucket = Some(bucket);
                }
            }
        }
        effects.push(Effect::LinkReady(to));
        self.take_turnover(now, effects);
        link
    }

    /// A member refused this member's hello.
    pub fn link_refused(&self, by: MemberId, refusal: &LinkRefusal, now: Now, effects: &mut Effects) {
        match refusal {
            LinkRefusal::EpochUsed { at_least } => self.raise_epoch(*at_least, effects),
            LinkRefusal::NotAMember { .. } => self.disowned_by(by, now, effects),
            LinkRefusal::Cluster { .. }
            | LinkRefusal::Mapper { .. }
            | LinkRefusal::Format { .. }
            | LinkRefusal::Secret => self.members.lock().note_differs(by),
        }
    }

    /// Tells all peers how this member starts.
    pub(crate) fn tell_cold_start(&self, effects: &mut Effects) {
        let cold = self.cold_start();
        for peer in self.peers().values() {
            peer.outbound.lock().tell(cold);
            effects.push(Effect::LinkReady(peer.id));
        }
    }

    /// An outbound link broke.
    pub fn link_down(&self, link: LinkId, now: Now) {
        if let Some(peer) = self.outbound_peer(link) {
            let mut outbound = peer.outbound.lock();
            if outbound.link == Some(link) {
                outbound.renew(None, 0, now);
            }
        }
    }

    fn outbound_peer(&self, link: LinkId) -> Option<Arc<Peer>> {
        self.peer(link.member)
    }

    /// Takes note of a beat that its owner shall hear of, through a third member when it is out of reach.
    pub fn relay_beat(&self, owner: MemberId, service: &ServiceKey, row: RowKey, now: Now) {
        match self.relay_of(owner) {
            Some(relay) => self.queue_beat(relay, Some(owner), service, row, now),
            None => self.queue_beat(owner, None, service, row, now),
        }
    }

    /// Queues a beat for `to`, who passes it on to `owner` if it is another one.
    pub(crate) fn queue_beat(
        &self,
        to: MemberId,
        owner: Option<MemberId>,
        service: &ServiceKey,
        row: RowKey,
        now: Now,
    ) {
        let Some(peer) = self.peer(to) else {
            return;
        };
        let beats = &mut peer.outbound.lock().beats;
        if !beats.add((owner, service.clone()), row, now.mono) {
            self.counters.beats_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The next frame for a link, `None` when there is nothing to send now.
    pub fn poll_link(&self, link: LinkId, now: Now) -> Option<Frame> {
        let peer = self.outbound_peer(link)?;
        let mut outbound = peer.outbound.lock();
        let outbound = &mut *outbound;
        if outbound.link != Some(link) {
            return None;
        }
        if let Some(frame) = outbound.staged.pop_front() {
            return Some(frame);
        }
        let is_ops_turn = !outbound.was_ops || !outbound.has_work();
        outbound.was_ops = false;
        if is_ops_turn && let Some(frame) = self.next_ops(outbound) {
            return Some(frame);
        }
        if let Some(want) = outbound.wants.pop_front() {
            self.answer(outbound, want);
        } else if let Some(bucket) = outbound.own_bucket {
            outbound.own_bucket = self.stage_bucket(outbound, bucket, false, now);
        } else if let Some(bucket) = outbound.all_bucket {
            outbound.all_bucket = self.stage_bucket(outbound, bucket, true, now);
        }
        if let Some(frame) = outbound.staged.pop_front() {
            return Some(frame);
        }
        let beats = outbound.beats.next(now.mono);
        beats
            .or_else(|| self.next_ops(outbound))
            .or_else(|| self.next_digest(outbound, now))
    }

    fn next_ops(&self, outbound: &mut Outbound) -> Option<Frame> {
        match self.log.after(outbound.sent, MAX_OPS) {
            Next::Nothing => None,
            Next::Gap(head) => {
                outbound.sent = head;
                outbound.last_digest = None;
                self.counters.log_gaps.fetch_add(1, Ordering::Relaxed);
                Some(Frame::Jump { seq: head })
            }
            Next::Ops(first, mut ops) => {
                let is_end = |op: &RowOp| matches!(op, RowOp::ClientGone { .. });
                let mut ends = ops.iter().enumerate().filter(|(_, op)| is_end(op));
                if let Some((last, _)) = ends.nth(MAX_ENDS - 1) {
                    ops.truncate(last + 1);
                }
                outbound.sent = first + ops.len() as u64 - 1;
                outbound.was_ops = true;
                let ops = ops.iter().zip(first..).map(|(op, seq)| {
                    if seq <= outbound.missed_until {
                        self.wire_op(&self.renewed(op))
                    } else {
                        self.wire_op(op)
                    }
                });
                Some(Frame::Ops {
                    first,
                    ops: ops.collect(),
                })
            }
        }
    }

    /// An operation for a member that was away when it was written: of a row or record that was written again since, by
    /// whomever, the newest version. The log of who removed it may come to that member later, and until then it would
    /// list what is gone.
    fn renewed<'a>(&self, op: &'a RowOp) -> Cow<'a, RowOp> {
        match (self.registry.known(op), op) {
            (Some(known), _) if known.version() > op.version() => Cow::Owned(known),
            // It was removed so long ago that this is forgotten.
            (
                None,
                RowOp::Versioned {
                    service,
                    row,
                    stamp,
                    value,
                },
            ) if !value.is_removal() => {
                let (stamp, value) = (*stamp, value.clone());
                let removal = Versioned { stamp, value }.removal(self.me);
                Cow::Owned(RowOp::Versioned {
                    service: service.clone(),
                    row: row.clone(),
                    stamp: removal.stamp,
                    value: removal.value,
                })
            }
            _ => Cow::Borrowed(op),
        }
    }

    fn wire_op(&self, op: &RowOp) -> Op {
        if self.config.faults.has(Fault::LostRemoval)
            && matches!(op, RowOp::Withdraw { .. } | RowOp::ClientGone { .. })
        {
            // An end of a client that nobody knows: the removal is lost, the sequence is not.
            return Op::ClientGone { client: u64::MAX };
        }
        op.into()
    }

    fn next_digest(&self, outbound: &mut Outbound, now: Now) -> Option<Frame> {
        if outbound.own_bucket.is_some() {
            return None;
        }
        if now.mono < outbound.digest_due(self.config.verify_interval) {
            return None;
        }
        let root = self.log.root_at(outbound.sent, self.registry.digests())?;
        outbound.last_digest = Some(now.mono);
        outbound.has_differed = false;
        let digests = self.registry.digests();
        // An origin without a row here is left out: the other side tells if it has some.
        let absent = digests
            .origins()
            .into_iter()
            .filter(|origin| !self.has_alive(*origin) && !self.graces.is_turning(*origin))
            .map(|origin| (origin, digests.root(origin)))
            .filter(|(_, root)| *root != 0)
            .map(|(origin, root)| (origin.0.into(), root.into()))
            .collect();
        Some(Frame::Digest {
            seq: outbound.sent.into(),
            root: root.into(),
            absent,
        })
    }

    /// Stages the rows of one bucket and returns the bucket after it.
    fn stage_bucket(&self, outbound: &mut Outbound, bucket: u16, all: bool, now: Now) -> Option<u16> {
        let mut bucket = bucket;
        // Empty buckets cost nothing on the wire.
        while usize::from(bucket) < N_BUCKETS {
            let mut rows = self.snapshot_rows(usize::from(bucket), all);
            if self.config.faults.has(Fault::StaleSnapshotRow) {
                rows.iter_mut().for_each(make_stale);
            }
            let this = bucket;
            bucket += 1;
            let n_staged = outbound.staged.len();
            if all {
                self.stage_orphans(outbound, usize::from(this), now);
            }
            if rows.is_empty() && outbound.staged.len() == n_staged {
                continue;
            }
            let n_chunks = rows.len().div_ceil(MAX_ROWS);
            for (n, chunk) in rows.chunks(MAX_ROWS).enumerate() {
                let last = n + 1 == n_chunks;
                outbound.staged.push_back(Frame::SnapshotRows {
                    bucket: this,
                    all,
                    rows: chunk.to_vec(),
                    last,
                });
            }
            break;
        }
        if usize::from(bucket) < N_BUCKETS {
            return Some(bucket);
        }
        outbound.staged.push_back(if all {
            let followed = self.followed();
            // Looked at after whom this member follows: who is not among them any more has its rows told as orphans.
            let ends = Some(self.graces.n_ends());
            if std::mem::replace(&mut outbound.all_since, ends) != ends {
                return Some(0);
            }
            Frame::AllEnd { followed }
        } else {
            Frame::SnapshotEnd
        });
        outbound.last_digest = None;
        None
    }

    fn followed(&self) -> Vec<Followed> {
        let own = Followed {
            member: self.me.0,
            boot: self.boot(),
            seq: self.log.head(),
        };
        let peers = self.peers();
        let others = peers.values().map(|peer| *peer.followed.lock());
        std::iter::once(own).chain(others).collect()
    }

    fn stage_orphans(&self, outbound: &mut Outbound, bucket: usize, now: Now) {
        let doomed = self.graces.doomed();
        if !doomed.is_empty() {
            let rows = self.registry.bucket_doomed(bucket, |client| doomed.has(client));
            stage_as_orphans(outbound, rows, |id| self.graces.rest_to_come(id, now.mono));
        }
        // Orphans that are some already have no new grace, also while others of their member become orphans.
        let rows = self.registry.bucket_orphans(bucket);
        stage_as_orphans(outbound, rows, |id| self.graces.rest(id, now.mono));
    }

    fn snapshot_rows(&self, bucket: usize, all: bool) -> Vec<Op> {
        let scope = if all {
            Scope::Versioned
        } else {
            Scope::Origin(self.me)
        };
        self.registry
            .bucket_rows(bucket, scope, true)
            .iter()
            .map(Op::from)
            .collect()
    }

    /// Takes a reply on an outbound link.
    ///
    /// # Errors
    /// [`LinkError`] when the link is not in use or the peer breaks the protocol: drop the link.
    pub fn on_reply(
        &self,
        link: LinkId,
        reply: Reply,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(), LinkError> {
        let peer = self.outbound_peer(link).ok_or(LinkError::Closed)?;
        let mut outbound = peer.outbound.lock();
        if outbound.link != Some(link) {
            return Err(LinkError::Closed);
        }
        match reply {
            Reply::Ack { seq } => {
                if seq > outbound.sent {
                    return Err(LinkError::Protocol("acknowledged what was not sent"));
                }
                outbound.note_ack(seq, &peer.synced, now.fine);
                effects.push(Effect::Acked(peer.id, seq));
            }
            Reply::WantAll { bucket } => {
                if usize::from(bucket) >= N_BUCKETS {
                    return Err(LinkError::Protocol("bucket out of range"));
                }
                let ends = Some(self.graces.n_ends());
                let goes_on = std::mem::replace(&mut outbound.all_since, ends) == ends;
                outbound.all_bucket = Some(if goes_on { bucket } else { 0 });
                effects.push(Effect::LinkReady(peer.id));
            }
            Reply::Offer { rows } => {
                drop(outbound);
                self.take_offer(&peer, rows, now, effects);
            }
            Reply::Relay { origin, boot, root } => {
                let can_correct = self.can_correct(MemberId(origin), boot, root, now);
                if can_correct && outbound.wants.len() < MAX_WANTS {
                    outbound.wants.push_back(Reply::WantBuckets { origin });
                    effects.push(Effect::LinkReady(peer.id));
                }
            }
            want => {
                if outbound.wants.len() >= MAX_WANTS {
                    return Err(LinkError::Protocol("too many requests outstanding"));
                }
                outbound.has_differed |= matches!(want, Reply::WantBuckets { .. });
                outbound.wants.push_back(want);
                effects.push(Effect::LinkReady(peer.id));
            }
        }
        Ok(())
    }

    fn answer(&self, outbound: &mut Outbound, want: Reply) {
        match want {
            Reply::WantBuckets { origin } => {
                let digests = self.registry.digests().all(MemberId(origin));
                outbound.staged.push_back(Frame::Buckets { origin, digests });
            }
            Reply::WantIds { origin, buckets } => {
                for bucket in buckets.into_iter().filter(|b| usize::from(*b) < N_BUCKETS) {
                    let rows = self.registry.bucket_ids(usize::from(bucket), MemberId(origin));
                    // A bucket that does not fit is compared in part.
                    let rows = rows.into_iter().take(MAX_IDS).collect();
                    outbound.staged.push_back(Frame::Ids { origin, bucket, rows });
                }
            }
            Reply::WantRows { origin, bucket, rows } => {
                let ids: HashSet<u64> = rows.into_iter().collect();
                let mut rows = self
                    .registry
                    .rows_with_ids(usize::from(bucket), MemberId(origin), &ids);
                let is_own = MemberId(origin) == self.me;
                if !is_own
                    && outbound
                        .link
                        .is_some_and(|link| !self.hears_of_others(link.member))
                {
                    rows.retain(|op| op.version().is_some());
                }
                let of_connections = rows.iter().any(|op| op.version().is_none());
                for chunk in rows.chunks(MAX_ROWS) {
                    let rows = chunk.iter().map(Op::from).collect();
                    outbound.staged.push_back(match of_connections && !is_own {
                        true => Frame::RowsOf { origin, rows },
                        false => Frame::Rows { rows },
                    });
                }
            }
            Reply::Ack { .. } | Reply::WantAll { .. } | Reply::Offer { .. } | Reply::Relay { .. } => {}
        }
    }

    /// Rows that the peer holds and this member did not list. Newer ones are taken; for older ones the peer gets what
    /// this member knows instead. A row that this process wrote and holds no longer was removed: the removal
    /// is written again.
    fn take_offer(&self, peer: &Peer, rows: Vec<Op>, now: Now, effects: &mut Effects) {
        let mut back = Vec::new();
        for op in rows {
            let offered = row_op(op, peer.id);
            let Some(stamp) = offered.version() else {
                continue;
            };
            let ours = self.registry.known(&offered);
            let is_unknown = ours.is_none();
            let (log, changes) = (&self.log, &mut effects.changes);
            if let Some(ours) = ours.filter(|ours| ours.version() > Some(stamp)) {
                back.push(Op::from(&ours));
                continue;
            }
            match offered {
                RowOp::Versioned {
                    service, row, value, ..
                } => {
                    let held = Versioned { stamp, value };
                    if self.wrote(stamp) && is_unknown {
                        self.registry
                            .remove_again(&service, &row, &held, now, log, changes);
                    } else {
                        self.registry
                            .apply_versioned(&service, &row, held, now, log, changes);
                    }
                }
                RowOp::Record { key, record, .. } => {
                    self.registry.apply_record(&key, record, stamp, now, changes);
                }
                RowOp::Publish { .. } | RowOp::Withdraw { .. } | RowOp::ClientGone { .. } => continue,
            }
            self.counters.rows_repaired.fetch_add(1, Ordering::Relaxed);
        }
        if !back.is_empty() {
            peer.outbound.lock().staged.push_back(Frame::Rows { rows: back });
            effects.push(Effect::LinkReady(peer.id));
        }
    }
}

/// The planted stale row: another content under the same version.
fn make_stale(op: &mut Op) {
    if let Op::Publish { instance, .. } = op {
        instance.weight += 1.0;
    }
}
