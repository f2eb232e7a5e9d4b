//! The registry: every service with its rows, every client with what it publishes, and the digests over all of it.
//!
//! Writes are ordered per service by the service's lock; reads take the service's current view and no lock of it.
//! Lock order: client, shard, service, then the journal's own; nothing is called back from inside them.

pub mod beats;
pub mod catalog;
pub mod census;
pub mod change;
pub mod clean;
mod clients;
pub mod digest;
mod edit;
pub mod guard;
pub mod inspect;
pub mod orphans;
mod pool;
pub mod publish;
pub mod records;
pub mod repair;
pub mod row;
pub mod selection;
pub mod service;
pub mod versioned;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use crate::clock::{HybridClock, Millis, Stamp};
use crate::member_id::MemberId;
use crate::model::instance::Instance;
use crate::model::service_key::ServiceKey;
use crate::registry::beats::BeatWatch;
use crate::registry::catalog::Catalog;
use crate::registry::change::RowOp;
use crate::registry::clients::Clients;
use crate::registry::digest::{Digests, N_BUCKETS};
use crate::registry::guard::Guards;
use crate::registry::pool::MetadataPool;
use crate::registry::records::Records;
use crate::registry::service::Service;
use crate::registry::view::{AnswerBudget, ServiceView};

type Shard = RwLock<HashMap<ServiceKey, Arc<Service>, FixedState>>;

/// All registry data of one member.
#[derive(Debug)]
pub struct Registry {
    me: MemberId,
    seed: u64,
    shards: Vec<Shard>,
    clients: Clients,
    catalog: Catalog,
    clock: HybridClock,
    digests: Digests,
    next_version: AtomicU64,
    n_rows: AtomicUsize,
    n_orphans: AtomicUsize,
    answers: Arc<AnswerBudget>,
    metadata: MetadataPool,
    beat_watch: Mutex<BeatWatch>,
    records: Records,
    guards: Guards,
    /// What operators changed since the store was last told.
    durable: Mutex<Vec<RowOp>>,
}

impl Registry {
    /// An empty registry of member `me`. `seed` seeds every hash map; `answer_budget` bounds the bytes of encoded
    /// answers that are kept.
    pub fn new(me: MemberId, seed: u64, answer_budget: usize, now: Millis) -> Self {
        let shard = || RwLock::new(HashMap::with_hasher(FixedState::with_seed(seed)));
        Registry {
            me,
            seed,
            shards: (0..N_BUCKETS).map(|_| shard()).collect(),
            clients: Clients::new(seed),
            catalog: Catalog::default(),
            clock: HybridClock::default(),
            digests: Digests::new(seed),
            next_version: AtomicU64::new(1),
            n_rows: AtomicUsize::new(0),
            n_orphans: AtomicUsize::new(0),
            answers: Arc::new(AnswerBudget::new(answer_budget)),
            metadata: MetadataPool::new(seed),
            beat_watch: Mutex::new(BeatWatch::new(now)),
            records: Records::default(),
            guards: Guards::default(),
            durable: Mutex::default(),
        }
    }

    /// This member.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// The hybrid clock that stamps this member's writes.
    pub fn clock(&self) -> &HybridClock {
        &self.clock
    }

    /// The digests over all rows.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// The names of all services.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The number of rows that readers could see.
    pub fn n_rows(&self) -> usize {
        self.n_rows.load(Ordering::Relaxed)
    }

    /// The number of rows, by publisher, whose member is not alive.
    pub fn n_orphans(&self) -> usize {
        self.n_orphans.load(Ordering::Relaxed)
    }

    /// The number of connections that publish or could publish, of all members.
    pub fn n_clients(&self) -> usize {
        self.clients.len()
    }

    /// Bytes of encoded answers that are kept.
    pub fn answer_bytes(&self) -> usize {
        self.answers.used()
    }

    /// The service, if it is known here.
    pub fn service(&self, key: &ServiceKey) -> Option<Arc<Service>> {
        self.shard(key).read().get(key).cloned()
    }

    /// The list of a service that readers get, which may be held, and the `lastRefTime` for a message that carries it. A
    /// service that does not exist has an empty list.
    pub fn read(&self, key: &ServiceKey, wall: Millis) -> (Arc<ServiceView>, Millis) {
        let wall = self.clock.wall(wall);
        match self.service(key) {
            Some(service) => {
                let view = service.shown();
                let time = service.ref_time(view.version(), wall);
                (view, time)
            }
            // Below the time of the first list that comes, which may be in this very millisecond.
            None => (
                Arc::new(ServiceView::empty(key.clone(), 0, self.answers.clone())),
                wall - Millis(1),
            ),
        }
    }

    /// What operators changed since this was last asked, in order: overrides and records, to be kept on disk.
    pub fn take_durable(&self) -> Vec<RowOp> {
        std::mem::take(&mut self.durable.lock())
    }

    fn stamp(&self, wall: Millis) -> Stamp {
        Stamp {
            time: self.clock.tick(wall),
            member: self.me,
        }
    }

    /// The instance with its metadata shared with others that say the same.
    fn pooled(&self, mut instance: Instance) -> Arc<Instance> {
        instance.metadata = self.metadata.share(instance.metadata);
        Arc::new(instance)
    }

    /// The same for an instance that came from another member.
    fn pooled_arc(&self, mut instance: Arc<Instance>) -> Arc<Instance> {
        if let Some(own) = Arc::get_mut(&mut instance) {
            own.metadata = self.metadata.share(std::mem::take(&mut own.metadata));
        }
        instance
    }

    fn shard(&self, key: &ServiceKey) -> &Shard {
        &self.shards[key.stable_hash() as usize % N_BUCKETS]
    }

    fn service_or_new(&self, key: &ServiceKey) -> Arc<Service> {
        if let Some(found) = self.service(key) {
            return found;
        }
        let view = ServiceView::empty(key.clone(), self.next_version(), self.answers.clone());
        let fresh = || Arc::new(Service::new(key.clone(), view, self.seed));
        self.shard(key)
            .write()
            .entry(key.clone())
            .or_insert_with(fresh)
            .clone()
    }

    fn next_version(&self) -> u64 {
        self.next_version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The services of a bucket, sorted.
    fn services_in(&self, bucket: usize) -> Vec<Arc<Service>> {
        let Some(shard) = self.shards.get(bucket) else {
            return Vec::new();
        };
        let mut services: Vec<_> = shard.read().values().cloned().collect();
        services.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        services
    }
}

#[cfg(test)]
mod tests;
