//! What clients ask of a node, already decoded: the shell turns JSON and parameters into these.

use rollcall_core::registry::change::OverrideEdit;
use rollcall_core::{Instance, Millis, RowAddress, ServiceKey};
use smol_str::SmolStr;

/// Identity of a connection within this node; given out by [`crate::Node::open_connection`], never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// What a client said of itself when it set its connection up (`spec/grpc.md` §3.2, §3.3).
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// The id clients see: `<epoch ms>_<remote ip>_<remote port>`.
    pub text_id: SmolStr,
    /// Address the client gave for itself; not verified.
    pub client_ip: SmolStr,
    /// Address of the socket.
    pub remote_ip: SmolStr,
    /// Client name and version, e.g. `Nacos-Java-Client:v2.5.1`.
    pub client_version: SmolStr,
    /// Label `AppName`, or `-`.
    pub app: SmolStr,
    /// Label `source` is `sdk`, in any case of letters: only then may the connection be asked to move.
    pub is_sdk: bool,
    /// Label `module` is `naming` or absent: only then may the connection register and subscribe.
    pub is_naming: bool,
}

/// Where a 1.x client wants pushes, as its polls name it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UdpTarget {
    /// Its IP address in canonical text form.
    pub ip: SmolStr,
    /// Its port, not 0.
    pub port: u16,
}

/// A page of service names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceNames {
    /// Number of services before paging.
    pub count: usize,
    /// Plain names of this page, sorted.
    pub names: Vec<SmolStr>,
}

/// Names the row that an HTTP request means (`design.md` §2): with a cluster named, that row; with none, the
/// `DEFAULT` row, else the only row with that address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowTarget {
    /// Address as registered.
    pub ip: SmolStr,
    /// Port.
    pub port: u16,
    /// Cluster, `None` when absent or blank.
    pub cluster: Option<SmolStr>,
}

impl RowTarget {
    /// The same, borrowed.
    pub fn address(&self) -> RowAddress<'_> {
        RowAddress {
            ip: &self.ip,
            port: self.port,
            cluster: self.cluster.as_deref(),
        }
    }
}

/// A write of an HTTP client on ephemeral data. All of them are owned by one member and forwarded to it.
#[derive(Clone, PartialEq, Debug)]
pub enum HttpWrite {
    /// Registers or replaces one row.
    Register {
        /// The service.
        service: ServiceKey,
        /// The row's new content.
        instance: Instance,
    },
    /// Removes one row; success also when there is none.
    Deregister {
        /// The service.
        service: ServiceKey,
        /// The row meant.
        target: RowTarget,
    },
    /// Changes the operator's override of one row.
    Update {
        /// The service.
        service: ServiceKey,
        /// The row meant.
        target: RowTarget,
        /// The change.
        edit: OverrideEdit,
    },
    /// A sign of life.
    Beat {
        /// The service.
        service: ServiceKey,
        /// The row meant.
        target: RowTarget,
        /// The instance as the beat's JSON describes it, `None` for a light beat. Used only when the row is unknown.
        full: Option<Instance>,
    },
}

impl HttpWrite {
    /// The service that is written.
    pub fn service(&self) -> &ServiceKey {
        match self {
            HttpWrite::Register { service, .. }
            | HttpWrite::Deregister { service, .. }
            | HttpWrite::Update { service, .. }
            | HttpWrite::Beat { service, .. } => service,
        }
    }
}

/// A write that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteDone {
    /// Applied.
    Ok,
    /// The beat's row is known (code 10200); the client shall beat in this interval.
    BeatKnown {
        /// Interval told to the client.
        interval: Millis,
    },
    /// The beat's row is unknown and the beat brought no description of it (code 20404).
    BeatUnknown {
        /// Interval told to the client.
        interval: Millis,
    },
}
