//! A member that is cut off with fewer members than it has lost sends its clients to the others, and goes on serving who
//! stays: reads, and writes too (`design.md` §3). A client may well reach what its member does not.
//!
//! A member whose address refuses connections is dead and not behind a cut: it counts for neither side, and nobody is
//! sent to it.

use parking_lot::Mutex;
use rollcall_core::{Millis, Now};
use rollcall_distro::{Death, Member, Report};
use smol_str::SmolStr;

use crate::action::{Action, Actions};
use crate::connection::Connection;
use crate::metrics::Counters;
use crate::node::Node;

/// How long a member is in a minority before it asks anybody: a cut that heals at once moves nobody.
const LASTS: Millis = Millis(3_000);
/// Between two looks, and two steps of it.
const STEP: Millis = Millis(1_000);
/// Most clients that are asked in one step.
const MOST_IN_STEP: usize = 1_000;
/// A client that has come back, or has not gone, is let alone for so long at first, and longer the longer it lasts.
const REST: Millis = Millis(60_000);

/// Whether this member is in a minority.
#[derive(Debug, Default)]
pub(crate) struct Minority(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Millis>,
    /// It has lasted, and clients are sent away.
    is_shedding: bool,
    next_look: Millis,
    /// How many are asked in a step: so many that all are within the time.
    n_in_step: usize,
    n_asked: usize,
}

/// The members on both sides of a cut, by address.
#[derive(Debug, Default)]
struct Sides<'a> {
    /// This member, and those that it reaches.
    here: Vec<&'a SmolStr>,
    beyond: Vec<&'a SmolStr>,
}

impl<'a> Sides<'a> {
    fn of(me: &'a SmolStr, members: &'a [Member]) -> Self {
        let listed = || members.iter().filter(|m| m.is_listed);
        let is_cut_off = |m: &&Member| m.death == Some(Death::Unreachable);
        let reached = listed().filter(|m| m.is_reachable());
        Sides {
            here: reached.map(|m| &m.address).chain([me]).collect(),
            beyond: listed().filter(is_cut_off).map(|m| &m.address).collect(),
        }
    }

    /// Of two halves the one with the lowest address is the majority.
    fn is_minority_here(&self) -> bool {
        match self.here.len().cmp(&self.beyond.len()) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.beyond.iter().min() < self.here.iter().min(),
            std::cmp::Ordering::Greater => false,
        }
    }
}

impl Minority {
    /// True while this member counts itself to a minority, and sends its clients away.
    pub(crate) fn is_shedding(&self) -> bool {
        self.0.lock().is_shedding
    }
}

impl Node {
    /// True while this member is cut off with a minority and sends its clients to the others.
    pub fn is_in_minority(&self) -> bool {
        self.minority.is_shedding()
    }

    /// Finds out whether this member is in a minority, and asks some clients to move if it is.
    pub(crate) fn tick_minority(&self, now: Now, actions: &mut Actions) {
        let mut state = self.minority.0.lock();
        if now.mono < state.next_look {
            return;
        }
        let members = self.engine.members();
        let sides = Sides::of(&self.config.self_address, &members);
        if !sides.is_minority_here() || !self.is_ready() {
            if state.is_shedding {
                actions.push(Action::Report(Report::MinorityOver));
            }
            *state = State {
                next_look: now.mono + STEP,
                ..State::default()
            };
            return;
        }
        state.next_look = now.mono + STEP;
        let since = *state.since.get_or_insert(now.mono);
        let lasted = now.mono.since(since);
        if lasted < LASTS {
            return;
        }
        if !state.is_shedding {
            state.is_shedding = true;
            let (n_reached, n_cut_off) = (sides.here.len() - 1, sides.beyond.len());
            actions.push(Action::Report(Report::InMinority { n_reached, n_cut_off }));
        }
        // Beyond the cut their instances stay for the grace of an unreachable member: by half of it all have been asked,
        // and then there is time for them to arrive.
        let n_steps = (self.config.orphan_unreachable.0 / 2 / STEP.0).max(1) as usize;
        let n_now = self.connections.count().1.div_ceil(n_steps).min(MOST_IN_STEP);
        state.n_in_step = state.n_in_step.max(n_now);
        let rest = REST.max(Millis(lasted.0 / 2));
        let all = self.connections.all().into_iter();
        // Who was here before the cut is asked once at once.
        let was_here_before = |c: &Connection| now.mono.since(c.last_come_or_asked()) > lasted;
        let may_go = |c: &Connection| was_here_before(c) || now.mono.since(c.last_come_or_asked()) >= rest;
        for connection in { all }
            .filter(|c| c.info.is_sdk && may_go(c))
            .take(state.n_in_step)
        {
            let to = sides.beyond.get(state.n_asked % sides.beyond.len());
            if self.ask_one(connection.id, to.map(|to| (*to).clone()), now, actions) {
                state.n_asked = state.n_asked.wrapping_add(1);
                Counters::add(&self.counters.minority_moved);
            }
        }
    }
}
