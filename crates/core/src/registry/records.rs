//! Operator data beside the rows: namespaces, settings of services and clusters, quarantines, switches.
//!
//! Each record is versioned like a beat row: the greater stamp wins on whatever member it arrives, and a removal is
//! remembered. So operators can act at any member, without a quorum (`design.md` §4).

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use smol_str::SmolStr;

use crate::clock::{Millis, Now, Stamp};
use crate::model::metadata::Metadata;
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, Journal, RowOp};
use crate::registry::digest::{N_BUCKETS, contribution, record_id};
use crate::registry::edit::Edit;

/// What a record is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RecordKey {
    /// A namespace, by its id.
    Namespace(SmolStr),
    /// A service.
    Service(ServiceKey),
    /// A cluster of a service.
    Cluster(ServiceKey, SmolStr),
    /// Rows of a service that nobody shall see.
    Quarantine(ServiceKey, HiddenRows),
    /// A switch, by its name.
    Switch(SmolStr),
}

/// The rows that a quarantine hides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HiddenRows {
    /// Address as registered.
    pub ip: SmolStr,
    /// Port.
    pub port: u16,
    /// The cluster; `None` for all.
    pub cluster: Option<SmolStr>,
}

/// Content of a record; its kind is that of its key.
#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    /// See [`RecordKey::Namespace`].
    Namespace(Arc<NamespaceSettings>),
    /// See [`RecordKey::Service`].
    Service(Arc<ServiceSettings>),
    /// See [`RecordKey::Cluster`].
    Cluster(Arc<ClusterSettings>),
    /// See [`RecordKey::Quarantine`].
    Quarantine(Arc<Quarantine>),
    /// See [`RecordKey::Switch`].
    Switch(SmolStr),
}

/// What operators say of a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceSettings {
    /// Name for people.
    pub name: SmolStr,
    /// Description; may be empty.
    pub description: SmolStr,
}

/// What operators say of a service. A service that has settings stays listed without instances.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceSettings {
    /// Share of healthy instances at or below which all are shown as healthy; negative counts as 0
    /// (`spec/validation.md` §9).
    pub protect_threshold: f64,
    /// Pairs of text.
    pub metadata: Metadata,
    /// The selector as JSON text; empty for none.
    pub selector: SmolStr,
    /// False: made for persistent instances.
    pub is_ephemeral: bool,
}

/// What operators say of a cluster of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterSettings {
    /// The health checker as JSON text.
    pub health_checker: SmolStr,
    /// Port that is checked unless the instance's own is.
    pub check_port: u16,
    /// The instance's own port is checked.
    pub uses_instance_port: bool,
    /// Pairs of text.
    pub metadata: Metadata,
}

/// Why and how long rows are hidden.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarantine {
    /// Wall time at which it ends; `None` when it has to be lifted.
    pub until: Option<Millis>,
    /// For people.
    pub reason: SmolStr,
}

#[derive(Clone, Debug)]
struct Stored {
    stamp: Stamp,
    /// `None`: removed.
    record: Option<Record>,
    /// When this member took it.
    at: Millis,
}

/// The table of records, by bucket: all that is said of a service is in the service's bucket.
#[derive(Debug)]
pub(crate) struct Records {
    buckets: Vec<RwLock<Bucket>>,
    /// How often a switch was set or removed.
    n_switched: AtomicU64,
}

type Bucket = BTreeMap<RecordKey, Stored>;

impl Default for Records {
    fn default() -> Self {
        Records {
            buckets: (0..N_BUCKETS).map(|_| RwLock::default()).collect(),
            n_switched: AtomicU64::new(0),
        }
    }
}

impl Records {
    fn bucket(&self, bucket: usize) -> &RwLock<Bucket> {
        &self.buckets[bucket % N_BUCKETS]
    }

    fn of(&self, key: &RecordKey) -> &RwLock<Bucket> {
        self.bucket(key.bucket())
    }

    /// What `read` makes of each record that is there, of those with a key from `from` on, sorted by key.
    fn live<T>(&self, from: Option<&RecordKey>, read: impl Fn(&RecordKey, &Record) -> Option<T>) -> Vec<T> {
        let mut found: Vec<(RecordKey, T)> = Vec::new();
        for bucket in &self.buckets {
            let bucket = bucket.read();
            let records = bucket.range((from.map_or(Unbounded, Included), Unbounded));
            let live = records.filter_map(|(key, stored)| {
                let read = read(key, stored.record.as_ref()?)?;
                Some((key.clone(), read))
            });
            found.extend(live);
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.into_iter().map(|(_, read)| read).collect()
    }
}

impl RecordKey {
    /// The service that the record is about.
    pub fn service(&self) -> Option<&ServiceKey> {
        match self {
            RecordKey::Service(service)
            | RecordKey::Cluster(service, _)
            | RecordKey::Quarantine(service, _) => Some(service),
            RecordKey::Namespace(_) | RecordKey::Switch(_) => None,
        }
    }

    /// What the record is about, for people.
    pub fn subject(&self) -> String {
        match self {
            RecordKey::Namespace(id) => format!("namespace {id}"),
            RecordKey::Switch(name) => format!("switch {name}"),
            RecordKey::Service(service)
            | RecordKey::Cluster(service, _)
            | RecordKey::Quarantine(service, _) => service.to_string(),
        }
    }

    /// A text that no other key has, the same on every member and in every version.
    pub fn text(&self) -> String {
        match self {
            RecordKey::Namespace(id) => format!("n\0{id}"),
            RecordKey::Service(service) => format!("s\0{service}"),
            RecordKey::Cluster(service, cluster) => format!("c\0{service}\0{cluster}"),
            RecordKey::Quarantine(service, rows) => {
                let cluster = rows.cluster.as_deref().unwrap_or("\0");
                format!("q\0{service}\0{}\0{}\0{cluster}", rows.ip, rows.port)
            }
            RecordKey::Switch(name) => format!("w\0{name}"),
        }
    }

    pub(crate) fn stable_hash(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.text().as_bytes())
    }

    fn bucket(&self) -> usize {
        let hash = self
            .service()
            .map_or_else(|| self.stable_hash(), ServiceKey::stable_hash);
        hash as usize % N_BUCKETS
    }

    /// True when `record` is of this key's kind.
    pub fn fits(&self, record: &Record) -> bool {
        matches!(
            (self, record),
            (RecordKey::Namespace(_), Record::Namespace(_))
                | (RecordKey::Service(_), Record::Service(_))
                | (RecordKey::Cluster(..), Record::Cluster(_))
                | (RecordKey::Quarantine(..), Record::Quarantine(_))
                | (RecordKey::Switch(_), Record::Switch(_))
        )
    }
}

impl HiddenRows {
    /// True when a row is among them.
    pub fn has(&self, ip: &str, port: u16, cluster: &str) -> bool {
        self.ip == ip && self.port == port && self.cluster.as_ref().is_none_or(|c| c == cluster)
    }
}

impl Registry {
    /// Sets a record, or removes it, here and now: newer than every version that this member knows.
    ///
    /// A record of another kind than its key's is left out.
    pub fn set_record(
        &self,
        key: &RecordKey,
        record: Option<Record>,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) {
        if record.as_ref().is_some_and(|r| !key.fits(r)) {
            return;
        }
        let time = self.clock.tick(now.wall);
        let stamp = Stamp {
            time,
            member: self.me,
        };
        self.put_record(key, record, stamp, now, Some(journal), changes);
    }

    /// Applies a record that another member reports, or that this one has stored. False when what is here is as new.
    pub fn apply_record(
        &self,
        key: &RecordKey,
        record: Option<Record>,
        stamp: Stamp,
        now: Now,
        changes: &mut Changes,
    ) -> bool {
        self.clock.observe(stamp.time);
        if record.as_ref().is_some_and(|r| !key.fits(r)) {
            return false;
        }
        self.put_record(key, record, stamp, now, None, changes)
    }

    fn put_record(
        &self,
        key: &RecordKey,
        record: Option<Record>,
        stamp: Stamp,
        now: Now,
        journal: Option<&dyn Journal>,
        changes: &mut Changes,
    ) -> bool {
        let (id, bucket) = (record_id(key.stable_hash()), key.bucket());
        let mut table = self.records.bucket(bucket).write();
        let former = table.get(key);
        if former.is_some_and(|f| f.stamp >= stamp) {
            return false;
        }
        let mut own_delta = 0u64;
        if let Some(former) = former.filter(|f| f.record.is_some()) {
            let less = contribution(id, former.stamp).wrapping_neg();
            if journal.is_some() && former.stamp.member == self.me {
                own_delta = less;
            } else {
                self.digests.add(former.stamp.member, bucket, less);
            }
        }
        let more = if record.is_some() {
            contribution(id, stamp)
        } else {
            0
        };
        let op = RowOp::Record {
            key: key.clone(),
            stamp,
            record: record.clone(),
        };
        let at = now.mono;
        table.insert(key.clone(), Stored { stamp, record, at });
        if matches!(key, RecordKey::Switch(_)) {
            self.records.n_switched.fetch_add(1, Ordering::Release);
        }
        self.durable.lock().push(op.clone());
        match journal {
            Some(journal) => {
                journal.record(op, &self.digests, bucket, own_delta.wrapping_add(more));
            }
            None => self.digests.add(stamp.member, bucket, more),
        }
        drop(table);
        if let Some(service) = key.service() {
            self.renew_settings(service, now, changes);
        }
        self.renew_guard(key, changes);
        true
    }

    /// Lets a service take note of what its records say now.
    fn renew_settings(&self, service: &ServiceKey, now: Now, changes: &mut Changes) {
        let settings = || match self.record(&RecordKey::Service(service.clone())) {
            Some(Record::Service(settings)) => Some(settings),
            _ => None,
        };
        let renew = |edit: &mut Edit<'_>| {
            // Read under the service's lock: whoever comes last has read the newest.
            edit.renew_settings(settings(), self.hidden_rows(service));
            if edit.rows.len() == 0 && edit.rows.settings.is_none() && edit.rows.listed.take().is_some() {
                self.catalog.remove(service);
            }
        };
        if settings().is_some() {
            self.edit(service, now.mono, changes, renew);
        } else {
            self.edit_existing(service, now.mono, changes, renew);
        }
    }

    /// The content of a record; `None` when there is none.
    pub fn record(&self, key: &RecordKey) -> Option<Record> {
        self.records.of(key).read().get(key)?.record.clone()
    }

    /// What operators say of a service, if anything.
    pub fn service_settings(&self, service: &ServiceKey) -> Option<Arc<ServiceSettings>> {
        match self.record(&RecordKey::Service(service.clone()))? {
            Record::Service(settings) => Some(settings),
            _ => None,
        }
    }

    /// The records that are there, sorted by key.
    pub fn all_records(&self) -> Vec<(RecordKey, Record)> {
        let copy = |key: &RecordKey, record: &Record| Some((key.clone(), record.clone()));
        self.records.live(None, copy)
    }

    /// Another number whenever a switch has been set or removed. Read it before [`Registry::switches`].
    pub fn n_switched(&self) -> u64 {
        self.records.n_switched.load(Ordering::Acquire)
    }

    /// The switches that are set, sorted by name. Looks at every bucket.
    pub fn switches(&self) -> Vec<(SmolStr, SmolStr)> {
        // Switches are the last kind of key.
        let from = RecordKey::Switch(SmolStr::default());
        self.records.live(Some(&from), |key, record| match (key, record) {
            (RecordKey::Switch(name), Record::Switch(value)) => Some((name.clone(), value.clone())),
            _ => None,
        })
    }

    /// The clusters of a service that have settings, sorted.
    pub fn set_clusters(&self, service: &ServiceKey) -> Vec<SmolStr> {
        let from = RecordKey::Cluster(service.clone(), SmolStr::default());
        let table = self.records.of(&from).read();
        let of_service = table.range(&from..).map_while(|(key, stored)| match key {
            RecordKey::Cluster(of, cluster) if of == service => Some((cluster, stored)),
            _ => None,
        });
        let set = of_service.filter(|(_, stored)| stored.record.is_some());
        set.map(|(cluster, _)| cluster.clone()).collect()
    }

    /// The rows of a service that are hidden, with why.
    pub fn hidden_rows(&self, service: &ServiceKey) -> Vec<(HiddenRows, Arc<Quarantine>)> {
        let first = HiddenRows {
            ip: SmolStr::default(),
            port: 0,
            cluster: None,
        };
        let from = RecordKey::Quarantine(service.clone(), first);
        let table = self.records.of(&from).read();
        let mut found = Vec::new();
        for (key, stored) in table.range(from..) {
            match (key, &stored.record) {
                (RecordKey::Quarantine(of, rows), Some(Record::Quarantine(why))) if of == service => {
                    found.push((rows.clone(), why.clone()));
                }
                (RecordKey::Quarantine(of, _), None) if of == service => {}
                _ => break,
            }
        }
        found
    }

    /// The records of a bucket as operations; with `graves`, also what is known to be removed.
    pub(crate) fn record_ops(&self, bucket: usize, graves: bool) -> Vec<(u64, Stamp, RowOp)> {
        let table = self.records.bucket(bucket).read();
        let meant = table
            .iter()
            .filter(|(_, stored)| graves || stored.record.is_some());
        meant
            .map(|(key, stored)| {
                let op = RowOp::Record {
                    key: key.clone(),
                    stamp: stored.stamp,
                    record: stored.record.clone(),
                };
                (record_id(key.stable_hash()), stored.stamp, op)
            })
            .collect()
    }

    /// The current state of a record as an operation: its content, or its removal if that is remembered.
    pub fn record_op(&self, key: &RecordKey) -> Option<RowOp> {
        let table = self.records.of(key).read();
        let stored = table.get(key)?;
        Some(RowOp::Record {
            key: key.clone(),
            stamp: stored.stamp,
            record: stored.record.clone(),
        })
    }

    /// Forgets removals that are older than `life`, and lifts the quarantines of services that this member owns and
    /// whose time is over.
    pub fn clean_records(
        &self,
        life: Millis,
        now: Now,
        owns: &dyn Fn(&ServiceKey) -> bool,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) {
        let wall = self.clock.wall(now.wall);
        let is_over = |key: &RecordKey, stored: &Stored| match (key, &stored.record) {
            (RecordKey::Quarantine(service, _), Some(Record::Quarantine(why))) => {
                why.until.is_some_and(|until| until <= wall) && owns(service)
            }
            _ => false,
        };
        for bucket in &self.records.buckets {
            let mut table = bucket.write();
            table.retain(|_, stored| stored.record.is_some() || now.mono.since(stored.at) <= life);
            let over = table.iter().filter(|(key, stored)| is_over(key, stored));
            let over: Vec<RecordKey> = over.map(|(key, _)| key.clone()).collect();
            drop(table);
            for key in over {
                self.set_record(&key, None, now, journal, changes);
            }
        }
    }
}
