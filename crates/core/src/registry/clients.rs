//! What each connection publishes, of this member and of all others.

use std::collections::VecDeque;
use std::sync::Arc;

use dashmap::DashMap;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use smallvec::SmallVec;

use crate::member_id::MemberId;
use crate::model::service_key::ServiceKey;
use crate::registry::change::ClientId;

/// Row hashes that one connection publishes for one service.
pub(crate) type RowHashes = SmallVec<[u64; 1]>;

/// The publications of one connection by service. The lock around it orders the connection's own writes.
#[derive(Debug, Default)]
pub(crate) struct Published {
    services: HashMap<ServiceKey, RowHashes, FixedState>,
    /// The connection is gone; nothing may be added any more.
    pub(crate) is_gone: bool,
}

impl Published {
    pub(crate) fn rows(&self, service: &ServiceKey) -> RowHashes {
        self.services.get(service).cloned().unwrap_or_default()
    }

    pub(crate) fn set_rows(&mut self, service: &ServiceKey, rows: RowHashes) {
        if rows.is_empty() {
            self.services.remove(service);
        } else {
            self.services.insert(service.clone(), rows);
        }
    }

    pub(crate) fn add_row(&mut self, service: &ServiceKey, hash: u64) {
        let rows = self.services.entry_ref(service).or_default();
        if !rows.contains(&hash) {
            rows.push(hash);
        }
    }

    pub(crate) fn remove_row(&mut self, service: &ServiceKey, hash: u64) {
        if let Some(rows) = self.services.get_mut(service) {
            rows.retain(|h| *h != hash);
            if rows.is_empty() {
                self.services.remove(service);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The services, sorted.
    pub(crate) fn services(&self) -> VecDeque<ServiceKey> {
        let mut services: Vec<_> = self.services.keys().cloned().collect();
        services.sort_unstable();
        services.into()
    }

    /// Everything, sorted by service.
    pub(crate) fn all(&self) -> Vec<(ServiceKey, RowHashes)> {
        sorted(
            self.services
                .iter()
                .map(|(service, rows)| (service.clone(), rows.clone()))
                .collect(),
        )
    }

    pub(crate) fn take_all(&mut self) -> Vec<(ServiceKey, RowHashes)> {
        sorted(std::mem::take(&mut self.services).into_iter().collect())
    }
}

fn sorted(mut services: Vec<(ServiceKey, RowHashes)>) -> Vec<(ServiceKey, RowHashes)> {
    services.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    services
}

/// The table of clients.
#[derive(Debug)]
pub(crate) struct Clients {
    table: DashMap<ClientId, Arc<Mutex<Published>>, FixedState>,
}

impl Clients {
    pub(crate) fn new(seed: u64) -> Self {
        Clients {
            table: DashMap::with_hasher(FixedState::with_seed(seed)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of clients of one member.
    pub(crate) fn n_of(&self, origin: MemberId) -> usize {
        self.table
            .iter()
            .filter(|entry| entry.key().origin == origin)
            .count()
    }

    pub(crate) fn get(&self, id: ClientId) -> Option<Arc<Mutex<Published>>> {
        self.table.get(&id).map(|entry| entry.value().clone())
    }

    /// What a connection of this member publishes, locked; `None` when it is not open.
    pub(crate) fn open(&self, id: ClientId) -> Option<ArcMutexGuard<RawMutex, Published>> {
        let published = self.get(id)?.lock_arc();
        (!published.is_gone).then_some(published)
    }

    pub(crate) fn get_or_add(&self, id: ClientId) -> Arc<Mutex<Published>> {
        self.table.entry(id).or_default().value().clone()
    }

    pub(crate) fn remove(&self, id: ClientId) -> Option<Arc<Mutex<Published>>> {
        self.table.remove(&id).map(|(_, client)| client)
    }

    /// The clients of one member, sorted by number.
    pub(crate) fn of(&self, origin: MemberId) -> Vec<ClientId> {
        let mut ids: Vec<_> = self
            .table
            .iter()
            .map(|entry| *entry.key())
            .filter(|id| id.origin == origin)
            .collect();
        ids.sort_unstable();
        ids
    }
}
