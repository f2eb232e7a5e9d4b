//! One row of a service: who publishes it, and what is shown of it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::{Millis, Stamp};
use crate::model::instance::Instance;
use crate::registry::change::{ClientId, Override};

/// Who publishes a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Publisher {
    /// A connection; the row goes with it.
    Connection(ClientId),
    /// A client that beats; the row is versioned.
    Beats,
}

/// One publisher's say about a row.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Who says it.
    pub publisher: Publisher,
    /// When it was registered, in the order of all members.
    pub stamp: Stamp,
    /// What it says.
    pub instance: Arc<Instance>,
    /// Its member is not alive: it stays until its grace ends or a live publisher takes its place.
    pub is_orphan: bool,
    /// Somebody else has registered the row since, and may have withdrawn it again.
    pub is_superseded: bool,
}

/// What this member has heard of a row's beats.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BeatsHeard {
    /// Last sign of life, direct or told by another member.
    pub(crate) last: Millis,
    /// When the client surely was alive, by what it or another member has told; not by what was judged.
    pub(crate) alive: Option<Millis>,
    /// Number of the wheel entry that watches this row; entries with another number are stale.
    pub(crate) watch: u64,
    /// When that entry comes up.
    pub(crate) look: Millis,
    /// It was heard again after it was registered: a silence is a change.
    pub(crate) is_regular: bool,
    /// How long its verdict has been held since it fell silent; it is removed so much later.
    pub(crate) held: Millis,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Stable hash of service and row.
    pub(crate) hash: u64,
    pub(crate) publications: SmallVec<[Publication; 1]>,
    pub(crate) beats: Option<Box<BeatsHeard>>,
}

impl Row {
    pub(crate) fn publication(&self, publisher: Publisher) -> Option<&Publication> {
        self.publications.iter().find(|p| p.publisher == publisher)
    }

    /// The publication that shows: the newest of the live ones; of the orphans only when there is none, or when it was
    /// superseded by then: what a client left behind at a member that stands still is not what it said last.
    pub(crate) fn shown(&self) -> Option<&Publication> {
        let newest = |is_orphan| {
            let of_kind = self.publications.iter().filter(move |p| p.is_orphan == is_orphan);
            of_kind.max_by_key(|p| p.stamp)
        };
        let orphan = newest(true);
        let Some(live) = newest(false) else {
            return orphan;
        };
        let is_left_behind = |orphan: &&Publication| live.is_superseded && orphan.stamp > live.stamp;
        orphan.filter(is_left_behind).or(Some(live))
    }
}

/// What readers see of a publication with an operator's override beside it.
pub(crate) fn overlaid(instance: &Arc<Instance>, over: Option<&Override>) -> Arc<Instance> {
    match over {
        None => instance.clone(),
        Some(over) => Arc::new(Instance {
            weight: over.weight,
            enabled: over.enabled,
            metadata: instance.metadata.overlaid(&over.metadata),
            ..(**instance).clone()
        }),
    }
}
