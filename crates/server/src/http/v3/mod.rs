//! What only version 3 of the HTTP API has, one file per resource. Operators (`/v3/admin`) and consoles
//! (`/v3/console`) share what they read alike; `client_` is what `/v3/client` has of its own.

pub mod client;
pub mod client_instance;
pub mod console;
pub mod instance;
pub mod namespace;
pub mod service;
