//! How many connections a node takes, and whom it asks to move, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey};
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, Node, NodeConfig, NodeError, ProbeResult,
};

struct Alone {
    node: Node,
    now: u64,
}

impl Alone {
    fn new() -> Self {
        Alone::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
        change(&mut config);
        let node = Node::new(config, 1, clock(0));
        node.tick(clock(1), &mut Actions::default());
        Alone { node, now: 1 }
    }

    fn connect(&self, ip: &str, is_sdk: bool) -> Result<ConnectionId, NodeError> {
        let info = ConnectionInfo {
            text_id: format!("{ip}-{}", self.node.n_connections()).into(),
            remote_ip: ip.into(),
            is_naming: true,
            is_sdk,
            ..ConnectionInfo::default()
        };
        self.node
            .open_connection(info, clock(self.now), &mut Actions::default())
    }

    fn close(&self, id: ConnectionId) {
        self.node
            .close_connection(id, clock(self.now), &mut Actions::default());
    }

    fn shed(&self, remain: usize, to: Option<&str>) -> Vec<(ConnectionId, u64, Option<String>)> {
        let mut actions = Actions::default();
        self.node
            .shed_connections(remain, to.map(Into::into), clock(self.now), &mut actions);
        resets(actions)
    }

    /// Lets time pass; every client shows life. Who is asked to move meanwhile.
    fn run(&mut self, ms: u64) -> Vec<(ConnectionId, u64, Option<String>)> {
        let mut asked = Vec::new();
        for _ in 0..ms {
            self.now += 1;
            let mut actions = Actions::default();
            self.node.tick(clock(self.now), &mut actions);
            asked.extend(resets(actions));
        }
        asked
    }
}

fn resets(actions: Actions) -> Vec<(ConnectionId, u64, Option<String>)> {
    let asked = actions.0.into_iter().filter_map(|action| match action {
        Action::Reset {
            connection,
            request_id,
            to,
        } => Some((connection, request_id, to.map(|to| to.to_string()))),
        _ => None,
    });
    asked.collect()
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

#[test]
fn connections_beyond_the_limit_are_refused_until_a_place_is_free() {
    let alone = Alone::with(|config| config.connection_limit = 2);
    let first = alone.connect("10.1.0.1", true).unwrap();
    alone.connect("10.1.0.2", false).unwrap();
    assert_eq!(
        alone.connect("10.1.0.3", true),
        Err(NodeError::TooManyConnections)
    );
    assert_eq!(
        alone
            .node
            .metrics(clock(alone.now))
            .get("rollcall_connections_refused"),
        Some(1)
    );
    alone.close(first);
    alone.close(first);
    alone.connect("10.1.0.3", true).unwrap();
    assert!(alone.connect("10.1.0.3", true).is_err());
}

#[test]
fn each_address_has_places_of_its_own() {
    let alone = Alone::with(|config| config.connection_limit_per_ip = 1);
    let first = alone.connect("10.1.0.1", true).unwrap();
    assert!(alone.connect("10.1.0.1", true).is_err());
    alone.connect("10.1.0.2", true).unwrap();
    alone.close(first);
    alone.connect("10.1.0.1", true).unwrap();
}

#[test]
fn as_many_are_asked_as_are_above_the_wish_and_only_sdks() {
    let alone = Alone::new();
    let (a, b) = (
        alone.connect("10.1.0.1", true).unwrap(),
        alone.connect("10.1.0.2", true).unwrap(),
    );
    alone.connect("10.1.0.3", false).unwrap();
    for nothing in [0, 3, 4] {
        assert!(alone.shed(nothing, None).is_empty(), "{nothing}");
    }
    let asked = alone.shed(1, Some("10.9.8.7:8848"));
    let to = Some("10.9.8.7:8848".to_owned());
    let whom: Vec<_> = asked.iter().map(|asked| (asked.0, asked.2.clone())).collect();
    assert_eq!(whom, [(b, to.clone()), (a, to)]);
}

#[test]
fn another_is_asked_in_place_of_one_that_does_not_answer() {
    let mut alone = Alone::new();
    let (a, b) = (
        alone.connect("10.1.0.1", true).unwrap(),
        alone.connect("10.1.0.2", true).unwrap(),
    );
    let asked = alone.shed(1, None);
    assert_eq!(asked.iter().map(|asked| asked.0).collect::<Vec<_>>(), [b]);
    assert!(alone.run(2_900).is_empty());
    let next = alone.run(200);
    assert_eq!(next.iter().map(|asked| asked.0).collect::<Vec<_>>(), [a]);
    // It answers, so it is done.
    alone
        .node
        .push_acked(a, next[0].1, true, clock(alone.now), &mut Actions::default());
    assert!(alone.run(5_000).is_empty());
    assert_eq!(
        alone.node.metrics(clock(alone.now)).get("rollcall_resets_acked"),
        Some(1)
    );
}

#[test]
fn no_more_than_a_thousand_are_asked_at_a_time() {
    let alone = Alone::new();
    for _ in 0..1_500 {
        alone.connect("10.1.0.1", true).unwrap();
    }
    let asked = alone.shed(1, None);
    assert_eq!(asked.len(), 1_000);
    assert_eq!(
        alone
            .node
            .metrics(clock(alone.now))
            .get("rollcall_resets_waiting"),
        Some(499)
    );
    let mut actions = Actions::default();
    for (id, request_id, _) in &asked[..10] {
        alone
            .node
            .push_acked(*id, *request_id, true, clock(alone.now), &mut actions);
    }
    assert_eq!(resets(actions).len(), 10);
}

#[test]
fn one_connection_is_asked_by_the_name_that_clients_know() {
    let mut alone = Alone::new();
    let first = alone.connect("10.1.0.1", true).unwrap();
    alone.connect("10.1.0.2", false).unwrap();
    let reset = |name: &str| {
        let mut actions = Actions::default();
        let is_asked = alone
            .node
            .reset_connection(name, None, clock(alone.now), &mut actions);
        (is_asked, resets(actions).iter().map(|r| r.0).collect::<Vec<_>>())
    };
    assert_eq!(reset("10.1.0.1-0"), (true, vec![first]));
    assert_eq!(reset("10.1.0.2-1"), (false, vec![]));
    assert_eq!(reset("zzz"), (false, vec![]));
    // Nobody is asked in its place.
    assert!(alone.run(5_000).is_empty());
}

#[test]
fn a_node_alone_has_nowhere_to_even_out_to() {
    let alone = Alone::new();
    for _ in 0..10 {
        alone.connect("10.1.0.1", true).unwrap();
    }
    let mut actions = Actions::default();
    alone.node.even_out(0.1, clock(alone.now), &mut actions);
    assert!(resets(actions).is_empty());
    let loads = alone.node.member_loads();
    assert_eq!((loads.len(), loads[0].sdk_connections), (1, 10));
}

/// Ports of what is listed, and the number of publishers of all of it.
fn listed(alone: &Alone, service: &ServiceKey) -> (Vec<u16>, usize) {
    let answer = alone.node.query(service, clock(alone.now)).unwrap();
    let ports = answer.view.instances().map(|i| i.port).collect();
    let n_publishers = alone
        .node
        .rows(service)
        .iter()
        .map(|row| row.publishers.len())
        .sum();
    (ports, n_publishers)
}

fn publish(alone: &Alone, id: ConnectionId, service: &ServiceKey, ports: &[u16]) {
    let rows = ports.iter().map(|port| Instance::at("10.1.0.1", *port)).collect();
    let actions = &mut Actions::default();
    alone
        .node
        .register(id, service, rows, clock(alone.now), actions)
        .unwrap();
}

/// KF-061: what a client that moves registered is listed until it is registered anew, and is then the newcomer's.
#[test]
fn kf_061_instances_of_a_client_that_moves_stay_until_they_are_registered_anew() {
    let mut alone = Alone::new();
    let services = ["s", "t"].map(|name| ServiceKey::new("", "", name));
    let mover = alone.connect("10.0.0.9", true).unwrap();
    for service in &services {
        publish(&alone, mover, service, &[1, 2]);
    }
    assert!(
        alone
            .node
            .reset_connection("10.0.0.9-0", None, clock(alone.now), &mut Actions::default())
    );
    alone.close(mover);
    alone.run(3_000);
    for service in &services {
        assert_eq!(listed(&alone, service), (vec![1, 2], 2), "on its way");
    }
    assert_eq!(
        alone
            .node
            .metrics(clock(alone.now))
            .get("rollcall_clients_moving"),
        Some(1)
    );

    let arrived = alone.connect("10.0.0.9", true).unwrap();
    publish(&alone, arrived, &services[0], &[1, 2]);
    publish(&alone, arrived, &services[1], &[1]);
    alone.run(2_500);
    assert_eq!(
        listed(&alone, &services[0]),
        (vec![1, 2], 2),
        "each row has one publisher"
    );
    assert_eq!(
        listed(&alone, &services[1]),
        (vec![1, 2], 2),
        "one is not back yet"
    );
    publish(&alone, arrived, &services[0], &[2]);
    assert_eq!(
        listed(&alone, &services[0]),
        (vec![2], 1),
        "what it withdraws is gone at once"
    );
    publish(&alone, arrived, &services[1], &[1, 2]);
    alone.run(2_500);
    assert_eq!(
        alone
            .node
            .metrics(clock(alone.now))
            .get("rollcall_clients_moving"),
        Some(0)
    );
    alone.close(arrived);
    alone.run(1);
    for service in &services {
        assert_eq!(listed(&alone, service), (vec![], 0), "it was not asked to move");
    }
}

/// KF-061: what is not registered anew goes with the grace, and only clients that were asked have one.
#[test]
fn instances_of_clients_that_gave_up_a_node_that_stood_still_stay_until_they_are_registered_anew() {
    let mut alone = Alone::new();
    let service = ServiceKey::new("public", "DEFAULT_GROUP", "s");
    let register = |alone: &Alone, id, port| {
        let instances = vec![Instance::at("10.2.0.1", port)];
        let mut actions = Actions::default();
        let node = &alone.node;
        node.register(id, &service, instances, clock(alone.now), &mut actions)
            .unwrap();
    };
    let n_listed = |alone: &Alone| alone.node.query(&service, clock(alone.now)).unwrap().view.len();
    let stay = |alone: &mut Alone, alive: &[ConnectionId], seconds: u64| {
        for _ in 0..seconds {
            for id in alive {
                alone.node.touch(*id, clock(alone.now)).unwrap();
            }
            alone.run(1_000);
        }
    };
    let clients: Vec<_> = (1..=3)
        .map(|_| alone.connect("10.1.0.1", true).unwrap())
        .collect();
    for (id, port) in clients.iter().zip(1..) {
        register(&alone, *id, port);
    }
    alone.run(100);
    // The node finds out by the first closed connection, or by its tick: whichever comes first.
    alone.now += 10_000;
    alone.close(clients[0]);
    alone.run(1_000);
    alone.close(clients[1]);
    assert_eq!(n_listed(&alone), 3);
    let anew = alone.connect("10.1.0.1", true).unwrap();
    register(&alone, anew, 1);
    alone.run(1_000);
    assert_eq!(n_listed(&alone), 3);
    let alive = [clients[2], anew];
    stay(&mut alone, &alive, 15);
    assert_eq!(n_listed(&alone), 2, "the second never came back");
    stay(&mut alone, &alive, 20);
    alone.close(anew);
    alone.run(1);
    assert_eq!(
        n_listed(&alone),
        1,
        "long after, a closed connection is the end of a client"
    );
}

#[test]
fn kf_061_a_client_that_was_asked_to_move_and_never_arrives_is_gone_after_the_grace() {
    let mut alone = Alone::new();
    let service = ServiceKey::new("", "", "s");
    let open = |alone: &Alone, port| {
        let id = alone.connect("10.0.0.9", true).unwrap();
        publish(alone, id, &service, &[port]);
        id
    };
    let ask = |alone: &Alone, n: usize| {
        let id = format!("10.0.0.9-{n}");
        let actions = &mut Actions::default();
        assert!(alone.node.reset_connection(&id, None, clock(alone.now), actions));
    };
    let (asked, stayed, unasked) = (open(&alone, 1), open(&alone, 2), open(&alone, 3));
    ask(&alone, 0);
    ask(&alone, 1);
    alone.close(asked);
    alone.close(unasked);
    alone.run(1);
    assert_eq!(listed(&alone, &service).0, [1, 2]);
    for _ in 0..14 {
        alone.run(1_000);
        alone.node.touch(stayed, clock(alone.now)).unwrap();
    }
    assert_eq!(listed(&alone, &service).0, [1, 2]);
    alone.run(1_100);
    assert_eq!(listed(&alone, &service).0, [2], "its grace is over");
    for _ in 0..16 {
        alone.node.touch(stayed, clock(alone.now)).unwrap();
        alone.run(1_000);
    }
    alone.close(stayed);
    alone.run(1);
    assert_eq!(
        listed(&alone, &service).0,
        [] as [u16; 0],
        "it was asked too long ago"
    );
}

/// A member that hangs counts as living for some seconds: clients are sent to those that have answered meanwhile.
#[test]
fn clients_are_sent_to_members_that_were_heard_from_lately() {
    const LIVES: &str = "10.0.0.2:8848";
    const HANGS: &str = "10.0.0.3:8848";
    let member = |address| {
        let mut config = NodeConfig::new(address, &["10.0.0.1:8848", LIVES, HANGS], 1);
        config.gate_limit = Millis(0);
        let node = Node::new(config, 1, clock(0));
        node.tick(clock(1), &mut Actions::default());
        Alone { node, now: 1 }
    };
    let mut here = member("10.0.0.1:8848");
    let answers = |here: &Alone, address: &'static str| {
        let (now, actions) = (clock(here.now), &mut Actions::default());
        let answer = ProbeResult::Answer(member(address).node.own_probe(now));
        here.node.probe_done(MemberId::of(address), answer, now, actions);
    };
    let named = |here: &Alone, heard_since| {
        let mut actions = Actions::default();
        here.node.reset_connections(Millis(heard_since), &mut actions);
        let named = resets(actions).into_iter().filter_map(|(_, _, to)| to);
        named.collect::<std::collections::BTreeSet<_>>()
    };
    answers(&here, LIVES);
    answers(&here, HANGS);
    for _ in 0..4 {
        here.connect("10.1.0.1", true).unwrap();
    }
    assert_eq!(named(&here, 0).len(), 2);
    here.now = 900;
    answers(&here, LIVES);
    assert_eq!(Vec::from_iter(named(&here, 800)), [LIVES]);
    assert_eq!(named(&here, 901).len(), 2, "nobody was heard from since");
    // Whoever is asked to move by an operator is sent to one that answered within the last period of probes.
    here.now = 1_500;
    let asked = here.shed(1, None);
    assert_eq!(asked.len(), 3);
    assert!(
        asked.iter().all(|(_, _, to)| to.as_deref() == Some(LIVES)),
        "{asked:?}"
    );
}
