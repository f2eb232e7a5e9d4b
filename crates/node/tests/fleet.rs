//! The death of a fleet, and a service that everybody subscribes to: much work for one node, a little at a time, so that
//! what others want comes in between. In virtual time, counted in rows and pushes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::registry::change::{Changes, ClientId};
use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey, Stamp};
use rollcall_distro::codec::FORMAT;
use rollcall_distro::message::{Frame, LinkRefusal, Op, Resume, Welcome};
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, HttpWrite, Node, NodeConfig, ProbeResult, Push, Ticket,
    UdpTarget,
};

const SECOND: u64 = 1_000;
const OTHER: &str = "10.0.0.2:8848";

/// Most rows, connections or pushes that one tick may be busy with.
const A_LITTLE: usize = 512;

struct Fixture {
    node: Node,
    now: u64,
}

impl Fixture {
    fn new(members: &[&str]) -> Self {
        let mut config = NodeConfig::new("10.0.0.1:8848", members, 1);
        config.gate_limit = Millis(0);
        config.expiry_brake = 0;
        let mut fixture = Fixture {
            node: Node::new(config, 1, clock(0)),
            now: 0,
        };
        fixture.tick();
        assert!(fixture.node.is_ready());
        fixture
    }

    fn alone() -> Self {
        Fixture::new(&["10.0.0.1:8848"])
    }

    /// A tick a millisecond later.
    fn tick(&mut self) -> Vec<Action> {
        self.now += 1;
        let mut actions = Actions::default();
        self.node.tick(clock(self.now), &mut actions);
        actions.0
    }

    /// Ticks for some seconds, each when it is due; the most that `count` loses in one.
    fn most_lost(&mut self, seconds: u64, count: impl Fn(&Node) -> usize) -> usize {
        let (mut most, end) = (0, self.now + seconds * SECOND);
        while self.now < end {
            let before = count(&self.node);
            let due = self.node.tick(clock(self.now), &mut Actions::default());
            most = most.max(before - count(&self.node));
            self.now = due.0.max(self.now + 1);
        }
        most
    }

    fn connect(&self) -> ConnectionId {
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let actions = &mut Actions::default();
        self.node.open_connection(info, clock(self.now), actions).unwrap()
    }

    fn publish(&self, connection: ConnectionId, port: u16) {
        let (now, actions) = (clock(self.now), &mut Actions::default());
        let rows = vec![Instance::at("10.1.0.1", port)];
        self.node
            .register(connection, &service(), rows, now, actions)
            .unwrap();
    }
}

impl Fixture {
    /// Takes a row of a connection of the other member.
    fn holds(&self, n: u64, returns_slowly: bool) {
        let member = MemberId::of(OTHER);
        let client = ClientId::new(member, n, returns_slowly);
        let (instance, stamp) = (Arc::new(instance(n)), Stamp { time: n + 1, member });
        let (now, changes) = (clock(self.now), &mut Changes::new());
        let registry = self.node.registry();
        registry.apply_publish(client, &service(), instance, stamp, now, changes);
    }

    fn other_dies(&self) {
        let (now, actions) = (clock(self.now), &mut Actions::default());
        self.node
            .probe_done(MemberId::of(OTHER), ProbeResult::Refused, now, actions);
    }

    /// A process of the other member answers, and dials.
    fn other_dials(&self, process: &Node) {
        let probe = (0..).find_map(|ms| {
            let mut actions = Actions::default();
            process.tick(clock(self.now + ms), &mut actions);
            actions.0.into_iter().find_map(|action| match action {
                Action::Probe { probe, .. } => Some(probe),
                _ => None,
            })
        });
        let (now, actions) = (clock(self.now), &mut Actions::default());
        let answer = ProbeResult::Answer(probe.unwrap());
        self.node.probe_done(MemberId::of(OTHER), answer, now, actions);
        let accepted = self.node.accept_link(&process.link_hello(), now, actions);
        assert!(accepted.is_ok(), "{accepted:?}");
    }

    fn n_orphans(&self) -> usize {
        self.node.registry().n_orphans()
    }

    /// Ticks until so many rows are orphans; the most that became or ceased to be some in one tick.
    fn most_turned_until(&mut self, n_orphans: usize) -> usize {
        let (mut most, end) = (0, self.now + SECOND);
        while self.n_orphans() != n_orphans {
            let before = self.n_orphans();
            self.tick();
            most = most.max(before.abs_diff(self.n_orphans()));
            assert!(self.now < end, "{before} of {n_orphans}");
        }
        most
    }

    fn assert_digests_are_true(&self) {
        let (registry, other) = (self.node.registry(), MemberId::of(OTHER));
        assert_eq!(registry.digests().all(other), registry.recount_digests(other));
    }
}

/// A process of the other member.
fn other_process(boot: u64, now: u64) -> Node {
    let config = NodeConfig::new(OTHER, &["10.0.0.1:8848", OTHER], 1);
    Node::new(config, boot, clock(now))
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

fn service() -> ServiceKey {
    ServiceKey::new("", "", "s")
}

fn instance(n: u64) -> Instance {
    Instance::at(&format!("10.1.{}.{}", n >> 8, n & 255), 80)
}

fn n_rows(node: &Node) -> usize {
    node.registry().n_rows()
}

#[test]
fn thousands_of_rows_that_fall_silent_are_judged_some_at_a_time() {
    const N: u64 = 5_000;
    let mut fixture = Fixture::alone();
    for n in 0..N {
        let (service, instance) = (service(), instance(n));
        let write = HttpWrite::Register { service, instance };
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        fixture.node.write(Ticket(n), write, now, actions);
    }
    let most = fixture.most_lost(40, n_rows);
    assert_eq!(n_rows(&fixture.node), 0);
    assert!((1..=A_LITTLE).contains(&most), "{most} in one tick");
}

/// A node that holds so many rows of connections of another member.
fn holding_rows_of_another(n_rows: u64) -> Fixture {
    let fixture = Fixture::new(&["10.0.0.1:8848", OTHER]);
    for n in 0..n_rows {
        fixture.holds(n, n % 2 == 0);
    }
    fixture
}

#[test]
fn thousands_of_orphans_are_dropped_some_at_a_time() {
    const N: u64 = 5_000;
    let mut fixture = holding_rows_of_another(N);
    fixture.other_dies();
    assert!(fixture.most_turned_until(N as usize) <= A_LITTLE);
    // The grace of those who return at once, and 25 seconds later that of the others.
    for (seconds, n_left) in [(14, N), (2, N / 2), (22, N / 2), (3, 0)] {
        let most = fixture.most_lost(seconds, n_rows);
        assert_eq!(n_rows(&fixture.node), n_left as usize);
        assert!(most <= A_LITTLE, "{most} in one tick");
    }
}

/// All that is held of a member is listed all along, whatever becomes of the member while its rows become orphans.
#[test]
fn a_member_that_is_back_before_all_its_rows_are_orphans_keeps_them() {
    const N: u64 = 5_000;
    let mut fixture = Fixture::new(&["10.0.0.1:8848", OTHER]);
    let process = other_process(1, 0);
    fixture.other_dials(&process);
    for n in 0..N {
        fixture.holds(n, false);
    }
    for round in 0..2 {
        fixture.other_dies();
        fixture.tick();
        fixture.tick();
        let n_orphans = fixture.n_orphans();
        assert!((1..N as usize).contains(&n_orphans), "{n_orphans}");
        fixture.other_dials(&process);
        if round == 0 {
            assert!(fixture.most_turned_until(0) <= A_LITTLE);
        } else {
            fixture.tick(); // The next death comes while they are about to live again.
        }
        fixture.assert_digests_are_true();
    }
    fixture.other_dies();
    assert!(fixture.most_turned_until(N as usize) <= A_LITTLE);
    assert_eq!(fixture.node.registry().digests().root(MemberId::of(OTHER)), 0);
    assert_eq!(fixture.most_lost(14, n_rows), 0);
    fixture.most_lost(3, n_rows);
    assert_eq!(n_rows(&fixture.node), 0, "the grace of the last death counts");
}

/// A process that takes the place of another while the rows of that one become orphans: they do, its own do not.
#[test]
fn rows_of_a_new_process_do_not_become_orphans_with_those_of_the_former() {
    const N: u64 = 5_000;
    let mut fixture = Fixture::new(&["10.0.0.1:8848", OTHER]);
    fixture.other_dials(&other_process(1, 0));
    for n in 0..N {
        fixture.holds(n, false);
    }
    fixture.other_dies();
    fixture.tick();
    fixture.other_dials(&other_process(2, 1));
    fixture.holds(N, false);
    assert!(fixture.most_turned_until(N as usize) <= A_LITTLE);
    fixture.assert_digests_are_true();
    assert_ne!(fixture.node.registry().digests().root(MemberId::of(OTHER)), 0);
    fixture.most_lost(17, n_rows);
    assert_eq!(n_rows(&fixture.node), 1);
}

/// A node that is listed again drops what it has of others, which takes a while: a member that dials meanwhile does not go
/// on from there, but tells everything.
#[test]
fn a_member_that_dials_while_its_rows_are_dropped_tells_them_anew() {
    const N: u64 = 20_000;
    let mut fixture = Fixture::new(&["10.0.0.1:8848", OTHER]);
    let other = other_process(1, 0);
    fixture.other_dials(&other);
    for n in 0..N {
        fixture.holds(n, false);
    }
    fixture.tick();
    let (node, now) = (&fixture.node, clock(fixture.now));
    let accept = || node.accept_link(&other.link_hello(), now, &mut Actions::default());
    let (link, ..) = accept().unwrap();
    for frame in [Frame::SnapshotBegin { seq: 0 }, Frame::SnapshotEnd] {
        node.on_frame(link, frame, now, &mut Actions::default()).unwrap();
    }
    assert!(matches!(accept().unwrap().2.resume, Resume::At { .. }));
    let refusal = LinkRefusal::NotAMember {
        member: "10.0.0.1:8848".into(),
    };
    node.link_refused(MemberId::of(OTHER), &refusal, now, &mut Actions::default());
    assert!(node.is_unlisted());
    let answer = ProbeResult::Answer(other.own_probe(now));
    let (link, welcome) = std::thread::scope(|scope| {
        let dialing = scope.spawn(|| {
            while node.is_unlisted() {
                std::thread::yield_now();
            }
            let (link, _, welcome) = accept().unwrap();
            (link, welcome)
        });
        node.probe_done(MemberId::of(OTHER), answer, now, &mut Actions::default());
        dialing.join().unwrap()
    });
    assert_eq!(n_rows(node), 0);
    let nothing = Frame::Beats { rows: Vec::new() };
    let is_in_use = node.on_frame(link, nothing, now, &mut Actions::default()).is_ok();
    assert!(
        !is_in_use || matches!(welcome.resume, Resume::Fresh),
        "{welcome:?}"
    );
}

#[test]
fn thousands_of_silent_connections_are_closed_some_at_a_time() {
    const N: usize = 2_000;
    let mut fixture = Fixture::alone();
    for port in 0..N {
        let connection = fixture.connect();
        fixture.publish(connection, port as u16);
    }
    let most = fixture.most_lost(20, Node::n_connections);
    assert_eq!((fixture.node.n_connections(), n_rows(&fixture.node)), (0, 0));
    assert!((1..=A_LITTLE).contains(&most), "{most} in one tick");
}

/// A node that has stood still finds its connections closed; their clients have registered elsewhere meanwhile.
#[test]
fn what_a_fleet_has_left_behind_is_withdrawn_some_at_a_time() {
    const N: u16 = 40;
    const ROWS_EACH: u16 = 100;
    let mut fixture = Fixture::alone();
    let register = |fixture: &Fixture, n: u16| {
        let id = fixture.connect();
        let rows = (0..ROWS_EACH).map(|port| Instance::at(&format!("10.1.0.{n}"), port + 1));
        let (rows, now, actions) = (rows.collect(), clock(fixture.now), &mut Actions::default());
        let done = fixture.node.register(id, &service(), rows, now, actions);
        done.unwrap();
        id
    };
    let left: Vec<_> = (0..N).map(|n| register(&fixture, n)).collect();
    fixture.now += 20 * SECOND;
    for id in left {
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        fixture.node.close_connection(id, now, actions);
    }
    fixture.tick();
    let n_all = usize::from(N * ROWS_EACH);
    assert_eq!(n_rows(&fixture.node), n_all, "they are on their way");
    for n in 0..N {
        register(&fixture, n);
    }
    let n_publications = |node: &Node| node.registry().publications_in(&service()).len();
    assert_eq!(n_publications(&fixture.node), 2 * n_all);
    let most = fixture.most_lost(3, n_publications);
    assert_eq!(n_publications(&fixture.node), n_all);
    assert!((1..=A_LITTLE).contains(&most), "{most} in one tick");
    assert_eq!(n_rows(&fixture.node), n_all, "nobody has seen a shorter list");
}

/// Connections of one node that are closed at one moment, each with so many rows.
fn close_at_one_moment(fixture: &mut Fixture, n_connections: usize, rows_each: u16) {
    let ids: Vec<_> = (0..n_connections).map(|_| fixture.connect()).collect();
    for id in &ids {
        let rows = (1..=rows_each).map(|port| Instance::at(&format!("10.1.0.{}", id.0), port));
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        let rows = rows.collect();
        fixture
            .node
            .register(*id, &service(), rows, now, actions)
            .unwrap();
    }
    assert_eq!(n_rows(&fixture.node), n_connections * usize::from(rows_each));
    for id in ids {
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        let before = n_rows(&fixture.node);
        fixture.node.close_connection(id, now, actions);
        assert_eq!(n_rows(&fixture.node), before, "closing itself does little");
        assert!(matches!(actions.0[..], [Action::Wake]), "{actions:?}");
    }
}

/// Rows of clients whose connections are closed at one moment go some hundred at a time; what one client has registered
/// goes together. Whoever registers such a row anew on another connection meanwhile is listed all along.
#[test]
fn the_rows_of_connections_that_are_closed_at_one_moment_go_some_at_a_time() {
    for (n_connections, rows_each, most_of_one) in
        [(2_000, 1, A_LITTLE), (100, 40, A_LITTLE), (20, 1_000, 1_000)]
    {
        let mut fixture = Fixture::alone();
        close_at_one_moment(&mut fixture, n_connections, rows_each);
        let back = fixture.connect();
        let rows = vec![Instance::at(&format!("10.1.0.{n_connections}"), 1)];
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        fixture
            .node
            .register(back, &service(), rows, now, actions)
            .unwrap();
        let is_listed = |node: &Node| {
            let list = node.query(&service(), clock(1)).unwrap().view;
            let mut hosts = list.instances().map(|i| i.row_key());
            hosts.any(|key| key.ip == format!("10.1.0.{n_connections}") && key.port == 1)
        };
        let (mut most, end) = (0, fixture.now + SECOND);
        while n_rows(&fixture.node) > 1 {
            let before = n_rows(&fixture.node);
            fixture.tick();
            most = most.max(before - n_rows(&fixture.node));
            assert!(is_listed(&fixture.node));
            assert!(fixture.now < end, "{before} rows are left");
        }
        assert!(most <= most_of_one, "{most} in one tick");
    }
}

/// Another member that was busy while many connections ended here is told of a few in each frame.
#[test]
fn a_frame_tells_of_the_end_of_a_few_connections() {
    const N: usize = 50;
    let mut fixture = Fixture::new(&["10.0.0.1:8848", OTHER]);
    let welcome = Welcome {
        resume: Resume::At { seq: 0 },
        epoch: 1,
        boot: 1,
    };
    let (now, actions) = (clock(fixture.now), &mut Actions::default());
    let (other, format) = (MemberId::of(OTHER), FORMAT);
    let link = fixture.node.link_up(other, format, welcome, now, actions);
    close_at_one_moment(&mut fixture, N, 10);
    while n_rows(&fixture.node) > 0 {
        fixture.tick();
    }
    let mut n_told = 0;
    while let Some(frame) = fixture.node.poll_link(link, clock(fixture.now)) {
        let Frame::Ops { ops, .. } = frame else { continue };
        let n_ends = ops
            .iter()
            .filter(|op| matches!(op, Op::ClientGone { .. }))
            .count();
        assert!(n_ends <= 8, "{n_ends} in one frame");
        n_told += n_ends;
    }
    assert_eq!(n_told, N);
}

/// Thousands subscribe to a service that changes all the time, over gRPC and UDP: no tick pushes to more than some
/// hundreds, everybody gets lists all along, and in the end all have the last one.
#[test]
fn kf_100_a_service_with_thousands_of_subscribers_is_pushed_some_at_a_time() {
    const N: u16 = 3_000;
    let mut fixture = Fixture::alone();
    let provider = fixture.connect();
    fixture.publish(provider, 0);
    let subscribers: Vec<ConnectionId> = (0..N).map(|_| fixture.connect()).collect();
    for subscriber in &subscribers {
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        fixture
            .node
            .subscribe(*subscriber, &service(), None, now, actions)
            .unwrap();
    }
    let target = |port| UdpTarget {
        ip: "10.2.0.1".into(),
        port,
    };
    for port in 1..=N {
        let (now, actions) = (clock(fixture.now), &mut Actions::default());
        fixture
            .node
            .udp_polled(&target(port), &service(), "", "", now, actions);
    }
    let (mut over_grpc, mut over_udp) = (BTreeMap::new(), BTreeMap::new());
    let mut last_of_all = 0;
    let port_of = |push: &Push| push.view.instances().next().unwrap().port;
    for ms in 0..10 * SECOND {
        if ms % 20 == 0 && ms < 5 * SECOND {
            fixture.publish(provider, (ms / 20) as u16);
        }
        let mut n_pushes = 0;
        for action in fixture.tick() {
            let now = clock(fixture.now);
            match action {
                Action::Push(push) => {
                    n_pushes += 1;
                    over_grpc.insert(push.connection, (port_of(&push), ms));
                    let actions = &mut Actions::default();
                    fixture
                        .node
                        .push_acked(push.connection, push.request_id, true, now, actions);
                }
                Action::PushUdp(push) => {
                    n_pushes += 1;
                    let port = push.view.instances().next().unwrap().port;
                    over_udp.insert(push.target.port, (port, ms));
                    fixture.node.udp_acked(&push.target, push.stamp, now);
                }
                _ => {}
            }
        }
        assert!(n_pushes <= A_LITTLE, "{n_pushes} in one tick");
        if ms == 4 * SECOND {
            // Nobody is passed over while it goes on.
            let oldest = over_grpc.values().chain(over_udp.values()).map(|seen| seen.1);
            last_of_all = oldest.min().unwrap();
        }
    }
    assert!(
        last_of_all > 2 * SECOND,
        "somebody was last pushed to after {last_of_all} ms"
    );
    assert_eq!(
        (over_grpc.len(), over_udp.len()),
        (usize::from(N), usize::from(N))
    );
    let last = 5 * SECOND as u16 / 20 - 1;
    assert!(
        over_grpc
            .values()
            .chain(over_udp.values())
            .all(|seen| seen.0 == last)
    );
}
