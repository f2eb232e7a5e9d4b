//! What clients were promised, row by row, and what each node has shown of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::{Instance, RowKey, ServiceKey, ServiceView};

/// A row that some client published at some time.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    /// What must be shown while it lives.
    pub(super) instance: Instance,
    /// Where it lives.
    pub(super) home: Home,
    /// Since when it lives there in this version.
    pub(super) home_since: u64,
    pub(super) state: State,
    /// It was last written while the network was cut, by a client that turns to both sides: their clocks differ, so
    /// that an older write of the other side may win over it. Or a loss of power has left an earlier version of it, or the
    /// node that held it is lost and an older one lives.
    pub(super) is_contested: bool,
    /// All nodes have lost power before it was in every copy. Until then its client finds out what is left of it: an
    /// earlier version, nothing, or one after the other while the copies are compared.
    pub(super) doubtful_until: u64,
    /// Nodes that have shown this version of it in their present life.
    pub(super) shown_by: Vec<usize>,
    /// When every ready node showed it.
    pub(super) replicated_at: Option<u64>,
    /// What each node's list had for it, by the list's version, the node's life and the node: most lists do not change from
    /// one look to the next.
    pub(super) looked_up: BTreeMap<usize, (u64, u64, Option<Arc<Instance>>)>,
}

/// The node that hears of a row from its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// It holds the client's connection.
    Connection(usize),
    /// The client beats there and nowhere else.
    Beats(usize),
    /// The client beats at whatever node is ready.
    Anywhere,
}

impl Promise {
    /// What a node's list has for the row.
    pub(super) fn look_up(
        &mut self,
        node: (usize, u64),
        view: &ServiceView,
        key: &RowKey,
    ) -> Option<Arc<Instance>> {
        let (n, life) = node;
        let is_same = |seen: &&(u64, u64, _)| (seen.0, seen.1) == (view.version(), life);
        if let Some(seen) = self.looked_up.get(&n).filter(is_same) {
            return seen.2.clone();
        }
        let listed = view.get(&key.ip, key.port, &key.cluster).cloned();
        self.looked_up.insert(n, (view.version(), life, listed.clone()));
        listed
    }
}

/// Where a row stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// A registration is on its way: it may or may not be listed.
    Uncertain,
    /// Acknowledged: it must be listed.
    Alive {
        /// Since.
        since: u64,
    },
    /// Withdrawn, or its client is dead: it must go.
    Dead {
        /// Since.
        since: u64,
        /// By silence only.
        silent: bool,
        /// It has left every node: it must not come back.
        left: bool,
    },
}

/// All promises.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) rows: BTreeMap<(ServiceKey, RowKey), Promise>,
    /// When each node's present life became ready.
    pub(super) ready_at: BTreeMap<usize, u64>,
    started_at: BTreeMap<usize, u64>,
    pub(super) broken_reads: Vec<String>,
    /// Writes that were refused, or not answered, by a node that was ready.
    pub(super) refused: Vec<String>,
    /// What operators set switches to, the last two times.
    pub(super) switches: BTreeMap<String, Switched>,
}

/// The last write of a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Switched {
    pub(super) value: Option<String>,
    /// So long after the one before that the member which took it may be expected to know that one, and others hear of it.
    pub(super) is_alone: bool,
    at: u64,
}

/// [`Promise::doubtful_until`] of a row that lives where nobody hears of it.
const UNTIL_IT_MOVES: u64 = u64::MAX;

/// A write has reached every member by then, unless links break or are cut.
const HEARD: u64 = 1_000;

/// Time in which a write reaches every member, a member that is cut off or starts included.
const SPREAD: u64 = 80_000;

impl Oracle {
    pub(super) fn switched(&mut self, name: String, value: Option<String>, is_heard: bool, now: u64) {
        let is_late = self.switches.get(&name).is_none_or(|last| last.at + SPREAD < now);
        let is_alone = is_heard && is_late;
        let at = now;
        self.switches.insert(name, Switched { value, is_alone, at });
    }

    fn set(&mut self, service: &ServiceKey, instance: &Instance, state: State) -> &mut Promise {
        let key = (service.clone(), instance.row_key());
        let promise = self.rows.entry(key).or_insert_with(|| Promise {
            instance: instance.clone(),
            home: Home::Anywhere,
            home_since: 0,
            is_contested: false,
            doubtful_until: 0,
            state,
            shown_by: Vec::new(),
            replicated_at: None,
            looked_up: BTreeMap::new(),
        });
        if promise.instance != *instance || !matches!(promise.state, State::Alive { .. }) {
            promise.shown_by.clear();
            promise.replicated_at = None;
        }
        promise.instance = instance.clone();
        promise.state = state;
        promise
    }

    /// A registration was acknowledged; `is_listed`: the acknowledging node shows it at once.
    pub(super) fn registered(
        &mut self,
        service: &ServiceKey,
        instance: &Instance,
        home: Home,
        is_listed: bool,
        is_whole: bool,
        now: u64,
    ) {
        if !is_listed {
            self.broken_reads
                .push(format!("{service} {:?} at {now}", instance.row_key()));
        }
        let key = (service.clone(), instance.row_key());
        let is_same = self
            .rows
            .get(&key)
            .is_some_and(|p| p.instance == *instance && matches!(p.state, State::Alive { .. }));
        if !is_same {
            let promise = self.set(service, instance, State::Alive { since: now });
            let is_anywhere = matches!(home, Home::Anywhere) || matches!(promise.home, Home::Anywhere);
            let is_held = matches!(home, Home::Connection(_));
            // A client that was at the other side in this partition may have written there as well; what it had there by
            // a connection goes with that, unless its node stood still.
            let was_elsewhere = !is_held && (is_anywhere || promise.home != home);
            promise.is_contested = !is_whole && (was_elsewhere || promise.is_contested);
            promise.doubtful_until = 0;
            promise.home = home;
            promise.home_since = now;
        }
        self.moved(service, instance, home, is_whole, now);
    }

    /// The client of a row has turned to another node. Those that are cut off from it need not have heard.
    pub(super) fn moved(
        &mut self,
        service: &ServiceKey,
        instance: &Instance,
        home: Home,
        is_whole: bool,
        now: u64,
    ) {
        let promise = self.rows.get_mut(&(service.clone(), instance.row_key()));
        if let Some(promise) = promise.filter(|promise| promise.home != home) {
            promise.home = home;
            promise.home_since = now;
            promise.replicated_at = None;
            if promise.doubtful_until == UNTIL_IT_MOVES {
                promise.doubtful_until = 0;
            }
            let was_contested = promise.is_contested;
            promise.is_contested = match home {
                // The newest write, and it lives.
                Home::Connection(_) => false,
                Home::Beats(_) | Home::Anywhere => promise.is_contested || !is_whole,
            };
            if was_contested && !promise.is_contested {
                // Whoever has shown the row may have shown another version of it.
                promise.shown_by.clear();
            }
        }
    }

    /// Another write of the row may win although it is older.
    pub(super) fn contest(&mut self, service: &ServiceKey, instance: &Instance) {
        if let Some(promise) = self.rows.get_mut(&(service.clone(), instance.row_key())) {
            promise.is_contested = true;
        }
    }

    /// Only the node where the row lives knows of it, until its client goes elsewhere.
    pub(super) fn doubt(&mut self, service: &ServiceKey, instance: &Instance) {
        if let Some(promise) = self.rows.get_mut(&(service.clone(), instance.row_key())) {
            promise.doubtful_until = UNTIL_IT_MOVES;
        }
    }

    /// A node is lost, or dropped from a list, a moment after it took a row: who has not heard of that may hold what is left
    /// of the row's former home, and no longer than that stays.
    pub(super) fn lost_unheard(&mut self, n: usize, now: u64) {
        let is_unheard = |p: &&mut Promise| {
            p.home == Home::Connection(n) && p.replicated_at.is_none() && p.home_since + HEARD > now
        };
        for promise in self.rows.values_mut().filter(is_unheard) {
            promise.doubtful_until = UNTIL_IT_MOVES;
        }
    }

    pub(super) fn uncertain(&mut self, service: &ServiceKey, instance: &Instance) {
        self.set(service, instance, State::Uncertain);
    }

    pub(super) fn withdrawn(&mut self, service: &ServiceKey, instance: &Instance, now: u64) {
        self.set(
            service,
            instance,
            State::Dead {
                since: now,
                silent: false,
                left: false,
            },
        );
    }

    /// Its client is gone together with all nodes; `left`: they have nothing from which it could come back.
    pub(super) fn died(&mut self, service: &ServiceKey, instance: &Instance, left: bool, since: u64) {
        let silent = true;
        self.set(service, instance, State::Dead { since, silent, left });
    }

    pub(super) fn silenced(&mut self, service: &ServiceKey, instance: &Instance, now: u64) {
        self.set(
            service,
            instance,
            State::Dead {
                since: now,
                silent: true,
                left: false,
            },
        );
    }

    /// A beat was answered as unknown although the client was never told that its row is gone.
    pub(super) fn forgotten(&mut self, service: &ServiceKey, instance: &Instance) {
        let key = (service.clone(), instance.row_key());
        if let Some(promise) = self.rows.get(&key)
            && promise.replicated_at.is_some()
        {
            self.broken_reads.push(format!(
                "beat of {service} {:?} answered as unknown",
                promise.instance.row_key()
            ));
        }
    }

    pub(super) fn node_crashed(&mut self, n: usize) {
        self.ready_at.remove(&n);
        for promise in self.rows.values_mut() {
            promise.shown_by.retain(|at| *at != n);
        }
    }

    /// Its process has ended for good, or nobody lists it any more.
    pub(super) fn node_left(&mut self, n: usize) {
        self.node_crashed(n);
        self.started_at.remove(&n);
    }

    pub(super) fn node_started(&mut self, n: usize, now: u64) {
        self.started_at.insert(n, now);
    }

    /// Every node has been ready for a while, so that the next fault is a single one.
    pub(super) fn quiet_since_restart(&self, now: u64) -> bool {
        self.started_at
            .keys()
            .all(|n| self.ready_at.get(n).is_some_and(|at| at + 4_000 < now))
    }
}
