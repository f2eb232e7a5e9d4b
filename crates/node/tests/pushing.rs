//! What a single node does for its subscribers and idle connections, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::registry::guard::Guarded;
use rollcall_core::{Instance, Millis, Now, ServiceKey};
use rollcall_node::{Action, Actions, ConnectionId, ConnectionInfo, Node, NodeConfig, Push};

struct Alone {
    node: Node,
    now: u64,
}

impl Alone {
    fn new() -> Self {
        Alone::with(NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1))
    }

    fn with(config: NodeConfig) -> Self {
        let mut alone = Alone {
            node: Node::new(config, 1, clock(0)),
            now: 0,
        };
        alone.run(1);
        assert!(alone.node.is_ready());
        alone
    }

    fn connect(&self) -> ConnectionId {
        let info = ConnectionInfo {
            is_naming: true,
            is_sdk: true,
            ..ConnectionInfo::default()
        };
        self.node
            .open_connection(info, clock(self.now), &mut Actions::default())
            .unwrap()
    }

    fn publish(&self, connection: ConnectionId, ports: &[u16]) {
        let instances = ports.iter().map(|port| Instance::at("10.1.0.1", *port)).collect();
        self.node
            .register(
                connection,
                &service(),
                instances,
                clock(self.now),
                &mut Actions::default(),
            )
            .unwrap();
    }

    fn subscribe(&self, connection: ConnectionId, clusters: &str) -> usize {
        let clusters = Some(clusters.into());
        let answer = self.node.subscribe(
            connection,
            &service(),
            clusters,
            clock(self.now),
            &mut Actions::default(),
        );
        answer.unwrap().view.len()
    }

    fn ack(&self, push: &Push, is_ok: bool) {
        let actions = &mut Actions::default();
        self.node
            .push_acked(push.connection, push.request_id, is_ok, clock(self.now), actions);
    }

    /// Lets time pass in steps of a millisecond; a client that is asked whether it lives says nothing.
    fn run(&mut self, ms: u64) -> Vec<Action> {
        let mut all = Vec::new();
        for _ in 0..ms {
            self.now += 1;
            let mut actions = Actions::default();
            self.node.tick(clock(self.now), &mut actions);
            all.extend(actions.0);
        }
        all
    }

    fn pushes(&mut self, ms: u64) -> Vec<Push> {
        let pushes = self.run(ms).into_iter();
        pushes
            .filter_map(|a| {
                if let Action::Push(push) = a {
                    Some(push)
                } else {
                    None
                }
            })
            .collect()
    }
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

fn service() -> ServiceKey {
    ServiceKey::new("", "", "s")
}

fn ports(push: &Push) -> Vec<u16> {
    push.view.instances().map(|i| i.port).collect()
}

#[test]
fn the_first_subscription_is_followed_by_one_push_and_a_repeated_one_by_none() {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.publish(provider, &[1]);
    assert_eq!(alone.subscribe(subscriber, ""), 1);
    let first = alone.pushes(100);
    assert_eq!(first.iter().map(ports).collect::<Vec<_>>(), [[1]]);
    alone.ack(&first[0], true);
    alone.subscribe(subscriber, "");
    alone.subscribe(subscriber, "c1");
    assert!(alone.pushes(1_000).is_empty());
}

#[test]
fn subscribers_of_a_guarded_service_see_its_empty_list_only_when_it_lasts() {
    let mut alone = Alone::new();
    let guarded = Guarded::Service(service());
    let time = Some(Millis(3_000));
    alone
        .node
        .set_guard(&guarded, time, clock(alone.now), &mut Actions::default())
        .unwrap();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.publish(provider, &[1]);
    alone.subscribe(subscriber, "");
    let first = alone.pushes(100);
    alone.ack(&first[0], true);
    let close = |alone: &Alone, provider| {
        let actions = &mut Actions::default();
        alone.node.close_connection(provider, clock(alone.now), actions);
    };

    close(&alone, provider);
    assert!(alone.pushes(2_500).is_empty());
    let (newcomer, provider) = (alone.connect(), alone.connect());
    assert_eq!(alone.subscribe(newcomer, ""), 1);
    let query = alone.node.query(&service(), clock(alone.now)).unwrap();
    assert_eq!(query.view.len(), 1);
    alone.publish(provider, &[2]);
    for push in alone.pushes(100) {
        assert_eq!(ports(&push), [2], "who comes back takes the place");
        alone.ack(&push, true);
    }

    close(&alone, provider);
    assert!(alone.pushes(2_900).is_empty());
    let last = alone.pushes(200);
    assert_eq!(last.len(), 2, "to each subscriber: {last:?}");
    assert!(last.iter().all(|push| push.view.is_empty()));
}

#[test]
fn a_change_of_a_quiet_service_is_pushed_at_once_and_the_time_rises() {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.subscribe(subscriber, "");
    let empty = alone.pushes(100);
    assert_eq!(ports(&empty[0]), [] as [u16; 0]);
    alone.ack(&empty[0], true);
    alone.publish(provider, &[1]);
    let change = alone.pushes(1);
    assert_eq!(ports(&change[0]), [1]);
    assert!(change[0].last_ref_time > empty[0].last_ref_time);
}

/// Lets `n` changes happen, `at_once` of them every `pause` ms, each push being acknowledged in the millisecond that
/// it is sent in. Returns how many pushes there were and the longest time that a change waited for one.
fn burst(alone: &mut Alone, provider: ConnectionId, n: u16, at_once: u16, pause: u64) -> (usize, u64) {
    let (mut n_pushes, mut longest) = (0, 0);
    let mut waiting_since = None;
    let mut last = Vec::new();
    let mut see = |alone: &mut Alone, since: &mut Option<u64>, ms: u64| {
        for _ in 0..ms {
            for push in alone.pushes(1) {
                n_pushes += 1;
                last = ports(&push);
                longest = longest.max(since.take().map_or(0, |since| alone.now - since));
                alone.ack(&push, true);
            }
        }
    };
    for port in 1..=n {
        alone.publish(provider, &[port]);
        alone.node.touch(provider, clock(alone.now)).unwrap();
        waiting_since.get_or_insert(alone.now);
        if port % at_once == 0 {
            see(alone, &mut waiting_since, pause);
        }
    }
    see(alone, &mut waiting_since, 1_000);
    assert_eq!(last, [n], "the last push has the last state");
    (n_pushes, longest)
}

fn subscribed() -> (Alone, ConnectionId) {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.subscribe(subscriber, "");
    for push in alone.pushes(100) {
        alone.ack(&push, true);
    }
    (alone, provider)
}

#[test]
fn kf_053_a_thousand_changes_in_two_seconds_make_a_few_pushes() {
    for (at_once, pause) in [(1, 2), (10, 20), (100, 200)] {
        let (mut alone, provider) = subscribed();
        let (n_pushes, longest) = burst(&mut alone, provider, 1_000, at_once, pause);
        assert!(
            n_pushes <= 30,
            "{n_pushes} pushes, {at_once} changes each {pause} ms"
        );
        assert!(longest <= 501, "a change waited {longest} ms");
    }
}

#[test]
fn fifty_changes_a_second_are_pushed_within_sixty_milliseconds() {
    let (mut alone, provider) = subscribed();
    let (_, longest) = burst(&mut alone, provider, 500, 1, 20);
    assert!(longest <= 60, "a change waited {longest} ms");
}

#[test]
fn a_change_after_a_busy_time_is_pushed_at_once_again() {
    let (mut alone, provider) = subscribed();
    burst(&mut alone, provider, 1_000, 1, 2);
    alone.publish(provider, &[7]);
    assert_eq!(alone.pushes(1).iter().map(ports).collect::<Vec<_>>(), [[7]]);
}

#[test]
fn a_fixed_delay_is_kept_however_busy_the_service_is() {
    let mut config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
    config.push_delay = Some(Millis(40));
    let mut alone = Alone::with(config);
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.subscribe(subscriber, "");
    for push in alone.pushes(100) {
        alone.ack(&push, true);
    }
    let (n_pushes, longest) = burst(&mut alone, provider, 1_000, 1, 2);
    assert!((46..=51).contains(&n_pushes), "{n_pushes}");
    assert_eq!(longest, 40);
}

#[test]
fn one_push_is_outstanding_and_the_newest_list_follows_its_acknowledgement() {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.subscribe(subscriber, "");
    let first = alone.pushes(100);
    for port in 1..=20 {
        alone.publish(provider, &[port]);
        assert!(
            alone.pushes(50).is_empty(),
            "nothing while the first is unacknowledged"
        );
    }
    alone.ack(&first[0], true);
    let next = alone.pushes(100);
    assert_eq!(next.iter().map(ports).collect::<Vec<_>>(), [[20]]);
}

#[test]
fn kf_054_who_never_acknowledges_is_tried_ever_more_rarely() {
    let mut alone = Alone::new();
    let (provider, silent, good) = (alone.connect(), alone.connect(), alone.connect());
    alone.subscribe(silent, "");
    alone.subscribe(good, "");
    let mut to_silent = Vec::new();
    for port in 1..=1_200u16 {
        alone.publish(provider, &[port]);
        for connection in [provider, silent, good] {
            alone.node.touch(connection, clock(alone.now)).unwrap();
        }
        let mut reached = false;
        for push in alone.pushes(100) {
            if push.connection == good {
                reached = ports(&push) == [port];
                alone.ack(&push, true);
            } else {
                to_silent.push(alone.now);
            }
        }
        assert!(reached || port == 1, "the other subscriber gets every change");
    }
    // 120 s: first try, then after 5 s + 1, 2, 4, 8, 16, 30 s ...
    assert!((4..=8).contains(&to_silent.len()), "{to_silent:?}");
    assert!(
        alone
            .node
            .metrics(clock(alone.now))
            .get("rollcall_pushes_unacked")
            .unwrap()
            <= 60
    );
}

#[test]
fn kf_056_an_unsubscribe_ends_only_the_subscription_with_its_clusters_text() {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.subscribe(subscriber, "c1");
    alone.subscribe(subscriber, "c2");
    for push in alone.pushes(100) {
        alone.ack(&push, true);
    }
    let (now, actions) = (clock(alone.now), &mut Actions::default());
    alone
        .node
        .unsubscribe(subscriber, &service(), Some("c1".into()), now, actions)
        .unwrap();
    alone.publish(provider, &[1]);
    let clusters: Vec<_> = alone
        .pushes(100)
        .into_iter()
        .map(|p| p.clusters.unwrap())
        .collect();
    assert_eq!(clusters, ["c2"]);
}

/// KF-063: a client whose network is cut without a word is gone everywhere within 45 s.
#[test]
fn a_silent_connection_is_asked_twice_and_dropped_within_fifteen_seconds() {
    let mut alone = Alone::new();
    let (silent, lively) = (alone.connect(), alone.connect());
    alone.publish(silent, &[1]);
    let (mut n_asked, mut closed_at) = (0, None);
    for _ in 0..200 {
        alone.node.touch(lively, clock(alone.now)).unwrap();
        for action in alone.run(100) {
            match action {
                Action::Detect { connection, .. } => {
                    assert_eq!(connection, silent);
                    n_asked += 1;
                }
                Action::Close { connection } => {
                    assert_eq!(connection, silent);
                    closed_at = Some(alone.now);
                }
                _ => {}
            }
        }
    }
    assert!(n_asked >= 2, "asked {n_asked} times");
    assert!(
        closed_at.is_some_and(|at| (14_000..=15_000).contains(&at)),
        "{closed_at:?}"
    );
    assert_eq!(alone.node.registry().n_rows(), 0);
    assert!(alone.node.touch(silent, clock(alone.now)).is_err());
    assert!(alone.node.touch(lively, clock(alone.now)).is_ok());
}

#[test]
fn an_answer_to_the_question_keeps_a_connection() {
    let mut alone = Alone::new();
    let idle = alone.connect();
    for _ in 0..60 {
        for action in alone.run(1_000) {
            match action {
                Action::Detect {
                    connection,
                    request_id,
                } => {
                    let actions = &mut Actions::default();
                    alone
                        .node
                        .push_acked(connection, request_id, true, clock(alone.now), actions);
                }
                Action::Close { .. } => panic!("closed although it answers"),
                _ => {}
            }
        }
    }
    assert!(alone.node.touch(idle, clock(alone.now)).is_ok());
}

#[test]
fn the_newest_connections_are_asked_to_move_until_so_many_remain() {
    let alone = Alone::new();
    let all: Vec<_> = (0..3).map(|_| alone.connect()).collect();
    let asked = |n_kept| {
        let mut actions = Actions::default();
        alone
            .node
            .shed_connections(n_kept, None, clock(alone.now), &mut actions);
        let asked = actions.0.iter().filter_map(|action| match action {
            Action::Reset { connection, .. } => Some(*connection),
            _ => None,
        });
        asked.collect::<Vec<_>>()
    };
    assert_eq!(asked(1), [all[2], all[1]]);
    assert_eq!(asked(3), []);
    let mut actions = Actions::default();
    let is_asked = alone
        .node
        .reset_connection("nobody", None, clock(alone.now), &mut actions);
    assert!(!is_asked);
}

#[test]
fn nothing_is_pushed_while_the_switch_is_off_and_the_current_list_once_it_is_on() {
    let (mut alone, provider) = subscribed();
    let set = |alone: &Alone, value: &str| {
        let (name, actions) = (rollcall_node::switches::PUSH_ENABLED, &mut Actions::default());
        let set = alone
            .node
            .set_switch(name, value.into(), false, clock(alone.now), actions);
        assert!(set.is_ok());
    };
    set(&alone, "false");
    alone.publish(provider, &[80]);
    alone.publish(provider, &[80, 81]);
    assert!(alone.pushes(5_000).is_empty());
    set(&alone, "true");
    let pushes = alone.pushes(1_000);
    assert_eq!(pushes.len(), 1);
    assert_eq!(ports(&pushes[0]), [80, 81]);
}

#[test]
fn a_push_is_timed_from_the_first_change_that_its_subscriber_lacks() {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    alone.subscribe(subscriber, "");
    let first = alone.pushes(100);
    assert_eq!(first[0].changed, None, "it tells of no change");
    alone.ack(&first[0], true);

    let since = |alone: &Alone| Some(clock(alone.now).fine);
    let changed = since(&alone);
    alone.publish(provider, &[1]);
    let second = alone.pushes(10);
    assert_eq!(second[0].changed, changed);
    // While that is not acknowledged, two more changes come.
    let changed = since(&alone);
    alone.publish(provider, &[1, 2]);
    assert!(alone.pushes(50).is_empty());
    alone.publish(provider, &[1, 2, 3]);
    assert!(alone.pushes(50).is_empty());
    alone.ack(&second[0], true);
    let third = alone.pushes(50);
    assert_eq!(third[0].changed, changed);
    // Refused, it is sent again later, and tells of the same changes.
    alone.ack(&third[0], false);
    let again = alone.pushes(2_000);
    assert_eq!(again[0].changed, changed);
    alone.ack(&again[0], true);

    let metrics = alone.node.metrics(clock(alone.now));
    let costs = metrics.recent_costs();
    assert_eq!(costs.n_acked, 2, "one told of no change, one was refused");
    assert_eq!(costs.max, Some(clock(alone.now).fine.since(changed.unwrap())));
    assert_eq!(metrics.get("rollcall_pushes_empty"), Some(1));
}

/// KF-044: two texts for the same clusters: a change is pushed for one of those that were sent, the later at least, and
/// both orders select the same.
#[test]
fn kf_044_clusters_in_two_orders_are_pushed_with_a_text_that_was_sent() {
    let mut alone = Alone::new();
    let (provider, subscriber) = (alone.connect(), alone.connect());
    for clusters in ["A,B", "B,A"] {
        alone.subscribe(subscriber, clusters);
    }
    for push in alone.pushes(100) {
        alone.ack(&push, true);
    }
    let mut instance = Instance::at("10.1.0.1", 1);
    instance.cluster = "A".into();
    let (now, actions) = (clock(alone.now), &mut Actions::default());
    alone
        .node
        .register(provider, &service(), vec![instance], now, actions)
        .unwrap();
    let pushes = alone.pushes(1_000);
    let texts: Vec<_> = pushes.iter().map(|p| p.clusters.clone().unwrap()).collect();
    assert!(texts.iter().any(|text| text == "B,A"), "{texts:?}");
    assert!(
        texts.iter().all(|text| text == "A,B" || text == "B,A"),
        "{texts:?}"
    );
    for push in &pushes {
        let selected = |clusters: &str| {
            let healthy_only = false;
            let selection = rollcall_core::Selection {
                clusters,
                healthy_only,
            };
            push.view.select(&selection).instances
        };
        assert_eq!(selected("A,B").len(), 1);
        assert_eq!(selected("A,B"), selected("B,A"));
    }
}
