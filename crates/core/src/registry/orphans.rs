//! Rows of connections whose member is not alive: they stay for a grace, and go the moment their publisher shows up
//! elsewhere (`design.md` §3, Orphans).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::{Now, Stamp};
use crate::model::instance::Instance;
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, ClientId, RowOp};
use crate::registry::clients::{Published, RowHashes};
use crate::registry::digest::{connection_row_id, contribution};
use crate::registry::edit::Edit;
use crate::registry::row::{Publication, Publisher};

/// Connections of a member whose rows are gone through a few at a time, so that the end of a fleet is a little work many
/// times.
#[derive(Debug, Default)]
pub struct Fleet {
    clients: VecDeque<ClientId>,
    /// What is left of the first of them, once it has begun.
    services: Option<VecDeque<ServiceKey>>,
    newest: u64,
}

impl Fleet {
    /// True when all was gone through.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The highest number of a connection that was there in the beginning; those that came later have higher ones.
    pub fn newest(&self) -> u64 {
        self.newest
    }
}

impl FromIterator<ClientId> for Fleet {
    fn from_iter<T: IntoIterator<Item = ClientId>>(clients: T) -> Self {
        let clients: VecDeque<_> = clients.into_iter().collect();
        let newest = clients.iter().map(|client| client.plain_number()).max();
        Fleet {
            clients,
            services: None,
            newest: newest.unwrap_or(0),
        }
    }
}

impl Registry {
    /// Marks the rows of connections as orphans, or takes the marks off: their member was only unreachable and still
    /// holds them. Goes through some `limit` rows of the fleet, at least one service of one connection, and returns how
    /// many changed.
    ///
    /// Orphans are not part of the origin's digest. What is listed does not change, but another publisher of the
    /// same row shows from now on.
    pub fn set_orphans(
        &self,
        fleet: &mut Fleet,
        is_orphan: bool,
        limit: usize,
        now: Now,
        changes: &mut Changes,
    ) -> usize {
        self.go_through(fleet, limit, |client, published, service| {
            let rows = published.rows(service);
            let set = |edit: &mut Edit<'_>| {
                let set = |hash: &&u64| self.set_orphan(edit, client, **hash, is_orphan);
                rows.iter().filter(set).count()
            };
            let n_changed = self.edit_existing(service, now.mono, changes, set);
            n_changed.unwrap_or(0)
        })
    }

    /// Removes orphans among the rows of connections, as many at a time as [`Registry::set_orphans`] marks, and returns how
    /// many went.
    pub fn drop_orphans(&self, fleet: &mut Fleet, limit: usize, now: Now, changes: &mut Changes) -> usize {
        self.go_through(fleet, limit, |client, published, service| {
            let publisher = Publisher::Connection(client);
            let rows = published.rows(service);
            let mut n_dropped = 0;
            let kept = self.edit_existing(service, now.mono, changes, |edit| {
                let is_live = |hash: &u64| {
                    let row = edit.rows.find(*hash);
                    row.and_then(|r| r.publication(publisher))
                        .is_some_and(|p| !p.is_orphan)
                };
                let (live, rest): (RowHashes, RowHashes) = rows.iter().copied().partition(is_live);
                for hash in rest {
                    n_dropped += usize::from(edit.remove(hash, publisher).is_some());
                }
                live
            });
            published.set_rows(service, kept.unwrap_or_default());
            if n_dropped > 0 && published.is_empty() {
                published.is_gone = true;
                self.clients.remove(client);
            }
            n_dropped
        })
    }

    /// Lets `work` go through the services of connections in turn until it has seen `limit` rows; returns the sum of what
    /// it returns.
    fn go_through(
        &self,
        fleet: &mut Fleet,
        limit: usize,
        mut work: impl FnMut(ClientId, &mut Published, &ServiceKey) -> usize,
    ) -> usize {
        let (mut n_seen, mut n_done) = (0, 0);
        while n_seen < limit
            && let Some(client) = fleet.clients.front().copied()
        {
            let mut is_done = true;
            if let Some(published) = self.clients.get(client) {
                let mut published = published.lock();
                let services = fleet.services.get_or_insert_with(|| published.services());
                while n_seen < limit
                    && let Some(service) = services.pop_front()
                {
                    n_seen += published.rows(&service).len();
                    n_done += work(client, &mut published, &service);
                }
                is_done = services.is_empty();
            }
            n_seen += 1; // One without rows costs something as well.
            if is_done {
                fleet.clients.pop_front();
                fleet.services = None;
            }
        }
        n_done
    }

    /// The orphans of a bucket with their connections, sorted by service and row.
    pub fn bucket_orphans(&self, bucket: usize) -> Vec<(ClientId, RowOp)> {
        self.connection_rows(bucket, |_, is_orphan| is_orphan)
    }

    /// The rows of connections in a bucket that are about to become orphans, sorted in the same way.
    pub fn bucket_doomed(
        &self,
        bucket: usize,
        is_doomed: impl Fn(ClientId) -> bool,
    ) -> Vec<(ClientId, RowOp)> {
        self.connection_rows(bucket, |client, is_orphan| !is_orphan && is_doomed(client))
    }

    /// All rows of connections in a bucket, of living ones and orphans, sorted in the same way.
    pub fn bucket_connection_rows(&self, bucket: usize) -> Vec<(ClientId, RowOp)> {
        self.connection_rows(bucket, |_, _| true)
    }

    fn connection_rows(
        &self,
        bucket: usize,
        is_meant: impl Fn(ClientId, bool) -> bool,
    ) -> Vec<(ClientId, RowOp)> {
        let mut found = Vec::new();
        for service in self.services_in(bucket) {
            let rows = service.rows.lock();
            let mut orphans: Vec<_> = rows
                .iter()
                .flat_map(|row| row.publications.iter())
                .filter_map(|p| match p.publisher {
                    Publisher::Connection(client) if is_meant(client, p.is_orphan) => {
                        Some((p.instance.row_key(), client, p.clone()))
                    }
                    _ => None,
                })
                .collect();
            drop(rows);
            orphans.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            found.extend(orphans.into_iter().map(|(_, client, p)| {
                let service = service.key.clone();
                (
                    client,
                    RowOp::Publish {
                        client,
                        service,
                        instance: p.instance,
                        stamp: p.stamp,
                    },
                )
            }));
        }
        found
    }

    /// Takes an orphan that another member still shows. A row with a newer live publisher, or a newer version of the orphan,
    /// is left alone. An older live publisher may have been withdrawn since, which is heard of later.
    pub fn apply_orphan(
        &self,
        client: ClientId,
        service: &ServiceKey,
        instance: Arc<Instance>,
        stamp: Stamp,
        now: Now,
        changes: &mut Changes,
    ) {
        self.clock().observe(stamp.time);
        let instance = self.pooled_arc(instance);
        let key = instance.row_key();
        let hash = key.stable_hash(service);
        let published = self.clients.get_or_add(client);
        let mut published = published.lock();
        let is_taken = self.edit(service, now.mono, changes, |edit| {
            let publisher = Publisher::Connection(client);
            let is_better = |p: &Publication| match p.publisher == publisher {
                true => !p.is_orphan || p.stamp > stamp,
                false => !p.is_orphan && p.stamp > stamp,
            };
            let row = edit.rows.find(hash);
            let is_settled = row.is_some_and(|r| r.publications.iter().any(is_better));
            if !is_settled {
                edit.set(
                    hash,
                    &key,
                    Publication {
                        publisher,
                        stamp,
                        instance,
                        is_orphan: true,
                        is_superseded: false,
                    },
                );
            }
            !is_settled
        });
        if is_taken {
            published.add_row(service, hash);
        }
    }

    fn set_orphan(&self, edit: &mut Edit<'_>, client: ClientId, hash: u64, orphan: bool) -> bool {
        let publisher = Publisher::Connection(client);
        let Some(publication) = edit.rows.find(hash).and_then(|r| r.publication(publisher)) else {
            return false;
        };
        if publication.is_orphan == orphan {
            return false;
        }
        let mut publication = publication.clone();
        publication.is_orphan = orphan;
        let part = contribution(connection_row_id(hash, client), publication.stamp);
        let delta = if orphan { part.wrapping_neg() } else { part };
        self.digests.add(client.origin, edit.service.bucket, delta);
        let key = publication.instance.row_key();
        // A newer publisher that lives elsewhere has taken the orphan's place already; others of the same member are
        // in the same case as this one.
        let stamp = publication.stamp;
        let lives_elsewhere = |p: &Publication| {
            let is_elsewhere = match p.publisher {
                Publisher::Connection(other) => !p.is_orphan && other.origin != client.origin,
                Publisher::Beats => true,
            };
            is_elsewhere && p.stamp > stamp
        };
        if orphan
            && edit
                .rows
                .find(hash)
                .is_some_and(|r| r.publications.iter().any(lives_elsewhere))
        {
            edit.remove(hash, publisher);
        } else {
            edit.touch(hash, &key);
            edit.rows.set(hash, publication);
        }
        true
    }
}
