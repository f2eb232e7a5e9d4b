//! Values that were given, checked against each other.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};

use rollcall_core::Millis;
use rollcall_node::config::NodeConfig;
use smol_str::{SmolStr, format_smolstr};

use super::keys::Draft;
use super::member_file::{self, Entry};
use super::member_rules::MemberRules;
use super::values::{duration, is_one_machine};
use super::{Config, ConfigError, LogFormat, MemberSource};

/// Distance of the gRPC port from the main port, where SDKs look for it.
const GRPC_OFFSET: u16 = 1000;
/// Distance of the peer port from the main port.
const PEER_OFFSET: u16 = 1001;
/// Largest message and body, in bytes, unless it is set.
const MESSAGE_LIMIT: usize = 10 << 20;
/// Main port that SDKs and tools try first.
const DEFAULT_PORT: u16 = 8848;

/// Makes settings of what was given.
///
/// # Errors
/// The first rule that is broken.
pub fn config(draft: Draft) -> Result<Config, ConfigError> {
    let bind = draft.bind.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = draft.port.unwrap_or(DEFAULT_PORT);
    let grpc_port = derived_port(&draft, "grpc_port", draft.grpc_port, port, GRPC_OFFSET)?;
    let peer_port = derived_port(&draft, "peer_port", draft.peer_port, port, PEER_OFFSET)?;
    own_ports_differ(
        &draft,
        [("port", port), ("grpc_port", grpc_port), ("peer_port", peer_port)],
    )?;

    let source = member_source(&draft, port)?;
    let is_alone = draft.members.is_none() && source == MemberSource::Fixed;
    let rules = MemberRules {
        advertise: advertised(&draft, bind, port, is_alone)?,
        port,
        distances: [
            0,
            i32::from(grpc_port) - i32::from(port),
            i32::from(peer_port) - i32::from(port),
        ],
    };
    let members = first_members(&draft, &source, &rules)?;
    let is_cluster = members.len() > 1 || source != MemberSource::Fixed;
    let cluster_secret = draft.cluster_secret.clone().unwrap_or_default();
    if is_cluster && !bind.is_loopback() && cluster_secret.is_empty() {
        let rule = format!(
            "is required, since the peer port is bound to {bind} and there are, or may be, other members"
        );
        return Err(ConfigError::new(
            "cluster_secret",
            draft.source("cluster_secret"),
            rule,
        ));
    }
    let node = node(&draft, &rules.advertise, &members)?;
    let known = (source == MemberSource::Fixed).then_some(members.as_slice());
    let peer_addresses = peer_addresses(&draft, known)?;
    Ok(Config {
        bind,
        port,
        grpc_port,
        peer_port,
        udp_port: draft.udp_port.unwrap_or(0),
        peer_addresses,
        member_source: source,
        member_rules: rules,
        cluster_secret,
        context_path: draft.context_path.clone().unwrap_or_else(|| "/nacos".into()),
        data_dir: match draft.data_dir.as_deref() {
            Some("none") => None,
            dir => Some(dir.unwrap_or("data").into()),
        },
        log_level: draft.log_level.clone().unwrap_or_else(|| "info".into()),
        log_format: draft.log_format.unwrap_or(LogFormat::Text),
        message_limit: draft.message_limit.unwrap_or(MESSAGE_LIMIT),
        queue_length: draft.queue_length.unwrap_or(4096),
        newcomer_limit: draft.newcomer_limit.unwrap_or(512),
        busy_after: draft.busy_after.unwrap_or(Millis(200)),
        drain_time: duration(draft.drain_time.unwrap_or(Millis::secs(3))),
        worker_threads: draft
            .worker_threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get)),
        node,
    })
}

fn node(draft: &Draft, advertise: &str, members: &[SmolStr]) -> Result<NodeConfig, ConfigError> {
    let members: Vec<&str> = members.iter().map(SmolStr::as_str).collect();
    let mut node = NodeConfig::new(advertise, &members, 0);
    macro_rules! take {
        ($($field:ident),*) => {$(
            if let Some(value) = draft.$field.clone() {
                node.$field = value;
            }
        )*};
    }
    take!(
        detect_after,
        drop_after,
        expiry_brake,
        push_timeout,
        push_window_max,
        udp_subscriptions,
        connection_limit,
        connection_limit_per_ip,
        balance_per_minute,
        balance_after,
        balance_calm,
        balance_rest,
        gate_limit,
        orphan_gone,
        orphan_unreachable,
        orphan_slow_extra
    );
    take!(
        probe_interval,
        probe_timeout,
        probe_misses,
        verify_interval,
        log_capacity,
        tombstone_life
    );
    take!(
        replicate_wait,
        empty_service_life,
        override_life,
        metadata_limit,
        beat_interval,
        cluster_name,
        mapper,
        answer_budget
    );
    node.push_delay = draft.push_delay;
    node.copy_period = draft.ephemeral_copy.unwrap_or(Millis(0));
    if node.copy_period > Millis(0) && draft.data_dir.as_deref() == Some("none") {
        let rule = "needs a directory to lie in, and data_dir is none";
        let source = draft.source("ephemeral_copy");
        return Err(ConfigError::new("ephemeral_copy", source, rule.to_owned()));
    }
    order(draft, &node)?;
    Ok(node)
}

/// Settings of which one must be above the other, or not below it. Where one of them is off there is nothing to compare.
fn order(draft: &Draft, node: &NodeConfig) -> Result<(), ConfigError> {
    let above = |key, value, other, least| in_order(draft, (key, value), value > least, (other, least));
    let at_least = |key, value, other, least| in_order(draft, (key, value), value >= least, (other, least));
    above("drop_after", node.drop_after, "detect_after", node.detect_after)?;
    above(
        "probe_interval",
        node.probe_interval,
        "probe_timeout",
        node.probe_timeout,
    )?;
    // A digest that still has the row would bring it back.
    above(
        "tombstone_life",
        node.tombstone_life,
        "verify_interval",
        node.verify_interval,
    )?;
    if node.gate_limit > Millis(0) {
        above(
            "gate_limit",
            node.gate_limit,
            "probe_interval",
            node.probe_interval,
        )?;
    }
    // Who may come back soon is given no less time than who is known to be dead.
    at_least(
        "orphan_unreachable",
        node.orphan_unreachable,
        "orphan_gone",
        node.orphan_gone,
    )?;
    if let (Some(longest), Some(delay)) = (draft.push_window_max, draft.push_delay) {
        at_least("push_window_max", longest, "push_delay", delay)?;
    }
    let at_least = |key, value: usize, other, least: usize| {
        in_order(draft, (key, value), value >= least, (other, least))
    };
    if node.connection_limit > 0 && node.connection_limit_per_ip > 0 {
        at_least(
            "connection_limit",
            node.connection_limit,
            "connection_limit_per_ip",
            node.connection_limit_per_ip,
        )?;
    }
    at_least(
        "message_limit",
        draft.message_limit.unwrap_or(MESSAGE_LIMIT),
        "metadata_limit",
        node.metadata_limit,
    )
}

/// Refuses two settings that are not in order, by the name of the one that was given.
fn in_order<T: Display + PartialEq>(
    draft: &Draft,
    (key, value): (&str, T),
    is_so: bool,
    (other, least): (&str, T),
) -> Result<(), ConfigError> {
    if is_so {
        return Ok(());
    }
    let (not_above, not_below) = match value == least {
        true => ("not above", "not below"),
        false => ("below", "above"),
    };
    let (key, rule) = match draft.source(key) == "default" {
        true => (other, format!("{least} is {not_below} {key}, {value}")),
        false => (key, format!("{value} is {not_above} {other}, {least}")),
    };
    Err(ConfigError::new(key, draft.source(key), rule))
}

fn derived_port(
    draft: &Draft,
    key: &str,
    given: Option<u16>,
    port: u16,
    offset: u16,
) -> Result<u16, ConfigError> {
    given.or_else(|| port.checked_add(offset)).ok_or_else(|| {
        let rule = format!("port {port} + {offset} is above 65535, set {key} or a smaller port");
        ConfigError::new(key, draft.source(key), rule)
    })
}

fn own_ports_differ(draft: &Draft, ports: [(&str, u16); 3]) -> Result<(), ConfigError> {
    for (at, (key, port)) in ports.iter().enumerate() {
        if let Some((other, _)) = ports.iter().take(at).find(|(_, taken)| taken == port) {
            return Err(ConfigError::new(
                *key,
                draft.source(key),
                format!("{port} is the same as {other}"),
            ));
        }
    }
    Ok(())
}

/// Where the list comes from; only one of the keys may be given. `port`: of members without one.
fn member_source(draft: &Draft, port: u16) -> Result<MemberSource, ConfigError> {
    let given = [
        ("members", draft.members.is_some()),
        ("member_file", draft.member_file.is_some()),
        ("address_server", draft.address_server.is_some()),
        ("member_dns", draft.member_dns.is_some()),
    ];
    let mut given = given.into_iter().filter(|key| key.1).map(|key| key.0);
    if let (Some(one), Some(other)) = (given.next(), given.next()) {
        let rule = format!("is given beside {one}, want only one of the two");
        return Err(ConfigError::new(other, draft.source(other), rule));
    }
    if let Some(path) = &draft.member_file {
        return Ok(MemberSource::File(path.clone()));
    }
    if let Some(url) = &draft.address_server {
        return Ok(MemberSource::AddressServer {
            url: url.clone(),
            interval: duration(draft.address_server_interval.unwrap_or(Millis::secs(5))),
        });
    }
    if let Some(name) = &draft.member_dns {
        let error = |rule| ConfigError::new("member_dns", draft.source("member_dns"), rule);
        return Ok(MemberSource::Name(address(name, Some(port)).map_err(error)?));
    }
    Ok(MemberSource::Fixed)
}

/// An IP address with a port, as the members are that a DNS name tells.
fn is_ip(address: &str) -> bool {
    address.parse::<std::net::SocketAddr>().is_ok()
}

/// The members at the start as `host:port`; this node alone when none are given, or they are yet to be asked for.
fn first_members(
    draft: &Draft,
    source: &MemberSource,
    rules: &MemberRules,
) -> Result<Vec<SmolStr>, ConfigError> {
    let (key, entries) = match (source, &draft.members) {
        (MemberSource::File(path), _) => {
            let error = |rule| ConfigError::new("member_file", draft.source("member_file"), rule);
            let text = member_file::read(path).map_err(error)?;
            ("member_file", member_file::parse(&text))
        }
        // An empty list would start a single node that serves clients of its own.
        (MemberSource::Fixed, Some(members)) if members.is_empty() => {
            let rule = "lists no member; leave the key out for a single node";
            return Err(ConfigError::new("members", draft.source("members"), rule));
        }
        (MemberSource::Fixed, Some(members)) => (
            "members",
            members
                .iter()
                .map(|text| Entry {
                    line: None,
                    text: text.clone(),
                })
                .collect(),
        ),
        (MemberSource::Name(name), _) if !is_ip(&rules.advertise) => {
            let rule = format!(
                "{} is no IP address with a port, as the members are that {name} has",
                rules.advertise
            );
            return Err(ConfigError::new("advertise", draft.source("advertise"), rule));
        }
        (MemberSource::AddressServer { .. } | MemberSource::Name(_), _) | (MemberSource::Fixed, None) => {
            return Ok(vec![rules.advertise.clone()]);
        }
    };
    rules.check(&entries).map_err(|error| {
        let key = if error.lacks_self { "advertise" } else { key };
        let rule = match source {
            _ if error.lacks_self => error.rule,
            MemberSource::File(path) => format!("the file {path}: {error}"),
            _ => error.rule,
        };
        ConfigError::new(key, draft.source(key), rule)
    })
}

fn advertised(draft: &Draft, bind: IpAddr, port: u16, is_alone: bool) -> Result<SmolStr, ConfigError> {
    let error = |rule: String| ConfigError::new("advertise", draft.source("advertise"), rule);
    match &draft.advertise {
        Some(text) => address(text, Some(port)).map_err(error),
        None if !bind.is_unspecified() => Ok(join(&bind.to_string(), port)),
        None if is_alone => Ok(join("127.0.0.1", port)),
        None => Err(error(format!(
            "is required, since {bind} is no address under which others reach this node: use --advertise host:port"
        ))),
    }
}

/// `members`: the list, if it cannot change.
fn peer_addresses(
    draft: &Draft,
    members: Option<&[SmolStr]>,
) -> Result<HashMap<SmolStr, SmolStr>, ConfigError> {
    let error = |rule: String| ConfigError::new("peer_addresses", draft.source("peer_addresses"), rule);
    let mut addresses: HashMap<SmolStr, SmolStr> = HashMap::new();
    for entry in draft.peer_addresses.iter().flatten() {
        let (member, target) = entry
            .split_once('=')
            .ok_or_else(|| error(format!("{entry:?} is not of the form member=host:port")))?;
        let member = address(member.trim(), None).map_err(error)?;
        let target = address(target.trim(), None).map_err(error)?;
        if members.is_some_and(|members| !members.contains(&member)) {
            return Err(error(format!("{member} is not in the member list")));
        }
        if let Some((other, _)) = addresses.iter().find(|(_, taken)| **taken == target) {
            return Err(error(format!("{other} and {member} are both at {target}")));
        }
        if let Some(other) = addresses.insert(member.clone(), target.clone()) {
            return Err(error(format!("{member} is both at {other} and at {target}")));
        }
    }
    Ok(addresses)
}

/// Reads `host:port`, `[v6]:port`, or without a port where there is a default, of one machine that can be dialed. Members
/// are known by the text, so that a host has one spelling: small letters, the short form of IPv6, and that of IPv4 where
/// an IPv6 address stands for one.
pub(super) fn address(text: &str, default_port: Option<u16>) -> Result<SmolStr, String> {
    let rule = || format!("{text:?} is no address, want host:port");
    let v6 = |host: &str| match host.parse::<std::net::Ipv6Addr>() {
        Ok(ip) => Ok(ip.to_canonical().to_string()),
        Err(_) => Err(rule()),
    };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or_else(rule)?;
        match (port, port.strip_prefix(':')) {
            ("", _) => (v6(host)?, None),
            (_, Some(port)) => (v6(host)?, Some(port)),
            (_, None) => return Err(rule()),
        }
    } else if text.matches(':').count() > 1 {
        (v6(text)?, None) // An IPv6 address without brackets cannot carry a port.
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
            None => (text.to_ascii_lowercase(), None),
        }
    };
    let port = match port {
        Some("0") => return Err(format!("{text:?} has port 0, want one from 1 to 65535")),
        Some(port) => port.parse().ok().filter(|port| *port > 0),
        None => default_port,
    };
    let is_host = !host.is_empty()
        && !host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@' | '#' | '?' | '=' | ','));
    match host.parse() {
        Ok(ip) if !is_one_machine(ip) => {
            return Err(format!(
                "{text:?} leads to no single machine, want its own address"
            ));
        }
        Err(_) if ends_in_digits(&host) => {
            return Err(format!(
                "{text:?} has the host {host:?}, whose last part is a number: only an IPv4 address of four numbers from 0 \
                 to 255 may end so, want host:port"
            ));
        }
        _ => {}
    }
    match port {
        Some(port) if is_host => Ok(join(&host, port)),
        _ => Err(rule()),
    }
}

/// Systems read such a name as an IPv4 address in a form of their own, `28858` and `127.1` among them.
fn ends_in_digits(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())
}

fn join(host: &str, port: u16) -> SmolStr {
    if host.contains(':') {
        format_smolstr!("[{host}]:{port}")
    } else {
        format_smolstr!("{host}:{port}")
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
