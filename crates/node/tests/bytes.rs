//! What replication costs on the wire, counted in encoded bytes between two nodes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Instance, MemberId, Metadata, Millis, Now, ServiceKey};
use rollcall_distro::codec::{FORMAT, encode};
use rollcall_distro::message::{Frame, Reply};
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, HttpWrite, LinkId, Node, NodeConfig, ProbeResult, Ticket,
};

/// Frames and replies that passed, with their encoded sizes.
#[derive(Debug, Default)]
struct Traffic {
    frames: Vec<(Frame, usize)>,
    replies: Vec<(Reply, usize)>,
}

impl Traffic {
    fn bytes(&self) -> usize {
        self.frames.iter().map(|f| f.1).sum::<usize>() + self.replies.iter().map(|r| r.1).sum::<usize>()
    }

    fn rows_sent(&self) -> usize {
        let rows = |frame: &Frame| match frame {
            Frame::Rows { rows } | Frame::SnapshotRows { rows, .. } => rows.len(),
            Frame::Ops { ops, .. } => ops.len(),
            _ => 0,
        };
        self.frames.iter().map(|(frame, _)| rows(frame)).sum()
    }
}

/// Two nodes whose links are pumped by hand.
struct Pair {
    nodes: [Node; 2],
    links: Vec<(usize, usize, LinkId, LinkId)>,
    now: u64,
}

const ADDRESSES: [&str; 2] = ["10.0.0.1:8848", "10.0.0.2:8848"];

impl Pair {
    fn new(log_capacity: usize) -> Self {
        let now = Now::at(Millis(0), Millis(1_700_000_000_000));
        let node = |n: usize| {
            let mut config = NodeConfig::new(ADDRESSES[n], &ADDRESSES, 1);
            config.log_capacity = log_capacity;
            Node::new(config, n as u64 + 1, now)
        };
        let mut pair = Pair {
            nodes: [node(0), node(1)],
            links: Vec::new(),
            now: 0,
        };
        pair.probe();
        pair.connect(0, 1);
        pair.connect(1, 0);
        pair.pump();
        pair.probe();
        pair.pump();
        pair.probe();
        pair.pump();
        assert!(pair.nodes.iter().all(Node::is_ready));
        pair
    }

    fn clock(&self) -> Now {
        Now::at(Millis(self.now), Millis(1_700_000_000_000 + self.now))
    }

    fn connect(&mut self, from: usize, to: usize) {
        let (now, mut actions) = (self.clock(), Actions::default());
        let hello = self.nodes[from].link_hello();
        let (inbound, _, welcome) = match self.nodes[to].accept_link(&hello, now, &mut actions) {
            Ok(accepted) => accepted,
            Err(refusal) => panic!("refused: {refusal}"),
        };
        let id = MemberId::of(ADDRESSES[to]);
        let out = self.nodes[from].link_up(id, FORMAT, welcome, now, &mut actions);
        self.links.push((from, to, out, inbound));
    }

    fn disconnect(&mut self) {
        let (now, mut actions) = (self.clock(), Actions::default());
        for (from, to, out, inbound) in std::mem::take(&mut self.links) {
            self.nodes[from].link_down(out, now, &mut actions);
            self.nodes[to].inbound_down(inbound, now, &mut actions);
        }
    }

    fn probe(&mut self) {
        let (now, mut actions) = (self.clock(), Actions::default());
        for node in &self.nodes {
            node.tick(now, &mut actions);
        }
        for action in std::mem::take(&mut actions.0) {
            if let Action::Probe { to, probe } = action {
                let to_n = usize::from(to == MemberId::of(ADDRESSES[1]));
                let answer = self.nodes[to_n].on_probe(&probe, now, &mut actions).unwrap();
                self.nodes[1 - to_n].probe_done(to, ProbeResult::Answer(answer), now, &mut actions);
            }
        }
        self.now += 1;
    }

    /// Lets everything pass that wants to.
    fn pump(&mut self) -> Traffic {
        let mut traffic = Traffic::default();
        let mut actions = Actions::default();
        loop {
            let mut is_quiet = true;
            let now = self.clock();
            for (from, to, out, inbound) in self.links.clone() {
                while let Some(frame) = self.nodes[from].poll_link(out, now) {
                    is_quiet = false;
                    traffic
                        .frames
                        .push((frame.clone(), encode(&frame).unwrap().len()));
                    self.nodes[to]
                        .on_frame(inbound, frame, now, &mut actions)
                        .unwrap();
                }
                while let Some(reply) = self.nodes[to].poll_reply(inbound) {
                    is_quiet = false;
                    traffic
                        .replies
                        .push((reply.clone(), encode(&reply).unwrap().len()));
                    self.nodes[from].on_reply(out, reply, now, &mut actions).unwrap();
                }
            }
            if is_quiet {
                return traffic;
            }
        }
    }

    /// Traffic of a quiet cluster over ten seconds.
    fn quiet_traffic(&mut self) -> Traffic {
        let mut total = Traffic::default();
        for _ in 0..10 {
            self.now += 1_000;
            let mut traffic = self.pump();
            total.frames.append(&mut traffic.frames);
            total.replies.append(&mut traffic.replies);
        }
        total
    }

    fn open(&self, n: usize) -> ConnectionId {
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        self.nodes[n]
            .open_connection(info, self.clock(), &mut Actions::default())
            .unwrap()
    }

    fn register(&self, n: usize, connection: ConnectionId, service: &ServiceKey, instances: Vec<Instance>) {
        let mut actions = Actions::default();
        self.nodes[n]
            .register(connection, service, instances, self.clock(), &mut actions)
            .unwrap();
    }

    fn assert_equal(&self) {
        assert_eq!(self.nodes[0].digests(), self.nodes[1].digests());
        assert_eq!(
            self.nodes[0].registry().n_rows(),
            self.nodes[1].registry().n_rows()
        );
    }
}

fn instance(n: usize) -> Instance {
    let mut instance = Instance::at(
        &format!("10.1.{}.{}", n / 250 % 250, n % 250),
        8000 + (n / 62_500) as u16,
    );
    instance.metadata = Metadata::from_pairs([("zone".into(), "a".into())]);
    instance
}

#[test]
fn one_change_in_a_client_of_a_thousand_rows_costs_under_a_kilobyte() {
    let mut pair = Pair::new(65_536);
    let service = ServiceKey::new("", "", "big");
    let connection = pair.open(0);
    let mut batch: Vec<_> = (0..1000).map(instance).collect();
    pair.register(0, connection, &service, batch.clone());
    pair.pump();
    pair.assert_equal();
    batch[500].weight = 2.0;
    pair.register(0, connection, &service, batch);
    let traffic = pair.pump();
    pair.assert_equal();
    assert_eq!(traffic.rows_sent(), 1);
    println!("one change of 1,000 rows: {} bytes", traffic.bytes());
    assert!(traffic.bytes() < 1024, "{traffic:?}");
}

#[test]
fn a_repair_sends_only_the_rows_that_differ() {
    // A log of ten operations: whoever misses more is repaired by digest.
    let mut pair = Pair::new(10);
    let mut connections = Vec::new();
    for n in 0..3000 {
        let connection = pair.open(0);
        pair.register(
            0,
            connection,
            &ServiceKey::new("", "", &format!("s{}", n % 300)),
            vec![instance(n)],
        );
        connections.push(connection);
        if n % 8 == 0 {
            pair.pump();
        }
    }
    pair.pump();
    pair.now += 1_000;
    pair.pump();
    pair.assert_equal();
    pair.disconnect();
    // 40 changes pass while the link is down: 15 rows change, 15 go, 10 come.
    for (n, connection) in connections.iter().enumerate().take(15) {
        let mut changed = instance(n);
        changed.weight = 7.0;
        pair.register(
            0,
            *connection,
            &ServiceKey::new("", "", &format!("s{}", n % 300)),
            vec![changed],
        );
    }
    for connection in &connections[100..115] {
        pair.nodes[0].close_connection(*connection, pair.clock(), &mut Actions::default());
    }
    for n in 3000..3010 {
        let connection = pair.open(0);
        pair.register(
            0,
            connection,
            &ServiceKey::new("", "", &format!("s{}", n % 300)),
            vec![instance(n)],
        );
    }
    pair.connect(0, 1);
    pair.connect(1, 0);
    let traffic = pair.pump();
    pair.assert_equal();
    assert!(
        traffic
            .frames
            .iter()
            .any(|(f, _)| matches!(f, Frame::Jump { .. })),
        "the log must have overflowed"
    );
    println!(
        "repair of 40 changes among 3,000 rows: {} rows, {} bytes",
        traffic.rows_sent(),
        traffic.bytes()
    );
    assert_eq!(traffic.rows_sent(), 25, "15 changed and 10 new rows");
}

#[test]
fn a_quiet_pair_sends_nothing_but_digests() {
    let mut pair = Pair::new(10);
    let mut actions = Actions::default();
    for n in 0..50 {
        let write = HttpWrite::Register {
            service: ServiceKey::new("", "", "beats"),
            instance: instance(n),
        };
        let owner = usize::from(pair.nodes[0].owner(write.service()).unwrap() == ADDRESSES[1]);
        pair.nodes[owner].write(Ticket(n as u64), write, pair.clock(), &mut actions);
        pair.pump();
    }
    pair.now += 1_000;
    pair.pump();
    pair.assert_equal();
    let quiet = pair.quiet_traffic();
    assert_eq!(quiet.rows_sent(), 0);
    assert!(
        quiet
            .frames
            .iter()
            .all(|(f, _)| matches!(f, Frame::Digest { .. }))
    );
    assert!(quiet.replies.is_empty());
}

#[test]
fn verify_costs_the_same_for_a_thousand_and_a_hundred_thousand_clients() {
    let cost = |n_clients: usize| {
        let mut pair = Pair::new(1 << 20);
        for n in 0..n_clients {
            let connection = pair.open(n % 2);
            let service = ServiceKey::new("", "", &format!("s{}", n % 5000));
            pair.register(n % 2, connection, &service, vec![instance(n)]);
        }
        pair.pump();
        pair.now += 1_000;
        pair.pump();
        pair.assert_equal();
        assert_eq!(pair.nodes[0].registry().n_rows(), n_clients);
        let quiet = pair.quiet_traffic();
        assert!(
            quiet.frames.len() >= 20,
            "digests in both directions, each second"
        );
        (quiet.frames.len(), quiet.replies.len(), quiet.bytes())
    };
    let (small, large) = (cost(1_000), cost(100_000));
    println!("verify over ten seconds: {small:?} at 1,000 clients, {large:?} at 100,000");
    assert_eq!(small, large);
}
