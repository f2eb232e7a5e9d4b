//! Switches: what operators change while nodes run, on all of them or on one.
//!
//! A switch is a record, so it spreads and stays. What the node itself heeds is kept in atomics, renewed with every tick
//! and every set; so a change on another node is heeded within a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rollcall_core::registry::records::{Record, RecordKey};
use rollcall_core::{Millis, Now, Registry};
use smol_str::SmolStr;

use crate::action::Actions;
use crate::error::NodeError;
use crate::node::Node;

/// Changed lists are pushed to subscribers.
pub const PUSH_ENABLED: &str = "pushEnabled";
/// The interval told to clients that beat, in milliseconds.
pub const CLIENT_BEAT_INTERVAL: &str = "clientBeatInterval";
/// Clients that beat may leave out the description of their instance.
pub const LIGHT_BEAT_ENABLED: &str = "lightBeatEnabled";

/// What the node heeds, and what was set on this node only.
#[derive(Debug)]
pub(crate) struct Switches {
    has_push: AtomicBool,
    has_light_beat: AtomicBool,
    beat_interval: AtomicU64,
    default_beat_interval: Millis,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// The records as last seen.
    records: Vec<(SmolStr, SmolStr)>,
    /// Set on this node only; each lasts until its record changes.
    local: BTreeMap<SmolStr, SmolStr>,
}

impl Table {
    fn see(&mut self, records: Vec<(SmolStr, SmolStr)>) {
        if records != self.records {
            let former: BTreeMap<_, _> = std::mem::take(&mut self.records).into_iter().collect();
            for (name, value) in &records {
                if former.get(name) != Some(value) {
                    self.local.remove(name);
                }
            }
            self.records = records;
        }
    }

    fn all(&self) -> BTreeMap<SmolStr, SmolStr> {
        let mut all: BTreeMap<_, _> = self.records.iter().cloned().collect();
        all.extend(
            self.local
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        all
    }

    fn get(&self, name: &str) -> Option<&SmolStr> {
        let recorded = || self.records.iter().find(|(key, _)| key == name);
        self.local
            .get(name)
            .or_else(|| recorded().map(|(_, value)| value))
    }
}

impl Switches {
    pub(crate) fn new(default_beat_interval: Millis) -> Self {
        Switches {
            has_push: AtomicBool::new(true),
            has_light_beat: AtomicBool::new(true),
            beat_interval: AtomicU64::new(default_beat_interval.0),
            default_beat_interval,
            table: Mutex::default(),
        }
    }

    pub(crate) fn has_push(&self) -> bool {
        self.has_push.load(Ordering::Relaxed)
    }

    pub(crate) fn beat_interval(&self) -> Millis {
        Millis(self.beat_interval.load(Ordering::Relaxed))
    }

    /// Takes note of what the records say now.
    pub(crate) fn renew(&self, registry: &Registry) {
        let mut table = self.table.lock();
        // Read under the lock: whoever comes last has read the newest.
        table.see(registry.switches());
        self.heed(&table);
    }

    fn set_local(&self, name: &str, value: SmolStr) {
        let mut table = self.table.lock();
        table.local.insert(name.into(), value);
        self.heed(&table);
    }

    fn unset_local(&self, name: &str) {
        self.table.lock().local.remove(name);
    }

    fn heed(&self, table: &Table) {
        let is_on = |name| table.get(name).is_none_or(|value| value != "false");
        let interval = table
            .get(CLIENT_BEAT_INTERVAL)
            .and_then(|value| value.parse().ok());
        self.has_push.store(is_on(PUSH_ENABLED), Ordering::Relaxed);
        self.has_light_beat
            .store(is_on(LIGHT_BEAT_ENABLED), Ordering::Relaxed);
        let interval = interval.unwrap_or(self.default_beat_interval.0);
        self.beat_interval.store(interval, Ordering::Relaxed);
    }
}

impl Node {
    /// Sets a switch on all nodes, or on this one until it is set on all. The value must be one that the switch takes.
    ///
    /// # Errors
    /// As [`Node::set_record`]; none when it is for this node only.
    pub fn set_switch(
        &self,
        name: &str,
        value: SmolStr,
        is_local: bool,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), NodeError> {
        if is_local {
            self.switches.set_local(name, value);
        } else {
            let record = Some(Record::Switch(value));
            self.set_record(&RecordKey::Switch(name.into()), record, now, actions)?;
            self.switches.unset_local(name);
            self.switches.renew(&self.registry);
        }
        // Pushes may be due that were held back.
        actions.wake();
        Ok(())
    }

    /// The switches that were set, as this node heeds them.
    pub fn switches(&self) -> BTreeMap<SmolStr, SmolStr> {
        self.switches.renew(&self.registry);
        self.switches.table.lock().all()
    }

    /// The interval told to clients that beat and whose metadata do not name one.
    pub fn beat_interval(&self) -> Millis {
        self.switches.beat_interval()
    }

    /// True while clients that beat may leave out the description of their instance.
    pub fn has_light_beat(&self) -> bool {
        self.switches.has_light_beat.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(SmolStr, SmolStr)> {
        pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect()
    }

    #[test]
    fn a_local_value_lasts_until_its_record_changes() {
        let switches = Switches::new(Millis(5_000));
        switches.set_local(CLIENT_BEAT_INTERVAL, "7000".into());
        assert_eq!(switches.beat_interval(), Millis(7_000));
        let see = |records: &[(&str, &str)]| {
            let mut table = switches.table.lock();
            table.see(pairs(records));
            switches.heed(&table);
        };
        see(&[(PUSH_ENABLED, "false")]);
        assert_eq!(
            (switches.has_push(), switches.beat_interval()),
            (false, Millis(7_000))
        );
        see(&[(CLIENT_BEAT_INTERVAL, "6000"), (PUSH_ENABLED, "false")]);
        assert_eq!(switches.beat_interval(), Millis(6_000));
        see(&[]);
        assert_eq!(
            (switches.has_push(), switches.beat_interval()),
            (true, Millis(5_000))
        );
    }
}
