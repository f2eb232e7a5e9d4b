//! What a member makes of another one's rows when digests differ, and what it tells one that was away.

#![allow(clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use rollcall_core::registry::change::{Changes, ClientId, RowOp, VersionedValue};
use rollcall_core::registry::clean::Lives;
use rollcall_core::registry::digest::N_BUCKETS;
use rollcall_core::registry::records::{Record, RecordKey};
use rollcall_core::registry::repair::Scope;
use rollcall_core::{Instance, MemberId, Millis, Now, Registry, ServiceKey, Stamp};
use rollcall_distro::codec::FORMAT;
use rollcall_distro::message::{Frame, LinkHello, Op, Reply, Resume, Welcome};
use rollcall_distro::{DistroConfig, Effects, Engine, LinkError, LinkId};

use common::config;

const ME: &str = "10.0.0.1:8848";
const OTHER: &str = "10.0.0.2:8848";
const AWAY: &str = "10.0.0.3:8848";
const NOW: Now = Now::at(Millis(1), Millis(1_700_000_000_000));

fn bucket_of(service: &ServiceKey) -> usize {
    service.stable_hash() as usize % N_BUCKETS
}

/// A member that is linked from another one, whose frames the test makes.
struct Linked {
    engine: Engine,
    registry: Arc<Registry>,
    link: LinkId,
}

/// The other member dials: the link, and from where it is to go on.
fn dialed(engine: &Engine) -> (LinkId, Resume) {
    let hello = LinkHello {
        member: OTHER.into(),
        boot: 2,
        ..engine.hello()
    };
    let accepted = engine.accept_link(&hello, NOW, &mut Effects::default());
    let (link, _, welcome) = accepted.expect("a member");
    (link, welcome.resume)
}

impl Linked {
    fn new() -> Self {
        Linked::with_gate_limit(Millis(0))
    }

    /// A gate that has a limit is shut until the other members have answered, which they do not.
    fn with_gate_limit(gate_limit: Millis) -> Self {
        let list = vec![ME.into(), OTHER.into(), AWAY.into()];
        let config = DistroConfig {
            gate_limit,
            ..config(ME.into(), list, FORMAT)
        };
        let registry = Arc::new(Registry::new(MemberId::of(ME), 1, 0, NOW.mono));
        let engine = Engine::new(config, registry.clone(), 1, NOW);
        let (link, _) = dialed(&engine);
        let linked = Linked {
            engine,
            registry,
            link,
        };
        linked.take(Frame::SnapshotBegin { seq: 0 });
        linked.take(Frame::SnapshotEnd);
        linked
    }

    fn take(&self, frame: Frame) {
        let effects = &mut Effects::default();
        let taken = self.engine.on_frame(self.link, frame, NOW, effects);
        taken.expect("a frame of the link in use");
    }

    /// What the other member is asked for now.
    fn questions(&self) -> Vec<Reply> {
        let replies = std::iter::from_fn(|| self.engine.poll_reply(self.link));
        replies.filter(|r| !matches!(r, Reply::Ack { .. })).collect()
    }

    /// The connections that publish in the service, by number, and how many rows readers see.
    fn publishers(&self, service: &ServiceKey) -> (Vec<ClientId>, usize) {
        let view = self.registry.service(service).map(|s| s.view());
        let published = self.registry.bucket_connection_rows(bucket_of(service));
        (
            published.into_iter().map(|(client, _)| client).collect(),
            view.map_or(0, |view| view.instances().count()),
        )
    }
}

#[test]
fn a_row_that_another_connection_took_over_unheard_stays_listed_while_it_is_repaired() {
    let (linked, other) = (Linked::new(), MemberId::of(OTHER));
    let service = ServiceKey::new("public", "G", "s");
    let publish = |number: u64| RowOp::Publish {
        client: ClientId::new(other, number, false),
        service: service.clone(),
        instance: Arc::new(Instance::at("10.1.0.1", 8000)),
        stamp: Stamp {
            time: number,
            member: other,
        },
    };
    let (former, present) = (publish(100), publish(200));
    linked.take(Frame::Ops {
        first: 1,
        ops: vec![Op::from(&former)],
    });
    // The other member's log has lost the rest: only its ids tell.
    linked.take(Frame::Jump { seq: 40 });
    let theirs = Registry::new(other, 1, 0, NOW.mono);
    if let RowOp::Publish {
        client,
        service,
        instance,
        stamp,
    } = present.clone()
    {
        theirs.apply_publish(client, &service, instance, stamp, NOW, &mut Changes::default());
    }
    let bucket = bucket_of(&service);
    let ids = Frame::Ids {
        origin: other.0,
        bucket: bucket as u16,
        rows: theirs.bucket_ids(bucket, other),
    };
    linked.take(ids.clone());
    assert!(matches!(linked.questions()[..], [Reply::WantRows { .. }]));
    let client = |number| ClientId::new(other, number, false);
    assert_eq!(linked.publishers(&service), (vec![client(100)], 1));

    linked.take(Frame::Rows {
        rows: vec![Op::from(&present)],
    });
    linked.take(ids);
    assert_eq!(linked.questions(), []);
    assert_eq!(linked.publishers(&service), (vec![client(200)], 1));
}

/// A starting member loads the rows of all from one that is ready, in many steps, over links that break. Meanwhile
/// another member leaves: what it had is among the orphans of the steps that follow, and must be in those before, too.
#[test]
fn a_load_of_all_rows_in_the_middle_of_which_a_member_leaves_begins_again() {
    for breaks in [false, true] {
        let linked = Linked::new();
        let (other, new) = (MemberId::of(OTHER), MemberId::of(AWAY));
        let effects = &mut Effects::default();
        let key = |n: usize| RecordKey::Switch(format!("switch-{n}").as_str().into());
        for n in 0..40 {
            let record = Some(Record::Switch("on".into()));
            let (log, changes) = (linked.engine.log(), &mut effects.changes);
            linked.registry.set_record(&key(n), record, NOW, log, changes);
        }
        let services: Vec<_> = (0..20)
            .map(|n| ServiceKey::new("public", "G", &format!("s{n}")))
            .collect();
        let publish = |(n, service): (usize, &ServiceKey)| {
            Op::from(&RowOp::Publish {
                client: ClientId::new(other, 1, false),
                service: service.clone(),
                instance: Arc::new(Instance::at("10.1.0.1", 8000)),
                stamp: Stamp {
                    time: n as u64 + 1,
                    member: other,
                },
            })
        };
        let ops = services.iter().enumerate().map(publish).collect();
        linked.take(Frame::Ops { first: 1, ops });

        let link_up = |effects: &mut Effects| {
            let welcome = Welcome {
                resume: Resume::At { seq: 0 },
                epoch: 1,
                boot: 9,
            };
            linked.engine.link_up(new, FORMAT, &welcome, NOW, effects)
        };
        let ask = |link, bucket, effects: &mut Effects| {
            let asked = Reply::WantAll { bucket };
            let taken = linked.engine.on_reply(link, asked, NOW, effects);
            taken.expect("a question on the link in use");
        };
        let mut link = link_up(effects);
        ask(link, 0, effects);
        let (mut n_frames, mut orphans) = (0, BTreeSet::new());
        let is_complete = (0..10_000).any(|_| {
            match linked.engine.poll_link(link, NOW) {
                Some(Frame::SnapshotRows {
                    bucket, all: true, ..
                }) => {
                    n_frames += 1;
                    if n_frames == 10 {
                        let left = linked.engine.set_members(&[ME.into(), AWAY.into()], NOW, effects);
                        left.expect("a list with this member");
                        if breaks {
                            linked.engine.link_down(link, NOW);
                            link = link_up(effects);
                            ask(link, bucket + 1, effects);
                        }
                    }
                }
                Some(Frame::Orphans { rows, .. }) => {
                    let service = |op| match op {
                        Op::Publish { service, .. } => Some(service),
                        _ => None,
                    };
                    orphans.extend(rows.into_iter().filter_map(service));
                }
                Some(Frame::AllEnd { .. }) => return true,
                _ => {}
            }
            false
        });
        assert!(is_complete && n_frames > 10);
        assert_eq!(orphans.len(), services.len(), "the link breaks: {breaks}");
    }
}

/// The first operations that a member tells which was away since the start.
fn told(linked: &Linked) -> Vec<Op> {
    let welcome = Welcome {
        resume: Resume::At { seq: 0 },
        epoch: 1,
        boot: 3,
    };
    let away = MemberId::of(AWAY);
    let link = linked
        .engine
        .link_up(away, FORMAT, &welcome, NOW, &mut Effects::default());
    match linked.engine.poll_link(link, NOW) {
        Some(Frame::Ops { first: 1, ops }) => ops,
        other => panic!("expected operations from the first one on: {other:?}"),
    }
}

#[test]
fn a_member_that_was_away_is_not_told_of_a_row_that_another_one_has_removed() {
    let linked = Linked::new();
    let service = ServiceKey::new("public", "G", "s");
    let register = |port| {
        let (changes, log) = (&mut Changes::default(), linked.engine.log());
        let instance = Instance::at("10.1.0.1", port);
        let written = linked
            .registry
            .register_beat_row(&service, instance, None, NOW, log, changes);
        written.expect("nothing newer is there");
        let row = Instance::at("10.1.0.1", port).row_key();
        let bucket = bucket_of(&service);
        let rows = linked
            .registry
            .bucket_rows(bucket, Scope::Origin(MemberId::of(ME)), false);
        let written = rows
            .into_iter()
            .find(|op| matches!(op, RowOp::Versioned { row: r, .. } if *r == row));
        written.expect("the row is there")
    };
    let (removed, kept) = (register(8000), register(8001));
    let RowOp::Versioned { row, stamp, .. } = &removed else {
        panic!("a versioned row")
    };
    let removal = RowOp::Versioned {
        service: service.clone(),
        row: row.clone(),
        stamp: Stamp {
            time: stamp.time + 1000,
            member: MemberId::of(OTHER),
        },
        value: VersionedValue::NoBeat { expired: false },
    };
    linked.take(Frame::Ops {
        first: 1,
        ops: vec![Op::from(&removal)],
    });
    assert_eq!(told(&linked), [Op::from(&removal), Op::from(&kept)]);

    let forgetful = Lives {
        empty_service: Millis::secs(60),
        tombstone: Millis(0),
        operator_tombstone: Millis::secs(60),
        over: Millis::secs(60),
    };
    let later = Now::at(Millis(2), NOW.wall);
    let (changes, log) = (&mut Changes::default(), linked.engine.log());
    linked
        .registry
        .clean(bucket_of(&service), forgetful, later, &|_| true, log, changes);
    let again = RowOp::Versioned {
        service: service.clone(),
        row: row.clone(),
        stamp: Stamp {
            time: stamp.time + 1,
            member: MemberId::of(ME),
        },
        value: VersionedValue::NoBeat { expired: true },
    };
    assert_eq!(told(&linked), [Op::from(&again), Op::from(&kept)]);
}

/// A ready member lets digests find what it has missed. One that starts would not wait for them.
#[test]
fn a_starting_member_that_falls_out_of_a_log_is_told_everything_anew() {
    let ready = Linked::new();
    ready.take(Frame::Jump { seq: 40 });
    assert_eq!(dialed(&ready.engine).1, Resume::At { seq: 40 });

    let starting = Linked::with_gate_limit(Millis::secs(20));
    let (engine, effects) = (&starting.engine, &mut Effects::default());
    let jumped = engine.on_frame(starting.link, Frame::Jump { seq: 40 }, NOW, effects);
    assert_eq!(jumped, Err(LinkError::Closed));
    assert_eq!(dialed(engine).1, Resume::Fresh);
}
