//! Which member takes a write, when members answer, fail, or see other members than this one does.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey};
use rollcall_distro::message::{Forward, FullProbe, LinkRefusal, Probe, WireError, WireWrite};
use rollcall_node::{
    Action, Actions, ConnectionInfo, ForwardId, HttpWrite, MemberState, Node, NodeConfig, NodeError,
    ProbeResult, Ticket, WriteDone,
};

const ADDRESSES: [&str; 3] = ["10.0.0.1:8848", "10.0.0.2:8848", "10.0.0.3:8848"];

fn clock(now: u64) -> Now {
    Now::at(Millis(now), Millis(1_700_000_000_000 + now))
}

/// Node 0 of three, ready by the limit of its gate, with the other two answering probes.
fn node_among_three() -> Node {
    let mut config = NodeConfig::new(ADDRESSES[0], &ADDRESSES, 1);
    config.gate_limit = Millis(0);
    let node = Node::new(config, 1, clock(0));
    let actions = &mut Actions::default();
    node.tick(clock(0), actions);
    for address in &ADDRESSES[1..] {
        answer_probe(&node, address, clock(1));
    }
    assert!(node.is_ready());
    node
}

fn answer_probe(node: &Node, address: &str, now: Now) -> Actions {
    let probe = FullProbe {
        cluster: "rollcall".into(),
        mapper: "modulo".into(),
        member: address.into(),
        epoch: 1,
        boot: 1,
        ready: true,
        leaving: false,
        rows: 0,
        connections: 0,
        sdk_connections: 0,
        count: 0,
        members: node.member_list().iter().map(ToString::to_string).collect(),
    };
    let mut actions = Actions::default();
    let result = ProbeResult::Answer(Probe::Full(probe));
    node.probe_done(MemberId::of(address), result, now, &mut actions);
    actions
}

fn service_owned_by(node: &Node, address: &str) -> ServiceKey {
    let names = (0..100).map(|n| ServiceKey::new("", "", &format!("s{n}")));
    names
        .into_iter()
        .find(|s| node.owner(s).unwrap() == address)
        .unwrap()
}

fn register(service: &ServiceKey) -> HttpWrite {
    HttpWrite::Register {
        service: service.clone(),
        instance: Instance::at("10.1.0.1", 80),
    }
}

fn forward_in(actions: &Actions) -> Option<(ForwardId, MemberId, Forward)> {
    actions.0.iter().find_map(|action| match action {
        Action::Forward { id, to, forward } => Some((*id, *to, forward.clone())),
        _ => None,
    })
}

fn answer_in(actions: &Actions) -> Option<Result<WriteDone, NodeError>> {
    actions.0.iter().find_map(|action| match action {
        Action::Answer { result, .. } => Some(result.clone()),
        _ => None,
    })
}

#[test]
fn a_member_list_says_how_long_ago_each_was_heard() {
    let node = node_among_three();
    answer_probe(&node, ADDRESSES[1], clock(5_000));
    let ages: Vec<_> = node.members(clock(7_000)).iter().map(|m| m.last_seen).collect();
    assert_eq!(ages, [0, 2_000, 6_999].map(|age| Some(Millis(age))));
    let alone = Node::new(NodeConfig::new(ADDRESSES[0], &ADDRESSES, 1), 1, clock(0));
    assert!(
        alone
            .members(clock(7_000))
            .iter()
            .all(|m| m.is_self || m.last_seen.is_none())
    );
}

#[test]
fn a_node_that_leaves_is_down_and_says_so_to_newcomers() {
    let node = node_among_three();
    assert_eq!(node.state(), MemberState::Up);
    node.start_leaving(clock(2), &mut Actions::default());
    assert_eq!(node.state(), MemberState::Down);
    let opened = node.open_connection(ConnectionInfo::default(), clock(3), &mut Actions::default());
    assert_eq!(opened, Err(NodeError::Leaving));
    let starting = Node::new(NodeConfig::new(ADDRESSES[0], &ADDRESSES, 1), 1, clock(0));
    assert_eq!(
        (starting.state(), starting.not_serving()),
        (MemberState::Starting, NodeError::NotReady)
    );
}

#[test]
fn a_forward_to_a_member_that_leaves_goes_to_the_next_owner() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (id, ..) = forward_in(&actions).unwrap();
    let list = [ADDRESSES[0], ADDRESSES[2]].map(Into::into);
    let mut actions = Actions::default();
    node.set_members(&list, clock(3), &mut actions).unwrap();
    assert!(forward_in(&actions).is_none(), "the third member still lists it");
    let actions = answer_probe(&node, ADDRESSES[2], clock(4));
    let left =
        |action: &Action| matches!(action, Action::Left { member } if *member == MemberId::of(ADDRESSES[1]));
    assert!(actions.0.iter().any(left));
    let owner = node.owner(&service).unwrap();
    match forward_in(&actions) {
        Some((_, to, forward)) => {
            assert_eq!((to, forward.hops), (MemberId::of(ADDRESSES[2]), 1));
            assert_eq!(owner, ADDRESSES[2]);
        }
        None => assert_eq!((owner.as_str(), node.registry().n_rows()), (ADDRESSES[0], 1)),
    }
    // What the member that left answers now is nothing to anybody.
    let mut actions = Actions::default();
    node.forward_failed(id, clock(5), &mut actions);
    assert!(actions.0.is_empty());
}

#[test]
fn a_list_without_the_node_itself_is_refused() {
    let node = node_among_three();
    let list = [ADDRESSES[1], ADDRESSES[2]].map(Into::into);
    assert!(
        node.set_members(&list, clock(2), &mut Actions::default())
            .is_err()
    );
    assert_eq!(node.member_list(), ADDRESSES);
}

#[test]
fn a_node_that_nobody_lists_reads_and_sends_its_clients_away() {
    let node = node_among_three();
    let info = ConnectionInfo {
        is_sdk: true,
        is_naming: true,
        ..ConnectionInfo::default()
    };
    let id = node
        .open_connection(info, clock(2), &mut Actions::default())
        .unwrap();
    let service = ServiceKey::new("", "", "s");
    let instances = vec![Instance::at("10.1.0.1", 80)];
    node.register(id, &service, instances, clock(2), &mut Actions::default())
        .unwrap();
    let disown = |address: &str| {
        let refusal = LinkRefusal::NotAMember {
            member: ADDRESSES[0].into(),
        };
        let mut actions = Actions::default();
        node.link_refused(MemberId::of(address), &refusal, clock(3), &mut actions);
        actions
    };
    disown(ADDRESSES[1]);
    assert!(node.is_ready(), "the third member still lists it");
    let epoch = node.link_hello().epoch;
    let actions = disown(ADDRESSES[2]);
    let is_reset = |action: &Action| matches!(action, Action::Reset { connection, .. } if *connection == id);
    assert!(actions.0.iter().any(is_reset));
    assert_eq!((node.state(), node.is_ready()), (MemberState::Isolated, false));
    assert!(
        node.link_hello().epoch > epoch,
        "to the others it is another process"
    );
    assert_eq!(node.query(&service, clock(4)).unwrap().view.len(), 1);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(4), &mut actions);
    assert_eq!(answer_in(&actions), Some(Err(NodeError::Unlisted)));
    let again = vec![Instance::at("10.1.0.1", 81)];
    let registered = node.register(id, &service, again, clock(4), &mut Actions::default());
    assert_eq!(registered, Err(NodeError::Unlisted));
    let opened = node.open_connection(ConnectionInfo::default(), clock(4), &mut Actions::default());
    assert_eq!(opened, Err(NodeError::Unlisted));
    // Its readers go on seeing what is on its way to another member, until it is listed again.
    node.close_connection(id, clock(5), &mut Actions::default());
    assert_eq!(node.query(&service, clock(5)).unwrap().view.len(), 1);
    answer_probe(&node, ADDRESSES[1], clock(6));
    assert!(!node.is_unlisted());
    assert_eq!(node.registry().n_rows(), 0);
}

#[test]
fn a_write_goes_to_the_owner_with_one_hop() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (_, to, forward) = forward_in(&actions).unwrap();
    assert_eq!((to, forward.hops), (MemberId::of(ADDRESSES[1]), 1));
    assert!(answer_in(&actions).is_none());
    assert_eq!(node.registry().n_rows(), 0);
}

#[test]
fn an_unreachable_owner_is_passed_over_in_rank_and_this_node_comes_last() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (id, _, _) = forward_in(&actions).unwrap();
    let mut actions = Actions::default();
    node.forward_failed(id, clock(3), &mut actions);
    let (id, to, _) = forward_in(&actions).unwrap();
    assert_eq!(to, MemberId::of(ADDRESSES[2]));
    let mut actions = Actions::default();
    node.forward_failed(id, clock(4), &mut actions);
    assert!(forward_in(&actions).is_none());
    node.tick(clock(500), &mut actions);
    assert_eq!(answer_in(&actions), Some(Ok(WriteDone::Ok)));
    assert_eq!(node.registry().n_rows(), 1);
}

#[test]
fn who_failed_once_is_not_asked_again_before_it_answers_a_probe() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (id, _, _) = forward_in(&actions).unwrap();
    node.forward_failed(id, clock(3), &mut Actions::default());
    let mut actions = Actions::default();
    node.write(Ticket(2), register(&service), clock(4), &mut actions);
    assert_eq!(forward_in(&actions).unwrap().1, MemberId::of(ADDRESSES[2]));
    answer_probe(&node, ADDRESSES[1], clock(5));
    let mut actions = Actions::default();
    node.write(Ticket(3), register(&service), clock(6), &mut actions);
    assert_eq!(forward_in(&actions).unwrap().1, MemberId::of(ADDRESSES[1]));
}

#[test]
fn an_owner_that_is_not_ready_counts_as_unreachable_but_its_refusals_count() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let forward = |actions: &mut Actions| {
        node.write(Ticket(1), register(&service), clock(2), actions);
        forward_in(actions).unwrap().0
    };
    let mut actions = Actions::default();
    let id = forward(&mut actions);
    let mut actions = Actions::default();
    let reply = Node::forward_reply(Err(NodeError::NotReady), None);
    node.forward_replied(id, reply, clock(3), &mut actions);
    assert!(forward_in(&actions).is_some());
    let mut actions = Actions::default();
    let (id, _, _) = {
        node.write(Ticket(2), register(&service), clock(4), &mut actions);
        forward_in(&actions).unwrap()
    };
    let mut actions = Actions::default();
    let reply = Node::forward_reply(Err(NodeError::InstanceNotFound), None);
    assert_eq!(reply.result, Err(WireError::InstanceNotFound));
    node.forward_replied(id, reply, clock(5), &mut actions);
    assert_eq!(answer_in(&actions), Some(Err(NodeError::InstanceNotFound)));
}

#[test]
fn a_write_that_meets_a_newer_version_is_sent_anew_with_a_newer_time() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (mut id, _, first) = forward_in(&actions).unwrap();
    // The owner's clock runs ahead of this node's.
    let newest = first.time + (60_000 << 16);
    let mut last = first.time;
    for attempt in 0..3 {
        let mut actions = Actions::default();
        let reply = Node::forward_reply(
            Err(NodeError::Outdated {
                newest: newest + attempt,
            }),
            None,
        );
        assert_eq!(reply.result, Err(WireError::Outdated(newest + attempt)));
        node.forward_replied(id, reply, clock(3), &mut actions);
        assert_eq!(answer_in(&actions), None, "the client hears nothing of it");
        let (next, to, forward) = forward_in(&actions).unwrap();
        let expected = if attempt < 2 { ADDRESSES[1] } else { ADDRESSES[2] };
        assert_eq!(to, MemberId::of(expected), "attempt {attempt}");
        assert!(forward.time > newest + attempt && forward.time > last);
        (id, last) = (next, forward.time);
    }
}

#[test]
fn a_write_that_another_has_overtaken_after_its_owner_failed_is_answered_as_done() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (id, _, first) = forward_in(&actions).unwrap();
    let mut actions = Actions::default();
    node.forward_failed(id, clock(1_002), &mut actions);
    let (id, _, second) = forward_in(&actions).unwrap();
    assert_eq!(
        second.time, first.time,
        "it does not pass what was written meanwhile"
    );
    let mut actions = Actions::default();
    let newest = first.time + 1;
    let reply = Node::forward_reply(Err(NodeError::Outdated { newest }), None);
    node.forward_replied(id, reply, clock(1_003), &mut actions);
    assert_eq!(answer_in(&actions), Some(Ok(WriteDone::Ok)));
}

#[test]
fn a_forward_that_comes_after_a_newer_write_is_refused_to_its_sender() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[0]);
    let forward = |time, weight| Forward {
        view: 1,
        hops: 1,
        time,
        write: WireWrite::Register {
            service: (&service).into(),
            instance: (&Instance {
                weight,
                ..Instance::at("10.1.0.1", 80)
            })
                .into(),
        },
    };
    let newer = clock(10).wall.0 << 16;
    node.forwarded(Ticket(1), forward(newer, 2.0), clock(10), &mut Actions::default());
    let mut actions = Actions::default();
    node.forwarded(Ticket(2), forward(newer - 1, 1.0), clock(11), &mut actions);
    let refusal = Err(NodeError::Outdated { newest: newer });
    assert_eq!(answer_in(&actions), Some(refusal));
    let view = node.registry().service(&service).unwrap().view();
    assert_eq!(view.instances().map(|i| i.weight).collect::<Vec<_>>(), [2.0]);
}

#[test]
fn kf_066_a_forward_by_another_view_is_passed_on_once_and_then_served() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (_, _, mut forward) = forward_in(&actions).unwrap();
    // The sender sees other members, and takes this node for the owner.
    forward.hops = 1;
    forward.view += 1;
    let mut actions = Actions::default();
    node.forwarded(Ticket(2), forward.clone(), clock(3), &mut actions);
    assert_eq!(forward_in(&actions).unwrap().2.hops, 2);
    forward.hops = 2;
    let mut actions = Actions::default();
    node.forwarded(Ticket(3), forward, clock(4), &mut actions);
    assert!(forward_in(&actions).is_none());
    assert_eq!(node.registry().n_rows(), 1);
}

/// W11: the sender sees the same members, so it has found the owner wanting: nobody waits for the owner a second time.
#[test]
fn a_forward_past_its_owner_by_the_same_view_is_served_at_once() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    let (_, _, forward) = forward_in(&actions).unwrap();
    let mut actions = Actions::default();
    node.forwarded(Ticket(2), forward, clock(3), &mut actions);
    assert!(forward_in(&actions).is_none());
    assert_eq!(node.registry().n_rows(), 1);
}

/// W11: when a member hangs, the first time-out is the last one that any client waits for.
#[test]
fn all_that_wait_for_a_member_that_does_not_answer_are_sent_on_together() {
    let node = node_among_three();
    let service = service_owned_by(&node, ADDRESSES[1]);
    let mut actions = Actions::default();
    for n in 1..=5 {
        node.write(Ticket(n), register(&service), clock(n), &mut actions);
    }
    let (first, ..) = forward_in(&actions).unwrap();
    let mut actions = Actions::default();
    node.forward_failed(first, clock(502), &mut actions);
    let to = actions.0.iter().filter_map(|action| match action {
        Action::Forward { to, forward, .. } => Some((*to, forward.hops)),
        _ => None,
    });
    assert_eq!(to.collect::<Vec<_>>(), [(MemberId::of(ADDRESSES[2]), 1); 5]);
    // What was sent on is nobody's any more at the first.
    let mut actions = Actions::default();
    node.forward_failed(ForwardId(first.0 + 1), clock(503), &mut actions);
    assert!(actions.0.is_empty());
}

#[test]
fn a_loading_node_refuses_writes_and_reads() {
    let node = Node::new(NodeConfig::new(ADDRESSES[0], &ADDRESSES, 1), 1, clock(0));
    let service = ServiceKey::new("", "", "s");
    let mut actions = Actions::default();
    node.write(Ticket(1), register(&service), clock(2), &mut actions);
    assert_eq!(answer_in(&actions), Some(Err(NodeError::NotReady)));
    assert!(node.query(&service, clock(2)).is_err());
    assert!(
        node.open_connection(Default::default(), clock(2), &mut actions)
            .is_err()
    );
}
