//! Version 1 of the HTTP API, one file per resource.

pub mod beat;
pub mod cluster;
pub mod console;
pub mod instance;
pub mod instance_list;
pub mod operator;
pub mod service;
