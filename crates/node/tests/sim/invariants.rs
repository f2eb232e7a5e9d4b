//! The invariants of the design's section 8, as far as one-node faults go, checked all the time and at rest.

use rollcall_core::{Now, ServiceKey};
use rollcall_node::Node;

use super::Broken;
use super::oracle::State;
use super::world::World;

/// A row that every ready node showed must be in the list of a node that becomes ready this much later.
const REPLICATION: u64 = 3_000;
/// A withdrawn row is gone after the longest grace plus detection; a silent one after its time-out, which a change of
/// owner lets begin anew.
const GONE_AFTER: u64 = 90_000;

fn broken(invariant: &'static str, what: String) -> Result<(), Broken> {
    Err(Broken { invariant, what })
}

/// Some node fell out of another's log. What was published and withdrawn meanwhile it never heard of, so that an orphan
/// which that replaced stays there until its grace ends.
fn had_log_gap(ready: &[(usize, &Node)]) -> bool {
    ready.iter().any(|(_, node)| {
        node.metrics(Now::default())
            .get("rollcall_log_gaps")
            .is_some_and(|n| n > 0)
    })
}

impl World {
    /// The nodes that would serve a read now and are in the cluster. A node that stood still is asked as a client would
    /// ask it.
    fn ready(&self) -> Vec<(usize, &Node)> {
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
        let mut rows = std::mem::take(&mut self.oracle.rows);
        let result = self.check_rows(&mut rows, now);
        self.oracle.rows = rows;
        result
    }

    fn check_rows(
        &self,
        rows: &mut std::collections::BTreeMap<(ServiceKey, rollcall_core::RowKey), super::oracle::Promise>,
        now: u64,
    ) -> Result<(), Broken> {
        let ready = self.ready();
        for ((service, key), promise) in rows.iter_mut() {
            let mut n_listed = 0;
            for (n, node) in &ready {
                let view = node.registry().service(service).map(|s| s.view());
                let listed = view.as_ref().and_then(|v| v.get(&key.ip, key.port, &key.cluster));
                n_listed += usize::from(listed.is_some());
                match promise.state {
                    State::Uncertain => {}
                    State::Alive { .. } => {
                        let is_shown = listed.is_some_and(|i| **i == promise.instance);
                        let is_due = promise.replicated_at.is_some_and(|at| at + REPLICATION < now)
                            || promise.shown_by.contains(n);
                        if is_shown && !promise.shown_by.contains(n) {
                            promise.shown_by.push(*n);
                        }
                        if is_due && !is_shown {
                            return broken(
                                "a live provider is in every ready node's list",
                                format!(
                                    "{service} {key:?} at node {n}, time {now}: {listed:?} for {promise:?}"
                                ),
                            );
                        }
                    }
                    State::Dead { left: true, .. } if listed.is_some() && !had_log_gap(&ready) => {
                        return broken(
                            "a removed row does not come back",
                            format!("{service} {key:?} at node {n}, {now}"),
                        );
                    }
                    State::Dead { since, .. } if listed.is_some() && now > since + GONE_AFTER => {
                        return broken(
                            "a dead provider leaves every list in time",
                            format!("{service} {key:?} at node {n}, {now}: {promise:?}"),
                        );
                    }
                    State::Dead { .. } => {}
                }
            }
            let is_ready = |n: &usize| self.slots[*n].node.as_ref().is_some_and(Node::is_ready);
            let all_run = self.wanted.iter().all(is_ready);
            match &mut promise.state {
                State::Alive { .. } if promise.shown_by.len() >= ready.len() && !ready.is_empty() => {
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
                if held.rows != rows {
                    let what = format!("client {client} at node {n}, {service}: {held:?} against {rows:?}");
                    return broken("a subscriber holds the current list", what);
                }
            }
        }
        Ok(())
    }
}
