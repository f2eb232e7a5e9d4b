//! The members of the cluster as this one sees them: who is configured, who answers, who owns a service.

use std::fmt;
use std::sync::Arc;

use rollcall_core::ownership::Mapper;
use rollcall_core::registry::beats::Judge;
use rollcall_core::{MemberId, Millis, ServiceKey};
use smol_str::SmolStr;

use crate::detector::{Detector, Pace, Watch};
use crate::probe::{self, Probe, State};

/// State of a member, with the names that operators know (`spec/distro.md` §2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// Not heard of yet, or it answers and is not ready.
    Starting,
    /// It answers and is ready.
    Up,
    /// It does not answer this member, it may be dead, or it says that it is impaired.
    Suspicious,
    /// It refuses connections, or nobody has reached it for too long.
    Down,
    /// It answers, and does not list this member; of this member itself: no other lists it.
    Isolated,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberState::Starting => "STARTING",
            MemberState::Up => "UP",
            MemberState::Suspicious => "SUSPICIOUS",
            MemberState::Down => "DOWN",
            MemberState::Isolated => "ISOLATION",
        })
    }
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeResult {
    /// The member answered.
    Answer(Probe),
    /// Its address refused the connection: no process listens there.
    Refused,
    /// No answer in time, or any other failure.
    Missed,
}

/// How a member left the living.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// It refused a connection: its process is gone.
    Gone,
    /// It does not answer: it may live on behind a cut.
    Unreachable,
}

/// One other member: of the list, or a guest that only some other member lists.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its identity.
    pub id: MemberId,
    /// Its advertised address.
    pub address: SmolStr,
    /// It is in this member's list; a guest is not.
    pub is_listed: bool,
    /// It has answered that it does not know this member. What it holds is out of reach then.
    pub disowns: bool,
    /// What it said of itself last, to this member or to others.
    pub said: Option<State>,
    /// The last of its member lists that is known here.
    pub(crate) list: Option<KnownList>,
    /// The newest format version that both speak; 0 before it is known.
    pub(crate) format: u8,
    /// Probes of this member missed in a row.
    pub misses: u32,
    /// When it last answered.
    pub last_seen: Option<Millis>,
    /// Set while it counts as dead.
    pub death: Option<Death>,
    pub(crate) watch: Watch,
}

/// A member list with its hash.
#[derive(Clone, Debug)]
pub(crate) struct KnownList {
    pub(crate) hash: u64,
    addresses: Arc<[SmolStr]>,
}

impl KnownList {
    fn of(addresses: &[SmolStr]) -> Self {
        KnownList {
            hash: probe::hash_of(addresses),
            addresses: addresses.into(),
        }
    }
}

impl Member {
    fn new(address: &SmolStr) -> Self {
        Member {
            id: MemberId::of(address),
            address: address.clone(),
            is_listed: true,
            disowns: false,
            said: None,
            list: None,
            format: 0,
            misses: 0,
            last_seen: None,
            death: None,
            watch: Watch::default(),
        }
    }

    /// It has answered this member or another one, and does not count as dead.
    pub fn is_reachable(&self) -> bool {
        self.death.is_none() && self.said.is_some() && !self.disowns
    }

    /// Clients may be sent to it: that it does not know this member is nothing to them.
    pub fn takes_clients(&self) -> bool {
        self.death.is_none() && self.said.as_ref().is_some_and(|s| s.ready && !s.leaving)
    }

    /// It may own services.
    pub fn is_serving(&self) -> bool {
        self.is_reachable() && self.said.as_ref().is_some_and(|s| s.ready && !s.leaving)
    }

    /// It serves, and it answered its last probe.
    pub fn is_trusted(&self) -> bool {
        self.is_serving() && self.misses == 0
    }

    /// It lives, and only others reach it: the one that does.
    pub fn relay(&self) -> Option<MemberId> {
        self.watch.relay().filter(|_| self.is_reachable())
    }

    /// It serves, and says that others shall own its services.
    pub fn is_impaired(&self) -> bool {
        self.said.as_ref().is_some_and(|s| s.impaired)
    }

    /// Its state as operators know it.
    pub fn state(&self) -> MemberState {
        match (self.death, &self.said) {
            (Some(_), _) => MemberState::Down,
            (None, _) if self.disowns => MemberState::Isolated,
            (None, Some(said)) if said.leaving => MemberState::Down,
            (None, None) => MemberState::Starting,
            (None, Some(_)) if self.misses > 0 || self.watch.is_suspected() || self.is_impaired() => {
                MemberState::Suspicious
            }
            (None, Some(said)) if said.ready => MemberState::Up,
            (None, Some(_)) => MemberState::Starting,
        }
    }
}

/// Most members of a cluster, guests included.
pub const MAX_MEMBERS: usize = 256;

/// The member list, all other members, and what probes say of them.
///
/// While lists differ, as when an operator edits one file after the other, a member follows the *guests* too: those that
/// a listed member lists. So a member takes part from the first list that names it until the last one drops it, and
/// nobody loses rows meanwhile. Guests own nothing here.
#[derive(Debug)]
pub struct MemberTable {
    pub(crate) me: SmolStr,
    /// Tells this process from others of this member.
    pub(crate) boot: u64,
    /// As configured, sorted, this member included.
    list: KnownList,
    pub(crate) peers: Vec<Member>,
    pub(crate) detector: Detector,
}

/// Who came and who went by a change of a list.
#[derive(Debug, Default)]
pub(crate) struct Turnover {
    pub(crate) joined: Vec<MemberId>,
    pub(crate) left: Vec<Member>,
}

impl MemberTable {
    /// The table of the process `boot` of the member `me`, with itself in the list in any case.
    pub fn new(me: &SmolStr, boot: u64, list: &[SmolStr], pace: Pace) -> Self {
        let mut table = MemberTable {
            me: me.clone(),
            boot,
            list: KnownList::of(&[]),
            peers: Vec::new(),
            detector: Detector::new(pace),
        };
        table.set_list(list);
        table.turn_over();
        table
    }

    pub(crate) fn my_id(&self) -> MemberId {
        MemberId::of(&self.me)
    }

    /// Takes another list; what follows from it is up to [`turn_over`](Self::turn_over).
    pub(crate) fn set_list(&mut self, list: &[SmolStr]) {
        let mut list = list.to_vec();
        list.push(self.me.clone());
        list.sort();
        list.dedup();
        self.list = KnownList::of(&list);
        for at in 0..self.peers.len() {
            self.match_list(at);
        }
    }

    /// Makes the peers those of the list and the guests.
    pub(crate) fn turn_over(&mut self) -> Turnover {
        let others = |address: &&SmolStr| **address != self.me;
        let mut wanted: Vec<SmolStr> = self.list().iter().filter(others).cloned().collect();
        let n_listed = wanted.len();
        let is_host = |m: &&Member| m.is_reachable() && self.list().contains(&m.address);
        let hosts = self.peers.iter().filter(is_host);
        for list in hosts.filter_map(|host| host.list.as_ref()) {
            if list.hash == self.list.hash {
                continue;
            }
            for guest in list.addresses.iter() {
                if *guest != self.me && !wanted.contains(guest) {
                    wanted.push(guest.clone());
                }
            }
        }
        wanted.truncate(n_listed.max(MAX_MEMBERS));
        let mut turnover = Turnover::default();
        for mut member in std::mem::take(&mut self.peers) {
            match wanted.iter().position(|address| *address == member.address) {
                Some(at) => {
                    member.is_listed = at < n_listed;
                    self.peers.push(member);
                }
                None => {
                    self.detector.forget(member.id);
                    turnover.left.push(member);
                }
            }
        }
        for (at, address) in wanted.iter().enumerate() {
            if self.peers.iter().all(|m| m.address != *address) {
                let mut member = Member::new(address);
                member.is_listed = at < n_listed;
                turnover.joined.push(member.id);
                self.peers.push(member);
            }
        }
        self.peers.sort_by(|a, b| a.address.cmp(&b.address));
        turnover
    }

    /// The member list, sorted, this member included.
    pub fn list(&self) -> &[SmolStr] {
        &self.list.addresses
    }

    /// The hash of the member list.
    pub(crate) fn list_hash(&self) -> u64 {
        self.list.hash
    }

    /// Every member that is reached has the same list.
    pub fn lists_agree(&self) -> bool {
        let reached = self.peers.iter().filter(|m| m.is_reachable());
        let is_same = |m: &Member| m.said.as_ref().is_some_and(|said| said.list == self.list.hash);
        { reached }.all(is_same)
    }

    /// Whoever answers says that it does not know this member.
    pub fn is_unlisted(&self) -> bool {
        let disowns = |m: &Member| m.disowns && m.death.is_none();
        self.peers.iter().any(disowns) && !self.peers.iter().any(Member::is_reachable)
    }

    /// The other members, sorted by address.
    pub fn peers(&self) -> &[Member] {
        &self.peers
    }

    /// One other member.
    pub fn peer(&self, id: MemberId) -> Option<&Member> {
        self.peers.iter().find(|m| m.id == id)
    }

    /// A member has answered that it does not know this one. True if that is news.
    pub(crate) fn note_disowned(&mut self, id: MemberId) -> bool {
        let Some(member) = self.peers.iter_mut().find(|m| m.id == id) else {
            return false;
        };
        // It speaks, so it lives; that it does not answer probes any more says nothing.
        member.watch.clear_doubts();
        let was_dead = member.death.take().is_some();
        !std::mem::replace(&mut member.disowns, true) || was_dead
    }

    /// A member has taken this one's link: it knows it.
    pub(crate) fn note_owned(&mut self, id: MemberId) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.disowns = false;
        }
    }

    /// The newest format version that both this member and another one speak, as its hello says.
    pub(crate) fn note_format(&mut self, id: MemberId, format: u8) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.format = format;
        }
    }

    /// The newest format version that both speak; 0 before it is known.
    pub(crate) fn format(&self, id: MemberId) -> u8 {
        self.peer(id).map_or(0, |m| m.format)
    }

    fn position(&self, id: MemberId) -> Option<usize> {
        self.peers.iter().position(|m| m.id == id)
    }

    /// Takes a probe's result.
    pub fn note(&mut self, id: MemberId, result: &ProbeResult, now: Millis) {
        self.note_time(now);
        let Some(at) = self.position(id) else { return };
        match result {
            ProbeResult::Answer(probe) => {
                if let Some(member) = self.peers.get_mut(at).filter(|m| m.said.is_none()) {
                    member.said = Some(state_of(probe));
                    self.detector.steps_mut().is_news = true;
                }
                self.note_answered(at, now);
                self.take_words(at, probe, now);
            }
            ProbeResult::Refused => self.note_failed(at, true, now),
            ProbeResult::Missed => self.note_failed(at, false, now),
        }
        self.look(now);
    }

    /// Takes what a member said when it probed this one. It does not prove that it can be reached.
    pub fn note_said(&mut self, probe: &Probe, now: Millis) {
        self.note_time(now);
        if let Some(at) = self.position(MemberId::of(probe.member())) {
            self.take_words(at, probe, now);
            self.look(now);
        }
    }

    fn take_words(&mut self, at: usize, probe: &Probe, now: Millis) {
        let Some(id) = self.peers.get(at).map(|m| m.id) else {
            return;
        };
        let members = match probe {
            Probe::Full(full) => Some(&full.members),
            Probe::Brief(brief) => brief.members.as_ref(),
        };
        if let Some(members) = members {
            self.note_list(at, members);
        }
        self.learn(at, state_of(probe), true);
        self.match_list(at);
        if let Probe::Brief(brief) = probe {
            self.hear(id, brief, now);
        }
    }

    /// Takes the member list that a member sends along.
    fn note_list(&mut self, at: usize, members: &[String]) {
        let hash = probe::hash_of(members);
        let known = self.known_list(hash).unwrap_or_else(|| KnownList {
            hash,
            addresses: members.iter().map(SmolStr::from).collect(),
        });
        if let Some(member) = self.peers.get_mut(at) {
            member.list = Some(known);
        }
    }

    /// A list that is known here, of whomever.
    fn known_list(&self, hash: u64) -> Option<KnownList> {
        let of_others = self.peers.iter().filter_map(|m| m.list.as_ref());
        let mut all = std::iter::once(&self.list).chain(of_others);
        all.find(|list| list.hash == hash).cloned()
    }

    /// Finds the list that a member has named by its hash; the member is asked for it if nobody else has the same.
    pub(crate) fn match_list(&mut self, at: usize) {
        let Some(member) = self.peers.get(at) else { return };
        let id = member.id;
        let Some(hash) = member.said.map(|said| said.list) else {
            return;
        };
        if member.list.as_ref().is_some_and(|list| list.hash == hash) {
            return;
        }
        match self.known_list(hash) {
            Some(list) => {
                if let Some(member) = self.peers.get_mut(at) {
                    member.list = Some(list);
                }
            }
            None => self.doubt(id),
        }
    }

    /// Raises a suspicion without waiting for the next probe: a request to the member failed.
    pub fn suspect(&mut self, id: MemberId) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.misses = member.misses.max(1);
        }
        self.doubt(id);
    }
}

fn state_of(probe: &Probe) -> State {
    match probe {
        Probe::Full(full) => full.state(),
        Probe::Brief(brief) => brief.state,
    }
}

/// Who owns what, computed anew whenever a member's state or a list changes. Immutable.
pub struct OwnershipView {
    me: MemberId,
    mapper: Arc<dyn Mapper>,
    /// The member list sorted by address, with who serves.
    members: Vec<(MemberId, SmolStr, bool)>,
    /// Those of them that come last in every rank.
    impaired: Vec<MemberId>,
    /// Guests that serve.
    guests: Vec<(MemberId, SmolStr)>,
    lists_agree: bool,
    /// By rank start: since when this member hears of all beats there, as its owner or the owner's deputy.
    heard_since: Vec<Option<Millis>>,
}

/// The owner and its deputy hear of all beats of a service.
const N_HEARERS: usize = 2;

impl fmt::Debug for OwnershipView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnershipView")
            .field("members", &self.members)
            .finish()
    }
}

impl OwnershipView {
    /// The view of `me`, which serves or not, and is impaired or not. `former` tells since when it hears of the beats of what it keeps; after a
    /// change of its list it keeps nothing.
    pub fn new(
        me: (MemberId, bool, bool),
        table: &MemberTable,
        mapper: Arc<dyn Mapper>,
        former: Option<&OwnershipView>,
        now: Millis,
    ) -> Self {
        let (me, serves, impaired) = me;
        let me_impaired = impaired.then_some(me);
        let others_impaired = table.peers().iter().filter(|m| m.is_impaired()).map(|m| m.id);
        let is_serving = |id: MemberId| match table.peer(id) {
            Some(member) => member.is_serving(),
            None => id == me && serves,
        };
        let listed = table.list().iter().map(|address| {
            let id = MemberId::of(address);
            (id, address.clone(), is_serving(id))
        });
        let guests = table.peers().iter().filter(|m| !m.is_listed && m.is_serving());
        let mut view = OwnershipView {
            me,
            mapper,
            members: listed.collect(),
            impaired: others_impaired.chain(me_impaired).collect(),
            guests: guests.map(|m| (m.id, m.address.clone())).collect(),
            lists_agree: table.lists_agree(),
            heard_since: vec![None; table.list().len()],
        };
        let former = former.filter(|former| former.has_list_of(&view));
        for start in 0..view.members.len() {
            if !view.lists_agree || view.ranked_from(start).take(N_HEARERS).any(|id| id == me) {
                let kept = former.and_then(|f| f.heard_since.get(start).copied().flatten());
                view.heard_since[start] = Some(kept.unwrap_or(now));
            }
        }
        view
    }

    fn has_list_of(&self, other: &OwnershipView) -> bool {
        let addresses = |view: &OwnershipView| view.members.iter().map(|m| m.0).collect::<Vec<_>>();
        addresses(self) == addresses(other)
    }

    /// Every member that is reached has the same list.
    pub fn lists_agree(&self) -> bool {
        self.lists_agree
    }

    /// The same with all hearing starting now: silence from before says nothing.
    pub fn renewed(&self, now: Millis) -> Self {
        OwnershipView {
            me: self.me,
            mapper: self.mapper.clone(),
            members: self.members.clone(),
            impaired: self.impaired.clone(),
            guests: self.guests.clone(),
            lists_agree: self.lists_agree,
            heard_since: self.heard_since.iter().map(|since| since.map(|_| now)).collect(),
        }
    }

    /// A number for this view, the same on members that see the same members serving.
    pub fn number(&self) -> u64 {
        let serving = self.members.iter().filter(|m| m.2);
        serving.fold(0, |sum: u64, (id, ..)| sum.rotate_left(7) ^ id.0)
    }

    /// The members that serve, in their rank for `service`: the first is the owner.
    pub fn ranked(&self, service: &ServiceKey) -> impl Iterator<Item = MemberId> + '_ {
        self.ranked_from(self.mapper.first(service, self.members.len()))
    }

    /// The owner of `service`.
    pub fn owner(&self, service: &ServiceKey) -> Option<MemberId> {
        self.ranked(service).next()
    }

    /// The members that shall hear of every beat of `service`: its owner, and who would own it after the owner's death
    /// and shall then know who has been silent. While lists differ, everyone may be taken for the owner by someone, so
    /// everyone hears.
    pub fn hearers(&self, service: &ServiceKey) -> impl Iterator<Item = MemberId> + '_ {
        let n_listed = if self.lists_agree { N_HEARERS } else { usize::MAX };
        let n_guests = if self.lists_agree { 0 } else { usize::MAX };
        let guests = self.guests.iter().map(|guest| guest.0).take(n_guests);
        self.ranked(service).take(n_listed).chain(guests)
    }

    /// This member's part in judging the beats of `service`. While lists differ, two members may each take the other
    /// for the owner: then everyone judges, by what everyone hears.
    pub fn judge(&self, service: &ServiceKey) -> Judge {
        let start = self.mapper.first(service, self.members.len());
        match self.heard_since.get(start).copied().flatten() {
            Some(since) if !self.lists_agree || self.owner(service) == Some(self.me) => Judge::Since(since),
            _ => Judge::Elsewhere,
        }
    }

    /// The advertised address of a member.
    pub fn address(&self, id: MemberId) -> Option<&SmolStr> {
        let listed = self.members.iter().find(|m| m.0 == id).map(|m| &m.1);
        listed.or_else(|| self.guests.iter().find(|m| m.0 == id).map(|m| &m.1))
    }

    fn ranked_from(&self, start: usize) -> impl Iterator<Item = MemberId> + '_ {
        let n = self.members.len();
        let serving = move |impaired: bool| {
            (0..n)
                .filter_map(move |i| self.members.get((start + i) % n))
                .filter(move |m| m.2 && self.impaired.contains(&m.0) == impaired)
                .map(|m| m.0)
        };
        // Those that are impaired take part as long as nobody else does.
        serving(false).chain(serving(true))
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::ownership::ModuloMapper;

    use super::*;
    use crate::message::FullProbe;

    fn said(address: &str, ready: bool) -> FullProbe {
        FullProbe {
            cluster: "rollcall".into(),
            mapper: "modulo".into(),
            member: address.into(),
            epoch: 1,
            boot: 1,
            ready,
            leaving: false,
            rows: 0,
            connections: 0,
            sdk_connections: 0,
            count: 0,
            members: ["a:1", "b:1", "c:1"].map(String::from).to_vec(),
        }
    }

    fn answer(full: FullProbe) -> ProbeResult {
        ProbeResult::Answer(Probe::Full(full))
    }

    fn lists(address: &str, members: &[&str]) -> ProbeResult {
        answer(FullProbe {
            members: members.iter().map(|m| (*m).to_owned()).collect(),
            ..said(address, true)
        })
    }

    fn table(list: &[&str]) -> MemberTable {
        let list: Vec<SmolStr> = list.iter().map(SmolStr::new).collect();
        let pace = Pace {
            interval: Millis::secs(1),
            misses: 3,
            seed: 1,
        };
        MemberTable::new(&"b:1".into(), 1, &list, pace)
    }

    fn view(table: &MemberTable, former: Option<&OwnershipView>, now: u64) -> OwnershipView {
        let me = (MemberId::of("b:1"), true, false);
        OwnershipView::new(me, table, Arc::new(ModuloMapper), former, Millis(now))
    }

    fn addresses(table: &MemberTable) -> Vec<(&str, bool)> {
        let peers = table.peers().iter();
        peers.map(|m| (m.address.as_str(), m.is_listed)).collect()
    }

    #[test]
    fn whom_a_listed_member_lists_is_a_guest_until_the_last_one_drops_it() {
        let a = MemberId::of("a:1");
        let mut table = table(&["a:1", "b:1"]);
        table.note(a, &lists("a:1", &["a:1", "b:1", "d:1"]), Millis(0));
        let turnover = table.turn_over();
        assert_eq!(turnover.joined, [MemberId::of("d:1")]);
        assert_eq!(addresses(&table), [("a:1", true), ("d:1", false)]);
        // What a guest says of its list brings no further guests, or nobody could ever leave.
        table.note(MemberId::of("d:1"), &lists("d:1", &["d:1", "e:1"]), Millis(0));
        assert!(table.turn_over().joined.is_empty());
        table.set_list(&["a:1".into(), "d:1".into()]);
        let turnover = table.turn_over();
        assert_eq!(turnover.joined, [MemberId::of("e:1")]);
        assert!(turnover.left.is_empty());
        assert_eq!(addresses(&table), [("a:1", true), ("d:1", true), ("e:1", false)]);
        table.set_list(&["a:1".into()]);
        table.note(a, &lists("a:1", &["a:1", "b:1"]), Millis(1));
        let left = table.turn_over().left;
        assert_eq!(
            left.iter().map(|m| m.address.as_str()).collect::<Vec<_>>(),
            ["d:1", "e:1"]
        );
    }

    #[test]
    fn a_dead_host_has_no_guests() {
        let a = MemberId::of("a:1");
        let mut table = table(&["a:1", "b:1"]);
        table.note(a, &lists("a:1", &["a:1", "b:1", "d:1"]), Millis(0));
        table.turn_over();
        table.note(a, &ProbeResult::Refused, Millis(1));
        assert_eq!(table.turn_over().left.len(), 1);
    }

    #[test]
    fn while_lists_differ_all_hear_and_judge_from_then_on() {
        let (a, c) = (MemberId::of("a:1"), MemberId::of("c:1"));
        let mut table = table(&["a:1", "b:1", "c:1"]);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, &answer(said(address, true)), Millis(0));
        }
        let before = view(&table, None, 10);
        let services: Vec<_> = (0..50)
            .map(|n| ServiceKey::new("", "", &format!("s{n}")))
            .collect();
        table.note(a, &lists("a:1", &["a:1", "b:1", "c:1", "d:1"]), Millis(1));
        table.turn_over();
        let d = MemberId::of("d:1");
        table.note(d, &lists("d:1", &["a:1", "b:1", "c:1", "d:1"]), Millis(1));
        let differing = view(&table, Some(&before), 20);
        assert!(!differing.lists_agree());
        for service in &services {
            assert!(matches!(differing.judge(service), Judge::Since(_)));
            assert_eq!(
                differing.hearers(service).count(),
                4,
                "three listed and the guest"
            );
            assert_ne!(differing.owner(service), Some(d), "a guest owns nothing");
        }
        table.set_list(&["a:1".into(), "b:1".into(), "c:1".into(), "d:1".into()]);
        table.turn_over();
        table.note(c, &lists("c:1", &["a:1", "b:1", "c:1", "d:1"]), Millis(2));
        let after = view(&table, Some(&differing), 30);
        assert!(after.lists_agree());
        for service in &services {
            assert_eq!(after.hearers(service).count(), 2);
            let judge = after.judge(service);
            assert!(
                judge == Judge::Elsewhere || judge == Judge::Since(Millis(30)),
                "nothing that was heard by another list counts: {judge:?}"
            );
        }
    }

    #[test]
    fn what_was_said_earlier_and_comes_later_changes_nothing() {
        let a = MemberId::of("a:1");
        let mut table = table(&["a:1", "b:1"]);
        let told = |count, ready| FullProbe {
            count,
            ..said("a:1", ready)
        };
        table.note(a, &answer(told(2, true)), Millis(0));
        table.note_said(&Probe::Full(told(1, false)), Millis(0));
        table.note(a, &answer(told(1, false)), Millis(1));
        assert_eq!(table.peer(a).map(Member::is_serving), Some(true));
        let restarted = FullProbe {
            boot: 2,
            ..told(1, false)
        };
        table.note_said(&Probe::Full(restarted), Millis(2));
        assert_eq!(table.peer(a).map(Member::is_serving), Some(false));
    }

    #[test]
    fn a_member_is_unlisted_when_whoever_answers_disowns_it() {
        let (a, c) = (MemberId::of("a:1"), MemberId::of("c:1"));
        let mut table = table(&["a:1", "b:1", "c:1"]);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, &answer(said(address, true)), Millis(0));
        }
        assert!(table.note_disowned(a) && !table.note_disowned(a));
        table.note(a, &ProbeResult::Missed, Millis(0));
        table.tick(Millis(9_000));
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Isolated));
        assert!(!table.is_unlisted(), "c still knows it");
        table.note(c, &ProbeResult::Refused, Millis(1));
        assert!(table.is_unlisted());
        table.note(a, &answer(said("a:1", true)), Millis(2));
        assert!(!table.is_unlisted());
    }

    #[test]
    fn a_deputy_judges_from_the_first_moment_by_what_it_has_heard_before() {
        let (a, c) = (MemberId::of("a:1"), MemberId::of("c:1"));
        let mut table = table(&["a:1", "b:1", "c:1"]);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, &answer(said(address, true)), Millis(0));
        }
        let before = view(&table, None, 10);
        // In the order of ranks, b comes right after a, and after c only when a is gone too.
        let owned_by = |id| {
            let names = (0..100).map(|n| ServiceKey::new("", "", &format!("s{n}")));
            names.into_iter().find(|s| before.owner(s) == Some(id))
        };
        let (of_a, of_c) = (owned_by(a).expect("some"), owned_by(c).expect("some"));
        assert_eq!(before.judge(&of_a), Judge::Elsewhere);
        assert!(before.hearers(&of_a).any(|id| id == MemberId::of("b:1")));
        table.note(a, &ProbeResult::Refused, Millis(1));
        let without_a = view(&table, Some(&before), 20);
        assert_eq!(without_a.judge(&of_a), Judge::Since(Millis(10)));
        table.note(c, &ProbeResult::Refused, Millis(2));
        let alone = view(&table, Some(&without_a), 30);
        assert_eq!(
            alone.judge(&of_c),
            Judge::Since(Millis(20)),
            "deputy since a's death"
        );
    }

    #[test]
    fn a_member_that_leaves_is_down_although_it_answers() {
        let c = MemberId::of("c:1");
        let mut table = table(&["b:1", "c:1"]);
        let leaving = FullProbe {
            leaving: true,
            ..said("c:1", false)
        };
        table.note(c, &answer(leaving), Millis(0));
        assert_eq!(table.peer(c).map(Member::state), Some(MemberState::Down));
    }

    #[test]
    fn a_death_moves_only_that_members_share() {
        let (a, c) = (MemberId::of("a:1"), MemberId::of("c:1"));
        let mut table = table(&["a:1", "b:1", "c:1"]);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, &answer(said(address, true)), Millis(0));
        }
        let before = view(&table, None, 10);
        table.note(c, &ProbeResult::Missed, Millis(1));
        assert_eq!(table.peer(c).map(Member::state), Some(MemberState::Suspicious));
        table.note(c, &ProbeResult::Missed, Millis(1_001));
        table.tick(Millis(2_000));
        assert_eq!(table.take_steps().died, []);
        table.tick(Millis(2_001));
        assert_eq!(table.take_steps().died, [(c, Death::Unreachable)]);
        table.note(c, &ProbeResult::Missed, Millis(2_002));
        assert_eq!(table.take_steps().died, []);
        table.note(c, &ProbeResult::Refused, Millis(2_003));
        assert_eq!(table.take_steps().died, [(c, Death::Gone)]);
        let after = view(&table, Some(&before), 20);
        assert_ne!(before.number(), after.number());
        for n in 0..100 {
            let service = ServiceKey::new("", "", &format!("s{n}"));
            match before.owner(&service) {
                Some(owner) if owner == c => {
                    assert_eq!(
                        after.owner(&service),
                        Some(a),
                        "the next in rank after c wraps to a"
                    );
                }
                owner => assert_eq!(after.owner(&service), owner),
            }
            if before.owner(&service) == Some(MemberId::of("b:1")) {
                assert_eq!(after.judge(&service), Judge::Since(Millis(10)));
            }
        }
    }

    #[test]
    fn an_impaired_member_comes_last_in_every_rank_and_is_never_out() {
        let (a, b, c) = (MemberId::of("a:1"), MemberId::of("b:1"), MemberId::of("c:1"));
        let mut table = table(&["a:1", "b:1", "c:1"]);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, &answer(said(address, true)), Millis(0));
        }
        let before = view(&table, None, 10);
        let services: Vec<_> = (0..50)
            .map(|n| ServiceKey::new("", "", &format!("s{n}")))
            .collect();
        let impair = |table: &mut MemberTable, id| {
            let member = table.peers.iter_mut().find(|m| m.id == id);
            let said = member.and_then(|m| m.said.as_mut());
            said.expect("a member that has answered").impaired = true;
        };
        impair(&mut table, a);
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Suspicious));
        let without_a = view(&table, Some(&before), 20);
        for service in &services {
            let ranked: Vec<_> = without_a.ranked(service).collect();
            assert_eq!((ranked.len(), ranked[2]), (3, a));
            let healthy: Vec<_> = before.ranked(service).filter(|id| *id != a).collect();
            assert_eq!(ranked[..2], healthy, "the others keep their order");
        }
        impair(&mut table, c);
        let me = (b, true, true);
        let all = OwnershipView::new(me, &table, Arc::new(ModuloMapper), None, Millis(30));
        for service in &services {
            assert!(
                all.ranked(service).eq(before.ranked(service)),
                "all are: nothing changes"
            );
        }
    }

    #[test]
    fn one_refused_connection_is_a_death_and_one_answer_a_return() {
        let a = MemberId::of("a:1");
        let mut table = table(&["a:1", "b:1"]);
        table.note(a, &ProbeResult::Refused, Millis(0));
        assert_eq!(table.take_steps().died, [(a, Death::Gone)]);
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Down));
        table.note(a, &answer(said("a:1", false)), Millis(1));
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Starting));
    }
}
