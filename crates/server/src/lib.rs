//! The Rollcall process: sockets, files, clocks and wire formats around the node, which does the thinking.

pub mod agreement;
pub mod ask;
pub mod client_app;
pub mod clock;
pub mod config;
pub mod connections;
pub mod ephemeral_copy;
pub mod error;
pub mod executor;
pub mod explain;
pub mod grpc;
pub mod http;
pub mod json;
pub mod load;
pub mod log_levels;
pub mod machine;
pub mod member_list;
pub mod metrics;
pub mod net;
pub mod peer;
pub mod service_info;
pub mod shutdown;
pub mod sockets;
#[cfg(test)]
mod spec_tests;
pub mod store;
pub mod transport;
pub mod udp;
pub mod unread;
pub mod wiring;

/// Generated code of `proto/nacos_grpc_service.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    non_camel_case_types,
    clippy::all
)]
pub mod pb {
    tonic::include_proto!("_");
}
