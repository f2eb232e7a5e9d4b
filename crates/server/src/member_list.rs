//! Keeps the member list of the node as its file or its address server has it, while the node runs.
//!
//! Whatever cannot be read, breaks a rule or lacks this node changes nothing: the list before it stays in force. What is
//! wrong is logged when it begins and when it ends, and counted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{StatusCode, redirect};
use rollcall_node::action::Actions;
use smol_str::SmolStr;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::member_file::{self, MAX_TEXT};
use crate::config::member_rules::{ListError, MemberRules};
use crate::config::{Config, ConfigError, MemberSource};
use crate::error::root_cause;
use crate::executor::Executor;

/// Time between two looks at the file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a changed file has to stay as it is before it is taken: an editor or a copy may write it in parts.
const FILE_REST: Duration = Duration::from_secs(3);
/// Longest wait for the address server.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How often the address server is asked at the start.
const FIRST_TRIES: u32 = 5;
/// Pause between two tries at the start.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file; the text names it.
    #[error("{0}")]
    File(String),
    /// The address server does not answer.
    #[error("cannot ask the address server {url}: {error}")]
    Server {
        /// What was asked for.
        url: String,
        #[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_once_it_has_not_changed_for_a_while() {
        let mut resting = Resting::default();
        let mut look = |text| resting.since_change(text, FILE_INTERVAL) >= FILE_REST;
        assert!(look("a"), "it was there before");
        let looks = ["a,", "a,b", "a,b", "a,b"].map(&mut look);
        assert_eq!(looks, [false; 4]);
        assert!(look("a,b"));
        assert!(look("a,b"));
    }
}
