//! The whole node: one registry, one Distro engine, the connections of clients and the pushes to them.
//!
//! Requests, frames, probe results and ticks come in by `&self` methods from any thread; answers are returned, effects
//! are collected as [`Action`]s for the shell to carry out. No I/O, no clock, no randomness of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollcall_core::registry::clean::Lives;
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::{MemberId, Millis, Now, Registry, ServiceKey};
use rollcall_distro::{DistroConfig, Effect, Effects, Engine, Fault, Report};
use smol_str::SmolStr;

use crate::action::{Action, Actions, Silenced};
use crate::balance::Balance;
use crate::brake::Brakes;
use crate::closing::Closing;
use crate::config::NodeConfig;
use crate::connection::{Awaited, Connections};
use crate::error::NodeError;
use crate::fuzzy::FuzzyWatches;
use crate::loader::Loader;
use crate::metrics::Counters;
use crate::minority::Minority;
use crate::movers::Movers;
use crate::pending::Pending;
use crate::push::{Outcome, Pusher};
use crate::switches::Switches;

/// Longest time between two ticks.
const TICK_MAX: Millis = Millis(1_000);
/// All buckets are cleaned once in this time.
const CLEAN_ROUND: Millis = Millis(10_000);

/// One node of a cluster.
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) registry: Arc<Registry>,
    pub(crate) engine: Engine,
    pub(crate) pending: Pending,
    pub(crate) counters: Counters,
    pub(crate) connections: Connections,
    pub(crate) pusher: Pusher,
    pub(crate) loader: Loader,
    pub(crate) movers: Movers,
    pub(crate) balance: Balance,
    pub(crate) minority: Minority,
    pub(crate) fuzzy: FuzzyWatches,
    pub(crate) switches: Switches,
    pub(crate) brakes: Brakes,
    pub(crate) closing: Closing,
    next_clean: AtomicU64,
    clean_bucket: AtomicU64,
}

/// Operator data is cleaned once in so many buckets, about once a second: quarantines end then.
const CLEAN_RECORDS: usize = N_BUCKETS / 10;

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.config.self_address)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// A node whose process starts now. `boot` is random: it tells this process from others of the same member.
    pub fn new(config: NodeConfig, boot: u64, now: Now) -> Self {
        let me = MemberId::of(&config.self_address);
        let registry = Arc::new(Registry::new(me, config.seed, config.answer_budget, now.mono));
        let distro = DistroConfig {
            cluster: config.cluster_name.clone(),
            address: config.self_address.clone(),
            members: config.members.clone(),
            mapper: config.mapper.clone(),
            log_capacity: config.log_capacity,
            probe_interval: config.probe_interval,
            probe_misses: config.probe_misses,
            newest_format: config.newest_format,
            rows_at_a_time: config.rows_at_a_time,
            verify_interval: config.verify_interval,
            gate_limit: config.gate_limit,
            orphan_gone: config.orphan_gone,
            orphan_unreachable: config.orphan_unreachable,
            orphan_slow_extra: config.orphan_slow_extra,
            copy_period: config.copy_period,
            faults: config.faults,
        };
        Node {
            engine: Engine::new(distro, registry.clone(), boot, now),
            connections: Connections::new(&config, now.mono),
            pusher: Pusher::new(&config),
            loader: Loader::default(),
            movers: Movers::default(),
            balance: Balance::new(config.seed ^ boot, now.mono),
            minority: Minority::default(),
            fuzzy: FuzzyWatches::default(),
            switches: Switches::new(config.beat_interval),
            brakes: Brakes::default(),
            pending: Pending::default(),
            counters: Counters::default(),
            closing: Closing::default(),
            next_clean: AtomicU64::new(now.mono.0),
            clean_bucket: AtomicU64::new(0),
            registry,
            config,
        }
    }

    /// The registry, for reading.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// True when reads, writes and connections of clients are served.
    pub fn is_ready(&self) -> bool {
        self.engine.is_ready()
    }

    /// True once the node has begun to leave.
    pub fn is_leaving(&self) -> bool {
        self.engine.is_leaving()
    }

    /// True while whoever answers says that this node is not in its member list: it serves reads only.
    pub fn is_unlisted(&self) -> bool {
        self.engine.is_unlisted()
    }

    /// Why this node refuses what only a ready node does.
    pub fn not_serving(&self) -> NodeError {
        if self.is_leaving() {
            NodeError::Leaving
        } else if self.is_unlisted() {
            NodeError::Unlisted
        } else {
            NodeError::NotReady
        }
    }

    /// Does what is due, and returns when to come back at the latest.
    pub fn tick(&self, now: Now, actions: &mut Actions) -> Millis {
        let mut effects = Effects::default();
        let (n_connections, n_sdk) = self.connections.count();
        self.engine.note_connections(n_connections, n_sdk);
        let mut next = self.engine.tick(now, &mut effects).min(now.mono + TICK_MAX);
        self.switches.renew(&self.registry);
        self.judge_beats(now, &mut effects, actions);
        self.clean(now, &mut effects);
        let limit = self.config.rows_at_a_time;
        self.tick_movers(limit, now, &mut effects);
        if !self.is_unlisted() {
            self.close_some(limit, now, &mut effects);
        }
        self.registry.release_held(now.mono, &mut effects.changes);
        self.settle(effects, now, actions);
        let silence = self.connections.silence();
        let is_suspect = self.is_suspect(Silenced::Connections, silence, now, actions);
        let idle = self
            .connections
            .look_for_idle(&self.pusher, is_suspect, now, actions);
        for id in idle {
            Counters::add(&self.counters.connections_idle_closed);
            self.close_connection(id, now, actions);
            actions.push(Action::Close { connection: id });
        }
        for (connection, request_id) in self.pusher.timed_out(now.mono) {
            self.push_ended(connection, request_id, Outcome::TimedOut, now, actions);
        }
        self.counters.push_costs.tick(now);
        self.tick_loader(now, actions);
        self.tick_balance(now, actions);
        self.tick_minority(now, actions);
        self.pusher
            .tick_udp(self.push_cache(), &self.counters, now, actions);
        self.give(self.pending.overdue(now.mono), actions);
        let mut due = [
            self.pending.next_due(),
            self.connections.next_look(),
            self.loader.next_due(),
            self.movers.next_due().filter(|_| !self.is_unlisted()),
            self.registry.next_release(),
            self.balance.next_due(),
            (!self.closing.is_empty() && !self.is_unlisted()).then_some(now.mono),
            None,
            None,
        ];
        // A node that has to catch up pushes nothing: its lists may lack what has moved meanwhile.
        if self.check_readable(now).is_ok() {
            if self.has_push() {
                self.push_due(now, actions);
                due[7] = self.pusher.next_due();
            }
            self.tick_fuzzy(now, actions);
            due[8] = self.fuzzy.next_due();
        }
        for due in due.into_iter().flatten() {
            next = next.min(due);
        }
        if self.judges_beats() {
            next = next.min(self.registry.next_beat_look().max(now.mono + Millis(1)));
        }
        next.max(now.mono)
    }

    fn push_due(&self, now: Now, actions: &mut Actions) {
        let sent = |id, request_id, service: &ServiceKey, clusters: &Option<SmolStr>| {
            let awaited = || Awaited::Push(service.clone(), clusters.clone());
            self.connections
                .get(id)
                .is_some_and(|c| c.expect(request_id, awaited()))
        };
        self.pusher.push_due(
            &self.registry,
            self.push_cache(),
            &self.counters,
            now,
            actions,
            &sent,
        );
    }

    fn judges_beats(&self) -> bool {
        self.is_ready() && self.has_beat_judge() && !self.config.faults.has(Fault::NoExpiry)
    }

    fn judge_beats(&self, now: Now, effects: &mut Effects, actions: &mut Actions) {
        if !self.judges_beats() {
            return;
        }
        let view = self.engine.view();
        let judge = |service: &ServiceKey| view.judge(service);
        let log = self.engine.log();
        let is_suspect = self.is_suspect(Silenced::Beats, self.registry.beat_silence(), now, actions);
        let n_removed = self
            .registry
            .judge_beats(now, is_suspect, &judge, log, &mut effects.changes);
        self.counters
            .beat_rows_expired
            .fetch_add(n_removed as u64, Ordering::Relaxed);
    }

    fn clean(&self, now: Now, effects: &mut Effects) {
        let step = CLEAN_ROUND.0 / N_BUCKETS as u64;
        let mut due = self.next_clean.load(Ordering::Relaxed);
        let view = self.engine.view();
        let owns = |service: &ServiceKey| self.is_ready() && view.owner(service) == Some(self.engine.me());
        let lives = Lives {
            empty_service: self.config.empty_service_life,
            tombstone: self.config.tombstone_life,
            operator_tombstone: self.config.operator_tombstone_life,
            over: self.config.override_life,
        };
        let mut n_cleaned = 0;
        while due <= now.mono.0 && n_cleaned < N_BUCKETS {
            let bucket = self.clean_bucket.fetch_add(1, Ordering::Relaxed) as usize % N_BUCKETS;
            let log = self.engine.log();
            if bucket.is_multiple_of(CLEAN_RECORDS) {
                let (life, changes) = (lives.operator_tombstone, &mut effects.changes);
                self.registry.clean_records(life, now, &owns, log, changes);
            }
            self.registry
                .clean(bucket, lives, now, &owns, log, &mut effects.changes);
            due += step;
            n_cleaned += 1;
        }
        self.next_clean.store(
            due.max(now.mono.0.saturating_sub(CLEAN_ROUND.0)),
            Ordering::Relaxed,
        );
    }

    /// Begins to leave: not ready any more, owner of nothing, and every member is told at once.
    pub fn start_leaving(&self, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.start_leaving(now, &mut effects);
        self.settle(effects, now, actions);
    }

    /// Asks every SDK connection to move to another member, one that was heard from since `heard_since` if there is any;
    /// returns how many. The shell spreads the messages.
    pub fn reset_connections(&self, heard_since: Millis, actions: &mut Actions) -> usize {
        let serving = self.serving_members(heard_since);
        let mut n_asked = 0;
        for connection in self.connections.all().into_iter().filter(|c| c.info.is_sdk) {
            let request_id = self.pusher.next_request_id();
            let to = serving.get(n_asked % serving.len().max(1)).cloned();
            if connection.expect(request_id, Awaited::Reset) {
                actions.push(Action::Reset {
                    connection: connection.id,
                    request_id,
                    to,
                });
                n_asked += 1;
            }
        }
        n_asked
    }

    /// Turns what the engine and the registry did into actions.
    pub(crate) fn settle(&self, mut effects: Effects, now: Now, actions: &mut Actions) {
        self.engine.signal_writes(now, &mut effects);
        effects.changes.sort();
        for changes in effects.changes.chunk_by(|a, b| a == b) {
            if let Some(service) = changes.first() {
                self.pusher.changed(service, changes.len(), now, actions);
            }
        }
        self.catalog_changed(now, actions);
        let durable = self.registry.take_durable();
        if !durable.is_empty() {
            actions.push(Action::Store(durable));
        }
        for effect in effects.list {
            match effect {
                Effect::LinkReady(member) => actions.push(Action::LinkReady { member }),
                Effect::RepliesReady(member) => actions.push(Action::RepliesReady { member }),
                Effect::Redial(member) => actions.push(Action::Redial { member }),
                Effect::Probe(to, probe) => actions.push(Action::Probe { to, probe }),
                Effect::Acked(_, seq) => self.give(self.pending.reached(None, seq), actions),
                Effect::Applied(origin, seq) => {
                    self.give(self.pending.reached(Some(origin), seq), actions);
                }
                Effect::Wake => actions.wake(),
                Effect::Joined(member) => actions.push(Action::Joined { member }),
                Effect::Left(member) => {
                    actions.push(Action::Left { member });
                    self.forward_elsewhere(member, now, actions);
                }
                Effect::WriteCopy => actions.push(Action::WriteCopy),
                Effect::ReadCopy => actions.push(Action::ReadCopy),
                Effect::Report(report) => {
                    match report {
                        Report::Unlisted => self.send_clients_away(now, actions),
                        Report::Listed => self.close_left_behind(now, actions),
                        _ => {}
                    }
                    actions.push(Action::Report(report));
                    actions.wake();
                }
            }
        }
    }
}
