//! What a single node tells clients that watch services by a pattern, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Instance, Millis, Now, ServiceKey};
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, FuzzyMessage, Node, NodeConfig, NodeError,
};

struct Alone {
    node: Node,
    provider: ConnectionId,
    client: ConnectionId,
    now: u64,
}

type Told = (u64, FuzzyMessage);

impl Alone {
    fn new() -> Self {
        let config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
        let node = Node::new(config, 1, clock(0));
        node.tick(clock(1), &mut Actions::default());
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let open = || {
            node.open_connection(info.clone(), clock(1), &mut Actions::default())
                .unwrap()
        };
        let (provider, client) = (open(), open());
        Alone {
            provider,
            client,
            node,
            now: 1,
        }
    }

    fn publish(&self, name: &str, is_there: bool) {
        let instances = if is_there {
            vec![Instance::at("10.1.0.1", 80)]
        } else {
            Vec::new()
        };
        let actions = &mut Actions::default();
        self.node
            .register(self.provider, &service(name), instances, clock(self.now), actions)
            .unwrap();
    }

    fn watch(&self, pattern: &str, held: &[&str], is_initial: bool) -> Result<bool, NodeError> {
        let held = held.iter().map(|name| service(name)).collect();
        let actions = &mut Actions::default();
        self.node
            .watch_pattern(self.client, pattern, held, is_initial, clock(self.now), actions)
    }

    fn ack(&self, request_id: u64, is_ok: bool) {
        let actions = &mut Actions::default();
        self.node
            .push_acked(self.client, request_id, is_ok, clock(self.now), actions);
    }

    /// Lets time pass; both clients show life.
    fn run(&mut self, ms: u64) -> Vec<Told> {
        let mut told = Vec::new();
        for _ in 0..ms {
            self.now += 1;
            let mut actions = Actions::default();
            self.node.touch(self.provider, clock(self.now)).unwrap();
            let _ = self.node.touch(self.client, clock(self.now)); // It may have gone.
            self.node.tick(clock(self.now), &mut actions);
            for action in actions.0 {
                if let Action::Fuzzy {
                    request_id, message, ..
                } = action
                {
                    told.push((request_id, *message));
                }
            }
        }
        told
    }

    /// Lets time pass and acknowledges everything.
    fn run_acking(&mut self, ms: u64) -> Vec<FuzzyMessage> {
        let mut all = Vec::new();
        for _ in 0..ms {
            for (request_id, message) in self.run(1) {
                self.ack(request_id, true);
                all.push(message);
            }
        }
        all
    }
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

fn service(name: &str) -> ServiceKey {
    ServiceKey::new("", "G", name)
}

fn finished() -> FuzzyMessage {
    FuzzyMessage::Finished { pattern: ALL.into() }
}

fn changed(name: &str, has_instance: bool) -> FuzzyMessage {
    FuzzyMessage::Changed {
        service: service(name),
        has_instance,
    }
}

const ALL: &str = "public>>G>>s*";

#[test]
fn a_new_watch_is_told_all_that_is_there_in_batches_and_then_that_this_was_all() {
    let mut alone = Alone::new();
    for n in 0..25 {
        alone.publish(&format!("s{n:02}"), true);
    }
    alone.publish("other", true);
    assert_eq!(alone.watch(ALL, &[], true), Ok(false));
    let told = alone.run_acking(2_000);
    let batches: Vec<_> = told
        .iter()
        .map(|message| match message {
            FuzzyMessage::Sync {
                added,
                n_batches,
                batch,
                is_initial: true,
                ..
            } => (added.len(), *batch, *n_batches),
            _ => (0, 0, 0),
        })
        .collect();
    assert_eq!(batches, [(10, 1, 3), (10, 2, 3), (5, 3, 3), (0, 0, 0)]);
    assert_eq!(told.last(), Some(&finished()));
    assert!(alone.run(2_000).is_empty());
}

#[test]
fn a_watch_without_a_match_is_told_that_this_was_all_if_it_is_new() {
    let mut alone = Alone::new();
    alone.watch(ALL, &[], true).unwrap();
    assert_eq!(alone.run_acking(100), [finished()]);
    alone.watch(ALL, &[], false).unwrap();
    assert!(alone.run_acking(2_000).is_empty());
}

#[test]
fn services_that_come_and_go_are_told_one_by_one() {
    let mut alone = Alone::new();
    alone.watch(ALL, &[], true).unwrap();
    alone.run_acking(100);
    alone.publish("s1", true);
    alone.publish("s2", true);
    assert_eq!(
        alone.run_acking(2_000),
        [changed("s1", true), changed("s2", true)]
    );
    alone.publish("s1", false);
    assert_eq!(alone.run_acking(2_000), [changed("s1", false)]);
    // That it leaves the lists of services, later, is no news.
    assert!(alone.run_acking(100_000).is_empty());
    alone.publish("s1", true);
    assert_eq!(alone.run_acking(2_000), [changed("s1", true)]);
}

#[test]
fn what_a_client_holds_is_compared_both_ways() {
    let mut alone = Alone::new();
    alone.publish("s1", true);
    alone.publish("s2", true);
    alone.watch(ALL, &["s2", "s3"], false).unwrap();
    let told = alone.run_acking(1_000);
    let expected = FuzzyMessage::Sync {
        pattern: ALL.into(),
        is_initial: false,
        added: vec![service("s1")],
        n_batches: 1,
        batch: 1,
    };
    assert_eq!(told, [expected, changed("s3", false)]);
    alone.watch(ALL, &["s1", "s2", "s4"], false).unwrap();
    assert_eq!(alone.run_acking(1_000), [changed("s4", false)]);
}

#[test]
fn what_is_refused_or_not_answered_is_told_again_ever_more_rarely() {
    let mut alone = Alone::new();
    alone.watch(ALL, &[], true).unwrap();
    let first = alone.run(100);
    alone.ack(first[0].0, false);
    assert!(alone.run(900).is_empty());
    let second = alone.run(200);
    assert_eq!(second.len(), 1);
    // Nothing for 5 s, then a pause of 2 s.
    assert!(alone.run(6_800).is_empty());
    let third = alone.run(300);
    assert_eq!(third.len(), 1);
    // An answer to the second one is too late to mean anything.
    alone.ack(second[0].0, true);
    alone.ack(third[0].0, true);
    assert!(alone.run(20_000).is_empty());
}

#[test]
fn a_watch_ends_when_it_is_cancelled_and_with_its_connection() {
    let mut alone = Alone::new();
    alone.watch(ALL, &[], true).unwrap();
    alone.run_acking(100);
    alone
        .node
        .unwatch_pattern(alone.client, ALL, clock(alone.now))
        .unwrap();
    alone.publish("s1", true);
    assert!(alone.run(2_000).is_empty());
    alone.watch(ALL, &[], true).unwrap();
    alone
        .node
        .close_connection(alone.client, clock(alone.now), &mut Actions::default());
    assert!(alone.run(2_000).is_empty());
    assert_eq!(
        alone.node.metrics(clock(alone.now)).get("rollcall_fuzzy_watches"),
        Some(0)
    );
    assert_eq!(alone.watch(ALL, &[], true), Err(NodeError::UnknownConnection));
}

#[test]
fn patterns_and_their_matches_are_bounded() {
    let mut alone = Alone::new();
    for n in 0..20 {
        alone.watch(&format!("public>>G>>x{n}*"), &[], true).unwrap();
    }
    assert_eq!(alone.watch(ALL, &[], true), Err(NodeError::TooManyPatterns));
    assert_eq!(alone.watch("public>>G>>x1*", &[], true), Ok(false));
    assert!(matches!(
        alone.watch("public>>G", &[], true),
        Err(NodeError::BadPattern(_))
    ));
    for n in 0..600 {
        alone.publish(&format!("x1-{n:03}"), true);
    }
    assert_eq!(alone.watch("public>>G>>x1*", &["x1-zzz"], false), Ok(true));
    let n_told: usize = alone
        .run_acking(3_000)
        .iter()
        .map(|message| match message {
            FuzzyMessage::Sync { added, .. } => added.len(),
            FuzzyMessage::Changed { .. } => {
                panic!("where more match than are told, nobody can say what has gone")
            }
            FuzzyMessage::Finished { .. } => 0,
        })
        .sum();
    assert_eq!(n_told, 500);
}
