//! How many connections a node takes, and whom it asks to move, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Millis, Now};
use rollcall_node::{Action, Actions, ConnectionId, ConnectionInfo, Node, NodeConfig, NodeError};

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
