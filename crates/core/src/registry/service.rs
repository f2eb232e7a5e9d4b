//! One service: its rows behind one lock, and the view that readers take without it.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;

use crate::clock::{Millis, Stamp};
use crate::model::instance::{Instance, RowAddress, RowKey};
use crate::model::service_key::{DEFAULT_CLUSTER, ServiceKey};
use crate::registry::change::{Override, VersionedKind};
use crate::registry::digest::N_BUCKETS;
use crate::registry::records::{HiddenRows, Quarantine, ServiceSettings};
use crate::registry::row::{Publication, Publisher, Row, overlaid};
use crate::registry::view::ServiceView;

/// A service and everything known of it.
#[derive(Debug)]
pub struct Service {
    /// Its identity.
    pub key: ServiceKey,
    pub(crate) bucket: usize,
    view: ArcSwap<ServiceView>,
    /// What readers get instead while the guard against empty lists holds.
    held: ArcSwapOption<Held>,
    last_ref: Mutex<(u64, Millis)>,
    pub(crate) rows: Mutex<Rows>,
}

/// The last list of a service that has none any more.
#[derive(Debug)]
struct Held {
    view: Arc<ServiceView>,
    until: Millis,
}

/// The rows of a service. Every write of the service happens under the lock around it.
#[derive(Debug)]
pub(crate) struct Rows {
    table: HashTable<Row>,
    pub(crate) overrides: HashMap<RowKey, OverrideRow, FixedState>,
    pub(crate) tombstones: HashMap<(VersionedKind, RowKey), Tombstone, FixedState>,
    /// What operators say of the service.
    pub(crate) settings: Option<Arc<ServiceSettings>>,
    /// Rows that nobody shall see, with why.
    pub(crate) hidden: Vec<(HiddenRows, Arc<Quarantine>)>,
    /// How often the list has changed since the service was made.
    pub(crate) n_changes: u64,
    /// Since when there is no row.
    pub(crate) empty_since: Option<Millis>,
    /// It is in the catalogue, which says that it has an instance (true) or none.
    pub(crate) listed: Option<bool>,
    /// Nothing has been written yet: what operators said before the service was there is still to be read.
    pub(crate) is_new: bool,
    /// It has left the registry; whoever still holds it must look it up again.
    pub(crate) is_gone: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct OverrideRow {
    pub(crate) stamp: Stamp,
    pub(crate) value: Arc<Override>,
    /// When the row it stands beside was last there.
    pub(crate) row_seen: Millis,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    pub(crate) stamp: Stamp,
    pub(crate) is_expiry: bool,
    pub(crate) at: Millis,
}

impl Service {
    pub(crate) fn new(key: ServiceKey, view: ServiceView, seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Service {
            bucket: key.stable_hash() as usize % N_BUCKETS,
            view: ArcSwap::from_pointee(view),
            held: ArcSwapOption::empty(),
            last_ref: Mutex::new((0, Millis(0))),
            rows: Mutex::new(Rows {
                table: HashTable::new(),
                overrides: HashMap::with_hasher(hasher.clone()),
                tombstones: HashMap::with_hasher(hasher),
                settings: None,
                hidden: Vec::new(),
                n_changes: 0,
                empty_since: None,
                listed: None,
                is_new: true,
                is_gone: false,
            }),
            key,
        }
    }

    /// The list that readers get: the current one, or the last one while it is held.
    pub fn shown(&self) -> Arc<ServiceView> {
        match &*self.held.load() {
            Some(held) => held.view.clone(),
            None => self.view(),
        }
    }

    /// Until when the last list is held; `None` when it is not.
    pub(crate) fn held_until(&self) -> Option<Millis> {
        self.held.load().as_ref().map(|held| held.until)
    }

    pub(crate) fn hold(&self, view: Arc<ServiceView>, until: Millis) {
        self.held.store(Some(Arc::new(Held { view, until })));
    }

    /// Shows the current list again; until when the last one would have been held, if it was.
    pub(crate) fn let_go(&self) -> Option<Millis> {
        self.held.swap(None).map(|held| held.until)
    }

    /// The current list.
    pub fn view(&self) -> Arc<ServiceView> {
        self.view.load_full()
    }

    pub(crate) fn set_view(&self, view: ServiceView) {
        self.view.store(Arc::new(view));
    }

    /// The `lastRefTime` of a message that carries `version`: not below `wall`, never falling, and strictly greater
    /// than in every message with another version. Go clients drop a list whose time does not rise.
    pub fn ref_time(&self, version: u64, wall: Millis) -> Millis {
        let mut last = self.last_ref.lock();
        let floor = if last.0 == version {
            last.1
        } else {
            last.1 + Millis(1)
        };
        *last = (version, wall.max(floor));
        last.1
    }
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.table.iter()
    }

    pub(crate) fn find(&self, hash: u64) -> Option<&Row> {
        self.table.find(hash, |row| row.hash == hash)
    }

    pub(crate) fn find_mut(&mut self, hash: u64) -> Option<&mut Row> {
        self.table.find_mut(hash, |row| row.hash == hash)
    }

    /// Publications of a row whose member is not alive.
    pub(crate) fn n_orphans(&self, hash: u64) -> usize {
        let publications = self.find(hash).map(|row| row.publications.as_slice());
        let publications = publications.unwrap_or_default().iter();
        publications.filter(|p| p.is_orphan).count()
    }

    /// Sets one publisher's say about a row and returns its former one.
    pub(crate) fn set(&mut self, hash: u64, mut publication: Publication) -> Option<Publication> {
        match self.find_mut(hash) {
            Some(row) => {
                let (publisher, stamp) = (publication.publisher, publication.stamp);
                for other in row.publications.iter_mut().filter(|p| p.publisher != publisher) {
                    other.is_superseded |= other.stamp < stamp && !publication.is_orphan;
                    publication.is_superseded |= other.stamp > stamp && !other.is_orphan;
                }
                match row.publications.iter_mut().find(|p| p.publisher == publisher) {
                    Some(former) => {
                        publication.is_superseded |= former.is_superseded && former.stamp == stamp;
                        Some(std::mem::replace(former, publication))
                    }
                    None => {
                        row.publications.push(publication);
                        None
                    }
                }
            }
            None => {
                let publications = smallvec::smallvec![publication];
                self.table.insert_unique(
                    hash,
                    Row {
                        hash,
                        publications,
                        beats: None,
                    },
                    |row| row.hash,
                );
                None
            }
        }
    }

    /// Removes one publisher's say; the row goes with its last publisher.
    pub(crate) fn remove(&mut self, hash: u64, publisher: Publisher) -> Option<Publication> {
        let row = self.find_mut(hash)?;
        let at = row.publications.iter().position(|p| p.publisher == publisher)?;
        let removed = row.publications.remove(at);
        if publisher == Publisher::Beats {
            row.beats = None;
        }
        if row.publications.is_empty()
            && let Ok(entry) = self.table.find_entry(hash, |row| row.hash == hash)
        {
            entry.remove();
        }
        Some(removed)
    }

    /// What readers shall see of a row now.
    pub(crate) fn visible(&self, hash: u64, key: &RowKey) -> Option<Arc<Instance>> {
        let is_hidden = |(rows, _): &(HiddenRows, _)| rows.has(&key.ip, key.port, &key.cluster);
        if self.hidden.iter().any(is_hidden) {
            return None;
        }
        self.overlaid(hash, key)
    }

    /// The hidden row that a request means: the rules are those for rows that are seen.
    pub(crate) fn hidden_target(&self, address: RowAddress<'_>) -> Option<RowKey> {
        if self.hidden.is_empty() {
            return None;
        }
        let cluster = address.cluster.unwrap_or(DEFAULT_CLUSTER);
        let mut same: Vec<RowKey> = self
            .iter()
            .filter_map(|row| Some(row.shown()?.instance.row_key()))
            .filter(|key| key.ip == address.ip && key.port == address.port)
            .collect();
        match same.iter().position(|key| key.cluster == cluster) {
            Some(at) => Some(same.swap_remove(at)),
            None if address.cluster.is_none() && same.len() == 1 => same.pop(),
            None => None,
        }
    }

    /// What readers would see of a row if it were not hidden.
    pub(crate) fn overlaid(&self, hash: u64, key: &RowKey) -> Option<Arc<Instance>> {
        let shown = self.find(hash)?.shown()?;
        let over = self.overrides.get(key).map(|o| &*o.value);
        Some(overlaid(&shown.instance, over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::view::AnswerBudget;

    #[test]
    fn ref_times_rise_with_every_version_and_never_fall() {
        let key = ServiceKey::new("", "", "s");
        let budget = Arc::new(AnswerBudget::new(0));
        let service = Service::new(key.clone(), ServiceView::empty(key, 1, budget), 1);
        let times = [(1, 100), (1, 100), (2, 100), (2, 90), (3, 90), (3, 500), (4, 500)]
            .map(|(version, wall)| service.ref_time(version, Millis(wall)).0);
        assert_eq!(times, [100, 100, 101, 101, 102, 500, 501]);
    }
}
