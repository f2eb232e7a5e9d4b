//! How long the orphans of each member stay (`design.md` §3, Orphans).
//!
//! Most clients register again elsewhere within seconds, so their orphans are dropped first; those of clients that
//! return slowly (see [`ClientId::returns_slowly`]) stay for a fixed time more.
//!
//! [`ClientId::returns_slowly`]: rollcall_core::registry::change::ClientId::returns_slowly

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use rollcall_core::registry::change::ClientId;
use rollcall_core::{MemberId, Millis};

/// The graces that run.
#[derive(Debug)]
pub(crate) struct Graces {
    slow_extra: Millis,
    running: Mutex<BTreeMap<MemberId, Grace>>,
    /// Members whose orphans are being dropped, with the clients that are left.
    dropping: Mutex<BTreeMap<MemberId, VecDeque<ClientId>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Grace {
    until: Millis,
    slow_until: Millis,
    /// Only the orphans of slow clients are left.
    is_second_part: bool,
    /// Among the orphans are some that the member they belong to does not hold any more: of an earlier process of it, or
    /// as another member or a copy on disk tells them.
    has_former: bool,
}

/// Orphans whose time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    /// Their member.
    pub(crate) member: MemberId,
    /// Also those of slow clients.
    pub(crate) with_slow: bool,
}

impl Graces {
    /// `slow_extra`: how much longer the orphans of slow clients stay.
    pub(crate) fn new(slow_extra: Millis) -> Self {
        Graces {
            slow_extra,
            running: Mutex::default(),
            dropping: Mutex::default(),
        }
    }

    /// The orphans of these clients of a member are to be dropped, some at a time.
    pub(crate) fn begin_drop(&self, id: MemberId, clients: impl IntoIterator<Item = ClientId>) {
        self.dropping.lock().entry(id).or_default().extend(clients);
    }

    /// Some clients whose orphans are to be dropped next, all of one member.
    pub(crate) fn next_dropped(&self, limit: usize) -> Option<(MemberId, Vec<ClientId>)> {
        let mut dropping = self.dropping.lock();
        let mut first = dropping.first_entry()?;
        let clients = first.get_mut();
        let n_taken = limit.min(clients.len());
        let taken = clients.drain(..n_taken).collect();
        let id = *first.key();
        if first.get().is_empty() {
            first.remove();
        }
        Some((id, taken))
    }

    /// True when no orphans of the member are left to be dropped, now or later.
    pub(crate) fn is_over(&self, id: MemberId) -> bool {
        !self.running.lock().contains_key(&id) && !self.dropping.lock().contains_key(&id)
    }

    /// True while orphans are being dropped.
    pub(crate) fn is_dropping(&self) -> bool {
        !self.dropping.lock().is_empty()
    }

    /// The orphans of a member stay until then, those of its slow clients longer. Orphans of an earlier process of it
    /// stay as long.
    pub(crate) fn grant(&self, id: MemberId, until: Millis) {
        self.dropping.lock().remove(&id);
        let mut running = self.running.lock();
        let grace = running.entry(id).or_default();
        grace.until = grace.until.max(until);
        grace.slow_until = grace.slow_until.max(until + self.slow_extra);
        grace.is_second_part = false;
    }

    /// The orphans of a member, if any are left, are of an earlier process of it.
    pub(crate) fn are_former(&self, id: MemberId) {
        if let Some(grace) = self.running.lock().get_mut(&id) {
            grace.has_former = true;
        }
    }

    /// The grace of a member lasts until then at least, if one runs and its first part is not over.
    pub(crate) fn prolong(&self, id: MemberId, until: Millis) {
        let mut running = self.running.lock();
        if let Some(grace) = running
            .get_mut(&id)
            .filter(|g| !g.has_former && !g.is_second_part)
        {
            grace.until = grace.until.max(until);
            grace.slow_until = grace.slow_until.max(until + self.slow_extra);
        }
    }

    /// Grants what is left of the whole grace, slow clients included, as another member tells it.
    pub(crate) fn grant_rest(&self, id: MemberId, rest: Millis, now: Millis) {
        self.dropping.lock().remove(&id);
        let mut running = self.running.lock();
        let grace = running.entry(id).or_default();
        grace.until = grace.until.max(now + (rest - self.slow_extra));
        grace.slow_until = grace.slow_until.max(now + rest);
        grace.is_second_part = false;
        grace.has_former = true;
    }

    /// What is left of the whole grace of a member, slow clients included.
    pub(crate) fn rest(&self, id: MemberId, now: Millis) -> Millis {
        let running = self.running.lock();
        running.get(&id).map_or(Millis(0), |g| g.slow_until.since(now))
    }

    /// Ends the grace of a member that turned out to be alive and to hold its connections. False when there was none,
    /// or it does not hold all of them.
    pub(crate) fn end(&self, id: MemberId) -> bool {
        let mut running = self.running.lock();
        let ends = running.get(&id).is_some_and(|g| !g.has_former) && running.remove(&id).is_some();
        if ends {
            self.dropping.lock().remove(&id);
        }
        ends
    }

    /// What has to be dropped now; each part of a grace is told once.
    pub(crate) fn take_over(&self, now: Millis) -> Vec<Over> {
        let mut over = Vec::new();
        self.running.lock().retain(|member, grace| {
            let with_slow = grace.slow_until <= now;
            if with_slow || (grace.until <= now && !grace.is_second_part) {
                grace.is_second_part = true;
                over.push(Over {
                    member: *member,
                    with_slow,
                });
            }
            !with_slow
        });
        over
    }

    /// When the next part ends.
    pub(crate) fn next_due(&self) -> Option<Millis> {
        let running = self.running.lock();
        let due = |g: &Grace| if g.is_second_part { g.slow_until } else { g.until };
        running.values().map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MemberId = MemberId(1);

    #[test]
    fn orphans_are_dropped_some_at_a_time_unless_a_new_grace_begins() {
        let graces = Graces::new(Millis(0));
        let clients = |from| (from..5).map(|n| ClientId::new(A, n, false));
        graces.begin_drop(A, clients(0));
        assert_eq!(graces.next_dropped(2), Some((A, clients(0).take(2).collect())));
        assert_eq!(graces.next_dropped(9), Some((A, clients(2).collect())));
        assert!(!graces.is_dropping());
        assert_eq!(graces.next_dropped(9), None);
        graces.begin_drop(A, clients(0));
        graces.grant(A, Millis(15));
        assert_eq!(graces.next_dropped(9), None);
    }

    fn over(with_slow: bool) -> Vec<Over> {
        vec![Over { member: A, with_slow }]
    }

    #[test]
    fn a_member_that_is_back_gets_more_time_while_nothing_of_it_was_dropped() {
        let graces = Graces::new(Millis(25));
        graces.prolong(A, Millis(100));
        assert_eq!(graces.next_due(), None, "no grace runs");
        graces.grant(A, Millis(15));
        graces.prolong(A, Millis(40));
        assert_eq!(graces.take_over(Millis(39)), []);
        assert_eq!(graces.take_over(Millis(40)), over(false));
        graces.prolong(A, Millis(100));
        assert_eq!(graces.take_over(Millis(65)), over(true));
    }

    #[test]
    fn a_grace_ends_in_two_parts() {
        let graces = Graces::new(Millis(25));
        graces.grant(A, Millis(15));
        assert_eq!(graces.next_due(), Some(Millis(15)));
        assert_eq!(graces.rest(A, Millis(10)), Millis(30));
        assert_eq!(graces.take_over(Millis(14)), []);
        assert_eq!(graces.take_over(Millis(15)), over(false));
        assert_eq!(graces.take_over(Millis(39)), []);
        assert_eq!(graces.next_due(), Some(Millis(40)));
        assert_eq!(graces.take_over(Millis(40)), over(true));
        assert_eq!(graces.next_due(), None);
    }

    #[test]
    fn a_second_death_of_a_member_begins_both_parts_again() {
        let graces = Graces::new(Millis(25));
        graces.grant(A, Millis(15));
        graces.take_over(Millis(20));
        graces.grant(A, Millis(50));
        assert_eq!(graces.take_over(Millis(49)), []);
        assert_eq!(graces.take_over(Millis(50)), over(false));
        assert!(graces.end(A));
        assert!(!graces.end(A));
    }

    #[test]
    fn what_is_left_elsewhere_is_granted_here() {
        let (theirs, ours) = (Graces::new(Millis(25)), Graces::new(Millis(25)));
        theirs.grant(A, Millis(15));
        ours.grant_rest(A, theirs.rest(A, Millis(5)), Millis(1_005));
        assert!(
            !ours.end(A),
            "that it dials again does not make its former connections live"
        );
        assert_eq!(ours.take_over(Millis(1_014)), []);
        assert_eq!(ours.take_over(Millis(1_015)), over(false));
        assert_eq!(ours.take_over(Millis(1_040)), over(true));
        let late = Graces::new(Millis(25));
        late.grant_rest(A, theirs.rest(A, Millis(30)), Millis(1_030));
        assert_eq!(late.take_over(Millis(1_030)), over(false));
        assert_eq!(late.take_over(Millis(1_040)), over(true));
    }
}
