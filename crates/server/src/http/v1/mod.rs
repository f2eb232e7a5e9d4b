//! What only version 1 of the HTTP API has, one file per resource.

pub mod auth;
pub mod catalog;
pub mod cluster;
pub mod health;
pub mod instance;
pub mod namespace;
pub mod operator;
pub mod service;
