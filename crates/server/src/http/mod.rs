//! What clients of the 1.x generation, tools and operators speak: parameters over HTTP.
//!
//! `router` says which path and method means what, `params` reads what was sent, `reply` writes what goes back,
//! `v1` has one file per resource, `own` are the paths that only Rollcall has.

pub mod loader;
pub mod multipart;
pub mod own;
pub mod page;
pub mod params;
pub mod prometheus;
pub mod reply;
pub mod router;
pub mod udp_poll;
pub mod v1;
