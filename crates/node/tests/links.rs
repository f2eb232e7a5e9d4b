//! What a node tells operators of its links to the other members.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Instance, MemberId, Micros, Millis, Now, ServiceKey};
use rollcall_distro::codec::FORMAT;
use rollcall_distro::message::{Reply, Resume, Welcome};
use rollcall_node::{Actions, ConnectionInfo, LinkId, Node, NodeConfig, Value};

const OTHER: &str = "10.0.0.2:8848";

/// One of two members, ready by the limit of its gate.
struct One {
    node: Node,
    now: u64,
}

impl One {
    fn new() -> Self {
        let mut config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848", OTHER], 1);
        config.gate_limit = Millis(0);
        let one = One {
            node: Node::new(config, 1, clock(0)),
            now: 1,
        };
        one.node.tick(clock(1), &mut Actions::default());
        assert!(one.node.is_ready());
        one
    }

    fn link_up(&self, resume: Resume) -> LinkId {
        let welcome = Welcome {
            resume,
            epoch: 1,
            boot: 2,
        };
        let to = MemberId::of(OTHER);
        self.node
            .link_up(to, FORMAT, welcome, clock(self.now), &mut Actions::default())
    }

    fn write(&self, n: u16) {
        let (now, actions) = (clock(self.now), &mut Actions::default());
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let connection = self.node.open_connection(info, now, actions).unwrap();
        let service = ServiceKey::new("", "", "s");
        let rows = vec![Instance::at("10.1.0.1", n)];
        self.node
            .register(connection, &service, rows, now, actions)
            .unwrap();
    }

    /// Sends all that waits for the other member.
    fn send(&self, link: LinkId) {
        while self.node.poll_link(link, clock(self.now)).is_some() {}
    }

    fn ack(&self, link: LinkId, seq: u64) {
        let (now, actions) = (clock(self.now), &mut Actions::default());
        self.node
            .on_reply(link, Reply::Ack { seq }, now, actions)
            .unwrap();
    }

    fn of_other(&self, name: &str) -> Value {
        let metrics = self.node.metrics(clock(self.now));
        let family = metrics
            .families()
            .iter()
            .find(|family| family.name == name)
            .unwrap();
        assert_eq!(family.samples.len(), 1);
        assert_eq!(family.samples[0].labels, [("member", OTHER.into())]);
        family.samples[0].value
    }

    fn synced(&self) -> (u64, Micros) {
        match self.of_other("rollcall_sync_seconds") {
            Value::Histogram(counts) => (counts.total(), counts.sum),
            other => panic!("{other:?}"),
        }
    }
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

#[test]
fn a_write_is_timed_until_the_other_member_has_applied_it() {
    let mut one = One::new();
    let link = one.link_up(Resume::At { seq: 0 });
    one.write(1);
    one.now += 5;
    one.write(2);
    one.send(link);
    assert_eq!(one.of_other("rollcall_peer_log_behind"), Value::Gauge(2.0));
    one.now += 2;
    one.ack(link, 1);
    assert_eq!(one.synced(), (1, Micros(7_000)));
    one.now += 1;
    one.ack(link, 2);
    assert_eq!(one.synced(), (2, Micros(10_000)));
    assert_eq!(one.of_other("rollcall_peer_log_behind"), Value::Gauge(0.0));
}

#[test]
fn time_without_a_link_counts_but_not_before_a_fresh_start() {
    let mut one = One::new();
    let link = one.link_up(Resume::At { seq: 0 });
    assert_eq!(one.of_other("rollcall_peer_link_up"), Value::Gauge(1.0));
    one.write(1);
    one.node.link_down(link, clock(one.now), &mut Actions::default());
    assert_eq!(one.of_other("rollcall_peer_link_up"), Value::Gauge(0.0));
    one.now += 100;
    let link = one.link_up(Resume::At { seq: 0 });
    one.send(link);
    one.ack(link, 1);
    assert_eq!(one.synced(), (1, Micros(100_000)));
    // A process that has nothing acknowledges where it begins, which says nothing of the writes before.
    one.write(2);
    one.now += 50;
    let link = one.link_up(Resume::Fresh);
    one.send(link);
    one.ack(link, 2);
    assert_eq!(one.synced().0, 1);
}
