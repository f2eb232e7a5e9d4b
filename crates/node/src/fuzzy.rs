//! Fuzzy watches: a client names a pattern and is told which services match it, then which come and go.
//!
//! A service comes with its first instance and goes with its last one, though it stays in lists of services for a while.
//! Nothing is queued: of each watch the node knows what the client has been told, and sends the next difference to what is
//! there once the former message is acknowledged. So a slow client costs its own keys only, and a message that got lost
//! is made again. From `spec/grpc.md` §6.3; 3.x clients ask for it when the set-up advertises it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rollcall_core::{Millis, Now, ServiceKey};
use smol_str::SmolStr;

use crate::action::{Action, Actions};
use crate::connection::Awaited;
use crate::error::NodeError;
use crate::metrics::Counters;
use crate::node::Node;
use crate::request::ConnectionId;

/// Separates the parts of a pattern.
const PART: &str = ">>";
/// Patterns that may be watched at a time, of all clients together.
pub const MAX_PATTERNS: usize = 20;
/// Services of a pattern that are told.
pub const MAX_MATCHES: usize = 500;
/// Keys that a client may say it holds: what it may have been told, and as much again.
pub const MAX_HELD: usize = 2 * MAX_MATCHES;
/// Changes in one message of the first phase.
const BATCH: usize = 10;
/// Between the answer to a watch and its first message, so that the answer goes ahead.
const FIRST_AFTER: Millis = Millis(10);
/// Changes of the catalogue are collected for so long.
const COLLECT: Millis = Millis(500);
/// Wait for an acknowledgement.
const ACK_WAIT: Millis = Millis(5_000);
/// Pause after a message that was refused or not acknowledged; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Millis = Millis(1_000);
/// Longest such pause.
const RETRY_MAX: Millis = Millis(30_000);

/// A message about services that match a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FuzzyMessage {
    /// Some of the services that are there and that the client does not hold. Those that it holds and that are gone
    /// follow as changes: the Java client 3.1.1 takes every service of this message for one that came.
    Sync {
        /// The pattern.
        pattern: SmolStr,
        /// The watch is new; else it is compared once more.
        is_initial: bool,
        /// The services.
        added: Vec<ServiceKey>,
        /// How many such messages there are.
        n_batches: usize,
        /// Which of them this is, from 1 on.
        batch: usize,
    },
    /// The client holds all that is there.
    Finished {
        /// The pattern.
        pattern: SmolStr,
    },
    /// A service came (true) or went.
    Changed {
        /// The service.
        service: ServiceKey,
        /// It has an instance.
        has_instance: bool,
    },
}

/// A pattern `namespace>>group>>service`; a `*` at an end of group or service stands for anything.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pattern {
    namespace: SmolStr,
    group: SmolStr,
    name: SmolStr,
}

impl Pattern {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(PART);
        let (namespace, group, name) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || group.is_empty() || name.is_empty() {
            return None;
        }
        let namespace = if namespace.trim().is_empty() {
            "public"
        } else {
            namespace
        };
        Some(Pattern {
            namespace: namespace.into(),
            group: group.into(),
            name: name.into(),
        })
    }

    fn matches(&self, service: &ServiceKey) -> bool {
        service.namespace() == self.namespace
            && fits(&self.group, service.group())
            && fits(&self.name, service.name())
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        _ if pattern == "*" => true,
        (Some(rest), Some(_)) => {
            let middle = rest.strip_suffix('*').unwrap_or(rest);
            !middle.contains('*') && text.contains(middle)
        }
        (Some(end), None) => !end.contains('*') && text.ends_with(end),
        (None, Some(start)) => !start.contains('*') && text.starts_with(start),
        (None, None) => !pattern.contains('*') && pattern == text,
    }
}

type Key = (ConnectionId, SmolStr);

/// All watches of a node's connections.
#[derive(Debug, Default)]
pub(crate) struct FuzzyWatches {
    state: Mutex<State>,
    /// Version of the catalogue that every watch has been told to look at.
    seen: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    watches: BTreeMap<Key, Watch>,
    patterns: BTreeMap<SmolStr, (Pattern, usize)>,
    /// When each watch is to be looked at, at most one entry for each.
    looks: BTreeSet<(Millis, Key)>,
}

#[derive(Debug)]
struct Watch {
    /// What the client was told, or said that it holds.
    known: BTreeSet<ServiceKey>,
    phase: Phase,
    sent: Option<Sent>,
    look: Option<Millis>,
    failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// What came is sent in batches: how many there are in all, and how many have been acknowledged.
    Syncing {
        is_initial: bool,
        n_batches: usize,
        n_done: usize,
    },
    /// Every change is a message of its own.
    Following,
}

#[derive(Debug)]
struct Sent {
    request_id: u64,
    changes: Vec<(ServiceKey, bool)>,
}

impl State {
    fn look_at(&mut self, key: &Key, at: Millis) {
        let Some(watch) = self.watches.get_mut(key) else {
            return;
        };
        match watch.look {
            Some(earlier) if earlier <= at => return,
            Some(later) => {
                self.looks.remove(&(later, key.clone()));
            }
            None => {}
        }
        watch.look = Some(at);
        self.looks.insert((at, key.clone()));
    }

    fn remove(&mut self, key: &Key) {
        let Some(watch) = self.watches.remove(key) else {
            return;
        };
        if let Some(at) = watch.look {
            self.looks.remove(&(at, key.clone()));
        }
        if let Some((_, n)) = self.patterns.get_mut(&key.1) {
            *n -= 1;
            if *n == 0 {
                self.patterns.remove(&key.1);
            }
        }
    }
}

impl FuzzyWatches {
    pub(crate) fn len(&self) -> usize {
        self.state.lock().watches.len()
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        self.state.lock().looks.first().map(|look| look.0)
    }

    /// Ends all watches of a connection.
    pub(crate) fn forget(&self, id: ConnectionId) {
        let mut state = self.state.lock();
        let from = (id, SmolStr::default());
        let of_it = state.watches.range(from..).take_while(|(key, _)| key.0 == id);
        let keys: Vec<Key> = of_it.map(|(key, _)| key.clone()).collect();
        for key in keys {
            state.remove(&key);
        }
    }
}

impl Node {
    /// Starts a watch, or compares once more what its client holds. True: more services match than are told.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`], [`NodeError::BadPattern`],
    /// [`NodeError::TooManyPatterns`].
    pub fn watch_pattern(
        &self,
        id: ConnectionId,
        pattern: &str,
        held: Vec<ServiceKey>,
        is_initial: bool,
        now: Now,
        actions: &mut Actions,
    ) -> Result<bool, NodeError> {
        self.check_readable(now)?;
        self.naming_client(id, now)?;
        let read = Pattern::read(pattern).ok_or_else(|| NodeError::BadPattern(pattern.to_owned()))?;
        let n_matching = self
            .registry
            .catalog()
            .matching(MAX_MATCHES + 1, |s| read.matches(s))
            .len();
        let key = (id, SmolStr::new(pattern));
        let mut state = self.fuzzy.state.lock();
        if !state.patterns.contains_key(&key.1) && state.patterns.len() >= MAX_PATTERNS {
            return Err(NodeError::TooManyPatterns);
        }
        state.remove(&key);
        let entry = state
            .patterns
            .entry(key.1.clone())
            .or_insert_with(|| (read.clone(), 0));
        entry.1 += 1;
        let watch = Watch {
            known: held
                .into_iter()
                .filter(|s| read.matches(s))
                .take(MAX_HELD)
                .collect(),
            phase: Phase::Syncing {
                is_initial,
                n_batches: 0,
                n_done: 0,
            },
            sent: None,
            look: None,
            failures: 0,
        };
        state.watches.insert(key.clone(), watch);
        state.look_at(&key, now.mono + FIRST_AFTER);
        drop(state);
        // Closed meanwhile: nobody else would take the watch out again.
        if self.connections.get(id).is_none() {
            self.fuzzy.forget(id);
            return Err(NodeError::UnknownConnection);
        }
        actions.wake();
        Ok(n_matching > MAX_MATCHES)
    }

    /// Ends a watch, if there is one.
    ///
    /// # Errors
    /// [`NodeError::UnknownConnection`], [`NodeError::NotNaming`].
    pub fn unwatch_pattern(&self, id: ConnectionId, pattern: &str, now: Now) -> Result<(), NodeError> {
        self.naming_client(id, now)?;
        self.fuzzy.state.lock().remove(&(id, SmolStr::new(pattern)));
        Ok(())
    }

    /// Services came or went: every watch is to look, a little later.
    pub(crate) fn catalog_changed(&self, now: Now, actions: &mut Actions) {
        let version = self.registry.catalog().version();
        if self.fuzzy.seen.swap(version, Ordering::AcqRel) == version {
            return;
        }
        let mut state = self.fuzzy.state.lock();
        let waiting = state
            .watches
            .iter()
            .filter(|(_, watch)| watch.sent.is_none() && watch.look.is_none());
        let keys: Vec<Key> = waiting.map(|(key, _)| key.clone()).collect();
        for key in &keys {
            state.look_at(key, now.mono + COLLECT);
        }
        if !keys.is_empty() {
            actions.wake();
        }
    }

    /// Sends what is due. What was sent and not acknowledged is made again.
    pub(crate) fn tick_fuzzy(&self, now: Now, actions: &mut Actions) {
        self.catalog_changed(now, actions);
        let mut state = self.fuzzy.state.lock();
        let mut matches: BTreeMap<SmolStr, (BTreeSet<ServiceKey>, bool)> = BTreeMap::new();
        while state.looks.first().is_some_and(|look| look.0 <= now.mono) {
            let Some((_, key)) = state.looks.pop_first() else {
                break;
            };
            let Some(pattern) = state.patterns.get(&key.1).map(|(pattern, _)| pattern.clone()) else {
                continue;
            };
            let Some(watch) = state.watches.get_mut(&key) else {
                continue;
            };
            watch.look = None;
            if let Some(sent) = watch.sent.take() {
                if let Some(connection) = self.connections.get(key.0) {
                    connection.answered(sent.request_id);
                }
                let at = now.mono + watch.pause();
                state.look_at(&key, at);
                continue;
            }
            let (there, is_over) = matches.entry(key.1.clone()).or_insert_with(|| {
                let found = self
                    .registry
                    .catalog()
                    .matching(MAX_MATCHES + 1, |s| pattern.matches(s));
                let is_over = found.len() > MAX_MATCHES;
                (found.into_iter().take(MAX_MATCHES).collect(), is_over)
            });
            let Some((message, changes)) = watch.next(&key.1, there, *is_over) else {
                continue;
            };
            let request_id = self.pusher.next_request_id();
            let is_open = self
                .connections
                .get(key.0)
                .is_some_and(|c| c.expect(request_id, Awaited::Fuzzy(key.1.clone())));
            if !is_open {
                state.remove(&key);
                continue;
            }
            watch.sent = Some(Sent { request_id, changes });
            state.look_at(&key, now.mono + ACK_WAIT);
            Counters::add(&self.counters.fuzzy_sent);
            actions.push(Action::Fuzzy {
                connection: key.0,
                request_id,
                message: Box::new(message),
            });
        }
    }

    /// A client has answered a message about a pattern.
    pub(crate) fn fuzzy_answered(
        &self,
        id: ConnectionId,
        request_id: u64,
        pattern: SmolStr,
        is_ok: bool,
        now: Now,
        actions: &mut Actions,
    ) {
        let key = (id, pattern);
        let mut state = self.fuzzy.state.lock();
        let Some(watch) = state.watches.get_mut(&key) else {
            return;
        };
        let Some(sent) = watch.sent.take_if(|sent| sent.request_id == request_id) else {
            return;
        };
        let deadline = watch.look.take();
        let at = if is_ok {
            watch.acknowledged(sent);
            now.mono
        } else {
            now.mono + watch.pause()
        };
        if let Some(deadline) = deadline {
            state.looks.remove(&(deadline, key.clone()));
        }
        state.look_at(&key, at);
        actions.wake();
    }
}

impl Watch {
    fn pause(&mut self) -> Millis {
        let pause = Millis(RETRY_FIRST.0 << self.failures.min(10)).min(RETRY_MAX);
        self.failures += 1;
        pause
    }

    fn acknowledged(&mut self, sent: Sent) {
        self.failures = 0;
        if sent.changes.is_empty() {
            self.phase = Phase::Following;
        } else if let Phase::Syncing { n_done, .. } = &mut self.phase {
            *n_done += 1;
        }
        for (service, has_instance) in sent.changes {
            if has_instance {
                self.known.insert(service);
            } else {
                self.known.remove(&service);
            }
        }
    }

    /// What is to be sent now, if anything. Where more match than are told, nobody can say what has gone.
    fn next(
        &mut self,
        pattern: &SmolStr,
        there: &BTreeSet<ServiceKey>,
        is_over: bool,
    ) -> Option<(FuzzyMessage, Vec<(ServiceKey, bool)>)> {
        let mut added = there.difference(&self.known).cloned().peekable();
        if let Phase::Syncing {
            is_initial,
            n_batches,
            n_done,
        } = &mut self.phase
        {
            if added.peek().is_some() {
                let mut added: Vec<_> = added.collect();
                *n_batches = *n_done + added.len().div_ceil(BATCH);
                added.truncate(BATCH);
                let changes = added.iter().map(|service| (service.clone(), true)).collect();
                let message = FuzzyMessage::Sync {
                    pattern: pattern.clone(),
                    is_initial: *is_initial,
                    added,
                    n_batches: *n_batches,
                    batch: *n_done + 1,
                };
                return Some((message, changes));
            }
            if *is_initial {
                let pattern = pattern.clone();
                return Some((FuzzyMessage::Finished { pattern }, Vec::new()));
            }
            self.phase = Phase::Following;
        }
        let gone = self.known.difference(there).filter(|_| !is_over);
        let (service, has_instance) = added
            .map(|service| (service, true))
            .chain(gone.map(|service| (service.clone(), false)))
            .next()?;
        let changes = vec![(service.clone(), has_instance)];
        let message = FuzzyMessage::Changed {
            service,
            has_instance,
        };
        Some((message, changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_an_end_stands_for_anything() {
        for (pattern, text, is_match) in [
            ("*", "abc", true),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("ab*", "abc", true),
            ("*bc", "abc", true),
            ("*b*", "abc", true),
            ("*x*", "abc", false),
            ("a*c", "abc", false),
            ("**", "abc", true),
            ("a*b*", "a*bc", false),
        ] {
            assert_eq!(fits(pattern, text), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_has_three_parts() {
        let read = Pattern::read(">>G>>s*").unwrap();
        assert!(read.matches(&ServiceKey::new("public", "G", "svc")));
        assert!(!read.matches(&ServiceKey::new("dev", "G", "svc")));
        for bad in ["", "a>>b", "a>>b>>c>>d", "a>>>>c", "a>>b>>"] {
            assert_eq!(Pattern::read(bad), None, "{bad}");
        }
    }
}
