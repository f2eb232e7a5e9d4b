//! What is the same in all generations of the HTTP API, one file per resource. Answers are wrapped as the generation
//! of the call has it ([`crate::http::reply::Reply`]).

pub mod beat;
pub mod catalog;
pub mod client;
pub mod cluster;
pub mod health;
pub mod instance;
pub mod loader;
pub mod metadata_batch;
pub mod metrics;
pub mod namespace;
pub mod operations;
pub mod paging;
pub mod service;
pub mod settings;
pub mod state;
pub mod switches;
