//! What only version 2 of the HTTP API has, one file per resource.

pub mod client;
pub mod cluster;
pub mod instance;
pub mod service;
