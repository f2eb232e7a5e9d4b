//! Members that live and do not reach each other: their rows, and the beats for them, go through a third one. And what
//! they show of a client that moves meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey};
use rollcall_distro::codec::encode_as;
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, HttpWrite, LinkId, MemberState, Node, NodeConfig,
    ProbeResult, RowTarget, Ticket,
};

const ADDRESSES: [&str; 3] = ["10.0.0.1:8848", "10.0.0.2:8848", "10.0.0.3:8848"];
const STEP: u64 = 50;

/// A link from the first node to the second.
struct Link {
    from: usize,
    to: usize,
    out: LinkId,
    inbound: LinkId,
}

/// Three nodes whose messages arrive at once, or never.
struct Trio {
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// No message passes between these two.
    cut: Option<(usize, usize)>,
    dead: Option<usize>,
    now: u64,
    probes: Vec<(u64, usize, usize, ProbeResult)>,
    newest_formats: [u8; 3],
}

impl Trio {
    fn new(newest_formats: [u8; 3]) -> Self {
        let now = Now::at(Millis(0), Millis(1_700_000_000_000));
        let mut trio = Trio {
            nodes: Vec::new(),
            links: Vec::new(),
            cut: None,
            dead: None,
            now: 0,
            probes: Vec::new(),
            newest_formats,
        };
        trio.nodes = (0..3).map(|n| trio.start(n, n as u64 + 1, now)).collect();
        trio.run(3_000);
        assert!(trio.nodes.iter().all(Node::is_ready));
        trio
    }

    fn start(&self, n: usize, boot: u64, now: Now) -> Node {
        let mut config = NodeConfig::new(ADDRESSES[n], &ADDRESSES, 1);
        config.newest_format = self.newest_formats[n];
        Node::new(config, boot, now)
    }

    fn clock(&self) -> Now {
        Now::at(Millis(self.now), Millis(1_700_000_000_000 + self.now))
    }

    fn passes(&self, a: usize, b: usize) -> bool {
        self.cut.is_none_or(|(x, y)| (a, b) != (x, y) && (b, a) != (x, y))
            && self.dead.is_none_or(|dead| a != dead && b != dead)
    }

    fn run(&mut self, span: u64) {
        let end = self.now + span;
        while self.now < end {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.clock();
        for (at, from, to, result) in std::mem::take(&mut self.probes) {
            match at <= self.now {
                true => self.call(from, |node, actions| {
                    node.probe_done(MemberId::of(ADDRESSES[to]), result, now, actions);
                }),
                false => self.probes.push((at, from, to, result)),
            }
        }
        for n in 0..3 {
            self.call(n, |node, actions| {
                node.tick(now, actions);
            });
        }
        self.dial();
        self.pump();
    }

    /// Calls a node and delivers its probes.
    fn call(&mut self, n: usize, call: impl FnOnce(&Node, &mut Actions)) {
        if self.dead == Some(n) {
            return;
        }
        let mut actions = Actions::default();
        call(&self.nodes[n], &mut actions);
        self.deliver(n, actions);
    }

    fn deliver(&mut self, n: usize, actions: Actions) {
        for action in actions.0 {
            let Action::Probe { to, probe } = action else {
                continue;
            };
            let to = ADDRESSES.iter().position(|a| MemberId::of(a) == to).unwrap();
            if !self.passes(n, to) {
                let late = self.now + 900;
                self.probes.push((late, n, to, ProbeResult::Missed));
                continue;
            }
            let (now, mut answer) = (self.clock(), None);
            self.call(to, |node, actions| {
                answer = Some(node.on_probe(&probe, now, actions).unwrap())
            });
            self.probes
                .push((self.now, n, to, ProbeResult::Answer(answer.unwrap())));
        }
    }

    /// Links whose path is cut break after two seconds at the latest; all others are kept up.
    fn dial(&mut self) {
        let now = self.clock();
        let (kept, broken): (Vec<_>, Vec<_>) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(|l| self.passes(l.from, l.to));
        self.links = kept;
        for link in broken {
            self.call(link.from, |node, actions| node.link_down(link.out, now, actions));
            self.call(link.to, |node, actions| {
                node.inbound_down(link.inbound, now, actions)
            });
        }
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            if self.passes(from, to) && !self.links.iter().any(|l| (l.from, l.to) == (from, to)) {
                let hello = self.nodes[from].link_hello();
                let mut accepted = None;
                self.call(to, |node, actions| {
                    accepted = Some(node.accept_link(&hello, now, actions))
                });
                let id = MemberId::of(ADDRESSES[to]);
                let (inbound, welcome) = match accepted.unwrap() {
                    Ok((inbound, _, welcome)) => (inbound, welcome),
                    Err(refusal) => {
                        self.call(from, |node, actions| {
                            node.link_refused(id, &refusal, now, actions)
                        });
                        continue;
                    }
                };
                let mut out = None;
                let format = self.newest_formats[from].min(self.newest_formats[to]);
                self.call(from, |node, actions| {
                    out = Some(node.link_up(id, format, welcome, now, actions))
                });
                let out = out.unwrap();
                self.links.push(Link {
                    from,
                    to,
                    out,
                    inbound,
                });
            }
        }
    }

    fn pump(&mut self) {
        let now = self.clock();
        for n in 0..self.links.len() {
            let (from, to) = (self.links[n].from, self.links[n].to);
            let (out, inbound) = (self.links[n].out, self.links[n].inbound);
            let format = self.newest_formats[from].min(self.newest_formats[to]);
            loop {
                let frame = self.nodes[from].poll_link(out, now);
                if let Some(frame) = frame.clone() {
                    encode_as(format, &frame).expect("a frame of a format that both speak");
                    self.call(to, |node, actions| {
                        node.on_frame(inbound, frame, now, actions).unwrap()
                    });
                }
                let reply = self.nodes[to].poll_reply(inbound);
                if let Some(reply) = reply.clone() {
                    encode_as(format, &reply).expect("a reply of a format that both speak");
                    self.call(from, |node, actions| {
                        node.on_reply(out, reply, now, actions).unwrap()
                    });
                }
                if frame.is_none() && reply.is_none() {
                    break;
                }
            }
        }
    }

    fn open(&self, n: usize) -> ConnectionId {
        let info = ConnectionInfo {
            text_id: format!("connection-at-{n}").into(),
            is_naming: true,
            is_sdk: true,
            ..ConnectionInfo::default()
        };
        let opened = self.nodes[n].open_connection(info, self.clock(), &mut Actions::default());
        opened.unwrap()
    }

    fn register(&mut self, n: usize, connection: ConnectionId, service: &ServiceKey, port: u16) {
        let now = self.clock();
        let rows = vec![Instance::at("10.1.0.1", port)];
        self.call(n, |node, actions| {
            node.register(connection, service, rows, now, actions).unwrap();
        });
    }

    fn ports(&self, n: usize, service: &ServiceKey) -> Vec<u16> {
        let service = self.nodes[n].registry().service(service);
        service.map_or_else(Vec::new, |s| s.view().instances().map(|i| i.port).collect())
    }

    fn state(&self, at: usize, of: usize) -> MemberState {
        let members = self.nodes[at].members(self.clock());
        members.iter().find(|m| m.address == ADDRESSES[of]).unwrap().state
    }
}

fn service() -> ServiceKey {
    ServiceKey::new("", "", "s")
}

#[test]
fn rows_come_through_a_third_member_and_go_with_their_client() {
    let mut trio = Trio::new([3, 3, 3]);
    let (before, service) = (trio.open(1), service());
    trio.register(1, before, &service, 1);
    trio.run(1_000);
    trio.cut = Some((0, 1));
    trio.run(500);
    let (during, now) = (trio.open(1), trio.clock());
    trio.register(1, during, &service, 2);
    trio.call(1, |node, actions| node.close_connection(before, now, actions));
    trio.run(3_500);
    assert_eq!(trio.state(0, 1), MemberState::Suspicious);
    assert_eq!(trio.state(2, 1), MemberState::Up);
    assert_eq!(trio.ports(0, &service), [2], "what came and went behind the cut");
    let now = trio.clock();
    trio.call(1, |node, actions| node.close_connection(during, now, actions));
    trio.run(3_000);
    assert_eq!(trio.ports(0, &service), []);
    let last = trio.open(1);
    trio.register(1, last, &service, 3);
    trio.cut = None;
    trio.run(2_000);
    assert_eq!(trio.ports(0, &service), [3]);
    assert_eq!(trio.state(0, 1), MemberState::Up);
    assert_eq!(trio.nodes[0].digests(), trio.nodes[1].digests());
    assert_eq!(trio.nodes[0].digests(), trio.nodes[2].digests());
}

#[test]
fn rows_of_a_member_that_dies_behind_the_cut_are_orphans_and_those_of_its_next_process_come() {
    let mut trio = Trio::new([3, 3, 3]);
    let service = service();
    trio.cut = Some((0, 1));
    trio.run(3_000);
    let connection = trio.open(1);
    trio.register(1, connection, &service, 1);
    trio.run(3_500);
    assert_eq!(trio.ports(0, &service), [1]);
    trio.dead = Some(1);
    trio.run(5_000);
    assert_eq!(trio.state(0, 1), MemberState::Down);
    assert_eq!(trio.ports(0, &service), [1], "an orphan in its grace");
    trio.dead = None;
    trio.nodes[1] = trio.start(1, 99, trio.clock());
    trio.run(25_000);
    assert!(
        trio.nodes[1].is_ready(),
        "the member out of reach holds its start for 20 s at most"
    );
    let connection = trio.open(1);
    trio.register(1, connection, &service, 2);
    trio.run(3_500);
    assert!(trio.ports(0, &service).contains(&2));
    trio.run(8_000);
    assert_eq!(trio.ports(0, &service), [2]);
}

#[test]
fn beats_reach_an_owner_behind_a_cut_through_a_third_member() {
    let mut trio = Trio::new([3, 3, 3]);
    let services = (0..100).map(|n| ServiceKey::new("", "", &format!("s{n}")));
    let mut owned = services.filter(|s| trio.nodes[0].owner(s).unwrap() == ADDRESSES[1]);
    let service = owned.next().unwrap();
    let now = trio.clock();
    let write = HttpWrite::Register {
        service: service.clone(),
        instance: Instance::at("10.1.0.1", 80),
    };
    trio.call(1, |node, actions| node.write(Ticket(1), write, now, actions));
    trio.run(1_000);
    trio.cut = Some((0, 1));
    for _ in 0..12 {
        trio.run(5_000);
        let now = trio.clock();
        let beat = HttpWrite::Beat {
            service: service.clone(),
            target: RowTarget {
                ip: "10.1.0.1".into(),
                port: 80,
                cluster: None,
            },
            full: None,
        };
        trio.call(0, |node, actions| node.write(Ticket(2), beat, now, actions));
        for n in 0..3 {
            let view = trio.nodes[n].registry().service(&service).unwrap().view();
            assert!(view.instances().all(|i| i.healthy), "node {n}");
            assert_eq!(trio.ports(n, &service), [80]);
        }
    }
    assert_eq!(
        trio.nodes[0].owner(&service).unwrap(),
        ADDRESSES[1],
        "it keeps its share"
    );
}

#[test]
fn a_member_of_format_2_is_replaced_by_one_of_format_3_while_clients_register() {
    for newest in [[2, 2, 3], [2, 3, 3], [2, 2, 2]] {
        let mut trio = Trio::new(newest);
        let service = service();
        let mut port = 0;
        for n in 0..3 {
            for at in (0..3).filter(|at| *at != n) {
                port += 1;
                let connection = trio.open(at);
                trio.register(at, connection, &service, port);
            }
            trio.dead = Some(n);
            trio.run(500);
            trio.newest_formats[n] = 3;
            trio.nodes[n] = trio.start(n, 100 + n as u64, trio.clock());
            trio.dead = None;
            trio.run(2_000);
            assert!(trio.nodes[n].is_ready(), "{newest:?}, node {n}");
            let ports = trio.ports(n, &service);
            assert!(
                (1..=port).all(|p| ports.contains(&p)),
                "{newest:?}, node {n}: {ports:?}"
            );
            assert!((0..3).all(|of| trio.state(n, of) == MemberState::Up));
        }
        assert_eq!(trio.nodes[0].digests(), trio.nodes[1].digests());
        assert_eq!(trio.nodes[0].digests(), trio.nodes[2].digests());
    }
}

#[test]
fn a_client_that_moves_stays_listed_where_the_link_from_its_new_member_is_broken_for_a_moment() {
    let mut trio = Trio::new([3, 3, 3]);
    let (former, service) = (trio.open(0), service());
    trio.register(0, former, &service, 1);
    trio.run(1_000);
    trio.cut = Some((1, 2));
    let now = trio.clock();
    trio.call(0, |node, actions| {
        assert!(node.reset_connection("connection-at-0", None, now, actions));
        node.close_connection(former, now, actions);
    });
    let present = trio.open(1);
    trio.register(1, present, &service, 1);
    for _ in 0..1_500 / STEP {
        trio.step();
        assert_eq!(trio.ports(2, &service), [1], "at {}", trio.now);
    }
    trio.cut = None;
    for _ in 0..3_000 / STEP {
        trio.step();
        assert_eq!(trio.ports(2, &service), [1], "at {}", trio.now);
    }
    let of_former = |n: usize| {
        let id = MemberId::of(ADDRESSES[0]);
        let node: &Node = &trio.nodes[n];
        node.registry().digests().root(id)
    };
    assert_eq!(
        [of_former(0), of_former(2)],
        [0, 0],
        "it is published once in the end"
    );
}
