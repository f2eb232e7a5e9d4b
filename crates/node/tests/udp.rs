//! What a single node does for 1.x clients that poll and name a UDP port, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::registry::guard::Guarded;
use rollcall_core::{Instance, Millis, Now, ServiceKey};
use rollcall_node::{Action, Actions, ConnectionId, ConnectionInfo, Node, NodeConfig, UdpPush, UdpTarget};

struct Alone {
    node: Node,
    provider: ConnectionId,
    now: u64,
}

impl Alone {
    fn new() -> Self {
        Alone::with_limit(100)
    }

    fn with_limit(limit: usize) -> Self {
        let mut config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
        config.udp_subscriptions = limit;
        let node = Node::new(config, 1, clock(0));
        node.tick(clock(1), &mut Actions::default());
        assert!(node.is_ready());
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let provider = node
            .open_connection(info, clock(1), &mut Actions::default())
            .unwrap();
        Alone {
            node,
            provider,
            now: 1,
        }
    }

    fn publish(&self, ports: &[u16]) {
        let instances = ports.iter().map(|port| Instance::at("10.1.0.1", *port)).collect();
        let actions = &mut Actions::default();
        self.node
            .register(self.provider, &service("s"), instances, clock(self.now), actions)
            .unwrap();
    }

    fn poll(&self, port: u16, name: &str, clusters: &str) {
        let actions = &mut Actions::default();
        self.node.udp_polled(
            &target(port),
            &service(name),
            clusters,
            "",
            clock(self.now),
            actions,
        );
    }

    fn ack(&self, push: &UdpPush) {
        self.node.udp_acked(&push.target, push.stamp, clock(self.now));
    }

    /// Lets time pass; the provider shows life. What was pushed, and when.
    fn run(&mut self, ms: u64) -> Vec<(u64, UdpPush)> {
        let mut pushes = Vec::new();
        for _ in 0..ms {
            self.now += 1;
            let mut actions = Actions::default();
            self.node.touch(self.provider, clock(self.now)).unwrap();
            self.node.tick(clock(self.now), &mut actions);
            for action in actions.0 {
                if let Action::PushUdp(push) = action {
                    pushes.push((self.now, push));
                }
            }
        }
        pushes
    }

    /// Subscribes a port and acknowledges the push that follows.
    fn settled(&mut self, port: u16) {
        self.poll(port, "s", "");
        let first = self.run(100);
        assert_eq!(first.len(), 1, "{first:?}");
        self.ack(&first[0].1);
    }

    fn metric(&self, name: &str) -> u64 {
        self.node.metrics(clock(self.now)).get(name).unwrap()
    }
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

fn service(name: &str) -> ServiceKey {
    ServiceKey::new("", "", name)
}

fn target(port: u16) -> UdpTarget {
    UdpTarget {
        ip: "10.2.0.1".into(),
        port,
    }
}

fn ports(push: &UdpPush) -> Vec<u16> {
    push.view.instances().map(|i| i.port).collect()
}

#[test]
fn the_first_poll_is_followed_by_one_push_and_a_repeated_one_by_none() {
    let mut alone = Alone::new();
    alone.publish(&[1]);
    alone.poll(7, "s", "");
    let first = alone.run(100);
    assert_eq!(first.iter().map(|p| ports(&p.1)).collect::<Vec<_>>(), [[1]]);
    alone.ack(&first[0].1);
    alone.poll(7, "s", "");
    assert!(alone.run(1_000).is_empty());
    // Also for a service that nobody knows.
    alone.poll(7, "unknown", "");
    let unknown = alone.run(100);
    assert_eq!((unknown.len(), ports(&unknown[0].1)), (1, vec![]));
}

#[test]
fn subscribers_of_a_guarded_service_see_its_empty_list_only_when_it_lasts() {
    let mut alone = Alone::new();
    let guarded = Guarded::Namespace("public".into());
    let actions = &mut Actions::default();
    let time = Some(Millis(3_000));
    alone
        .node
        .set_guard(&guarded, time, clock(alone.now), actions)
        .unwrap();
    let info = ConnectionInfo {
        is_naming: true,
        ..ConnectionInfo::default()
    };
    let dying = alone
        .node
        .open_connection(info, clock(alone.now), actions)
        .unwrap();
    let instances = vec![Instance::at("10.1.0.1", 1)];
    alone
        .node
        .register(dying, &service("s"), instances, clock(alone.now), actions)
        .unwrap();
    alone.settled(7);
    alone.node.close_connection(dying, clock(alone.now), actions);
    assert!(alone.run(2_900).is_empty());
    let last = alone.run(200);
    assert_eq!(last.iter().map(|p| ports(&p.1)).collect::<Vec<_>>(), [[0u16; 0]]);
}

#[test]
fn a_change_goes_to_every_subscriber_with_one_stamp() {
    let mut alone = Alone::new();
    alone.settled(7);
    alone.settled(8);
    alone.publish(&[1]);
    let pushes = alone.run(1_000);
    let to: Vec<_> = pushes.iter().map(|p| (p.1.target.port, ports(&p.1))).collect();
    assert_eq!(to, [(7, vec![1]), (8, vec![1])]);
    assert_eq!(pushes[0].1.stamp, pushes[1].1.stamp);
}

#[test]
fn another_clusters_text_replaces_the_former_and_sends_nothing() {
    let mut alone = Alone::new();
    alone.settled(7);
    alone.poll(7, "s", "c1");
    assert!(alone.run(1_000).is_empty());
    alone.publish(&[1]);
    let pushes = alone.run(1_000);
    assert_eq!(
        (pushes.len(), pushes[0].1.clusters.as_str()),
        (1, "c1"),
        "{pushes:?}"
    );
}

#[test]
fn a_push_without_acknowledgement_is_sent_once_more_and_given_up() {
    let mut alone = Alone::new();
    alone.poll(7, "s", "");
    let start = alone.now;
    let pushes = alone.run(28_000);
    let at: Vec<_> = pushes.iter().map(|p| (p.0 - start) / 1_000).collect();
    assert_eq!(at, [0, 10]);
    let (first, again) = (&pushes[0].1, &pushes[1].1);
    assert_eq!(
        (first.stamp, first.last_ref_time, first.view.version()),
        (again.stamp, again.last_ref_time, again.view.version())
    );
    assert_eq!(alone.metric("rollcall_udp_pushes_repeated"), 1);
    assert_eq!(alone.metric("rollcall_udp_pushes_timed_out"), 1);
    // The next change is pushed all the same.
    alone.publish(&[1]);
    assert_eq!(alone.run(100).len(), 1);
}

#[test]
fn an_acknowledgement_that_is_late_or_comes_after_the_repetition_counts() {
    let mut alone = Alone::new();
    alone.poll(7, "s", "");
    let pushes = alone.run(12_000);
    assert_eq!(pushes.len(), 2);
    alone.ack(&pushes[0].1);
    alone.run(10_000);
    assert_eq!(alone.metric("rollcall_udp_pushes_acked"), 1);
    assert_eq!(alone.metric("rollcall_udp_pushes_timed_out"), 0);
}

#[test]
fn an_acknowledgement_counts_from_the_address_pushed_to_with_the_right_stamp() {
    let mut alone = Alone::new();
    alone.poll(7, "s", "");
    let push = alone.run(100).remove(0).1;
    alone.node.udp_acked(&target(8), push.stamp, clock(alone.now));
    alone
        .node
        .udp_acked(&push.target, push.stamp + 1, clock(alone.now));
    assert_eq!(alone.metric("rollcall_udp_pushes_acked"), 0);
    alone.ack(&push);
    alone.ack(&push);
    assert_eq!(alone.metric("rollcall_udp_pushes_acked"), 1);
}

#[test]
fn a_newer_list_takes_the_place_of_one_that_waits() {
    let mut alone = Alone::new();
    alone.poll(7, "s", "");
    let first = alone.run(100).remove(0).1;
    let mut sent = Vec::new();
    for port in 1..=50 {
        alone.publish(&[port]);
        sent.extend(alone.run(100));
    }
    let newest = sent.last().unwrap().1.clone();
    assert_eq!(ports(&newest), [50]);
    alone.ack(&first);
    assert_eq!(alone.metric("rollcall_udp_pushes_acked"), 0);
    // Only the newest is repeated, never an older one.
    let later = alone.run(12_000);
    assert_eq!(
        later.iter().map(|p| p.1.stamp).collect::<Vec<_>>(),
        [newest.stamp]
    );
}

#[test]
fn a_subscriber_that_does_not_poll_ends_after_half_a_minute() {
    let mut alone = Alone::new();
    alone.settled(7);
    alone.poll(7, "other", "");
    alone.run(100);
    alone.settled(8);
    for step in 0..4 {
        alone.poll(8, "s", "");
        alone.run(8_000);
        assert_eq!(
            alone.metric("rollcall_udp_subscriptions"),
            if step < 3 { 3 } else { 1 }
        );
    }
    alone.publish(&[1]);
    let to: Vec<_> = alone.run(1_000).iter().map(|p| p.1.target.port).collect();
    assert_eq!(to, [8]);
    // Who polls again is new: one push follows.
    alone.poll(7, "s", "");
    let again = alone.run(100);
    assert_eq!((again.len(), again[0].1.target.port), (1, 7));
}

#[test]
fn a_poll_of_one_service_keeps_all_of_its_client() {
    let mut alone = Alone::new();
    alone.settled(7);
    for _ in 0..6 {
        alone.poll(7, "other", "");
        alone.run(10_000);
    }
    alone.publish(&[1]);
    assert_eq!(alone.run(100).len(), 1);
}

#[test]
fn what_cannot_be_sent_is_tried_again_with_the_list_of_then() {
    let mut alone = Alone::new();
    alone.poll(7, "s", "");
    let push = alone.run(100).remove(0).1;
    let actions = &mut Actions::default();
    alone
        .node
        .udp_failed(&push.target, push.stamp, clock(alone.now), actions);
    let failed_at = alone.now;
    alone.publish(&[1]);
    let again = alone.run(5_000);
    assert_eq!((again.len(), ports(&again[0].1)), (1, vec![1]));
    assert!(again[0].0 >= failed_at + 1_000);
    assert_eq!(alone.metric("rollcall_udp_pushes_failed"), 1);
}

#[test]
fn subscriptions_are_bounded_and_places_become_free() {
    let mut alone = Alone::with_limit(2);
    alone.poll(7, "s", "");
    alone.poll(8, "s", "");
    alone.poll(9, "s", "");
    alone.poll(7, "other", "");
    assert_eq!(alone.metric("rollcall_udp_subscriptions_refused"), 2);
    assert_eq!(alone.run(100).len(), 2);
    alone.run(31_000);
    alone.poll(9, "s", "");
    assert_eq!(alone.run(100).len(), 1);
    assert_eq!(alone.metric("rollcall_udp_subscribers"), 1);
}

#[test]
fn the_subscribers_of_a_service_are_listed() {
    let alone = Alone::new();
    alone.poll(8, "s", "c1");
    alone.poll(7, "s", "");
    let listed = alone.node.udp_subscribers(&service("s"));
    assert_eq!(listed, [(target(7), "".into()), (target(8), "c1".into())]);
}

/// KF-060: of fifty subscribers nobody hears and one that answers, the one has every change within two seconds, while
/// what is held and sent for the others stays bounded.
#[test]
fn kf_060_subscribers_that_cannot_be_reached_cost_the_others_nothing() {
    const UNREACHABLE: u16 = 50;
    let mut alone = Alone::new();
    let polls = |alone: &Alone| {
        for port in 1..=UNREACHABLE {
            alone.poll(port, "s", "");
        }
        alone.poll(99, "s", "");
    };
    let mut n_lost = 0;
    for change in 1..=120u16 {
        if change % 10 == 1 {
            polls(&alone);
        }
        alone.publish(&[change]);
        let mut reached = None;
        for (at, push) in alone.run(1_000) {
            if push.target.port != 99 {
                n_lost += 1;
                continue;
            }
            alone.ack(&push);
            if ports(&push) == [change] {
                reached = Some(at);
            }
        }
        assert!(reached.is_some(), "change {change} has not come within a second");
        assert!(
            alone.metric("rollcall_udp_subscriptions") <= u64::from(UNREACHABLE) + 1,
            "no more than there are"
        );
        assert!(alone.metric("rollcall_pushes_waiting") <= 1, "one service is due");
    }
    // One for each change and one repetition of what nothing newer has replaced.
    assert!(
        n_lost <= 2 * u64::from(UNREACHABLE) * 120,
        "{n_lost} were sent in vain"
    );
}
