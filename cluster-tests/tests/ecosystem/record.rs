//! What a consumer says about its calls, with the time at which it was read.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use parking_lot::Mutex;

/// What the message of a call contains when the caller knew no provider to call.
const NO_PROVIDER: [&str; 2] = ["No instances available", "No provider available"];

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// When it ended.
    pub(crate) at: Instant,
    /// Name of the reference or client that it was made with.
    pub(crate) via: String,
    /// The address of the provider that answered, or why none did.
    pub(crate) outcome: Result<String, String>,
}

/// The lines of a consumer for the test. They start with `@ `; the README of the applications has the forms.
#[derive(Debug, Default)]
pub(crate) struct Record {
    calls: Mutex<Vec<Call>>,
    heartbeats: Mutex<Vec<Vec<String>>>,
}

impl Record {
    /// Takes a line, if it is one for the test.
    pub(crate) fn read(&self, line: &str) -> bool {
        let Some(line) = line.strip_prefix("@ ") else {
            return false;
        };
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if kind == "services" {
            let names = rest.split_whitespace().map(str::to_owned).collect();
            self.heartbeats.lock().push(names);
            return true;
        }
        let Some((via, what)) = rest.split_once(' ') else {
            return false;
        };
        let outcome = match kind {
            "call" => Ok(what.to_owned()),
            "failed" => Err(what.to_owned()),
            _ => return false,
        };
        self.calls.lock().push(Call {
            at: Instant::now(),
            via: via.to_owned(),
            outcome,
        });
        true
    }

    /// The calls that ended since then.
    pub(crate) fn since(&self, from: Instant) -> Calls {
        let calls = self.calls.lock();
        let start = calls.partition_point(|call| call.at < from);
        Calls(calls[start..].to_vec())
    }

    /// For each heartbeat of the discovery client, the names of all services that it gave.
    pub(crate) fn heartbeats(&self) -> Vec<Vec<String>> {
        self.heartbeats.lock().clone()
    }
}

/// Some calls in a row.
#[derive(Debug)]
pub(crate) struct Calls(Vec<Call>);

impl Calls {
    /// Those made with one reference.
    pub(crate) fn via<'a>(&'a self, via: &'a str) -> impl Iterator<Item = &'a Call> {
        self.0.iter().filter(move |call| call.via == via)
    }

    /// How many calls there were with each of these references, at least `n_wanted`.
    pub(crate) fn at_least(&self, n_wanted: usize, vias: &[&str]) -> Result<usize> {
        for via in vias {
            let n_made = self.via(via).count();
            ensure!(n_made >= n_wanted, "{n_made} calls via {via}, wanted {n_wanted}");
        }
        Ok(self.0.len())
    }

    /// Checks that none failed.
    pub(crate) fn none_failed(&self) -> Result<()> {
        let failed: Vec<(&str, &str)> = self.failed().collect();
        ensure!(
            failed.is_empty(),
            "{} of {} calls failed, the first via {}: {}",
            failed.len(),
            self.0.len(),
            failed[0].0,
            failed[0].1
        );
        Ok(())
    }

    /// Checks that each of the failed ones had a provider to call.
    pub(crate) fn all_had_a_provider(&self) -> Result<()> {
        for (via, reason) in self.failed() {
            if NO_PROVIDER.iter().any(|words| reason.contains(words)) {
                bail!("a call via {via} had no provider: {reason}");
            }
        }
        Ok(())
    }

    /// How many failed.
    pub(crate) fn n_failed(&self) -> usize {
        self.failed().count()
    }

    fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter_map(|call| Some((call.via.as_str(), call.outcome.as_ref().err()?.as_str())))
    }

    /// The last call that this provider answered, or that failed: while others live, it is this one that fails.
    pub(crate) fn last_use_of(&self, provider: &str) -> Option<&Call> {
        let is_use = |call: &&Call| call.outcome.as_ref().map_or(true, |by| by == provider);
        self.0.iter().rfind(is_use)
    }

    /// How many calls each provider answered via a reference.
    pub(crate) fn answers<'a>(&'a self, via: &'a str) -> BTreeMap<&'a str, usize> {
        let mut counts = BTreeMap::new();
        for provider in self.via(via).filter_map(|call| call.outcome.as_deref().ok()) {
            *counts.entry(provider).or_default() += 1;
        }
        counts
    }
}
