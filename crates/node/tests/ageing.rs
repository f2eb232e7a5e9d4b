//! What a single node does with instances that beat, with services that empty, and with what all of them leave behind,
//! in virtual time and with the times that hold unless set.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};

use rollcall_core::registry::change::{Override, OverrideEdit};
use rollcall_core::{Instance, Millis, Now, ServiceKey};
use rollcall_node::request::RowTarget;
use rollcall_node::{
    Action, Actions, ConnectionId, ConnectionInfo, Family, HttpWrite, Node, NodeConfig, Ticket, Value,
    WriteDone,
};

const SECOND: u64 = 1_000;

/// Time that passes between two looks.
const STEP: u64 = 100;

struct Alone {
    node: Node,
    now: u64,
}

impl Alone {
    fn new() -> Self {
        let config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
        let mut alone = Alone {
            node: Node::new(config, 1, clock(0)),
            now: 0,
        };
        alone.pass(STEP);
        assert!(alone.node.is_ready());
        alone
    }

    fn write(&self, write: HttpWrite) -> WriteDone {
        let mut actions = Actions::default();
        self.node.write(Ticket(1), write, clock(self.now), &mut actions);
        let answer = actions.0.into_iter().find_map(|action| match action {
            Action::Answer { result, .. } => Some(result),
            _ => None,
        });
        answer.expect("a node alone answers at once").unwrap()
    }

    fn register(&self, service: &ServiceKey, instance: Instance) {
        let service = service.clone();
        assert_eq!(
            self.write(HttpWrite::Register { service, instance }),
            WriteDone::Ok
        );
    }

    fn deregister(&self, service: &ServiceKey, instance: &Instance) {
        let (service, target) = (service.clone(), target(instance));
        assert_eq!(
            self.write(HttpWrite::Deregister { service, target }),
            WriteDone::Ok
        );
    }

    /// A beat without a description; whether the row is known.
    fn beat(&self, service: &ServiceKey, instance: &Instance) -> bool {
        let (service, target) = (service.clone(), target(instance));
        let full = None;
        match self.write(HttpWrite::Beat {
            service,
            target,
            full,
        }) {
            WriteDone::BeatKnown { .. } => true,
            WriteDone::BeatUnknown { .. } => false,
            WriteDone::Ok => panic!("no answer to a beat"),
        }
    }

    fn connect(&self) -> ConnectionId {
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let actions = &mut Actions::default();
        self.node.open_connection(info, clock(self.now), actions).unwrap()
    }

    /// Lets time pass.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / STEP {
            self.now += STEP;
            self.node.tick(clock(self.now), &mut Actions::default());
        }
    }

    /// Ports and health of what is listed.
    fn listed(&self, service: &ServiceKey) -> Vec<(u16, bool)> {
        let answer = self.node.query(service, clock(self.now)).unwrap();
        answer.view.instances().map(|i| (i.port, i.healthy)).collect()
    }
}

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

fn service(name: &str) -> ServiceKey {
    ServiceKey::new("", "", name)
}

fn at(ip: &str, port: u16) -> Instance {
    Instance::at(ip, port)
}

fn target(instance: &Instance) -> RowTarget {
    RowTarget {
        ip: instance.ip.clone(),
        port: instance.port,
        cluster: Some(instance.cluster.clone()),
    }
}

/// Time after its last beat at which an instance is shown unhealthy, and at which it is gone, while others beat.
fn decline(alone: &mut Alone, of: (&ServiceKey, u16), others: &[(&ServiceKey, Instance)]) -> (u64, u64) {
    let last_beat = alone.now;
    let mut unhealthy = None;
    loop {
        alone.pass(STEP);
        let since = alone.now - last_beat;
        if since.is_multiple_of(5 * SECOND) {
            assert!(others.iter().all(|(service, other)| alone.beat(service, other)));
        }
        match alone.listed(of.0).iter().find(|(port, _)| *port == of.1) {
            Some((_, true)) => assert_eq!(unhealthy, None, "healthy again"),
            Some((_, false)) => _ = unhealthy.get_or_insert(since),
            None => return (unhealthy.expect("it goes without turning unhealthy"), since),
        }
        assert!(since < 60 * SECOND, "it never goes");
    }
}

fn is_on_schedule((unhealthy, gone): (u64, u64)) {
    assert!((15 * SECOND..=20 * SECOND).contains(&unhealthy), "{unhealthy}");
    assert!((30 * SECOND..=36 * SECOND).contains(&gone), "{gone}");
}

/// KF-004: a host name declines by the same times as an address does.
#[test]
fn kf_004_a_host_name_declines_on_schedule() {
    for ip in ["node-1.example.test", "localhost", "192.0.2.1", "2001:db8::10"] {
        let mut alone = Alone::new();
        alone.register(&service("s"), at(ip, 8091));
        is_on_schedule(decline(&mut alone, (&service("s"), 8091), &[]));
        assert!(!alone.beat(&service("s"), &at(ip, 8091)), "{ip}");
    }
}

/// KF-041: instances that beat every five seconds are never shown unhealthy while others of their service come and go
/// ten times a second.
#[test]
fn kf_041_who_beats_stays_healthy_while_others_come_and_go() {
    const STEADY: u16 = 375;
    let mut alone = Alone::new();
    let service = service("busy");
    for port in 0..STEADY {
        alone.register(&service, at("10.1.0.1", port));
    }
    for step in 0..120 * SECOND / STEP {
        let passing = at("10.1.0.2", 9_000);
        match step % 2 {
            0 => alone.register(&service, passing),
            _ => alone.deregister(&service, &passing),
        }
        // Each beats every 50 steps, spread evenly.
        for port in (0..STEADY).filter(|port| u64::from(*port) % 50 == step % 50) {
            assert!(alone.beat(&service, &at("10.1.0.1", port)), "{port} is unknown");
        }
        alone.pass(STEP);
        let listed = alone.listed(&service);
        let steady = listed.iter().filter(|(port, healthy)| *port < STEADY && *healthy);
        assert_eq!(steady.count(), usize::from(STEADY), "after {step} steps");
    }
}

/// KF-042: an address that moves to another service leaves the first on schedule, whatever it beats for now.
#[test]
fn kf_042_beats_for_one_service_are_none_for_another() {
    let mut alone = Alone::new();
    let (former, latter) = (service("svc-a"), service("svc-b"));
    let instance = at("192.0.2.70", 8080);
    alone.register(&former, instance.clone());
    alone.pass(10 * SECOND);
    assert!(alone.beat(&former, &instance));
    alone.register(&latter, instance.clone());
    is_on_schedule(decline(
        &mut alone,
        (&former, 8080),
        &[(&latter, instance.clone())],
    ));
    for _ in 0..24 {
        assert!(alone.beat(&latter, &instance));
        alone.pass(5 * SECOND);
        assert_eq!(alone.listed(&latter), [(8080, true)]);
        assert!(alone.listed(&former).is_empty());
    }
}

/// KF-043: of two instances each goes on schedule after its last beat, the last one of its service too.
#[test]
fn kf_043_the_last_instance_goes_on_schedule_too() {
    let mut alone = Alone::new();
    let service = service("pair");
    let (first, second) = (at("10.1.0.1", 1), at("10.1.0.1", 2));
    alone.register(&service, first);
    alone.register(&service, second.clone());
    is_on_schedule(decline(&mut alone, (&service, 1), &[(&service, second.clone())]));
    for _ in 0..12 {
        assert!(alone.beat(&service, &second));
        alone.pass(5 * SECOND);
    }
    assert!(alone.beat(&service, &second));
    is_on_schedule(decline(&mut alone, (&service, 2), &[]));
    assert!(alone.listed(&service).is_empty());
}

/// KF-096: services whose instances all left, by a word, by silence or with their connection, are listed no longer than
/// three minutes.
#[test]
fn kf_096_services_that_emptied_leave_the_catalogue() {
    let mut alone = Alone::new();
    let connection = alone.connect();
    for n in 0..1_000 {
        let service = service(&format!("s{n}"));
        match n % 3 {
            0 => {
                alone.register(&service, at("10.1.0.1", 80));
                alone.deregister(&service, &at("10.1.0.1", 80));
            }
            1 => alone.register(&service, at("10.1.0.1", 80)),
            _ => {
                let (rows, actions) = (vec![at("10.1.0.1", 80)], &mut Actions::default());
                let now = clock(alone.now);
                alone
                    .node
                    .register(connection, &service, rows, now, actions)
                    .unwrap();
            }
        }
    }
    let now = clock(alone.now);
    alone
        .node
        .close_connection(connection, now, &mut Actions::default());
    assert_eq!(alone.node.registry().catalog().len(), 1_000);
    alone.pass(180 * SECOND);
    let page = alone
        .node
        .service_names("public", "DEFAULT_GROUP", 1, 10, clock(alone.now));
    assert_eq!(page.unwrap().count, 0);
    assert_eq!(alone.node.registry().catalog().len(), 0);
}

/// KF-103, as far as a node counts itself: after thousands of instances, services, overrides, clients and subscriptions
/// that come and go, everything that it measures as a size is what it was at the start.
#[test]
fn kf_103_what_comes_and_goes_leaves_no_size_behind() {
    let mut alone = Alone::new();
    let sizes = |alone: &Alone| -> BTreeMap<&'static str, u64> {
        let metrics = alone.node.metrics(clock(alone.now));
        let gauge = |family: &Family| match family.samples.first()?.value {
            Value::Gauge(value) => Some((family.name, value as u64)),
            _ => None,
        };
        metrics.families().iter().filter_map(gauge).collect()
    };
    alone.pass(10 * SECOND);
    let at_first = sizes(&alone);
    let mut moved = BTreeSet::new();
    for round in 0..200u16 {
        let connection = alone.connect();
        let names: Vec<ServiceKey> = (0..20)
            .map(|n| service(&format!("s{}", round * 20 + n)))
            .collect();
        for (port, service) in (round * 20..).zip(&names) {
            let (now, actions) = (clock(alone.now), &mut Actions::default());
            let instance = at("10.1.0.1", port);
            alone.register(service, instance.clone());
            alone
                .node
                .register(connection, service, vec![at("10.1.0.2", port)], now, actions)
                .unwrap();
            alone
                .node
                .subscribe(connection, service, None, now, actions)
                .unwrap();
            // Half of them leave with a word, which ends what operators set for them, half fall silent.
            if port % 2 == 0 {
                alone.write(HttpWrite::Update {
                    service: service.clone(),
                    target: target(&instance),
                    edit: OverrideEdit::Replace(Override {
                        weight: 2.0,
                        enabled: true,
                        metadata: instance.metadata.clone(),
                    }),
                });
                alone.deregister(service, &instance);
            }
        }
        alone.pass(STEP);
        let seen = sizes(&alone);
        moved.extend(
            seen.iter()
                .filter(|(name, value)| at_first[*name] != **value)
                .map(|(name, _)| *name),
        );
        let now = clock(alone.now);
        alone
            .node
            .close_connection(connection, now, &mut Actions::default());
    }
    for name in [
        "rollcall_instances",
        "rollcall_services",
        "rollcall_subscriptions",
    ] {
        assert!(moved.contains(name), "{name} was never anything else: {moved:?}");
    }
    alone.pass(300 * SECOND);
    let at_last = sizes(&alone);
    let left: Vec<_> = at_first
        .iter()
        .filter(|(name, value)| at_last[*name] > **value)
        .map(|(name, value)| format!("{name} {value} {}", at_last[name]))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
