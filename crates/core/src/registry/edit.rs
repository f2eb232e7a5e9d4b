//! A write of one service: rows change under its lock, and at the end readers get one new view.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use parking_lot::MutexGuard;

use crate::clock::Millis;
use crate::model::instance::{Instance, RowKey};
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::Changes;
use crate::registry::records::{HiddenRows, Quarantine, ServiceSettings};
use crate::registry::row::{Publication, Publisher};
use crate::registry::service::{Rows, Service};

/// So many rows are searched one by one.
const FEW: usize = 16;

pub(crate) struct Edit<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) rows: MutexGuard<'a, Rows>,
    touched: Vec<Touched>,
    /// Their hashes, once they are many.
    touched_hashes: HashSet<u64, FixedState>,
    /// Somebody wants it so: a client deregisters, or an operator hides rows. Such a list is never held.
    pub(crate) is_wanted: bool,
}

/// A row as it was before this edit.
struct Touched {
    hash: u64,
    key: RowKey,
    visible: Option<Arc<Instance>>,
    n_orphans: usize,
}

impl Edit<'_> {
    /// Notes a row that is about to change.
    pub(crate) fn touch(&mut self, hash: u64, key: &RowKey) {
        if self.is_first_touch(hash) {
            self.touched.push(Touched {
                hash,
                key: key.clone(),
                visible: self.rows.visible(hash, key),
                n_orphans: self.rows.n_orphans(hash),
            });
        }
    }

    fn is_first_touch(&mut self, hash: u64) -> bool {
        if self.touched.len() < FEW {
            return !self.touched.iter().any(|row| row.hash == hash);
        }
        if self.touched_hashes.is_empty() {
            self.touched_hashes
                .extend(self.touched.iter().map(|row| row.hash));
        }
        self.touched_hashes.insert(hash)
    }

    /// Sets a publication. A live one takes the place of every orphan of its row, unless it is told again and somebody has
    /// published the row since.
    pub(crate) fn set(&mut self, hash: u64, key: &RowKey, publication: Publication) -> Option<Publication> {
        self.touch(hash, key);
        let is_live = !publication.is_orphan;
        let (publisher, stamp) = (publication.publisher, publication.stamp);
        let former = self.rows.set(hash, publication);
        if is_live && let Some(row) = self.rows.find_mut(hash) {
            let set = row.publication(publisher);
            let is_superseded = set.is_some_and(|p| p.is_superseded);
            let stays = |p: &Publication| {
                !p.is_orphan || p.publisher == publisher || (is_superseded && p.stamp > stamp)
            };
            row.publications.retain(|p| stays(p));
        }
        former
    }

    /// Takes note of what operators say of the service and which of its rows they hide.
    pub(crate) fn renew_settings(
        &mut self,
        settings: Option<Arc<ServiceSettings>>,
        hidden: Vec<(HiddenRows, Arc<Quarantine>)>,
    ) {
        self.rows.settings = settings;
        if self.rows.hidden == hidden {
            return;
        }
        self.is_wanted = true;
        let named: Vec<_> = self
            .rows
            .hidden
            .iter()
            .chain(&hidden)
            .map(|(rows, _)| rows)
            .collect();
        let keys = self
            .rows
            .iter()
            .filter_map(|row| Some((row.hash, row.shown()?.instance.row_key())));
        let touched: Vec<_> = keys
            .filter(|(_, key)| named.iter().any(|rows| rows.has(&key.ip, key.port, &key.cluster)))
            .collect();
        for (hash, key) in touched {
            self.touch(hash, &key);
        }
        self.rows.hidden = hidden;
    }

    /// Removes a publication.
    pub(crate) fn remove(&mut self, hash: u64, publisher: Publisher) -> Option<Publication> {
        let key = self.rows.find(hash)?.publication(publisher)?.instance.row_key();
        self.touch(hash, &key);
        self.rows.remove(hash, publisher)
    }
}

impl Registry {
    /// Runs `write` under the lock of a service, which is made when it does not exist, and publishes the result.
    pub(crate) fn edit<R>(
        &self,
        key: &ServiceKey,
        now: Millis,
        changes: &mut Changes,
        write: impl FnOnce(&mut Edit<'_>) -> R,
    ) -> R {
        loop {
            let service = self.service_or_new(key);
            let rows = service.rows.lock();
            if !rows.is_gone {
                return self.run(&service, rows, now, changes, write);
            }
        }
    }

    /// The same for a service that exists; `None` when it does not.
    pub(crate) fn edit_existing<R>(
        &self,
        key: &ServiceKey,
        now: Millis,
        changes: &mut Changes,
        write: impl FnOnce(&mut Edit<'_>) -> R,
    ) -> Option<R> {
        let service = self.service(key)?;
        let rows = service.rows.lock();
        if rows.is_gone {
            return None;
        }
        Some(self.run(&service, rows, now, changes, write))
    }

    fn run<R>(
        &self,
        service: &Arc<Service>,
        rows: MutexGuard<'_, Rows>,
        now: Millis,
        changes: &mut Changes,
        write: impl FnOnce(&mut Edit<'_>) -> R,
    ) -> R {
        let mut edit = Edit {
            service,
            rows,
            touched: Vec::new(),
            touched_hashes: HashSet::with_hasher(FixedState::with_seed(self.seed)),
            is_wanted: false,
        };
        if std::mem::take(&mut edit.rows.is_new) {
            // Under the service's lock: whoever quarantines a row later finds the service.
            edit.rows.hidden = self.hidden_rows(&service.key);
        }
        let result = write(&mut edit);
        self.publish_view(edit, now, changes);
        result
    }

    fn publish_view(&self, mut edit: Edit<'_>, now: Millis, changes: &mut Changes) {
        let mut visible_changes = Vec::new();
        for before in std::mem::take(&mut edit.touched) {
            let (hash, key) = (before.hash, before.key);
            self.n_orphans
                .fetch_add(edit.rows.n_orphans(hash), Ordering::Relaxed);
            self.n_orphans.fetch_sub(before.n_orphans, Ordering::Relaxed);
            let after = edit.rows.visible(hash, &key);
            if before.visible != after {
                if let Some(after) = &after {
                    self.watch_sooner(&mut edit, hash, after);
                }
                visible_changes.push((key, after));
            }
        }
        let Edit {
            service,
            mut rows,
            is_wanted,
            ..
        } = edit;
        let has_instance = rows.len() > 0;
        let is_needed = has_instance || rows.settings.is_some();
        if is_needed {
            rows.empty_since = None;
        } else if rows.empty_since.is_none() {
            rows.empty_since = Some(now);
        }
        if (is_needed || rows.listed.is_some()) && rows.listed != Some(has_instance) {
            rows.listed = Some(has_instance);
            self.catalog.set(&service.key, has_instance);
        }
        let former = service.view();
        let protection = rows.settings.as_ref().map(|s| s.protect_threshold.max(0.0));
        if is_wanted && self.end_hold(service) {
            changes.push(service.key.clone());
        }
        if visible_changes.is_empty() && former.protection() == protection {
            return;
        }
        let view = former.changed(self.next_version(), &visible_changes, protection);
        self.n_rows.fetch_add(view.len(), Ordering::Relaxed);
        self.n_rows.fetch_sub(former.len(), Ordering::Relaxed);
        rows.n_changes += 1;
        let has_rows = !view.is_empty();
        let falls_silent = !has_rows && !former.is_empty() && !is_wanted;
        if falls_silent && let Some(until) = self.hold_until(&service.key, now) {
            service.hold(former, until);
            self.note_held(until, &service.key);
        }
        service.set_view(view);
        if has_rows {
            self.end_hold(service);
        }
        changes.push(service.key.clone());
    }

    /// Shows readers the current list of a service; true when another one was held.
    fn end_hold(&self, service: &Service) -> bool {
        let held = service.let_go();
        if let Some(until) = held {
            self.note_let_go(until, &service.key);
        }
        held.is_some()
    }
}
