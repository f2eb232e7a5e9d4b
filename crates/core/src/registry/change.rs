//! Changes of rows: what a member writes into its log and what it applies from the logs of others.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::clock::Stamp;
use crate::member_id::MemberId;
use crate::model::instance::{Instance, RowKey};
use crate::model::metadata::Metadata;
use crate::model::service_key::ServiceKey;
use crate::registry::digest::Digests;
use crate::registry::records::{Record, RecordKey};

/// Identity of a connection that publishes: the member that holds it, and its number there.
///
/// Numbers are never used twice by a member, not even by a later process of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId {
    /// The member that holds the connection.
    pub origin: MemberId,
    /// Number of the connection at its origin. The highest bit says that the client returns slowly.
    pub number: u64,
}

impl ClientId {
    const SLOW: u64 = 1 << 63;

    /// The connection with this number below 2^63. `returns_slowly`: when its member dies, this client registers
    /// again elsewhere only much later than others do, and its orphans are kept for as long.
    pub fn new(origin: MemberId, number: u64, returns_slowly: bool) -> Self {
        let mark = if returns_slowly { Self::SLOW } else { 0 };
        ClientId {
            origin,
            number: number & !Self::SLOW | mark,
        }
    }

    /// The number that it was made with.
    pub fn plain_number(self) -> u64 {
        self.number & !Self::SLOW
    }

    /// See [`ClientId::new`]. All members know it, because the number travels with every row.
    pub fn returns_slowly(self) -> bool {
        self.number & Self::SLOW != 0
    }
}

/// What an operator sets beside a row, whoever publishes it.
#[derive(Clone, PartialEq, Debug)]
pub struct Override {
    /// Weight that clients see.
    pub weight: f64,
    /// Whether clients see the row.
    pub enabled: bool,
    /// Pairs laid over the published metadata.
    pub metadata: Metadata,
}

/// A change of what an operator has set beside a row. It is applied by whoever owns the row, so that of two changes at
/// one moment each keeps what only the other names.
#[derive(Clone, PartialEq, Debug)]
pub enum OverrideEdit {
    /// Sets all of it.
    Replace(Override),
    /// Sets what is named. Where nothing was set, the rest is weight 1 and enabled, whatever the row says
    /// (`http-v1.md` §3.4).
    Patch {
        /// Weight that clients see.
        weight: Option<f64>,
        /// Whether clients see the row.
        enabled: Option<bool>,
        /// All pairs laid over the published metadata.
        metadata: Option<Metadata>,
    },
    /// Lays further pairs over the metadata; weight and whether clients see the row stay as they are shown.
    Lay(Metadata),
    /// Takes away pairs with these keys that were laid over the metadata; the rest stays as it is shown. What the row
    /// was registered with stays.
    TakeAway(Vec<SmolStr>),
}

impl OverrideEdit {
    /// The override that this makes of a `former` one beside a row that is shown as `shown`; `None` when nothing changes.
    pub fn applied(self, former: Option<&Override>, shown: &Instance) -> Option<Override> {
        let as_shown = |edit: &dyn Fn(&Metadata) -> Metadata| {
            let former = former.map(|over| &over.metadata);
            let metadata = edit(former.unwrap_or(&Metadata::default()));
            let changes = former.map_or(!metadata.is_empty(), |former| *former != metadata);
            changes.then_some(Override {
                weight: shown.weight,
                enabled: shown.enabled,
                metadata,
            })
        };
        match self {
            OverrideEdit::Replace(over) => Some(over),
            OverrideEdit::Patch {
                weight,
                enabled,
                metadata,
            } => Some(Override {
                weight: weight.or(former.map(|over| over.weight)).unwrap_or(1.0),
                enabled: enabled.or(former.map(|over| over.enabled)).unwrap_or(true),
                metadata: metadata
                    .or_else(|| former.map(|over| over.metadata.clone()))
                    .unwrap_or_default(),
            }),
            OverrideEdit::Lay(pairs) => as_shown(&|former| former.overlaid(&pairs)),
            OverrideEdit::TakeAway(keys) => as_shown(&|former| {
                let kept = former.iter().filter(|(key, _)| !keys.contains(key));
                Metadata::from_pairs(kept.cloned())
            }),
        }
    }
}

/// Content of a versioned row: the greater stamp wins, on whatever member it arrives.
#[derive(Clone, PartialEq, Debug)]
pub enum VersionedValue {
    /// An instance kept alive by beats.
    Beat(Arc<Instance>),
    /// An operator's override.
    Override(Arc<Override>),
    /// The beat row is removed.
    NoBeat {
        /// By the judge of beats, for silence: a member that hears the beats may object.
        expired: bool,
    },
    /// The override is removed.
    NoOverride,
}

/// One version of a versioned row.
#[derive(Clone, PartialEq, Debug)]
pub struct Versioned {
    /// Order of the write.
    pub stamp: Stamp,
    /// Content.
    pub value: VersionedValue,
}

impl Versioned {
    /// The removal of this version by a member: just above it, so that any newer registration wins.
    pub fn removal(&self, by: MemberId) -> Versioned {
        let value = match self.value.kind() {
            VersionedKind::Beat => VersionedValue::NoBeat { expired: true },
            VersionedKind::Override => VersionedValue::NoOverride,
        };
        let stamp = Stamp {
            time: self.stamp.time + 1,
            member: by,
        };
        Versioned { stamp, value }
    }
}

/// The two kinds of versioned rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum VersionedKind {
    /// Kept alive by beats.
    Beat,
    /// Set by an operator.
    Override,
}

impl VersionedValue {
    /// The kind of row this is a content of.
    pub fn kind(&self) -> VersionedKind {
        match self {
            VersionedValue::Beat(_) | VersionedValue::NoBeat { .. } => VersionedKind::Beat,
            VersionedValue::Override(_) | VersionedValue::NoOverride => VersionedKind::Override,
        }
    }

    /// True of a removal.
    pub fn is_removal(&self) -> bool {
        matches!(self, VersionedValue::NoBeat { .. } | VersionedValue::NoOverride)
    }
}

/// One change of one row, or the end of a client.
#[derive(Clone, PartialEq, Debug)]
pub enum RowOp {
    /// A connection publishes a row or changes it.
    Publish {
        /// The connection.
        client: ClientId,
        /// The service.
        service: ServiceKey,
        /// The row's content.
        instance: Arc<Instance>,
        /// When it was registered.
        stamp: Stamp,
    },
    /// A connection publishes a row no longer.
    Withdraw {
        /// The connection.
        client: ClientId,
        /// The service.
        service: ServiceKey,
        /// The row.
        row: RowKey,
    },
    /// A connection is gone with all it published.
    ClientGone {
        /// The connection.
        client: ClientId,
    },
    /// A versioned row changes.
    Versioned {
        /// The service.
        service: ServiceKey,
        /// The row.
        row: RowKey,
        /// Order of the write.
        stamp: Stamp,
        /// New content.
        value: VersionedValue,
    },
    /// A record of operator data changes.
    Record {
        /// What it is about.
        key: RecordKey,
        /// Order of the write.
        stamp: Stamp,
        /// New content; `None`: removed.
        record: Option<Record>,
    },
}

impl RowOp {
    /// The service, namespace or switch that it is about, for people; `None` for the end of a client.
    pub fn subject(&self) -> Option<String> {
        match self {
            RowOp::Publish { service, .. }
            | RowOp::Withdraw { service, .. }
            | RowOp::Versioned { service, .. } => Some(service.to_string()),
            RowOp::Record { key, .. } => Some(key.subject()),
            RowOp::ClientGone { .. } => None,
        }
    }

    /// The order of a write that wins by its stamp, whatever member it arrives on.
    pub fn version(&self) -> Option<Stamp> {
        match self {
            RowOp::Versioned { stamp, .. } | RowOp::Record { stamp, .. } => Some(*stamp),
            RowOp::Publish { .. } | RowOp::Withdraw { .. } | RowOp::ClientGone { .. } => None,
        }
    }
}

/// Takes down what this member itself writes, in the order in which it takes effect.
///
/// Called while the service's lock is held, so an implementation may take a lock of its own but no other, and must
/// not call back. That is what makes the order of the log the order of the rows.
pub trait Journal: Sync {
    /// Adds one operation; `delta` is what it adds to the digest of this member's rows in `bucket`. Both become
    /// visible together, so that a digest read at a log position covers exactly the operations up to it.
    fn record(&self, op: RowOp, digests: &Digests, bucket: usize, delta: u64);
}

/// The services whose visible list changed in one call; may name one twice.
pub type Changes = Vec<ServiceKey>;

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        Metadata::from_pairs(pairs.iter().map(|(k, v)| (SmolStr::new(k), SmolStr::new(v))))
    }

    fn over(weight: f64, pairs: &[(&str, &str)]) -> Override {
        Override {
            weight,
            enabled: false,
            metadata: metadata(pairs),
        }
    }

    fn shown() -> Instance {
        Instance {
            ip: "10.0.0.1".into(),
            port: 1,
            cluster: "DEFAULT".into(),
            weight: 7.0,
            enabled: false,
            healthy: true,
            metadata: metadata(&[("registered", "1")]),
            instance_id: None,
        }
    }

    #[test]
    fn a_patch_changes_what_it_names_and_begins_from_weight_one_and_enabled() {
        let patch = |weight, metadata| OverrideEdit::Patch {
            weight,
            enabled: None,
            metadata,
        };
        let made = patch(Some(2.0), None).applied(None, &shown());
        let wanted = Override {
            weight: 2.0,
            enabled: true,
            metadata: Metadata::default(),
        };
        assert_eq!(made, Some(wanted));

        let former = over(3.0, &[("a", "1")]);
        let made = patch(None, Some(metadata(&[("b", "2")]))).applied(Some(&former), &shown());
        assert_eq!(made, Some(over(3.0, &[("b", "2")])));
        assert_eq!(patch(None, None).applied(Some(&former), &shown()), Some(former));
    }

    #[test]
    fn pairs_are_laid_over_and_taken_away_and_the_rest_stays_as_it_is_shown() {
        let lay = OverrideEdit::Lay(metadata(&[("a", "2"), ("b", "3")]));
        assert_eq!(
            lay.clone().applied(None, &shown()),
            Some(over(7.0, &[("a", "2"), ("b", "3")]))
        );
        let former = over(7.0, &[("a", "1"), ("c", "4")]);
        let laid = over(7.0, &[("a", "2"), ("c", "4"), ("b", "3")]);
        assert_eq!(lay.clone().applied(Some(&former), &shown()), Some(laid.clone()));
        assert_eq!(lay.applied(Some(&laid), &shown()), None, "nothing changes");

        let take = OverrideEdit::TakeAway(vec!["a".into(), "registered".into()]);
        assert_eq!(
            take.clone().applied(Some(&former), &shown()),
            Some(over(7.0, &[("c", "4")]))
        );
        assert_eq!(take.applied(None, &shown()), None, "nothing was laid over");
    }
}
