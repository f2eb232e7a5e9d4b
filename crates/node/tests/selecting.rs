//! Which instances a reader gets, against a slow model of `spec/validation.md` §8 and §9 that is written out step by
//! step: overrides, clusters, disabled and unhealthy instances, the protection threshold, and the order.
//!
//! A failing input is printed and kept in `proptest-regressions/selecting.txt`, which is read first.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rollcall_core::registry::change::{Override, OverrideEdit};
use rollcall_core::registry::records::ServiceSettings;
use rollcall_core::registry::view::HostEncoder;
use rollcall_core::{Instance, Metadata, Millis, Now, Selection, ServiceKey};
use rollcall_node::request::RowTarget;
use rollcall_node::{Action, Actions, HttpWrite, Node, NodeConfig, NodeError, Ticket, WriteDone};

const CLUSTERS: [&str; 4] = ["DEFAULT", "c1", "c2", "C1"];

const IPS: [&str; 4] = ["10.0.0.9", "10.0.0.10", "2001:db8::10", "node-1.example.test"];

/// What is done to a service before it is read.
#[derive(Clone, Debug)]
enum Step {
    Register(Row),
    /// An operator's values for the row, which may not be there.
    Override(Row),
    Deregister(Row),
}

/// A row as a publisher or an operator gives it.
#[derive(Clone, Debug)]
struct Row {
    key: (usize, u16, usize),
    weight: f64,
    enabled: bool,
    healthy: bool,
    pair: Option<(&'static str, &'static str)>,
}

fn row() -> impl Strategy<Value = Row> {
    let pair = prop_oneof![
        Just(None),
        Just(Some(("lane", "a"))),
        Just(Some(("lane", "b"))),
        Just(Some(("v", "1")))
    ];
    let weight = prop_oneof![Just(0.0), Just(1.0), Just(0.25), Just(10_000.0)];
    let key = (0..IPS.len(), 1u16..4, 0..CLUSTERS.len());
    let flags = (proptest::bool::weighted(0.8), proptest::bool::weighted(0.6));
    (key, weight, flags, pair).prop_map(|(key, weight, (enabled, healthy), pair)| Row {
        key,
        weight,
        enabled,
        healthy,
        pair,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => row().prop_map(Step::Register),
        2 => row().prop_map(Step::Override),
        1 => row().prop_map(Step::Deregister),
    ]
}

/// A comma list as a client might send it, elements not trimmed.
fn clusters() -> impl Strategy<Value = String> {
    let element = prop_oneof![
        4 => proptest::sample::select(CLUSTERS.to_vec()),
        1 => Just(" c1"),
        1 => Just("zz"),
    ];
    let list = proptest::collection::vec(element, 1..4).prop_map(|list| list.join(","));
    prop_oneof![2 => Just(String::new()), 1 => Just("  ".to_owned()), 5 => list]
}

/// The settings of the service: none, or a threshold.
fn threshold() -> impl Strategy<Value = Option<f64>> {
    proptest::option::weighted(
        0.8,
        prop_oneof![
            proptest::sample::select(vec![-1.0, 0.0, 0.25, 1.0 / 3.0, 0.5, 0.8, 1.0, 2.0]),
            -0.5..1.5
        ],
    )
}

// === the model ===

/// What is known of a row in the model: what was published, and what an operator laid over it.
#[derive(Clone, Debug)]
struct Held {
    published: Row,
    over: Option<Row>,
}

/// A host as a reader sees it.
#[derive(Clone, PartialEq, Debug)]
struct Host {
    ip: String,
    port: u16,
    cluster: String,
    weight: f64,
    healthy: bool,
    metadata: BTreeMap<String, String>,
}

#[derive(Default)]
struct Model(BTreeMap<(usize, u16, usize), Held>);

impl Model {
    /// Whether the step succeeds.
    fn take(&mut self, step: &Step) -> bool {
        match step {
            Step::Register(row) => {
                let over = self.0.get(&row.key).and_then(|held| held.over.clone());
                let published = row.clone();
                self.0.insert(row.key, Held { published, over });
                true
            }
            Step::Override(row) => match self.0.get_mut(&row.key) {
                Some(held) => {
                    held.over = Some(row.clone());
                    true
                }
                None => false,
            },
            // A deregistration ends what an operator set; one of nothing is no failure.
            Step::Deregister(row) => {
                self.0.remove(&row.key);
                true
            }
        }
    }

    /// §9, steps 1 to 7.
    fn read(&self, clusters: &str, healthy_only: bool, threshold: Option<f64>) -> (Vec<Host>, bool) {
        // 1. Collect, with what operators set: weight and enabled are replaced, metadata laid over.
        let mut collected = Vec::new();
        for ((ip, port, cluster), held) in &self.0 {
            let shown = held.over.as_ref().unwrap_or(&held.published);
            let mut metadata = BTreeMap::new();
            for row in [Some(&held.published), held.over.as_ref()].into_iter().flatten() {
                if let Some((key, value)) = row.pair {
                    metadata.insert(key.to_owned(), value.to_owned());
                }
            }
            let host = Host {
                ip: IPS[*ip].to_owned(),
                port: *port,
                cluster: CLUSTERS[*cluster].to_owned(),
                weight: shown.weight,
                healthy: held.published.healthy,
                metadata,
            };
            collected.push((host, shown.enabled));
        }
        // 3. Walk: clusters, enabled, healthy.
        let is_blank = clusters.chars().all(char::is_whitespace);
        let named: BTreeSet<&str> = clusters.split(',').collect();
        let mut result = Vec::new();
        for (host, enabled) in collected {
            let in_cluster = is_blank || named.contains(host.cluster.as_str());
            if in_cluster && enabled && (!healthy_only || host.healthy) {
                result.push(host);
            }
        }
        // Ours has an order: address, port, cluster.
        result.sort_by(|a, b| (&a.ip, a.port, &a.cluster).cmp(&(&b.ip, b.port, &b.cluster)));
        // 4. Without settings this is all.
        let Some(threshold) = threshold else {
            return (result, false);
        };
        // 6. Protection, over what is left, and never for an empty list.
        let threshold = if threshold < 0.0 { 0.0 } else { threshold };
        let n_healthy = result.iter().filter(|host| host.healthy).count();
        let is_protected = !result.is_empty() && n_healthy as f64 / result.len() as f64 <= threshold;
        if is_protected {
            for host in &mut result {
                host.healthy = true;
            }
        }
        (result, is_protected)
    }
}

// === ours ===

fn clock() -> Now {
    Now::at(Millis(1_000), Millis(1_700_000_000_000))
}

fn service() -> ServiceKey {
    ServiceKey::new("", "", "s")
}

fn metadata(row: &Row) -> Metadata {
    Metadata::from_pairs(row.pair.map(|(key, value)| (key.into(), value.into())))
}

fn target(row: &Row) -> RowTarget {
    RowTarget {
        ip: IPS[row.key.0].into(),
        port: row.key.1,
        cluster: Some(CLUSTERS[row.key.2].into()),
    }
}

fn alone(threshold: Option<f64>) -> Node {
    let config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
    let node = Node::new(config, 1, clock());
    node.tick(clock(), &mut Actions::default());
    if let Some(protect_threshold) = threshold {
        let settings = ServiceSettings {
            protect_threshold,
            metadata: Metadata::default(),
            selector: "".into(),
            is_ephemeral: true,
        };
        node.create_service(&service(), settings, clock(), &mut Actions::default())
            .unwrap();
    }
    node
}

/// Whether the step succeeds.
fn carry_out(node: &Node, step: &Step) -> bool {
    let write = match step {
        Step::Register(row) => {
            let mut instance = Instance::at(IPS[row.key.0], row.key.1);
            instance.cluster = CLUSTERS[row.key.2].into();
            instance.weight = row.weight;
            instance.enabled = row.enabled;
            instance.healthy = row.healthy;
            instance.metadata = metadata(row);
            HttpWrite::Register {
                service: service(),
                instance,
            }
        }
        Step::Override(row) => HttpWrite::Update {
            service: service(),
            target: target(row),
            edit: OverrideEdit::Replace(Override {
                weight: row.weight,
                enabled: row.enabled,
                metadata: metadata(row),
            }),
        },
        Step::Deregister(row) => HttpWrite::Deregister {
            service: service(),
            target: target(row),
        },
    };
    let mut actions = Actions::default();
    node.write(Ticket(1), write, clock(), &mut actions);
    let answer = actions.0.into_iter().find_map(|action| match action {
        Action::Answer { result, .. } => Some(result),
        _ => None,
    });
    match answer.expect("a node alone answers at once") {
        Ok(WriteDone::Ok) => true,
        Err(NodeError::InstanceNotFound | NodeError::ServiceNotFound { .. }) => false,
        other => panic!("{other:?}"),
    }
}

fn host(instance: &Instance) -> Host {
    let pairs = instance.metadata.iter();
    Host {
        ip: instance.ip.to_string(),
        port: instance.port,
        cluster: instance.cluster.to_string(),
        weight: instance.weight,
        healthy: instance.healthy,
        metadata: pairs
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect(),
    }
}

/// Writes what the model compares, as text.
struct Plain;

impl HostEncoder for Plain {
    fn encode(&self, _: &ServiceKey, instance: &Instance, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{:?}", host(instance)).as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("proptest-regressions/selecting.txt"))),
        ..ProptestConfig::default()
    })]

    /// Whatever was registered, laid over and removed: each reader gets what the model says, in order, with the flag,
    /// and the encoded answer, made and kept, is the same.
    /// KF-046: the protection threshold is for clients, not for who asks for healthy ones, not for operators.
    #[test]
    fn each_reader_gets_what_the_rules_say(
        steps in proptest::collection::vec(step(), 0..40),
        threshold in threshold(),
        readers in proptest::collection::vec((clusters(), proptest::bool::ANY), 1..6),
    ) {
        let (node, mut model) = (alone(threshold), Model::default());
        for step in &steps {
            prop_assert_eq!(carry_out(&node, step), model.take(step), "{:?}", step);
        }
        let view = node.query(&service(), clock()).unwrap().view;
        for (clusters, healthy_only) in &readers {
            let (wanted, is_protected) = model.read(clusters, *healthy_only, threshold);
            let selection = Selection { clusters, healthy_only: *healthy_only };
            let selected = view.select(&selection);
            let hosts: Vec<Host> = selected.instances.iter().map(|instance| host(instance)).collect();
            prop_assert_eq!(&hosts, &wanted);
            prop_assert_eq!(selected.reach_protection, is_protected);
            let texts: Vec<String> = wanted.iter().map(|host| format!("{host:?}")).collect();
            // Made, then answered from what is kept.
            for _ in 0..2 {
                let encoded = view.encoded(&selection, &Plain);
                prop_assert_eq!(std::str::from_utf8(&encoded.hosts).unwrap(), texts.join(","));
                prop_assert_eq!(encoded.reach_protection, is_protected);
            }
        }
    }
}
