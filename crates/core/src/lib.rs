//! The registry as data: services, instances, who publishes and who subscribes, and the views that reads answer from.
//!
//! Nothing here performs I/O, reads a clock, sleeps or draws a random number. Time comes in as [`Now`], hash seeds
//! come in at construction. Called by `rollcall-distro` (applies what other members say) and `rollcall-node`
//! (applies what clients ask).

pub mod clock;
pub mod expiry;
pub mod latency;
pub mod member_id;
pub mod model;
pub mod ownership;
pub mod registry;

pub use clock::{HybridClock, Micros, Millis, Now, Stamp};
pub use latency::{Latencies, LatencyCounts, Peak};
pub use member_id::MemberId;
pub use model::instance::{BeatTimes, Instance, RowAddress, RowKey};
pub use model::limits::{self, Violation};
pub use model::metadata::Metadata;
pub use model::service_key::ServiceKey;
pub use registry::Registry;
pub use registry::selection::{Selected, Selection};
pub use registry::view::ServiceView;
