//! Which member owns a service: how the configured members are ranked for it (`design.md` §2, `spec/distro.md` W10).

use std::fmt;
use std::sync::Arc;

use crate::member_id::MemberId;
use crate::model::service_key::ServiceKey;

/// A rule that ranks the configured members for a service. All members of a cluster must use the same one.
pub trait Mapper: fmt::Debug + Send + Sync {
    /// Name of the rule: its setting, compared in the handshake between members.
    fn name(&self) -> &'static str;

    /// How `n_members` members, at least 1, rank for `service`.
    fn order(&self, service: &ServiceKey, n_members: usize) -> Order;
}

/// The rule with this name.
pub fn mapper(name: &str) -> Option<Arc<dyn Mapper>> {
    match name {
        "modulo" => Some(Arc::new(ModuloMapper)),
        "rendezvous" => Some(Arc::new(RendezvousMapper)),
        _ => None,
    }
}

/// `hash("group@@name") mod n` with the hash that Java's `String.hashCode` computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModuloMapper;

impl Mapper for ModuloMapper {
    fn name(&self) -> &'static str {
        "modulo"
    }

    fn order(&self, service: &ServiceKey, n_members: usize) -> Order {
        let hash = java_hash(service.grouped_name());
        Order::From((i64::from(hash) % i64::from(i32::MAX)).unsigned_abs() as usize % n_members)
    }
}

/// Each member has a score for each service, whoever else is configured; so a member that comes takes its share from
/// all others, one that goes leaves its share to all others, and nothing else moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct RendezvousMapper;

impl Mapper for RendezvousMapper {
    fn name(&self) -> &'static str {
        "rendezvous"
    }

    fn order(&self, service: &ServiceKey, _n_members: usize) -> Order {
        Order::Scored(service.stable_hash())
    }
}

/// How members rank for one service. Members are named by their position in the list sorted by address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// From this position on, wrapping around.
    From(usize),
    /// By their scores for the service with this hash, the greatest first.
    Scored(u64),
}

impl Order {
    /// The positions of `members`, from the first in rank to the last. Takes no memory; finding the next one is a look
    /// at all members when they are scored.
    pub fn positions(self, members: &[MemberId]) -> Positions<'_> {
        Positions {
            order: self,
            members,
            n_given: 0,
            last_score: None,
        }
    }

    /// True when the member at `one` ranks before the member at `other`.
    pub fn is_before(self, one: usize, other: usize, members: &[MemberId]) -> bool {
        match self {
            Order::From(start) => (one < start, one) < (other < start, other),
            Order::Scored(key) => {
                let score = |at: usize| members.get(at).map(|member| score(key, *member));
                score(one) > score(other)
            }
        }
    }
}

/// See [`Order::positions`].
#[derive(Clone, Debug)]
pub struct Positions<'a> {
    order: Order,
    members: &'a [MemberId],
    n_given: usize,
    last_score: Option<u64>,
}

impl Iterator for Positions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let n = self.members.len();
        if self.n_given == n {
            return None;
        }
        let at = match self.order {
            Order::From(start) => {
                let at = start + self.n_given;
                if at < n { at } else { at - n }
            }
            Order::Scored(key) => {
                let scores = self.members.iter().map(|member| score(key, *member)).enumerate();
                let is_left = |&(_, score): &(usize, u64)| self.last_score.is_none_or(|last| score < last);
                let (at, score) = scores.filter(is_left).max_by_key(|(_, score)| *score)?;
                self.last_score = Some(score);
                at
            }
        };
        self.n_given += 1;
        Some(at)
    }
}

/// Each bit of both goes into each bit of the score. No two members have the same for one service: every step can be
/// undone (the finalizer of MurmurHash3).
fn score(service: u64, member: MemberId) -> u64 {
    let mut score = service ^ member.0;
    score = (score ^ (score >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    score = (score ^ (score >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    score ^ (score >> 33)
}

/// `String.hashCode` of Java: over UTF-16 units, 31-based, wrapping.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16()
        .fold(0i32, |h, unit| h.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_equals_javas() {
        // Values from the definition s[0]*31^(n-1) + ... in 32-bit arithmetic.
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("a"), 97);
        assert_eq!(java_hash("hello"), 99162322);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("😀"), 0xD83Di32 * 31 + 0xDE00);
    }

    #[test]
    fn the_smallest_hash_has_a_place_too() {
        let service = ServiceKey::new("", "", "x");
        assert!(matches!(ModuloMapper.order(&service, 3), Order::From(0..3)));
        assert_eq!((i64::from(i32::MIN) % i64::from(i32::MAX)).unsigned_abs(), 1);
    }

    const RULES: [&str; 2] = ["modulo", "rendezvous"];

    fn members(n: usize) -> Vec<MemberId> {
        let addresses = (0..n).map(|n| format!("10.0.{}.{}:8848", n / 200, n % 200));
        addresses.map(|address| MemberId::of(&address)).collect()
    }

    fn service(n: usize) -> ServiceKey {
        ServiceKey::new("", "", &format!("service-{n}"))
    }

    #[test]
    fn each_member_ranks_once_and_before_all_that_come_later() {
        for (rule, n) in RULES
            .into_iter()
            .flat_map(|rule| [1, 2, 3, 7, 256].map(|n| (rule, n)))
        {
            let (mapper, members) = (mapper(rule).unwrap(), members(n));
            assert_eq!(mapper.name(), rule);
            for service in (0..20).map(service) {
                let order = mapper.order(&service, n);
                let ranked: Vec<_> = order.positions(&members).collect();
                let mut sorted = ranked.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n).collect::<Vec<_>>(), "{rule} of {n}");
                for pair in ranked.windows(2) {
                    assert!(order.is_before(pair[0], pair[1], &members));
                    assert!(!order.is_before(pair[1], pair[0], &members));
                }
                assert!(!order.is_before(0, 0, &members));
            }
        }
        assert!(mapper("consistent").is_none());
    }

    fn owners(rule: &str, members: &[MemberId], n_services: usize) -> Vec<MemberId> {
        let mapper = mapper(rule).unwrap();
        let first = |service| {
            let order = mapper.order(&service, members.len());
            members[order.positions(members).next().unwrap()]
        };
        (0..n_services).map(service).map(first).collect()
    }

    /// W10: with `rendezvous` a member that comes takes 1/(n+1), all of it for itself, and as much from each other; one
    /// that goes moves only what it owned.
    #[test]
    fn with_rendezvous_a_change_of_the_list_moves_one_share() {
        const SERVICES: usize = 20_000;
        for n in [2, 3, 4, 9, 40] {
            let all = members(n + 1);
            let (with, newcomer) = (owners("rendezvous", &all, SERVICES), all[n / 2]);
            let mut fewer = all.clone();
            fewer.remove(n / 2);
            let without = owners("rendezvous", &fewer, SERVICES);
            let moved: Vec<_> = with
                .iter()
                .zip(&without)
                .filter(|(with, without)| with != without)
                .collect();
            assert!(
                moved.iter().all(|(with, _)| **with == newcomer),
                "only to or from that one"
            );
            let share = SERVICES as f64 / (n + 1) as f64;
            let deviation = 5.0 * share.sqrt();
            assert!(
                (moved.len() as f64 - share).abs() < deviation,
                "{} of {n} + 1",
                moved.len()
            );
            for member in &fewer {
                let from = moved.iter().filter(|(_, without)| *without == member).count() as f64;
                let share = share / n as f64;
                assert!(
                    (from - share).abs() < 5.0 * share.sqrt(),
                    "{from} instead of {share} from one of {n}"
                );
            }
        }
    }

    #[test]
    fn every_member_owns_its_share() {
        const SERVICES: usize = 20_000;
        for (rule, n) in RULES.into_iter().flat_map(|rule| [3, 5, 20].map(|n| (rule, n))) {
            let (members, share) = (members(n), SERVICES as f64 / n as f64);
            let owners = owners(rule, &members, SERVICES);
            for member in &members {
                let owned = owners.iter().filter(|owner| *owner == member).count() as f64;
                assert!((owned - share).abs() < share / 5.0, "{rule}: {owned} of {share}");
            }
        }
    }
}
