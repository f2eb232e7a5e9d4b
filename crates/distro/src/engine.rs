//! The Distro engine: one member's side of the replication with all others.
//!
//! ```text
//!  registry writes -> log -> outbound link of each peer --frames--> inbound link at the peer -> its registry
//!                                   ^                                        |
//!                                   +---------------replies-----------------+
//!  probes -> member table -> ownership view, deaths -> orphans
//! ```
//! Pure: frames, replies, probe results and time come in; frames to send, replies and [`Effect`]s come out.
//! Lock order: one inbound or outbound link, then the start or the member table, then the registry's locks, then the
//! log's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rollcall_core::ownership::Mapper;
use rollcall_core::registry::change::ClientId;
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::{Latencies, LatencyCounts, MemberId, Millis, Now, Registry, Stamp};
use smol_str::SmolStr;

use crate::codec::{Message, OLDEST_FORMAT};
use crate::copy::Copying;
use crate::detector::{BRIEF, DetectorCounts, Pace};
use crate::effect::{Effect, Effects, Report};
use crate::faults::{Fault, Faults};
use crate::gate::{self, Contact, PeerProgress, Verdict};
use crate::graces::{Graces, Over};
use crate::inbound::Inbound;
use crate::log::Log;
use crate::members::{Death, MAX_MEMBERS, Member, MemberTable, OwnershipView, ProbeResult};
use crate::message::{
    Brief, ColdStart, Followed, Frame, FullProbe, LinkHello, LinkRefusal, Probe, State, check_names,
};
use crate::outbound::Outbound;
use crate::repairs::{Repair, Repairs};

/// A tick that comes this late means that this process stood still: what it has not heard meanwhile says nothing.
pub(crate) const STALL: Millis = Millis(2_000);
/// After standing still for this long the others may have counted this member as dead, and its clients may have moved:
/// it serves no list before it has caught up.
const LONG_STALL: Millis = Millis(4_000);
/// Rows that become orphans, live again or are dropped in one tick, about: the end of a fleet is a little work many times.
pub const ROWS_AT_A_TIME: usize = 256;

/// A node that is no member counts as there for so long after it asked.
const STRANGER_FOR: Millis = Millis::secs(10);

/// Settings of the engine.
#[derive(Clone)]
pub struct DistroConfig {
    /// Name of the cluster; members with another are refused.
    pub cluster: String,
    /// This member's advertised address.
    pub address: SmolStr,
    /// All members' advertised addresses at the start, this one's included.
    pub members: Vec<SmolStr>,
    /// Rule of ownership.
    pub mapper: Arc<dyn Mapper>,
    /// Operations kept for members that fall behind.
    pub log_capacity: usize,
    /// Period of probes.
    pub probe_interval: Millis,
    /// Periods without an answer to anyone that make a death.
    pub probe_misses: u32,
    /// The newest format version to speak; below [`FORMAT`](crate::codec::FORMAT) this member behaves as one of an earlier version does.
    pub newest_format: u8,
    /// Rows that become orphans, live again or are dropped in one tick, about; [`ROWS_AT_A_TIME`] but in tests.
    pub rows_at_a_time: usize,
    /// Period of digests.
    pub verify_interval: Millis,
    /// Longest wait for all data at start.
    pub gate_limit: Millis,
    /// Grace of a gone member's rows.
    pub orphan_gone: Millis,
    /// Grace of an unreachable member's rows.
    pub orphan_unreachable: Millis,
    /// How much longer rows stay whose client returns slowly.
    pub orphan_slow_extra: Millis,
    /// Period of the copy of all rows on disk, which is offered after a cold start; 0 for none.
    pub copy_period: Millis,
    /// Planted faults.
    pub faults: Faults,
}

/// Identity of one link; a link that comes later has a greater one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId {
    /// The member at the other end.
    pub member: MemberId,
    number: u64,
}

/// Counters of the engine.
#[derive(Debug, Default)]
pub struct DistroCounters {
    /// Digests that differed from what was held here.
    pub digests_differed: AtomicU64,
    /// Digests that agreed.
    pub digests_agreed: AtomicU64,
    /// Rows that a repair brought or removed.
    pub rows_repaired: AtomicU64,
    /// Gaps in a peer's log that digests had to repair.
    pub log_gaps: AtomicU64,
    /// Relayed beats that were dropped because the owner's link was full.
    pub beats_dropped: AtomicU64,
    /// Orphans dropped at the end of their grace.
    pub orphans_dropped: AtomicU64,
    /// Times this process stood still for so long that it had to catch up before it served again.
    pub stalls: AtomicU64,
    /// The gate was opened by its limit (0 or 1).
    pub gate_limit_reached: AtomicU64,
    /// Rows of members out of reach that others brought or had removed.
    pub rows_relayed: AtomicU64,
}

/// Which process of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) epoch: u64,
    pub(crate) boot: u64,
}

/// Links with one peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) outbound: Mutex<Outbound>,
    pub(crate) inbound: Mutex<Inbound>,
    /// How far this member's log is followed here. The innermost of all locks.
    pub(crate) followed: Mutex<Followed>,
    /// When a digest of the member last agreed with what is held of it here, as monotonic time; 0 for never.
    pub(crate) agreed: AtomicU64,
    /// Time from a write of this member until the peer has said that it is applied there.
    pub(crate) synced: Latencies,
}

/// How the replication with one peer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// The link to the peer is up.
    pub is_up: bool,
    /// The link from the peer is up.
    pub is_followed: bool,
    /// Operations of this member that the peer has not acknowledged.
    pub n_behind: u64,
    /// Frames that are made and wait for the stream.
    pub n_frames: usize,
    /// Questions of the peer that wait for their answer.
    pub n_questions: usize,
    /// Beats that wait to be told to the peer.
    pub n_beats: usize,
    /// Replies to the peer that wait for the stream.
    pub n_replies: usize,
    /// Time from a write of this member until the peer has said that it is applied there.
    pub synced: LatencyCounts,
}

impl Peer {
    pub(crate) fn new(id: MemberId, known: Option<Process>) -> Self {
        Peer {
            id,
            outbound: Mutex::default(),
            inbound: Mutex::new(Inbound::of(known)),
            followed: Mutex::default(),
            agreed: AtomicU64::new(0),
            synced: Latencies::default(),
        }
    }
}

pub(crate) type Peers = BTreeMap<MemberId, Arc<Peer>>;

/// One member's side of the replication.
pub struct Engine {
    pub(crate) config: DistroConfig,
    pub(crate) me: MemberId,
    /// Tells this process, and this stay in the list, from others of this member.
    boot: AtomicU64,
    n_told: AtomicU64,
    pub(crate) registry: Arc<Registry>,
    pub(crate) log: Log,
    /// The members of the table, replaced together with it.
    pub(crate) peers: RwLock<Arc<Peers>>,
    /// Processes of members that left.
    pub(crate) former: Mutex<BTreeMap<MemberId, Process>>,
    pub(crate) counters: DistroCounters,
    epoch: AtomicU64,
    n_connections: AtomicU32,
    n_sdk_connections: AtomicU32,
    pub(crate) members: Mutex<MemberTable>,
    pub(crate) is_unlisted: AtomicBool,
    view: RwLock<Arc<OwnershipView>>,
    is_ready: AtomicBool,
    /// Hybrid time at which this process became ready for the first time, 0 before: what it wrote itself is newer.
    first_ready: AtomicU64,
    is_leaving: AtomicBool,
    start: Mutex<Start>,
    next_link: AtomicU64,
    last_tick: AtomicU64,
    /// When it last went on after standing still for long, 0 for never.
    went_on: AtomicU64,
    /// When it last reached a member again that it had not reached, 0 for never.
    reached: AtomicU64,
    /// Some member lives and is reached by others only.
    pub(crate) is_any_cut: AtomicBool,
    /// Something that this member's writes need does not work.
    is_impaired: AtomicBool,
    /// Nodes of this cluster that no member here lists, and when each last asked.
    strangers: Mutex<BTreeMap<MemberId, Millis>>,
    pub(crate) graces: Graces,
    pub(crate) repairs: Repairs,
    pub(crate) copying: Mutex<Copying>,
}

/// Progress of the start.
#[derive(Debug)]
pub(crate) struct Start {
    began: Millis,
    /// The member that the "all" load runs from, with its inbound link.
    pub(crate) all_from: Option<(MemberId, LinkId)>,
    /// First bucket of the "all" load that is missing.
    pub(crate) all_bucket: u16,
    pub(crate) all_loaded: bool,
    /// How far the logs of all members have to be followed, to hold what the "all" load left out.
    pub(crate) must_follow: Vec<Followed>,
    /// A member died whose rows had not all come: by then the others have found out too, and tell its rows as orphans.
    load_again: Option<Millis>,
    /// The limit has passed, and the gate stays shut.
    is_barred: bool,
}

impl Engine {
    /// The engine of a process that starts now. `boot` is random and tells this process from others of its member.
    pub fn new(config: DistroConfig, registry: Arc<Registry>, boot: u64, now: Now) -> Self {
        let me = MemberId::of(&config.address);
        let pace = Pace {
            interval: config.probe_interval,
            misses: config.probe_misses,
            seed: boot,
        };
        let members = MemberTable::new(&config.address, boot, &config.members, pace);
        let peers: Peers = members
            .peers()
            .iter()
            .map(|member| (member.id, Arc::new(Peer::new(member.id, None))))
            .collect();
        let is_alone = peers.is_empty() && config.copy_period == Millis(0);
        let is_ready = is_alone || config.faults.has(Fault::NoGate);
        let mapper = config.mapper.clone();
        let view = OwnershipView::new((me, is_ready, false), &members, mapper, None, now.mono);
        let epoch = if config.faults.has(Fault::ReusedEpoch) {
            1
        } else {
            now.wall.0.max(1)
        };
        Engine {
            me,
            boot: AtomicU64::new(boot),
            n_told: AtomicU64::new(0),
            log: Log::new(me, if peers.is_empty() { 0 } else { config.log_capacity }),
            peers: RwLock::new(Arc::new(peers)),
            former: Mutex::default(),
            is_unlisted: AtomicBool::new(false),
            counters: DistroCounters::default(),
            epoch: AtomicU64::new(epoch),
            n_connections: AtomicU32::new(0),
            n_sdk_connections: AtomicU32::new(0),
            members: Mutex::new(members),
            view: RwLock::new(Arc::new(view)),
            is_ready: AtomicBool::new(is_ready),
            first_ready: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
            start: Mutex::new(Start {
                began: now.mono,
                all_from: None,
                all_bucket: 0,
                all_loaded: false,
                must_follow: Vec::new(),
                load_again: None,
                is_barred: false,
            }),
            next_link: AtomicU64::new(1),
            graces: Graces::new(config.orphan_slow_extra),
            repairs: Repairs::default(),
            copying: Mutex::default(),
            last_tick: AtomicU64::new(now.mono.0),
            went_on: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            is_any_cut: AtomicBool::new(false),
            is_impaired: AtomicBool::new(false),
            strangers: Mutex::default(),
            registry,
            config,
        }
    }

    /// This member.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// This member's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn boot(&self) -> u64 {
        self.boot.load(Ordering::Relaxed)
    }

    /// From now on this member is another process to the others: what they hold of it are orphans, and stay as such
    /// until their publishers show up anywhere.
    pub(crate) fn change_identity(&self, effects: &mut Effects) {
        self.boot.fetch_add(1, Ordering::Relaxed);
        self.members.lock().boot = self.boot();
        self.raise_epoch(self.epoch() + 1, effects);
    }

    /// Forgets that it was ever ready, and what it has loaded.
    pub(crate) fn forget_start(&self) {
        self.first_ready.store(0, Ordering::Relaxed);
        self.load_all_again();
    }

    /// The load of all members' rows begins again with whatever member is ready.
    pub(crate) fn load_all_again(&self) {
        self.with_start(|start| {
            start.all_from = None;
            start.all_bucket = 0;
            start.all_loaded = false;
            start.must_follow.clear();
            start.load_again = None;
        });
    }

    /// The log of this member's writes; the journal to hand to the registry.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Counters.
    pub fn counters(&self) -> &DistroCounters {
        &self.counters
    }

    /// True when reads may be served and services owned.
    pub fn is_ready(&self) -> bool {
        self.is_past_gate() && !self.is_leaving() && !self.is_unlisted()
    }

    /// True when everything was here once, and nothing has made this member doubt that it still is.
    pub(crate) fn is_past_gate(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    /// All peers at this moment.
    pub(crate) fn peers(&self) -> Arc<Peers> {
        self.peers.read().clone()
    }

    pub(crate) fn peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.peers.read().get(&id).cloned()
    }

    /// True when this process wrote the row that bears this stamp, and not an earlier process of the same member.
    pub(crate) fn wrote(&self, stamp: Stamp) -> bool {
        stamp.member == self.me && self.is_past_gate() && self.is_since_first_ready(stamp.time)
    }

    /// True when this process holds or held the connection, and not an earlier process of the same member.
    pub(crate) fn has_opened(&self, client: ClientId) -> bool {
        client.origin == self.me && self.is_since_first_ready(client.plain_number())
    }

    fn is_since_first_ready(&self, time: u64) -> bool {
        let first = self.first_ready.load(Ordering::Relaxed);
        first > 0 && time > first
    }

    /// The same at this very moment: also false when this process has just stood still and does not know it yet.
    pub fn is_ready_at(&self, now: Now) -> bool {
        self.is_ready() && self.is_awake_at(now)
    }

    /// True when the lists may be shown that are held here: by a ready member, and by one that is unlisted and has
    /// nothing newer.
    pub fn is_readable_at(&self, now: Now) -> bool {
        self.is_past_gate() && !self.is_leaving() && self.is_awake_at(now)
    }

    /// When this member last reached another one again that it had not reached; 0 for never.
    pub fn reached_again(&self) -> Millis {
        Millis(self.reached.load(Ordering::Relaxed))
    }

    /// True when this process has stood still for so long that clients may have given it up, and has gone on for less
    /// than `within` since, or does not know it yet.
    pub fn has_stood_still(&self, now: Now, within: Millis) -> bool {
        let last_tick = Millis(self.last_tick.load(Ordering::Relaxed));
        let went_on = Millis(self.went_on.load(Ordering::Relaxed));
        now.mono.since(last_tick) > LONG_STALL || (went_on.0 > 0 && now.mono.since(went_on) <= within)
    }

    fn is_awake_at(&self, now: Now) -> bool {
        let last = Millis(self.last_tick.load(Ordering::Relaxed));
        now.mono.since(last) <= LONG_STALL || self.peers().is_empty()
    }

    /// True once the member has begun to leave.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Who owns what now.
    pub fn view(&self) -> Arc<OwnershipView> {
        self.view.read().clone()
    }

    /// The other members, guests included, sorted by address, with what is known of them.
    pub fn members(&self) -> Vec<Member> {
        self.members.lock().peers().to_vec()
    }

    /// How the replication with each peer stands, sorted by address.
    pub fn peer_statuses(&self) -> Vec<(SmolStr, PeerStatus)> {
        let (members, peers) = (self.members().into_iter(), self.peers());
        let status = |peer: &Arc<Peer>| {
            let (is_followed, n_replies) = peer.inbound.lock().backlog();
            let outbound = peer.outbound.lock();
            PeerStatus {
                is_followed,
                n_replies,
                synced: peer.synced.counts(),
                ..outbound.backlog(self.log.head())
            }
        };
        members
            .filter_map(|member| Some((member.address, status(peers.get(&member.id)?))))
            .collect()
    }

    /// What this member says when it dials another.
    pub fn hello(&self) -> LinkHello {
        LinkHello {
            cluster: self.config.cluster.clone(),
            mapper: self.config.mapper.name().to_owned(),
            formats: (OLDEST_FORMAT, self.config.newest_format),
            member: self.config.address.to_string(),
            epoch: self.epoch(),
            boot: self.boot(),
        }
    }

    /// Notes how many connections of clients there are, to be told in probes.
    pub fn note_connections(&self, n_connections: usize, n_sdk: usize) {
        let told = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.n_connections.store(told(n_connections), Ordering::Relaxed);
        self.n_sdk_connections.store(told(n_sdk), Ordering::Relaxed);
    }

    /// What this member says of itself.
    fn state(&self, list: u64, incarnation: u32) -> State {
        State {
            epoch: self.epoch(),
            boot: self.boot(),
            incarnation,
            ready: self.is_ready(),
            leaving: self.is_leaving(),
            impaired: self.is_impaired(),
            rows: self.registry.n_rows() as u64,
            connections: self.n_connections.load(Ordering::Relaxed),
            sdk_connections: self.n_sdk_connections.load(Ordering::Relaxed),
            count: self.n_told.fetch_add(1, Ordering::Relaxed),
            list,
        }
    }

    /// What this member says in a question or an answer of format 2.
    fn full_probe(&self, members: &MemberTable) -> FullProbe {
        let state = self.state(members.list_hash(), 0);
        FullProbe {
            cluster: self.config.cluster.clone(),
            mapper: self.config.mapper.name().to_owned(),
            member: self.config.address.to_string(),
            epoch: state.epoch,
            boot: state.boot,
            ready: state.ready,
            leaving: state.leaving,
            rows: state.rows,
            connections: state.connections,
            sdk_connections: state.sdk_connections,
            count: state.count,
            members: members.list().iter().map(ToString::to_string).collect(),
        }
    }

    fn brief(&self, to: MemberId, members: &mut MemberTable, now: Now) -> Brief {
        let bare = self.bare_brief(members, now);
        members.brief_for(to, bare)
    }

    /// What this member says of itself in a question or an answer of format 3, and nothing of others.
    fn bare_brief(&self, members: &MemberTable, now: Now) -> Brief {
        Brief {
            cluster: self.config.cluster.clone(),
            mapper: self.config.mapper.name().to_owned(),
            member: self.config.address.to_string(),
            state: self.state(members.list_hash(), members.incarnation()),
            time: self.registry.clock().wall(now.wall).0,
            knows: 0,
            members: None,
            ask: Vec::new(),
            found: Vec::new(),
            news: Vec::new(),
        }
    }

    /// Takes at least this epoch. Rows and log stay: it is the same process.
    pub(crate) fn raise_epoch(&self, at_least: u64, effects: &mut Effects) {
        if self.config.faults.has(Fault::ReusedEpoch) {
            return;
        }
        if self.epoch.fetch_max(at_least, Ordering::Relaxed) < at_least {
            self.registry.clock().observe(at_least << 16);
            for peer in self.peers().keys() {
                effects.push(Effect::Redial(*peer));
            }
        }
    }

    pub(crate) fn new_link(&self, member: MemberId) -> LinkId {
        LinkId {
            member,
            number: self.next_link.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn with_start<R>(&self, f: impl FnOnce(&mut Start) -> R) -> R {
        f(&mut self.start.lock())
    }

    pub(crate) fn has_alive(&self, id: MemberId) -> bool {
        id == self.me || self.members.lock().peer(id).is_some_and(Member::is_reachable)
    }

    /// What digests found and had mended, the newest last; a bounded number.
    pub fn repairs(&self) -> Vec<Repair> {
        self.repairs.all()
    }

    /// Does what is due: probes, digests, relayed beats, ends of graces, the gate. Returns when to come back.
    pub fn tick(&self, now: Now, effects: &mut Effects) -> Millis {
        self.notice_stall(now, effects);
        self.members.lock().tick(now.mono);
        self.carry_out(false, now, effects);
        let mut next = self.members.lock().plan_tick();
        for peer in self.peers().values() {
            if let Some(due) = peer.outbound.lock().next_due(self.config.verify_interval) {
                if due <= now.mono {
                    effects.push(Effect::LinkReady(peer.id));
                } else {
                    next = next.min(due);
                }
            }
        }
        if let Some(due) = self.step_graces(now, effects) {
            next = next.min(due);
        }
        self.step_gate(now, effects);
        self.tick_copy(now, effects);
        next
    }

    /// Wakes the links if this member has written. The node calls it once, at the end of each of its calls, when no
    /// link is locked.
    pub fn signal_writes(&self, now: Now, effects: &mut Effects) {
        if self.log.take_dirty() {
            let head = self.log.head();
            for peer in self.peers().values() {
                let mut outbound = peer.outbound.lock();
                if outbound.is_up() {
                    outbound.note_write(head, now.fine);
                    effects.push(Effect::LinkReady(peer.id));
                }
            }
        }
    }

    /// Begins to leave: owns nothing from now on and says so to everyone at once.
    pub fn start_leaving(&self, now: Now, effects: &mut Effects) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.renew_view(now.mono);
        self.probe_all(now, effects);
    }

    /// Something that this member's writes need does not work, or works again: others own its services meanwhile.
    pub fn set_impaired(&self, is_impaired: bool, now: Now, effects: &mut Effects) {
        if self.is_impaired.swap(is_impaired, Ordering::Relaxed) != is_impaired {
            self.renew_view(now.mono);
            self.probe_all(now, effects);
            effects.push(Effect::Report(Report::Impaired(is_impaired)));
        }
    }

    /// True while this member says that its writes hang.
    pub fn is_impaired(&self) -> bool {
        self.is_impaired.load(Ordering::Relaxed)
    }

    // === probes ===

    /// The question that this member asks at its own advertised address, and what a process of it answers there. It
    /// tells of no other member, so that asking changes nothing.
    pub fn own_probe(&self, now: Now) -> Probe {
        let members = self.members.lock();
        Probe::Brief(Box::new(Brief {
            knows: members.list_hash(),
            ..self.bare_brief(&members, now)
        }))
    }

    /// Takes the result of a probe that this engine asked for.
    pub fn probe_done(&self, to: MemberId, result: ProbeResult, now: Now, effects: &mut Effects) {
        let result = match result {
            // Whoever answers in another cluster's name is not the member that was asked for.
            ProbeResult::Answer(said) if self.check_probe(&said).is_err() => ProbeResult::Missed,
            ProbeResult::Answer(_) if self.is_kept_dead(to) => ProbeResult::Missed,
            result => result,
        };
        if let ProbeResult::Answer(said) = &result {
            self.follow_clock(said, now);
            self.note_cold(said);
        }
        self.members.lock().note(to, &result, now.mono);
        self.carry_out(true, now, effects);
    }

    /// The planted [`Fault::NoReturn`].
    fn is_kept_dead(&self, id: MemberId) -> bool {
        let is_unreachable = |m: &Member| m.death == Some(Death::Unreachable);
        self.config.faults.has(Fault::NoReturn) && self.members.lock().peer(id).is_some_and(is_unreachable)
    }

    /// Takes a probe of another member and answers it, in the format of the question. One that comes in this member's
    /// own name is answered and not heeded: it is this process, or another one, that looks who is at the address.
    ///
    /// # Errors
    /// [`LinkRefusal`] when the sender is not a member of this cluster.
    pub fn on_probe(&self, probe: &Probe, now: Now, effects: &mut Effects) -> Result<Probe, LinkRefusal> {
        self.check_probe(probe)?;
        let from = MemberId::of(probe.member());
        if from == self.me && matches!(probe, Probe::Brief(_)) {
            return Ok(self.own_probe(now));
        }
        if self.peer(from).is_none() {
            self.note_stranger(from, now.mono);
            return Err(LinkRefusal::NotAMember {
                member: probe.member().to_owned(),
            });
        }
        self.follow_clock(probe, now);
        self.note_cold(probe);
        self.members.lock().note_said(probe, now.mono);
        self.carry_out(false, now, effects);
        let mut members = self.members.lock();
        Ok(match probe {
            Probe::Full(_) => Probe::Full(self.full_probe(&members)),
            Probe::Brief(_) => Probe::Brief(Box::new(self.brief(from, &mut members, now))),
        })
    }

    /// The strangers that have asked a short time ago; older ones are forgotten.
    fn strangers(&self, now: Millis) -> MutexGuard<'_, BTreeMap<MemberId, Millis>> {
        let mut strangers = self.strangers.lock();
        strangers.retain(|_, asked| now.since(*asked) < STRANGER_FOR);
        strangers
    }

    fn note_stranger(&self, id: MemberId, now: Millis) {
        let mut strangers = self.strangers(now);
        if strangers.len() < MAX_MEMBERS {
            strangers.insert(id, now);
        }
    }

    /// How many nodes of this cluster ask this member although no member here lists them: they may go on as a cluster of
    /// their own.
    pub fn n_strangers(&self, now: Millis) -> usize {
        self.strangers(now).len()
    }

    /// Carries out what the detector has decided. `may_turn`: there may be other members than before in any case.
    pub(crate) fn carry_out(&self, may_turn: bool, now: Now, effects: &mut Effects) {
        let steps = self.members.lock().take_steps();
        for (id, death) in &steps.died {
            self.note_lost(*id, *death, now.mono);
        }
        if may_turn
            || steps.is_news
            || !steps.died.is_empty()
            || !steps.back.is_empty()
            || !steps.cut.is_empty()
        {
            self.take_turnover(now, effects);
        }
        if !steps.back.is_empty() || !steps.reached.is_empty() {
            self.reached.store(now.mono.0, Ordering::Relaxed);
        }
        for id in steps.back {
            effects.push(Effect::Report(Report::MemberBack(id)));
            self.prolong_grace(id, now.mono);
        }
        for id in steps.cut {
            effects.push(Effect::Report(Report::MemberCut(id)));
        }
        for id in steps.reached {
            // What its link holds was lost on the way. The system tries again after ever longer pauses: a new link is
            // faster.
            effects.push(Effect::Redial(id));
        }
        for (id, death) in steps.died {
            effects.push(Effect::Report(Report::MemberDead(id, death)));
            self.begin_grace(id, death, now, effects);
        }
        for id in steps.probes {
            self.probe(id, now, effects);
        }
        if self.members.lock().needs_tick() {
            effects.push(Effect::Wake);
        }
    }

    fn follow_clock(&self, said: &Probe, now: Now) {
        if let Probe::Brief(brief) = said {
            self.registry.clock().follow(Millis(brief.time), now.wall);
        }
    }

    fn check_probe(&self, probe: &Probe) -> Result<(), LinkRefusal> {
        if matches!(probe, Probe::Brief(_)) && self.config.newest_format < BRIEF {
            return Err(LinkRefusal::Format {
                theirs: (BRIEF, BRIEF),
                ours: (OLDEST_FORMAT, self.config.newest_format),
            });
        }
        let ours = (self.config.cluster.as_str(), self.config.mapper.name());
        check_names(ours, probe.names())
    }

    /// A request to a member failed: do not count on it until it answers a probe.
    pub fn suspect(&self, id: MemberId) {
        self.members.lock().suspect(id);
    }

    /// True when some member that answered its last probe could have a copy soon.
    pub fn has_trusted_peer(&self) -> bool {
        self.members.lock().peers().iter().any(Member::is_trusted)
    }

    /// True when the member answered its last probe.
    pub fn is_trusted(&self, id: MemberId) -> bool {
        self.members.lock().peer(id).is_some_and(Member::is_trusted)
    }

    /// Asks a member for its state.
    pub(crate) fn probe(&self, to: MemberId, now: Now, effects: &mut Effects) {
        let mut members = self.members.lock();
        members.note_sent(to, now.mono);
        let probe = match members.format(to) >= BRIEF {
            true => Probe::Brief(Box::new(self.brief(to, &mut members, now))),
            false => Probe::Full(self.full_probe(&members)),
        };
        effects.push(Effect::Probe(to, probe));
    }

    /// Tells everyone at once what others act upon.
    pub(crate) fn probe_all(&self, now: Now, effects: &mut Effects) {
        for peer in self.peers().keys() {
            self.probe(*peer, now, effects);
        }
    }

    /// A link with the member broke, or something else lets doubt that it lives: probes it now.
    pub(crate) fn doubt(&self, id: MemberId, now: Now, effects: &mut Effects) {
        {
            let mut members = self.members.lock();
            members.note_time(now.mono);
            members.doubt(id);
            members.look(now.mono);
        }
        self.carry_out(false, now, effects);
    }

    /// What the failure detector has counted.
    pub fn detector_counts(&self) -> DetectorCounts {
        self.members.lock().detector_counts()
    }

    fn notice_stall(&self, now: Now, effects: &mut Effects) {
        let last = Millis(self.last_tick.swap(now.mono.0, Ordering::Relaxed));
        let gap = now.mono.since(last);
        if gap > STALL {
            let mut view = self.view.write();
            *view = Arc::new(view.renewed(now.mono));
        }
        if gap > LONG_STALL {
            self.went_on.store(now.mono.0, Ordering::Relaxed);
        }
        let takes_part = !self.peers().is_empty() && !self.is_unlisted() && !self.is_leaving();
        if gap > LONG_STALL && takes_part {
            let was_ready = self.is_ready();
            self.close_gate(now.mono);
            // Orphans, too: what a process had published and left meanwhile was never told to this one.
            self.load_all_again();
            if was_ready {
                self.counters.stalls.fetch_add(1, Ordering::Relaxed);
                self.renew_view(now.mono);
                effects.push(Effect::Report(Report::CatchingUp));
            }
        }
    }

    /// Serves nothing until every live member's log has been followed to its end again.
    pub(crate) fn close_gate(&self, now: Millis) {
        self.is_ready.store(false, Ordering::Relaxed);
        for peer in self.peers().values() {
            peer.inbound.lock().distrust();
        }
        self.restart_limit(now);
    }

    /// The longest wait for all data begins anew.
    fn restart_limit(&self, now: Millis) {
        self.with_start(|start| {
            start.began = now;
            start.is_barred = false;
        });
    }

    pub(crate) fn renew_view(&self, now: Millis) {
        let members = self.members.lock();
        let is_any_cut = members.peers().iter().any(|m| m.relay().is_some());
        self.is_any_cut.store(is_any_cut, Ordering::Relaxed);
        let former = self.view();
        let since = match self.config.faults.has(Fault::NoTakeoverGrace) {
            true => Millis(0),
            false => now,
        };
        let me = (self.me, self.is_ready(), self.is_impaired());
        let mapper = self.config.mapper.clone();
        let view = OwnershipView::new(me, &members, mapper, Some(&former), since);
        *self.view.write() = Arc::new(view);
    }

    // === orphans ===

    /// The longest that any orphan stays.
    pub(crate) fn longest_grace(&self) -> Millis {
        self.config.orphan_unreachable + self.config.orphan_slow_extra
    }

    /// Before the gate: a member is dead whose rows had not all come. The others tell them as orphans once they have
    /// found out too, so the load of all rows begins again then.
    pub(crate) fn note_lost(&self, id: MemberId, death: Death, now: Millis) {
        let is_here = |peer: Arc<Peer>| peer.inbound.lock().is_current();
        if self.is_past_gate() || self.peer(id).is_none_or(is_here) {
            return;
        }
        let periods = match death {
            Death::Gone => 1,
            Death::Unreachable => u64::from(self.config.probe_misses),
        };
        self.load_again_after(periods, now);
    }

    /// The load of all members' rows begins again some periods of probes later.
    pub(crate) fn load_again_after(&self, periods: u64, now: Millis) {
        let due = now + Millis(periods * self.config.probe_interval.0);
        self.with_start(|start| start.load_again = start.load_again.max(Some(due)));
    }

    /// Before the gate: a member is followed here as this process. If the source of the load of all rows followed another
    /// one, the rows of the former were no orphans there, and the load begins again when they must be. Whoever never hears
    /// of the later process does not hold the gate for longer than its limit.
    pub(crate) fn note_process(&self, here: Followed, now: Millis) {
        let is_other = |f: &Followed| f.member == here.member && f.boot != 0 && f.boot != here.boot;
        let is_behind = self.with_start(|start| {
            now.since(start.began) < self.config.gate_limit && start.must_follow.iter().any(is_other)
        });
        if is_behind && here.boot != 0 && !self.is_past_gate() {
            self.load_again_after(1, now);
        }
    }

    pub(crate) fn begin_grace(&self, id: MemberId, death: Death, now: Now, effects: &mut Effects) {
        let grace = match death {
            _ if self.config.faults.has(Fault::NoOrphanGrace) => Millis(0),
            Death::Gone => self.config.orphan_gone,
            Death::Unreachable => self.config.orphan_unreachable,
        };
        let peer = self.peer(id);
        if let Some(peer) = &peer {
            // From here on this member cannot relay what the other one has: it holds no live rows of it.
            peer.agreed.store(0, Ordering::Relaxed);
        }
        let fleet = self.registry.fleet_of(id);
        let has_orphans = !fleet.is_empty();
        self.graces.begin_orphans(id, fleet, now.mono + grace, false);
        effects.push(Effect::Wake);
        if let Some(peer) = peer {
            let mut inbound = peer.inbound.lock();
            inbound.has_orphans |= has_orphans;
            // What still comes by its stream would make rows of a dead member live. It dials again, and then all of
            // them do.
            inbound.close();
        }
        self.forget_all_load(id);
    }

    /// The process is there whose rows are held as orphans: they live again as soon as its link carries them, which
    /// may be later than the end of the grace of its death.
    fn prolong_grace(&self, id: MemberId, now: Millis) {
        let Some(peer) = self.peer(id) else { return };
        let is_same_process = {
            let inbound = peer.inbound.lock();
            let members = self.members.lock();
            let boot = members
                .peer(id)
                .and_then(|m| m.said.as_ref())
                .map(|said| said.boot);
            boot.is_some() && boot == inbound.known_boot()
        };
        if is_same_process {
            self.graces.prolong(id, now + self.config.orphan_unreachable);
        }
    }

    /// Lets some rows become orphans or live again, and drops some whose grace is over. Returns when to go on.
    fn step_graces(&self, now: Now, effects: &mut Effects) -> Option<Millis> {
        self.turn_rows(self.config.rows_at_a_time, now, effects);
        let due = self.end_graces(now, effects);
        match self.graces.is_any_turning() {
            true => Some(now.mono),
            false => due,
        }
    }

    fn turn_rows(&self, limit: usize, now: Now, effects: &mut Effects) {
        let changes = &mut effects.changes;
        self.graces.step_turning(|fleet, is_orphan| {
            self.registry.set_orphans(fleet, is_orphan, limit, now, changes)
        });
    }

    /// Lets all rows become orphans, or live again, that are about to.
    pub(crate) fn turn_all_rows(&self, now: Now, effects: &mut Effects) {
        while self.graces.is_any_turning() {
            self.turn_rows(usize::MAX, now, effects);
        }
    }

    fn end_graces(&self, now: Now, effects: &mut Effects) -> Option<Millis> {
        if self.is_unlisted() || self.config.faults.has(Fault::OrphansForEver) {
            return None;
        }
        for Over { member, with_slow } in self.graces.take_over(now.mono) {
            let fleet = match with_slow {
                true => self.registry.fleet_of(member),
                false => self.registry.quick_fleet_of(member),
            };
            self.graces.begin_drop(member, fleet);
        }
        let drop = |fleet: &mut _| {
            let changes = &mut effects.changes;
            let limit = self.config.rows_at_a_time;
            self.registry.drop_orphans(fleet, limit, now, changes)
        };
        if let Some((member, n_dropped)) = self.graces.step_dropping(drop) {
            if let Some(peer) = self.peer(member) {
                let mut inbound = peer.inbound.lock();
                inbound.is_incomplete |= n_dropped > 0 && inbound.has_orphans;
                inbound.has_orphans &= !self.graces.is_over(member);
            }
            self.counters
                .orphans_dropped
                .fetch_add(n_dropped as u64, Ordering::Relaxed);
        }
        match self.graces.is_dropping() {
            true => Some(now.mono),
            false => self.graces.next_due(),
        }
    }

    // === the gate ===

    /// Looks whether the gate can open now.
    pub fn step_gate(&self, now: Now, effects: &mut Effects) {
        // Those that do not list this member let it have nothing, however long it waits. What a process that has just stood
        // still holds is old, though it may look complete until its next tick.
        if self.is_past_gate() || self.is_leaving() || self.is_unlisted() || !self.is_awake_at(now) {
            return;
        }
        if self.with_start(|start| start.load_again.is_some_and(|due| due <= now.mono)) {
            self.load_all_again();
        }
        let progress: Vec<_> = self.members().iter().filter_map(|m| self.progress(m)).collect();
        let (verdict, waited) = self.with_start(|start| {
            let waited = now.mono.since(start.began);
            let all_loaded = start.all_loaded && start.load_again.is_none();
            let verdict = gate::judge(&progress, all_loaded, waited, self.config.gate_limit);
            let is_shut = matches!(verdict, Verdict::Closed | Verdict::LoadAllFrom(_));
            if is_shut && waited >= self.config.gate_limit && !std::mem::replace(&mut start.is_barred, true) {
                effects.push(Effect::Report(Report::Barred));
            }
            (verdict, waited)
        });
        match verdict {
            Verdict::Closed => {}
            Verdict::LoadAllFrom(source) => self.load_all_from(source, effects),
            Verdict::Open | Verdict::OpenByLimit => {
                if self.has_settled_copies(&progress, waited, now, effects) {
                    self.open_gate(verdict == Verdict::Open, now, effects);
                }
            }
        }
    }

    fn progress(&self, member: &Member) -> Option<PeerProgress> {
        let peer = self.peer(member.id)?;
        let contact = match (member.death, &member.said) {
            (Some(Death::Gone), _) => Contact::Refused,
            _ if member.differs => Contact::Differs,
            _ if member.disowns => Contact::Disowns,
            (Some(Death::Unreachable), _) => Contact::Lost,
            (None, None) => Contact::Unknown,
            (None, Some(said)) if said.leaving => Contact::Loading,
            (None, Some(said)) if said.ready => Contact::Ready,
            (None, Some(_)) => Contact::Loading,
        };
        let has_agreed = peer.outbound.lock().is_up();
        let (is_current, told) = {
            let inbound = peer.inbound.lock();
            (inbound.is_current(), inbound.cold)
        };
        // A member that can tell does so first of all on its link.
        let tells = Frame::Starting(ColdStart::Reading).since() <= member.format;
        let cold = told.or(tells.then_some(ColdStart::Reading));
        let is_loaded = has_agreed && is_current && self.has_followed(&peer);
        Some(PeerProgress {
            id: member.id,
            contact,
            is_loaded,
            cold,
        })
    }

    /// True when the log of a member's process is followed as far as the source of the "all" load had followed it.
    fn has_followed(&self, peer: &Peer) -> bool {
        let here = *peer.followed.lock();
        self.with_start(|start| {
            let is_same = |f: &&Followed| f.member == here.member && f.boot == here.boot;
            let needed = start.must_follow.iter().find(is_same);
            needed.is_none_or(|needed| needed.seq <= here.seq)
        })
    }

    fn load_all_from(&self, source: MemberId, effects: &mut Effects) {
        let Some(peer) = self.peer(source) else {
            return;
        };
        // Only a source that has agreed to this member's epoch counts the rows of its former process as orphans.
        if !peer.outbound.lock().is_up() {
            return;
        }
        let mut inbound = peer.inbound.lock();
        let Some(link) = inbound.link else { return };
        let bucket = self.with_start(|start| {
            if start.all_from.is_some() {
                return None;
            }
            start.all_from = Some((source, link));
            Some(start.all_bucket.min(N_BUCKETS as u16 - 1))
        });
        if let Some(bucket) = bucket {
            inbound.want_all(bucket);
            effects.push(Effect::RepliesReady(source));
        }
    }

    /// Only the first time counts: what came before it may be an earlier process's.
    pub(crate) fn note_ready_once(&self, now: Now) {
        let time = self.registry.clock().tick(now.wall);
        let _ = self
            .first_ready
            .compare_exchange(0, time, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn open_gate(&self, complete: bool, now: Now, effects: &mut Effects) {
        self.note_ready_once(now);
        self.renew_copied_graces(now);
        self.is_ready.store(true, Ordering::Relaxed);
        if !complete {
            self.counters.gate_limit_reached.store(1, Ordering::Relaxed);
        }
        self.renew_view(now.mono);
        self.probe_all(now, effects);
        effects.push(Effect::Report(Report::Ready { complete }));
    }
}
