//! How long the orphans of each member stay (`design.md` §3, Orphans).
//!
//! Most clients register again elsewhere within seconds, so their orphans are dropped first; those of clients that
//! return slowly (see [`ClientId::returns_slowly`]) stay for a fixed time more.
//!
//! [`ClientId::returns_slowly`]: rollcall_core::registry::change::ClientId::returns_slowly

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rollcall_core::registry::change::ClientId;
use rollcall_core::registry::orphans::Fleet;
use rollcall_core::{MemberId, Millis};

/// The graces that run.
#[derive(Debug)]
pub(crate) struct Graces {
    slow_extra: Millis,
    /// Members whose rows are becoming orphans, or live again; locked before the others.
    turning: Mutex<BTreeMap<MemberId, Turning>>,
    running: Mutex<BTreeMap<MemberId, Grace>>,
    /// Members whose orphans are being dropped, with the connections that are left.
    dropping: Mutex<BTreeMap<MemberId, Fleet>>,
    /// How often rows of a member have begun to become orphans, or a member has left.
    n_ends: AtomicU64,
}

/// The rows of a member become orphans, or live again, some at a time.
#[derive(Debug)]
enum Turning {
    /// They become orphans, with this grace.
    Orphans(Fleet, Grace),
    /// They live again.
    Living(Fleet),
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

/// Members whose rows are becoming orphans: those of the connections up to a number.
#[derive(Debug)]
pub(crate) struct Doomed(BTreeMap<MemberId, u64>);

impl Doomed {
    /// True when nobody's do.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when the rows of the connection become orphans, but for those that are some already.
    pub(crate) fn has(&self, client: ClientId) -> bool {
        let newest = self.0.get(&client.origin);
        newest.is_some_and(|newest| client.plain_number() <= *newest)
    }
}

impl Graces {
    /// `slow_extra`: how much longer the orphans of slow clients stay.
    pub(crate) fn new(slow_extra: Millis) -> Self {
        Graces {
            slow_extra,
            turning: Mutex::default(),
            running: Mutex::default(),
            dropping: Mutex::default(),
            n_ends: AtomicU64::new(0),
        }
    }

    /// A member leaves: before it is taken out of the peers.
    pub(crate) fn note_end(&self) {
        self.n_ends.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes whenever rows begin to become orphans, and whenever a member leaves. Whoever reads all orphans in several
    /// steps has missed some if it is another one at the end.
    pub(crate) fn n_ends(&self) -> u64 {
        self.n_ends.load(Ordering::Relaxed)
    }

    /// What a member's connections have registered becomes orphans, some at a time, and those stay until then. `former`:
    /// they are of an earlier process of it.
    ///
    /// Whoever counts rows of the member meanwhile (see [`Graces::is_turning`]) must not count on those that have not been
    /// reached yet.
    pub(crate) fn begin_orphans(&self, id: MemberId, fleet: Fleet, until: Millis, former: bool) {
        if fleet.is_empty() {
            return;
        }
        self.note_end();
        let mut turning = self.turning.lock();
        let mut grace = Grace::default();
        if let Some(Turning::Orphans(_, begun)) = turning.get(&id) {
            // They are all in this fleet, too.
            grace = *begun;
        }
        grace.until = grace.until.max(until);
        grace.has_former |= former;
        turning.insert(id, Turning::Orphans(fleet, grace));
    }

    /// The orphans of a member live again, some at a time.
    pub(crate) fn begin_living(&self, id: MemberId, fleet: Fleet) {
        if !fleet.is_empty() {
            self.turning.lock().insert(id, Turning::Living(fleet));
        }
    }

    /// Turns some rows of one member, if there are any to turn, by `set_orphans`, which returns how many changed. What became
    /// orphans is granted its grace at once.
    pub(crate) fn step_turning(&self, set_orphans: impl FnOnce(&mut Fleet, bool) -> usize) {
        // Locked until it is done: whoever ends it afterwards knows what has been turned.
        let mut turning = self.turning.lock();
        let Some(mut first) = turning.first_entry() else {
            return;
        };
        let id = *first.key();
        let is_over = match first.get_mut() {
            Turning::Orphans(fleet, grace) => {
                if set_orphans(fleet, true) > 0 {
                    self.grant(id, grace.until);
                    if grace.has_former {
                        self.are_former(id);
                    }
                }
                fleet.is_empty()
            }
            Turning::Living(fleet) => {
                set_orphans(fleet, false);
                fleet.is_empty()
            }
        };
        if is_over {
            first.remove();
        }
    }

    /// True while some rows of the member are still to become orphans or to live again.
    pub(crate) fn is_turning(&self, id: MemberId) -> bool {
        self.turning.lock().contains_key(&id)
    }

    /// True while that is so of some member.
    pub(crate) fn is_any_turning(&self) -> bool {
        !self.turning.lock().is_empty()
    }

    /// Whose rows are becoming orphans at this moment.
    pub(crate) fn doomed(&self) -> Doomed {
        let turning = self.turning.lock();
        let newest = |(id, turning): (&MemberId, &Turning)| match turning {
            Turning::Orphans(fleet, _) => Some((*id, fleet.newest())),
            Turning::Living(_) => None,
        };
        Doomed(turning.iter().filter_map(newest).collect())
    }

    /// The orphans of these connections of a member are to be dropped, some at a time; what was begun before is among them.
    pub(crate) fn begin_drop(&self, id: MemberId, fleet: Fleet) {
        if !fleet.is_empty() {
            self.dropping.lock().insert(id, fleet);
        }
    }

    /// Drops some orphans of one member, if there are any to drop; returns whose, and what `drop` returns.
    pub(crate) fn step_dropping(&self, drop: impl FnOnce(&mut Fleet) -> usize) -> Option<(MemberId, usize)> {
        let mut dropping = self.dropping.lock();
        let mut first = dropping.first_entry()?;
        let dropped = (*first.key(), drop(first.get_mut()));
        if first.get().is_empty() {
            first.remove();
        }
        Some(dropped)
    }

    /// True when no orphans of the member are left to be dropped, now or later.
    pub(crate) fn is_over(&self, id: MemberId) -> bool {
        let is_granted = self.is_turning(id) || self.running.lock().contains_key(&id);
        !is_granted && !self.dropping.lock().contains_key(&id)
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
        if let Some(Turning::Orphans(_, grace)) = self.turning.lock().get_mut(&id)
            && !grace.has_former
        {
            grace.until = grace.until.max(until);
        }
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

    /// What is left of the whole grace of a member's orphans, slow clients included.
    pub(crate) fn rest(&self, id: MemberId, now: Millis) -> Millis {
        let running = self.running.lock();
        running.get(&id).map_or(Millis(0), |g| g.slow_until.since(now))
    }

    /// The same of its rows that are still to become orphans.
    pub(crate) fn rest_to_come(&self, id: MemberId, now: Millis) -> Millis {
        let to_come = match self.turning.lock().get(&id) {
            Some(Turning::Orphans(_, grace)) => grace.until + self.slow_extra,
            _ => Millis(0),
        };
        to_come.since(now).max(self.rest(id, now))
    }

    /// Ends the grace of a member that turned out to be alive and to hold its connections. False when there was none,
    /// or it does not hold all of them.
    pub(crate) fn end(&self, id: MemberId) -> bool {
        let mut turning = self.turning.lock();
        let mut running = self.running.lock();
        let becoming = match turning.get(&id) {
            Some(Turning::Orphans(_, grace)) => Some(*grace),
            _ => None,
        };
        let granted = running.get(&id).copied();
        let mut graces = becoming.iter().chain(&granted).peekable();
        let ends = graces.peek().is_some() && graces.all(|grace| !grace.has_former);
        if ends {
            running.remove(&id);
            self.dropping.lock().remove(&id);
            if becoming.is_some() {
                turning.remove(&id);
            }
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

    fn client(number: u64) -> ClientId {
        ClientId::new(A, number, false)
    }

    fn fleet() -> Fleet {
        (1..=3).map(client).collect()
    }

    /// All of a fleet at once.
    fn finish(fleet: &mut Fleet) -> usize {
        *fleet = Fleet::default();
        3
    }

    #[test]
    fn orphans_are_dropped_some_at_a_time_unless_a_new_grace_begins() {
        let graces = Graces::new(Millis(0));
        graces.begin_drop(A, fleet());
        assert_eq!(graces.step_dropping(|_| 2), Some((A, 2)));
        assert_eq!(graces.step_dropping(finish), Some((A, 3)));
        assert!(!graces.is_dropping());
        assert_eq!(graces.step_dropping(|_| 2), None);
        graces.begin_drop(A, fleet());
        graces.grant(A, Millis(15));
        assert_eq!(graces.step_dropping(|_| 2), None);
    }

    #[test]
    fn what_becomes_an_orphan_has_its_grace_and_what_is_still_to_become_one_is_known() {
        let graces = Graces::new(Millis(25));
        graces.begin_orphans(A, fleet(), Millis(15), false);
        assert!(graces.is_turning(A));
        assert!(graces.doomed().has(client(3)));
        assert!(!graces.doomed().has(client(4)), "it came later");
        assert_eq!(graces.rest_to_come(A, Millis(10)), Millis(30));
        assert_eq!(
            graces.rest(A, Millis(10)),
            Millis(0),
            "orphans from before have no new grace"
        );
        graces.step_turning(|_, is_orphan| {
            assert!(is_orphan);
            0
        });
        assert_eq!(graces.next_due(), None, "no row has become an orphan");
        graces.step_turning(|_, _| 1);
        assert_eq!(graces.next_due(), Some(Millis(15)));
        graces.step_turning(|fleet, _| finish(fleet));
        assert!(!graces.is_any_turning());
        assert!(!graces.is_over(A));
    }

    #[test]
    fn a_member_that_is_back_keeps_what_has_not_become_an_orphan_yet() {
        let graces = Graces::new(Millis(25));
        graces.begin_orphans(A, fleet(), Millis(15), false);
        assert!(graces.end(A), "none had become one");
        graces.begin_orphans(A, fleet(), Millis(15), false);
        graces.step_turning(|_, _| 1);
        assert!(graces.end(A));
        graces.begin_living(A, fleet());
        assert!(!graces.end(A), "it has ended");
        assert!(graces.is_turning(A), "and they still are to live again");
        graces.begin_orphans(A, fleet(), Millis(15), false);
        graces.step_turning(|fleet, is_orphan| {
            assert!(is_orphan, "the second death counts");
            finish(fleet)
        });
        assert!(!graces.is_any_turning());
    }

    #[test]
    fn rows_of_a_former_process_become_orphans_whoever_dials() {
        let graces = Graces::new(Millis(25));
        graces.begin_orphans(A, fleet(), Millis(15), false);
        graces.begin_orphans(A, fleet(), Millis(10), true);
        assert!(!graces.end(A));
        graces.step_turning(|fleet, _| finish(fleet));
        assert_eq!(graces.next_due(), Some(Millis(15)));
        assert!(!graces.end(A));
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
