//! The guard against empty lists: when the last instance of a service falls silent, readers go on to see the last list
//! for a while (`spec/clients.md` §14, P8).
//!
//! Off unless operators set it, for a namespace or for a service. It never holds against what somebody wanted: a
//! deregistration, or an operator's act. Each member holds for itself, counted from when the list became empty there.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use smol_str::{SmolStr, format_smolstr};

use crate::clock::Millis;
use crate::model::service_key::{GROUP_SEPARATOR, ServiceKey};
use crate::registry::Registry;
use crate::registry::change::Changes;
use crate::registry::records::{Record, RecordKey};

/// Longest time that a list may be held.
pub const GUARD_MAX: Millis = Millis(60_000);

/// What a guard is set for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Guarded {
    /// Every service of a namespace that has no guard of its own.
    Namespace(SmolStr),
    /// A service, whatever is set for its namespace.
    Service(ServiceKey),
}

impl Guarded {
    const SWITCH: &str = "emptyPushGuard:";

    /// The record that keeps the guard: a switch with a name that no other switch has.
    pub fn record_key(&self) -> RecordKey {
        let about = match self {
            Guarded::Namespace(namespace) => namespace.as_str(),
            Guarded::Service(service) => service.as_str(),
        };
        RecordKey::Switch(format_smolstr!("{}{about}", Self::SWITCH))
    }

    /// What the record for a time is: milliseconds as text.
    pub fn record(time: Millis) -> Record {
        Record::Switch(format_smolstr!("{}", time.0))
    }

    /// What a record is the guard of; `None` when it is none.
    fn of(key: &RecordKey) -> Option<Self> {
        let RecordKey::Switch(name) = key else {
            return None;
        };
        let about = name.strip_prefix(Self::SWITCH)?;
        let Some((namespace, grouped)) = about.split_once("##") else {
            return Some(Guarded::Namespace(about.into()));
        };
        let (group, name) = grouped.split_once(GROUP_SEPARATOR)?;
        Some(Guarded::Service(ServiceKey::new(namespace, group, name)))
    }
}

/// The guards that are set, and the lists that are held.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    set: Mutex<BTreeMap<Guarded, Millis>>,
    held: Mutex<BTreeSet<(Millis, ServiceKey)>>,
}

impl Guards {
    /// How long the list of a service is held, and for what that is set; `None` when nothing is set.
    fn time(&self, service: &ServiceKey) -> Option<(Guarded, Millis)> {
        let set = self.set.lock();
        if set.is_empty() {
            return None;
        }
        let own = Guarded::Service(service.clone());
        let all = Guarded::Namespace(service.namespace().into());
        [own, all].into_iter().find_map(|guarded| {
            let time = set.get(&guarded).copied()?;
            Some((guarded, time))
        })
    }
}

impl Registry {
    /// The guards that are set, sorted.
    pub fn guards(&self) -> Vec<(Guarded, Millis)> {
        let set = self.guards.set.lock();
        set.iter()
            .map(|(guarded, time)| (guarded.clone(), *time))
            .collect()
    }

    /// How long the list of a service is held when its last instance falls silent, and for what that is set; `None`
    /// when nothing is set. 0 does not hold.
    pub fn guard_of(&self, service: &ServiceKey) -> Option<(Guarded, Millis)> {
        self.guards.time(service)
    }

    /// Until when the list of a service is held; `None` when it is not.
    pub fn held_until(&self, service: &ServiceKey) -> Option<Millis> {
        self.service(service)?.held_until()
    }

    /// The number of lists that are held.
    pub fn n_held(&self) -> usize {
        self.guards.held.lock().len()
    }

    /// When the next list is let go.
    pub fn next_release(&self) -> Option<Millis> {
        self.guards.held.lock().first().map(|held| held.0)
    }

    /// Until when the list of a service is to be held that becomes empty now; `None`: readers see it at once.
    pub(crate) fn hold_until(&self, service: &ServiceKey, now: Millis) -> Option<Millis> {
        let (_, time) = self.guards.time(service)?;
        (time > Millis(0)).then(|| now + time)
    }

    pub(crate) fn note_held(&self, until: Millis, service: &ServiceKey) {
        self.guards.held.lock().insert((until, service.clone()));
    }

    pub(crate) fn note_let_go(&self, until: Millis, service: &ServiceKey) {
        self.guards.held.lock().remove(&(until, service.clone()));
    }

    /// Shows readers the lists whose time is over.
    pub fn release_held(&self, now: Millis, changes: &mut Changes) {
        loop {
            let first = self.guards.held.lock().first().cloned();
            let Some((until, service)) = first.filter(|held| held.0 <= now) else {
                return;
            };
            self.let_go(until, &service, changes);
        }
    }

    /// Lets the guards take note of what a record says now, if it is of that kind. The current lists are shown at once
    /// of those that are guarded for a shorter time than before, or no more; the others stay held for the time they were given.
    pub(crate) fn renew_guard(&self, key: &RecordKey, changes: &mut Changes) {
        let Some(guarded) = Guarded::of(key) else {
            return;
        };
        let held: Vec<_> = self.guards.held.lock().iter().cloned().collect();
        let time =
            |(_, service): &(Millis, ServiceKey)| self.guards.time(service).map_or(Millis(0), |set| set.1);
        let before: Vec<_> = held.iter().map(time).collect();
        {
            let mut set = self.guards.set.lock();
            // Read under the lock: whoever comes last has read the newest.
            match self.record(key) {
                Some(Record::Switch(time)) => {
                    let time = time.parse().map_or(Millis(0), Millis).min(GUARD_MAX);
                    set.insert(guarded, time);
                }
                _ => {
                    set.remove(&guarded);
                }
            }
        }
        for (held, before) in held.iter().zip(before) {
            if time(held) < before {
                self.let_go(held.0, &held.1, changes);
            }
        }
    }

    fn let_go(&self, until: Millis, key: &ServiceKey, changes: &mut Changes) {
        self.note_let_go(until, key);
        let Some(service) = self.service(key) else {
            return;
        };
        let _rows = service.rows.lock(); // A list becomes held, or not, under the lock of its service only.
        if service.held_until() == Some(until) {
            service.let_go();
            changes.push(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_read_back_from_its_record() {
        for guarded in [
            Guarded::Namespace("public".into()),
            Guarded::Service(ServiceKey::new("dev", "g:1", "a@b/c#d")),
        ] {
            assert_eq!(Guarded::of(&guarded.record_key()), Some(guarded));
        }
        for other in ["pushEnabled", "emptyPushGuard", "emptyPushGuard:a##b"] {
            assert_eq!(Guarded::of(&RecordKey::Switch(other.into())), None, "{other}");
        }
    }
}
