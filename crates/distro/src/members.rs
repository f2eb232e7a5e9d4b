//! The members of the cluster as this one sees them: who is configured, who answers, who owns a service.

use std::fmt;
use std::sync::Arc;

use rollcall_core::ownership::Mapper;
use rollcall_core::registry::beats::Judge;
use rollcall_core::{MemberId, Millis, ServiceKey};
use smol_str::SmolStr;

use crate::message::Probe;

/// State of a member, with the names that operators know (`spec/distro.md` §2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// Not heard of yet, or it answers and is not ready.
    Starting,
    /// It answers and is ready.
    Up,
    /// Some probes in a row were missed.
    Suspicious,
    /// It refused a connection, or missed too many probes.
    Down,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberState::Starting => "STARTING",
            MemberState::Up => "UP",
            MemberState::Suspicious => "SUSPICIOUS",
            MemberState::Down => "DOWN",
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

/// One configured member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its identity.
    pub id: MemberId,
    /// Its advertised address.
    pub address: SmolStr,
    /// What it said of itself last.
    pub said: Option<Probe>,
    /// Probes missed in a row.
    pub misses: u32,
    /// When it last answered.
    pub last_seen: Option<Millis>,
    /// Set while it counts as dead.
    pub death: Option<Death>,
}

impl Member {
    fn new(address: &SmolStr) -> Self {
        Member {
            id: MemberId::of(address),
            address: address.clone(),
            said: None,
            misses: 0,
            last_seen: None,
            death: None,
        }
    }

    /// It answered its last probe, or missed too few to count as dead.
    pub fn is_reachable(&self) -> bool {
        self.death.is_none() && self.said.is_some()
    }

    /// It may own services.
    pub fn is_serving(&self) -> bool {
        self.is_reachable() && self.said.as_ref().is_some_and(|s| s.ready && !s.leaving)
    }

    /// It serves, and it answered its last probe.
    pub fn is_trusted(&self) -> bool {
        self.is_serving() && self.misses == 0
    }

    /// Its state as operators know it.
    pub fn state(&self) -> MemberState {
        match (self.death, &self.said) {
            (Some(_), _) => MemberState::Down,
            (None, Some(said)) if said.leaving => MemberState::Down,
            (None, None) => MemberState::Starting,
            (None, Some(_)) if self.misses > 0 => MemberState::Suspicious,
            (None, Some(said)) if said.ready => MemberState::Up,
            (None, Some(_)) => MemberState::Starting,
        }
    }
}

/// All configured members but this one, and what probes say of them.
#[derive(Debug)]
pub struct MemberTable {
    peers: Vec<Member>,
    max_misses: u32,
}

impl MemberTable {
    /// A table of `peers`; a member that misses `max_misses` probes in a row is dead.
    pub fn new(peers: &[SmolStr], max_misses: u32) -> Self {
        let mut peers: Vec<_> = peers.iter().map(Member::new).collect();
        peers.sort_by(|a, b| a.address.cmp(&b.address));
        MemberTable {
            peers,
            max_misses: max_misses.max(1),
        }
    }

    /// The peers, sorted by address.
    pub fn peers(&self) -> &[Member] {
        &self.peers
    }

    /// One peer.
    pub fn peer(&self, id: MemberId) -> Option<&Member> {
        self.peers.iter().find(|m| m.id == id)
    }

    /// Takes a probe's result. Returns how the member died, if it did just now.
    pub fn note(&mut self, id: MemberId, result: ProbeResult, now: Millis) -> Option<Death> {
        let max_misses = self.max_misses;
        let member = self.peers.iter_mut().find(|m| m.id == id)?;
        let death = match result {
            ProbeResult::Answer(said) => {
                member.hear(said, now);
                return None;
            }
            ProbeResult::Refused => Death::Gone,
            ProbeResult::Missed => {
                member.misses = member.misses.saturating_add(1);
                if member.misses < max_misses {
                    return None;
                }
                Death::Unreachable
            }
        };
        let is_news =
            member.death.is_none() || (member.death, death) == (Some(Death::Unreachable), Death::Gone);
        if is_news {
            member.death = Some(death);
        }
        is_news.then_some(death)
    }

    /// Takes what a member said when it probed this one. It does not prove that it can be reached.
    pub fn note_said(&mut self, said: &Probe) {
        let id = MemberId::of(&said.member);
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id)
            && member.said.is_some()
        {
            member.said = Some(said.clone());
        }
    }

    /// Raises a suspicion without waiting for the next probe: a request to the member failed.
    pub fn suspect(&mut self, id: MemberId) {
        if let Some(member) = self.peers.iter_mut().find(|m| m.id == id) {
            member.misses = member.misses.max(1);
        }
    }
}

impl Member {
    fn hear(&mut self, said: Probe, now: Millis) {
        self.said = Some(said);
        self.misses = 0;
        self.last_seen = Some(now);
        self.death = None;
    }
}

/// Who owns what, computed anew whenever a member's state changes. Immutable.
pub struct OwnershipView {
    me: MemberId,
    mapper: Arc<dyn Mapper>,
    /// All configured members sorted by address, with whether they serve.
    members: Vec<(MemberId, SmolStr, bool)>,
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
    /// The view of `me` (which serves or not) among its peers. `former` tells since when it hears of the beats of what it keeps.
    pub fn new(
        me: (MemberId, &SmolStr, bool),
        peers: &[Member],
        mapper: Arc<dyn Mapper>,
        former: Option<&OwnershipView>,
        now: Millis,
    ) -> Self {
        let mut members: Vec<_> = peers
            .iter()
            .map(|m| (m.id, m.address.clone(), m.is_serving()))
            .collect();
        members.push((me.0, me.1.clone(), me.2));
        members.sort_by(|a, b| a.1.cmp(&b.1));
        let mut view = OwnershipView {
            me: me.0,
            mapper,
            heard_since: vec![None; members.len()],
            members,
        };
        for start in 0..view.members.len() {
            if view.ranked_from(start).take(N_HEARERS).any(|id| id == view.me) {
                let kept = former.and_then(|f| f.heard_since.get(start).copied().flatten());
                view.heard_since[start] = Some(kept.unwrap_or(now));
            }
        }
        view
    }

    /// The same with all hearing starting now: silence from before says nothing.
    pub fn renewed(&self, now: Millis) -> Self {
        OwnershipView {
            me: self.me,
            mapper: self.mapper.clone(),
            members: self.members.clone(),
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
    /// and shall then know who has been silent.
    pub fn hearers(&self, service: &ServiceKey) -> impl Iterator<Item = MemberId> + '_ {
        self.ranked(service).take(N_HEARERS)
    }

    /// This member's part in judging the beats of `service`.
    pub fn judge(&self, service: &ServiceKey) -> Judge {
        let start = self.mapper.first(service, self.members.len());
        match self.heard_since.get(start).copied().flatten() {
            Some(since) if self.owner(service) == Some(self.me) => Judge::Since(since),
            _ => Judge::Elsewhere,
        }
    }

    /// The advertised address of a member.
    pub fn address(&self, id: MemberId) -> Option<&SmolStr> {
        self.members.iter().find(|m| m.0 == id).map(|m| &m.1)
    }

    fn ranked_from(&self, start: usize) -> impl Iterator<Item = MemberId> + '_ {
        let n = self.members.len();
        (0..n)
            .filter_map(move |i| self.members.get((start + i) % n))
            .filter(|m| m.2)
            .map(|m| m.0)
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::ownership::ModuloMapper;

    use super::*;

    fn said(address: &str, ready: bool) -> Probe {
        Probe {
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
        }
    }

    fn view(table: &MemberTable, former: Option<&OwnershipView>, now: u64) -> OwnershipView {
        let address = SmolStr::new("b:1");
        let me = (MemberId::of("b:1"), &address, true);
        OwnershipView::new(me, table.peers(), Arc::new(ModuloMapper), former, Millis(now))
    }

    #[test]
    fn a_deputy_judges_from_the_first_moment_by_what_it_has_heard_before() {
        let (a, c) = (MemberId::of("a:1"), MemberId::of("c:1"));
        let mut table = MemberTable::new(&["c:1".into(), "a:1".into()], 3);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, ProbeResult::Answer(said(address, true)), Millis(0));
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
        table.note(a, ProbeResult::Refused, Millis(1));
        let without_a = view(&table, Some(&before), 20);
        assert_eq!(without_a.judge(&of_a), Judge::Since(Millis(10)));
        table.note(c, ProbeResult::Refused, Millis(2));
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
        let mut table = MemberTable::new(&["c:1".into()], 3);
        let leaving = Probe {
            leaving: true,
            ..said("c:1", false)
        };
        table.note(c, ProbeResult::Answer(leaving), Millis(0));
        assert_eq!(table.peer(c).map(Member::state), Some(MemberState::Down));
    }

    #[test]
    fn a_death_moves_only_that_members_share() {
        let (a, c) = (MemberId::of("a:1"), MemberId::of("c:1"));
        let mut table = MemberTable::new(&["c:1".into(), "a:1".into()], 3);
        for (id, address) in [(a, "a:1"), (c, "c:1")] {
            table.note(id, ProbeResult::Answer(said(address, true)), Millis(0));
        }
        let before = view(&table, None, 10);
        assert_eq!(table.note(c, ProbeResult::Missed, Millis(1)), None);
        assert_eq!(table.peer(c).map(Member::state), Some(MemberState::Suspicious));
        assert_eq!(table.note(c, ProbeResult::Missed, Millis(2)), None);
        assert_eq!(
            table.note(c, ProbeResult::Missed, Millis(3)),
            Some(Death::Unreachable)
        );
        assert_eq!(table.note(c, ProbeResult::Missed, Millis(4)), None);
        assert_eq!(table.note(c, ProbeResult::Refused, Millis(5)), Some(Death::Gone));
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
    fn one_refused_connection_is_a_death_and_one_answer_a_return() {
        let a = MemberId::of("a:1");
        let mut table = MemberTable::new(&["a:1".into()], 3);
        assert_eq!(table.note(a, ProbeResult::Refused, Millis(0)), Some(Death::Gone));
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Down));
        table.note(a, ProbeResult::Answer(said("a:1", false)), Millis(1));
        assert_eq!(table.peer(a).map(Member::state), Some(MemberState::Starting));
    }
}
