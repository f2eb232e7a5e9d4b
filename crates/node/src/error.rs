//! Why a node refuses a request. The shell's error table maps each to its HTTP status, code and gRPC result.

use rollcall_core::model::limits::InstanceFault;
use rollcall_core::{ServiceKey, Violation};

use crate::switches::ServerStatus;

/// A refused request.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum NodeError {
    /// A rule of the parameter checker is broken.
    #[error("{0}")]
    Param(#[from] Violation),
    /// A rule of the service layer is broken.
    #[error("{0}")]
    Instance(#[from] InstanceFault),
    /// The connection is not, or no longer, set up. The code that makes official clients register again.
    #[error("Connection is unregistered.")]
    UnknownConnection,
    /// The connection was set up for another module than naming.
    #[error(
        "errCode: -401, errMsg: Client [{0}] connection already disconnect, can't register ephemeral instance. "
    )]
    NotNaming(String),
    /// The service of an update does not exist.
    #[error(
        "service not found, namespace: {namespace}, service: Service{{namespace='{namespace}', group='{group}', \
         name='{name}', ephemeral=true, revision=0}}"
    )]
    ServiceNotFound {
        /// Namespace asked for.
        namespace: String,
        /// Group asked for.
        group: String,
        /// Name asked for.
        name: String,
    },
    /// A service that shall be made is there already.
    #[error("specified service {} already exists!", .0.grouped_name())]
    ServiceExists(ServiceKey),
    /// A service that shall be changed or removed is not there.
    #[error("service {} not found!", .0.grouped_name())]
    NoService(ServiceKey),
    /// A service that shall be removed still has instances.
    #[error(
        "Service {} is not empty, can't be delete. Please unregister instance first",
        .0.grouped_name()
    )]
    ServiceNotEmpty(ServiceKey),
    /// An instance is registered in a service that is for the other kind.
    #[error(
        "errCode: 400, errMsg: Current service {service} is {} service, can't register {} instance. ",
        kind_name(*is_ephemeral),
        kind_name(!is_ephemeral)
    )]
    WrongKind {
        /// Grouped name of the service.
        service: String,
        /// The service is for ephemeral instances.
        is_ephemeral: bool,
    },
    /// The service has no instance in the cluster asked for.
    #[error("no ips found for cluster {cluster} in service {service}")]
    ClusterEmpty {
        /// Cluster asked for.
        cluster: String,
        /// Grouped name of the service.
        service: String,
    },
    /// The service has no such row.
    #[error("no matched ip found!")]
    InstanceNotFound,
    /// A pattern does not have its form.
    #[error("pattern {0:?} is not of the form namespace>>group>>service")]
    BadPattern(String),
    /// As many patterns are watched as may be (`spec/grpc.md` §7).
    #[error("fuzzy watch pattern over limit")]
    TooManyPatterns,
    /// No further connection is taken, in all or from this address.
    #[error("connection limit reached")]
    TooManyConnections,
    /// This node is loading, or not yet part of its cluster.
    #[error("server is STARTING now, please try again later!")]
    NotReady,
    /// This node is about to end.
    #[error("server is DOWN now, please try again later!")]
    Leaving,
    /// Operators have set a status that refuses this.
    #[error("server is {} now, please try again later!", .0.name())]
    Overridden(ServerStatus),
    /// No other member lists this node: it serves reads only.
    #[error("server is ISOLATION now, no other member lists it, please try another one!")]
    Unlisted,
    /// This node is far behind with what it has to do.
    #[error("server is BUSY now, please try again later, or another one!")]
    Overloaded,
    /// A bounded queue is full.
    #[error("the node has more to do than it can hold: {0}")]
    OverLimit(&'static str),
    /// The row was written after this write was taken from its client. Seen between members only: the member that
    /// holds the client sends the write anew.
    #[error("the row has a newer version")]
    Outdated {
        /// Hybrid time of that version.
        newest: u64,
    },
    /// Data of this kind needs the consensus store.
    #[error("persistent instances are not available in this version, register with ephemeral=true")]
    PersistentUnavailable,
    /// A page cannot be cut as asked (`spec/validation.md` §10).
    #[error("fromIndex(0) > toIndex({0})")]
    Page(i64),
}

fn kind_name(is_ephemeral: bool) -> &'static str {
    if is_ephemeral { "ephemeral" } else { "persistent" }
}

impl NodeError {
    pub(crate) fn service_not_found(service: &ServiceKey) -> Self {
        NodeError::ServiceNotFound {
            namespace: service.namespace().to_owned(),
            group: service.group().to_owned(),
            name: service.name().to_owned(),
        }
    }

    /// True when the same request may succeed later or at another member.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            NodeError::NotReady
                | NodeError::Leaving
                | NodeError::Overridden(_)
                | NodeError::Unlisted
                | NodeError::Overloaded
                | NodeError::OverLimit(_)
                | NodeError::Outdated { .. }
                | NodeError::UnknownConnection
        )
    }
}
