//! Switches: what operators change while nodes run, on all of them or on one.
//!
//! A switch is a record, so it spreads and stays. What the node itself heeds is kept in atomics, renewed with every tick
//! and every set; so a change on another node is heeded within a second.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
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
/// How long clients may use a list before they ask again, in milliseconds.
pub const PUSH_CACHE_MILLIS: &str = "pushCacheMillis";
/// Rows are judged by their beats.
pub const CHECK: &str = "check";
/// What an HTTP client registers that does not say whether it is ephemeral.
pub const DEFAULT_INSTANCE_EPHEMERAL: &str = "defaultInstanceEphemeral";
/// The status that nodes show instead of their own.
pub const OVERRIDDEN_SERVER_STATUS: &str = "overriddenServerStatus";
/// Paths of v1 that answer a status and nothing else: `path:status`, by commas.
pub const LIMITED_URL_MAP: &str = "limitedUrlMap";

/// How long clients may use a list before they ask again, unless operators say otherwise.
pub const DEFAULT_PUSH_CACHE: Millis = Millis(10_000);

/// What the node heeds of the switches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heeded {
    /// Changed lists are pushed.
    pub has_push: bool,
    /// Clients that beat may leave out the description of their instance.
    pub has_light_beat: bool,
    /// The interval told to clients that beat and whose metadata do not name one.
    pub beat_interval: Millis,
    /// How long clients may use a list before they ask again.
    pub push_cache: Millis,
    /// Rows that nobody beats for turn unhealthy and go.
    pub judges_beats: bool,
    /// An HTTP client that does not say otherwise registers an ephemeral instance.
    pub is_ephemeral_by_default: bool,
    /// The status that stands for the node's own; `None` when nothing is refused because of it.
    pub status: Option<ServerStatus>,
    /// Beginnings of paths with query that answer this HTTP status and nothing else.
    pub limits: Vec<(SmolStr, u16)>,
}

/// A status that operators set instead of the node's own. `UP` takes another back: it makes no node serve that still
/// has to load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerStatus {
    /// Refuses everything.
    Down,
    /// The same under another name.
    Starting,
    /// The same under another name.
    Paused,
    /// Refuses reads.
    WriteOnly,
    /// Refuses writes.
    ReadOnly,
}

impl ServerStatus {
    /// By its name in the protocol.
    pub fn of(name: &str) -> Option<Self> {
        let all = [
            ServerStatus::Down,
            ServerStatus::Starting,
            ServerStatus::Paused,
            ServerStatus::WriteOnly,
            ServerStatus::ReadOnly,
        ];
        all.into_iter().find(|status| status.name() == name)
    }

    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            ServerStatus::Down => "DOWN",
            ServerStatus::Starting => "STARTING",
            ServerStatus::Paused => "PAUSED",
            ServerStatus::WriteOnly => "WRITE_ONLY",
            ServerStatus::ReadOnly => "READ_ONLY",
        }
    }

    fn refuses(self, access: Access) -> bool {
        match self {
            ServerStatus::Down | ServerStatus::Starting | ServerStatus::Paused => true,
            ServerStatus::WriteOnly => access == Access::Read,
            ServerStatus::ReadOnly => access == Access::Write,
        }
    }
}

/// What a client wants, as far as a status lets it pass or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To connect.
    Connect,
    /// To read.
    Read,
    /// To write.
    Write,
}

/// What the node heeds, and what was set on this node only.
#[derive(Debug)]
pub(crate) struct Switches {
    heeded: ArcSwap<Heeded>,
    default_beat_interval: Millis,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// [`Registry::n_switched`] when the records were seen last.
    n_switched: u64,
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

impl Heeded {
    fn of(table: &Table, default_beat_interval: Millis) -> Self {
        let is_on = |name| table.get(name).is_none_or(|value| value != "false");
        let number = |name, default: Millis| {
            let set = table.get(name).and_then(|value| value.parse().ok());
            set.map_or(default, Millis)
        };
        let status = table.get(OVERRIDDEN_SERVER_STATUS);
        let limits = table
            .get(LIMITED_URL_MAP)
            .map(SmolStr::as_str)
            .unwrap_or_default();
        let limits = limits.split(',').filter_map(|limit| limit.rsplit_once(':'));
        Heeded {
            has_push: is_on(PUSH_ENABLED),
            has_light_beat: is_on(LIGHT_BEAT_ENABLED),
            beat_interval: number(CLIENT_BEAT_INTERVAL, default_beat_interval),
            push_cache: number(PUSH_CACHE_MILLIS, DEFAULT_PUSH_CACHE),
            judges_beats: is_on(CHECK),
            is_ephemeral_by_default: is_on(DEFAULT_INSTANCE_EPHEMERAL),
            status: status.and_then(|name| ServerStatus::of(name)),
            limits: limits
                .filter_map(|(path, status)| Some((path.into(), status.parse().ok()?)))
                .collect(),
        }
    }
}

impl Switches {
    pub(crate) fn new(default_beat_interval: Millis) -> Self {
        let table = Table::default();
        Switches {
            heeded: ArcSwap::from_pointee(Heeded::of(&table, default_beat_interval)),
            default_beat_interval,
            table: Mutex::new(table),
        }
    }

    /// Takes note of what the records say now.
    pub(crate) fn renew(&self, registry: &Registry) {
        let mut table = self.table.lock();
        // Read under the lock: whoever comes last has read the newest.
        let n_switched = registry.n_switched();
        if table.n_switched != n_switched {
            table.n_switched = n_switched;
            table.see(registry.switches());
            self.heed(&table);
        }
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
        let now = Heeded::of(table, self.default_beat_interval);
        if **self.heeded.load() != now {
            self.heeded.store(Arc::new(now));
        }
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

    /// The value of a switch as this node heeds it, if it was set.
    pub fn switch(&self, name: &str) -> Option<SmolStr> {
        self.switches.table.lock().get(name).cloned()
    }

    /// What this node heeds of the switches.
    pub fn heeded(&self) -> Arc<Heeded> {
        self.switches.heeded.load_full()
    }

    /// The interval told to clients that beat and whose metadata do not name one.
    pub fn beat_interval(&self) -> Millis {
        self.switches.heeded.load().beat_interval
    }

    /// How long clients may use a list before they ask again.
    pub fn push_cache(&self) -> Millis {
        self.switches.heeded.load().push_cache
    }

    /// Refuses what the status that operators set does not let pass.
    ///
    /// # Errors
    /// [`NodeError::Overridden`].
    pub fn check_status(&self, access: Access) -> Result<(), NodeError> {
        let status = self.switches.heeded.load().status;
        match status.filter(|status| status.refuses(access)) {
            Some(status) => Err(NodeError::Overridden(status)),
            None => Ok(()),
        }
    }

    pub(crate) fn has_push(&self) -> bool {
        self.switches.heeded.load().has_push
    }

    pub(crate) fn has_beat_judge(&self) -> bool {
        self.switches.heeded.load().judges_beats
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
        let heeded = || {
            let heeded = switches.heeded.load();
            (heeded.has_push, heeded.beat_interval)
        };
        assert_eq!(heeded(), (true, Millis(7_000)));
        let see = |records: &[(&str, &str)]| {
            let mut table = switches.table.lock();
            table.see(pairs(records));
            switches.heed(&table);
        };
        see(&[(PUSH_ENABLED, "false")]);
        assert_eq!(heeded(), (false, Millis(7_000)));
        see(&[(CLIENT_BEAT_INTERVAL, "6000"), (PUSH_ENABLED, "false")]);
        assert_eq!(heeded(), (false, Millis(6_000)));
        see(&[]);
        assert_eq!(heeded(), (true, Millis(5_000)));
    }

    #[test]
    fn a_status_refuses_what_its_name_says() {
        for (name, refused) in [
            ("DOWN", [true, true, true]),
            ("PAUSED", [true, true, true]),
            ("WRITE_ONLY", [false, true, false]),
            ("READ_ONLY", [false, false, true]),
        ] {
            let status = ServerStatus::of(name).unwrap();
            let accesses = [Access::Connect, Access::Read, Access::Write];
            assert_eq!(accesses.map(|access| status.refuses(access)), refused, "{name}");
        }
        assert_eq!(ServerStatus::of("UP"), None);
    }

    #[test]
    fn limits_are_read_as_pairs_of_path_and_status() {
        let mut table = Table::default();
        table.see(pairs(&[(LIMITED_URL_MAP, "/a/x:403,/y?a=b:c:429")]));
        let limits = Heeded::of(&table, Millis(1)).limits;
        assert_eq!(limits, [("/a/x".into(), 403), ("/y?a=b:c".into(), 429)]);
    }
}
