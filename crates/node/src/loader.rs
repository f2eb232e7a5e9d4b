//! Limits of connections, how many each member has, and asking some to go to another member.
//!
//! A connection that is asked (`ConnectResetRequest`) stays until its client closes it. One that does not answer within
//! [`ACK_WAIT`] does not count, and the next one is asked instead (recorded of Nacos 2.5.1, `spec/health.md` §5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rollcall_core::{Millis, Now};
use rollcall_distro::Member;
use smol_str::SmolStr;

use crate::action::{Action, Actions};
use crate::config::NodeConfig;
use crate::connection::Awaited;
use crate::metrics::Counters;
use crate::node::Node;
use crate::request::ConnectionId;

/// Wait for the answer to a request to move.
const ACK_WAIT: Millis = Millis(3_000);
/// Requests to move that are unanswered at a time: so many clients, and no more, may connect elsewhere at once.
const ASKED_AT_A_TIME: usize = 1_000;
/// Share of its connections that a member keeps at least when it is asked to even out the load, in percent.
const KEPT_PERCENT: usize = 90;

/// How many connections a member has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberLoad {
    /// Advertised address.
    pub address: SmolStr,
    /// It is this node.
    pub is_self: bool,
    /// It serves: connections may be sent to it.
    pub is_serving: bool,
    /// All its connections, as of its last probe; `None` before the first.
    pub connections: Option<usize>,
    /// Those of them that may be asked to move.
    pub sdk_connections: usize,
}

/// How many connections there may be, and how many there are. Only what is limited is counted.
#[derive(Debug)]
pub(crate) struct Places {
    taken: Mutex<Taken>,
    total_max: usize,
    per_ip_max: usize,
}

#[derive(Debug)]
struct Taken {
    total: usize,
    by_ip: HashMap<SmolStr, usize, FixedState>,
}

impl Places {
    pub(crate) fn new(config: &NodeConfig) -> Self {
        Places {
            taken: Mutex::new(Taken {
                total: 0,
                by_ip: HashMap::with_hasher(FixedState::with_seed(config.seed)),
            }),
            total_max: config.connection_limit,
            per_ip_max: config.connection_limit_per_ip,
        }
    }

    /// Takes a place for a connection from `ip`; false when there is none.
    pub(crate) fn take(&self, ip: &SmolStr) -> bool {
        let mut taken = self.taken.lock();
        let is_over = |n: usize, max: usize| max > 0 && n >= max;
        let of_ip = taken.by_ip.get(ip).copied().unwrap_or(0);
        if is_over(taken.total, self.total_max) || is_over(of_ip, self.per_ip_max) {
            return false;
        }
        taken.total += 1;
        if self.per_ip_max > 0 {
            taken.by_ip.insert(ip.clone(), of_ip + 1);
        }
        true
    }

    /// Gives a place back.
    pub(crate) fn free(&self, ip: &SmolStr) {
        let mut taken = self.taken.lock();
        taken.total = taken.total.saturating_sub(1);
        if let Some(n) = taken.by_ip.get_mut(ip) {
            *n -= 1;
            if *n == 0 {
                taken.by_ip.remove(ip);
            }
        }
    }
}

/// What is left of an operator's wish that connections move. A newer wish replaces it.
#[derive(Debug, Default)]
pub(crate) struct Loader(Mutex<Shedding>);

#[derive(Debug, Default)]
struct Shedding {
    /// How many shall still be asked.
    n_left: usize,
    /// Who may be asked, in order.
    candidates: VecDeque<ConnectionId>,
    /// Where to, in turn; none: the client chooses.
    targets: Vec<SmolStr>,
    n_asked: usize,
    /// Who has been asked and has not answered, by request.
    asked: BTreeMap<u64, Asked>,
    deadlines: BTreeSet<(Millis, u64)>,
}

#[derive(Debug)]
struct Asked {
    id: ConnectionId,
    deadline: Millis,
    /// Another is asked in its place if it does not answer.
    is_replaced: bool,
}

impl Loader {
    pub(crate) fn n_waiting(&self) -> usize {
        let shedding = self.0.lock();
        shedding.n_left.min(shedding.candidates.len())
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        self.0.lock().deadlines.first().map(|due| due.0)
    }
}

impl Shedding {
    fn ask(&mut self, request_id: u64, asked: Asked) {
        self.deadlines.insert((asked.deadline, request_id));
        self.asked.insert(request_id, asked);
    }

    fn answered(&mut self, request_id: u64) -> Option<Asked> {
        let asked = self.asked.remove(&request_id)?;
        self.deadlines.remove(&(asked.deadline, request_id));
        Some(asked)
    }
}

impl Node {
    /// How many connections each member has, sorted by address. Of the others what their last probes said.
    pub fn member_loads(&self) -> Vec<MemberLoad> {
        let members = self.engine.members();
        let others = members.iter().map(|member| MemberLoad {
            address: member.address.clone(),
            is_self: false,
            is_serving: member.is_serving(),
            connections: member.said.as_ref().map(|said| said.connections as usize),
            sdk_connections: member
                .said
                .as_ref()
                .map_or(0, |said| said.sdk_connections as usize),
        });
        let mut loads: Vec<_> = others.collect();
        let (connections, sdk_connections) = self.connections.count();
        loads.push(MemberLoad {
            address: self.config.self_address.clone(),
            is_self: true,
            is_serving: self.is_ready(),
            connections: Some(connections),
            sdk_connections,
        });
        loads.sort_by(|a, b| a.address.cmp(&b.address));
        loads
    }

    /// Asks connections to move until `remain` of all are left, the newest first; those without the label of an SDK count but are never
    /// asked. 0 does nothing. `to` is where they shall go; without it, any member that serves.
    pub fn shed_connections(&self, remain: usize, to: Option<SmolStr>, now: Now, actions: &mut Actions) {
        let n_all = self.connections.len();
        if remain == 0 || remain >= n_all {
            return;
        }
        let targets = to.map_or_else(|| self.recent_members(now), |to| vec![to]);
        self.shed(n_all - remain, targets, now, actions);
    }

    /// Asks the connection that clients know by this id to move; false when it is not here or may not be asked.
    pub fn reset_connection(
        &self,
        text_id: &str,
        to: Option<SmolStr>,
        now: Now,
        actions: &mut Actions,
    ) -> bool {
        let all = self.connections.all().into_iter();
        let found = { all }.find(|c| c.info.text_id == text_id && c.info.is_sdk);
        let Some(connection) = found else { return false };
        let to = to.or_else(|| self.recent_members(now).into_iter().next());
        self.ask_one(connection.id, to, now, actions)
    }

    /// Asks one connection to move, and no other in its place; false when it is gone.
    pub(crate) fn ask_one(
        &self,
        id: ConnectionId,
        to: Option<SmolStr>,
        now: Now,
        actions: &mut Actions,
    ) -> bool {
        let Some(request_id) = self.ask_to_move(id, to, now, actions) else {
            return false;
        };
        let asked = Asked {
            id,
            deadline: now.mono + ACK_WAIT,
            is_replaced: false,
        };
        self.loader.0.lock().ask(request_id, asked);
        actions.wake();
        true
    }

    /// Asks as many connections to move as this member has above the mean of all members, if that is more than `factor`
    /// (0.1: a tenth) of it; at most a tenth of its own at a time. They go to the members with the fewest.
    pub fn even_out(&self, factor: f64, now: Now, actions: &mut Actions) {
        let mut loads = self.member_loads();
        loads.retain(|load| load.is_serving && load.connections.is_some());
        let total: usize = loads.iter().map(|load| load.sdk_connections).sum();
        let mean = total as f64 / loads.len().max(1) as f64;
        let most = (mean * (1.0 + factor.max(0.0))).ceil() as usize;
        let Some(own) = loads.iter().find(|load| load.is_self).map(|l| l.sdk_connections) else {
            return;
        };
        let remain = most.max((own * KEPT_PERCENT).div_ceil(100));
        loads.retain(|load| !load.is_self && (load.sdk_connections as f64) < mean);
        loads.sort_by_key(|load| load.sdk_connections);
        if own > remain && !loads.is_empty() {
            let targets = loads.into_iter().map(|load| load.address).collect();
            self.shed(own - remain, targets, now, actions);
        }
    }

    /// The other members that clients may be sent to: those that were heard from since `heard_since`, or all when there is
    /// none. One that has just begun to hang counts as living for some seconds more.
    pub(crate) fn serving_members(&self, heard_since: Millis) -> Vec<SmolStr> {
        let mut serving = self.engine.members();
        serving.retain(Member::takes_clients);
        let was_heard = |m: &Member| m.last_seen >= Some(heard_since);
        if serving.iter().any(was_heard) {
            serving.retain(was_heard);
        }
        serving.into_iter().map(|m| m.address).collect()
    }

    /// The same by what was heard in the last period of probes.
    fn recent_members(&self, now: Now) -> Vec<SmolStr> {
        self.serving_members(now.mono - self.config.probe_interval)
    }

    /// Asks all connections to move: the other members do not see what they register here any more.
    pub(crate) fn send_clients_away(&self, now: Now, actions: &mut Actions) {
        self.shed(self.connections.len(), self.recent_members(now), now, actions);
    }

    fn shed(&self, n: usize, targets: Vec<SmolStr>, now: Now, actions: &mut Actions) {
        let all = self.connections.all().into_iter();
        let candidates = all.rev().filter(|c| c.info.is_sdk).map(|c| c.id).collect();
        {
            let mut shedding = self.loader.0.lock();
            shedding.n_left = n;
            shedding.candidates = candidates;
            shedding.targets = targets;
            // Whoever is still to answer a former wish is not asked again before that.
            let asked: BTreeSet<_> = shedding.asked.values().map(|asked| asked.id).collect();
            shedding.candidates.retain(|id| !asked.contains(id));
        }
        self.ask_more(now, actions);
        actions.wake();
    }

    fn ask_more(&self, now: Now, actions: &mut Actions) {
        let mut shedding = self.loader.0.lock();
        while shedding.n_left > 0 && shedding.asked.len() < ASKED_AT_A_TIME {
            let Some(id) = shedding.candidates.pop_front() else {
                shedding.n_left = 0;
                break;
            };
            let turn = shedding.n_asked % shedding.targets.len().max(1);
            let to = shedding.targets.get(turn).cloned();
            if let Some(request_id) = self.ask_to_move(id, to, now, actions) {
                let asked = Asked {
                    id,
                    deadline: now.mono + ACK_WAIT,
                    is_replaced: true,
                };
                shedding.ask(request_id, asked);
                shedding.n_left -= 1;
                shedding.n_asked = shedding.n_asked.wrapping_add(1);
            }
        }
    }

    fn ask_to_move(
        &self,
        id: ConnectionId,
        to: Option<SmolStr>,
        now: Now,
        actions: &mut Actions,
    ) -> Option<u64> {
        let connection = self.connections.get(id)?;
        let request_id = self.pusher.next_request_id();
        if !connection.expect(request_id, Awaited::Reset) {
            return None;
        }
        connection.ask_to_move(now.mono);
        actions.push(Action::Reset {
            connection: id,
            request_id,
            to,
        });
        Counters::add(&self.counters.resets_sent);
        Some(request_id)
    }

    /// A client has answered that it moves.
    pub(crate) fn reset_answered(&self, request_id: u64, now: Now, actions: &mut Actions) {
        Counters::add(&self.counters.resets_acked);
        if self.loader.0.lock().answered(request_id).is_some() {
            self.ask_more(now, actions);
        }
    }

    /// Asks others in place of those that have not answered in time.
    pub(crate) fn tick_loader(&self, now: Now, actions: &mut Actions) {
        let mut is_due = false;
        loop {
            let silent = {
                let mut shedding = self.loader.0.lock();
                match shedding.deadlines.first().copied() {
                    Some((deadline, request_id)) if deadline <= now.mono => {
                        let asked = shedding.answered(request_id);
                        shedding.n_left += usize::from(asked.as_ref().is_some_and(|a| a.is_replaced));
                        asked.map(|asked| (asked.id, request_id))
                    }
                    _ => None,
                }
            };
            let Some((id, request_id)) = silent else { break };
            is_due = true;
            if let Some(connection) = self.connections.get(id) {
                connection.answered(request_id);
            }
        }
        if is_due {
            self.ask_more(now, actions);
        }
    }
}
