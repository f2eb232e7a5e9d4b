//! The list of one service as readers see it: immutable, shared, replaced as a whole on each change.
//!
//! Rows are kept in chunks sorted by (ip, port, cluster). A change copies the chunk it falls into and the vector of
//! chunk pointers; all other chunks, and the encoded text that hangs on them, are shared with the former view.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use crate::model::instance::{Instance, RowKey};
use crate::model::service_key::ServiceKey;
use crate::registry::selection::{Selected, Selection};

/// Rows in a chunk before it is split.
const MAX_CHUNK: usize = 64;
/// Filtered answers kept with one view.
const MAX_FILTERED: usize = 8;

/// Bytes that encoded answers may hold beside the data, over all services of a registry.
#[derive(Debug)]
pub struct AnswerBudget {
    used: AtomicUsize,
    limit: usize,
}

impl AnswerBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        AnswerBudget {
            used: AtomicUsize::new(0),
            limit,
        }
    }

    /// Bytes held now.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn take(self: &Arc<Self>, bytes: Bytes) -> Option<Kept> {
        let len = bytes.len();
        if self.used.fetch_add(len, Relaxed) + len > self.limit {
            self.used.fetch_sub(len, Relaxed);
            return None;
        }
        Some(Kept {
            bytes,
            budget: self.clone(),
        })
    }
}

/// Encoded bytes that count against the budget until they are dropped.
#[derive(Debug)]
struct Kept {
    bytes: Bytes,
    budget: Arc<AnswerBudget>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// Writes instances in one output format. Implemented where wire names are known.
pub trait HostEncoder {
    /// Writes one instance.
    fn encode(&self, service: &ServiceKey, instance: &Instance, out: &mut Vec<u8>);
}

/// Instances of an answer, encoded and joined by commas.
#[derive(Clone, Debug)]
pub struct EncodedHosts {
    /// The joined text.
    pub hosts: Bytes,
    /// See [`Selected::reach_protection`].
    pub reach_protection: bool,
}

#[derive(Debug, Default)]
struct Chunk {
    rows: Vec<Arc<Instance>>,
    /// All enabled rows, joined.
    encoded: OnceLock<Kept>,
}

impl Clone for Chunk {
    fn clone(&self) -> Self {
        let mut rows = Vec::with_capacity(self.rows.len() + 1);
        rows.extend(self.rows.iter().cloned());
        Chunk {
            rows,
            encoded: OnceLock::new(),
        }
    }
}

impl Chunk {
    fn of(rows: Vec<Arc<Instance>>) -> Arc<Self> {
        Arc::new(Chunk {
            rows,
            encoded: OnceLock::new(),
        })
    }

    fn encoded(&self, view: &ServiceView, encoder: &dyn HostEncoder) -> Bytes {
        if let Some(kept) = self.encoded.get() {
            return kept.bytes.clone();
        }
        let bytes = join(&view.service, self.rows.iter().filter(|i| i.enabled), encoder);
        if let Some(kept) = view.budget.take(bytes.clone()) {
            let _ = self.encoded.set(kept);
        }
        bytes
    }
}

#[derive(Debug)]
struct Filtered {
    clusters: String,
    healthy_only: bool,
    reach_protection: bool,
    hosts: Kept,
}

/// One version of a service's list.
#[derive(Debug)]
pub struct ServiceView {
    service: ServiceKey,
    version: u64,
    chunks: Vec<Arc<Chunk>>,
    len: usize,
    unhealthy: usize,
    /// Share of healthy instances at or below which all are shown as healthy; `None`: never.
    protection: Option<f64>,
    budget: Arc<AnswerBudget>,
    all: OnceLock<Kept>,
    filtered: Mutex<Vec<Filtered>>,
}

impl ServiceView {
    /// The empty list of `service`.
    pub fn empty(service: ServiceKey, version: u64, budget: Arc<AnswerBudget>) -> Self {
        ServiceView {
            service,
            version,
            chunks: Vec::new(),
            len: 0,
            unhealthy: 0,
            protection: None,
            budget,
            all: OnceLock::new(),
            filtered: Mutex::new(Vec::new()),
        }
    }

    /// The service.
    pub fn service(&self) -> &ServiceKey {
        &self.service
    }

    /// Rises with every change, over all services of this node, also when a service goes and comes back.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Number of rows, disabled ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is no row.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Share of healthy instances at or below which all are shown as healthy; `None`: never.
    pub fn protection(&self) -> Option<f64> {
        self.protection
    }

    /// All rows, sorted by (ip, port, cluster).
    pub fn instances(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.chunks.iter().flat_map(|chunk| chunk.rows.iter())
    }

    /// The row with this key.
    pub fn get(&self, ip: &str, port: u16, cluster: &str) -> Option<&Arc<Instance>> {
        let chunk = self.chunks.get(self.chunk_of(ip, port, cluster))?;
        let at = chunk
            .rows
            .binary_search_by(|i| compare(i, ip, port, cluster))
            .ok()?;
        chunk.rows.get(at)
    }

    /// The rows with this address, in whatever cluster.
    pub fn at(&self, ip: &str, port: u16) -> Vec<&Arc<Instance>> {
        let start = self.chunk_of(ip, port, "");
        self.chunks
            .iter()
            .skip(start)
            .flat_map(|chunk| chunk.rows.iter())
            .skip_while(|i| (i.ip.as_str(), i.port) < (ip, port))
            .take_while(|i| (i.ip.as_str(), i.port) == (ip, port))
            .collect()
    }

    /// The instances that `selection` takes; all as healthy when too few of them are.
    pub fn select(&self, selection: &Selection<'_>) -> Selected {
        let mut instances: Vec<_> = self.instances().filter(|i| selection.takes(i)).cloned().collect();
        let n_healthy = instances.iter().filter(|i| i.healthy).count();
        // With nothing taken this is not a number, and no protection.
        let share = n_healthy as f64 / instances.len() as f64;
        let reach_protection = self.protection.is_some_and(|threshold| share <= threshold);
        if reach_protection {
            for instance in instances.iter_mut().filter(|i| !i.healthy) {
                *instance = Arc::new(Instance {
                    healthy: true,
                    ..(**instance).clone()
                });
            }
        }
        Selected {
            instances,
            reach_protection,
        }
    }

    /// The instances that `selection` takes, encoded. Made on demand once per version and shared; every caller must
    /// use an encoder that writes the same text.
    pub fn encoded(&self, selection: &Selection<'_>, encoder: &dyn HostEncoder) -> EncodedHosts {
        let is_whole = selection.is_all_clusters() && (!selection.healthy_only || self.unhealthy == 0);
        if is_whole && self.protection.is_none() {
            return EncodedHosts {
                hosts: self.encoded_whole(encoder),
                reach_protection: false,
            };
        }
        self.encoded_filtered(selection, encoder)
    }

    fn encoded_whole(&self, encoder: &dyn HostEncoder) -> Bytes {
        if let [only] = self.chunks.as_slice() {
            return only.encoded(self, encoder);
        }
        if let Some(kept) = self.all.get() {
            return kept.bytes.clone();
        }
        let mut all = BytesMut::new();
        for chunk in &self.chunks {
            let part = chunk.encoded(self, encoder);
            if !all.is_empty() && !part.is_empty() {
                all.extend_from_slice(b",");
            }
            all.extend_from_slice(&part);
        }
        let bytes = all.freeze();
        if let Some(kept) = self.budget.take(bytes.clone()) {
            let _ = self.all.set(kept);
        }
        bytes
    }

    fn encoded_filtered(&self, selection: &Selection<'_>, encoder: &dyn HostEncoder) -> EncodedHosts {
        let is_same =
            |f: &&Filtered| f.healthy_only == selection.healthy_only && f.clusters == selection.clusters;
        if let Some(found) = self.filtered.lock().iter().find(is_same) {
            return EncodedHosts {
                hosts: found.hosts.bytes.clone(),
                reach_protection: found.reach_protection,
            };
        }
        let Selected {
            instances,
            reach_protection,
        } = self.select(selection);
        let bytes = join(&self.service, instances.iter(), encoder);
        if let Some(hosts) = self.budget.take(bytes.clone()) {
            let mut filtered = self.filtered.lock();
            if filtered.len() == MAX_FILTERED {
                filtered.remove(0);
            }
            let clusters = selection.clusters.to_owned();
            filtered.push(Filtered {
                clusters,
                healthy_only: selection.healthy_only,
                reach_protection,
                hosts,
            });
        }
        EncodedHosts {
            hosts: bytes,
            reach_protection,
        }
    }

    /// This list with rows set (`Some`) or removed (`None`), and with this protection.
    pub fn changed(
        &self,
        version: u64,
        changes: &[(RowKey, Option<Arc<Instance>>)],
        protection: Option<f64>,
    ) -> Self {
        let mut next = ServiceView::empty(self.service.clone(), version, self.budget.clone());
        next.chunks = self.chunks.clone();
        next.len = self.len;
        next.unhealthy = self.unhealthy;
        next.protection = protection;
        for (key, row) in changes {
            next.change(key, row.as_ref());
        }
        next
    }

    fn chunk_of(&self, ip: &str, port: u16, cluster: &str) -> usize {
        let before = |chunk: &Arc<Chunk>| {
            chunk
                .rows
                .last()
                .is_some_and(|i| compare(i, ip, port, cluster) == Ordering::Less)
        };
        self.chunks
            .partition_point(before)
            .min(self.chunks.len().saturating_sub(1))
    }

    fn change(&mut self, key: &RowKey, row: Option<&Arc<Instance>>) {
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::of(Vec::new()));
        }
        let at_chunk = self.chunk_of(&key.ip, key.port, &key.cluster);
        let Some(shared) = self.chunks.get_mut(at_chunk) else {
            return;
        };
        let chunk = Arc::make_mut(shared);
        chunk.encoded = OnceLock::new();
        let found = chunk
            .rows
            .binary_search_by(|i| compare(i, &key.ip, key.port, &key.cluster));
        let former = match (found, row) {
            (Ok(at), Some(row)) => Some(std::mem::replace(&mut chunk.rows[at], row.clone())),
            (Ok(at), None) => Some(chunk.rows.remove(at)),
            (Err(at), Some(row)) => {
                chunk.rows.insert(at, row.clone());
                None
            }
            (Err(_), None) => None,
        };
        let n_rows = chunk.rows.len();
        if n_rows > MAX_CHUNK {
            let upper = chunk.rows.split_off(n_rows / 2);
            self.chunks.insert(at_chunk + 1, Chunk::of(upper));
        } else if n_rows == 0 {
            self.chunks.remove(at_chunk);
        } else if n_rows < MAX_CHUNK / 4 && former.is_some() && row.is_none() {
            self.merge_with_next(at_chunk);
        }
        self.len = self.len + usize::from(row.is_some()) - usize::from(former.is_some());
        self.unhealthy = self.unhealthy + usize::from(row.is_some_and(|i| !i.healthy))
            - usize::from(former.is_some_and(|i| !i.healthy));
    }

    /// Keeps a shrinking list from falling apart into tiny chunks.
    fn merge_with_next(&mut self, at: usize) {
        let fits = match (self.chunks.get(at), self.chunks.get(at + 1)) {
            (Some(a), Some(b)) => a.rows.len() + b.rows.len() <= MAX_CHUNK / 2,
            _ => false,
        };
        if fits {
            let next = self.chunks.remove(at + 1);
            if let Some(chunk) = self.chunks.get_mut(at) {
                Arc::make_mut(chunk).rows.extend(next.rows.iter().cloned());
            }
        }
    }
}

fn compare(instance: &Instance, ip: &str, port: u16, cluster: &str) -> Ordering {
    (instance.ip.as_str(), instance.port, instance.cluster.as_str()).cmp(&(ip, port, cluster))
}

fn join<'a>(
    service: &ServiceKey,
    instances: impl Iterator<Item = &'a Arc<Instance>>,
    encoder: &dyn HostEncoder,
) -> Bytes {
    let mut out = Vec::new();
    for instance in instances {
        if !out.is_empty() {
            out.push(b',');
        }
        encoder.encode(service, instance, &mut out);
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    struct Plain;

    impl HostEncoder for Plain {
        fn encode(&self, _: &ServiceKey, i: &Instance, out: &mut Vec<u8>) {
            out.extend_from_slice(format!("{}:{}/{}", i.ip, i.port, i.weight).as_bytes());
        }
    }

    fn fresh(limit: usize) -> ServiceView {
        ServiceView::empty(
            ServiceKey::new("", "", "s"),
            0,
            Arc::new(AnswerBudget::new(limit)),
        )
    }

    fn text(view: &ServiceView, clusters: &str, healthy_only: bool) -> String {
        let hosts = view
            .encoded(
                &Selection {
                    clusters,
                    healthy_only,
                },
                &Plain,
            )
            .hosts;
        String::from_utf8(hosts.to_vec()).unwrap()
    }

    fn slow_text(view: &ServiceView, clusters: &str, healthy_only: bool) -> String {
        let selected = view.select(&Selection {
            clusters,
            healthy_only,
        });
        let parts: Vec<_> = selected
            .instances
            .iter()
            .map(|i| format!("{}:{}/{}", i.ip, i.port, i.weight))
            .collect();
        parts.join(",")
    }

    proptest! {
        /// Any sequence of changes leaves the same rows as a plain sorted map, in the same order, and every encoded
        /// answer equals the one made without caches.
        #[test]
        fn equals_a_sorted_map(
            changes in proptest::collection::vec((0u16..300, 0u8..6, proptest::bool::ANY), 1..600)
        ) {
            let mut view = fresh(1 << 20);
            let mut model = BTreeMap::new();
            for (n, (port, kind, remove)) in changes.into_iter().enumerate() {
                let mut instance = Instance::at("10.0.0.1", port);
                instance.weight = n as f64;
                instance.healthy = kind != 1;
                instance.enabled = kind != 2;
                if kind == 3 {
                    instance.cluster = "c1".into();
                }
                let key = instance.row_key();
                let row = (!remove).then(|| Arc::new(instance));
                match &row {
                    Some(row) => model.insert(key.clone(), row.clone()),
                    None => model.remove(&key),
                };
                view = view.changed(n as u64 + 1, &[(key, row)], None);
                if n % 7 == 0 {
                    text(&view, "", false);
                }
            }
            prop_assert_eq!(view.len(), model.len());
            prop_assert!(view.instances().eq(model.values()));
            for (key, row) in &model {
                prop_assert_eq!(view.get(&key.ip, key.port, &key.cluster), Some(row));
            }
            for clusters in ["", "c1", "DEFAULT,c1", "zz"] {
                for healthy_only in [false, true] {
                    let slow = slow_text(&view, clusters, healthy_only);
                    prop_assert_eq!(text(&view, clusters, healthy_only), slow.clone());
                    prop_assert_eq!(text(&view, clusters, healthy_only), slow);
                }
            }
        }
    }

    #[test]
    fn answers_stay_within_the_budget_and_give_it_back() {
        let mut view = fresh(100);
        let budget = view.budget.clone();
        for port in 0..200 {
            let instance = Instance::at("10.0.0.1", port);
            view = view.changed(
                u64::from(port),
                &[(instance.row_key(), Some(Arc::new(instance)))],
                None,
            );
        }
        assert_eq!(text(&view, "", false), slow_text(&view, "", false));
        assert!(budget.used() <= 100);
        text(&view, "zz", true);
        drop(view);
        assert_eq!(budget.used(), 0);
    }
}
