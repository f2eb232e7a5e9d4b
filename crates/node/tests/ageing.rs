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
        Alone::with(NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1))
    }

    fn with(config: NodeConfig) -> Self {
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

// === The brake on mass expiry (`spec/health.md` §9, H3) ===

const FLEET: u16 = 1_000;

/// A node with a fleet that has beaten for half a minute.
fn fleet() -> Alone {
    let mut alone = Alone::new();
    for port in 0..FLEET {
        alone.register(&service("fleet"), at("10.1.0.1", port));
    }
    beaten(&mut alone, 30 * SECOND, |_| true, |_| ());
    assert!(fleet_health(&alone).iter().all(|healthy| *healthy == Some(true)));
    alone
}

/// Lets time pass in which those that `beats` names beat every five seconds, spread evenly; looks at the node each
/// second.
fn beaten(alone: &mut Alone, time: u64, beats: impl Fn(u16) -> bool, mut look: impl FnMut(&Alone)) {
    for step in 0..time / STEP {
        for port in (0..FLEET).filter(|port| u64::from(*port) % 50 == step % 50 && beats(*port)) {
            alone.beat(&service("fleet"), &at("10.1.0.1", port));
        }
        alone.pass(STEP);
        if step % 10 == 9 {
            look(alone);
        }
    }
}

/// By port: healthy, unhealthy, or gone.
fn fleet_health(alone: &Alone) -> Vec<Option<bool>> {
    let listed: BTreeMap<u16, bool> = alone.listed(&service("fleet")).into_iter().collect();
    (0..FLEET).map(|port| listed.get(&port).copied()).collect()
}

fn gauge(alone: &Alone, name: &str) -> u64 {
    alone.node.metrics(clock(alone.now)).get(name).unwrap()
}

#[test]
fn a_fleet_that_is_not_heard_for_twenty_seconds_stays_healthy() {
    for share in [FLEET, FLEET * 2 / 5] {
        let mut alone = fleet();
        let mut most_held = 0;
        beaten(
            &mut alone,
            20 * SECOND,
            |port| port >= share,
            |alone| {
                assert!(fleet_health(alone).iter().all(|healthy| *healthy == Some(true)));
                most_held = most_held.max(gauge(alone, "rollcall_verdicts_held"));
            },
        );
        assert!(most_held > u64::from(share) / 2, "{most_held}");
        beaten(
            &mut alone,
            60 * SECOND,
            |_| true,
            |alone| {
                assert!(fleet_health(alone).iter().all(|healthy| *healthy == Some(true)));
            },
        );
        assert_eq!(gauge(&alone, "rollcall_expiry_brakes"), 1);
        assert_eq!(
            (
                gauge(&alone, "rollcall_verdicts_held"),
                gauge(&alone, "rollcall_beats_silent")
            ),
            (0, 0)
        );
    }
}

#[test]
fn a_fleet_that_is_dead_goes_one_time_out_later() {
    let mut alone = fleet();
    let died = alone.now;
    let (mut unhealthy_from, mut gone_from) = (None, None);
    beaten(
        &mut alone,
        60 * SECOND,
        |_| false,
        |alone| {
            let health = fleet_health(alone);
            let since = alone.now - died;
            if health.contains(&Some(false)) {
                unhealthy_from.get_or_insert(since);
            }
            if health.contains(&None) {
                gone_from.get_or_insert(since);
            }
            assert!(since < 31 * SECOND || !health.contains(&Some(true)), "{since}");
            assert!(
                since < 47 * SECOND || health.iter().all(Option::is_none),
                "{since}"
            );
        },
    );
    let (unhealthy, gone) = (unhealthy_from.unwrap(), gone_from.unwrap());
    assert!((25 * SECOND..=31 * SECOND).contains(&unhealthy), "{unhealthy}");
    assert!((40 * SECOND..=46 * SECOND).contains(&gone), "{gone}");
}

#[test]
fn one_of_a_fleet_goes_on_schedule_and_so_do_twenty() {
    for n_dead in [1, 20] {
        let mut alone = fleet();
        let died = alone.now;
        let mut times = [None; 2];
        beaten(
            &mut alone,
            40 * SECOND,
            |port| port >= n_dead,
            |alone| {
                let health = fleet_health(alone);
                for (time, state) in times.iter_mut().zip([Some(false), None]) {
                    if health[..usize::from(n_dead)].iter().all(|seen| *seen <= state) {
                        time.get_or_insert(alone.now - died);
                    }
                }
            },
        );
        // The last beats came within the five seconds before.
        let last_beats = times.map(|time| time.unwrap() + 5 * SECOND);
        is_on_schedule((last_beats[0], last_beats[1]));
        assert_eq!(gauge(&alone, "rollcall_expiry_brakes"), 0);
    }
}

/// Who was never heard after it was registered is judged as ever, whatever else is silent.
#[test]
fn during_the_brake_others_are_judged_normally() {
    let mut alone = fleet();
    alone.register(&service("mute"), at("10.1.0.2", 1));
    let registered = alone.now;
    let mut times = [None; 2];
    beaten(
        &mut alone,
        33 * SECOND,
        |port| port >= FLEET / 2,
        |alone| {
            let mute = alone.listed(&service("mute"));
            for (time, is_so) in times
                .iter_mut()
                .zip([mute.first().is_none_or(|m| !m.1), mute.is_empty()])
            {
                if is_so {
                    time.get_or_insert(alone.now - registered);
                }
            }
        },
    );
    is_on_schedule((times[0].unwrap(), times[1].unwrap()));
    assert_eq!(gauge(&alone, "rollcall_expiry_brakes"), 1);
}

#[test]
fn without_the_brake_a_fleet_goes_at_once() {
    let mut config = NodeConfig::new("10.0.0.1:8848", &["10.0.0.1:8848"], 1);
    config.expiry_brake = 0;
    let mut alone = Alone::with(config);
    for port in 0..FLEET {
        alone.register(&service("fleet"), at("10.1.0.1", port));
    }
    beaten(&mut alone, 30 * SECOND, |_| true, |_| ());
    beaten(&mut alone, 17 * SECOND, |_| false, |_| ());
    assert!(fleet_health(&alone).iter().all(|healthy| *healthy == Some(false)));
}

/// Connections whose clients say something every five seconds, and at some moment nothing any more: how many are left
/// after so many seconds. `n_closed` of them are closed by their clients at that moment.
fn connections_left(n: usize, n_silent: usize, n_closed: usize, silence: u64) -> usize {
    let mut alone = Alone::new();
    let all: Vec<ConnectionId> = (0..n).map(|_| alone.connect()).collect();
    let talk = |alone: &mut Alone, time: u64, from: usize| {
        for step in 0..time / STEP {
            for (at, connection) in all.iter().enumerate().skip(from) {
                if at as u64 % 50 == step % 50 {
                    let _ = alone.node.touch(*connection, clock(alone.now));
                }
            }
            alone.pass(STEP);
        }
    };
    talk(&mut alone, 10 * SECOND, 0);
    for connection in &all[..n_closed] {
        let (now, actions) = (clock(alone.now), &mut Actions::default());
        alone.node.close_connection(*connection, now, actions);
    }
    talk(&mut alone, silence, n_silent);
    let left = alone.node.n_connections();
    talk(&mut alone, 60 * SECOND, 0);
    let (held, silent) = ("rollcall_verdicts_held", "rollcall_connections_silent");
    assert_eq!((gauge(&alone, held), gauge(&alone, silent)), (0, 0));
    left
}

#[test]
fn clients_that_are_all_silent_at_once_are_kept_once_as_long_and_dead_ones_are_not() {
    assert_eq!(connections_left(1_000, 1_000, 0, 20 * SECOND), 1_000, "not heard");
    assert_eq!(
        connections_left(1_000, 500, 0, 20 * SECOND),
        1_000,
        "half is not heard"
    );
    assert_eq!(connections_left(1_000, 1_000, 0, 31 * SECOND), 0, "dead");
    assert_eq!(connections_left(1_000, 1, 0, 17 * SECOND), 999, "one is dead");
    assert_eq!(connections_left(20, 20, 0, 17 * SECOND), 0, "so few are dead");
    assert_eq!(connections_left(1_000, 500, 500, SECOND), 500, "closed is closed");
}
