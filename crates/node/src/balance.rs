//! Long connections even out by themselves after a member has returned, slowly (`spec/health.md` H12).
//!
//! Each member looks for itself, at what probes say of the others. When connections are uneven for a while in a calm
//! cluster, whoever has more than the mean asks a few of its clients at a time to go to the member with the fewest.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rollcall_core::{MemberId, Millis, Now};
use rollcall_distro::{Member, Report};
use smol_str::SmolStr;

use crate::action::{Action, Actions};
use crate::config::NodeConfig;
use crate::connection::Connection;
use crate::metrics::Counters;
use crate::node::Node;

/// Between two looks.
const LOOK: Millis = Millis(1_000);
/// A member has this many times the mean, or the mean this many times a member's: uneven enough to begin.
const BEGINS_AT: f64 = 1.3;
/// The same: even enough to stop.
const STOPS_AT: f64 = 1.1;
/// A deviation from the mean of fewer connections than this begins nothing.
const LEAST_DEVIATION: f64 = 10.0;
/// A client that was asked has left within this time, or stays.
const ANSWERS_WITHIN: Millis = Millis(10_000);
const MINUTE: u64 = 60_000;

/// Evening out, as far as it has come.
#[derive(Debug)]
pub(crate) struct Balance(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The members with their processes, and who of them serves, at the last look.
    members: Vec<(MemberId, u64, bool)>,
    /// Since when they are the same.
    calm_since: Millis,
    uneven_since: Option<Millis>,
    is_running: bool,
    next_look: Millis,
    /// No client is asked before.
    next_ask: Millis,
    random: u64,
}

/// The clients of one member, and of each other one.
#[derive(Debug)]
struct Loads {
    own: usize,
    others: BTreeMap<SmolStr, usize>,
}

impl Loads {
    fn mean(&self) -> f64 {
        (self.own + self.others.values().sum::<usize>()) as f64 / (self.others.len() + 1) as f64
    }

    /// True when some member has `factor` times the mean, or the mean is `factor` times what it has; and it is at least
    /// `least` connections away from it.
    fn is_uneven(&self, factor: f64, least: f64) -> bool {
        let mean = self.mean();
        let deviates = |load: usize| {
            let load = load as f64;
            (load > mean * factor || load * factor < mean) && (load - mean).abs() >= least
        };
        deviates(self.own) || self.others.values().any(|load| deviates(*load))
    }
}

impl Balance {
    /// `seed` comes from outside, so that no two members ask in step.
    pub(crate) fn new(seed: u64, now: Millis) -> Self {
        Balance(Mutex::new(State {
            members: Vec::new(),
            calm_since: now,
            uneven_since: None,
            is_running: false,
            next_look: now,
            next_ask: now,
            random: seed,
        }))
    }

    /// True while clients are asked.
    pub(crate) fn is_running(&self) -> bool {
        self.0.lock().is_running
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        let state = self.0.lock();
        state.is_running.then(|| state.next_due())
    }
}

impl State {
    fn next_due(&self) -> Millis {
        if self.is_running {
            self.next_look.min(self.next_ask)
        } else {
            self.next_look
        }
    }

    /// Sees whether members come, go or start. True once none has done so for long enough.
    fn is_calm(&mut self, members: Vec<(MemberId, u64, bool)>, config: &NodeConfig, now: Millis) -> bool {
        if self.members != members {
            self.members = members;
            self.calm_since = now;
        }
        let is_calm = now.since(self.calm_since) >= config.balance_calm;
        if !is_calm {
            self.uneven_since = None;
            self.is_running = false;
        }
        is_calm
    }

    /// Decides whether clients shall be asked.
    fn weigh(&mut self, loads: &Loads, config: &NodeConfig, now: Millis) {
        if self.is_running {
            self.is_running = loads.is_uneven(STOPS_AT, 0.0);
        } else if loads.is_uneven(BEGINS_AT, LEAST_DEVIATION) {
            let since = *self.uneven_since.get_or_insert(now);
            self.is_running = now.since(since) >= config.balance_after;
        } else {
            self.uneven_since = None;
        }
        if self.is_running {
            self.uneven_since = None;
        }
    }

    /// How many may be asked at this moment, if `per_minute` may be asked in any minute; the next ones later. A step is a
    /// tenth to a half longer than it need be, at random.
    fn take_turn(&mut self, per_minute: u64, now: Millis) -> usize {
        let n = per_minute.div_ceil(MINUTE / LOOK.0).max(1);
        let step = MINUTE * n / per_minute.max(1);
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let jitter = step / 10 + (self.random >> 33) % (step * 2 / 5).max(1);
        self.next_ask = now + Millis(step + jitter);
        n as usize
    }
}

impl Node {
    /// Looks at the loads when it is time to, and asks some clients to move.
    pub(crate) fn tick_balance(&self, now: Now, actions: &mut Actions) {
        let mut state = self.balance.0.lock();
        if self.config.balance_per_minute == 0 || now.mono < state.next_due() {
            return;
        }
        let (was_running, may_ask) = (state.is_running, now.mono >= state.next_ask);
        state.next_look = now.mono + LOOK;
        if may_ask {
            state.next_ask = state.next_look;
        }
        if let Some(loads) = self.loads_in_calm(&mut state, now.mono) {
            state.weigh(&loads, &self.config, now.mono);
            if state.is_running && may_ask {
                self.even_out_some(&mut state, loads, now, actions);
            }
        }
        if state.is_running != was_running {
            let report = if was_running {
                Report::EveningOutEnds
            } else {
                Report::EveningOut
            };
            actions.push(Action::Report(report));
        }
    }

    /// What each member has, if all are there, none has come or gone of late, and no operator moves connections.
    fn loads_in_calm(&self, state: &mut State, now: Millis) -> Option<Loads> {
        let members = self.engine.members();
        let boot = |m: &Member| m.said.as_ref().map_or(0, |said| said.boot);
        let known = members.iter().map(|m| (m.id, boot(m), m.is_serving()));
        let own = (self.engine.me(), 0, self.is_ready());
        let is_calm = state.is_calm(known.chain([own]).collect(), &self.config, now);
        let is_whole = self.is_ready() && members.iter().all(|m| m.is_listed && m.is_trusted());
        let lists_agree = self.engine.view().lists_agree();
        let is_free = self.loader.n_waiting() == 0;
        if !is_calm || !is_whole || !lists_agree || !is_free || members.is_empty() {
            return None;
        }
        let load = |m: &Member| m.said.as_ref().map_or(0, |said| said.sdk_connections as usize);
        Some(Loads {
            own: self.connections.count().1,
            others: members.iter().map(|m| (m.address.clone(), load(m))).collect(),
        })
    }

    fn even_out_some(&self, state: &mut State, loads: Loads, now: Now, actions: &mut Actions) {
        let n_over = self.n_over(&loads, now.mono);
        if n_over > 0 {
            let per_minute = (loads.own as u64 * u64::from(self.config.balance_per_minute)).div_ceil(100);
            let n = state.take_turn(per_minute, now.mono).min(n_over);
            self.send_to_fewest(n, loads, now, actions);
        }
    }

    /// How many clients this member has above the mean, without those that are about to leave.
    fn n_over(&self, loads: &Loads, now: Millis) -> usize {
        let n_wanted = loads.mean().ceil() as usize;
        if loads.own <= n_wanted {
            return 0;
        }
        let is_leaving = |c: &Connection| c.asked_to_move().is_some_and(|at| now.since(at) < ANSWERS_WITHIN);
        let n_leaving = self.connections.all().iter().filter(|c| is_leaving(c)).count();
        (loads.own - n_wanted).saturating_sub(n_leaving)
    }

    /// Asks `n` clients, those first that have been here longest, each to go to the member that has the fewest by then.
    /// Who came or was asked a short time ago stays: nobody is sent to and fro.
    fn send_to_fewest(&self, n: usize, mut loads: Loads, now: Now, actions: &mut Actions) {
        let rests = |c: &Connection| now.mono.since(c.last_come_or_asked()) < self.config.balance_rest;
        let all = self.connections.all().into_iter();
        for connection in { all }.filter(|c| c.info.is_sdk && !rests(c)).take(n) {
            let Some((to, load)) = loads.others.iter_mut().min_by_key(|(_, load)| **load) else {
                return;
            };
            if self.ask_one(connection.id, Some(to.clone()), now, actions) {
                *load += 1;
                Counters::add(&self.counters.balance_moved);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_no_minute_are_more_asked_than_may_be() {
        for per_minute in [1, 2, 3, 10, 11, 30, 59, 60, 61, 100, 999, 6_000] {
            let balance = Balance::new(per_minute, Millis(0));
            let mut state = balance.0.lock();
            let mut turns = Vec::new();
            while state.next_ask < Millis(10 * MINUTE) {
                let now = state.next_ask;
                turns.push((now.0, state.take_turn(per_minute, now) as u64));
            }
            let asked_from = |from: u64| -> u64 {
                let within = turns.iter().filter(|(at, _)| (from..from + MINUTE).contains(at));
                within.map(|(_, n)| n).sum()
            };
            let most = turns.iter().map(|(at, _)| asked_from(*at)).max();
            assert!(most <= Some(per_minute), "{most:?} of {per_minute}");
            let all = turns.iter().map(|(_, n)| n).sum::<u64>();
            assert!(
                all >= per_minute * 10 / 2,
                "{all} in ten minutes of {per_minute} each"
            );
        }
    }

    #[test]
    fn uneven_is_what_is_far_from_the_mean_by_share_and_by_number() {
        let loads = |own: usize, others: &[usize]| {
            let others = others.iter().enumerate();
            Loads {
                own,
                others: others.map(|(n, load)| (n.to_string().into(), *load)).collect(),
            }
        };
        let begins = |loads: Loads| loads.is_uneven(BEGINS_AT, LEAST_DEVIATION);
        assert!(begins(loads(150, &[150, 0])));
        assert!(
            begins(loads(0, &[25; 9])),
            "only the empty one shows in a large cluster"
        );
        assert!(!begins(loads(125, &[100, 80])));
        assert!(!begins(loads(9, &[0, 0])), "too few to matter");
        assert!(!begins(loads(0, &[0, 0])));
        assert!(!loads(109, &[100, 91]).is_uneven(STOPS_AT, 0.0));
        assert!(loads(111, &[100, 89]).is_uneven(STOPS_AT, 0.0));
    }
}
