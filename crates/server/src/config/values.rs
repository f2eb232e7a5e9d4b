//! Texts into values: times, sizes, lists.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rollcall_core::Millis;

/// Longest time that a key takes: beyond it a slip of the pen is likelier than a wish.
const LONGEST: (&str, Millis) = ("720h", Millis::secs(720 * 3600));

/// Reads a time: a whole number and `ms`, `s`, `m` or `h`, at most 30 days.
///
/// # Errors
/// The rule, when the text breaks it.
pub fn time(text: &str) -> Result<Millis, String> {
    let rule =
        || format!("{text:?} is no time, want a whole number and a unit such as 500ms, 10s, 2m or 24h");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(rule)?;
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(rule()),
    };
    if number.is_empty() {
        return Err(rule());
    }
    let (longest, most) = LONGEST;
    let number = number.parse::<u64>().ok(); // None: too large a number.
    number
        .and_then(|number| number.checked_mul(factor))
        .map(Millis)
        .filter(|time| *time <= most)
        .ok_or_else(|| format!("{text:?} is above {longest}"))
}

/// Reads a time that must not be zero.
///
/// # Errors
/// The rule, when the text breaks it.
pub fn positive_time(text: &str) -> Result<Millis, String> {
    match time(text)? {
        Millis(0) => Err("must be above 0".into()),
        time => Ok(time),
    }
}

/// A time as the standard library has it.
pub fn duration(time: Millis) -> Duration {
    Duration::from_millis(time.0)
}

/// Reads a size: a whole number of bytes, or with `KiB` or `MiB`.
///
/// # Errors
/// The rule, when the text breaks it.
pub fn size(text: &str) -> Result<usize, String> {
    let rule = || {
        format!("{text:?} is no size, want a whole number of bytes, or with a unit such as 64KiB or 10MiB")
    };
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(rule()),
    };
    let number: usize = number.parse().map_err(|_| rule())?;
    number.checked_mul(factor).ok_or_else(rule)
}

/// Reads a whole number within limits.
///
/// # Errors
/// The rule, when the text breaks it.
pub fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let value: u64 = text
        .parse()
        .map_err(|_| format!("{text:?} is no whole number from {least} to {most}"))?;
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{value} is not from {least} to {most}"))
    }
}

/// The entries of a comma list, without blank ones.
pub fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

/// True for an address that one machine can be dialed at: neither all addresses of a machine, nor many machines.
pub fn is_one_machine(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Checks a log filter: a level, or `target=level`, several of them separated by commas.
///
/// # Errors
/// The rule, when the text breaks it.
pub fn log_filter(text: &str) -> Result<String, String> {
    let is_level = |level: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].contains(&level.to_ascii_lowercase().as_str())
    };
    let is_directive = |entry: &str| match entry.split_once('=') {
        Some((target, level)) => !target.trim().is_empty() && is_level(level.trim()),
        None => is_level(entry),
    };
    let entries = list(text);
    if !entries.is_empty() && entries.iter().all(|entry| is_directive(entry)) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is no log filter, want error, warn, info, debug, trace or off, or info,module=debug"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit() {
        assert_eq!(time("500ms"), Ok(Millis(500)));
        assert_eq!(time("2m"), Ok(Millis(120_000)));
        assert_eq!(time("24h"), Ok(Millis(86_400_000)));
        for bad in ["10", "s", "-1s", "1.5s", "1d", ""] {
            assert!(time(bad).is_err_and(|rule| rule.contains("500ms")), "{bad}");
        }
        assert!(positive_time("0s").is_err());
    }

    #[test]
    fn times_end_at_thirty_days() {
        assert_eq!(time("720h"), Ok(Millis::secs(30 * 24 * 3600)));
        for bad in ["721h", "43201m", "999999999999h", "99999999999999999999s"] {
            assert_eq!(time(bad), Err(format!("{bad:?} is above 720h")));
        }
    }

    #[test]
    fn sizes_are_bytes_unless_they_say_otherwise() {
        assert_eq!(
            (size("1024"), size("10MiB"), size("1 KiB")),
            (Ok(1024), Ok(10 << 20), Ok(1024))
        );
        assert!(size("10MB").is_err() && size("x").is_err());
    }

    #[test]
    fn log_filters_are_levels_also_by_module() {
        for good in ["info", "WARN", "info,h2=debug", "off"] {
            assert_eq!(log_filter(good), Ok(good.to_owned()));
        }
        for bad in ["loud", "", "info,foo=loud", "=info", "h2"] {
            assert!(log_filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_drop_blanks() {
        assert_eq!(list("a:1, b:2,,"), vec!["a:1", "b:2"]);
    }
}
