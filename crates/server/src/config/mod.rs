//! Settings: defaults, then one TOML file, then the environment, then flags; the later one wins.
//!
//! Every source yields texts for the keys of [`keys::KEYS`], so each key is read, checked and documented once.
//! [`validate`] turns the texts' values into a [`Config`] in which everything fits together.

pub mod cli;
pub mod environment;
pub mod file;
pub mod keys;
pub mod member_file;
pub mod member_rules;
pub mod validate;
pub mod values;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use rollcall_node::config::NodeConfig;
use smol_str::SmolStr;

use self::keys::Draft;
use self::member_rules::MemberRules;

/// Settings of a process, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address that all ports are bound to.
    pub bind: IpAddr,
    /// Main port: HTTP, and gRPC as well.
    pub port: u16,
    /// Port for gRPC of clients.
    pub grpc_port: u16,
    /// Port for members.
    pub peer_port: u16,
    /// UDP port that pushes to 1.x clients leave by; 0: any free one.
    pub udp_port: u16,
    /// Peer addresses of members that are not at the usual distance from their main port.
    pub peer_addresses: HashMap<SmolStr, SmolStr>,
    /// Where the member list comes from.
    pub member_source: MemberSource,
    /// What every member list must keep to.
    pub member_rules: MemberRules,
    /// Secret that all members share; empty for none.
    pub cluster_secret: String,
    /// Path before all paths of the protocol.
    pub context_path: String,
    /// Directory for what operators set; `None`: it is not kept on disk.
    pub data_dir: Option<PathBuf>,
    /// What is logged.
    pub log_level: String,
    /// How it is logged.
    pub log_format: LogFormat,
    /// Largest message or body, in bytes.
    pub message_limit: usize,
    /// Messages waiting for one connection.
    pub queue_length: usize,
    /// Connections that may be open without having asked anything.
    pub newcomer_limit: usize,
    /// Wait of tasks from which clients are turned away; 0: never.
    pub busy_after: rollcall_core::Millis,
    /// Time over which clients are sent away at the end.
    pub drain_time: Duration,
    /// Threads that run tasks.
    pub worker_threads: usize,
    /// Settings of the node.
    pub node: NodeConfig,
}

/// Where the member list comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberSource {
    /// From `members`: it stays as it is.
    Fixed,
    /// From a file, which is looked at again and again.
    File(String),
    /// From an HTTP server, which is asked again and again.
    AddressServer {
        /// What to ask for, `http://host:port/path`.
        url: String,
        /// Time between two questions.
        interval: Duration,
    },
    /// From a DNS name, which is looked up again and again: each of its addresses is a member.
    Name(
        /// `host:port`; the port is that of all members.
        SmolStr,
    ),
}

/// How logs are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A setting that cannot work: which, where it was given, and what rule it breaks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{key} ({source_name}): {rule}")]
pub struct ConfigError {
    /// Name of the key.
    pub key: String,
    /// Where it was given.
    pub source_name: String,
    /// What is wrong.
    pub rule: String,
}

impl ConfigError {
    /// An error of the key `key` as given by `source_name`.
    pub fn new(key: impl Into<String>, source_name: impl Into<String>, rule: impl Into<String>) -> Self {
        ConfigError {
            key: key.into(),
            source_name: source_name.into(),
            rule: rule.into(),
        }
    }
}

impl Config {
    /// The socket address of `port`.
    pub fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.bind, port)
    }

    /// True when there are other members, or may come to be.
    pub fn is_cluster(&self) -> bool {
        self.node.members.len() > 1 || self.member_source != MemberSource::Fixed
    }

    /// Reads all sources.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn load(
        flags: &cli::Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut draft = Draft::default();
        let environment = environment::settings(environment)?;
        let path = flags.config.clone().or_else(|| environment.config.clone());
        if let Some(path) = path {
            for setting in file::read(&path)? {
                draft.set(&setting)?;
            }
        }
        for setting in environment.settings.iter().chain(&flags.settings) {
            draft.set(setting)?;
        }
        validate::config(draft)
    }
}
