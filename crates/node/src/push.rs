//! When a subscriber gets a service's list.
//!
//! A change of a quiet service is pushed at once; while changes keep coming they are merged for a window that grows
//! with their number in the last second, the size of the list and the number of subscribers. Per subscription at most one push is unacknowledged: what
//! happens meanwhile is sent as one list when the acknowledgement is in. So nothing is queued but the newest list, and
//! a subscriber that does not answer costs the others nothing.

pub(crate) mod costs;
pub(crate) mod udp;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use foldhash::fast::FixedState;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use rollcall_core::{Micros, Millis, Now, Registry, Selection, ServiceKey, ServiceView};
use rollcall_distro::{Fault, Faults};
use smol_str::SmolStr;

use crate::action::{Action, Actions, Push};
use crate::config::NodeConfig;
use crate::metrics::Counters;
use crate::push::udp::{CurrentList, UdpSubscribers, UdpTable};
use crate::request::{ConnectionId, UdpTarget};

/// Between the answer to a first subscription and the push that follows it, so that the answer goes ahead.
const FIRST_PUSH_AFTER: Millis = Millis(10);
/// Shortest merge window: what follows a change of a quiet service waits this long.
const WINDOW_MIN: Millis = Millis(5);
/// Changes of a service within [`RECENT`] that do not lengthen its window; each further one does by a millisecond. So
/// 50 changes a second are merged for 30 ms, and 500 for 480 ms: a service that is busy all the time is pushed a few
/// times a second, however many changes there are.
const FREE_CHANGES: u64 = 20;
/// Time over which changes are counted.
const RECENT: Millis = Millis(1_000);
/// List bytes that may be pushed in a millisecond before the window grows: what one core serialises and sends.
const BYTES_PER_MS: u64 = 200_000;
/// Bytes of one instance in a list, roughly.
const BYTES_PER_HOST: u64 = 350;
/// Pause before a failed push is tried again; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Millis = Millis(1_000);
/// Pushes made in one tick, so that a service with thousands of subscribers is a little work many times.
const PUSHES_AT_A_TIME: usize = 512;
/// Longest pause before a failed push is tried again.
const RETRY_MAX: Millis = Millis(30_000);

/// Notes a push with its connection before it is sent; false when the connection is gone.
pub(crate) type Expect<'a> = dyn Fn(ConnectionId, u64, &ServiceKey, &Option<SmolStr>) -> bool + 'a;

/// How a push ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Acked,
    Refused,
    TimedOut,
}

#[derive(Debug)]
struct Subscriber {
    connection: ConnectionId,
    clusters: Option<SmolStr>,
    /// Version of the list it has or is being sent; `None` when the last push failed.
    version: Option<u64>,
    outstanding: Option<Outstanding>,
    /// When the first of the changes was made that it has not been sent and that a fan-out passed it over with.
    behind_since: Option<Micros>,
    /// It gets the list once more although its version may not have moved.
    is_first_due: bool,
    failures: u32,
    not_before: Millis,
}

/// A push that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    request_id: u64,
    sent: Sent,
}

/// What is remembered of a push until it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// When the first of the changes was made that it tells of.
    pub(crate) changed: Option<Micros>,
    /// Its list has no instance.
    pub(crate) is_empty: bool,
}

/// A fan-out that is not done.
#[derive(Debug, Default)]
struct Cut {
    /// The next subscriber of a connection.
    at: usize,
    /// The next one over UDP; `None`: the first.
    udp_at: Option<UdpTarget>,
    /// Pushes made so far.
    n_sent: u64,
}

/// The subscribers of one service.
#[derive(Debug, Default)]
struct Topic {
    subscribers: Vec<Subscriber>,
    udp: UdpSubscribers,
    last_pushed: Option<Millis>,
    /// When the first change was made since the last fan-out.
    changed: Option<Micros>,
    /// Where a fan-out goes on that has made as many pushes as one tick may.
    cut: Option<Cut>,
    window: Millis,
    recent: Recent,
    /// When it is due, if it is in the queue.
    due: Option<(Millis, u64)>,
    /// It has left the table; whoever still holds it must look it up again.
    is_gone: bool,
}

type TopicGuard = ArcMutexGuard<RawMutex, Topic>;

/// How many changes there were within [`RECENT`].
#[derive(Debug, Default)]
struct Recent {
    /// The span that changes are counted in, by its number.
    span: u64,
    in_span: u64,
    in_former: u64,
}

impl Recent {
    fn add(&mut self, n_changes: u64, now: Millis) {
        self.turn(now);
        self.in_span += n_changes;
    }

    /// The changes of the current span, and of the former one the share that is not older than [`RECENT`].
    fn count(&mut self, now: Millis) -> u64 {
        self.turn(now);
        self.in_span + self.in_former * (RECENT.0 - now.0 % RECENT.0) / RECENT.0
    }

    fn turn(&mut self, now: Millis) {
        let span = now.0 / RECENT.0;
        if span > self.span {
            let is_next = span == self.span + 1;
            self.in_former = if is_next { self.in_span } else { 0 };
            self.in_span = 0;
            self.span = span;
        }
    }
}

/// All subscriptions of a node's connections, and the queue of services to push.
#[derive(Debug)]
pub(crate) struct Pusher {
    topics: DashMap<ServiceKey, Arc<Mutex<Topic>>, FixedState>,
    queue: Mutex<BTreeMap<(Millis, u64), ServiceKey>>,
    /// Deadlines of unacknowledged pushes, oldest first: all wait equally long.
    timeouts: Mutex<VecDeque<(Millis, ConnectionId, u64)>>,
    next_id: AtomicU64,
    next_turn: AtomicU64,
    timeout: Millis,
    window_max: Millis,
    delay: Option<Millis>,
    faults: Faults,
    udp: UdpTable,
}

impl Pusher {
    pub(crate) fn new(config: &NodeConfig) -> Self {
        Pusher {
            topics: DashMap::with_hasher(FixedState::with_seed(config.seed)),
            queue: Mutex::default(),
            timeouts: Mutex::default(),
            next_id: AtomicU64::new(1),
            next_turn: AtomicU64::new(0),
            timeout: config.push_timeout,
            window_max: config.push_window_max,
            delay: config.push_delay,
            faults: config.faults,
            udp: UdpTable::new(config),
        }
    }

    /// An id for a message that a client answers: unique in this process.
    pub(crate) fn next_request_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn n_subscriptions(&self) -> usize {
        self.topics
            .iter()
            .map(|t| t.value().lock().subscribers.len())
            .sum()
    }

    /// The connections that subscribe to a service for which `is_meant` holds, sorted by service and connection.
    pub(crate) fn subscribers(
        &self,
        is_meant: &dyn Fn(&ServiceKey) -> bool,
    ) -> Vec<(ServiceKey, ConnectionId)> {
        let topics = self.topics.iter().filter(|topic| is_meant(topic.key()));
        let mut found = Vec::new();
        for topic in topics {
            let subscribers = &topic.value().lock().subscribers;
            found.extend(subscribers.iter().map(|s| (topic.key().clone(), s.connection)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// True while the connection subscribes to the service.
    pub(crate) fn has(&self, connection: ConnectionId, service: &ServiceKey) -> bool {
        self.topic(service).is_some_and(|topic| {
            topic
                .lock()
                .subscribers
                .iter()
                .any(|s| s.connection == connection)
        })
    }

    pub(crate) fn n_waiting(&self) -> usize {
        self.queue.lock().len()
    }

    pub(crate) fn n_unacked(&self) -> usize {
        let n_of = |topic: &Topic| {
            topic
                .subscribers
                .iter()
                .filter(|s| s.outstanding.is_some())
                .count()
        };
        self.topics.iter().map(|t| n_of(&t.value().lock())).sum()
    }

    /// Adds a subscription, or keeps the one there is. The first of a connection to a service is followed by one push.
    pub(crate) fn subscribe(
        &self,
        connection: ConnectionId,
        service: &ServiceKey,
        clusters: Option<SmolStr>,
        now: Now,
        actions: &mut Actions,
    ) {
        let mut topic = self.topic_or_new(service);
        let is_first = !topic.subscribers.iter().any(|s| s.connection == connection);
        let is_known = topic
            .subscribers
            .iter()
            .any(|s| s.connection == connection && s.clusters == clusters);
        if is_known {
            return;
        }
        topic.subscribers.push(Subscriber {
            connection,
            clusters,
            version: None,
            outstanding: None,
            behind_since: None,
            is_first_due: is_first,
            failures: 0,
            not_before: Millis(0),
        });
        if is_first {
            self.schedule(service, &mut topic, now.mono + FIRST_PUSH_AFTER);
            actions.wake();
        }
    }

    /// Notes the version that the answer to a subscription carried.
    pub(crate) fn answered(
        &self,
        connection: ConnectionId,
        service: &ServiceKey,
        clusters: Option<&SmolStr>,
        version: u64,
    ) {
        if let Some(topic) = self.topic(service) {
            for subscriber in &mut topic.lock().subscribers {
                let is_it = subscriber.connection == connection && subscriber.clusters.as_ref() == clusters;
                if is_it && subscriber.version.is_none() && subscriber.outstanding.is_none() {
                    subscriber.version = Some(version);
                }
            }
        }
    }

    /// Ends the subscription with this clusters text.
    pub(crate) fn unsubscribe(
        &self,
        connection: ConnectionId,
        service: &ServiceKey,
        clusters: Option<&SmolStr>,
    ) {
        self.remove(service, |s| {
            s.connection == connection && s.clusters.as_ref() == clusters
        });
    }

    /// Ends every subscription of a connection to a service.
    pub(crate) fn forget(&self, connection: ConnectionId, service: &ServiceKey) {
        self.remove(service, |s| s.connection == connection);
    }

    fn remove(&self, service: &ServiceKey, is_it: impl Fn(&Subscriber) -> bool) {
        if let Some(topic) = self.topic(service) {
            topic.lock().subscribers.retain(|s| !is_it(s));
        }
        self.drop_if_empty(service);
    }

    fn drop_if_empty(&self, service: &ServiceKey) {
        self.topics.remove_if(service, |_, topic| {
            let mut topic = topic.lock();
            topic.is_gone = topic.subscribers.is_empty() && topic.udp.is_empty();
            topic.is_gone
        });
    }

    fn topic_or_new(&self, service: &ServiceKey) -> TopicGuard {
        loop {
            let topic = self.topics.entry(service.clone()).or_default().value().clone();
            let topic = topic.lock_arc();
            if !topic.is_gone {
                return topic;
            }
        }
    }

    fn topic(&self, service: &ServiceKey) -> Option<Arc<Mutex<Topic>>> {
        self.topics.get(service).map(|entry| entry.value().clone())
    }

    /// The list of a service changed, this often at once.
    pub(crate) fn changed(&self, service: &ServiceKey, n_changes: usize, now: Now, actions: &mut Actions) {
        let Some(topic) = self.topic(service) else { return };
        if self.faults.has(Fault::LostPush) {
            return;
        }
        let mut topic = topic.lock();
        topic.recent.add(n_changes as u64, now.mono);
        topic.changed.get_or_insert(now.fine);
        let at = topic.next_slot(now.mono + self.delay.unwrap_or_default());
        self.schedule(service, &mut topic, at);
        actions.wake();
    }

    fn schedule(&self, service: &ServiceKey, topic: &mut Topic, at: Millis) {
        if topic.due.is_some_and(|due| due.0 <= at) {
            return;
        }
        let mut queue = self.queue.lock();
        if let Some(later) = topic.due {
            queue.remove(&later);
        }
        let due = (at, self.next_turn.fetch_add(1, Ordering::Relaxed));
        queue.insert(due, service.clone());
        topic.due = Some(due);
    }

    /// When the next push or time-out is due.
    pub(crate) fn next_due(&self) -> Option<Millis> {
        let push = self.queue.lock().keys().next().map(|due| due.0);
        let timeout = self.timeouts.lock().front().map(|t| t.0);
        [push, timeout, self.udp.next_due()].into_iter().flatten().min()
    }

    /// Unacknowledged pushes whose time is over.
    pub(crate) fn timed_out(&self, now: Millis) -> Vec<(ConnectionId, u64)> {
        let mut timeouts = self.timeouts.lock();
        let n_over = timeouts.iter().take_while(|t| t.0 <= now).count();
        timeouts
            .drain(..n_over)
            .map(|(_, connection, id)| (connection, id))
            .collect()
    }

    /// Pushes services that are due, some hundreds of pushes at most; [`Pusher::next_due`] is not after `now` while some are
    /// left. `sent` notes each push with its connection, or says that it is gone.
    pub(crate) fn push_due(
        &self,
        registry: &Registry,
        cache: Millis,
        counters: &Counters,
        now: Now,
        actions: &mut Actions,
        sent: &Expect<'_>,
    ) {
        let mut room = PUSHES_AT_A_TIME;
        while room > 0 {
            let service = {
                let mut queue = self.queue.lock();
                match queue.first_key_value() {
                    Some((due, _)) if due.0 <= now.mono => queue.pop_first().map(|(_, service)| service),
                    _ => None,
                }
            };
            let Some(service) = service else { return };
            if let Some(topic) = self.topic(&service) {
                self.fan_out(
                    &service,
                    &mut topic.lock(),
                    registry,
                    cache,
                    counters,
                    now,
                    actions,
                    sent,
                    &mut room,
                );
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn fan_out(
        &self,
        service: &ServiceKey,
        topic: &mut Topic,
        registry: &Registry,
        cache: Millis,
        counters: &Counters,
        now: Now,
        actions: &mut Actions,
        sent: &Expect<'_>,
        room: &mut usize,
    ) {
        topic.due = None;
        let changed = topic.changed.take();
        let (view, last_ref_time) = registry.read(service, now.wall);
        let version = view.version();
        let room_before = *room;
        let mut retry_at: Option<Millis> = None;
        let is_continued = topic.cut.is_some();
        let mut cut = topic.cut.take().unwrap_or_default();
        let mut is_cut = false;
        for subscriber in topic.subscribers.iter_mut().skip(cut.at) {
            if *room == 0 {
                is_cut = true;
                break;
            }
            cut.at += 1;
            let has_version = subscriber.version == Some(version);
            subscriber.behind_since = match has_version {
                true => None,
                false => subscriber.behind_since.or(changed),
            };
            let is_current = has_version && !subscriber.is_first_due;
            if subscriber.outstanding.is_some() || is_current {
                continue;
            }
            if now.mono < subscriber.not_before {
                retry_at = Some(retry_at.map_or(subscriber.not_before, |at| at.min(subscriber.not_before)));
                continue;
            }
            let request_id = self.next_request_id();
            let connection = subscriber.connection;
            if !sent(connection, request_id, service, &subscriber.clusters) {
                continue;
            }
            let changed = subscriber.behind_since.take();
            let is_empty = is_empty(&view, subscriber.clusters.as_deref().unwrap_or_default());
            subscriber.outstanding = Some(Outstanding {
                request_id,
                sent: Sent { changed, is_empty },
            });
            subscriber.version = Some(version);
            subscriber.is_first_due = false;
            self.timeouts
                .lock()
                .push_back((now.mono + self.timeout, connection, request_id));
            let clusters = subscriber.clusters.clone();
            let (service, view) = (service.clone(), view.clone());
            actions.push(Action::Push(Push {
                connection,
                request_id,
                service,
                clusters,
                view,
                last_ref_time,
                changed,
                cache,
            }));
            Counters::add(&counters.pushes_sent);
            *room -= 1;
        }
        let list = CurrentList {
            service,
            view: &view,
            last_ref_time,
            changed,
            cache,
        };
        if !is_cut {
            let retry_udp_at;
            (cut.udp_at, retry_udp_at) =
                self.fan_out_udp(topic, cut.udp_at.take(), &list, counters, now, actions, room);
            is_cut = cut.udp_at.is_some();
            retry_at = retry_at.into_iter().chain(retry_udp_at).min();
        }
        cut.n_sent += (room_before - *room) as u64;
        if cut.n_sent > 0 {
            let bytes = cut.n_sent * (view.len() as u64 + 1) * BYTES_PER_HOST;
            topic.window = self.window(bytes, topic.recent.count(now.mono));
            topic.last_pushed = Some(now.mono);
        }
        if is_cut {
            topic.changed = changed.or(topic.changed);
            topic.cut = Some(cut);
            retry_at = Some(now.mono);
        } else if is_continued {
            // Those who came first may lack what has changed since.
            let slot = topic.next_slot(now.mono);
            retry_at = Some(retry_at.map_or(slot, |at| at.min(slot)));
        }
        if let Some(at) = retry_at {
            self.schedule(service, topic, at);
        }
    }

    /// How long what comes after a push is merged: the fixed time if there is one, else by what the push cost and how
    /// busy the service is.
    fn window(&self, bytes: u64, n_recent: u64) -> Millis {
        let adaptive = || {
            Millis(bytes / BYTES_PER_MS)
                .max(Millis(n_recent.saturating_sub(FREE_CHANGES)))
                .max(WINDOW_MIN)
                .min(self.window_max)
        };
        self.delay.unwrap_or_else(adaptive)
    }

    /// A push ended: what has changed meanwhile, or failed, goes out in its turn. Returns what was pushed; nothing when
    /// nobody waits for it any more.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn ended(
        &self,
        registry: &Registry,
        connection: ConnectionId,
        request_id: u64,
        service: &ServiceKey,
        clusters: &Option<SmolStr>,
        outcome: Outcome,
        now: Now,
        actions: &mut Actions,
    ) -> Option<Sent> {
        let topic = self.topic(service)?;
        let mut topic = topic.lock();
        let slot = topic.next_slot(now.mono);
        let version = registry.service(service).map_or(0, |s| s.shown().version());
        let is_it = |s: &&mut Subscriber| {
            let is_awaited = s.outstanding.is_some_and(|o| o.request_id == request_id);
            is_awaited && s.connection == connection && s.clusters == *clusters
        };
        let subscriber = topic.subscribers.iter_mut().find(is_it)?;
        let sent = subscriber.outstanding.take()?.sent;
        let at = if outcome == Outcome::Acked {
            subscriber.failures = 0;
            (subscriber.version != Some(version)).then_some(slot)
        } else {
            let pause = RETRY_FIRST.0 << subscriber.failures.min(10);
            subscriber.failures += 1;
            subscriber.version = None;
            subscriber.behind_since = sent.changed.or(subscriber.behind_since);
            subscriber.not_before = now.mono + Millis(pause).min(RETRY_MAX);
            Some(subscriber.not_before)
        };
        if let Some(at) = at {
            self.schedule(service, &mut topic, at);
            actions.wake();
        }
        Some(sent)
    }
}

/// True when a list has no instance for a subscriber with this clusters text.
fn is_empty(view: &ServiceView, clusters: &str) -> bool {
    let selection = Selection {
        clusters,
        healthy_only: false,
    };
    !view.instances().any(|instance| selection.takes(instance))
}

impl Topic {
    /// The first moment from `at` on at which this service may be pushed.
    fn next_slot(&self, at: Millis) -> Millis {
        self.last_pushed.map_or(at, |last| at.max(last + self.window))
    }
}
