//! Rows by origin and bucket: what snapshots send and what members compare and repair when their digests differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::clock::Now;
use crate::member_id::MemberId;
use crate::model::instance::{Instance, RowKey};
use crate::model::service_key::ServiceKey;
use crate::registry::Registry;
use crate::registry::change::{Changes, ClientId, RowOp, VersionedKind, VersionedValue};
use crate::registry::digest::{connection_row_id, contribution, version_of, versioned_row_id};
use crate::registry::row::{Publication, Publisher};
use crate::registry::service::Service;

/// Which rows of a bucket are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Rows of one origin: its connections' live rows, and versioned rows it wrote last.
    Origin(MemberId),
    /// Versioned rows of every writer.
    Versioned,
}

/// A row with its identity and version within its origin.
struct Identified {
    id: u64,
    version: u64,
    op: RowOp,
}

impl Registry {
    /// The rows of a bucket as operations, sorted by service and row; with `graves`, also what is known to be removed.
    pub fn bucket_rows(&self, bucket: usize, scope: Scope, graves: bool) -> Vec<RowOp> {
        let records = self.record_ops(bucket, graves).into_iter();
        let mut ops: Vec<_> = records
            .filter(|(_, stamp, _)| takes(scope, stamp.member))
            .map(|(_, _, op)| op)
            .collect();
        for service in self.services_in(bucket) {
            ops.extend(rows_of(&service, scope).into_iter().map(|r| r.op));
            if graves {
                ops.extend(graves_of(&service, scope));
            }
        }
        ops
    }

    /// Identity and version of every row of an origin in a bucket, sorted.
    pub fn bucket_ids(&self, bucket: usize, origin: MemberId) -> Vec<(u64, u64)> {
        let rows = self.identified(bucket, origin);
        let mut ids: Vec<_> = rows.iter().map(|r| (r.id, r.version)).collect();
        ids.sort_unstable();
        ids
    }

    /// What the rows and records of an origin in a bucket amount to, by the service, namespace or switch they are about.
    pub fn bucket_subjects(&self, bucket: usize, origin: MemberId) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for row in self.identified(bucket, origin) {
            if let Some(subject) = row.op.subject() {
                let sum: &mut u64 = sums.entry(subject).or_default();
                *sum = sum.wrapping_add(row.digest());
            }
        }
        sums
    }

    /// The rows of an origin in a bucket with these identities, as operations.
    pub fn rows_with_ids(&self, bucket: usize, origin: MemberId, ids: &HashSet<u64>) -> Vec<RowOp> {
        let rows = self.identified(bucket, origin).into_iter();
        rows.filter(|r| ids.contains(&r.id)).map(|r| r.op).collect()
    }

    /// The rows and records of an origin in a bucket.
    fn identified(&self, bucket: usize, origin: MemberId) -> Vec<Identified> {
        let records = self.record_ops(bucket, false).into_iter();
        let records = records
            .filter(|(_, stamp, _)| stamp.member == origin)
            .map(|(id, stamp, op)| Identified {
                id,
                version: version_of(stamp),
                op,
            });
        let services = self.services_in(bucket);
        let rows = services.iter().flat_map(|s| rows_of(s, Scope::Origin(origin)));
        records.chain(rows).collect()
    }

    /// What this member knows of the row or record that an operation of a newest-wins kind is about, as an operation.
    pub fn known(&self, op: &RowOp) -> Option<RowOp> {
        match op {
            RowOp::Versioned {
                service, row, value, ..
            } => self.versioned(service, row, value.kind()),
            RowOp::Record { key, .. } => self.record_op(key),
            RowOp::Publish { .. } | RowOp::Withdraw { .. } | RowOp::ClientGone { .. } => None,
        }
    }

    /// Removes connection rows of an origin that the origin says it does not have. Returns how many.
    pub fn forget_rows(
        &self,
        bucket: usize,
        origin: MemberId,
        ids: &HashSet<u64>,
        now: Now,
        changes: &mut Changes,
    ) -> usize {
        let mut n_removed = 0;
        for op in self.rows_with_ids(bucket, origin, ids) {
            if let RowOp::Publish {
                client,
                service,
                instance,
                ..
            } = op
            {
                let hash = instance.row_key().stable_hash(&service);
                self.withdraw_of(client, &service, hash, false, now, changes);
                n_removed += 1;
            }
        }
        n_removed
    }

    /// Digests computed anew from the rows, by origin: what [`Registry::digests`] must equal at rest.
    pub fn recount_digests(&self, origin: MemberId) -> Vec<u64> {
        let count = |bucket| {
            let rows = self.identified(bucket, origin).into_iter();
            rows.fold(0u64, |sum, r| sum.wrapping_add(r.digest()))
        };
        (0..self.shards.len()).map(count).collect()
    }
}

impl Identified {
    fn digest(&self) -> u64 {
        match &self.op {
            RowOp::Publish { stamp, .. } | RowOp::Versioned { stamp, .. } | RowOp::Record { stamp, .. } => {
                contribution(self.id, *stamp)
            }
            RowOp::Withdraw { .. } | RowOp::ClientGone { .. } => 0,
        }
    }
}

fn rows_of(service: &Service, scope: Scope) -> Vec<Identified> {
    let rows = service.rows.lock();
    let mut found: Vec<(RowKey, Identified)> = Vec::new();
    for row in rows.iter() {
        for publication in &row.publications {
            let stamp = publication.stamp;
            let key = publication.instance.row_key();
            match publication.publisher {
                Publisher::Connection(client) => {
                    if scope == Scope::Origin(client.origin) && !publication.is_orphan {
                        found.push((key, publish_op(service, row.hash, client, publication)));
                    }
                }
                Publisher::Beats => {
                    if takes(scope, stamp.member) {
                        let value = VersionedValue::Beat(publication.instance.clone());
                        found.push((key.clone(), versioned_op(service, row.hash, key, stamp, value)));
                    }
                }
            }
        }
    }
    for (key, over) in rows
        .overrides
        .iter()
        .filter(|(_, o)| takes(scope, o.stamp.member))
    {
        let hash = key.stable_hash(&service.key);
        let value = VersionedValue::Override(over.value.clone());
        found.push((
            key.clone(),
            versioned_op(service, hash, key.clone(), over.stamp, value),
        ));
    }
    drop(rows);
    found.sort_by(|a, b| (&a.0, a.1.id).cmp(&(&b.0, b.1.id)));
    found.into_iter().map(|(_, row)| row).collect()
}

fn graves_of(service: &Service, scope: Scope) -> Vec<RowOp> {
    let rows = service.rows.lock();
    let mut graves: Vec<_> = rows
        .tombstones
        .iter()
        .filter(|(_, t)| takes(scope, t.stamp.member))
        .map(|((kind, key), t)| (key.clone(), *kind, *t))
        .collect();
    drop(rows);
    graves.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let op = |(row, kind, grave): (RowKey, VersionedKind, super::service::Tombstone)| RowOp::Versioned {
        service: service.key.clone(),
        row,
        stamp: grave.stamp,
        value: match kind {
            VersionedKind::Beat => VersionedValue::NoBeat {
                expired: grave.is_expiry,
            },
            VersionedKind::Override => VersionedValue::NoOverride,
        },
    };
    graves.into_iter().map(op).collect()
}

fn takes(scope: Scope, writer: MemberId) -> bool {
    match scope {
        Scope::Origin(origin) => origin == writer,
        Scope::Versioned => true,
    }
}

fn publish_op(service: &Service, hash: u64, client: ClientId, publication: &Publication) -> Identified {
    Identified {
        id: connection_row_id(hash, client),
        version: version_of(publication.stamp),
        op: RowOp::Publish {
            client,
            service: service.key.clone(),
            instance: publication.instance.clone(),
            stamp: publication.stamp,
        },
    }
}

fn versioned_op(
    service: &Service,
    hash: u64,
    row: RowKey,
    stamp: crate::clock::Stamp,
    value: VersionedValue,
) -> Identified {
    Identified {
        id: versioned_row_id(hash, value.kind()),
        version: version_of(stamp),
        op: RowOp::Versioned {
            service: service.key.clone(),
            row,
            stamp,
            value,
        },
    }
}

impl Registry {
    /// The rows of a service as readers see them, or would see them were they not hidden, each with its publications,
    /// newest first; sorted by row.
    pub fn publications(&self, service: &ServiceKey) -> Vec<(Arc<Instance>, Vec<Publication>)> {
        let Some(service) = self.service(service) else {
            return Vec::new();
        };
        let rows = service.rows.lock();
        let mut found = Vec::new();
        for row in rows.iter() {
            let Some(key) = row.shown().map(|p| p.instance.row_key()) else {
                continue;
            };
            let Some(visible) = rows.overlaid(row.hash, &key) else {
                continue;
            };
            let mut publications = row.publications.to_vec();
            publications.sort_by_key(|p| std::cmp::Reverse((!p.is_orphan, p.stamp)));
            found.push((key, visible, publications));
        }
        drop(rows);
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
            .into_iter()
            .map(|(_, visible, publications)| (visible, publications))
            .collect()
    }
}
