//! What members say to each other. Wire structs only: plain text and numbers, converted to and from core types in
//! `convert.rs`. A changed struct is a new format version (see `codec.rs`).
//!
//! A *link* is one stream from the member that dials (the origin, which sends [`Frame`]s about its own rows) to the
//! member that accepts (which sends [`Reply`]s). Each pair of members has two links, one per direction.

use bincode::{Decode, Encode};

pub use crate::probe::{Brief, Found, FullProbe, News, Probe, State, Word};

/// A number that always takes eight bytes, so that what a quiet cluster sends does not depend on what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fixed64([u8; 8]);

impl From<u64> for Fixed64 {
    fn from(n: u64) -> Self {
        Fixed64(n.to_le_bytes())
    }
}

impl From<Fixed64> for u64 {
    fn from(fixed: Fixed64) -> Self {
        u64::from_le_bytes(fixed.0)
    }
}

/// What a member says of itself when it dials another.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct LinkHello {
    /// Name of the cluster both must belong to.
    pub cluster: String,
    /// Name of the ownership rule both must use.
    pub mapper: String,
    /// Lowest and highest format version the dialer speaks.
    pub formats: (u8, u8),
    /// The dialer's advertised address.
    pub member: String,
    /// The dialer's epoch.
    pub epoch: u64,
    /// Random number of the dialer's process: the same epoch with another boot is another process.
    pub boot: u64,
}

impl LinkHello {
    /// Compares what another member says with what this one would say. Who is a member is not decided here.
    ///
    /// # Errors
    /// [`LinkRefusal`] with both values when cluster, rule of ownership or format versions do not fit.
    pub fn check(&self, theirs: &LinkHello) -> Result<(), LinkRefusal> {
        check_names((&self.cluster, &self.mapper), (&theirs.cluster, &theirs.mapper))?;
        if theirs.formats.1 < self.formats.0 || self.formats.1 < theirs.formats.0 {
            return Err(LinkRefusal::Format {
                theirs: theirs.formats,
                ours: self.formats,
            });
        }
        Ok(())
    }
}

/// Both members must name the same cluster and the same rule of ownership, in hellos and in probes.
///
/// # Errors
/// [`LinkRefusal`] with both values.
pub(crate) fn check_names(ours: (&str, &str), theirs: (&str, &str)) -> Result<(), LinkRefusal> {
    if ours.0 != theirs.0 {
        return Err(LinkRefusal::Cluster {
            theirs: theirs.0.to_owned(),
            ours: ours.0.to_owned(),
        });
    }
    if ours.1 != theirs.1 {
        return Err(LinkRefusal::Mapper {
            theirs: theirs.1.to_owned(),
            ours: ours.1.to_owned(),
        });
    }
    Ok(())
}

/// The acceptor's answer to a hello it agrees with.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Welcome {
    /// Where the dialer's log shall start.
    pub resume: Resume,
    /// The acceptor's epoch.
    pub epoch: u64,
    /// Random number of the acceptor's process.
    pub boot: u64,
}

/// Where a link starts.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Resume {
    /// The acceptor holds nothing of this epoch: send a snapshot, then the log.
    Fresh,
    /// The acceptor has applied the log up to and including this sequence number.
    At {
        /// Last applied sequence number.
        seq: u64,
    },
    /// A snapshot broke off: the acceptor has the log up to `seq` and all buckets before `bucket`.
    Loading {
        /// Last applied sequence number.
        seq: u64,
        /// First bucket that is missing.
        bucket: u16,
    },
}

/// Why a hello is refused.
#[derive(Clone, Debug, PartialEq, Encode, Decode, thiserror::Error)]
pub enum LinkRefusal {
    /// Another cluster's name.
    #[error("the dialer belongs to cluster {theirs:?}, this member to {ours:?}")]
    Cluster {
        /// Name the dialer gave.
        theirs: String,
        /// Name of this cluster.
        ours: String,
    },
    /// Another ownership rule.
    #[error("the dialer maps services by {theirs:?}, this member by {ours:?}")]
    Mapper {
        /// Rule the dialer gave.
        theirs: String,
        /// Rule used here.
        ours: String,
    },
    /// No common format version.
    #[error("the dialer speaks format versions {theirs:?}, this member {ours:?}")]
    Format {
        /// Range the dialer gave.
        theirs: (u8, u8),
        /// Range spoken here.
        ours: (u8, u8),
    },
    /// The dialer's address is not in this member's list.
    #[error("{member} is not in the member list")]
    NotAMember {
        /// Address the dialer gave.
        member: String,
    },
    /// The secret of the cluster was not proven.
    #[error("the proof of the cluster secret is wrong")]
    Secret,
    /// The epoch was used by an earlier process of the dialer: it must take at least `at_least`.
    #[error("epoch is used up, take at least {at_least}")]
    EpochUsed {
        /// Lowest epoch that is free.
        at_least: u64,
    },
}

/// A service in a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct WireService {
    /// Namespace id.
    pub namespace: String,
    /// Group.
    pub group: String,
    /// Plain name.
    pub name: String,
}

/// The key of a row in a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct WireRow {
    /// Address.
    pub ip: String,
    /// Port.
    pub port: u16,
    /// Cluster.
    pub cluster: String,
}

/// An instance in a frame.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct WireInstance {
    /// The row.
    pub row: WireRow,
    /// Weight.
    pub weight: f64,
    /// Enabled.
    pub enabled: bool,
    /// Healthy.
    pub healthy: bool,
    /// Metadata pairs in order.
    pub metadata: Vec<(String, String)>,
    /// Given instance id.
    pub instance_id: Option<String>,
}

/// An override in a frame.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct WireOverride {
    /// Weight.
    pub weight: f64,
    /// Enabled.
    pub enabled: bool,
    /// Pairs laid over the registered metadata.
    pub metadata: Vec<(String, String)>,
}

/// Content of a versioned row.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum WireValue {
    /// An instance kept alive by beats.
    Beat(WireInstance),
    /// An operator's override of a row.
    Override(WireOverride),
    /// The beat row is removed; `expired`: by the judge of beats, not by its client or an operator.
    NoBeat {
        /// Removed for silence.
        expired: bool,
    },
    /// The override is removed.
    NoOverride,
}

/// What a record of operator data is about.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum WireRecordKey {
    /// A namespace.
    Namespace(String),
    /// A service.
    Service(WireService),
    /// A cluster of a service.
    Cluster(WireService, String),
    /// Hidden rows of a service: address, port, cluster or all.
    Quarantine(WireService, String, u16, Option<String>),
    /// A switch.
    Switch(String),
}

/// Content of a record of operator data.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum WireRecord {
    /// See `NamespaceSettings`.
    Namespace {
        /// Name for people.
        name: String,
        /// Description.
        description: String,
    },
    /// See `ServiceSettings`.
    Service {
        /// Protection threshold.
        protect_threshold: f64,
        /// Metadata pairs in order.
        metadata: Vec<(String, String)>,
        /// Selector as JSON text.
        selector: String,
        /// Made for ephemeral instances.
        is_ephemeral: bool,
    },
    /// See `ClusterSettings`.
    Cluster {
        /// Health checker as JSON text.
        health_checker: String,
        /// Port that is checked.
        check_port: u16,
        /// The instance's own port is checked instead.
        uses_instance_port: bool,
        /// Metadata pairs in order.
        metadata: Vec<(String, String)>,
    },
    /// See `Quarantine`.
    Quarantine {
        /// Wall time of its end, in milliseconds.
        until: Option<u64>,
        /// For people.
        reason: String,
    },
    /// See `RecordKey::Switch`.
    Switch(String),
}

/// One change of one row, or the end of a client.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Op {
    /// A connection of the origin publishes a row, or changes it.
    Publish {
        /// Number of the connection at its origin.
        client: u64,
        /// The service.
        service: WireService,
        /// The row's content.
        instance: WireInstance,
        /// Hybrid time of the registration; its member is the origin.
        time: u64,
    },
    /// A connection of the origin publishes a row no longer.
    Withdraw {
        /// Number of the connection.
        client: u64,
        /// The service.
        service: WireService,
        /// The row.
        row: WireRow,
    },
    /// A connection of the origin is gone with all it published.
    ClientGone {
        /// Number of the connection.
        client: u64,
    },
    /// A versioned row changes: the greater stamp wins wherever it arrives.
    Versioned {
        /// The service.
        service: WireService,
        /// The row.
        row: WireRow,
        /// Hybrid time of the write.
        time: u64,
        /// Member that wrote it.
        member: u64,
        /// New content.
        value: WireValue,
    },
    /// A record of operator data changes: the greater stamp wins wherever it arrives.
    Record {
        /// What it is about.
        key: WireRecordKey,
        /// Hybrid time of the write.
        time: u64,
        /// Member that wrote it.
        member: u64,
        /// New content; `None`: removed.
        record: Option<WireRecord>,
    },
}

/// How far a member has followed a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Followed {
    /// The member whose log it is.
    pub member: u64,
    /// Boot number of its process.
    pub boot: u64,
    /// Last applied sequence number.
    pub seq: u64,
}

/// From the dialer of a link.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Frame {
    /// Operations of the dialer's log, in order without a gap.
    Ops {
        /// Sequence number of the first.
        first: u64,
        /// The operations.
        ops: Vec<Op>,
    },
    /// A snapshot of the dialer's own rows starts at this log position.
    SnapshotBegin {
        /// Log position before the first chunk.
        seq: u64,
    },
    /// Rows of one bucket, as they are at this point of the stream.
    SnapshotRows {
        /// The bucket.
        bucket: u16,
        /// True: rows of all origins ("all" load); false: the dialer's own.
        all: bool,
        /// The rows.
        rows: Vec<Op>,
        /// The bucket is complete.
        last: bool,
    },
    /// Rows of connections whose member is not alive, part of the "all" load: a member that restarts must not show
    /// less than the others do.
    Orphans {
        /// The member that held the connections.
        origin: u64,
        /// What is left of their grace, in milliseconds.
        remaining: u64,
        /// The rows, publications only.
        rows: Vec<Op>,
    },
    /// The snapshot of the dialer's own rows is complete.
    SnapshotEnd,
    /// The "all" load is complete.
    AllEnd {
        /// How far the dialer had followed each member's log, its own included: what a log replaced up to there is not
        /// part of the load.
        followed: Vec<Followed>,
    },
    /// The log no longer holds what the acceptor lacks: it goes on after `seq`, the gap is repaired by digest.
    Jump {
        /// Position from which the log goes on.
        seq: u64,
    },
    /// What the dialer's rows amount to at this position of the stream.
    Digest {
        /// The dialer's log position.
        seq: Fixed64,
        /// Root over the dialer's own rows.
        root: Fixed64,
        /// Roots over versioned rows whose writer is not alive, by writer.
        absent: Vec<(Fixed64, Fixed64)>,
    },
    /// Bucket digests of the rows of one origin, as asked for.
    Buckets {
        /// The origin.
        origin: u64,
        /// One digest per bucket.
        digests: Vec<u64>,
    },
    /// Row ids and versions of one bucket, as asked for.
    Ids {
        /// The origin.
        origin: u64,
        /// The bucket.
        bucket: u16,
        /// Row id and version.
        rows: Vec<(u64, u64)>,
    },
    /// Rows that were asked for; ids that are no longer there are left out.
    Rows {
        /// The rows.
        rows: Vec<Op>,
    },
    /// Signs of life that the dialer took for rows owned by the acceptor.
    Beats {
        /// Rows by service.
        rows: Vec<(WireService, Vec<WireRow>)>,
    },
    /// Rows of another member that the acceptor cannot reach, as asked for. Since format 3.
    RowsOf {
        /// The member whose rows they are.
        origin: u64,
        /// The rows.
        rows: Vec<Op>,
    },
    /// Signs of life for rows owned by a member that the dialer cannot reach: pass them on to it. Since format 3.
    BeatsFor {
        /// The owner.
        owner: u64,
        /// Rows by service.
        rows: Vec<(WireService, Vec<WireRow>)>,
    },
    /// How the dialer starts, told by one that does not serve yet: first on a link, and whenever it changes. Since
    /// format 4.
    Starting(ColdStart),
}

/// How a member that keeps copies on disk starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum ColdStart {
    /// It loads from members that serve, or keeps no copies.
    No,
    /// It has not found out yet what is on its disk.
    Reading,
    /// It holds the rows of a copy that was begun at this time of the hybrid clock, in milliseconds; `None` when it has
    /// found no copy that will do.
    Read(Option<u64>),
}

/// From the acceptor of a link.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Reply {
    /// The log is applied up to and including this position.
    Ack {
        /// Last applied sequence number.
        seq: u64,
    },
    /// The root of an origin differs: send its bucket digests.
    WantBuckets {
        /// The origin.
        origin: u64,
    },
    /// These buckets differ: send ids and versions.
    WantIds {
        /// The origin.
        origin: u64,
        /// The buckets.
        buckets: Vec<u16>,
    },
    /// These rows differ or are missing: send them.
    WantRows {
        /// The origin.
        origin: u64,
        /// The bucket.
        bucket: u16,
        /// Row ids.
        rows: Vec<u64>,
    },
    /// Send all versioned rows and all orphans you hold, whatever their origin, starting at this bucket.
    WantAll {
        /// First bucket that is missing.
        bucket: u16,
    },
    /// Rows that the dialer should have and did not list (repair in the other direction).
    Offer {
        /// The rows, versioned ones only.
        rows: Vec<Op>,
    },
    /// The acceptor cannot reach another member and holds these rows of it: send bucket digests of yours when they
    /// differ and you follow the same process. Since format 3.
    Relay {
        /// The member.
        origin: u64,
        /// Boot number of its process.
        boot: u64,
        /// Root over its rows.
        root: u64,
    },
}

/// A client's write on its way to the owner.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Forward {
    /// The sender's view of who is alive, for the log only: views may differ for a moment.
    pub view: u64,
    /// How often this write has been passed on, this time included.
    pub hops: u8,
    /// Hybrid time at which a member took the write from its client: what it meets that is newer stays.
    pub time: u64,
    /// The write.
    pub write: WireWrite,
}

/// A change of an override in a forward.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum WireOverrideEdit {
    /// See `OverrideEdit::Replace`.
    Replace(WireOverride),
    /// See `OverrideEdit::Patch`.
    Patch {
        /// Weight.
        weight: Option<f64>,
        /// Enabled.
        enabled: Option<bool>,
        /// Pairs laid over the registered metadata.
        metadata: Option<Vec<(String, String)>>,
    },
    /// See `OverrideEdit::Lay`.
    Lay(Vec<(String, String)>),
    /// See `OverrideEdit::TakeAway`.
    TakeAway(Vec<String>),
}

/// A write in a forward.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum WireWrite {
    /// See `HttpWrite::Register`.
    Register {
        /// The service.
        service: WireService,
        /// The instance.
        instance: WireInstance,
    },
    /// See `HttpWrite::Deregister`.
    Deregister {
        /// The service.
        service: WireService,
        /// Address.
        ip: String,
        /// Port.
        port: u16,
        /// Cluster, if named.
        cluster: Option<String>,
    },
    /// See `HttpWrite::Update`.
    Update {
        /// The service.
        service: WireService,
        /// Address.
        ip: String,
        /// Port.
        port: u16,
        /// Cluster, if named.
        cluster: Option<String>,
        /// The change.
        edit: WireOverrideEdit,
    },
    /// See `HttpWrite::Beat`.
    Beat {
        /// The service.
        service: WireService,
        /// Address.
        ip: String,
        /// Port.
        port: u16,
        /// Cluster, if named.
        cluster: Option<String>,
        /// The described instance of a full beat.
        full: Option<WireInstance>,
    },
}

/// The answer to a forward.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct ForwardReply {
    /// The result.
    pub result: Result<WireDone, WireError>,
    /// Where the change stands: accepting member, its epoch, sequence number in its log.
    pub accepted: Option<(u64, u64, u64)>,
}

/// A write that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub enum WireDone {
    /// Applied.
    Ok,
    /// Beat of a known row; interval in milliseconds.
    BeatKnown(u64),
    /// Light beat of an unknown row; interval in milliseconds.
    BeatUnknown(u64),
}

/// A write that the owner refused.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum WireError {
    /// The service of an update does not exist.
    ServiceNotFound(WireService),
    /// No instance in that cluster of the service.
    ClusterEmpty(String, String),
    /// No such row.
    InstanceNotFound,
    /// The member is not ready.
    NotReady,
    /// The member has more to do than it can hold.
    OverLimit,
    /// The row has a version of this hybrid time, newer than the write: who still waits sends it anew.
    Outdated(u64),
    /// The metadata that would be laid over a row has more than this many UTF-16 units.
    MetadataTooLong(usize),
    /// The service of this grouped name is for the other kind of instances; true when it is for ephemeral ones.
    WrongKind(String, bool),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(cluster: &str) -> LinkHello {
        LinkHello {
            cluster: cluster.into(),
            mapper: "modulo".into(),
            formats: (1, 1),
            member: "127.0.0.1:8848".into(),
            epoch: 7,
            boot: 9,
        }
    }

    #[test]
    fn another_cluster_mapper_or_format_is_refused_with_both_values() {
        let ours = hello("a");
        assert_eq!(ours.check(&hello("a")), Ok(()));
        let refusal = LinkRefusal::Cluster {
            theirs: "b".into(),
            ours: "a".into(),
        };
        assert_eq!(ours.check(&hello("b")), Err(refusal));
        let mapper = LinkHello {
            mapper: "rendezvous".into(),
            ..hello("a")
        };
        let refusal = LinkRefusal::Mapper {
            theirs: "rendezvous".into(),
            ours: "modulo".into(),
        };
        assert_eq!(ours.check(&mapper), Err(refusal));
        let newer = LinkHello {
            formats: (2, 4),
            ..hello("a")
        };
        let refusal = LinkRefusal::Format {
            theirs: (2, 4),
            ours: (1, 1),
        };
        assert_eq!(ours.check(&newer), Err(refusal));
        let wider = LinkHello {
            formats: (0, 4),
            ..hello("a")
        };
        assert_eq!(ours.check(&wider), Ok(()));
    }
}
