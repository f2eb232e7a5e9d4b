//! Rollcall as real processes, for integration tests: this project's own and anybody's.
//!
//! ```no_run
//! use cluster_tests::{Cluster, Instance, Service};
//!
//! # async fn example() -> anyhow::Result<()> {
//! let cluster = Cluster::start(3).await;
//! let orders = Service::new("orders");
//! let provider = cluster.node(0).client().await?;
//! provider.register(&orders, &Instance::at("10.0.0.1", 8080)).await?;
//! cluster.eventually_listed(&orders, &["10.0.0.1:8080"]).await;
//! cluster.node(0).kill();
//! # Ok(())
//! # }
//! ```
//!
//! A [`Cluster`] takes loopback addresses of its own, so that any number of them run side by side. Its nodes end with
//! it, also when the test process is killed. A test that panics prints the last lines of every node's log.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cluster`], [`shared`] | a set of nodes; one that all tests of a binary use |
//! | [`node`], [`binary`] | one node as a child process; where its program is |
//! | [`ports`], [`reaper`] | addresses of a cluster; end of processes whose test is gone |
//! | [`disk`] | a disk that can hang |
//! | [`fault`] | a proxy between two members that can be cut, paused and healed |
//! | [`connection`], [`client`], [`sdk`] | gRPC: one connection, one client on it, one that reconnects as SDKs do |
//! | [`address_server`] | an HTTP server that tells nodes who the members are |
//! | [`http`], [`beating`] | HTTP v1: one client; an instance that beats until it is dropped |
//! | [`udp`] | UDP: a 1.x client that polls, is pushed to and acknowledges |
//! | [`model`] | services, instances and lists as clients see them |
//! | [`bystander`], [`times`] | a client that notes how long its answers take; what is said of times |
//! | [`watch`] | a poller that counts answers which lack a live instance |
//! | [`wait`] | waiting for a condition with a deadline |

pub mod address_server;
pub mod beating;
pub mod binary;
pub mod bystander;
pub mod client;
pub mod cluster;
pub mod connection;
pub mod disk;
pub mod fault;
pub mod http;
pub mod model;
pub mod node;
pub mod ports;
pub mod reaper;
pub mod sdk;
pub mod shared;
pub mod times;
pub mod udp;
pub mod wait;
pub mod watch;

pub use address_server::AddressServer;
pub use beating::BeatingInstance;
pub use bystander::Bystander;
pub use client::{Acks, Client, ClientOptions, Push};
pub use cluster::{Cluster, ClusterBuilder};
pub use connection::{Answer, Connection};
pub use disk::Disk;
pub use fault::{LinkState, Links};
pub use http::{Http, Reply};
pub use model::{Instance, List, Service, unique};
pub use node::Node;
pub use sdk::SdkClient;
pub use shared::SharedCluster;
pub use times::Times;
pub use wait::{always, eventually};
pub use watch::Watch;
