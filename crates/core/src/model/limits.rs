//! What a name, an address or a set of metadata may look like, and the text a client reads when it may not.
//!
//! Source: `spec/validation.md` §4 and §5. The texts are part of the protocol. Lengths count UTF-16 units.

use crate::model::instance::{BeatTimes, Instance};
use crate::model::metadata::Metadata;

/// Longest namespace id.
pub const MAX_NAMESPACE: usize = 64;
/// Longest name of a namespace.
pub const MAX_NAMESPACE_NAME: usize = 256;
/// Longest description of a namespace.
pub const MAX_NAMESPACE_DESC: usize = 256;
/// Longest service name.
pub const MAX_SERVICE: usize = 512;
/// Longest group.
pub const MAX_GROUP: usize = 128;
/// Longest cluster name.
pub const MAX_CLUSTER: usize = 64;
/// Longest address or host name.
pub const MAX_IP: usize = 128;
/// Largest sum of the lengths of all metadata keys and values, unless configured.
pub const MAX_METADATA: usize = 1024;
/// Largest weight.
pub const MAX_WEIGHT: f64 = 10_000.0;

/// A rule of the parameter checker that a request broke. The display text is what clients read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// The value is longer than the limit.
    #[error("Param '{param}' is illegal, the param length should not exceed {max}.")]
    TooLong {
        /// Name of the parameter as clients know it.
        param: &'static str,
        /// The limit.
        max: usize,
    },
    /// The value holds a character that its pattern excludes.
    #[error("Param '{param}' is illegal, illegal characters should not appear in the param.")]
    IllegalCharacter {
        /// Name of the parameter as clients know it.
        param: &'static str,
    },
    /// The port is not a number from 0 to 65535.
    #[error("Param 'port' is illegal, the value should be between 0 and 65535.")]
    Port,
    /// A required part of a name is blank.
    #[error("Param '{param}' is illegal, {param} is blank")]
    Blank {
        /// Name of the parameter as clients know it.
        param: &'static str,
    },
}

fn units(text: &str) -> usize {
    if text.is_ascii() {
        text.len()
    } else {
        text.encode_utf16().count()
    }
}

fn check(
    param: &'static str,
    text: &str,
    max: usize,
    is_legal: impl Fn(&str) -> bool,
) -> Result<(), Violation> {
    if text.trim().is_empty() {
        return Ok(());
    }
    if units(text) > max {
        return Err(Violation::TooLong { param, max });
    }
    if is_legal(text) {
        Ok(())
    } else {
        Err(Violation::IllegalCharacter { param })
    }
}

fn is_cjk(c: char) -> bool {
    ('\u{4E00}'..='\u{9FA5}').contains(&c)
}

/// White space of a Java pattern's `\s`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\u{0B}' | '\u{0C}' | '\r')
}

/// Checks a namespace id: letters, digits, `_` and `-`.
///
/// # Errors
/// [`Violation`] with the text that clients read. A blank value passes, here and in every check below.
pub fn check_namespace(text: &str) -> Result<(), Violation> {
    check("namespaceId/tenant", text, MAX_NAMESPACE, |t| {
        t.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    })
}

/// Checks the name that a namespace has for people: none of `@#$%^&*`.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_namespace_name(text: &str) -> Result<(), Violation> {
    check("namespaceShowName", text, MAX_NAMESPACE_NAME, |t| {
        !t.contains(['@', '#', '$', '%', '^', '&', '*'])
    })
}

/// Checks the description of a namespace.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_namespace_desc(text: &str) -> Result<(), Violation> {
    check("namespaceDesc", text, MAX_NAMESPACE_DESC, |_| true)
}

/// Checks a plain service name: no leading `@`, and after the first character no `@@`, no CJK ideograph, no white
/// space.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_service_name(text: &str) -> Result<(), Violation> {
    check("serviceName", text, MAX_SERVICE, |t| {
        let mut chars = t.chars();
        let first_is_at = chars.next() == Some('@');
        let rest = chars.as_str();
        !first_is_at && !rest.contains("@@") && !rest.contains(|c| is_cjk(c) || is_space(c))
    })
}

/// Checks a group: letters, digits and `-_:.`.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_group(text: &str) -> Result<(), Violation> {
    check("group", text, MAX_GROUP, |t| {
        t.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_:.".contains(&b))
    })
}

/// Checks a cluster name, or each of a comma-separated list of them: letters, digits, `-` and `_`.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_clusters(text: &str) -> Result<(), Violation> {
    text.split(',').try_for_each(check_cluster)
}

/// Checks one cluster name: letters, digits, `-` and `_`.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_cluster(text: &str) -> Result<(), Violation> {
    check("cluster", text, MAX_CLUSTER, |t| {
        t.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    })
}

/// Checks an address: no CJK ideograph, no white space. Host names and IPv6 pass.
///
/// # Errors
/// [`Violation`] with the text that clients read.
pub fn check_ip(text: &str) -> Result<(), Violation> {
    check("ip", text, MAX_IP, |t| !t.contains(|c| is_cjk(c) || is_space(c)))
}

/// Reads a port.
///
/// # Errors
/// [`Violation::Port`] unless the value is 0 to 65535.
pub fn check_port(value: i64) -> Result<u16, Violation> {
    u16::try_from(value).map_err(|_| Violation::Port)
}

/// Checks the total length of metadata against `max`, in UTF-16 units of all non-blank keys and values.
///
/// # Errors
/// [`Violation::TooLong`].
pub fn check_metadata(metadata: &Metadata, max: usize) -> Result<(), Violation> {
    let text_len = |t: &str| if t.trim().is_empty() { 0 } else { units(t) };
    let total: usize = metadata.iter().map(|(k, v)| text_len(k) + text_len(v)).sum();
    if total > max {
        Err(metadata_too_long(max))
    } else {
        Ok(())
    }
}

/// What [`check_metadata`] says of metadata with more than `max` units.
pub fn metadata_too_long(max: usize) -> Violation {
    Violation::TooLong {
        param: "Metadata",
        max,
    }
}

/// A rule of the service layer that an instance broke (`spec/validation.md` §5).
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum InstanceFault {
    /// The beat interval is longer than a timeout.
    #[error("Instance 'heart beat interval' must less than 'heart beat timeout' and 'ip delete timeout'.")]
    BeatTimes,
    /// The cluster holds a character other than letters, digits and `-`.
    #[error("Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: {0})")]
    Cluster(String),
    /// The weight is outside 0 to 10000, or not a number.
    #[error("instance format invalid: The weights range from 0.0 to 10000.0")]
    Weight,
}

/// Checks beat times and cluster name of a single registration.
///
/// # Errors
/// [`InstanceFault`].
pub fn check_instance(instance: &Instance) -> Result<(), InstanceFault> {
    let BeatTimes {
        interval,
        timeout,
        delete,
    } = instance.beat_times();
    if timeout < interval || delete < interval {
        return Err(InstanceFault::BeatTimes);
    }
    if !instance
        .cluster
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        return Err(InstanceFault::Cluster(instance.cluster.to_string()));
    }
    Ok(())
}

/// Checks a weight that came over HTTP; `NaN` is refused.
///
/// # Errors
/// [`InstanceFault::Weight`].
pub fn check_weight(weight: f64) -> Result<(), InstanceFault> {
    if (0.0..=MAX_WEIGHT).contains(&weight) {
        Ok(())
    } else {
        Err(InstanceFault::Weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_follow_the_recorded_pattern() {
        for good in [
            "a",
            "a.b-c_d",
            "a/b",
            "a:b",
            "a,b",
            "a#b",
            "a@b",
            "providers:x.Y::",
            "{{1}}",
            "pay‐core",
        ] {
            assert_eq!(check_service_name(good), Ok(()), "{good}");
        }
        for bad in ["a b", "@a", "a@@b", "x中", "a\tb"] {
            assert!(check_service_name(bad).is_err(), "{bad}");
        }
        assert_eq!(check_service_name(&"x".repeat(512)), Ok(()));
        assert_eq!(
            check_service_name(&"x".repeat(513)).map_err(|e| e.to_string()),
            Err("Param 'serviceName' is illegal, the param length should not exceed 512.".into())
        );
    }

    #[test]
    fn groups_clusters_and_addresses_follow_theirs() {
        assert!(check_group("a.b-c_d:e").is_ok() && check_group("a/b").is_err());
        assert!(check_clusters("c1,c_2,").is_ok() && check_clusters("c1,c 2").is_err());
        assert!(check_cluster("c1,c2").is_err());
        assert!(check_ip("fe80::1").is_ok() && check_ip("<script>").is_ok() && check_ip("a b").is_err());
        assert!(check_namespace("a-b_c").is_ok() && check_namespace("a.b").is_err());
    }

    #[test]
    fn weights_outside_the_range_and_nan_are_refused() {
        assert!(check_weight(0.0).is_ok() && check_weight(10_000.0).is_ok());
        assert!(
            check_weight(-1.0).is_err() && check_weight(10_000.1).is_err() && check_weight(f64::NAN).is_err()
        );
    }
}
