//! The bytes of each released format version of the peer protocol, recorded when it was new: members of two adjacent
//! versions work together only as long as these are read, and written, just so.
//!
//! `tests/formats/v<n>.txt` holds one message a line: its name and its bytes in hexadecimal. A recorded line is never
//! changed; a message that is new in a version gets a line there.

#![allow(clippy::expect_used)]

use std::collections::BTreeMap;

use rollcall_distro::codec::{self, Challenge, CodecError, Message, Proof, Sealed, Verdict};
use rollcall_distro::message::{
    Brief, ColdStart, Followed, Forward, ForwardReply, Found, Frame, FullProbe, LinkHello, LinkRefusal, News,
    Op, Reply, Resume, State, Welcome, WireDone, WireError, WireInstance, WireOverride, WireOverrideEdit,
    WireRecord, WireRecordKey, WireRow, WireService, WireValue, WireWrite, Word,
};

type Reads = Box<dyn Fn(&[u8]) -> bool>;

/// One message: its name, how it is written now in formats 2, 3 and 4, and whether bytes are read as it.
struct Sample {
    name: &'static str,
    bytes: [Option<Vec<u8>>; 3],
    is_read_from: Reads,
}

fn sample<M: Message + PartialEq + 'static>(name: &'static str, message: M) -> Sample {
    let write = |format| codec::encode_as(format, &message).ok();
    Sample {
        name,
        bytes: [write(2), write(3), write(4)],
        is_read_from: Box::new(move |bytes| codec::decode::<M>(bytes).as_ref() == Ok(&message)),
    }
}

fn service() -> WireService {
    WireService {
        namespace: "dev".into(),
        group: "DEFAULT_GROUP".into(),
        name: "orders".into(),
    }
}

fn row() -> WireRow {
    WireRow {
        ip: "10.0.0.7".into(),
        port: 8_080,
        cluster: "DEFAULT".into(),
    }
}

fn instance() -> WireInstance {
    WireInstance {
        row: row(),
        weight: 1.5,
        enabled: true,
        healthy: false,
        metadata: vec![("version".into(), "2".into()), ("zone".into(), "b".into())],
        instance_id: Some("10.0.0.7#8080".into()),
    }
}

fn over() -> WireOverride {
    WireOverride {
        weight: 0.0,
        enabled: false,
        metadata: vec![("canary".into(), "true".into())],
    }
}

fn pairs() -> Vec<(String, String)> {
    vec![("owner".into(), "shop".into())]
}

fn publish(number: u64) -> Op {
    Op::Publish {
        client: number,
        service: service(),
        instance: instance(),
        time: 111_411_200_000_000,
    }
}

fn versioned(value: WireValue) -> Op {
    Op::Versioned {
        service: service(),
        row: row(),
        time: 111_411_200_000_001,
        member: 0x1122_3344_5566_7788,
        value,
    }
}

fn record(key: WireRecordKey, record: Option<WireRecord>) -> Op {
    Op::Record {
        key,
        time: 7,
        member: 9,
        record,
    }
}

fn ops() -> Vec<Op> {
    vec![
        publish(1),
        Op::Withdraw {
            client: 1,
            service: service(),
            row: row(),
        },
        Op::ClientGone { client: 1 },
        versioned(WireValue::Beat(instance())),
        versioned(WireValue::Override(over())),
        versioned(WireValue::NoBeat { expired: true }),
        versioned(WireValue::NoOverride),
        record(
            WireRecordKey::Namespace("dev".into()),
            Some(WireRecord::Namespace {
                name: "Development".into(),
                description: "for tests".into(),
            }),
        ),
        record(
            WireRecordKey::Service(service()),
            Some(WireRecord::Service {
                protect_threshold: 0.5,
                metadata: pairs(),
                selector: "{}".into(),
                is_ephemeral: true,
            }),
        ),
        record(
            WireRecordKey::Cluster(service(), "DEFAULT".into()),
            Some(WireRecord::Cluster {
                health_checker: "{\"type\":\"TCP\"}".into(),
                check_port: 80,
                uses_instance_port: true,
                metadata: pairs(),
            }),
        ),
        record(
            WireRecordKey::Quarantine(service(), "10.0.0.7".into(), 8_080, None),
            Some(WireRecord::Quarantine {
                until: Some(1_700_000_000_000),
                reason: "disk".into(),
            }),
        ),
        record(
            WireRecordKey::Switch("push".into()),
            Some(WireRecord::Switch("true".into())),
        ),
        record(WireRecordKey::Switch("push".into()), None),
    ]
}

fn frames() -> Vec<Sample> {
    vec![
        sample(
            "frame_ops",
            Frame::Ops {
                first: 300,
                ops: ops(),
            },
        ),
        sample("frame_snapshot_begin", Frame::SnapshotBegin { seq: 70_000 }),
        sample(
            "frame_snapshot_rows",
            Frame::SnapshotRows {
                bucket: 255,
                all: true,
                rows: vec![publish(2)],
                last: true,
            },
        ),
        sample(
            "frame_orphans",
            Frame::Orphans {
                origin: u64::MAX,
                remaining: 15_000,
                rows: vec![publish(3)],
            },
        ),
        sample("frame_snapshot_end", Frame::SnapshotEnd),
        sample(
            "frame_all_end",
            Frame::AllEnd {
                followed: vec![Followed {
                    member: 1,
                    boot: 2,
                    seq: 3,
                }],
            },
        ),
        sample("frame_jump", Frame::Jump { seq: 12 }),
        sample(
            "frame_digest",
            Frame::Digest {
                seq: 12.into(),
                root: 13.into(),
                absent: vec![(14.into(), 15.into())],
            },
        ),
        sample(
            "frame_buckets",
            Frame::Buckets {
                origin: 1,
                digests: vec![0, 1, u64::MAX],
            },
        ),
        sample(
            "frame_buckets_deflated",
            Frame::Buckets {
                origin: 1,
                digests: vec![u64::MAX; 1_024],
            },
        ),
        sample(
            "frame_ids",
            Frame::Ids {
                origin: 1,
                bucket: 2,
                rows: vec![(3, 4)],
            },
        ),
        sample(
            "frame_rows",
            Frame::Rows {
                rows: vec![publish(4)],
            },
        ),
        sample(
            "frame_beats",
            Frame::Beats {
                rows: vec![(service(), vec![row()])],
            },
        ),
    ]
}

fn replies() -> Vec<Sample> {
    vec![
        sample("reply_ack", Reply::Ack { seq: 251 }),
        sample("reply_want_buckets", Reply::WantBuckets { origin: 1 }),
        sample(
            "reply_want_ids",
            Reply::WantIds {
                origin: 1,
                buckets: vec![0, 255],
            },
        ),
        sample(
            "reply_want_rows",
            Reply::WantRows {
                origin: 1,
                bucket: 2,
                rows: vec![3, 4],
            },
        ),
        sample("reply_want_all", Reply::WantAll { bucket: 9 }),
        sample(
            "reply_offer",
            Reply::Offer {
                rows: vec![versioned(WireValue::Beat(instance()))],
            },
        ),
    ]
}

fn handshake() -> Vec<Sample> {
    let refused = |refusal| Err::<Welcome, LinkRefusal>(refusal);
    let welcome = |resume| {
        Ok::<_, LinkRefusal>(Welcome {
            resume,
            epoch: 1_700_000_000_000,
            boot: 77,
        })
    };
    let names = || ("theirs".to_owned(), "ours".to_owned());
    let hello = LinkHello {
        cluster: "rollcall".into(),
        mapper: "modulo".into(),
        formats: (2, 2),
        member: "10.0.0.1:8848".into(),
        epoch: 1_700_000_000_000,
        boot: u64::MAX,
    };
    vec![
        sample("hello", hello),
        sample(
            "challenge",
            Challenge {
                nonce: [7; 32],
                member: "10.0.0.2:8848".into(),
            },
        ),
        sample(
            "proof",
            Proof {
                nonce: [8; 32],
                mac: [9; 32],
            },
        ),
        sample("welcome_fresh", welcome(Resume::Fresh)),
        sample("welcome_at", welcome(Resume::At { seq: 65_536 })),
        sample(
            "welcome_loading",
            welcome(Resume::Loading { seq: 5, bucket: 200 }),
        ),
        sample(
            "refusal_cluster",
            refused({
                let (theirs, ours) = names();
                LinkRefusal::Cluster { theirs, ours }
            }),
        ),
        sample(
            "refusal_mapper",
            refused({
                let (theirs, ours) = names();
                LinkRefusal::Mapper { theirs, ours }
            }),
        ),
        sample(
            "refusal_format",
            refused(LinkRefusal::Format {
                theirs: (3, 4),
                ours: (2, 2),
            }),
        ),
        sample(
            "refusal_not_a_member",
            refused(LinkRefusal::NotAMember {
                member: "10.0.0.1:8848".into(),
            }),
        ),
        sample("refusal_secret", refused(LinkRefusal::Secret)),
        sample(
            "refusal_epoch_used",
            refused(LinkRefusal::EpochUsed { at_least: 12 }),
        ),
        sample(
            "sealed",
            Sealed {
                nonce: [1; 32],
                mac: [2; 32],
                body: vec![3, 4, 5],
            },
        ),
        sample(
            "verdict",
            Verdict {
                body: vec![6, 7],
                session: [3; 32],
                mac: [4; 32],
            },
        ),
        sample(
            "probe",
            FullProbe {
                cluster: "rollcall".into(),
                mapper: "modulo".into(),
                member: "10.0.0.1:8848".into(),
                epoch: 1_700_000_000_000,
                boot: 5,
                ready: true,
                leaving: false,
                rows: 100_000,
                connections: 2_000,
                sdk_connections: 1_500,
                count: 60,
                members: vec!["10.0.0.1:8848".into(), "10.0.0.2:8848".into()],
            },
        ),
    ]
}

fn forwards() -> Vec<Sample> {
    let forward = |write| Forward {
        view: 11,
        hops: 1,
        time: 111_411_200_000_002,
        write,
    };
    let update = |edit| {
        forward(WireWrite::Update {
            service: service(),
            ip: "10.0.0.7".into(),
            port: 8_080,
            cluster: Some("DEFAULT".into()),
            edit,
        })
    };
    let reply = |result| ForwardReply {
        result,
        accepted: Some((1, 2, 3)),
    };
    let refused = |error| ForwardReply {
        result: Err(error),
        accepted: None,
    };
    vec![
        sample(
            "forward_register",
            forward(WireWrite::Register {
                service: service(),
                instance: instance(),
            }),
        ),
        sample(
            "forward_deregister",
            forward(WireWrite::Deregister {
                service: service(),
                ip: "10.0.0.7".into(),
                port: 8_080,
                cluster: None,
            }),
        ),
        sample(
            "forward_update_replace",
            update(WireOverrideEdit::Replace(over())),
        ),
        sample(
            "forward_update_patch",
            update(WireOverrideEdit::Patch {
                weight: Some(2.0),
                enabled: None,
                metadata: Some(pairs()),
            }),
        ),
        sample("forward_update_lay", update(WireOverrideEdit::Lay(pairs()))),
        sample(
            "forward_update_take_away",
            update(WireOverrideEdit::TakeAway(vec!["owner".into()])),
        ),
        sample(
            "forward_beat",
            forward(WireWrite::Beat {
                service: service(),
                ip: "10.0.0.7".into(),
                port: 8_080,
                cluster: None,
                full: Some(instance()),
            }),
        ),
        sample("forwarded_ok", reply(Ok(WireDone::Ok))),
        sample("forwarded_beat_known", reply(Ok(WireDone::BeatKnown(5_000)))),
        sample("forwarded_beat_unknown", reply(Ok(WireDone::BeatUnknown(5_000)))),
        sample(
            "forwarded_service_not_found",
            refused(WireError::ServiceNotFound(service())),
        ),
        sample(
            "forwarded_cluster_empty",
            refused(WireError::ClusterEmpty("orders".into(), "DEFAULT".into())),
        ),
        sample(
            "forwarded_instance_not_found",
            refused(WireError::InstanceNotFound),
        ),
        sample("forwarded_not_ready", refused(WireError::NotReady)),
        sample("forwarded_over_limit", refused(WireError::OverLimit)),
        sample("forwarded_outdated", refused(WireError::Outdated(12))),
        sample(
            "forwarded_metadata_too_long",
            refused(WireError::MetadataTooLong(1_024)),
        ),
        sample(
            "forwarded_wrong_kind",
            refused(WireError::WrongKind("g@@s".into(), false)),
        ),
    ]
}

fn state(number: u64) -> State {
    State {
        epoch: 1_700_000_000_000,
        boot: number,
        incarnation: 2,
        ready: true,
        leaving: false,
        impaired: true,
        rows: 100_000,
        connections: 2_000,
        sdk_connections: 1_500,
        count: 60,
        list: u64::MAX,
    }
}

/// What format 3 brought.
fn new_in_3() -> Vec<Sample> {
    let brief = |members: Option<Vec<String>>| Brief {
        cluster: "rollcall".into(),
        mapper: "modulo".into(),
        member: "10.0.0.1:8848".into(),
        state: state(5),
        time: 1_700_000_001_000,
        knows: 12,
        members,
        ask: vec![1, u64::MAX],
        found: vec![
            Found {
                member: 3,
                state: Some(state(6)),
            },
            Found {
                member: 4,
                state: None,
            },
        ],
        news: [Word::Alive, Word::Suspect, Word::Gone, Word::Unreachable]
            .into_iter()
            .map(|word| News {
                member: 9,
                word,
                state: state(7),
            })
            .collect(),
    };
    vec![
        sample("brief", brief(None)),
        sample(
            "brief_with_list",
            brief(Some(vec!["10.0.0.1:8848".into(), "10.0.0.2:8848".into()])),
        ),
        sample(
            "frame_rows_of",
            Frame::RowsOf {
                origin: 9,
                rows: vec![publish(5)],
            },
        ),
        sample(
            "frame_beats_for",
            Frame::BeatsFor {
                owner: 9,
                rows: vec![(service(), vec![row()])],
            },
        ),
        sample(
            "reply_relay",
            Reply::Relay {
                origin: 9,
                boot: 10,
                root: 11,
            },
        ),
    ]
}

/// What format 4 brought.
fn new_in_4() -> Vec<Sample> {
    let starting = |name, cold| sample(name, Frame::Starting(cold));
    vec![
        starting("starting", ColdStart::No),
        starting("starting_reading", ColdStart::Reading),
        starting("starting_without_copy", ColdStart::Read(None)),
        starting("starting_with_copy", ColdStart::Read(Some(1_700_000_000_500))),
    ]
}

fn samples() -> Vec<Sample> {
    [
        frames(),
        replies(),
        handshake(),
        forwards(),
        new_in_3(),
        new_in_4(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn recorded(text: &str) -> BTreeMap<&str, Vec<u8>> {
    let bytes = |hex: &str| {
        let digits = hex.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16);
        digits.map(|pair| byte(pair).expect("hexadecimal")).collect()
    };
    let lines = text
        .lines()
        .map(|line| line.split_once(' ').expect("name, bytes"));
    lines.map(|(name, hex)| (name, bytes(hex))).collect()
}

/// What was recorded in a format is read as the same message, and the message is written as it was then.
fn check(format: u8, text: &str) {
    let mut recorded = recorded(text);
    let mut wrong = Vec::new();
    for sample in samples() {
        let written = &sample.bytes[usize::from(format - 2)];
        let known = recorded.remove(sample.name);
        let is_read = known.as_ref().is_none_or(|bytes| (sample.is_read_from)(bytes));
        if known != *written || !is_read {
            wrong.push(format!(
                "{} {}",
                sample.name,
                hex(written.as_deref().unwrap_or_default())
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "not as recorded, or not recorded:\n{}",
        wrong.join("\n")
    );
    assert!(
        recorded.is_empty(),
        "recorded messages without a sample: {recorded:?}"
    );
}

#[test]
fn format_2_is_read_and_written_as_recorded() {
    check(2, include_str!("formats/v2.txt"));
}

#[test]
fn format_3_is_read_and_written_as_recorded() {
    check(3, include_str!("formats/v3.txt"));
}

#[test]
fn format_4_is_read_and_written_as_recorded() {
    check(4, include_str!("formats/v4.txt"));
}

#[test]
fn what_a_format_does_not_have_is_not_read_in_it() {
    let relay = Reply::Relay {
        origin: 1,
        boot: 2,
        root: 3,
    };
    let mut bytes = codec::encode(&relay).expect("a small message");
    assert_eq!(codec::decode(&bytes), Ok(relay));
    bytes[0] = 2;
    assert_eq!(codec::decode::<Reply>(&bytes), Err(CodecError::Version(2)));
}
