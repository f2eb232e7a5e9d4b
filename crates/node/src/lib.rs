//! The whole node as a state machine: requests, frames and ticks in; answers and actions out.
//!
//! Composes the registry (`rollcall-core`) and the Distro engine (`rollcall-distro`) with connections, pushes and the
//! dispatch of writes. No I/O, no runtime, no clock: `rollcall-server` is the shell around it, and the simulation in
//! `tests/` runs whole clusters of it.

pub mod action;
mod balance;
mod brake;
mod clients;
mod closing;
pub mod config;
mod connection;
mod copy;
mod dispatch;
pub mod error;
pub mod fuzzy;
pub mod inspect;
mod links;
pub mod loader;
pub mod metrics;
mod minority;
mod movers;
pub mod node;
pub mod operator;
mod pending;
mod push;
pub mod reads;
pub mod request;
pub mod settings;
pub mod switches;

pub use action::{Accepted, Action, Actions, ForwardId, Push, Ticket, UdpPush};
pub use config::NodeConfig;
pub use error::NodeError;
pub use fuzzy::FuzzyMessage;
pub use inspect::{ClientStatus, ServicePublisher, ServiceSubscriber};
pub use loader::MemberLoad;
pub use metrics::{Family, NodeMetrics, Sample, Value};
pub use node::Node;
pub use operator::{MemberStatus, OriginDigest, PublisherStatus, RowStatus};
pub use push::costs::{PushWay, RecentCosts};
pub use reads::ServiceAnswer;
pub use request::{ConnectionId, ConnectionInfo, HttpWrite, RowTarget, ServiceNames, UdpTarget, WriteDone};
pub use rollcall_distro::{Death, Fault, Faults, LinkError, LinkId, MemberState, ProbeResult, Report};
pub use settings::NamespaceStatus;
