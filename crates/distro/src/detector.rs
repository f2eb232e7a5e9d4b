//! The failure detector: whom this member probes, what a missing answer leads to, and what it tells of others.
//!
//! ```text
//! probe --no answer--> ask others to probe --nobody reaches it--> suspect, told to all --suspicion time--> unreachable
//!   |                        |                                        |
//!   |                        +--one reaches it--> lives, is cut off   +--it denies, or answers--> lives
//!   +--refused--> ask others --nobody reaches it--> gone
//! ```
//!
//! After SWIM (`spec/distro.md` §12, W13). Each period a member probes [`PROBED`] others and those it doubts, so that what
//! it sends does not grow with the cluster: the next one in the order of addresses, so that each member is probed by
//! someone in each period, and others in a shuffled order, so that each is probed by everyone in bounded time. What is
//! said of a member is a reason to probe it, never a proof that it is dead: each member judges by its own probes and by
//! those that others make for it. Pure: time comes in, and so does the number that shuffles.

use std::collections::BTreeMap;

use rollcall_core::{MemberId, Millis};

use crate::engine::STALL;
use crate::members::{Death, Member, MemberTable};
use crate::probe::{Brief, Found, News, State, Word};

/// Members that are probed in each period beside those in doubt, and the most of the latter.
const PROBED: usize = 3;
/// Members that are asked to probe another one.
const HELPERS: usize = 3;
/// Members of which one message tells.
const MAX_NEWS: usize = 8;
/// Members that one message asks for, or answers for.
const MAX_ASKED: usize = 32;
/// Shortest time between two messages to all members about what was found out of others.
const TELL_GAP: Millis = Millis(100);
/// The first format whose members help, and hear of others.
pub(crate) const BRIEF: u8 = 3;

/// How fast a member judges.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Period of probes.
    pub interval: Millis,
    /// Periods without an answer that make a death.
    pub misses: u32,
    /// Shuffles the order of probes; random for each process.
    pub seed: u64,
}

impl Pace {
    /// Others are asked for a member that has not answered for so long.
    fn late(&self) -> Millis {
        Millis(self.interval.0 * 2 / 5)
    }

    /// How long others may take to find the member.
    fn help(&self) -> Millis {
        Millis(self.interval.0 / 2)
    }

    /// How long a suspect has to show that it lives.
    fn suspicion(&self) -> Millis {
        Millis(self.interval.0 * u64::from(self.misses.saturating_sub(1)))
    }

    /// A probe out of turn has at least this distance from the last one.
    fn gap(&self) -> Millis {
        Millis(self.interval.0 / 4)
    }
}

/// What the detector knows of one member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// When the probe that is under way was sent.
    sent: Option<Millis>,
    last_sent: Option<Millis>,
    /// Probe it as soon as possible, whosever turn it is.
    is_wanted: bool,
    /// The last probe has failed, and what follows from it is not yet decided.
    has_failed: bool,
    /// It failed because the connection was refused.
    is_refused: bool,
    asked: Option<Asked>,
    /// Since when it may be dead.
    suspected: Option<Millis>,
    /// Another member was refused by this process of it too.
    is_told_gone: bool,
    /// The member that reached it when this one did not.
    relay: Option<MemberId>,
    /// Who wants to know whether it answers.
    askers: Vec<MemberId>,
    /// In how many messages it shall still be told of, and whether others act upon it.
    untold: u32,
    is_urgent: bool,
    /// Hash of this member's list that it knows.
    knows: u64,
}

/// Others were asked to probe a member.
#[derive(Clone, Debug)]
struct Asked {
    at: Millis,
    /// Who has not said yet that the connection was refused.
    waiting: Vec<MemberId>,
    /// Who has reached it.
    reached_by: Option<MemberId>,
}

impl Watch {
    /// It may be dead.
    pub(crate) fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    /// The member that reaches it while this one does not.
    pub(crate) fn relay(&self) -> Option<MemberId> {
        self.relay
    }

    /// Every doubt is over.
    pub(crate) fn clear_doubts(&mut self) {
        self.has_failed = false;
        self.is_refused = false;
        self.asked = None;
        self.suspected = None;
        self.is_told_gone = false;
    }
}

/// What came of the last calls, for the engine to carry out.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Whom to probe.
    pub(crate) probes: Vec<MemberId>,
    /// Who counts as dead from now on.
    pub(crate) died: Vec<(MemberId, Death)>,
    /// Who counted as dead and lives.
    pub(crate) back: Vec<MemberId>,
    /// Who is reached by others only, from now on.
    pub(crate) cut: Vec<MemberId>,
    /// Who was in doubt, dead or cut off, and answers this member itself.
    pub(crate) reached: Vec<MemberId>,
    /// A member said something of itself that others act upon.
    pub(crate) is_news: bool,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetectorCounts {
    /// Members that came under suspicion.
    pub suspected: u64,
    /// Times this member denied that it is dead.
    pub denied: u64,
    /// Times other members were asked to probe one.
    pub asked: u64,
    /// Times one of them reached it.
    pub reached: u64,
}

/// The detector's own state; that of each member is its [`Watch`].
#[derive(Debug)]
pub(crate) struct Detector {
    pace: Pace,
    next_period: Millis,
    /// When it was told the time last.
    last_time: Millis,
    /// When the next tick is planned; 0 while one is under way.
    next_tick: Millis,
    round: u64,
    /// Whose turn comes in this round, the next one last.
    order: Vec<MemberId>,
    /// How often this process has denied that it is dead.
    incarnation: u32,
    /// Everyone shall hear what was found out.
    is_tell_due: bool,
    last_told: Option<Millis>,
    /// What the next message to a member asks it for, and answers it.
    asks: BTreeMap<MemberId, Vec<MemberId>>,
    finds: BTreeMap<MemberId, Vec<Found>>,
    steps: Steps,
    counts: DetectorCounts,
}

impl Detector {
    pub(crate) fn new(pace: Pace) -> Self {
        Detector {
            pace,
            next_period: Millis(0),
            last_time: Millis(0),
            next_tick: Millis(0),
            round: 0,
            order: Vec::new(),
            incarnation: 0,
            is_tell_due: false,
            last_told: None,
            asks: BTreeMap::new(),
            finds: BTreeMap::new(),
            steps: Steps::default(),
            counts: DetectorCounts::default(),
        }
    }

    /// A member has left: nothing waits for it any more.
    pub(crate) fn forget(&mut self, id: MemberId) {
        self.asks.remove(&id);
        self.finds.remove(&id);
        self.order.retain(|other| *other != id);
    }

    pub(crate) fn steps_mut(&mut self) -> &mut Steps {
        &mut self.steps
    }

    fn probe(&mut self, id: MemberId) {
        if !self.steps.probes.contains(&id) {
            self.steps.probes.push(id);
        }
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

impl MemberTable {
    /// What came of the calls since the last time.
    pub(crate) fn take_steps(&mut self) -> Steps {
        std::mem::take(&mut self.detector.steps)
    }

    /// What the detector has counted.
    pub(crate) fn detector_counts(&self) -> DetectorCounts {
        self.detector.counts
    }

    /// How often this process has denied that it is dead.
    pub(crate) fn incarnation(&self) -> u32 {
        self.detector.incarnation
    }

    // === time ===

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Millis) {
        self.note_time(now);
        if now >= self.detector.next_period {
            self.detector.next_period = now + self.detector.pace.interval;
            self.begin_period(now);
        }
        self.look(now);
        self.detector.next_tick = Millis(0);
    }

    /// When to come back with the next tick.
    pub(crate) fn plan_tick(&mut self) -> Millis {
        self.detector.next_tick = self.next_due();
        self.detector.next_tick
    }

    /// True once when something is due before the tick that is planned.
    pub(crate) fn needs_tick(&mut self) -> bool {
        let due = self.next_due();
        let is_earlier = due < self.detector.next_tick;
        if is_earlier {
            self.detector.next_tick = due;
        }
        is_earlier
    }

    /// Called with the time before anything else. After this process stood still, what it did not hear meanwhile says
    /// nothing of others.
    pub(crate) fn note_time(&mut self, now: Millis) {
        let last = std::mem::replace(&mut self.detector.last_time, now);
        if now.since(last) <= STALL {
            return;
        }
        for member in &mut self.peers {
            let watch = &mut member.watch;
            watch.suspected = watch.suspected.map(|_| now);
            watch.sent = None;
            watch.asked = None;
            watch.has_failed = false;
            watch.is_refused = false;
        }
    }

    /// Chooses whom to probe in this period.
    fn begin_period(&mut self, now: Millis) {
        for member in self.peers.iter().filter(|m| m.format < BRIEF) {
            self.detector.probe(member.id);
        }
        let is_doubted = |m: &Member| {
            m.death.is_none() && (m.misses > 0 || m.said.is_none() || m.watch.suspected.is_some())
        };
        let mut doubted: Vec<_> = self.peers.iter().filter(|m| is_doubted(m)).collect();
        doubted.sort_by_key(|m| m.watch.last_sent);
        for member in doubted.into_iter().take(PROBED) {
            self.detector.probe(member.id);
        }
        let mut turns: Vec<MemberId> = self.neighbour().into_iter().collect();
        while turns.len() < PROBED.min(self.peers.len()) {
            let Some(id) = self.next_in_turn() else { break };
            if !turns.contains(&id) {
                turns.push(id);
            }
        }
        for id in turns {
            self.detector.probe(id);
        }
        // One that counts as dead may live for others. One of them is asked for one such member in each period.
        let dead = self.peers.iter().enumerate().filter(|(_, m)| m.death.is_some());
        let dead = dead.min_by_key(|(_, m)| (m.watch.asked.as_ref().map(|a| a.at), mix(m.id.0 ^ now.0)));
        if let Some(at) = dead.map(|(at, _)| at) {
            self.ask_for(at, 1, now);
        }
    }

    /// The next member that lives in the order of addresses.
    fn neighbour(&self) -> Option<MemberId> {
        let lives = |m: &&Member| m.death.is_none();
        let after = self.peers.iter().find(|m| m.address > self.me && lives(m));
        let next = after.or_else(|| self.peers.iter().find(lives));
        next.map(|m| m.id)
    }

    fn next_in_turn(&mut self) -> Option<MemberId> {
        if self.detector.order.is_empty() {
            self.detector.round += 1;
            let salt = mix(self.detector.pace.seed.wrapping_add(self.detector.round));
            let mut order: Vec<_> = self.peers.iter().map(|m| m.id).collect();
            order.sort_by_key(|id| mix(id.0 ^ salt));
            self.detector.order = order;
        }
        self.detector.order.pop()
    }

    /// Decides what can be decided now.
    pub(crate) fn look(&mut self, now: Millis) {
        let pace = self.detector.pace;
        for at in 0..self.peers.len() {
            let Some(member) = self.peers.get(at) else { break };
            let watch = &member.watch;
            let is_late = watch.sent.is_some_and(|sent| now >= sent + pace.late());
            if is_late && watch.asked.is_none() && member.death.is_none() && !member.disowns {
                self.ask_for(at, HELPERS, now);
            }
            self.judge(at, now);
            let Some(member) = self.peers.get_mut(at) else {
                break;
            };
            let is_over = |since: Millis| now >= since + pace.suspicion();
            let is_open = member.death.is_none() && member.misses > 0;
            if is_open && member.watch.suspected.is_some_and(is_over) {
                self.declare_dead(at, Death::Unreachable);
            }
        }
        let is_far = |last: Option<Millis>| last.is_none_or(|last| now >= last + pace.gap());
        for member in &self.peers {
            if member.watch.is_wanted && is_far(member.watch.last_sent) {
                self.detector.probe(member.id);
            }
        }
        let is_tell_far = self.detector.last_told.is_none_or(|last| now >= last + TELL_GAP);
        if self.detector.is_tell_due && is_tell_far {
            self.detector.is_tell_due = false;
            self.detector.last_told = Some(now);
            for member in self
                .peers
                .iter()
                .filter(|m| m.format >= BRIEF && m.death.is_none())
            {
                self.detector.probe(member.id);
            }
        }
    }

    fn next_due(&self) -> Millis {
        let pace = self.detector.pace;
        let mut next = self.detector.next_period;
        if self.detector.is_tell_due {
            next = next.min(self.detector.last_told.map_or(Millis(0), |last| last + TELL_GAP));
        }
        for member in &self.peers {
            let watch = &member.watch;
            let late = { watch.sent }.filter(|_| watch.asked.is_none() && member.death.is_none());
            let answered = { watch.asked.as_ref() }.filter(|_| watch.has_failed);
            let suspected = { watch.suspected }.filter(|_| member.death.is_none() && member.misses > 0);
            let due = [
                late.map(|sent| sent + pace.late()).filter(|_| !member.disowns),
                answered.map(|asked| asked.at + pace.help()),
                suspected.map(|since| since + pace.suspicion()),
                watch
                    .last_sent
                    .filter(|_| watch.is_wanted)
                    .map(|last| last + pace.gap()),
            ];
            next = due.into_iter().flatten().fold(next, Millis::min);
        }
        next
    }

    // === probes ===

    /// A probe of the member goes out.
    pub(crate) fn note_sent(&mut self, id: MemberId, now: Millis) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.watch.sent.get_or_insert(now);
            member.watch.last_sent = Some(now);
            member.watch.is_wanted = false;
        }
    }

    /// A member has answered a probe of this one.
    pub(crate) fn note_answered(&mut self, at: usize, now: Millis) {
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        let id = member.id;
        member.disowns = false;
        member.differs = false;
        member.misses = 0;
        member.last_seen = Some(now);
        member.watch.sent = None;
        let was_cut = member.watch.relay.take().is_some();
        let was_suspected = member.watch.is_suspected();
        member.watch.clear_doubts();
        let was_dead = member.death.take().is_some();
        if was_cut || was_suspected || was_dead {
            self.detector.steps.reached.push(id);
        }
        let found = Found {
            member: id.0,
            state: member.said,
        };
        let askers = std::mem::take(&mut member.watch.askers);
        self.answer_askers(askers, &found);
        if was_dead {
            self.detector.steps.back.push(id);
            self.spread(at, true);
        }
    }

    /// A probe of a member has failed.
    pub(crate) fn note_failed(&mut self, at: usize, is_refused: bool, now: Millis) {
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        member.watch.sent = None;
        if member.disowns && !is_refused {
            return; // It refuses the probes of a stranger, which does not make it dead.
        }
        member.misses = member.misses.saturating_add(1);
        // Who has not answered in time is not heard of by those who asked, either.
        let askers = std::mem::take(&mut member.watch.askers);
        let is_open = match member.death {
            None => true,
            Some(Death::Unreachable) => is_refused,
            Some(Death::Gone) => false,
        };
        if is_open {
            member.watch.has_failed = true;
            member.watch.is_refused |= is_refused;
        }
        let found = Found {
            member: member.id.0,
            state: None,
        };
        if is_refused {
            self.answer_askers(askers, &found);
        }
        self.judge(at, now);
    }

    /// A request to a member failed, or its link broke: probe it without waiting for its turn.
    pub(crate) fn doubt(&mut self, id: MemberId) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.watch.is_wanted = true;
        }
    }

    /// A member that does not answer, or counts as dead, gives a sign of life.
    fn note_sign(&mut self, at: usize) {
        if let Some(member) = self.peers.get_mut(at) {
            member.watch.is_wanted |= member.death.is_some() || member.misses > 0 || member.said.is_none();
        }
    }

    // === asking others ===

    fn ask_for(&mut self, at: usize, n_helpers: usize, now: Millis) {
        let Some(member) = self.peers.get(at) else { return };
        let (id, relay) = (member.id, member.watch.relay);
        let can_help = |m: &&Member| {
            m.id != id && m.format >= BRIEF && m.is_reachable() && m.misses == 0 && !m.watch.is_suspected()
        };
        let mut helpers: Vec<_> = self.peers.iter().filter(can_help).map(|m| m.id).collect();
        // Who has reached it before is asked first.
        helpers.sort_by_key(|helper| (Some(*helper) != relay, mix(helper.0 ^ id.0 ^ now.0)));
        helpers.truncate(n_helpers);
        for helper in &helpers {
            let asks = self.detector.asks.entry(*helper).or_default();
            if !asks.contains(&id) && asks.len() < MAX_ASKED {
                asks.push(id);
            }
            self.detector.probe(*helper);
        }
        self.detector.counts.asked += u64::from(!helpers.is_empty());
        if let Some(member) = self.peers.get_mut(at) {
            member.watch.asked = Some(Asked {
                at: now,
                waiting: helpers,
                reached_by: None,
            });
        }
    }

    fn answer_askers(&mut self, askers: Vec<MemberId>, found: &Found) {
        for asker in askers {
            let finds = self.detector.finds.entry(asker).or_default();
            if finds.len() < MAX_ASKED {
                finds.push(found.clone());
            }
            self.detector.probe(asker);
        }
    }

    /// Another member asks whether one answers.
    fn note_ask(&mut self, asker: MemberId, wanted: MemberId) {
        let Some(member) = self.peers.iter_mut().find(|m| m.id == wanted && m.id != asker) else {
            return;
        };
        if member.death == Some(Death::Gone) {
            let found = Found {
                member: wanted.0,
                state: None,
            };
            return self.answer_askers(vec![asker], &found);
        }
        if !member.watch.askers.contains(&asker) {
            member.watch.askers.push(asker);
        }
        member.watch.is_wanted = true;
    }

    /// Another member has probed one for this member.
    fn note_found(&mut self, helper: MemberId, found: &Found, now: Millis) {
        let Some(at) = self.peers.iter().position(|m| m.id.0 == found.member) else {
            return;
        };
        let Some(state) = found.state else {
            if let Some(asked) = self.peers.get_mut(at).and_then(|m| m.watch.asked.as_mut()) {
                asked.waiting.retain(|id| *id != helper);
            }
            return self.judge(at, now);
        };
        self.learn(at, state, false);
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        let Some(asked) = member.watch.asked.as_mut().filter(|_| !member.disowns) else {
            return; // It has answered meanwhile.
        };
        asked.reached_by = Some(helper);
        self.detector.counts.reached += 1;
        member.watch.suspected = None;
        member.last_seen = Some(now);
        if member.said.is_none() {
            member.said = Some(state);
            self.detector.steps.is_news = true;
        }
        if member.death.take().is_some() {
            member.watch.has_failed = true;
            self.detector.steps.back.push(member.id);
            self.spread(at, true);
        }
        self.judge(at, now);
    }

    // === verdicts ===

    /// Decides about a member whose probe has failed, as soon as it is known whether others reach it.
    fn judge(&mut self, at: usize, now: Millis) {
        let Some(member) = self.peers.get(at) else { return };
        let watch = &member.watch;
        if !watch.has_failed {
            return;
        }
        // Two members that were refused need no third.
        let is_plain = watch.is_refused && watch.is_told_gone;
        if !is_plain && watch.asked.is_none() {
            self.ask_for(at, HELPERS, now);
        }
        let help = self.detector.pace.help();
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        let watch = &mut member.watch;
        let is_waiting = |a: &Asked| a.reached_by.is_none() && !a.waiting.is_empty() && now < a.at + help;
        if !is_plain && watch.asked.as_ref().is_some_and(is_waiting) {
            return;
        }
        let is_refused = std::mem::take(&mut watch.is_refused);
        watch.has_failed = false;
        let relay = watch.asked.take().and_then(|asked| asked.reached_by);
        let was_cut = std::mem::replace(&mut watch.relay, relay).is_some();
        if relay.is_some() {
            if !was_cut {
                self.detector.steps.cut.push(member.id);
            }
        } else if is_refused {
            self.declare_dead(at, Death::Gone);
        } else if member.death.is_none() && watch.suspected.is_none() {
            watch.suspected = Some(now);
            self.detector.counts.suspected += 1;
            self.detector.is_tell_due = true;
            self.spread(at, true);
        }
    }

    fn declare_dead(&mut self, at: usize, death: Death) {
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        member.watch.clear_doubts();
        member.watch.relay = None;
        member.death = Some(death);
        self.detector.steps.died.push((member.id, death));
        self.spread(at, true);
    }

    // === what is said ===

    /// Takes a member's state, from itself or from another. It does not prove that it can be reached: nothing is known
    /// of a member before it has answered for the first time.
    pub(crate) fn learn(&mut self, at: usize, state: State, is_own_word: bool) {
        if is_own_word {
            self.note_sign(at);
        }
        let n_peers = self.peers.len();
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        let Some(former) = member.said else { return };
        let is_newer = match former.boot == state.boot {
            true => former.count <= state.count,
            false => is_own_word || former.epoch < state.epoch,
        };
        if !is_newer {
            return;
        }
        member.said = Some(state);
        if former.boot != state.boot || former.incarnation < state.incarnation {
            member.watch.suspected = None;
            member.watch.is_told_gone = false;
        }
        if former.differs(&state) {
            self.detector.steps.is_news = true;
            self.note_sign(at);
            self.spread(at, true);
        } else if former.counts_differ(&state) && n_peers > PROBED {
            self.spread(at, false);
        }
        self.match_list(at);
    }

    /// Takes what stands in a message of format 3 beside the sender's own state.
    pub(crate) fn hear(&mut self, from: MemberId, brief: &Brief, now: Millis) {
        if let Some(sender) = self.peers.iter_mut().find(|m| m.id == from) {
            sender.format = BRIEF;
            sender.watch.knows = brief.knows;
        }
        for wanted in brief.ask.iter().take(MAX_ASKED) {
            self.note_ask(from, MemberId(*wanted));
        }
        for found in brief.found.iter().take(MAX_ASKED) {
            self.note_found(from, found, now);
        }
        for news in brief.news.iter().take(2 * MAX_NEWS) {
            self.hear_of(news, now);
        }
    }

    fn hear_of(&mut self, news: &News, now: Millis) {
        let id = MemberId(news.member);
        if id == self.my_id() {
            let is_current =
                news.state.boot == self.boot && news.state.incarnation >= self.detector.incarnation;
            if news.word != Word::Alive && is_current {
                self.detector.incarnation = news.state.incarnation.saturating_add(1);
                self.detector.counts.denied += 1;
                self.detector.is_tell_due = true;
            }
            return;
        }
        let Some(at) = self.peers.iter().position(|m| m.id == id && m.format >= BRIEF) else {
            return; // Members of older formats are probed by everyone, and cannot deny.
        };
        self.learn(at, news.state, false);
        let Some(member) = self.peers.get_mut(at) else {
            return;
        };
        let is_current =
            |said: State| said.boot == news.state.boot && said.incarnation <= news.state.incarnation;
        let is_open = member.death.is_none() && !member.disowns;
        if news.word == Word::Alive || !is_open || !member.said.is_some_and(is_current) {
            return;
        }
        member.watch.is_told_gone |= news.word == Word::Gone;
        if member.watch.suspected.is_none() {
            member.watch.suspected = Some(now);
            member.watch.is_wanted = true;
            self.spread(at, true);
        }
    }

    /// Others shall hear of the member.
    fn spread(&mut self, at: usize, is_urgent: bool) {
        let n_messages = 3 * (self.peers.len() + 2).ilog2();
        if let Some(member) = self.peers.get_mut(at).filter(|m| m.format >= BRIEF) {
            member.watch.untold = n_messages;
            member.watch.is_urgent |= is_urgent;
        }
    }

    fn news_of(member: &Member) -> Option<News> {
        let word = match member.death {
            Some(Death::Gone) => Word::Gone,
            Some(Death::Unreachable) => Word::Unreachable,
            None if member.watch.is_suspected() => Word::Suspect,
            None => Word::Alive,
        };
        Some(News {
            member: member.id.0,
            word,
            state: member.said?,
        })
    }

    /// The next message of format 3 to a member: `bare`, and what there is to tell of others.
    pub(crate) fn brief_for(&mut self, to: MemberId, bare: Brief) -> Brief {
        let state = bare.state;
        let receiver = self.peers.iter().find(|m| m.id == to);
        let knows = receiver.and_then(|m| m.list.as_ref()).map_or(0, |list| list.hash);
        let has_mine =
            |m: &Member| m.watch.knows == state.list || m.said.is_some_and(|s| s.list == state.list);
        let members = match receiver.is_some_and(has_mine) {
            true => None,
            false => Some(self.list().iter().map(ToString::to_string).collect()),
        };
        // It hears in any case what is thought of itself, so that it can deny.
        let doubted = receiver.filter(|m| m.death.is_some() || m.watch.is_suspected());
        let mut news: Vec<News> = doubted.and_then(Self::news_of).into_iter().collect();
        let is_due = |m: &&mut Member| m.watch.untold > 0 && m.id != to;
        let mut due: Vec<&mut Member> = self.peers.iter_mut().filter(is_due).collect();
        due.sort_by_key(|m| std::cmp::Reverse((m.watch.is_urgent, m.watch.untold)));
        for member in due.into_iter().take(MAX_NEWS) {
            news.extend(Self::news_of(member));
            member.watch.untold -= 1;
            member.watch.is_urgent &= member.watch.untold > 0;
        }
        Brief {
            knows,
            members,
            ask: { self.detector.asks.remove(&to) }
                .map_or_else(Vec::new, |ids| ids.iter().map(|id| id.0).collect()),
            found: self.detector.finds.remove(&to).unwrap_or_default(),
            news,
            ..bare
        }
    }
}
