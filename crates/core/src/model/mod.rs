//! The nouns of the registry: service, instance, metadata, and the rules they obey.

pub mod instance;
pub mod limits;
pub mod metadata;
pub mod service_key;
