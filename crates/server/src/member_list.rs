//! Keeps the member list of the node as its file or its address server has it, while the node runs.
//!
//! Whatever cannot be read, breaks a rule or lacks this node changes nothing: the list before it stays in force. What is
//! wrong is logged when it begins and when it ends, and counted.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

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
        /// Why not.
        error: String,
    },
    /// It answers something else than success.
    #[error("the address server {url} answered {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The answer.
        status: StatusCode,
    },
    /// Its answer is no list.
    #[error("the address server {url} answered {what}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The list breaks a rule.
    #[error("{place}: {error}")]
    List {
        /// The file or the server.
        place: String,
        /// The rule.
        error: ListError,
    },
}

/// A place that has the list.
#[derive(Debug)]
enum Place {
    File(String),
    Server { url: String, client: reqwest::Client },
}

/// Follows the list of one node.
#[derive(Debug)]
pub struct MemberList {
    place: Place,
    interval: Duration,
    rules: MemberRules,
    members: Vec<SmolStr>,
}

impl MemberList {
    /// The list of a process that starts: reads it from the address server, if there is one. `None` for a list that
    /// stays as it is.
    ///
    /// # Errors
    /// The address server has no list that will do.
    pub async fn start(config: &Config) -> Result<Option<MemberList>, ConfigError> {
        let error = |rule: String| ConfigError::new("address_server", "at the start", rule);
        let (place, interval) = match &config.member_source {
            MemberSource::Fixed => return Ok(None),
            MemberSource::File(path) => (Place::File(path.clone()), FILE_INTERVAL),
            MemberSource::AddressServer { url, interval } => {
                let client = client().map_err(|e| error(e.to_string()))?;
                let url = url.clone();
                (Place::Server { url, client }, *interval)
            }
        };
        let mut list = MemberList {
            place,
            interval,
            rules: config.member_rules.clone(),
            members: config.node.members.clone(),
        };
        if matches!(list.place, Place::Server { .. }) {
            list.members = list.first().await.map_err(|e| error(e.to_string()))?;
        }
        Ok(Some(list))
    }

    /// The members as they were read last.
    pub fn members(&self) -> &[SmolStr] {
        &self.members
    }

    async fn first(&self) -> Result<Vec<SmolStr>, ReadError> {
        let mut n_tries = 1;
        loop {
            match self.place.read().await.and_then(|text| self.check(&text)) {
                Err(error @ (ReadError::Server { .. } | ReadError::Status { .. }))
                    if n_tries < FIRST_TRIES =>
                {
                    info!(%error, n_tries, "no member list yet");
                    n_tries += 1;
                    sleep(FIRST_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    fn check(&self, text: &str) -> Result<Vec<SmolStr>, ReadError> {
        let checked = self.rules.check(&member_file::parse(text));
        checked.map_err(|error| ReadError::List {
            place: self.place.to_string(),
            error,
        })
    }

    /// Follows the list for as long as the process runs.
    pub async fn follow(mut self, exec: Executor) {
        let mut trouble = None;
        let mut resting = Resting::default();
        loop {
            sleep(self.interval).await;
            let read = match self.place.read().await {
                Ok(text) if !self.is_whole(&text, &mut resting) => continue,
                Ok(text) => self.check(&text),
                Err(error) => Err(error),
            };
            let metrics = exec.metrics();
            metrics
                .member_list_is_stale
                .store(read.is_err(), Ordering::Relaxed);
            match read {
                Ok(members) => {
                    if trouble.take().is_some() {
                        info!(place = %self.place, "the member list can be used again");
                    }
                    self.take(members, &exec);
                }
                Err(error) => {
                    metrics.member_list_failures.increment();
                    let text = error.to_string();
                    if trouble.as_ref() != Some(&text) {
                        warn!(error = %text, "member list not taken, the one before it stays in force");
                        trouble = Some(text);
                    }
                }
            }
        }
    }

    /// An answer of a server is whole; a file is once it has not changed for a while.
    fn is_whole(&self, text: &str, resting: &mut Resting) -> bool {
        matches!(self.place, Place::Server { .. }) || resting.since_change(text, self.interval) >= FILE_REST
    }

    fn take(&mut self, members: Vec<SmolStr>, exec: &Executor) {
        if members == self.members {
            return;
        }
        let mut actions = Actions::default();
        let taken = exec.node().set_members(&members, exec.now(), &mut actions);
        exec.run(actions);
        if taken.is_ok() {
            info!(members = %members.join(", "), place = %self.place, "member list changed");
            exec.metrics().member_list_changes.increment();
            self.members = members;
        }
    }
}

/// For how long a text has been the same.
#[derive(Debug, Default)]
struct Resting {
    text: Option<String>,
    since: Duration,
}

impl Resting {
    fn since_change(&mut self, text: &str, step: Duration) -> Duration {
        match &self.text {
            // What was there at the first look was there before.
            None => self.since = FILE_REST,
            Some(former) if former == text => self.since = (self.since + step).min(FILE_REST),
            Some(_) => self.since = Duration::ZERO,
        }
        if self.text.as_deref() != Some(text) {
            self.text = Some(text.to_owned());
        }
        self.since
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "the file {path}"),
            Place::Server { url, .. } => write!(f, "the address server {url}"),
        }
    }
}

impl Place {
    async fn read(&self) -> Result<String, ReadError> {
        match self {
            Place::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || member_file::read(&path)).await;
                read.unwrap_or_else(|error| Err(error.to_string()))
                    .map_err(ReadError::File)
            }
            Place::Server { url, client } => ask(client, url).await,
        }
    }
}

fn client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .timeout(ANSWER_LIMIT)
        .pool_max_idle_per_host(0)
        .build()
}

async fn ask(client: &reqwest::Client, url: &str) -> Result<String, ReadError> {
    let url = || url.to_owned();
    let failed = |error: reqwest::Error| ReadError::Server {
        url: url(),
        error: root_cause(&error).to_string(),
    };
    let mut response = client.get(url()).send().await.map_err(failed)?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(ReadError::Status { url: url(), status });
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > MAX_TEXT {
            let what = "more than 64 KiB";
            return Err(ReadError::Answer { url: url(), what });
        }
        body.extend_from_slice(&chunk);
    }
    let what = "what is no text";
    String::from_utf8(body).map_err(|_| ReadError::Answer { url: url(), what })
}

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
