//! Clients that nodes ask to move without being told to: after a member has returned, and behind a cut. Whole nodes with
//! links, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};

use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey};
use rollcall_distro::codec::FORMAT;
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, HttpWrite, LinkId, Node, NodeConfig, ProbeResult, Report,
    Ticket, WriteDone,
};

const ADDRESSES: [&str; 5] = [
    "10.0.0.1:8848",
    "10.0.0.2:8848",
    "10.0.0.3:8848",
    "10.0.0.4:8848",
    "10.0.0.5:8848",
];
const SERVICES: usize = 10;
/// Virtual time between two steps.
const STEP: u64 = 100;
/// From the request to move to the end of the connection, and on to the new registration.
const GOES_AFTER: u64 = 300;
const REGISTERS_AFTER: u64 = 2_000;
const MINUTE: u64 = 60_000;

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

fn service(n: usize) -> ServiceKey {
    ServiceKey::new("", "", &format!("s{}", n % SERVICES))
}

/// A client with one instance.
#[derive(Debug)]
struct Client {
    at: usize,
    connection: Option<ConnectionId>,
    /// Where to go, and when.
    goes: Option<(usize, u64)>,
    registers: Option<u64>,
    /// When it was asked to move.
    asked: Vec<u64>,
}

/// A request to move.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    time: u64,
    from: usize,
    to: usize,
}

struct Fleet {
    nodes: Vec<Option<Node>>,
    configs: Vec<NodeConfig>,
    /// Both ends of the link from one node to another.
    links: BTreeMap<(usize, usize), (LinkId, LinkId)>,
    /// Nodes that hear nothing of the others.
    cut: BTreeSet<usize>,
    /// A client that is sent elsewhere by such a node finds nobody there, and comes back.
    clients_are_cut: bool,
    clients: Vec<Client>,
    asked: Vec<Asked>,
    reports: Vec<(usize, Report)>,
    now: u64,
}

impl Fleet {
    fn new(n: usize, change: impl Fn(&mut NodeConfig)) -> Self {
        let configs: Vec<NodeConfig> = (0..n)
            .map(|at| {
                let mut config = NodeConfig::new(ADDRESSES[at], &ADDRESSES[..n], at as u64);
                // Clients show no life of their own.
                config.detect_after = Millis::secs(1_000_000);
                change(&mut config);
                config
            })
            .collect();
        let mut fleet = Fleet {
            nodes: configs.iter().map(|_| None).collect(),
            configs,
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            clients_are_cut: false,
            clients: Vec::new(),
            asked: Vec::new(),
            reports: Vec::new(),
            now: 0,
        };
        (0..n).for_each(|at| fleet.start(at));
        fleet.run_until(10_000, |fleet| fleet.nodes.iter().flatten().all(Node::is_ready));
        fleet
    }

    fn start(&mut self, at: usize) {
        let boot = self.now + at as u64 + 1;
        self.nodes[at] = Some(Node::new(self.configs[at].clone(), boot, clock(self.now)));
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at] = None;
        self.links.retain(|(from, to), _| *from != at && *to != at);
        for client in self.clients.iter_mut().filter(|client| client.at == at) {
            client.connection = None;
            client.registers = None;
        }
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().unwrap()
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&from) && !self.cut.contains(&to)
    }

    fn add_clients(&mut self, at: usize, n: usize) {
        for _ in 0..n {
            self.clients.push(Client {
                at,
                connection: None,
                goes: None,
                registers: None,
                asked: Vec::new(),
            });
            let n = self.clients.len() - 1;
            self.connect(n, at);
            self.register(n);
        }
    }

    fn connect(&mut self, n: usize, at: usize) {
        let info = ConnectionInfo {
            text_id: format!("{n}").into(),
            remote_ip: "10.1.0.1".into(),
            is_naming: true,
            is_sdk: true,
            ..ConnectionInfo::default()
        };
        let opened = self
            .node(at)
            .open_connection(info, clock(self.now), &mut Actions::default());
        self.clients[n].at = at;
        self.clients[n].connection = Some(opened.unwrap());
    }

    fn register(&mut self, n: usize) {
        let (at, id) = (self.clients[n].at, self.clients[n].connection.unwrap());
        let instance = vec![Instance::at("10.1.0.1", n as u16 + 1)];
        let mut actions = Actions::default();
        let done = self
            .node(at)
            .register(id, &service(n), instance, clock(self.now), &mut actions);
        done.unwrap();
        self.take(at, actions);
    }

    fn take(&mut self, at: usize, actions: Actions) {
        for action in actions.0 {
            match action {
                Action::Probe { to, probe } => self.probe(at, to, &probe),
                Action::Redial { member } => {
                    let to = self.position(member);
                    self.links.remove(&(at, to));
                }
                Action::Reset {
                    connection,
                    request_id,
                    to,
                } => self.reset(at, connection, request_id, to.as_deref()),
                Action::Report(report) => self.reports.push((at, report)),
                _ => {}
            }
        }
    }

    fn position(&self, member: MemberId) -> usize {
        let is_it = |address: &&str| MemberId::of(address) == member;
        ADDRESSES.iter().position(is_it).unwrap()
    }

    fn probe(&mut self, from: usize, to: MemberId, probe: &rollcall_distro::message::Probe) {
        let at = self.position(to);
        let (now, mut there) = (clock(self.now), Actions::default());
        let result = match &self.nodes[at] {
            _ if !self.reaches(from, at) => ProbeResult::Missed,
            None => ProbeResult::Refused,
            Some(node) => ProbeResult::Answer(node.on_probe(probe, now, &mut there).unwrap()),
        };
        let mut here = Actions::default();
        self.node(from).probe_done(to, result, now, &mut here);
        self.take(at, there);
        self.take(from, here);
    }

    fn reset(&mut self, at: usize, connection: ConnectionId, request_id: u64, to: Option<&str>) {
        let to = ADDRESSES
            .iter()
            .position(|address| Some(*address) == to)
            .expect("an address");
        self.asked.push(Asked {
            time: self.now,
            from: at,
            to,
        });
        let is_it = |client: &Client| client.at == at && client.connection == Some(connection);
        let n = self
            .clients
            .iter()
            .position(is_it)
            .expect("a client that is there");
        self.clients[n].asked.push(self.now);
        let to = if self.clients_are_cut { at } else { to };
        self.clients[n].goes = Some((to, self.now + GOES_AFTER));
        let mut actions = Actions::default();
        self.node(at)
            .push_acked(connection, request_id, true, clock(self.now), &mut actions);
        self.take(at, actions);
    }

    /// Clients go, come and register.
    fn step_clients(&mut self) {
        for n in 0..self.clients.len() {
            if let Some((to, when)) = self.clients[n].goes
                && when <= self.now
            {
                let (at, id) = (self.clients[n].at, self.clients[n].connection);
                if let (Some(id), Some(node)) = (id, &self.nodes[at]) {
                    let mut actions = Actions::default();
                    node.close_connection(id, clock(self.now), &mut actions);
                    self.take(at, actions);
                }
                self.clients[n].goes = None;
                self.connect(n, to);
                self.clients[n].registers = Some(self.now + REGISTERS_AFTER - GOES_AFTER);
            }
            if self.clients[n].registers.is_some_and(|when| when <= self.now) {
                self.clients[n].registers = None;
                self.register(n);
            }
        }
    }

    /// Links come up where they can, and carry what waits.
    fn step_links(&mut self) {
        let n = self.nodes.len();
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            if from == to || self.nodes[from].is_none() || self.nodes[to].is_none() {
                continue;
            }
            if !self.reaches(from, to) {
                if let Some((out, inbound)) = self.links.remove(&(from, to)) {
                    let actions = &mut Actions::default();
                    self.node(from).link_down(out, clock(self.now), actions);
                    self.node(to).inbound_down(inbound, clock(self.now), actions);
                }
                continue;
            }
            let now = clock(self.now);
            let (mut here, mut there) = (Actions::default(), Actions::default());
            if !self.links.contains_key(&(from, to)) {
                let hello = self.node(from).link_hello();
                let accepted = self.node(to).accept_link(&hello, now, &mut there);
                if let Ok((inbound, _, welcome)) = accepted {
                    let id = MemberId::of(ADDRESSES[to]);
                    let out = self.node(from).link_up(id, FORMAT, welcome, now, &mut here);
                    self.links.insert((from, to), (out, inbound));
                }
            }
            if let Some((out, inbound)) = self.links.get(&(from, to)).copied() {
                let (dialer, acceptor) = (self.node(from), self.node(to));
                while let Some(frame) = dialer.poll_link(out, now) {
                    acceptor.on_frame(inbound, frame, now, &mut there).unwrap();
                    while let Some(reply) = acceptor.poll_reply(inbound) {
                        dialer.on_reply(out, reply, now, &mut here).unwrap();
                    }
                }
                while let Some(reply) = acceptor.poll_reply(inbound) {
                    dialer.on_reply(out, reply, now, &mut here).unwrap();
                }
            }
            self.take(from, here);
            self.take(to, there);
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for at in 0..self.nodes.len() {
            let mut actions = Actions::default();
            if let Some(node) = &self.nodes[at] {
                node.tick(clock(self.now), &mut actions);
            }
            self.take(at, actions);
        }
        self.step_clients();
        self.step_links();
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms / STEP {
            self.step();
        }
    }

    /// Runs until something is true, and returns how long that took.
    fn run_until(&mut self, within: u64, is_true: impl Fn(&Fleet) -> bool) -> u64 {
        let begun = self.now;
        while !is_true(self) {
            assert!(
                self.now - begun < within,
                "not within {within} ms: {:?}",
                self.counts()
            );
            self.step();
        }
        self.now - begun
    }

    /// Checks with every step that each node which serves lists the instances of all clients.
    fn run_with_whole_lists(&mut self, ms: u64) {
        for _ in 0..ms / STEP {
            self.step();
            self.has_whole_lists();
        }
    }

    fn has_whole_lists(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(node) = node.as_ref().filter(|node| node.is_ready()) else {
                continue;
            };
            for n in 0..SERVICES {
                let listed = node.query(&service(n), clock(self.now)).unwrap().view.len();
                let live = (0..self.clients.len())
                    .filter(|client| client % SERVICES == n)
                    .count();
                assert_eq!(listed, live, "{} at node {at}, time {}", service(n), self.now);
            }
        }
    }

    fn counts(&self) -> Vec<usize> {
        let count = |node: &Option<Node>| node.as_ref().map_or(0, Node::n_connections);
        self.nodes.iter().map(count).collect()
    }

    /// The most that one node has asked in any minute.
    fn most_in_a_minute(&self) -> usize {
        let within = |a: &Asked, b: &Asked| b.from == a.from && (a.time..a.time + MINUTE).contains(&b.time);
        let from = |a: &Asked| self.asked.iter().filter(|b| within(a, b)).count();
        self.asked.iter().map(from).max().unwrap_or(0)
    }

    fn metric(&self, at: usize, name: &str) -> u64 {
        self.node(at).metrics(clock(self.now)).get(name).unwrap()
    }
}

fn even(mean: usize) -> impl Fn(&Fleet) -> bool {
    move |fleet| {
        let is_near = |n: &usize| *n as f64 <= mean as f64 * 1.15 && *n as f64 * 1.15 >= mean as f64;
        fleet.counts().iter().all(is_near)
    }
}

/// 100 clients on each of three nodes; the last is gone for a minute, and its clients are on the others when it returns.
fn after_a_return(change: impl Fn(&mut NodeConfig)) -> Fleet {
    let mut fleet = Fleet::new(3, change);
    (0..3).for_each(|at| fleet.add_clients(at, 100));
    fleet.run(10 * MINUTE);
    fleet.has_whole_lists();
    assert_eq!((fleet.counts(), fleet.asked.len()), (vec![100; 3], 0));
    fleet.kill(2);
    let moves = (200..300).map(|n| (n, n % 2));
    moves.for_each(|(n, to)| {
        let when = fleet.now + 1_000;
        fleet.clients[n].goes = Some((to, when));
    });
    fleet.run_with_whole_lists(MINUTE);
    fleet.start(2);
    fleet.run_until(10_000, |fleet| fleet.node(2).is_ready());
    fleet
}

/// H12: after a return connections even out by themselves: not at once, slowly, nobody twice, and then all is still.
#[test]
fn after_a_return_connections_even_out_slowly_and_stay() {
    let mut fleet = after_a_return(|_| {});
    let returned = fleet.now;
    assert_eq!(fleet.counts(), [150, 150, 0]);
    fleet.run_with_whole_lists(2 * MINUTE + 55_000);
    assert_eq!(
        fleet.asked.len(),
        0,
        "two calm minutes and one of unevenness come first"
    );
    while !even(100)(&fleet) {
        fleet.run_with_whole_lists(1_000);
        assert!(fleet.now - returned < 9 * MINUTE, "{:?}", fleet.counts());
    }
    fleet.run_with_whole_lists(2 * MINUTE);
    assert!(even(100)(&fleet));
    let n_asked = fleet.asked.len();
    assert!(
        fleet.most_in_a_minute() <= 15,
        "a tenth of 150: {}",
        fleet.most_in_a_minute()
    );
    assert!((80..=100).contains(&n_asked), "{n_asked} were asked");
    assert!(fleet.asked.iter().all(|asked| asked.to == 2));
    assert_eq!(
        fleet.metric(0, "rollcall_balance_moved") + fleet.metric(1, "rollcall_balance_moved"),
        n_asked as u64
    );
    fleet.run(60 * MINUTE);
    fleet.has_whole_lists();
    assert_eq!(fleet.asked.len(), n_asked, "for an hour nobody else is asked");
    assert!(fleet.clients.iter().all(|client| client.asked.len() <= 1));
    assert_eq!(fleet.metric(0, "rollcall_balancing"), 0);
    for at in [0, 1] {
        let told = |wanted| {
            fleet
                .reports
                .iter()
                .filter(|report| **report == (at, wanted))
                .count()
        };
        assert_eq!((told(Report::EveningOut), told(Report::EveningOutEnds)), (1, 1));
    }
}

#[test]
fn a_member_that_returns_to_a_larger_cluster_gets_its_share_too() {
    let mut fleet = Fleet::new(5, |_| {});
    (0..4).for_each(|at| fleet.add_clients(at, 50));
    fleet.run_until(14 * MINUTE, even(40));
    fleet.run(3 * MINUTE);
    assert!(even(40)(&fleet));
    assert!(
        fleet.most_in_a_minute() <= 5,
        "a tenth of 50: {}",
        fleet.most_in_a_minute()
    );
}

#[test]
fn evening_out_can_be_switched_off() {
    let mut fleet = after_a_return(|config| config.balance_per_minute = 0);
    fleet.run(30 * MINUTE);
    assert_eq!((fleet.asked.len(), fleet.counts()), (0, vec![150, 150, 0]));
}

#[test]
fn a_small_cluster_does_not_fidget() {
    let mut fleet = Fleet::new(3, |_| {});
    fleet.add_clients(0, 12);
    fleet.run(30 * MINUTE);
    assert_eq!(fleet.asked, []);
}

/// Connections are evened out only among members that are all there, and have been for two minutes.
#[test]
fn nobody_is_asked_while_a_member_is_away_or_starts() {
    let mut fleet = after_a_return(|_| {});
    fleet.run(3 * MINUTE + 30_000);
    let n_asked = fleet.asked.len();
    assert!(n_asked > 0);
    fleet.kill(2);
    let gone = (0..fleet.clients.len()).filter(|n| fleet.clients[*n].connection.is_none());
    for n in gone.collect::<Vec<_>>() {
        fleet.clients[n].goes = Some((n % 2, fleet.now + 1_000));
    }
    // Whoever was asked just now goes there in vain, as a client would, and returns.
    for client in fleet.clients.iter_mut() {
        if client.goes.is_some_and(|(to, _)| to == 2) {
            client.goes = None;
        }
    }
    fleet.run(10 * MINUTE);
    assert_eq!(fleet.asked.len(), n_asked);
    fleet.start(2);
    fleet.run_until(10_000, |fleet| fleet.node(2).is_ready());
    fleet.run(2 * MINUTE + 50_000);
    assert_eq!(fleet.asked.len(), n_asked);
    fleet.run_until(8 * MINUTE, even(100));
}

fn in_minority(fleet: &Fleet) -> Vec<bool> {
    fleet.nodes.iter().flatten().map(Node::is_in_minority).collect()
}

/// The node that is cut off from two others sends its clients to them in turn, one after the other, in time for nobody to
/// miss their instances there; and it goes on serving.
#[test]
fn a_member_in_a_minority_sheds_its_clients_and_serves_who_stays() {
    let mut fleet = Fleet::new(3, |_| {});
    (0..3).for_each(|at| fleet.add_clients(at, 60));
    fleet.run(MINUTE);
    fleet.cut.insert(2);
    let cut = fleet.now;
    fleet.run_with_whole_lists(4_500);
    assert_eq!(fleet.asked, [], "a short cut moves nobody");
    fleet.run_until(5_000, |fleet| fleet.node(2).is_in_minority());
    assert_eq!(in_minority(&fleet), [false, false, true]);
    fleet.run_with_whole_lists(15_500);
    assert_eq!(fleet.counts(), [90, 90, 0]);
    assert!(fleet.asked.iter().all(|asked| asked.from == 2));
    let in_first_second = fleet
        .asked
        .iter()
        .filter(|asked| asked.time < fleet.asked[0].time + 1_000)
        .count();
    assert_eq!(in_first_second, 4, "a fifteenth in each second");
    assert_eq!(fleet.metric(2, "rollcall_minority_moved"), 60);
    assert_eq!(fleet.metric(2, "rollcall_in_minority"), 1);
    // The others go on: what they hear of nobody but the clients is all there after the graces.
    while fleet.now < cut + 40_000 {
        fleet.step();
        for n in 0..SERVICES {
            assert_eq!(
                fleet
                    .node(0)
                    .query(&service(n), clock(fleet.now))
                    .unwrap()
                    .view
                    .len(),
                18
            );
        }
    }
    let write = HttpWrite::Register {
        service: ServiceKey::new("", "", "written"),
        instance: Instance::at("10.1.0.2", 1),
    };
    let mut actions = Actions::default();
    fleet
        .node(2)
        .write(Ticket(1), write, clock(fleet.now), &mut actions);
    let is_done = |action: &Action| {
        matches!(
            action,
            Action::Answer {
                result: Ok(WriteDone::Ok),
                ..
            }
        )
    };
    assert!(actions.0.iter().any(is_done), "and takes writes: {actions:?}");
    fleet.cut.clear();
    fleet.run(10_000);
    assert_eq!(in_minority(&fleet), [false; 3]);
    fleet.has_whole_lists();
    let reports: Vec<_> = fleet
        .reports
        .iter()
        .filter(|(at, _)| *at == 2)
        .map(|(_, report)| *report)
        .collect();
    let begun = Report::InMinority {
        n_reached: 0,
        n_cut_off: 2,
    };
    assert!(
        reports.contains(&begun) && reports.contains(&Report::MinorityOver),
        "{reports:?}"
    );
    assert_eq!(
        fleet
            .node(1)
            .query(&ServiceKey::new("", "", "written"), clock(fleet.now))
            .unwrap()
            .view
            .len(),
        1
    );
}

/// Clients that cannot reach the others either come back, and are let alone for a minute, and longer each time.
#[test]
fn clients_that_come_back_to_a_minority_are_let_alone_for_a_while() {
    let mut fleet = Fleet::new(3, |_| {});
    fleet.add_clients(2, 30);
    fleet.run(MINUTE);
    fleet.cut.insert(2);
    fleet.clients_are_cut = true;
    fleet.run(20 * MINUTE);
    assert_eq!(fleet.counts(), [0, 0, 30]);
    for client in &fleet.clients {
        let rests: Vec<u64> = client.asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((3..=7).contains(&client.asked.len()), "{:?}", client.asked);
        assert!(rests.iter().all(|rest| *rest >= MINUTE), "{rests:?}");
        assert!(rests.last() > rests.first(), "{rests:?}");
    }
    let listed = fleet
        .node(2)
        .query(&service(0), clock(fleet.now))
        .unwrap()
        .view
        .len();
    assert_eq!(listed, 3);
}

#[test]
fn a_member_whose_others_are_dead_keeps_its_clients() {
    let mut fleet = Fleet::new(3, |_| {});
    (0..3).for_each(|at| fleet.add_clients(at, 10));
    fleet.run(MINUTE);
    fleet.kill(0);
    fleet.kill(1);
    fleet.run(5 * MINUTE);
    assert_eq!((fleet.asked.len(), in_minority(&fleet)), (0, vec![false]));
    let mut alone = Fleet::new(1, |_| {});
    alone.add_clients(0, 10);
    alone.run(5 * MINUTE);
    assert_eq!((alone.asked.len(), in_minority(&alone)), (0, vec![false]));
}

#[test]
fn of_two_halves_the_one_with_the_lowest_address_keeps_its_clients() {
    let mut fleet = Fleet::new(2, |_| {});
    (0..2).for_each(|at| fleet.add_clients(at, 10));
    fleet.run(MINUTE);
    fleet.cut.insert(1);
    fleet.run(MINUTE);
    assert_eq!(in_minority(&fleet), [false, true]);
    assert_eq!(fleet.counts(), [20, 0]);
}
