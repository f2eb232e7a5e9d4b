//! What each connection publishes, of this member and of all others.

use std::sync::Arc;

use dashmap::DashMap;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::member_id::MemberId;
use crate::model::service_key::ServiceKey;
use crate::registry::change::ClientId;

/// Row hashes that one connection publishes for one service.
pub(crate) type RowHashes = SmallVec<[u64; 1]>;

/// The publications of one connection, sorted by service. The lock around it orders the connection's own writes.
#[derive(Debug, Default)]
pub(crate) struct Published {
    services: Vec<(ServiceKey, RowHashes)>,
    /// The connection is gone; nothing may be added any more.
    pub(crate) is_gone: bool,
}

impl Published {
    pub(crate) fn rows(&self, service: &ServiceKey) -> RowHashes {
        match self.services.binary_search_by(|(s, _)| s.cmp(service)) {
            Ok(at) => self.services[at].1.clone(),
            Err(_) => RowHashes::new(),
        }
    }

    pub(crate) fn set_rows(&mut self, service: &ServiceKey, rows: RowHashes) {
        match (
            self.services.binary_search_by(|(s, _)| s.cmp(service)),
            rows.is_empty(),
        ) {
            (Ok(at), true) => drop(self.services.remove(at)),
            (Ok(at), false) => self.services[at].1 = rows,
            (Err(_), true) => {}
            (Err(at), false) => self.services.insert(at, (service.clone(), rows)),
        }
    }

    pub(crate) fn add_row(&mut self, service: &ServiceKey, hash: u64) {
        let mut rows = self.rows(service);
        if !rows.contains(&hash) {
            rows.push(hash);
            self.set_rows(service, rows);
        }
    }

    pub(crate) fn remove_row(&mut self, service: &ServiceKey, hash: u64) {
        let mut rows = self.rows(service);
        rows.retain(|h| *h != hash);
        self.set_rows(service, rows);
    }

    pub(crate) fn all(&self) -> &[(ServiceKey, RowHashes)] {
        &self.services
    }

    pub(crate) fn take_all(&mut self) -> Vec<(ServiceKey, RowHashes)> {
        std::mem::take(&mut self.services)
    }
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

    pub(crate) fn get(&self, id: ClientId) -> Option<Arc<Mutex<Published>>> {
        self.table.get(&id).map(|entry| entry.value().clone())
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
