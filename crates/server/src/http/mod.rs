//! What clients of the 1.x generation, tools and operators speak: parameters over HTTP.
//!
//! | module | what it holds |
//! |---|---|
//! | [`router`] | which path and method means which handler |
//! | [`app`] | reads a request, calls its handler, writes the answer |
//! | [`params`], [`check`] | what was sent, and whether it may be |
//! | [`reply`] | what goes back |
//! | [`api`] | what differs between the generations beside paths and parameter names |
//! | [`shared`] | what is the same in all generations, one file per resource |
//! | [`v1`], [`v2`], [`v3`] | what is not, one file per resource |
//! | [`discovery`], [`own`], [`quarantine`], [`guard`], [`prometheus`], [`openapi`] | paths that only Rollcall has, or every server |

pub mod api;
pub mod app;
pub mod check;
pub mod discovery;
pub mod guard;
pub mod multipart;
pub mod openapi;
pub mod own;
pub mod page;
pub mod params;
pub mod prometheus;
pub mod quarantine;
pub mod reply;
pub mod router;
pub mod shared;
pub mod udp_poll;
pub mod v1;
pub mod v2;
pub mod v3;
