//! Keeps the member list of the node as its file, its address server or its DNS name has it, while the node runs.
//!
//! Whatever cannot be read, breaks a rule or lacks this node changes nothing: the list before it stays in force. What is
//! wrong is logged when it begins and when it ends, and counted.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::{StatusCode, redirect};
use rollcall_node::action::Actions;
use rollcall_node::{MemberState, MemberStatus};
use smol_str::SmolStr;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::config::member_file::{self, MAX_TEXT};
use crate::config::member_rules::{ListError, MemberRules};
use crate::config::{Config, ConfigError, MemberSource};
use crate::error::root_cause;
use crate::executor::Executor;
use crate::sockets::Dialer;

/// Time between two looks at the file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two questions for a DNS name.
const NAME_INTERVAL: Duration = Duration::from_secs(5);
/// How long a changed list has to stay as it is before it is taken: an editor or a copy may write a file in parts, and
/// servers of names may differ for a while.
const REST: Duration = Duration::from_secs(3);
/// Longest wait for the address server, and for the addresses of a name.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How often the address server is asked at the start.
const FIRST_TRIES: u32 = 5;
/// How often a DNS name is: its servers may hear of a new member some seconds after it has started.
const FIRST_LOOK_UPS: u32 = 30;
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
    /// The DNS name has no address, or cannot be looked up.
    #[error("cannot look {name} up: {error}")]
    Name {
        /// The name, with the port of the members.
        name: SmolStr,
        /// Why not.
        error: String,
    },
    /// The list breaks a rule.
    #[error("{place}: {error}")]
    List {
        /// The file, the server or the name.
        place: String,
        /// The rule.
        error: ListError,
    },
}

/// A place that has the list.
enum Place {
    File(String),
    Server { url: String, client: reqwest::Client },
    Name { name: SmolStr, network: Arc<dyn Dialer> },
}

/// Follows the list of one node.
pub struct MemberList {
    place: Place,
    interval: Duration,
    rules: MemberRules,
    members: Vec<SmolStr>,
}

impl MemberList {
    /// The list of a process that starts: reads it from the address server or the DNS name, if there is one. `None` for a
    /// list that stays as it is.
    ///
    /// # Errors
    /// The address server or the name has no list that will do.
    pub async fn start(
        config: &Config,
        network: &Arc<dyn Dialer>,
    ) -> Result<Option<MemberList>, ConfigError> {
        let error = |key, error: String| ConfigError::new(key, "at the start", error);
        let (key, place, interval) = match &config.member_source {
            MemberSource::Fixed => return Ok(None),
            MemberSource::File(path) => ("member_file", Place::File(path.clone()), FILE_INTERVAL),
            MemberSource::AddressServer { url, interval } => {
                let key = "address_server";
                let client = client().map_err(|e| error(key, e.to_string()))?;
                let url = url.clone();
                (key, Place::Server { url, client }, *interval)
            }
            MemberSource::Name(name) => {
                let (name, network) = (name.clone(), Arc::clone(network));
                ("member_dns", Place::Name { name, network }, NAME_INTERVAL)
            }
        };
        let mut list = MemberList {
            place,
            interval,
            rules: config.member_rules.clone(),
            members: config.node.members.clone(),
        };
        if !matches!(list.place, Place::File(_)) {
            list.members = list.first().await.map_err(|e| error(key, e.to_string()))?;
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
                Err(error) if n_tries < self.place.tries_after(&error) => {
                    info!(%error, n_tries, "no member list yet");
                    n_tries += 1;
                    sleep(FIRST_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    fn check(&self, text: &str) -> Result<Vec<SmolStr>, ReadError> {
        let mut entries = member_file::parse(text);
        if let Place::Name { .. } = self.place {
            // The lines are this node's own, see [`look_up`].
            entries.iter_mut().for_each(|entry| entry.line = None);
        }
        let checked = self.rules.check(&entries);
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

    /// An answer of a server is whole; a file, or the addresses of a name, are once they have not changed for a while.
    fn is_whole(&self, text: &str, resting: &mut Resting) -> bool {
        matches!(self.place, Place::Server { .. }) || resting.since_change(text, self.interval) >= REST
    }

    fn take(&mut self, members: Vec<SmolStr>, exec: &Executor) {
        let members = match self.place {
            Place::Name { .. } => with_living(members, &self.members, &exec.node().members(exec.now())),
            Place::File(_) | Place::Server { .. } => members,
        };
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

/// The members that a name tells, and those of the list before that answer: servers of names may leave some out for a
/// while, and members that only some drop would go on as a cluster of their own. One that has stopped goes.
fn with_living(told: Vec<SmolStr>, former: &[SmolStr], members: &[MemberStatus]) -> Vec<SmolStr> {
    let answers = |state| {
        matches!(
            state,
            MemberState::Up | MemberState::Suspicious | MemberState::Starting
        )
    };
    let lives = |m: &MemberStatus| m.last_seen.is_some() && answers(m.state);
    let lives = |address: &&SmolStr| members.iter().any(|m| m.address == **address && lives(m));
    let mut all = told;
    all.extend(former.iter().filter(lives).cloned());
    all.sort();
    all.dedup();
    all
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
            None => self.since = REST,
            Some(former) if former == text => self.since = (self.since + step).min(REST),
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
            Place::Name { name, .. } => write!(f, "the addresses of {name}"),
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
            Place::Name { name, network } => look_up(&**network, name).await,
        }
    }

    /// How many tries there are at the start when one ends so.
    fn tries_after(&self, error: &ReadError) -> u32 {
        match (self, error) {
            (Place::Name { .. }, ReadError::Name { .. }) => FIRST_LOOK_UPS,
            (Place::Name { .. }, ReadError::List { error, .. }) if error.lacks_self => FIRST_LOOK_UPS,
            (_, ReadError::Server { .. } | ReadError::Status { .. }) => FIRST_TRIES,
            _ => 1,
        }
    }
}

/// The addresses of a name as text, in an order that does not depend on that of the answer.
async fn look_up(network: &dyn Dialer, name: &SmolStr) -> Result<String, ReadError> {
    let failed = |error: String| ReadError::Name {
        name: name.clone(),
        error,
    };
    let found = timeout(ANSWER_LIMIT, network.look_up(name)).await;
    let found = found.map_err(|_| failed(format!("no answer within {} s", ANSWER_LIMIT.as_secs())))?;
    let addresses: BTreeSet<_> = found.map_err(|e| failed(e.to_string()))?.into_iter().collect();
    if addresses.is_empty() {
        return Err(failed("it has no address".to_owned()));
    }
    Ok(addresses.iter().map(|address| format!("{address}\n")).collect())
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
    use std::io;
    use std::net::SocketAddr;

    use rollcall_core::Millis;

    use super::*;
    use crate::sockets::{Dialed, Dialing};

    /// A network that answers questions for one name.
    struct Names(&'static [&'static str]);

    impl Dialer for Names {
        fn look_up<'a>(&'a self, target: &'a str) -> Dialing<'a, Vec<SocketAddr>> {
            Box::pin(async move {
                assert_eq!(target, "registry.test:8848");
                Ok(self.0.iter().map(|address| address.parse().unwrap()).collect())
            })
        }

        fn connect(&self, _: SocketAddr) -> Dialing<'_, Dialed> {
            Box::pin(async { Err(io::Error::from(io::ErrorKind::Unsupported)) })
        }
    }

    async fn members_of(addresses: &'static [&'static str]) -> Result<Vec<SmolStr>, String> {
        let place = Place::Name {
            name: "registry.test:8848".into(),
            network: Arc::new(Names(addresses)),
        };
        let rules = MemberRules {
            advertise: "10.0.0.2:8848".into(),
            port: 8848,
            distances: [0, 1000, 1001],
        };
        let list = MemberList {
            place,
            interval: NAME_INTERVAL,
            rules,
            members: Vec::new(),
        };
        let text = list.place.read().await;
        text.and_then(|text| list.check(&text)).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn each_address_of_a_name_is_a_member_in_whatever_order_and_family() {
        let answers: [&[&str]; 2] = [
            &[
                "10.0.0.2:8848",
                "[fd00::3]:8848",
                "10.0.0.1:8848",
                "10.0.0.2:8848",
            ],
            &["[fd00::3]:8848", "10.0.0.1:8848", "10.0.0.2:8848"],
        ];
        for answer in answers {
            let members = members_of(answer).await.unwrap();
            assert_eq!(members, ["10.0.0.1:8848", "10.0.0.2:8848", "[fd00::3]:8848"]);
        }
        let error = members_of(&["10.0.0.1:8848"]).await.unwrap_err();
        assert_eq!(
            error,
            "the addresses of registry.test:8848: the advertised address 10.0.0.2:8848 is not in the member list \
             (10.0.0.1:8848); members must list it exactly so"
        );
        let error = members_of(&["0.0.0.0:8848", "10.0.0.2:8848"]).await.unwrap_err();
        assert_eq!(
            error,
            "the addresses of registry.test:8848: \"0.0.0.0:8848\" leads to no single machine, want its own address"
        );
        let error = members_of(&[]).await.unwrap_err();
        assert_eq!(error, "cannot look registry.test:8848 up: it has no address");
    }

    #[test]
    fn a_member_that_answers_stays_when_a_name_leaves_it_out() {
        let status = |address: &str, state| MemberStatus {
            address: address.into(),
            state,
            is_self: false,
            ready: true,
            epoch: 1,
            last_seen: Some(Millis(0)),
        };
        let unheard = MemberStatus {
            last_seen: None,
            ..status("h:1", MemberState::Starting)
        };
        let members = [
            unheard,
            status("a:1", MemberState::Up),
            status("b:1", MemberState::Up),
            status("c:1", MemberState::Starting),
            status("d:1", MemberState::Down),
            status("e:1", MemberState::Isolated),
            status("g:1", MemberState::Up),
        ];
        let former = ["a:1", "b:1", "c:1", "d:1", "e:1", "h:1"].map(SmolStr::from);
        let told = vec!["a:1".into(), "f:1".into()];
        let taken = with_living(told, &former, &members);
        assert_eq!(taken, ["a:1", "b:1", "c:1", "f:1"]);
    }

    #[test]
    fn a_file_is_taken_once_it_has_not_changed_for_a_while() {
        let mut resting = Resting::default();
        let mut look = |text| resting.since_change(text, FILE_INTERVAL) >= REST;
        assert!(look("a"), "it was there before");
        let looks = ["a,", "a,b", "a,b", "a,b"].map(&mut look);
        assert_eq!(looks, [false; 4]);
        assert!(look("a,b"));
        assert!(look("a,b"));
    }
}
