//! The registry as a whole: what each kind of write shows, and that any order of writes ends the same everywhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::beats::{Heard, Judge};
use super::change::{Changes, ClientId, Journal, Override, OverrideEdit, RowOp, Versioned, VersionedValue};
use super::clean::Lives;
use super::digest::Digests;
use super::guard::Guarded;
use super::orphans::Fleet;
use super::records::{HiddenRows, Quarantine, Record, RecordKey, ServiceSettings};
use super::selection::Selection;
use super::versioned::Unwritten;
use super::*;
use crate::clock::{Now, Stamp};
use crate::model::instance::{Instance, KEY_BEAT_TIMEOUT, KEY_DELETE_TIMEOUT, RowAddress, RowKey};
use crate::model::limits::MAX_METADATA;
use crate::model::metadata::Metadata;

/// A journal that keeps everything.
#[derive(Default)]
struct Taken {
    me: MemberId,
    ops: Mutex<Vec<RowOp>>,
}

impl Journal for Taken {
    fn record(&self, op: RowOp, digests: &Digests, bucket: usize, delta: u64) {
        digests.add(self.me, bucket, delta);
        self.ops.lock().push(op);
    }
}

/// A registry with its journal and a clock.
struct Fixture {
    registry: Registry,
    journal: Taken,
    now: Now,
}

const A: MemberId = MemberId(1);
const B: MemberId = MemberId(2);

impl Fixture {
    fn new(me: MemberId) -> Self {
        let now = Now::at(Millis(1_000), Millis(1_700_000_000_000));
        let journal = Taken {
            me,
            ..Taken::default()
        };
        Fixture {
            registry: Registry::new(me, 1, 1 << 20, now.mono),
            journal,
            now,
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono = self.now.mono + Millis(ms);
        self.now.wall = self.now.wall + Millis(ms);
    }

    fn client(&self, number: u64) -> ClientId {
        let client = ClientId {
            origin: self.registry.me(),
            number,
        };
        self.registry.open_client(client);
        client
    }

    fn publish(&self, client: ClientId, instances: &[Instance]) -> Changes {
        let mut changes = Changes::new();
        self.registry
            .publish(
                client,
                &service(),
                instances.to_vec(),
                self.now,
                &self.journal,
                &mut changes,
            )
            .unwrap();
        changes
    }

    fn unpublish(&self, client: ClientId, instance: &Instance) {
        let hash = instance.row_key().stable_hash(&service());
        let changes = &mut Changes::new();
        self.registry
            .unpublish(client, &service(), hash, self.now, &self.journal, changes)
            .unwrap();
    }

    fn close(&self, client: ClientId) {
        self.registry
            .close_client(client, self.now, &self.journal, &mut Changes::new());
    }

    fn beat_register(&self, instance: &Instance) -> Changes {
        self.beat_register_taken(instance, None).unwrap()
    }

    fn beat_register_taken(&self, instance: &Instance, taken: Option<u64>) -> Result<Changes, Unwritten> {
        let mut changes = Changes::new();
        let (now, journal) = (self.now, &self.journal);
        self.registry
            .register_beat_row(&service(), instance.clone(), taken, now, journal, &mut changes)?;
        Ok(changes)
    }

    fn beat(&self, ip: &str, port: u16, cluster: Option<&str>, heard: Heard) -> bool {
        let changes = &mut Changes::new();
        let (now, journal) = (self.now, &self.journal);
        self.registry
            .beat(
                &service(),
                RowAddress { ip, port, cluster },
                heard,
                now,
                journal,
                changes,
            )
            .is_some()
    }

    fn beat_deregister(&self, ip: &str, port: u16, cluster: Option<&str>) {
        self.beat_deregister_taken(RowAddress { ip, port, cluster }, None)
            .unwrap();
    }

    fn beat_deregister_taken(&self, address: RowAddress<'_>, taken: Option<u64>) -> Result<bool, Unwritten> {
        let (now, journal, changes) = (self.now, &self.journal, &mut Changes::new());
        self.registry
            .deregister_beat_row(&service(), address, taken, now, journal, changes)
    }

    fn set_override(&self, instance: &Instance, weight: f64) {
        self.override_with(instance, weight, meta(&[("lane", "a")]));
    }

    fn override_metadata(&self, instance: &Instance, metadata: Metadata) {
        self.override_with(instance, instance.weight, metadata);
    }

    fn override_with(&self, instance: &Instance, weight: f64, metadata: Metadata) {
        let edit = OverrideEdit::Replace(Override {
            weight,
            enabled: true,
            metadata,
        });
        let (key, changes) = (instance.row_key(), &mut Changes::new());
        let (now, journal) = (self.now, &self.journal);
        self.registry
            .edit_override(
                &service(),
                (&key).into(),
                edit,
                MAX_METADATA,
                None,
                now,
                journal,
                changes,
            )
            .unwrap();
    }

    fn set_record(&self, key: &RecordKey, record: Option<Record>) -> Changes {
        let mut changes = Changes::new();
        self.registry
            .set_record(key, record, self.now, &self.journal, &mut changes);
        changes
    }

    fn judge(&self, role: Judge) {
        self.judge_with(false, role);
    }

    fn judge_with(&self, is_suspect: bool, role: Judge) {
        self.registry.judge_beats(
            self.now,
            is_suspect,
            &|_| role,
            &self.journal,
            &mut Changes::new(),
        );
    }

    /// Applies what another member wrote.
    fn follow(&self, origin: &Fixture) {
        for op in origin.journal.ops.lock().drain(..) {
            self.apply(op);
        }
    }

    fn apply(&self, op: RowOp) {
        let changes = &mut Changes::new();
        let r = &self.registry;
        match op {
            RowOp::Publish {
                client,
                service,
                instance,
                stamp,
            } => {
                r.apply_publish(client, &service, instance, stamp, self.now, changes);
            }
            RowOp::Withdraw { client, service, row } => {
                r.apply_withdraw(client, &service, row.stable_hash(&service), self.now, changes);
            }
            RowOp::ClientGone { client } => r.apply_client_gone(client, self.now, changes),
            RowOp::Record { key, stamp, record } => {
                r.apply_record(&key, record, stamp, self.now, changes);
            }
            RowOp::Versioned {
                service,
                row,
                stamp,
                value,
            } => {
                r.apply_versioned(
                    &service,
                    &row,
                    Versioned { stamp, value },
                    self.now,
                    &self.journal,
                    changes,
                );
            }
        }
    }

    fn rows(&self) -> Vec<Instance> {
        let view = self.registry.service(&service()).map(|s| s.view());
        view.map(|v| v.instances().map(|i| (**i).clone()).collect())
            .unwrap_or_default()
    }

    fn weights(&self) -> Vec<f64> {
        self.rows().iter().map(|i| i.weight).collect()
    }

    /// Marks the rows of A's connections as orphans, or takes the marks off, one connection at a time, so many of them.
    /// At every moment the list is the same and the digests are true.
    fn set_orphans_of(&self, n_clients: usize, is_orphan: bool) -> usize {
        let (mut fleet, rows) = (self.registry.fleet_of(A), self.rows());
        let set = |_| {
            let changes = &mut Changes::new();
            let n_set = self
                .registry
                .set_orphans(&mut fleet, is_orphan, 1, self.now, changes);
            assert!(changes.is_empty());
            assert_eq!(self.rows(), rows);
            self.assert_digests_are_true();
            n_set
        };
        (0..n_clients).map(set).sum()
    }

    fn drop_orphans(&self, mut fleet: Fleet) -> usize {
        let changes = &mut Changes::new();
        let n_dropped = self
            .registry
            .drop_orphans(&mut fleet, usize::MAX, self.now, changes);
        assert!(fleet.is_empty());
        n_dropped
    }

    fn assert_digests_are_true(&self) {
        for origin in self.registry.digests().origins() {
            assert_eq!(
                self.registry.digests().all(origin),
                self.registry.recount_digests(origin)
            );
        }
        let publications = self.registry.publications(&service());
        let orphans = publications.iter().flat_map(|(_, p)| p).filter(|p| p.is_orphan);
        assert_eq!(self.registry.n_orphans(), orphans.count());
    }
}

fn service() -> ServiceKey {
    ServiceKey::new("", "", "s")
}

fn meta(pairs: &[(&str, &str)]) -> Metadata {
    Metadata::from_pairs(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())))
}

fn at(port: u16, weight: f64) -> Instance {
    Instance {
        weight,
        ..Instance::at("10.0.0.1", port)
    }
}

fn in_cluster(port: u16, cluster: &str) -> Instance {
    Instance {
        cluster: cluster.into(),
        ..at(port, 1.0)
    }
}

#[test]
fn a_second_registration_of_a_connection_replaces_the_first() {
    let f = Fixture::new(A);
    let client = f.client(1);
    f.publish(client, &[at(1, 1.0)]);
    f.publish(client, &[at(2, 2.0)]);
    assert_eq!(f.weights(), [2.0]);
    assert!(
        f.publish(client, &[at(2, 2.0)]).is_empty(),
        "an identical registration changes nothing"
    );
    assert_eq!(f.journal.ops.lock().len(), 3, "publish, withdraw, publish");
}

#[test]
fn kf_008_the_newest_of_two_publishers_shows_and_the_row_goes_with_the_last() {
    let f = Fixture::new(A);
    let (x, y) = (f.client(1), f.client(2));
    f.publish(x, &[at(1, 1.0)]);
    f.publish(y, &[at(1, 2.0)]);
    assert_eq!(f.weights(), [2.0]);
    f.close(x);
    assert_eq!(f.weights(), [2.0]);
    f.publish(f.client(3), &[at(1, 3.0)]);
    f.close(ClientId { origin: A, number: 3 });
    assert_eq!(f.weights(), [2.0], "the next newest shows again");
    f.close(y);
    assert!(f.rows().is_empty());
}

#[test]
fn what_somebody_else_has_published_since_is_superseded_even_when_that_is_withdrawn_again() {
    let f = Fixture::new(A);
    let (x, y) = (f.client(1), f.client(2));
    f.publish(x, &[at(1, 1.0), at(2, 1.0)]);
    assert!(f.registry.superseded(x).is_empty());
    f.publish(y, &[at(1, 2.0)]);
    f.unpublish(y, &at(1, 2.0));
    let hash = at(1, 1.0).row_key().stable_hash(&service());
    let superseded = f.registry.superseded(x);
    assert_eq!(superseded.len(), 1);
    assert_eq!(superseded[0].1[..], [hash], "not the row that nobody else had");
    f.publish(x, &[at(1, 3.0)]);
    assert!(f.registry.superseded(x).is_empty(), "it has come back");
}

#[test]
fn kf_006_one_address_in_three_clusters_is_three_rows() {
    let f = Fixture::new(A);
    for cluster in ["c1", "c2", "c3"] {
        f.beat_register(&in_cluster(1, cluster));
    }
    assert_eq!(f.rows().len(), 3);
    assert!(f.beat("10.0.0.1", 1, Some("c2"), Heard::Direct));
    assert!(
        !f.beat("10.0.0.1", 1, None, Heard::Direct),
        "which of the three is meant cannot be told"
    );
}

#[test]
fn kf_007_a_deregister_means_the_named_row_or_the_default_or_the_only_one() {
    let f = Fixture::new(A);
    f.beat_register(&in_cluster(1, "c1"));
    f.beat_register(&at(2, 1.0));
    f.beat_register(&in_cluster(2, "c9"));
    f.beat_deregister("10.0.0.1", 1, Some("c2"));
    assert_eq!(f.rows().len(), 3, "no such row: nothing happens");
    f.beat_deregister("10.0.0.1", 2, None);
    assert_eq!(
        f.rows().iter().map(|i| i.cluster.to_string()).collect::<Vec<_>>(),
        ["c1", "c9"]
    );
    f.beat_deregister("10.0.0.1", 1, None);
    assert_eq!(f.rows().len(), 1, "the only row with that address");
}

#[test]
fn kf_011_one_of_a_batch_can_be_deregistered() {
    let f = Fixture::new(A);
    let client = f.client(1);
    f.publish(client, &[at(1, 1.0), at(2, 2.0), at(3, 3.0)]);
    f.unpublish(client, &at(2, 0.0));
    assert_eq!(f.weights(), [1.0, 3.0]);
    f.unpublish(client, &at(99, 0.0));
    assert!(f.rows().is_empty(), "a row it does not hold means all it holds");
}

#[test]
fn a_forward_that_comes_late_or_twice_changes_nothing() {
    let f = Fixture::new(A);
    let clock = f.registry.clock();
    let key = at(1, 1.0).row_key();
    let (first, second) = (clock.tick(f.now.wall), clock.tick(f.now.wall));
    f.beat_register_taken(&at(1, 2.0), Some(second)).unwrap();
    let outdated = Err(Unwritten::Outdated { newest: second });
    assert_eq!(f.beat_register_taken(&at(1, 1.0), Some(first)), outdated);
    assert_eq!(f.beat_register_taken(&at(1, 2.0), Some(second)), outdated);
    let outdated = Err(Unwritten::Outdated { newest: second });
    assert_eq!(f.beat_deregister_taken((&key).into(), Some(first)), outdated);
    assert_eq!(f.weights(), [2.0]);
    assert_eq!(f.journal.ops.lock().len(), 1);
    f.beat_deregister("10.0.0.1", 1, None);
    assert!(f.beat_register_taken(&at(1, 2.0), Some(second)).is_err());
    assert!(f.rows().is_empty(), "removed rows do not come back");
    f.assert_digests_are_true();
}

#[test]
fn a_deregister_that_is_older_than_the_override_changes_nothing() {
    let f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    let taken = f.registry.clock().tick(f.now.wall);
    f.set_override(&at(1, 1.0), 0.5);
    let key = at(1, 1.0).row_key();
    assert!(f.beat_deregister_taken((&key).into(), Some(taken)).is_err());
    assert_eq!(f.weights(), [0.5], "neither the row nor the override is gone");
    let later = f.registry.clock().tick(f.now.wall);
    assert_eq!(f.beat_deregister_taken((&key).into(), Some(later)), Ok(true));
    f.beat_register(&at(1, 1.0));
    assert_eq!(f.weights(), [1.0]);
}

#[test]
fn a_removal_of_an_earlier_registration_does_not_touch_an_equal_later_one() {
    let f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    let removal = f.registry.clock().tick(f.now.wall);
    assert!(f.beat_register(&at(1, 1.0)).is_empty(), "readers see no change");
    let key = at(1, 1.0).row_key();
    assert!(f.beat_deregister_taken((&key).into(), Some(removal)).is_err());
    assert_eq!(f.weights(), [1.0]);
}

#[test]
fn kf_029_and_kf_092_an_override_ends_with_a_deregister_and_nothing_else() {
    let f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    f.set_override(&at(1, 1.0), 0.0);
    f.beat_register(&at(1, 5.0));
    assert_eq!(f.weights(), [0.0], "a registration does not end it");
    assert_eq!(f.rows()[0].metadata, meta(&[("lane", "a")]));
    f.beat_deregister("10.0.0.1", 1, None);
    f.beat_register(&at(1, 5.0));
    assert_eq!(f.weights(), [5.0]);
    let client = f.client(1);
    f.publish(client, &[at(2, 1.0)]);
    f.set_override(&at(2, 1.0), 0.0);
    f.close(client);
    let again = f.client(2);
    f.publish(again, &[at(2, 7.0)]);
    assert_eq!(f.weights(), [5.0, 0.0], "a disconnect does not end it");
    f.unpublish(again, &at(2, 0.0));
    f.publish(again, &[at(2, 7.0)]);
    assert_eq!(f.weights(), [5.0, 7.0]);
    f.assert_digests_are_true();
}

#[test]
fn a_silent_instance_turns_unhealthy_and_goes_and_a_beat_brings_it_back() {
    let mut f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    let since = Judge::Since(Millis(0));
    f.pass(14_000);
    f.judge(since);
    assert!(f.rows()[0].healthy);
    f.pass(2_000);
    f.judge(since);
    assert!(!f.rows()[0].healthy);
    assert!(f.beat("10.0.0.1", 1, None, Heard::Direct));
    assert!(f.rows()[0].healthy);
    for _ in 0..40 {
        f.pass(1_000);
        f.judge(since);
    }
    assert!(f.rows().is_empty());
    assert!(!f.beat("10.0.0.1", 1, None, Heard::Direct));
    f.assert_digests_are_true();
}

/// Port 1 with these times in its metadata, in seconds.
fn timed(timeout: u64, delete: u64) -> Instance {
    let text = |seconds: u64| (seconds * 1_000).to_string();
    Instance {
        metadata: meta(&[
            (KEY_BEAT_TIMEOUT, &text(timeout)),
            (KEY_DELETE_TIMEOUT, &text(delete)),
        ]),
        ..at(1, 1.0)
    }
}

/// How long a row stays from now on when it is not heard, and how long it is shown healthy, in steps of 100 ms.
fn stays(f: &mut Fixture) -> (u64, u64) {
    let start = f.now.mono;
    let mut healthy_for = Millis(0);
    loop {
        f.pass(100);
        f.judge(Judge::Since(Millis(0)));
        match f.rows().first() {
            Some(row) if row.healthy => healthy_for = f.now.mono.since(start),
            Some(_) => {}
            None => return (f.now.mono.since(start).0, healthy_for.0),
        }
        assert!(f.now.mono.since(start) < Millis(60_000), "it never goes");
    }
}

#[test]
fn a_row_goes_at_its_delete_timeout_even_below_its_beat_timeout() {
    let mut f = Fixture::new(A);
    f.beat_register(&timed(8, 4));
    let (gone, healthy) = stays(&mut f);
    assert!((4_000..=4_400).contains(&gone), "{gone}");
    assert_eq!(healthy, gone - 100, "it never turns unhealthy");
    f.assert_digests_are_true();
}

#[test]
fn shorter_times_count_from_when_they_are_set() {
    let mut f = Fixture::new(A);
    f.beat_register(&timed(40, 50));
    f.beat_register(&timed(8, 4));
    assert!((4_000..=4_400).contains(&stays(&mut f).0), "by a registration");
    f.beat_register(&timed(40, 50));
    let metadata = timed(2, 6).metadata;
    f.override_metadata(&at(1, 1.0), metadata);
    let (gone, healthy) = stays(&mut f);
    assert!((6_000..=6_400).contains(&gone), "by an operator: {gone}");
    assert!((2_000..=2_400).contains(&healthy), "by an operator: {healthy}");
    f.assert_digests_are_true();
}

#[test]
fn longer_times_count_from_when_they_are_set() {
    let mut f = Fixture::new(A);
    f.beat_register(&timed(2, 4));
    f.beat_register(&timed(8, 12));
    let (gone, healthy) = stays(&mut f);
    assert!((12_000..=12_400).contains(&gone), "{gone}");
    assert!((8_000..=8_400).contains(&healthy), "{healthy}");
}

#[test]
fn a_registration_elsewhere_is_a_sign_of_life() {
    let (mut owner, mut other) = (Fixture::new(A), Fixture::new(B));
    owner.beat_register(&at(1, 1.0));
    other.follow(&owner);
    owner.pass(14_000);
    other.pass(14_000);
    other.beat_register(&at(1, 2.0));
    owner.follow(&other);
    owner.pass(14_000);
    owner.judge(Judge::Since(Millis(0)));
    assert!(owner.rows()[0].healthy);
    owner.pass(2_000);
    owner.judge(Judge::Since(Millis(0)));
    assert!(!owner.rows()[0].healthy);
}

#[test]
fn a_census_counts_connections_and_addresses_that_beat() {
    let f = Fixture::new(A);
    f.publish(f.client(1), &[at(1, 1.0), at(2, 1.0)]);
    f.client(2); // Publishes nothing.
    f.beat_register(&at(2, 1.0));
    f.beat_register(&at(3, 1.0));
    f.beat_register(&Instance {
        cluster: "c2".into(),
        ..at(3, 1.0)
    });
    let follower = Fixture::new(B);
    follower.follow(&f);
    let counted = |f: &Fixture, is_owner: bool| {
        let census = f.registry.census(&|_| is_owner);
        let all = (census.connections, census.beating);
        (all, census.own_clients, census.own_instances)
    };
    assert_eq!(counted(&f, true), ((2, 2), 4, 4));
    assert_eq!(counted(&f, false), ((2, 2), 2, 2));
    assert_eq!(
        counted(&follower, true),
        ((1, 2), 2, 3),
        "it knows of who publishes"
    );
    assert_eq!(counted(&follower, false), ((1, 2), 0, 0));
    let census = f.registry.census(&|_| true);
    let published = (census.connection_publications, census.beat_publications);
    assert_eq!(published, (1, 2), "each client once in each service");
    assert_eq!(
        census.busiest,
        [(service(), 3)],
        "the list has changed three times"
    );
}

#[test]
fn the_busiest_services_are_those_that_changed_most() {
    let f = Fixture::new(A);
    for n in 0..12u16 {
        let service = ServiceKey::new("", "", &format!("s{n:02}"));
        for port in 0..=n % 6 {
            let (client, rows) = (f.client(u64::from(n * 10 + port) + 1), vec![at(port, 1.0)]);
            let (log, changes) = (&f.journal, &mut Changes::new());
            f.registry
                .publish(client, &service, rows, f.now, log, changes)
                .unwrap();
        }
    }
    let busiest = f.registry.census(&|_| true).busiest;
    let counts: Vec<_> = busiest.iter().map(|(service, n)| (service.name(), *n)).collect();
    let expected = [
        ("s11", 6),
        ("s05", 6),
        ("s10", 5),
        ("s04", 5),
        ("s09", 4),
        ("s03", 4),
        ("s08", 3),
        ("s02", 3),
        ("s07", 2),
        ("s01", 2),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn a_new_owner_gives_every_row_a_full_time_out() {
    let mut f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    for _ in 0..60 {
        f.pass(1_000);
        f.judge(Judge::Elsewhere);
    }
    let since = Judge::Since(f.now.mono);
    f.pass(14_000);
    f.judge(since);
    assert!(f.rows()[0].healthy);
    f.pass(2_000);
    f.judge(since);
    assert!(!f.rows()[0].healthy);
    f.pass(15_000);
    f.judge(since);
    assert!(f.rows().is_empty());
}

#[test]
fn a_member_that_hears_the_beats_objects_to_a_verdict() {
    let (mut owner, mut other) = (Fixture::new(A), Fixture::new(B));
    owner.beat_register(&at(1, 1.0));
    other.follow(&owner);
    // The client beats only at B, and A hears nothing of it.
    for _ in 0..32 {
        owner.pass(1_000);
        other.pass(1_000);
        other.beat("10.0.0.1", 1, None, Heard::Direct);
        owner.judge(Judge::Since(Millis(0)));
        other.follow(&owner);
        assert!(other.rows()[0].healthy);
    }
    owner.follow(&other);
    assert!(owner.rows()[0].healthy);
    assert_eq!(owner.registry.digests().root(B), other.registry.digests().root(B));
}

#[test]
fn a_member_that_is_told_of_the_beats_objects_to_a_verdict_but_not_by_one_that_was_told_late() {
    // The client beats at a member that A does not hear. B is told of the last beat a second after it came.
    for (last_beat, is_shown) in [(14, true), (3, true), (1, false)] {
        let (mut owner, mut deputy) = (Fixture::new(A), Fixture::new(B));
        owner.beat_register(&at(1, 1.0));
        deputy.follow(&owner);
        for second in 1..=16 {
            owner.pass(1_000);
            deputy.pass(1_000);
            if second == last_beat + 1 {
                deputy.beat("10.0.0.1", 1, None, Heard::Relayed);
            }
        }
        owner.judge(Judge::Since(Millis(0)));
        deputy.follow(&owner);
        assert_eq!(deputy.rows()[0].healthy, is_shown, "last beat at {last_beat} s");
    }
}

#[test]
fn an_orphan_gives_way_to_its_publisher_wherever_it_appears() {
    let (a, b) = (Fixture::new(A), Fixture::new(B));
    a.publish(a.client(1), &[at(1, 1.0)]);
    a.publish(a.client(2), &[at(2, 1.0)]);
    b.follow(&a);
    assert_eq!(b.set_orphans_of(2, true), 2);
    b.publish(b.client(9), &[at(1, 1.0)]);
    assert_eq!(b.rows().len(), 2);
    assert_eq!(b.drop_orphans(b.registry.fleet_of(A)), 1);
    assert_eq!(b.rows().iter().map(|i| i.port).collect::<Vec<_>>(), [1]);
    assert_eq!(b.registry.digests().root(A), 0);
    b.assert_digests_are_true();
}

#[test]
fn an_orphan_is_taken_beside_an_older_living_publisher_only() {
    let (a, b) = (Fixture::new(A), Fixture::new(B));
    a.publish(a.client(1), &[at(1, 1.0)]);
    b.follow(&a);
    let (living, tell) = (a.client(1), |client, time| {
        let stamp = Stamp { time, member: B };
        let changes = &mut Changes::new();
        b.registry
            .apply_orphan(client, &service(), Arc::new(at(1, 2.0)), stamp, b.now, changes);
    });
    let elsewhere = |number| ClientId {
        origin: MemberId(3),
        number,
    };
    tell(elsewhere(8), 1);
    assert_eq!(b.registry.n_orphans(), 0);
    tell(elsewhere(9), u64::MAX >> 1);
    assert_eq!(b.weights(), [1.0], "the living one comes first");
    b.apply(RowOp::ClientGone { client: living });
    assert_eq!(b.weights(), [2.0]);
    b.assert_digests_are_true();
}

/// A client has gone from a member that stands still to one that has died: what it said last is an orphan.
#[test]
fn what_a_client_left_behind_does_not_show_before_a_newer_orphan() {
    for is_told_in_order in [true, false] {
        let b = Fixture::new(B);
        let client = |origin| ClientId { origin, number: 1 };
        let still = MemberId(3);
        let publish = |origin, weight| RowOp::Publish {
            client: client(origin),
            service: service(),
            instance: Arc::new(at(1, weight)),
            stamp: Stamp {
                time: weight as u64,
                member: origin,
            },
        };
        let (older, newer) = (publish(still, 1.0), publish(A, 2.0));
        let told = if is_told_in_order {
            [&older, &newer]
        } else {
            [&newer, &older]
        };
        for op in told {
            b.apply(op.clone());
        }
        assert_eq!(b.set_orphans_of(1, true), 1);
        assert_eq!(b.weights(), [2.0], "told in order: {is_told_in_order}");
        b.apply(older);
        assert_eq!(
            b.weights(),
            [2.0],
            "it is told again, and nobody has published anything"
        );
        b.assert_digests_are_true();
        assert_eq!(b.drop_orphans(b.registry.fleet_of(A)), 1);
        assert_eq!(b.weights(), [1.0]);
    }
}

#[test]
fn a_client_that_comes_to_a_member_whose_clock_is_behind_takes_the_place_of_its_orphan() {
    let (a, b) = (Fixture::new(A), Fixture::new(B));
    a.publish(a.client(1), &[at(1, 1.0)]);
    b.follow(&a);
    assert_eq!(b.set_orphans_of(1, true), 1);
    let member = MemberId(3);
    let client = ClientId {
        origin: member,
        number: 1,
    };
    let (stamp, instance) = (Stamp { time: 1, member }, Arc::new(at(1, 2.0)));
    let changes = &mut Changes::new();
    let r = &b.registry;
    r.repair_publish(client, &service(), instance.clone(), stamp, b.now, changes);
    assert_eq!(b.weights(), [1.0], "what a repair tells may be long past");
    b.apply(RowOp::ClientGone { client });
    r.apply_publish(client, &service(), instance, stamp, b.now, changes);
    assert_eq!(b.weights(), [2.0]);
    assert_eq!(r.n_orphans(), 0);
    b.assert_digests_are_true();
}

#[test]
fn a_row_is_not_superseded_while_what_was_published_since_is_an_orphan() {
    let (a, b) = (Fixture::new(A), Fixture::new(B));
    let own = b.client(9);
    b.publish(own, &[at(1, 1.0)]);
    a.registry.clock().observe(b.registry.clock().tick(b.now.wall));
    a.publish(a.client(1), &[at(1, 2.0)]);
    b.follow(&a);
    assert_eq!(b.registry.superseded(own).len(), 1);
    let mut fleet = b.registry.fleet_of(A);
    let changes = &mut Changes::new();
    let orphaned = b.registry.set_orphans(&mut fleet, true, 9, b.now, changes);
    assert_eq!(orphaned, 1);
    assert!(
        b.registry.superseded(own).is_empty(),
        "its client is on its way from there"
    );
    b.drop_orphans(b.registry.fleet_of(A));
    assert_eq!(b.registry.superseded(own).len(), 1);
}

#[test]
fn the_orphan_of_a_slow_client_stays_when_the_others_go() {
    let (a, b) = (Fixture::new(A), Fixture::new(B));
    a.publish(a.client(1), &[at(1, 1.0)]);
    let slow = ClientId::new(A, 2, true);
    a.registry.open_client(slow);
    a.publish(slow, &[at(2, 1.0)]);
    b.follow(&a);
    assert_eq!(b.set_orphans_of(2, true), 2);
    assert_eq!(b.drop_orphans(b.registry.quick_fleet_of(A)), 1);
    assert_eq!(
        b.rows().iter().map(|i| i.port).collect::<Vec<_>>(),
        [2],
        "the slow client stays"
    );
    assert_eq!(b.drop_orphans(b.registry.fleet_of(A)), 1);
    assert!(b.rows().is_empty());
}

fn settings(protect_threshold: f64) -> Record {
    Record::Service(Arc::new(ServiceSettings {
        protect_threshold,
        metadata: Metadata::default(),
        selector: "".into(),
        is_ephemeral: true,
    }))
}

#[test]
fn a_service_with_settings_is_listed_without_instances_until_they_are_removed() {
    let (a, b) = (Fixture::new(A), Fixture::new(B));
    let key = RecordKey::Service(service());
    a.set_record(&key, Some(settings(0.0)));
    b.follow(&a);
    for f in [&a, &b] {
        assert_eq!(f.registry.catalog().len(), 1);
        assert_eq!(
            f.registry.service_settings(&service()).unwrap().protect_threshold,
            0.0
        );
        f.assert_digests_are_true();
    }
    assert_eq!(a.registry.digests().root(A), b.registry.digests().root(A));
    b.set_record(&key, None);
    a.follow(&b);
    for f in [&a, &b] {
        assert!(f.registry.catalog().is_empty());
        assert_eq!(
            f.registry.digests().root(A),
            0,
            "the removal is B's and counts nothing"
        );
        f.assert_digests_are_true();
    }
    let late = Stamp { time: 1, member: A };
    assert!(
        !a.registry
            .apply_record(&key, Some(settings(0.5)), late, a.now, &mut Changes::new())
    );
}

#[test]
fn kf_046_protection_shows_all_as_healthy_but_not_to_those_who_ask_for_healthy_ones() {
    let f = Fixture::new(A);
    for port in 1..=5 {
        f.beat_register(&Instance {
            healthy: port == 1,
            ..at(port, 1.0)
        });
    }
    let select = |healthy_only| {
        let view = f.registry.service(&service()).unwrap().view();
        let selection = Selection {
            clusters: "",
            healthy_only,
        };
        let selected = view.select(&selection);
        let n_healthy = selected.instances.iter().filter(|i| i.healthy).count();
        (selected.instances.len(), n_healthy, selected.reach_protection)
    };
    assert_eq!(select(false), (5, 1, false), "no settings, no protection");
    let changes = f.set_record(&RecordKey::Service(service()), Some(settings(0.8)));
    assert_eq!(changes, [service()], "subscribers are told");
    assert_eq!(select(false), (5, 5, true));
    assert_eq!(select(true), (1, 1, false));
    assert_eq!(
        f.rows().iter().filter(|i| !i.healthy).count(),
        4,
        "operators see the truth"
    );
    f.set_record(&RecordKey::Service(service()), Some(settings(0.1)));
    assert_eq!(select(false), (5, 1, false));
    f.set_record(&RecordKey::Service(service()), None);
    assert_eq!(select(false), (5, 1, false));
}

#[test]
fn a_quarantined_row_is_hidden_whatever_its_publisher_does_until_it_is_lifted() {
    let mut f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    f.beat_register(&at(2, 1.0));
    let key = RecordKey::Quarantine(
        service(),
        HiddenRows {
            ip: "10.0.0.1".into(),
            port: 1,
            cluster: None,
        },
    );
    let until = f.now.wall + Millis::secs(60);
    let why = Record::Quarantine(Arc::new(Quarantine {
        until: Some(until),
        reason: "sick".into(),
    }));
    let ports = |f: &Fixture| f.rows().iter().map(|i| i.port).collect::<Vec<_>>();
    assert_eq!(f.set_record(&key, Some(why)), [service()]);
    assert_eq!(ports(&f), [2]);
    assert!(
        f.beat_register(&at(1, 7.0)).is_empty(),
        "a registration does not lift it"
    );
    assert!(
        f.beat("10.0.0.1", 1, None, Heard::Direct),
        "beats are answered as ever"
    );
    f.beat_deregister("10.0.0.1", 1, None);
    f.beat_register(&at(1, 8.0));
    assert_eq!(ports(&f), [2]);
    assert_eq!(f.registry.publications(&service()).len(), 2, "operators see it");
    let clean = |f: &Fixture, owns: bool| {
        let (life, journal, changes) = (Millis::secs(600), &f.journal, &mut Changes::new());
        f.registry.clean_records(life, f.now, &|_| owns, journal, changes);
    };
    clean(&f, true);
    assert_eq!(ports(&f), [2]);
    f.now.wall = until;
    clean(&f, false);
    assert_eq!(ports(&f), [2], "only the owner ends it");
    clean(&f, true);
    assert_eq!(ports(&f), [1, 2]);
    f.assert_digests_are_true();
}

/// A registry that holds lists of the tests' service for five seconds.
fn guarded() -> Fixture {
    let f = Fixture::new(A);
    guard(&f, Guarded::Service(service()), Some(5_000));
    f
}

fn guard(f: &Fixture, guarded: Guarded, time: Option<u64>) -> Changes {
    let record = time.map(|time| Guarded::record(Millis(time)));
    f.set_record(&guarded.record_key(), record)
}

/// How many rows readers see.
fn n_shown(f: &Fixture) -> usize {
    f.registry.read(&service(), f.now.wall).0.len()
}

fn released(f: &Fixture) -> Changes {
    let mut changes = Changes::new();
    f.registry.release_held(f.now.mono, &mut changes);
    changes
}

#[test]
fn the_list_of_a_guarded_service_stays_for_a_time_when_its_last_instance_falls_silent() {
    let mut f = guarded();
    let (first, second) = (f.client(1), f.client(2));
    f.publish(first, &[at(1, 1.0)]);
    f.publish(second, &[at(2, 1.0)]);
    f.close(first);
    assert_eq!(n_shown(&f), 1, "a list that is not empty is not held");
    f.close(second);
    assert_eq!((n_shown(&f), f.rows().len()), (1, 0), "operators see what is");
    f.pass(4_999);
    assert_eq!((released(&f), n_shown(&f)), (vec![], 1));
    f.pass(1);
    assert_eq!(f.registry.next_release(), Some(f.now.mono));
    assert_eq!((released(&f), n_shown(&f)), (vec![service()], 0));
    assert_eq!((released(&f), f.registry.n_held()), (vec![], 0));
}

#[test]
fn an_instance_that_comes_back_ends_the_hold_and_the_next_one_is_counted_anew() {
    let mut f = guarded();
    f.beat_register(&timed(1, 2));
    f.pass(2_300);
    f.judge(Judge::Since(Millis(0)));
    assert_eq!((n_shown(&f), f.rows().len()), (1, 0));
    f.pass(3_000);
    let client = f.client(1);
    f.publish(client, &[at(7, 1.0)]);
    assert_eq!((n_shown(&f), f.registry.n_held()), (1, 0));
    f.close(client);
    f.pass(4_000);
    assert_eq!((released(&f), n_shown(&f)), (vec![], 1));
}

#[test]
fn what_somebody_wants_is_never_held() {
    let f = guarded();
    let client = f.client(1);
    f.publish(client, &[at(1, 1.0)]);
    f.unpublish(client, &at(1, 1.0));
    assert_eq!(n_shown(&f), 0);
    f.publish(client, &[at(1, 1.0)]);
    f.publish(client, &[]);
    assert_eq!(n_shown(&f), 0);
    f.beat_register(&at(2, 1.0));
    f.beat_deregister("10.0.0.1", 2, None);
    assert_eq!(n_shown(&f), 0);
    // The same told by another member.
    let follower = guarded();
    follower.follow(&f);
    f.publish(client, &[at(1, 1.0)]);
    f.beat_register(&at(2, 1.0));
    follower.follow(&f);
    assert_eq!(n_shown(&follower), 2);
    f.unpublish(client, &at(1, 1.0));
    f.beat_deregister("10.0.0.1", 2, None);
    follower.follow(&f);
    assert_eq!((n_shown(&follower), follower.registry.n_held()), (0, 0));
}

#[test]
fn other_members_hold_what_falls_silent_elsewhere() {
    let (f, mut follower) = (Fixture::new(A), Fixture::new(B));
    guard(&f, Guarded::Namespace("public".into()), Some(5_000));
    let client = f.client(1);
    f.publish(client, &[at(1, 1.0)]);
    f.close(client);
    follower.follow(&f);
    assert_eq!((n_shown(&follower), n_shown(&f)), (1, 1));
    follower.pass(5_000);
    assert_eq!((released(&follower), n_shown(&follower)), (vec![service()], 0));
}

#[test]
fn an_operator_ends_a_hold_by_hiding_the_row_or_by_ending_the_guard() {
    let f = guarded();
    let silent = |f: &Fixture| {
        let client = f.client(1);
        f.publish(client, &[at(1, 1.0)]);
        f.close(client);
        assert_eq!(n_shown(f), 1);
    };
    silent(&f);
    let hidden = HiddenRows {
        ip: "10.0.0.1".into(),
        port: 1,
        cluster: None,
    };
    let why = Arc::new(Quarantine {
        until: None,
        reason: "".into(),
    });
    let key = RecordKey::Quarantine(service(), hidden);
    assert_eq!(f.set_record(&key, Some(Record::Quarantine(why))), [service()]);
    assert_eq!(n_shown(&f), 0);
    f.set_record(&key, None);
    silent(&f);
    assert_eq!(guard(&f, Guarded::Service(service()), None), [service()]);
    assert_eq!((n_shown(&f), f.registry.n_held()), (0, 0));
}

#[test]
fn the_guard_of_a_service_counts_more_than_that_of_its_namespace() {
    let f = Fixture::new(A);
    let all = Guarded::Namespace("public".into());
    guard(&f, all.clone(), Some(90_000));
    assert_eq!(f.registry.guard_of(&service()), Some((all, guard::GUARD_MAX)));
    guard(&f, Guarded::Service(service()), Some(0));
    let client = f.client(1);
    f.publish(client, &[at(1, 1.0)]);
    f.close(client);
    assert_eq!(n_shown(&f), 0);
    assert_eq!(f.registry.guard_of(&ServiceKey::new("dev", "", "s")), None);
}

#[test]
fn a_row_that_is_quarantined_before_its_service_is_there_is_hidden_too() {
    let f = Fixture::new(A);
    let rows = HiddenRows {
        ip: "10.0.0.1".into(),
        port: 1,
        cluster: None,
    };
    let key = RecordKey::Quarantine(service(), rows);
    let why = Quarantine {
        until: None,
        reason: "sick".into(),
    };
    f.set_record(&key, Some(Record::Quarantine(Arc::new(why))));
    f.beat_register(&at(1, 1.0));
    f.beat_register(&at(2, 1.0));
    let ports = |f: &Fixture| f.rows().iter().map(|i| i.port).collect::<Vec<_>>();
    assert_eq!(ports(&f), [2]);
    assert_eq!(f.set_record(&key, None), [service()]);
    assert_eq!(ports(&f), [1, 2]);
}

#[test]
fn what_operators_change_is_handed_to_the_store_once() {
    let f = Fixture::new(A);
    f.beat_register(&at(1, 1.0));
    f.set_override(&at(1, 1.0), 0.5);
    f.set_record(&RecordKey::Switch("x".into()), Some(Record::Switch("1".into())));
    let ops = f.registry.take_durable();
    assert!(matches!(
        ops.as_slice(),
        [RowOp::Versioned { .. }, RowOp::Record { .. }]
    ));
    assert!(f.registry.take_durable().is_empty());
}

#[test]
fn an_empty_service_leaves_the_catalogue_and_can_come_back() {
    let mut f = Fixture::new(A);
    let client = f.client(1);
    f.publish(client, &[at(1, 1.0)]);
    f.publish(client, &[]);
    let lives = Lives {
        empty_service: Millis(60_000),
        operator_tombstone: Millis::secs(600),
        tombstone: Millis(1),
        over: Millis(1),
    };
    let clean = |f: &Fixture| {
        for bucket in 0..N_BUCKETS {
            f.registry
                .clean(bucket, lives, f.now, &|_| true, &f.journal, &mut Changes::new());
        }
    };
    f.pass(59_000);
    clean(&f);
    assert_eq!(f.registry.catalog().len(), 1);
    f.pass(2_000);
    clean(&f);
    assert_eq!(f.registry.catalog().len(), 0);
    assert!(f.registry.service(&service()).is_none());
    f.publish(client, &[at(1, 1.0)]);
    assert_eq!((f.registry.catalog().len(), f.rows().len()), (1, 1));
}

#[derive(Clone, Debug)]
enum Write {
    Publish(u64, Vec<(u16, u8)>),
    Close(u64),
    Register(u16, u8),
    Deregister(u16),
    Override(u16, u8),
    Orphan,
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let write = prop_oneof![
        (0u64..4, proptest::collection::vec((0u16..6, 0u8..4), 0..4))
            .prop_map(|(c, rows)| Write::Publish(c, rows)),
        (0u64..4).prop_map(Write::Close),
        (0u16..6, 0u8..4).prop_map(|(p, w)| Write::Register(p, w)),
        (0u16..6).prop_map(Write::Deregister),
        (0u16..6, 0u8..4).prop_map(|(p, w)| Write::Override(p, w)),
        Just(Write::Orphan),
    ];
    proptest::collection::vec(write, 1..60)
}

fn carry_out(f: &Fixture, write: Write, next_client: &mut u64, clients: &mut BTreeMap<u64, ClientId>) {
    match write {
        Write::Publish(slot, rows) => {
            let client = *clients.entry(slot).or_insert_with(|| {
                *next_client += 1;
                f.client(*next_client)
            });
            let instances: Vec<_> = rows.iter().map(|(p, w)| at(*p, f64::from(*w))).collect();
            f.publish(client, &instances);
        }
        Write::Close(slot) => {
            if let Some(client) = clients.remove(&slot) {
                f.close(client);
            }
        }
        Write::Register(port, weight) => drop(f.beat_register(&at(port, f64::from(weight)))),
        Write::Deregister(port) => f.beat_deregister("10.0.0.1", port, None),
        Write::Override(port, weight) => {
            let edit = OverrideEdit::Replace(Override {
                weight: f64::from(weight),
                enabled: true,
                metadata: Metadata::default(),
            });
            let (now, journal, changes) = (f.now, &f.journal, &mut Changes::new());
            let set = f.registry.edit_override(
                &service(),
                RowAddress {
                    ip: "10.0.0.1",
                    port,
                    cluster: None,
                },
                edit,
                MAX_METADATA,
                None,
                now,
                journal,
                changes,
            );
            drop(set);
        }
        Write::Orphan => {}
    }
}

proptest! {
    /// A member that follows another's log shows the same rows and has the same digests; orphan marks come and go
    /// without changing either for good; and digests are always what a recount gives.
    #[test]
    fn a_follower_equals_its_origin(writes in writes()) {
        let (origin, follower) = (Fixture::new(A), Fixture::new(B));
        let (mut next, mut clients) = (0, BTreeMap::new());
        for write in writes {
            // Where a newer publisher has taken over, the mark ends the older one: that is repaired by digest.
            let is_simple = follower.registry.publications(&service()).iter().all(|(_, p)| p.len() == 1);
            if let Write::Orphan = write && is_simple {
                let n_clients = follower.registry.n_clients();
                follower.set_orphans_of(n_clients.div_ceil(2), true);
                follower.set_orphans_of(n_clients, false);
            }
            carry_out(&origin, write, &mut next, &mut clients);
            follower.follow(&origin);
            prop_assert_eq!(origin.rows(), follower.rows());
        }
        origin.assert_digests_are_true();
        follower.assert_digests_are_true();
        prop_assert_eq!(origin.registry.digests().all(A), follower.registry.digests().all(A));
        prop_assert_eq!(origin.registry.n_rows(), origin.rows().len());
    }

    /// Versioned rows end the same in whatever order two members' writes arrive.
    #[test]
    fn versioned_rows_converge_in_any_order(
        ops in proptest::collection::vec((0u16..3, 1u64..40, 0u64..2, 0u8..4), 1..40), seed in proptest::num::u64::ANY
    ) {
        let op = |(port, time, member, kind): (u16, u64, u64, u8)| {
            let row = at(port, time as f64).row_key();
            let value = match kind {
                0 => VersionedValue::NoBeat { expired: false },
                1 => VersionedValue::Override(Arc::new(Override {
                    weight: time as f64, enabled: true, metadata: Metadata::default(),
                })),
                _ => VersionedValue::Beat(Arc::new(at(port, (time * 2 + member) as f64))),
            };
            // One stamp stands for one write of one row.
            let stamp = Stamp { time: time * 100 + u64::from(port) * 10 + u64::from(kind), member: MemberId(10 + member) };
            RowOp::Versioned { service: service(), row, stamp, value }
        };
        let ops: Vec<_> = ops.into_iter().map(op).collect();
        let mut shuffled = ops.clone();
        let mut state = seed | 1;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(i, (state >> 33) as usize % (i + 1));
        }
        let (a, b) = (Fixture::new(A), Fixture::new(B));
        ops.into_iter().for_each(|op| a.apply(op));
        shuffled.into_iter().for_each(|op| b.apply(op));
        prop_assert_eq!(a.rows(), b.rows());
        for origin in [MemberId(10), MemberId(11)] {
            prop_assert_eq!(a.registry.digests().all(origin), b.registry.digests().all(origin));
        }
        a.assert_digests_are_true();
    }
}

#[test]
fn row_keys_sort_by_address() {
    let key = |ip: &str, port| RowKey {
        ip: ip.into(),
        port,
        cluster: "c".into(),
    };
    assert!(key("10.0.0.1", 2) < key("10.0.0.1", 10) && key("10.0.0.1", 9) < key("10.0.0.2", 1));
}
