//! When rows that live by beats are to be looked at again.

pub mod brake;
pub mod wheel;
