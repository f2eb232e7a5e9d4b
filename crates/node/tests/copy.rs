//! The copy on disk: when a node asks for it, what it makes of it, and when it wants one written.

#![allow(clippy::unwrap_used)]

use rollcall_core::{Instance, Millis, Now, ServiceKey};
use rollcall_distro::CopyTime;
use rollcall_distro::message::{Frame, Op};
use rollcall_node::{Action, Actions, ConnectionInfo, HttpWrite, Node, NodeConfig, Ticket};

const ME: &str = "10.0.0.1:8848";

fn at(mono: u64) -> Now {
    Now::at(Millis(mono), Millis(1_700_000_000_000 + mono))
}

fn node(copy_period: u64) -> Node {
    let mut config = NodeConfig::new(ME, &[ME], 1);
    config.copy_period = Millis(copy_period);
    Node::new(config, 7, at(0))
}

fn service() -> ServiceKey {
    ServiceKey::new("public", "DEFAULT_GROUP", "s")
}

fn is_asked(actions: &Actions, wanted: fn(&Action) -> bool) -> bool {
    actions.0.iter().any(wanted)
}

fn ticked(node: &Node, mono: u64) -> Actions {
    let mut actions = Actions::default();
    node.tick(at(mono), &mut actions);
    actions
}

fn reads(actions: &Actions) -> bool {
    is_asked(actions, |action| matches!(action, Action::ReadCopy))
}

fn writes(actions: &Actions) -> bool {
    is_asked(actions, |action| matches!(action, Action::WriteCopy))
}

/// Registers one instance of a connection and one that beats.
fn fill(node: &Node, now: Now) {
    let mut actions = Actions::default();
    let info = ConnectionInfo {
        is_naming: true,
        is_sdk: true,
        ..ConnectionInfo::default()
    };
    let id = node.open_connection(info, now, &mut actions).unwrap();
    let instance = Instance::at("10.1.0.1", 80);
    node.register(id, &service(), vec![instance], now, &mut actions)
        .unwrap();
    let write = HttpWrite::Register {
        service: service(),
        instance: Instance::at("10.1.0.2", 80),
    };
    node.write(Ticket(1), write, now, &mut actions);
}

fn listed(node: &Node, mono: u64) -> Vec<String> {
    let view = node.query(&service(), at(mono)).unwrap().view;
    view.instances().map(|i| i.ip.to_string()).collect()
}

#[test]
fn rows_of_a_copy_wait_for_their_clients() {
    let former = node(0);
    assert!(
        !reads(&ticked(&former, 0)),
        "without the setting there is no copy"
    );
    fill(&former, at(0));
    let parts: Vec<_> = former.copy_parts().collect();

    let node = node(10_000);
    assert!(reads(&ticked(&node, 0)));
    assert!(!reads(&ticked(&node, 100)), "it asks once");
    assert!(!node.is_ready(), "it waits for the copy");
    let mut actions = Actions::default();
    for part in parts {
        node.take_copy(part, at(1_000), &mut actions);
    }
    node.copy_taken(at(2_000), &mut actions);
    assert!(node.is_ready());
    assert_eq!(listed(&node, 2_000), ["10.1.0.1", "10.1.0.2"]);
    assert_eq!(node.registry().n_orphans(), 1);
    for mono in (2_000..31_000).step_by(500) {
        ticked(&node, mono);
    }
    assert_eq!(
        listed(&node, 31_000),
        ["10.1.0.1", "10.1.0.2"],
        "the grace is 30 s from being ready"
    );
    for mono in (31_000..34_000).step_by(500) {
        ticked(&node, mono);
    }
    assert!(listed(&node, 34_000).is_empty());
}

#[test]
fn a_copy_that_cannot_be_read_holds_the_start_up_for_a_while_only() {
    let node = node(10_000);
    assert!(reads(&ticked(&node, 0)));
    ticked(&node, 29_000);
    assert!(!node.is_ready());
    ticked(&node, 30_000);
    assert!(node.is_ready());
}

#[test]
fn a_copy_is_written_when_something_has_changed_and_one_at_a_time() {
    let node = node(10_000);
    ticked(&node, 0);
    let mut actions = Actions::default();
    node.copy_taken(at(0), &mut actions);
    assert!(
        writes(&ticked(&node, 1)),
        "the first replaces what an earlier process left"
    );
    fill(&node, at(5_000));
    assert!(
        !writes(&ticked(&node, 20_000)),
        "the first is not on the disk yet"
    );
    node.copy_written();
    assert!(writes(&ticked(&node, 21_000)));
    node.copy_written();
    let beat = |mono| {
        let target = rollcall_node::RowTarget {
            ip: "10.1.0.2".into(),
            port: 80,
            cluster: None,
        };
        let write = HttpWrite::Beat {
            service: service(),
            target,
            full: None,
        };
        node.write(Ticket(mono), write, at(mono), &mut Actions::default());
    };
    let mut written_at = Vec::new();
    for mono in (22_000..400_000).step_by(1_000) {
        beat(mono);
        if writes(&ticked(&node, mono)) {
            written_at.push(mono);
            node.copy_written();
        }
    }
    let gaps: Vec<u64> = written_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(
        gaps.last(),
        Some(&120_000),
        "nothing has changed, and it would grow old: {written_at:?}"
    );
}

#[test]
fn a_copy_that_is_too_old_is_not_used() {
    let node = node(10_000);
    let is_used = |wall: u64| {
        let begun = CopyTime {
            wall: Millis(wall),
            hybrid: Millis(wall),
        };
        node.open_copy(begun, at(0))
    };
    let now = at(0).wall.0;
    assert!(is_used(now) && is_used(now - 599_999) && is_used(now + 599_999));
    assert!(!is_used(now - 600_000) && !is_used(now + 600_000));
}

/// Hybrid time of the last write of the row that beats.
fn stamp(node: &Node) -> u64 {
    let rows = node.copy_parts().flat_map(|part| match part {
        Frame::SnapshotRows { rows, .. } => rows,
        _ => Vec::new(),
    });
    let stamps = rows.map(|row| match row {
        Op::Versioned { time, .. } => time,
        _ => 0,
    });
    stamps.max().unwrap()
}

/// The copies of the members were begun at different times, so that one of them may bring a row that the others do not
/// know. It must not win over what was written since, however far the clocks were set back meanwhile.
#[test]
fn what_is_written_after_a_cold_start_is_newer_than_all_copies() {
    let former = node(0);
    let begun = former.copy_time(at(0));
    fill(&former, at(20_000));

    let mut config = NodeConfig::new(ME, &[ME], 1);
    config.copy_period = Millis(10_000);
    let set_back = |mono| Now::at(Millis(mono), at(0).wall - Millis(90_000));
    let node = Node::new(config, 8, set_back(0));
    assert!(node.open_copy(begun, set_back(0)));
    node.copy_taken(set_back(0), &mut Actions::default());
    fill(&node, set_back(1_000));
    assert!(stamp(&node) > stamp(&former));
}
