//! The invariants of the design's section 8, as far as one-node faults go, checked all the time and at rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::{Now, RowKey, ServiceKey, ServiceView};
use rollcall_node::Node;

use super::Broken;
use super::network::SETTLED;
use super::oracle::{Home, Promise, State};
use super::world::World;

/// A row that every ready node showed must be in the list of a node that becomes ready this much later.
const REPLICATION: u64 = 3_000;
/// A withdrawn row is gone after the longest grace plus detection; a silent one after its time-out, which a change of
/// owner lets begin anew.
const GONE_AFTER: u64 = 90_000;

/// The same when a node fell out of another's log and fails again and again.
const FORGOTTEN_AFTER: u64 = 150_000;

/// A row whose home is cut off stays at least this long: the grace of an unreachable member, by the fastest clock.
const GRACE: u64 = 29_000;
/// The same of a row whose beats are cut off, until it may be shown as unhealthy: the last beat came some seconds
/// before.
const BEAT_GRACE: u64 = 9_000;
/// A client that beats at any node has found out that its row is gone, and registered it again.
pub(super) const BEATEN_AGAIN: u64 = 12_000;
/// Graces and time-outs that began in a partition have ended.
const FORGOTTEN: u64 = 70_000;
/// A write is answered within this time, however many members do not answer.
const ANSWERED: u64 = 8_000;

fn broken(invariant: &'static str, what: String) -> Result<(), Broken> {
    Err(Broken { invariant, what })
}

/// Some node fell out of another's log. What was published and withdrawn meanwhile it never heard of, so that an orphan
/// which that replaced stays there until its grace ends.
pub(super) fn had_log_gap(ready: &[(usize, &Node)]) -> bool {
    ready.iter().any(|(_, node)| {
        node.metrics(Now::default())
            .get("rollcall_log_gaps")
            .is_some_and(|n| n > 0)
    })
}

impl World {
    /// The nodes that would serve a read now and are in the cluster. A node that stood still is asked as a client would
    /// ask it.
    pub(super) fn ready(&self) -> Vec<(usize, &Node)> {
        let nodes = self.slots.iter().enumerate();
        nodes
            .filter(|(n, _)| !self.is_paused(*n))
            .filter_map(|(n, s)| s.node.as_ref().map(|x| (n, x)))
            .filter(|(_, x)| !x.is_unlisted())
            .filter(|(n, x)| x.query(&ServiceKey::new("", "", "any"), self.clock(*n)).is_ok())
            .collect()
    }

    /// Invariants that hold at every moment.
    pub(super) fn check(&mut self) -> Result<(), Broken> {
        if let Some(what) = self.oracle.broken_reads.first() {
            return broken("an acknowledged write is visible to the next read", what.clone());
        }
        let now = self.now;
        for n in 0..self.slots.len() {
            if self.slots[n].node.as_ref().is_some_and(Node::is_unlisted) {
                self.report.unlisted += 1;
                self.oracle.node_crashed(n);
            }
        }
        let ready_now: Vec<usize> = self.ready().iter().map(|(n, _)| *n).collect();
        for n in &ready_now {
            self.oracle.ready_at.entry(*n).or_insert(now);
        }
        self.check_writes()?;
        let mut rows = std::mem::take(&mut self.oracle.rows);
        let result = self.check_rows(&mut rows, now);
        self.oracle.rows = rows;
        result?;
        self.check_healing()
    }

    /// Writes never fail but by a node that is not ready, and are answered in bounded time.
    fn check_writes(&self) -> Result<(), Broken> {
        if let Some(what) = self.oracle.refused.first() {
            return broken("a node that is ready takes every write", what.clone());
        }
        for (client, beating) in self.clients.beating.iter().enumerate() {
            if self.is_waiting(client) && beating.pending_since + ANSWERED < self.now {
                return broken(
                    "a write is answered in bounded time",
                    format!("{client}: {beating:?}"),
                );
            }
        }
        Ok(())
    }

    /// Soon after the network is whole again all nodes hold the same.
    fn check_healing(&mut self) -> Result<(), Broken> {
        let Some(healed_at) = self.healed_at else {
            return Ok(());
        };
        let ready = self.ready();
        if ready.len() != self.wanted.len() {
            return Ok(());
        }
        let difference = self.difference(&ready);
        if difference.is_none() {
            let took = self.now - healed_at;
            self.healed_at = None;
            self.report.healed += 1;
            self.report.slowest_heal = self.report.slowest_heal.max((took, self.plan.seed));
        } else if self.now > healed_at + SETTLED {
            return broken(
                "soon after healing all nodes hold the same",
                difference.unwrap_or_default(),
            );
        }
        Ok(())
    }

    /// Some difference between nodes.
    fn difference(&self, nodes: &[(usize, &Node)]) -> Option<String> {
        let ((first, a), others) = nodes.split_first()?;
        for (n, b) in others {
            if a.digests() != b.digests() {
                return Some(format!("digests of nodes {first} and {n}"));
            }
        }
        // Rows of a node that ended stay for different graces, which a partition begins anew.
        if self.report.crashed + self.report.paused > 0 || had_log_gap(nodes) {
            return None;
        }
        let services: std::collections::BTreeSet<&ServiceKey> =
            self.oracle.rows.keys().map(|(service, _)| service).collect();
        let rows = |node: &Node, service: &ServiceKey| -> Vec<_> {
            let service = node.registry().service(service);
            service.map_or(Vec::new(), |s| s.view().instances().cloned().collect())
        };
        for service in services {
            for (n, b) in others {
                let (here, there) = (rows(a, service), rows(b, service));
                if let Some(row) = here.iter().find(|row| !there.contains(row)) {
                    return Some(format!("{service} at node {first}, not at {n}: {row:?}"));
                }
                if let Some(row) = there.iter().find(|row| !here.contains(row)) {
                    return Some(format!("{service} at node {n}, not at {first}: {row:?}"));
                }
            }
        }
        None
    }

    /// Whether node `n` must list a row that lives, as far as the network lets it know.
    ///
    /// `is_held`: it has listed it so far. A row whose home is cut off from the node stays for the grace; it may stay
    /// longer, where another member tells that the home lives.
    fn must_list(&self, n: usize, promise: &Promise, is_held: bool) -> bool {
        let (now, network) = (self.now, &self.network);
        let is_settled = |a: usize, b: usize| network.settled_until(a, b, now) == now;
        match promise.home {
            Home::Connection(home) if is_settled(n, home) => true,
            Home::Connection(home) => is_held && now < network.settled_until(n, home, now) + GRACE,
            // Who owns the service hears of the beats only if all that reach each other agree on who that is.
            Home::Beats(home) if is_settled(n, home) && network.has_clean_sides(now) => true,
            Home::Anywhere if network.is_quiet_for(BEATEN_AGAIN, now) => true,
            Home::Beats(_) | Home::Anywhere => is_held && now < network.all_told_until(now) + BEAT_GRACE,
        }
    }

    /// The node where a row lives has been ready since before the row came there, and both sides have had time to tell.
    fn has_spread(&self, n: usize, promise: &Promise) -> bool {
        let is_up = |n: usize, since: u64| self.oracle.ready_at.get(&n).is_some_and(|at| *at <= since);
        let home = match promise.home {
            Home::Connection(home) => home,
            // Any member may have written it, and told some others before it was cut off.
            Home::Beats(home) if self.network.is_as_it_was(promise.home_since) => home,
            Home::Beats(_) | Home::Anywhere => return false,
        };
        self.now >= promise.home_since + SETTLED
            && self.list_busy_until <= self.now
            && is_up(home, promise.home_since)
            && is_up(n, self.now - SETTLED)
    }

    fn check_rows(&self, rows: &mut BTreeMap<(ServiceKey, RowKey), Promise>, now: u64) -> Result<(), Broken> {
        let ready = self.ready();
        let all_run = self.all_run();
        // A change of the network begins graces and time-outs anew.
        let changed_at = self.network.changed_at;
        let mut views: Vec<Option<Arc<ServiceView>>> = Vec::new();
        let mut of_service: Option<ServiceKey> = None;
        for ((service, key), promise) in rows.iter_mut() {
            if of_service.as_ref() != Some(service) {
                let view = |node: &Node| node.registry().service(service).map(|s| s.view());
                views = ready.iter().map(|(_, node)| view(node)).collect();
                of_service = Some(service.clone());
            }
            // What a node brings back that was away for long goes after its time-out (`docs/distro.md`, changes of
            // the member list).
            let outdated_until = match promise.home {
                Home::Connection(_) => 0,
                Home::Beats(_) | Home::Anywhere => self.outdated_until,
            };
            let gone_after = changed_at.max(outdated_until) + GONE_AFTER;
            // Each failure and each list begins graces and time-outs anew.
            let gone_after = gone_after.max(self.disturbed_at + FORGOTTEN);
            // The last one that drops the home begins the grace of a member out of reach, and each of its failures begins that
            // of all its orphans anew. A client that was on its way then has had another one before.
            let gone_after = match promise.home {
                Home::Connection(home) => {
                    let slot = &self.slots[home];
                    gone_after.max(slot.dropped_at.max(slot.failed_at) + FORGOTTEN)
                }
                Home::Beats(_) | Home::Anywhere => gone_after,
            };
            let may_come_back = outdated_until > 0 && now <= outdated_until + GONE_AFTER;
            let mut n_listed = 0;
            for ((n, _), view) in ready.iter().zip(&views) {
                let node = (*n, self.slots[*n].life);
                let listed = view.as_ref().and_then(|v| promise.look_up(node, v, key));
                n_listed += usize::from(listed.is_some());
                match promise.state {
                    State::Uncertain => {}
                    State::Alive { .. } if now < promise.doubtful_until => {}
                    State::Alive { .. } => {
                        let is_shown = { listed.as_ref() }
                            .is_some_and(|i| **i == promise.instance || promise.is_contested);
                        let is_held = promise.shown_by.contains(n);
                        // What a node shows that is cut off may be what is left of where the row lived before.
                        if is_shown && !is_held && self.must_list(*n, promise, false) {
                            promise.shown_by.push(*n);
                        }
                        if is_shown {
                            continue;
                        }
                        if !self.must_list(*n, promise, is_held) {
                            promise.shown_by.retain(|at| at != n);
                            continue;
                        }
                        let is_settled = self.network.is_quiet_for(FORGOTTEN, now);
                        let has_spread = self.has_spread(*n, promise);
                        let is_known = promise.replicated_at.is_some_and(|at| at + REPLICATION < now)
                            && (is_settled || has_spread);
                        // What a node that fell out of a log has missed comes by digests after a cut, in the time in
                        // which all have to hold the same; an end that follows it in the log may come before.
                        let network = &self.network;
                        let is_healing = network.is_whole() && !network.is_quiet_for(SETTLED, now);
                        let has_missed = is_healing && had_log_gap(&ready);
                        if (is_held || is_known || has_spread) && !has_missed {
                            return broken(
                                "a live provider is in every ready node's list",
                                format!(
                                    "{service} {key:?} at node {n}, time {now}: {listed:?} for {promise:?}"
                                ),
                            );
                        }
                    }
                    State::Dead { left: true, .. }
                        if listed.is_some() && !may_come_back && !had_log_gap(&ready) =>
                    {
                        return broken(
                            "a removed row does not come back",
                            format!("{service} {key:?} at node {n}, {now}"),
                        );
                    }
                    State::Dead { since, .. }
                        if listed.is_some()
                            && now > gone_after.max(since + GONE_AFTER)
                            // Each fault of a node that missed the withdrawal begins another grace of what it holds.
                            && (!had_log_gap(&ready) || now > since + FORGOTTEN_AFTER) =>
                    {
                        return broken(
                            "a dead provider leaves every list in time",
                            format!("{service} {key:?} at node {n}, {now}: {promise:?}"),
                        );
                    }
                    State::Dead { .. } => {}
                }
            }
            match &mut promise.state {
                State::Alive { .. }
                    if promise.shown_by.len() >= ready.len()
                        && !ready.is_empty()
                        && self.is_home_live(promise.home, promise.home_since) =>
                {
                    promise.replicated_at.get_or_insert(now);
                }
                State::Dead { left, since, .. } if all_run && n_listed == 0 && now > *since + 2_000 => {
                    *left = true
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The connection of a row is open, so that all hear of the row in its present version; copies of different age may
    /// tell of others.
    fn is_home_live(&self, home: Home, since: u64) -> bool {
        match home {
            Home::Connection(home) => self.oracle.ready_at.get(&home).is_some_and(|at| *at <= since),
            Home::Beats(_) | Home::Anywhere => true,
        }
    }

    fn all_run(&self) -> bool {
        // One that stands still, in a partition or while it leaves the list, may go on with what it had.
        let runs = |n: usize| match &self.slots[n].node {
            Some(node) => !self.is_paused(n) && (node.is_ready() || node.is_unlisted()),
            None => !self.wanted.contains(&n),
        };
        (0..self.slots.len()).all(runs)
    }

    /// Invariants of a cluster that has come to rest.
    pub(super) fn check_at_rest(&mut self) -> Result<(), Broken> {
        let ready = self.ready();
        let numbers: Vec<usize> = ready.iter().map(|(n, _)| *n).collect();
        if numbers != self.wanted {
            let what = format!("{numbers:?} of {:?}", self.wanted);
            return broken(
                "every node of the list becomes ready, and no other stays so",
                what,
            );
        }
        for (n, node) in &ready {
            let list = node.member_list();
            if self.wanted.iter().map(|m| &self.addresses[*m]).ne(list.iter())
                || node.peers().len() + 1 != list.len()
            {
                return broken(
                    "at rest all nodes have the same members",
                    format!("node {n}: {list:?}"),
                );
            }
        }
        let Some((_, first)) = ready.first() else {
            return Ok(());
        };
        for (n, node) in &ready {
            if node.digests() != first.digests() {
                let what = format!("node {n}: {:?} against {:?}", node.digests(), first.digests());
                return broken("at rest all nodes hold the same rows", what);
            }
            for origin in node.registry().digests().origins() {
                if node.registry().digests().all(origin) != node.registry().recount_digests(origin) {
                    return broken(
                        "digests equal what is counted",
                        format!("node {n}, origin {origin:?}"),
                    );
                }
            }
        }
        for ((service, key), promise) in &self.oracle.rows {
            for (n, node) in &ready {
                let view = node.registry().service(service).map(|s| s.view());
                let listed = view
                    .as_ref()
                    .and_then(|v| v.get(&key.ip, key.port, &key.cluster).cloned());
                let is_right = match promise.state {
                    State::Alive { .. } if promise.is_contested => listed.is_some(),
                    State::Alive { .. } => listed.as_deref() == Some(&promise.instance),
                    State::Dead { .. } => listed.is_none(),
                    State::Uncertain => true,
                };
                if !is_right {
                    let what = format!("{service} {key:?} at node {n}: {listed:?} for {promise:?}");
                    return broken("at rest the lists are what clients published", what);
                }
            }
            let owners: Vec<_> = ready.iter().map(|(_, node)| node.owner(service)).collect();
            if owners.iter().any(|o| o.is_none() || *o != owners[0]) {
                return broken("a service has one owner", format!("{service}: {owners:?}"));
            }
        }
        for (name, switched) in self.oracle.switches.iter().filter(|(_, s)| s.is_alone) {
            for (n, node) in &ready {
                let value = node.switch(name).map(|v| v.to_string());
                if value != switched.value {
                    let what = format!("{name} at node {n}: {value:?} for {switched:?}");
                    return broken("at rest operators find what they set last", what);
                }
            }
        }
        self.check_subscribers()
    }

    fn check_subscribers(&self) -> Result<(), Broken> {
        for (client, sdk) in self.clients.sdk.iter().enumerate() {
            let Some((n, life, _)) = sdk.connection else {
                continue;
            };
            if !self.is_alive(n, life) || !self.wanted.contains(&n) {
                continue;
            }
            for (service, held) in &sdk.subscribes {
                let view = self.slots[n]
                    .node
                    .as_ref()
                    .and_then(|x| x.registry().service(service))
                    .map(|s| s.view());
                let rows: Vec<_> = view
                    .map(|v| v.instances().map(|i| (i.row_key(), i.weight as u64)).collect())
                    .unwrap_or_default();
                // No node knows what another told a client by a clock that is ahead, if that was set or cut off since, or all
                // of them have forgotten it.
                let report = &self.report;
                let are_apart = report.clocks_set + report.partitions + report.left + report.blackouts > 0;
                let is_excused = held.is_outrun && are_apart;
                if held.rows != rows && !is_excused {
                    let what = format!("client {client} at node {n}, {service}: {held:?} against {rows:?}");
                    return broken("a subscriber holds the current list", what);
                }
            }
        }
        Ok(())
    }
}
