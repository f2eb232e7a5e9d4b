//! Rows of connections whose member is not alive: they stay for a grace, and go the moment their publisher shows up
//! elsewhere (`design.md` §3, Orphans).

use crate::clock::Now;
use crate::member_id::MemberId;
use crate::registry::Registry;
use crate::registry::change::{Changes, ClientId};
use crate::registry::digest::{connection_row_id, contribution};
use crate::registry::row::Publisher;

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

    /// Removes every orphan of `origin` and returns how many there were.
    pub fn drop_orphans(&self, origin: MemberId, now: Now, changes: &mut Changes) -> usize {
        let mut n_dropped = 0;
        for client in self.clients.of(origin) {
            let Some(published) = self.clients.get(client) else {
                continue;
            };
            let mut published = published.lock();
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
            if published.all().is_empty() {
                published.is_gone = true;
                self.clients.remove(client);
            }
        }
        n_dropped
    }

    fn set_orphans(&self, origin: MemberId, orphan: bool, now: Now, changes: &mut Changes) -> usize {
        let mut n_changed = 0;
        for client in self.clients.of(origin) {
            let Some(published) = self.clients.get(client) else {
                continue;
            };
            let published = published.lock();
            for (service, rows) in published.all() {
                self.edit_existing(service, now.mono, changes, |edit| {
                    for hash in rows {
                        n_changed += usize::from(self.set_orphan(edit, client, *hash, orphan));
                    }
                });
            }
        }
        n_changed
    }

    fn set_orphan(
        &self,
        edit: &mut super::edit::Edit<'_>,
        client: ClientId,
        hash: u64,
        orphan: bool,
    ) -> bool {
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
        if orphan
            && edit.rows.find(hash).is_some_and(|r| {
                r.publications
                    .iter()
                    .any(|p| !p.is_orphan && p.publisher != publisher)
            })
        {
            edit.remove(hash, publisher);
        } else {
            edit.set(hash, &key, publication);
        }
        true
    }
}
