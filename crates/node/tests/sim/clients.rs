//! Clients: SDK clients that hold a connection, and clients that beat. Each client's instances have an address of its
//! own, so that the oracle knows who must be listed.

use std::collections::BTreeMap;

use rollcall_core::registry::records::{Record, RecordKey};
use rollcall_core::{Instance, Metadata, RowKey, ServiceKey};
use rollcall_node::{ConnectionId, ConnectionInfo, HttpWrite, NodeError, Push, RowTarget, Ticket, WriteDone};
use smol_str::SmolStr;

use super::Broken;
use super::invariants::{BEATEN_AGAIN, had_log_gap};
use super::network::SETTLED;
use super::oracle::Home;
use super::world::{Event, World};

pub(super) const N_SERVICES: u64 = 12;

/// The list that a subscriber holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) rows: Vec<(RowKey, u64)>,
    pub(super) last_ref_time: u64,
    /// It has dropped another list, because that came from a clock behind the one it had its own from.
    pub(super) is_outrun: bool,
}

/// A client with a connection.
#[derive(Debug, Default)]
pub(super) struct Sdk {
    pub(super) connection: Option<(usize, u64, ConnectionId)>,
    /// What it wants to publish: by service, port and weight of each instance.
    pub(super) publishes: BTreeMap<ServiceKey, BTreeMap<u16, u64>>,
    pub(super) subscribes: BTreeMap<ServiceKey, Held>,
    is_waiting: bool,
    /// It registers again only at the next turn of a timer, as the official Python client does.
    is_slow: bool,
    /// When that turn is.
    redo_at: u64,
}

/// A client that beats for one row.
#[derive(Debug, Default)]
pub(super) struct Beating {
    pub(super) registered: Option<(ServiceKey, u64)>,
    /// The node it turns to as long as that is ready; others turn to any.
    home: Option<usize>,
    is_homely: bool,
    /// What is on its way, and since when.
    pending: Option<Pending>,
    pub(super) pending_since: u64,
    /// The node that was asked, and by which ticket: what it answers to another one is old.
    asked: Option<(usize, Ticket)>,
    is_silent: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Pending {
    Register(ServiceKey, u64),
    Deregister(ServiceKey),
    Beat,
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) sdk: Vec<Sdk>,
    pub(super) beating: Vec<Beating>,
}

impl Clients {
    pub(super) fn new(n_sdk: usize, n_beating: usize) -> Self {
        Clients {
            sdk: (0..n_sdk)
                .map(|n| Sdk {
                    is_slow: n % 4 == 3,
                    ..Sdk::default()
                })
                .collect(),
            beating: (0..n_beating)
                .map(|n| Beating {
                    is_homely: n % 2 == 0,
                    ..Beating::default()
                })
                .collect(),
        }
    }
}

pub(super) fn service(n: u64) -> ServiceKey {
    ServiceKey::new(
        "public",
        if n.is_multiple_of(3) { "G" } else { "DEFAULT_GROUP" },
        &format!("svc-{n}"),
    )
}

/// The instance of a client; `weight` tells versions apart.
pub(super) fn instance(client: usize, port: u16, weight: u64) -> Instance {
    let mut instance = Instance::at(&format!("10.1.0.{client}"), port);
    instance.weight = weight as f64;
    instance.metadata = Metadata::from_pairs([("client".into(), SmolStr::from(client.to_string()))]);
    instance
}

impl World {
    pub(super) fn client_of(&self, n: usize, connection: ConnectionId) -> Option<usize> {
        let life = self.slots[n].life;
        self.clients
            .sdk
            .iter()
            .position(|c| c.connection == Some((n, life, connection)))
    }

    pub(super) fn is_waiting(&self, beating: usize) -> bool {
        self.clients.beating[beating].pending.is_some()
    }

    fn ready_nodes(&self) -> Vec<usize> {
        (0..self.slots.len())
            .filter(|n| !self.is_paused(*n))
            .filter(|n| self.slots[*n].node.as_ref().is_some_and(|x| x.is_ready()))
            .collect()
    }

    fn pick_ready(&mut self) -> Option<usize> {
        let ready = self.ready_nodes();
        (!ready.is_empty()).then(|| ready[self.rng.usize(0..ready.len())])
    }

    /// A client gets its turn: an SDK client without a connection connects, a beating one starts its beats.
    pub(super) fn client_turn(&mut self, client: usize) {
        if client < self.clients.sdk.len() {
            self.clients.sdk[client].is_waiting = false;
            self.connect(client);
        } else {
            self.after(0, Event::Beat(client));
        }
    }

    fn connect(&mut self, client: usize) {
        if self.clients.sdk[client].connection.is_some() {
            return;
        }
        let Some(n) = self.pick_ready() else {
            return self.retry(client);
        };
        let is_slow = self.clients.sdk[client].is_slow;
        let version = if is_slow {
            "Nacos-Python-Client:v3"
        } else {
            "Nacos-Java-Client:v2"
        };
        let info = ConnectionInfo {
            client_version: version.into(),
            is_naming: true,
            is_sdk: true,
            ..ConnectionInfo::default()
        };
        let opened = self.with(n, |node, now, actions| node.open_connection(info, now, actions));
        let Some(Ok(id)) = opened else {
            return self.retry(client);
        };
        self.clients.sdk[client].connection = Some((n, self.slots[n].life, id));
        self.at(self.clients.sdk[client].redo_at, Event::Redo(client, id));
        // What the subscription answers is thrown away, as the official clients do.
        let subscribed: Vec<_> = self.clients.sdk[client].subscribes.keys().cloned().collect();
        for service in subscribed {
            self.with(n, |node, now, actions| {
                node.subscribe(id, &service, Some("".into()), now, actions)
                    .map(|_| ())
            });
        }
    }

    /// Everything is registered again.
    pub(super) fn redo(&mut self, client: usize, connection: ConnectionId) {
        let sdk = &self.clients.sdk[client];
        if sdk.connection.is_some_and(|(_, _, id)| id == connection) {
            let services: Vec<_> = sdk.publishes.keys().cloned().collect();
            for service in services {
                self.publish(client, &service);
            }
        }
    }

    fn retry(&mut self, client: usize) {
        if !self.clients.sdk[client].is_waiting {
            self.clients.sdk[client].is_waiting = true;
            let pause = self.rng.u64(100..1_500);
            self.after(pause, Event::Client(client));
        }
    }

    /// All connections to a node break; their clients find out and go elsewhere.
    pub(super) fn node_lost(&mut self, n: usize) {
        // A node that was cut off from it, or fell out of its log, may not know what a client wrote here that came from
        // there, and its own older version of the row lives.
        let (network, now) = (&self.network, self.now);
        let is_cut_off = (0..self.slots.len()).any(|m| network.settled_until(m, n, now) != now);
        if is_cut_off || had_log_gap(&self.ready()) {
            let here = Home::Connection(n);
            let rows = self.oracle.rows.values_mut();
            rows.filter(|promise| promise.home == here)
                .for_each(|promise| promise.is_contested = true);
        }
        self.oracle.lost_unheard(n, self.now);
        self.slots[n].failed_at = self.now;
        let is_pause = self.is_paused(n);
        for client in 0..self.clients.sdk.len() {
            if let Some((at, _, id)) = self.clients.sdk[client].connection
                && at == n
            {
                self.slots[n].left_behind.push(id);
                self.connection_lost(client);
                // A node that stands still closes the connection when it goes on, and then the rows go: a client that
                // is slow even then is not covered.
                let sdk = &mut self.clients.sdk[client];
                if is_pause {
                    sdk.redo_at = self.now;
                } else if sdk.is_slow && sdk.redo_at <= self.now {
                    sdk.redo_at = self.now + self.rng.u64(0..30_000);
                }
            }
        }
        // Answers that the node owed never come.
        for client in 0..self.clients.beating.len() {
            let beating = &mut self.clients.beating[client];
            // One that waits for another node goes on waiting: it would overtake its own write.
            if beating.asked.is_none_or(|(asked, _)| asked != n) {
                continue;
            }
            if let Some(Pending::Register(service, weight)) = beating.pending.take() {
                self.oracle
                    .uncertain(&service, &instance(client + 100, 9000, weight));
            }
        }
    }

    /// No other node lists this one, which takes registrations until it has found out.
    fn is_off_all_lists(&self, n: usize) -> bool {
        let others = self.slots.iter().enumerate().filter(|(m, _)| *m != n);
        !self.wanted.contains(&n)
            && others
                .filter(|(_, s)| s.node.is_some())
                .all(|(_, s)| !s.list.contains(&n))
    }

    /// A client does as it was asked: it closes its connection and connects to another node.
    pub(super) fn client_moves(&mut self, n: usize, life: u64, connection: ConnectionId) {
        if !self.is_alive(n, life) {
            return;
        }
        let Some(client) = self.client_of(n, connection) else {
            return;
        };
        self.connection_lost(client);
        let sdk = &mut self.clients.sdk[client];
        if sdk.is_slow && sdk.redo_at <= self.now {
            sdk.redo_at = self.now + self.rng.u64(0..30_000);
        }
        self.with(n, |node, now, actions| {
            node.close_connection(connection, now, actions)
        });
    }

    pub(super) fn connection_lost(&mut self, client: usize) {
        self.clients.sdk[client].connection = None;
        self.retry(client);
    }

    fn publish(&mut self, client: usize, service: &ServiceKey) {
        let Some((n, _, id)) = self.clients.sdk[client].connection else {
            return;
        };
        let wanted = self.clients.sdk[client]
            .publishes
            .get(service)
            .cloned()
            .unwrap_or_default();
        let instances: Vec<_> = wanted
            .iter()
            .map(|(port, weight)| instance(client, *port, *weight))
            .collect();
        let rows = instances.clone();
        let is_whole = self.is_network_settled();
        let done = self.with(n, |node, now, actions| {
            let done = node.register(id, service, instances, now, actions);
            let view = node.query(service, now).map(|a| a.view);
            (done, view)
        });
        match done {
            Some((Ok(()), Ok(view))) => {
                for row in rows {
                    let is_listed = view
                        .get(&row.ip, row.port, &row.cluster)
                        .is_some_and(|i| **i == row);
                    let home = Home::Connection(n);
                    let is_behind = self.is_clock_behind(service, &row, n);
                    self.leave_home(service, &row, home);
                    self.oracle
                        .registered(service, &row, home, is_listed, is_whole, self.now);
                    if is_behind {
                        // And what it has replaced as the newer one is missing when it goes, if there is another cut by then.
                        self.oracle.contest(service, &row);
                        self.oracle.doubt(service, &row);
                    }
                    if self.is_off_all_lists(n) {
                        // Nobody hears of it until the client has found out that it must go elsewhere.
                        self.oracle.doubt(service, &row);
                    }
                }
            }
            Some((Err(error), _)) => {
                self.refused(n, &error);
                self.connection_lost(client);
            }
            _ => self.connection_lost(client),
        }
    }

    /// One operation of a random client.
    pub(super) fn operation(&mut self) {
        self.report.operations += 1;
        if self.rng.u32(0..30) == 0 {
            return self.operator_operation();
        }
        let n_sdk = self.clients.sdk.len();
        let client = self.rng.usize(0..n_sdk + self.clients.beating.len());
        if client < n_sdk {
            self.sdk_operation(client);
        } else {
            self.beating_operation(client);
        }
    }

    /// An operator sets or removes a switch at whatever node is ready.
    fn operator_operation(&mut self) {
        let Some(n) = self.pick_ready() else { return };
        let name = format!("switch-{}", self.rng.u32(0..3));
        let value = self.rng.bool().then(|| self.rng.u64(..).to_string());
        let record = value.as_ref().map(|v| Record::Switch(v.as_str().into()));
        let key = RecordKey::Switch(name.as_str().into());
        let set = self.with(n, |node, now, actions| {
            node.set_record(&key, record, now, actions).is_ok()
        });
        if set == Some(true) {
            // A node that no other lists takes writes until it has found out, and keeps them to itself.
            let is_heard = !self.is_off_all_lists(n);
            self.oracle.switched(name, value, is_heard, self.now);
        }
    }

    fn sdk_operation(&mut self, client: usize) {
        let service = service(self.rng.u64(0..N_SERVICES));
        let weight = self.rng.u64(1..10_000);
        let port = 8000 + self.rng.u16(0..3);
        match self.rng.u32(0..100) {
            0..35 => {
                let rows = BTreeMap::from([(port, weight)]);
                self.change_publication(client, &service, rows);
            }
            35..50 => {
                let rows = (0..self.rng.u16(1..4))
                    .map(|n| (8000 + n, weight + u64::from(n)))
                    .collect();
                self.change_publication(client, &service, rows);
            }
            50..65 => self.change_publication(client, &service, BTreeMap::new()),
            65..85 => self.subscribe(client, &service),
            85..92 => self.unsubscribe(client, &service),
            _ => self.hang_up(client),
        }
    }

    fn change_publication(&mut self, client: usize, service: &ServiceKey, rows: BTreeMap<u16, u64>) {
        if self.clients.sdk[client].connection.is_none() {
            return;
        }
        let former = self.clients.sdk[client]
            .publishes
            .insert(service.clone(), rows.clone())
            .unwrap_or_default();
        for (port, weight) in former.iter().filter(|(port, _)| !rows.contains_key(port)) {
            self.oracle
                .withdrawn(service, &instance(client, *port, *weight), self.now);
        }
        if rows.is_empty() {
            self.clients.sdk[client].publishes.remove(service);
        }
        self.publish(client, service);
    }

    fn subscribe(&mut self, client: usize, service: &ServiceKey) {
        let Some((n, _, id)) = self.clients.sdk[client].connection else {
            return;
        };
        let done = self.with(n, |node, now, actions| {
            node.subscribe(id, service, Some("".into()), now, actions)
        });
        if let Some(Ok(answer)) = done {
            let held = self.clients.sdk[client]
                .subscribes
                .entry(service.clone())
                .or_default();
            if answer.last_ref_time.0 > held.last_ref_time {
                held.is_outrun = false;
                held.last_ref_time = answer.last_ref_time.0;
                held.rows = answer
                    .view
                    .instances()
                    .map(|i| (i.row_key(), i.weight as u64))
                    .collect();
            }
        }
    }

    fn unsubscribe(&mut self, client: usize, service: &ServiceKey) {
        let Some((n, _, id)) = self.clients.sdk[client].connection else {
            return;
        };
        self.clients.sdk[client].subscribes.remove(service);
        self.with(n, |node, now, actions| {
            node.unsubscribe(id, service, Some("".into()), now, actions)
                .map(|_| ())
        });
    }

    /// The client stops for good, or for a while: everything it published goes with its connection.
    fn hang_up(&mut self, client: usize) {
        let Some((n, _, id)) = self.clients.sdk[client].connection.take() else {
            return;
        };
        let publishes = std::mem::take(&mut self.clients.sdk[client].publishes);
        self.clients.sdk[client].subscribes.clear();
        for (service, rows) in publishes {
            for (port, weight) in rows {
                self.oracle
                    .withdrawn(&service, &instance(client, port, weight), self.now);
            }
        }
        self.with(n, |node, now, actions| node.close_connection(id, now, actions));
        self.retry(client);
    }

    /// Some clients are gone while there is no node; their rows have to go, or must not even come.
    pub(super) fn clients_die(&mut self, at: u64, is_forgotten: bool) {
        for client in 0..self.clients.sdk.len() {
            if self.rng.u32(0..3) != 0 {
                continue;
            }
            let publishes = std::mem::take(&mut self.clients.sdk[client].publishes);
            self.clients.sdk[client].subscribes.clear();
            for (service, rows) in publishes {
                for (port, weight) in rows {
                    let row = instance(client, port, weight);
                    self.oracle.died(&service, &row, is_forgotten, at);
                }
            }
        }
        for at_client in 0..self.clients.beating.len() {
            if self.rng.u32(0..3) == 0
                && let Some((service, weight)) = self.clients.beating[at_client].registered.take()
            {
                self.clients.beating[at_client].is_silent = true;
                let row = instance(at_client + 100, 9000, weight);
                self.oracle.died(&service, &row, is_forgotten, at);
            }
        }
    }

    /// A list arrives. Like the Go client, the subscriber drops what is not newer than what it holds.
    pub(super) fn push(&mut self, n: usize, life: u64, push: Push) -> Result<(), Broken> {
        if !self.is_alive(n, life) {
            return Ok(());
        }
        let Some(client) = self.client_of(n, push.connection) else {
            return Ok(());
        };
        self.report.pushes += 1;
        if let Some(held) = self.clients.sdk[client].subscribes.get_mut(&push.service) {
            let rows: Vec<_> = push
                .view
                .instances()
                .map(|i| (i.row_key(), i.weight as u64))
                .collect();
            if push.last_ref_time.0 > held.last_ref_time {
                held.last_ref_time = push.last_ref_time.0;
                held.rows = rows;
                held.is_outrun = false;
            } else {
                held.is_outrun |= held.rows != rows;
            }
        }
        let delay = self.rng.u64(0..4);
        self.after(delay, Event::Ack(n, life, push.connection, push.request_id));
        Ok(())
    }

    // === clients that beat ===

    fn beating_operation(&mut self, client: usize) {
        let at = client - self.clients.sdk.len();
        if self.clients.beating[at].pending.is_some() {
            return;
        }
        match (self.clients.beating[at].registered.clone(), self.rng.u32(0..10)) {
            (Some((service, weight)), 0..3) => {
                self.oracle
                    .withdrawn(&service, &instance(at + 100, 9000, weight), self.now);
                self.clients.beating[at].registered = None;
                self.clients.beating[at].pending = Some(Pending::Deregister(service.clone()));
                let target = target(at);
                self.write(client, HttpWrite::Deregister { service, target });
            }
            (Some((service, weight)), 3) => {
                // It falls silent: the registry has to find out by itself.
                self.oracle
                    .silenced(&service, &instance(at + 100, 9000, weight), self.now);
                self.clients.beating[at].registered = None;
                self.clients.beating[at].is_silent = true;
            }
            (Some((service, _)), _) => {
                let weight = self.rng.u64(1..10_000);
                self.register_beating(client, service, weight);
            }
            (None, _) if !self.clients.beating[at].is_silent || self.rng.bool() => {
                self.clients.beating[at].is_silent = false;
                let service = service(self.rng.u64(0..N_SERVICES));
                let weight = self.rng.u64(1..10_000);
                self.register_beating(client, service, weight);
            }
            _ => {}
        }
    }

    fn register_beating(&mut self, client: usize, service: ServiceKey, weight: u64) {
        let at = client - self.clients.sdk.len();
        let row = instance(at + 100, 9000, weight);
        self.oracle.uncertain(&service, &row);
        self.clients.beating[at].pending = Some(Pending::Register(service.clone(), weight));
        self.write(
            client,
            HttpWrite::Register {
                service,
                instance: row,
            },
        );
    }

    /// A beat every five seconds to whatever node is ready.
    pub(super) fn beat_turn(&mut self, client: usize) {
        let at = client - self.clients.sdk.len();
        let again = 5_000 - self.rng.u64(0..200);
        self.after(again, Event::Beat(client));
        let beating = &mut self.clients.beating[at];
        if beating.pending.is_some() {
            return;
        }
        if let Some((service, _)) = beating.registered.clone() {
            beating.pending = Some(Pending::Beat);
            self.write(
                client,
                HttpWrite::Beat {
                    service,
                    target: target(at),
                    full: None,
                },
            );
        }
    }

    /// A client comes from a node that is cut off from its new one, and clocks were set: by the one that is ahead an older
    /// version is newer, as long as its former node keeps the row for a client on its way.
    fn is_clock_behind(&self, service: &ServiceKey, row: &Instance, to: usize) -> bool {
        let promise = self.oracle.rows.get(&(service.clone(), row.row_key()));
        let former = promise.map(|promise| promise.home);
        let (network, now) = (&self.network, self.now);
        let is_cut_off = |from: usize| network.settled_until(from, to, now) != now;
        self.report.clocks_set > 0 && matches!(former, Some(Home::Connection(from)) if is_cut_off(from))
    }

    /// Nodes that are cut off from a row's new home need not hear that it lives on, and show it as long as they would if
    /// it had died.
    fn leave_home(&mut self, service: &ServiceKey, row: &Instance, home: Home) {
        let Home::Connection(to) = home else { return };
        let promise = self.oracle.rows.get_mut(&(service.clone(), row.row_key()));
        if let Some(promise) = promise.filter(|promise| promise.home != home) {
            let (network, now) = (&self.network, self.now);
            promise
                .shown_by
                .retain(|n| network.settled_until(*n, to, now) == now);
        }
    }

    fn is_network_settled(&self) -> bool {
        self.network.is_quiet_for(SETTLED, self.now)
    }

    /// A node refuses what it was ready for.
    fn refused(&mut self, n: usize, error: &NodeError) {
        let is_unready = matches!(
            error,
            NodeError::NotReady | NodeError::Leaving | NodeError::Unlisted | NodeError::UnknownConnection
        );
        if !is_unready {
            self.oracle
                .refused
                .push(format!("node {n} at {}: {error}", self.now));
        }
    }

    /// The node that a client turns to which beats.
    fn node_for(&mut self, at: usize) -> Option<usize> {
        let home = self.clients.beating[at].home;
        if let Some(home) = home.filter(|home| self.ready_nodes().contains(home)) {
            return Some(home);
        }
        let n = self.pick_ready()?;
        if self.clients.beating[at].is_homely {
            self.clients.beating[at].home = Some(n);
            if let Some((service, weight)) = self.clients.beating[at].registered.clone() {
                let row = instance(at + 100, 9000, weight);
                let is_whole = self.is_network_settled();
                self.oracle
                    .moved(&service, &row, Home::Beats(n), is_whole, self.now);
            }
        }
        Some(n)
    }

    fn write(&mut self, client: usize, write: HttpWrite) {
        let at = client - self.clients.sdk.len();
        self.clients.beating[at].pending_since = self.now;
        self.clients.beating[at].asked = None;
        let Some(n) = self.node_for(at) else {
            return self.write_answered(client, None, Err(NodeError::NotReady));
        };
        let ticket: Ticket = self.ticket(n, client);
        self.clients.beating[at].asked = Some((n, ticket));
        self.with(n, |node, now, actions| node.write(ticket, write, now, actions));
    }

    pub(super) fn write_answered(
        &mut self,
        client: usize,
        asked: Option<(usize, Ticket)>,
        result: Result<WriteDone, NodeError>,
    ) {
        let at = client - self.clients.sdk.len();
        if self.clients.beating[at].asked != asked {
            return;
        }
        let Some(pending) = self.clients.beating[at].pending.take() else {
            return;
        };
        let by = asked.map(|(n, _)| n);
        if let (Some(n), Err(error)) = (by, &result) {
            self.refused(n, error);
        }
        match (pending, result) {
            (Pending::Register(service, weight), Ok(_)) => {
                let row = instance(at + 100, 9000, weight);
                let home = match self.clients.beating[at].home {
                    Some(n) => Home::Beats(n),
                    None => Home::Anywhere,
                };
                let is_whole = self.is_network_settled();
                self.oracle
                    .registered(&service, &row, home, true, is_whole, self.now);
                // A node that is off the list takes writes until it has found out.
                if let Some(n) = by.filter(|n| !self.wanted.contains(n)) {
                    self.slots[n].has_lone_writes = true;
                    self.oracle.contest(&service, &row);
                }
                self.clients.beating[at].registered = Some((service, weight));
            }
            (Pending::Beat, Ok(WriteDone::BeatUnknown { .. })) => {
                let Some((service, weight)) = self.clients.beating[at].registered.clone() else {
                    return;
                };
                if self.network.is_quiet_for(BEATEN_AGAIN, self.now) {
                    self.oracle.forgotten(&service, &instance(at + 100, 9000, weight));
                }
                self.register_beating(client, service, weight);
            }
            _ => {}
        }
    }
}

fn target(at: usize) -> RowTarget {
    RowTarget {
        ip: SmolStr::from(format!("10.1.0.{}", at + 100)),
        port: 9000,
        cluster: None,
    }
}
