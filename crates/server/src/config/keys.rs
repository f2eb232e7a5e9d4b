//! Every key: its name, unit, default, meaning, and how its text is read.

use std::net::IpAddr;
use std::sync::Arc;

use rollcall_core::Millis;
use rollcall_core::ownership::Mapper;
use rollcall_distro::COPY_LIFE;

use super::values::{duration, is_one_machine, list, log_filter, number, positive_time, size, time};
use super::{ConfigError, LogFormat};
use crate::peer::FORWARD_TIMEOUT;

/// Longest period of copies on disk: one that is [`COPY_LIFE`] old is not used, so that at half of it there always is a
/// good one.
const COPY_PERIOD_MAX: Millis = Millis(COPY_LIFE.0 / 2);

/// One key with its text, as one source gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Name of the key.
    pub key: String,
    /// Its text.
    pub text: String,
    /// Where it was given, for messages.
    pub source_name: String,
}

/// One key.
pub struct Key {
    /// Name in the file; `ROLLCALL_` and capitals in the environment, `--` and dashes as a flag.
    pub name: &'static str,
    /// Unit or form of the value.
    pub unit: &'static str,
    /// Default, in words where it follows from others.
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
    set: fn(&mut Draft, &str) -> Result<(), String>,
}

impl Key {
    /// The key with this name.
    pub fn named(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// Its flag, without the leading dashes.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("{}{}", super::environment::PREFIX, self.name.to_uppercase())
    }
}

macro_rules! draft {
    ($($field:ident: $kind:ty,)*) => {
        /// Values that were given, before they are checked against each other. `None`: not given.
        #[derive(Clone, Debug, Default)]
        #[allow(missing_docs)] // Each is described by its key.
        pub struct Draft {
            $(pub $field: Option<$kind>,)*
            /// Where each key was given.
            pub sources: Vec<(&'static str, String)>,
        }
    };
}

draft! {
    bind: IpAddr,
    port: u16,
    grpc_port: u16,
    peer_port: u16,
    udp_port: u16,
    advertise: String,
    members: Vec<String>,
    member_file: String,
    address_server: String,
    address_server_interval: Millis,
    member_dns: String,
    peer_addresses: Vec<String>,
    cluster_name: String,
    mapper: Arc<dyn Mapper>,
    cluster_secret: String,
    context_path: String,
    data_dir: String,
    ephemeral_copy: Millis,
    log_level: String,
    log_format: LogFormat,
    message_limit: usize,
    queue_length: usize,
    drain_time: Millis,
    worker_threads: usize,
    detect_after: Millis,
    drop_after: Millis,
    expiry_brake: usize,
    push_timeout: Millis,
    push_window_max: Millis,
    push_delay: Millis,
    udp_subscriptions: usize,
    newcomer_limit: usize,
    busy_after: Millis,
    connection_limit: usize,
    connection_limit_per_ip: usize,
    balance_per_minute: u32,
    balance_after: Millis,
    balance_calm: Millis,
    balance_rest: Millis,
    gate_limit: Millis,
    orphan_gone: Millis,
    orphan_unreachable: Millis,
    orphan_slow_extra: Millis,
    probe_interval: Millis,
    probe_timeout: Millis,
    probe_misses: u32,
    verify_interval: Millis,
    log_capacity: usize,
    tombstone_life: Millis,
    replicate_wait: Millis,
    empty_service_life: Millis,
    override_life: Millis,
    metadata_limit: usize,
    beat_interval: Millis,
    answer_budget: usize,
}

impl Draft {
    /// Takes over one setting.
    ///
    /// # Errors
    /// The key is unknown, or its text breaks its rule.
    pub fn set(&mut self, setting: &Setting) -> Result<(), ConfigError> {
        let error = |rule: String| ConfigError::new(&setting.key, &setting.source_name, rule);
        let key = Key::named(&setting.key).ok_or_else(|| error("there is no such key".into()))?;
        (key.set)(self, setting.text.trim()).map_err(error)?;
        self.sources.retain(|(name, _)| *name != key.name);
        self.sources.push((key.name, setting.source_name.clone()));
        Ok(())
    }

    /// Where `key` was given, for messages.
    pub fn source(&self, key: &str) -> String {
        let given = self.sources.iter().find(|(name, _)| *name == key);
        given.map_or_else(|| "default".to_owned(), |(_, source)| source.clone())
    }
}

fn port(text: &str) -> Result<u16, String> {
    number(text, 1, 65_535).map(|port| port as u16)
}

macro_rules! keys {
    ($($field:ident, $unit:literal, $default:literal, $help:literal, $read:expr;)*) => {
        /// All keys, in the order of the documentation.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($field),
            unit: $unit,
            default: $default,
            help: $help,
            set: |draft, text| {
                draft.$field = Some($read(text)?);
                Ok(())
            },
        },)*];
    };
}

keys! {
    bind, "IP address", "127.0.0.1", "address that all ports are bound to",
        |text: &str| match text.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) if ip.is_unspecified() || is_one_machine(ip) => Ok(ip),
            Ok(_) => Err(format!("{text:?} leads to no single machine, want an address of this one, or 0.0.0.0 for all")),
            Err(_) => Err(format!("{text:?} is no IP address")),
        };
    port, "port", "8848", "main port: HTTP, and gRPC as well", port;
    grpc_port, "port", "port + 1000", "port for gRPC of clients; SDKs expect it at this distance", port;
    peer_port, "port", "port + 1001",
        "port for the other members; all members must have it at the same distance from their main port", port;
    udp_port, "port", "0", "UDP port that pushes to 1.x clients leave by and their acknowledgements come back to; 0 is any free one",
        |text: &str| number(text, 0, 65_535).map(|port| port as u16);
    advertise, "host:port", "bind:port", "address under which the other members and clients reach this node",
        |text: &str| Ok::<_, String>(text.to_owned());
    members, "list of host:port", "none", "all members, this one included; without a port, the main port of this node",
        |text: &str| Ok::<_, String>(list(text));
    member_file, "path", "none", "file with the members instead of `members`, in the form of `cluster.conf`: one a line, or several separated by commas; a change is taken while the node runs",
        |text: &str| Ok::<_, String>(text.to_owned());
    address_server, "URL", "none", "server that tells the members, instead of `members`: `http://host:port/path` that answers in the form of `cluster.conf`",
        |text: &str| match text.strip_prefix("http://") {
            Some(rest) if !rest.is_empty() && !rest.starts_with('/') && !rest.contains(char::is_whitespace) => Ok(text.to_owned()),
            _ => Err(format!("{text:?} is no address of a server, want http://host:port/path")),
        };
    address_server_interval, "time", "5s", "time between two questions to the address server", positive_time;
    member_dns, "host or host:port", "none", "DNS name that has the addresses of all members, instead of `members`; their port is the one named here, without one that of this node",
        |text: &str| Ok::<_, String>(text.to_owned());
    peer_addresses, "list of member=host:port", "none",
        "peer ports that are not where `peer_port` says, for relays between members",
        |text: &str| Ok::<_, String>(list(text));
    cluster_name, "text", "rollcall", "name that all members share",
        |text: &str| if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) };
    mapper, "modulo or rendezvous", "modulo",
        "which member owns a service of HTTP clients; all members must have the same. With `rendezvous` a change of the member list moves only the share of the member that comes or goes, with `modulo` most services",
        |text: &str| rollcall_core::ownership::mapper(text).ok_or_else(|| format!("{text:?} is neither modulo nor rendezvous"));
    cluster_secret, "text", "none",
        "secret that all members share; required with several members unless `bind` is a loopback address",
        |text: &str| Ok::<_, String>(text.to_owned());
    context_path, "path", "/nacos", "path before all paths of the protocol; `/` for none", context_path;
    data_dir, "path", "data", "directory for what operators set, made if it is not there; `none` keeps nothing on disk",
        |text: &str| if text.is_empty() { Err("must not be empty, `none` keeps nothing on disk".to_owned()) } else { Ok(text.to_owned()) };
    ephemeral_copy, "time", "0s",
        "time between two copies of all ephemeral instances to `data_dir`, offered after a loss of power of the whole cluster; from 1s to 5m, or 0s for none",
        |text: &str| time(text).and_then(|time| if time == Millis(0) || (Millis::secs(1)..=COPY_PERIOD_MAX).contains(&time) { Ok(time) } else { Err("must be 0s or from 1s to 5m".to_owned()) });
    log_level, "filter", "info", "error, warn, info, debug or trace, also by module as in `info,rollcall_server=debug`",
        log_filter;
    log_format, "text or json", "text", "form of the log, which goes to standard error",
        |text: &str| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("{text:?} is neither text nor json")),
        };
    message_limit, "size", "10MiB", "largest gRPC message and largest HTTP body from clients; in bytes not below `metadata_limit`",
        |text: &str| size(text).and_then(|size| if size >= 1024 { Ok(size) } else { Err("must be at least 1KiB".to_owned()) });
    queue_length, "messages", "4096", "messages that may wait for one connection before it is closed",
        |text: &str| number(text, 16, 1 << 20).map(|n| n as usize);
    drain_time, "time", "3s", "time over which clients are sent to other members before the process ends", time;
    worker_threads, "threads", "number of cores", "threads that run tasks",
        |text: &str| number(text, 1, 1024).map(|n| n as usize);
    detect_after, "time", "10s", "silence of a gRPC client after which it is asked whether it lives", positive_time;
    drop_after, "time", "14s", "silence of a gRPC client after which its connection is closed; above `detect_after`",
        positive_time;
    expiry_brake, "percent", "30", "share of the instances that beat, or of the gRPC clients, above which a silence that began at one moment is first put down to this node: each is given its time once more before it counts as dead; never when 20 or fewer are silent; at most 99, and 0 never at all",
        |text: &str| number(text, 0, 99).map(|n| n as usize);
    push_timeout, "time", "5s", "wait for the acknowledgement of a push before it is sent again", positive_time;
    push_window_max, "time", "500ms", "longest time that changes of a busy service are merged before they are pushed; not below `push_delay`, if both are given",
        positive_time;
    push_delay, "time", "adaptive", "fixed time that changes are merged, instead of one that grows with the load", time;
    udp_subscriptions, "subscriptions", "65536", "1.x clients' subscriptions over UDP that are held at a time; 0 pushes to none",
        |text: &str| number(text, 0, 1 << 24).map(|n| n as usize);
    newcomer_limit, "connections", "512", "connections that may be open without having asked anything yet; further ones wait in the operating system",
        |text: &str| number(text, 1, 1 << 20).map(|n| n as usize);
    busy_after, "time", "200ms", "wait of tasks, once it is never shorter any more, from which newcomers are turned away at once and registrations, subscriptions and queries after two seconds; beats, removals and signs of life never are; 0s turns nobody away", time;
    connection_limit, "connections", "0", "gRPC connections of clients beyond which further ones are refused; 0 for no limit",
        |text: &str| number(text, 0, 1 << 24).map(|n| n as usize);
    connection_limit_per_ip, "connections", "0", "the same for the connections from one address, as the socket shows it; not above `connection_limit`, and 0 for no limit",
        |text: &str| number(text, 0, 1 << 24).map(|n| n as usize);
    balance_per_minute, "percent", "10", "share of its gRPC connections that a member sends to others in a minute at most, when it has more than the mean of all; at most 60, and 0 switches evening out off",
        |text: &str| number(text, 0, 60).map(|n| n as u32);
    balance_after, "time", "60s", "how long connections are uneven before they are evened out", positive_time;
    balance_calm, "time", "2m", "how long no member has started, gone or changed its list before connections are evened out", time;
    balance_rest, "time", "5m", "how long a client that came, or was asked to move, is not asked to even out", time;
    gate_limit, "time", "20s", "longest wait for the data of all live members before the node is ready; beside members that serve, a node that has got nothing of them waits on. Above `probe_interval`; 0s serves at once whatever is there, for tests only", time;
    orphan_gone, "time", "15s", "how long instances stay whose member is gone", positive_time;
    orphan_unreachable, "time", "30s", "how long instances stay whose member is unreachable; not below `orphan_gone`", positive_time;
    orphan_slow_extra, "time", "25s", "how much longer instances stay whose client registers again only every half minute (the official Python SDK)", time;
    probe_interval, "time", "1s", "period in which a member probes three others, and those it doubts", positive_time;
    probe_timeout, "time", "900ms", "wait for the answer to a probe; below `probe_interval`", positive_time;
    probe_misses, "probes", "3", "periods without an answer to anyone after which a member is dead",
        |text: &str| number(text, 1, 1000).map(|n| n as u32);
    verify_interval, "time", "1s", "time between two digests to each member", positive_time;
    log_capacity, "operations", "65536", "operations kept for members that fall behind; beyond that digests repair",
        |text: &str| number(text, 16, 1 << 26).map(|n| n as usize);
    tombstone_life, "time", "2m", "how long the removal of an HTTP instance is remembered; above `verify_interval`", positive_time;
    replicate_wait, "time", "20ms", "longest wait of an HTTP write for a second member; below the 500ms after which the next in rank is asked for it",
        |text: &str| time(text).and_then(|time| if duration(time) < FORWARD_TIMEOUT { Ok(time) } else { Err("must be below 500ms".to_owned()) });
    empty_service_life, "time", "60s", "how long a service without instances stays listed", positive_time;
    override_life, "time", "24h", "how long operator settings outlive the instance that they are for", positive_time;
    metadata_limit, "UTF-16 units", "1024", "largest sum of the lengths of an instance's metadata",
        |text: &str| number(text, 0, 1 << 24).map(|n| n as usize);
    beat_interval, "time", "5s", "time between two beats, told to HTTP clients whose metadata does not say otherwise; below the 15s after which they count as silent",
        |text: &str| positive_time(text).and_then(|time| if time < Millis::secs(15) { Ok(time) } else { Err("must be below 15s".to_owned()) });
    answer_budget, "size", "64MiB", "encoded answers kept beside the data, so that a list is encoded once per change", size;
}

fn context_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let is_good =
        path.is_empty() || (path.starts_with('/') && !path.contains("//") && !path.contains(['?', '#', ' ']));
    if is_good {
        Ok(path.to_owned())
    } else {
        Err(format!("{text:?} is no path, want one such as /nacos"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, text: &str) -> Result<Draft, ConfigError> {
        let mut draft = Draft::default();
        let setting = Setting {
            key: key.into(),
            text: text.into(),
            source_name: "test".into(),
        };
        draft.set(&setting).map(|()| draft)
    }

    #[test]
    fn every_key_is_documented_with_its_unit_and_default() {
        let text = include_str!("../../../../docs/configuration.md");
        for key in KEYS {
            let row = format!("| `{}` | {} | {} |", key.name, key.unit, key.default);
            assert!(text.contains(&row), "docs/configuration.md lacks {row}");
        }
        let rows = text.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(
            rows,
            KEYS.len(),
            "docs/configuration.md has a row for a key that does not exist"
        );
    }

    #[test]
    fn a_wrong_value_names_key_source_and_rule() {
        for (key, text, rule) in [
            ("port", "0", "0 is not from 1 to 65535"),
            ("port", "http", "\"http\" is no whole number from 1 to 65535"),
            ("bind", "localhost", "\"localhost\" is no IP address"),
            (
                "bind",
                "224.0.0.1",
                "\"224.0.0.1\" leads to no single machine, want an address of this one, or 0.0.0.0 for all",
            ),
            (
                "log_level",
                "loud",
                "\"loud\" is no log filter, want error, warn, info, debug, trace or off, or info,module=debug",
            ),
            ("log_format", "xml", "\"xml\" is neither text nor json"),
            ("verify_interval", "0s", "must be above 0"),
            ("ephemeral_copy", "999ms", "must be 0s or from 1s to 5m"),
            ("ephemeral_copy", "6m", "must be 0s or from 1s to 5m"),
            ("replicate_wait", "500ms", "must be below 500ms"),
            (
                "push_window_max",
                "999999999999h",
                "\"999999999999h\" is above 720h",
            ),
            (
                "context_path",
                "nacos",
                "\"nacos\" is no path, want one such as /nacos",
            ),
            ("colour", "red", "there is no such key"),
        ] {
            let error = set(key, text).err().map(|error| error.to_string());
            assert_eq!(error, Some(format!("{key} (test): {rule}")));
        }
    }

    #[test]
    fn defaults_that_are_values_pass_their_own_rule() {
        let words = ["none", "adaptive", "bind:port", "number of cores"];
        for key in KEYS
            .iter()
            .filter(|key| !words.contains(&key.default) && !key.default.contains('+'))
        {
            assert!(set(key.name, key.default).is_ok(), "{}", key.name);
        }
        assert_eq!(
            set("context_path", "/")
                .ok()
                .and_then(|d| d.context_path)
                .as_deref(),
            Some("")
        );
    }
}
