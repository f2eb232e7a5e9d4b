//! Rows of connections: they belong to the connection and go with it.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::clock::{Now, Stamp};
use crate::member_id::MemberId;
use crate::model::instance::Instance;
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, ClientId, Journal, RowOp};
use crate::registry::clients::RowHashes;
use crate::registry::digest::{connection_row_id, contribution};
use crate::registry::edit::Edit;
use crate::registry::orphans::Fleet;
use crate::registry::row::{Publication, Publisher};

/// The client is not, or no longer, known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("client {0:?} is not known")]
pub struct UnknownClient(pub ClientId);

impl Registry {
    /// Makes room for what a new connection of this member will publish.
    pub fn open_client(&self, client: ClientId) {
        self.clients.get_or_add(client);
    }

    /// Replaces all that a connection of this member publishes for a service. A row that does not change is left
    /// alone, with its stamp; of two instances with one row key the later counts.
    ///
    /// # Errors
    /// [`UnknownClient`] when the connection was never opened or is closed.
    pub fn publish(
        &self,
        client: ClientId,
        service: &ServiceKey,
        instances: Vec<Instance>,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> Result<(), UnknownClient> {
        let mut published = self.clients.open(client).ok_or(UnknownClient(client))?;
        let former = published.rows(service);
        let mut rows = RowHashes::new();
        let mut wanted = HashMap::with_capacity_and_hasher(instances.len(), FixedState::with_seed(self.seed));
        for instance in instances {
            let hash = instance.row_key().stable_hash(service);
            if wanted.insert(hash, self.pooled(instance)).is_none() {
                rows.push(hash);
            }
        }
        if former.is_empty() && wanted.is_empty() {
            return Ok(());
        }
        self.edit(service, now.mono, changes, |edit| {
            edit.is_wanted = true;
            for hash in former.iter().filter(|h| !wanted.contains_key(*h)) {
                self.withdraw_own(edit, client, *hash, journal);
            }
            for hash in &rows {
                if let Some(instance) = wanted.remove(hash) {
                    self.publish_own(edit, client, *hash, instance, now, journal);
                }
            }
        });
        published.set_rows(service, rows);
        Ok(())
    }

    /// Removes one row of what a connection of this member publishes for a service, or all of it when it publishes
    /// at most one row there (`design.md` §2).
    ///
    /// # Errors
    /// [`UnknownClient`] when the connection was never opened or is closed.
    pub fn unpublish(
        &self,
        client: ClientId,
        service: &ServiceKey,
        row_hash: u64,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> Result<(), UnknownClient> {
        let mut published = self.clients.open(client).ok_or(UnknownClient(client))?;
        let former = published.rows(service);
        let is_one_of_batch = former.len() > 1 && former.contains(&row_hash);
        let (going, staying): (RowHashes, RowHashes) = former
            .iter()
            .copied()
            .partition(|h| !is_one_of_batch || *h == row_hash);
        self.edit_existing(service, now.mono, changes, |edit| {
            edit.is_wanted = !going.is_empty();
            for hash in going {
                let key = edit
                    .rows
                    .find(hash)
                    .and_then(|r| r.shown())
                    .map(|p| p.instance.row_key());
                self.withdraw_own(edit, client, hash, journal);
                if let Some(key) = key {
                    self.end_override(edit, &key, None, now, journal);
                }
            }
        });
        published.set_rows(service, staying);
        Ok(())
    }

    /// Removes a connection of this member with all it publishes; returns how many rows that were.
    pub fn close_client(
        &self,
        client: ClientId,
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> usize {
        let Some(published) = self.clients.remove(client) else {
            return 0;
        };
        let services = {
            let mut published = published.lock();
            published.is_gone = true;
            published.take_all()
        };
        let mut n_rows = 0;
        for (service, rows) in services {
            n_rows += rows.len();
            self.remove_rows_of(client, &service, &rows, false, now, changes);
        }
        if n_rows > 0 {
            journal.record(RowOp::ClientGone { client }, &self.digests, 0, 0);
        }
        n_rows
    }

    /// The rows that a connection of this member publishes and somebody else has published since, by service. While what
    /// was published since is an orphan, its client is on its way from there, too.
    pub fn superseded(&self, client: ClientId) -> Vec<(ServiceKey, RowHashes)> {
        let Some(published) = self.clients.open(client) else {
            return Vec::new();
        };
        let publisher = Publisher::Connection(client);
        let newer = |(service, rows): (ServiceKey, RowHashes)| {
            let held = self.service(&service)?;
            let held = held.rows.lock();
            let is_superseded = |hash: &u64| {
                held.find(*hash).is_some_and(|row| {
                    let own = row.publication(publisher).filter(|own| own.is_superseded);
                    own.is_some_and(|own| {
                        !row.publications
                            .iter()
                            .any(|p| p.is_orphan && p.stamp > own.stamp)
                    })
                })
            };
            let rows: RowHashes = rows.into_iter().filter(is_superseded).collect();
            (!rows.is_empty()).then_some((service, rows))
        };
        published.all().into_iter().filter_map(newer).collect()
    }

    /// Withdraws some rows that a connection of this member publishes for a service. True when it publishes nothing any
    /// more.
    pub fn withdraw_rows(
        &self,
        client: ClientId,
        service: &ServiceKey,
        rows: &[u64],
        now: Now,
        journal: &dyn Journal,
        changes: &mut Changes,
    ) -> bool {
        let Some(mut published) = self.clients.open(client) else {
            return true;
        };
        let (going, staying): (RowHashes, RowHashes) = published
            .rows(service)
            .into_iter()
            .partition(|hash| rows.contains(hash));
        self.edit_existing(service, now.mono, changes, |edit| {
            for hash in going {
                self.withdraw_own(edit, client, hash, journal);
            }
        });
        published.set_rows(service, staying);
        published.is_empty()
    }

    /// What a connection publishes: services with their numbers of rows, sorted.
    pub fn published(&self, client: ClientId) -> Vec<(ServiceKey, usize)> {
        match self.clients.get(client) {
            Some(published) => published
                .lock()
                .all()
                .into_iter()
                .map(|(s, rows)| (s, rows.len()))
                .collect(),
            None => Vec::new(),
        }
    }

    fn publish_own(
        &self,
        edit: &mut Edit<'_>,
        client: ClientId,
        hash: u64,
        instance: Arc<Instance>,
        now: Now,
        journal: &dyn Journal,
    ) {
        let publisher = Publisher::Connection(client);
        if let Some(row) = edit.rows.find(hash)
            && let (Some(own), Some(shown)) = (row.publication(publisher), row.shown())
            && own.instance == instance
            && shown.publisher == publisher
        {
            return;
        }
        let stamp = self.stamp(now.wall);
        let publication = Publication {
            publisher,
            stamp,
            instance: instance.clone(),
            is_orphan: false,
            is_superseded: false,
        };
        let former = edit.set(hash, &instance.row_key(), publication);
        let id = connection_row_id(hash, client);
        let less = former.map_or(0, |p| contribution(id, p.stamp));
        let delta = contribution(id, stamp).wrapping_sub(less);
        let service = edit.service.key.clone();
        let op = RowOp::Publish {
            client,
            service,
            instance,
            stamp,
        };
        journal.record(op, &self.digests, edit.service.bucket, delta);
    }

    fn withdraw_own(&self, edit: &mut Edit<'_>, client: ClientId, hash: u64, journal: &dyn Journal) {
        let Some(removed) = edit.remove(hash, Publisher::Connection(client)) else {
            return;
        };
        let delta = contribution(connection_row_id(hash, client), removed.stamp).wrapping_neg();
        let row = removed.instance.row_key();
        let op = RowOp::Withdraw {
            client,
            service: edit.service.key.clone(),
            row,
        };
        journal.record(op, &self.digests, edit.service.bucket, delta);
    }

    // === what other members say of their connections ===

    /// Applies a publication that its origin reports.
    pub fn apply_publish(
        &self,
        client: ClientId,
        service: &ServiceKey,
        instance: Arc<Instance>,
        stamp: Stamp,
        now: Now,
        changes: &mut Changes,
    ) {
        self.take_publication(client, service, instance, stamp, false, now, changes);
    }

    /// The same of one that was told because digests differed. It may be as old as its stamp says, so that an orphan of the
    /// row which is newer is what was published last.
    pub fn repair_publish(
        &self,
        client: ClientId,
        service: &ServiceKey,
        instance: Arc<Instance>,
        stamp: Stamp,
        now: Now,
        changes: &mut Changes,
    ) {
        self.take_publication(client, service, instance, stamp, true, now, changes);
    }

    #[allow(clippy::too_many_arguments)] // They are the operation.
    fn take_publication(
        &self,
        client: ClientId,
        service: &ServiceKey,
        instance: Arc<Instance>,
        stamp: Stamp,
        is_repair: bool,
        now: Now,
        changes: &mut Changes,
    ) {
        self.clock.observe(stamp.time);
        let instance = self.pooled_arc(instance);
        let key = instance.row_key();
        let hash = key.stable_hash(service);
        let published = self.clients.get_or_add(client);
        let mut published = published.lock();
        self.edit(service, now.mono, changes, |edit| {
            let publisher = Publisher::Connection(client);
            let row = edit.rows.find(hash);
            let known = row.and_then(|row| row.publication(publisher));
            if known.is_some_and(|p| p.stamp > stamp) {
                return;
            }
            let is_newer = |p: &Publication| p.publisher != publisher && p.stamp > stamp;
            let is_superseded = is_repair && row.is_some_and(|row| row.publications.iter().any(is_newer));
            let publication = Publication {
                publisher,
                stamp,
                instance,
                is_orphan: false,
                is_superseded,
            };
            let former = edit.set(hash, &key, publication).filter(|p| !p.is_orphan);
            let id = connection_row_id(hash, client);
            let less = former.map_or(0, |p| contribution(id, p.stamp));
            let delta = contribution(id, stamp).wrapping_sub(less);
            self.digests.add(client.origin, edit.service.bucket, delta);
        });
        published.add_row(service, hash);
    }

    /// Applies a withdrawal that its origin reports.
    pub fn apply_withdraw(
        &self,
        client: ClientId,
        service: &ServiceKey,
        row_hash: u64,
        now: Now,
        changes: &mut Changes,
    ) {
        self.withdraw_of(client, service, row_hash, true, now, changes);
    }

    /// Removes a row that a connection of another member publishes no longer, at its client's wish or not.
    pub(crate) fn withdraw_of(
        &self,
        client: ClientId,
        service: &ServiceKey,
        row_hash: u64,
        is_wanted: bool,
        now: Now,
        changes: &mut Changes,
    ) {
        let Some(published) = self.clients.get(client) else {
            return;
        };
        let mut published = published.lock();
        self.remove_rows_of(client, service, &[row_hash], is_wanted, now, changes);
        published.remove_row(service, row_hash);
    }

    /// Applies the end of a connection that its origin reports.
    pub fn apply_client_gone(&self, client: ClientId, now: Now, changes: &mut Changes) {
        let Some(published) = self.clients.remove(client) else {
            return;
        };
        let services = published.lock().take_all();
        for (service, rows) in services {
            self.remove_rows_of(client, &service, &rows, false, now, changes);
        }
    }

    pub(crate) fn remove_rows_of(
        &self,
        client: ClientId,
        service: &ServiceKey,
        rows: &[u64],
        is_wanted: bool,
        now: Now,
        changes: &mut Changes,
    ) {
        self.edit_existing(service, now.mono, changes, |edit| {
            edit.is_wanted = is_wanted;
            for hash in rows {
                if let Some(removed) = edit.remove(*hash, Publisher::Connection(client))
                    && !removed.is_orphan
                {
                    let part = contribution(connection_row_id(*hash, client), removed.stamp);
                    self.digests
                        .add(client.origin, edit.service.bucket, part.wrapping_neg());
                }
            }
        });
    }

    /// The connections of one member that are known here.
    pub fn fleet_of(&self, origin: MemberId) -> Fleet {
        self.clients.of(origin).into_iter().collect()
    }

    /// The same without those of clients that return slowly.
    pub fn quick_fleet_of(&self, origin: MemberId) -> Fleet {
        let clients = self.clients.of(origin).into_iter();
        clients.filter(|client| !client.returns_slowly()).collect()
    }
}
