//! Distro: the replication between the members of a cluster.
//!
//! Every member keeps a log of what it writes and lets each peer pull it; digests in the same stream prove that both
//! hold the same rows. Pure: no I/O, no runtime, no clock. Depends on `rollcall-core` only; `rollcall-node` drives it.

mod beats;
pub mod codec;
pub mod convert;
mod copy;
mod detector;
pub mod effect;
pub mod engine;
pub mod faults;
pub mod gate;
mod graces;
pub mod inbound;
pub mod log;
pub mod members;
mod membership;
pub mod message;
pub mod outbound;
mod probe;
mod relay;
mod repairs;

pub use copy::{COPY_LIFE, CopyTime};
pub use detector::{DetectorCounts, Pace};
pub use effect::{Effect, Effects, Report};
pub use engine::{DistroConfig, DistroCounters, Engine, LinkId, PeerStatus, ROWS_AT_A_TIME};
pub use faults::{Fault, Faults};
pub use members::{Death, MAX_MEMBERS, Member, MemberState, OwnershipView, ProbeResult};
pub use membership::LacksSelf;
pub use outbound::LinkError;
pub use repairs::Repair;
