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
    /// It has answered that it belongs to another cluster, or goes by other rules than this member.
    pub differs: bool,
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
            differs: false,
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
/// a listed member or another guest lists. So a member takes part from the first list that names it until the last one of
/// those that take part drops it, and nobody loses rows meanwhile. Guests own nothing here.
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
        // Guests may be hosts in their turn: else two members that a third one follows could fail to follow each other.
        let mut at = 0;
        while let Some(address) = wanted.get(at) {
            let host = self
                .peers
                .iter()
                .find(|m| m.address == *address && m.is_reachable());
            let list = host.and_then(|host| host.list.as_ref());
            for guest in list
                .filter(|list| list.hash != self.list.hash)
                .iter()
                .flat_map(|list| list.addresses.iter())
            {
                if *guest != self.me && !wanted.contains(guest) {
                    wanted.push(guest.clone());
                }
            }
            at += 1;
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

    /// Whoever answers says that it does not know this member, or as many say so as there are that know it, itself included:
    /// members that are dropped together must not go on as a cluster of their own.
    pub fn is_unlisted(&self) -> bool {
        let n_disown = self
            .peers
            .iter()
            .filter(|m| m.disowns && m.death.is_none())
            .count();
        let n_know = self.peers.iter().filter(|m| m.is_reachable()).count();
        n_disown > 0 && (n_know == 0 || n_disown > n_know)
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

    /// A member has answered that it differs in what all must agree on.
    pub(crate) fn note_differs(&mut self, id: MemberId) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.differs = true;
        }
    }

    /// A member has taken this one's link: it knows it.
    pub(crate) fn note_owned(&mut self, id: MemberId) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.disowns = false;
            member.differs = false;
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
                    member.said = Some(probe.state());
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
        self.learn(at, probe.state(), true);
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

/// Who owns what, computed anew whenever a member's state or a list changes. Immutable.
///
/// This member hears of all beats of a service while it is its owner or the owner's deputy: while at most one member
/// that ranks before it serves. So it has heard of them since the last moment at which two did, and since it serves
/// itself. Whoever becomes one of the two gives every row a full time-out from then on, whoever stays keeps its time.
pub struct OwnershipView {
    me: MemberId,
    mapper: Arc<dyn Mapper>,
    /// The member list sorted by address.
    ids: Vec<MemberId>,
    /// The same members, at the same positions.
    listed: Vec<Listed>,
    /// Guests that serve.
    guests: Vec<(MemberId, SmolStr)>,
    /// Since when this member serves with this list, and is not among those that come last.
    serves_since: Option<Millis>,
    /// It is among those that come last, and so is everyone who serves: since when just these have served.
    alone_since: Option<Millis>,
    /// The last time while lists differed, so that all heard of all beats: from when, and until when if it is over.
    differed: Option<(Millis, Option<Millis>)>,
}

#[derive(Clone, PartialEq, Debug)]
struct Listed {
    address: SmolStr,
    /// Until when it served and was not impaired.
    served: Served,
    /// It serves, and is impaired: it comes last in every rank, and takes part as long as nobody else does.
    is_last: bool,
}

/// Until when a member was seen serving, the latest last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Served {
    Never,
    Until(Millis),
    Still,
}

/// The owner and its deputy hear of all beats of a service.
const N_HEARERS: usize = 2;

impl fmt::Debug for OwnershipView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnershipView")
            .field("mapper", &self.mapper)
            .field("listed", &self.listed)
            .finish()
    }
}

impl OwnershipView {
    /// The view of `me`, which serves or not, and is impaired or not. `former` tells since when it hears of the beats of
    /// what it keeps; after a change of its list it keeps nothing.
    pub fn new(
        me: (MemberId, bool, bool),
        table: &MemberTable,
        mapper: Arc<dyn Mapper>,
        former: Option<&OwnershipView>,
        now: Millis,
    ) -> Self {
        let (me, serves, impaired) = me;
        let ids: Vec<_> = table.list().iter().map(|address| MemberId::of(address)).collect();
        let former = former.filter(|former| former.ids == ids);
        let listed = ids.iter().zip(table.list()).enumerate();
        let listed: Vec<_> = listed
            .map(|(at, (id, address))| {
                let (is_serving, is_impaired) = match table.peer(*id) {
                    Some(member) => (member.is_serving(), member.is_impaired()),
                    None => (*id == me && serves, impaired),
                };
                let served = match former.and_then(|former| former.listed.get(at)).map(|m| m.served) {
                    _ if is_serving && !is_impaired => Served::Still,
                    Some(Served::Still) => Served::Until(now),
                    Some(served) => served,
                    None => Served::Never,
                };
                Listed {
                    address: address.clone(),
                    served,
                    is_last: is_serving && is_impaired,
                }
            })
            .collect();
        let guests = table.peers().iter().filter(|m| !m.is_listed && m.is_serving());
        OwnershipView {
            me,
            mapper,
            serves_since: (serves && !impaired).then(|| former.and_then(|f| f.serves_since).unwrap_or(now)),
            alone_since: (serves && impaired && listed.iter().all(|m| m.served != Served::Still)).then(
                || {
                    let is_same = |f: &&OwnershipView| f.listed == listed;
                    former.filter(is_same).and_then(|f| f.alone_since).unwrap_or(now)
                },
            ),
            listed,
            guests: guests.map(|m| (m.id, m.address.clone())).collect(),
            differed: match (table.lists_agree(), former.and_then(|former| former.differed)) {
                (false, Some((since, None))) => Some((since, None)),
                (false, _) => Some((now, None)),
                (true, Some((since, end))) => Some((since, end.or(Some(now)))),
                (true, None) => None,
            },
            ids,
        }
    }

    /// Every member that is reached has the same list.
    pub fn lists_agree(&self) -> bool {
        !matches!(self.differed, Some((_, None)))
    }

    /// The same with all hearing starting now: silence from before says nothing.
    pub fn renewed(&self, now: Millis) -> Self {
        OwnershipView {
            me: self.me,
            mapper: self.mapper.clone(),
            ids: self.ids.clone(),
            listed: self.listed.clone(),
            guests: self.guests.clone(),
            serves_since: self.serves_since.map(|_| now),
            alone_since: self.alone_since.map(|_| now),
            differed: self.differed,
        }
    }

    /// A number for this view, the same on members that see the same members serving.
    pub fn number(&self) -> u64 {
        let all = 0..self.ids.len();
        let serving = all.clone().filter_map(|at| self.serving(at));
        let serving = serving.chain(all.filter_map(|at| self.serving_last(at)));
        serving.fold(0, |sum: u64, id| sum.rotate_left(7) ^ id.0)
    }

    /// The members that serve, in their rank for `service`: the first is the owner.
    pub fn ranked(&self, service: &ServiceKey) -> impl Iterator<Item = MemberId> + '_ {
        let order = self.mapper.order(service, self.ids.len());
        let first = order.positions(&self.ids).filter_map(|at| self.serving(at));
        first.chain(order.positions(&self.ids).filter_map(|at| self.serving_last(at)))
    }

    /// The owner of `service`.
    pub fn owner(&self, service: &ServiceKey) -> Option<MemberId> {
        self.ranked(service).next()
    }

    /// The members that shall hear of every beat of `service`: its owner, and who would own it after the owner's death
    /// and shall then know who has been silent. While lists differ, everyone may be taken for the owner by someone, so
    /// everyone hears.
    pub fn hearers(&self, service: &ServiceKey) -> impl Iterator<Item = MemberId> + '_ {
        let n_listed = if self.lists_agree() { N_HEARERS } else { usize::MAX };
        let n_guests = if self.lists_agree() { 0 } else { usize::MAX };
        let guests = self.guests.iter().map(|guest| guest.0).take(n_guests);
        self.ranked(service).take(n_listed).chain(guests)
    }

    /// This member's part in judging the beats of `service`. While lists differ, two members may each take the other
    /// for the owner: then everyone judges, by what everyone hears.
    pub fn judge(&self, service: &ServiceKey) -> Judge {
        let Some(serves_since) = self.serves_since else {
            return match self.alone_since {
                Some(since) if self.owner(service) == Some(self.me) => Judge::Since(since),
                _ => Judge::Elsewhere,
            };
        };
        let [last, last_but_one] = self.served_before_me(service);
        let as_one_of_two = match last_but_one {
            Served::Never => Some(serves_since),
            Served::Until(end) => Some(end.max(serves_since)),
            Served::Still => None,
        };
        let is_owner = last != Served::Still;
        match (self.differed, as_one_of_two) {
            (Some((all, None)), since) => {
                Judge::Since(since.map_or(all, |since| since.min(all)).max(serves_since))
            }
            (Some((all, Some(end))), Some(since)) if is_owner && since <= end => {
                Judge::Since(since.min(all).max(serves_since))
            }
            (_, Some(since)) if is_owner => Judge::Since(since),
            _ => Judge::Elsewhere,
        }
    }

    /// Of the members that rank before this one for `service`, until when the two served that did so last.
    fn served_before_me(&self, service: &ServiceKey) -> [Served; 2] {
        let order = self.mapper.order(service, self.ids.len());
        let mut two = [Served::Never; 2];
        let Some(here) = self.ids.iter().position(|id| *id == self.me) else {
            return two;
        };
        for (at, listed) in self.listed.iter().enumerate() {
            if listed.served > two[1] && order.is_before(at, here, &self.ids) {
                two[1] = listed.served;
                two.sort_unstable_by(|a, b| b.cmp(a));
            }
        }
        two
    }

    /// The advertised address of a member.
    pub fn address(&self, id: MemberId) -> Option<&SmolStr> {
        let at = self.ids.iter().position(|listed| *listed == id);
        let listed = at.and_then(|at| self.listed.get(at)).map(|m| &m.address);
        listed.or_else(|| self.guests.iter().find(|m| m.0 == id).map(|m| &m.1))
    }

    fn serving(&self, at: usize) -> Option<MemberId> {
        let is_serving = self.listed.get(at).is_some_and(|m| m.served == Served::Still);
        self.ids.get(at).copied().filter(|_| is_serving)
    }

    fn serving_last(&self, at: usize) -> Option<MemberId> {
        let is_last = self.listed.get(at).is_some_and(|m| m.is_last);
        self.ids.get(at).copied().filter(|_| is_last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rollcall_core::ownership::{ModuloMapper, mapper};

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
        // A guest has guests: whoever follows it follows them, too.
        table.note(MemberId::of("d:1"), &lists("d:1", &["d:1", "e:1"]), Millis(0));
        assert_eq!(table.turn_over().joined, [MemberId::of("e:1")]);
        assert_eq!(addresses(&table), [("a:1", true), ("d:1", false), ("e:1", false)]);
        // They keep nobody by their own word alone, nor each other.
        table.note(MemberId::of("e:1"), &lists("e:1", &["d:1", "e:1"]), Millis(0));
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
    fn members_that_are_dropped_together_are_unlisted_though_they_know_each_other() {
        let ids = ["a:1", "c:1", "d:1", "e:1"].map(|address| (MemberId::of(address), address));
        let mut table = table(&["a:1", "b:1", "c:1", "d:1", "e:1"]);
        for (id, address) in ids {
            table.note(id, &answer(said(address, true)), Millis(0));
        }
        table.note_disowned(ids[0].0);
        assert!(!table.is_unlisted(), "one against four");
        table.note_disowned(ids[1].0);
        assert!(!table.is_unlisted(), "two against three");
        table.note_disowned(ids[2].0);
        assert!(table.is_unlisted(), "three against two");
        table.note(ids[2].0, &answer(said("d:1", true)), Millis(1));
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
        assert_eq!(table.take_steps().reached, [a], "its link is dialed anew");
        table.note(a, &answer(said("a:1", false)), Millis(2));
        assert!(table.take_steps().reached.is_empty(), "it was not in doubt");
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Starting));
    }

    const FIVE: [&str; 5] = ["a:1", "b:1", "c:1", "d:1", "e:1"];

    /// The views of `b:1` among five while members come and go, with who served from when on.
    struct History {
        mapper: Arc<dyn Mapper>,
        view: OwnershipView,
        table: MemberTable,
        serving: Vec<(u64, [bool; 5])>,
    }

    impl History {
        fn new(rule: &str) -> Self {
            let (table, mapper) = (table(&FIVE), mapper(rule).expect("a rule"));
            let view = OwnershipView::new(
                (MemberId::of("b:1"), true, false),
                &table,
                mapper.clone(),
                None,
                Millis(1),
            );
            let serving = vec![(1, FIVE.map(|address| address == "b:1"))];
            History {
                mapper,
                view,
                table,
                serving,
            }
        }

        fn toggle(&mut self, at: usize, now: u64) {
            let mut serving = self.serving.last().expect("one").1;
            serving[at] = !serving[at];
            self.serving.push((now, serving));
            if at != 1 {
                let result = match serving[at] {
                    true => lists(FIVE[at], &FIVE),
                    false => ProbeResult::Refused,
                };
                self.table.note(MemberId::of(FIVE[at]), &result, Millis(now));
            }
            let me = (MemberId::of("b:1"), serving[1], false);
            let former = Some(&self.view);
            self.view = OwnershipView::new(me, &self.table, self.mapper.clone(), former, Millis(now));
        }

        /// Since when `b:1` is among the first two that serve, by who served when; and the latest change among those
        /// that rank before it, or of itself.
        fn heard_since(&self, service: &ServiceKey) -> (Option<u64>, u64) {
            let ids = FIVE.map(MemberId::of);
            let order = self.mapper.order(service, 5);
            let before: Vec<_> = order.positions(&ids).take_while(|at| *at != 1).collect();
            let (mut since, mut changed, mut former) = (None, 0, None);
            for (time, serving) in &self.serving {
                let n_before = before.iter().filter(|at| serving[**at]).count();
                since = (serving[1] && n_before < 2).then(|| since.unwrap_or(*time));
                let now: Vec<_> = before.iter().chain(&[1]).map(|at| serving[*at]).collect();
                if former.as_ref() != Some(&now) {
                    changed = *time;
                }
                former = Some(now);
            }
            (since, changed)
        }
    }

    proptest! {
        /// Whatever comes and goes, only the owner judges, by nothing that it has not heard itself, and whoever was one
        /// of the two all the time keeps its time.
        #[test]
        fn an_owner_judges_by_what_it_has_heard(
            rule in prop_oneof![Just("modulo"), Just("rendezvous")],
            toggles in proptest::collection::vec(0..5usize, 0..12),
        ) {
            let mut history = History::new(rule);
            for (n, at) in toggles.into_iter().enumerate() {
                history.toggle(at, 10 * (n as u64 + 1));
            }
            for n in 0..40 {
                let service = ServiceKey::new("", "", &format!("s{n}"));
                let (heard, changed) = history.heard_since(&service);
                let is_owner = history.view.owner(&service) == Some(MemberId::of("b:1"));
                match history.view.judge(&service) {
                    Judge::Elsewhere => prop_assert!(!is_owner),
                    Judge::Since(Millis(since)) => {
                        prop_assert!(is_owner);
                        let heard = heard.expect("an owner hears");
                        prop_assert!(heard <= since && since <= changed, "{heard} {since} {changed}");
                    }
                }
            }
        }

        /// A death moves the services of the dead member and no other, to the next in rank.
        #[test]
        fn a_death_moves_nothing_else(
            rule in prop_oneof![Just("modulo"), Just("rendezvous")],
            alive in proptest::collection::vec(0..5usize, 0..5),
            dies in 0..5usize,
        ) {
            let mut history = History::new(rule);
            for (n, at) in alive.into_iter().enumerate().filter(|(_, at)| *at != 1) {
                history.toggle(at, n as u64 + 2);
            }
            prop_assume!(history.serving.last().is_some_and(|(_, serving)| serving[dies]));
            let services: Vec<_> = (0..40).map(|n| ServiceKey::new("", "", &format!("s{n}"))).collect();
            let ranked = |view: &OwnershipView| -> Vec<Vec<MemberId>> {
                services.iter().map(|service| view.ranked(service).collect()).collect()
            };
            let before = ranked(&history.view);
            history.toggle(dies, 100);
            let dead = MemberId::of(FIVE[dies]);
            for (before, after) in before.into_iter().zip(ranked(&history.view)) {
                let without: Vec<_> = before.into_iter().filter(|id| *id != dead).collect();
                prop_assert_eq!(without, after);
            }
        }
    }

    #[test]
    fn with_rendezvous_a_member_becomes_the_deputy_of_what_it_was_third_for() {
        let mut history = History::new("rendezvous");
        for at in [0, 2, 3, 4] {
            history.toggle(at, 10);
        }
        // Ranked as the third of five: deputy after one death before it, owner after two.
        let (ids, rank) = (
            FIVE.map(MemberId::of),
            |view: &OwnershipView, service: &ServiceKey| {
                view.ranked(service).position(|id| id == MemberId::of("b:1"))
            },
        );
        let names = (0..100).map(|n| ServiceKey::new("", "", &format!("s{n}")));
        let third: Vec<_> = names.filter(|s| rank(&history.view, s) == Some(2)).collect();
        let service = third.first().expect("some");
        let first_two: Vec<_> = history.view.ranked(service).take(2).collect();
        let at = |id: MemberId| ids.iter().position(|other| *other == id).expect("listed");
        assert_eq!(history.view.judge(service), Judge::Elsewhere);
        history.toggle(at(first_two[0]), 20);
        assert_eq!(history.view.judge(service), Judge::Elsewhere);
        history.toggle(at(first_two[1]), 30);
        assert_eq!(
            history.view.judge(service),
            Judge::Since(Millis(20)),
            "deputy since the first death"
        );
        assert_eq!(
            history.view.renewed(Millis(40)).judge(service),
            Judge::Since(Millis(40))
        );
    }
}
