//! Rows of connections whose member is not alive: they stay for a grace, and go the moment their publisher shows up
//! elsewhere (`design.md` §3, Orphans).

use std::sync::Arc;

use crate::clock::{Now, Stamp};
use crate::member_id::MemberId;
use crate::model::instance::Instance;
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, ClientId, RowOp};
use crate::registry::digest::{connection_row_id, contribution};
use crate::registry::edit::Edit;
use crate::registry::row::{Publication, Publisher};

impl Registry {
    /// Marks every connection row of `origin` as an orphan and returns how many there are.
    ///
    /// Orphans are not part of the origin's digest. What is listed does not change, but another publisher of the
    /// same row shows from now on.
    pub fn mark_orphans(&self, origin: MemberId, now: Now, changes: &mut Changes) -> usize {
        self.set_orphans(origin, true, now, changes)
    }

    /// Takes the mark off again: the member was only unreachable and still holds these connections.
    pub fn unmark_orphans(&self, origin: MemberId, now: Now, changes: &mut Changes) -> usize {
        self.set_orphans(origin, false, now, changes)
    }

    /// Removes the orphans of `origin` and returns how many went; those of clients that return slowly only when
    /// `with_slow`.
    pub fn drop_orphans(&self, origin: MemberId, with_slow: bool, now: Now, changes: &mut Changes) -> usize {
        let clients = self.clients.of(origin).into_iter();
        let clients = clients.filter(|client| with_slow || !client.returns_slowly());
        clients
            .map(|client| self.drop_orphans_of(client, now, changes))
            .sum()
    }

    /// Removes the orphans of one connection and returns how many went.
    pub fn drop_orphans_of(&self, client: ClientId, now: Now, changes: &mut Changes) -> usize {
        let Some(published) = self.clients.get(client) else {
            return 0;
        };
        let mut published = published.lock();
        let mut n_dropped = 0;
        for (service, rows) in published.take_all() {
            let kept = self
                .edit_existing(&service, now.mono, changes, |edit| {
                    let publisher = Publisher::Connection(client);
                    let is_orphan = |hash: &u64| {
                        edit.rows
                            .find(*hash)
                            .and_then(|r| r.publication(publisher))
                            .map(|p| p.is_orphan)
                    };
                    let (live, rest): (Vec<u64>, Vec<u64>) =
                        rows.iter().copied().partition(|h| is_orphan(h) == Some(false));
                    for hash in rest {
                        n_dropped += usize::from(edit.remove(hash, publisher).is_some());
                    }
                    live
                })
                .unwrap_or_default();
            published.set_rows(&service, kept.into_iter().collect());
        }
        if n_dropped > 0 && published.is_empty() {
            published.is_gone = true;
            self.clients.remove(client);
        }
        n_dropped
    }

    /// The orphans of a bucket with their connections, sorted by service and row.
    pub fn bucket_orphans(&self, bucket: usize) -> Vec<(ClientId, RowOp)> {
        self.connection_rows(bucket, true)
    }

    /// All rows of connections in a bucket, of living ones and orphans, sorted in the same way.
    pub fn bucket_connection_rows(&self, bucket: usize) -> Vec<(ClientId, RowOp)> {
        self.connection_rows(bucket, false)
    }

    fn connection_rows(&self, bucket: usize, only_orphans: bool) -> Vec<(ClientId, RowOp)> {
        let mut found = Vec::new();
        for service in self.services_in(bucket) {
            let rows = service.rows.lock();
            let mut orphans: Vec<_> = rows
                .iter()
                .flat_map(|row| row.publications.iter())
                .filter_map(|p| match p.publisher {
                    Publisher::Connection(client) if p.is_orphan || !only_orphans => {
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

    /// Takes an orphan that another member still shows. A row with a live publisher, or a newer version of the orphan, is
    /// left alone.
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
            let is_better = |p: &Publication| !p.is_orphan || (p.publisher == publisher && p.stamp > stamp);
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

    fn set_orphans(&self, origin: MemberId, orphan: bool, now: Now, changes: &mut Changes) -> usize {
        let mut n_changed = 0;
        for client in self.clients.of(origin) {
            let Some(published) = self.clients.get(client) else {
                continue;
            };
            let published = published.lock();
            for (service, rows) in published.all() {
                self.edit_existing(&service, now.mono, changes, |edit| {
                    for hash in &rows {
                        n_changed += usize::from(self.set_orphan(edit, client, *hash, orphan));
                    }
                });
            }
        }
        n_changed
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
