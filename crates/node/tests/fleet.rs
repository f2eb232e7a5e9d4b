//! The death of a fleet, and a service that everybody subscribes to: much work for one node, a little at a time, so that
//! what others want comes in between. In virtual time, counted in rows and pushes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::registry::change::{Changes, ClientId};
use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey, Stamp};
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

#[test]
fn thousands_of_orphans_are_dropped_some_at_a_time() {
    const N: u64 = 5_000;
    let mut fixture = Fixture::new(&["10.0.0.1:8848", OTHER]);
    let other = MemberId::of(OTHER);
    for n in 0..N {
        let client = ClientId::new(other, n, n % 2 == 0);
        let stamp = Stamp {
            time: n + 1,
            member: other,
        };
        fixture.node.registry().apply_publish(
            client,
            &service(),
            Arc::new(instance(n)),
            stamp,
            clock(fixture.now),
            &mut Changes::new(),
        );
    }
    let (now, actions) = (clock(fixture.now), &mut Actions::default());
    fixture.node.probe_done(other, ProbeResult::Refused, now, actions);
    assert_eq!(fixture.node.registry().n_orphans(), N as usize);
    // The grace of those who return at once, and 25 seconds later that of the others.
    for (seconds, n_left) in [(14, N), (2, N / 2), (22, N / 2), (3, 0)] {
        let most = fixture.most_lost(seconds, n_rows);
        assert_eq!(n_rows(&fixture.node), n_left as usize);
        assert!(most <= A_LITTLE, "{most} in one tick");
    }
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
