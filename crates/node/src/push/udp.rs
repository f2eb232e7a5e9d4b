//! Subscribers of the 1.x protocol: they poll a list, name a UDP port with it, and are pushed to there.
//!
//! They share the queue, the merge window and the views of all other subscribers of a service. What differs is theirs:
//! a subscription lasts as long as its client polls, and a push is repeated once instead of being tried for ever. A
//! newer list takes the place of one that is not acknowledged yet, so for each address and service at most one waits.
//! Facts about the protocol are from `spec/udp-push.md` as recorded of Nacos 2.5.1.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rollcall_core::{Micros, Millis, Now, ServiceKey, ServiceView};
use smol_str::SmolStr;

use super::costs::PushWay;
use super::{FIRST_PUSH_AFTER, Pusher, RETRY_FIRST, RETRY_MAX, Topic, TopicGuard, is_empty};
use crate::action::{Action, Actions, UdpPush};
use crate::config::NodeConfig;
use crate::metrics::Counters;
use crate::request::UdpTarget;

/// Least time after the last poll when a subscriber ends. Nacos takes 30 to 35 s.
const LIFE: Millis = Millis(30_000);
/// Wait for an acknowledgement, after the first sending and again after the repetition.
const ACK_WAIT: Millis = Millis(10_000);
/// Stamps within one millisecond.
const STAMPS_PER_MS: u64 = 1_000_000;

/// A subscription of one address to one service.
#[derive(Debug)]
pub(super) struct UdpSubscriber {
    clusters: SmolStr,
    /// Version of the list it was sent; `None` when none could be sent.
    version: Option<u64>,
    /// It gets the list once more although it was answered with it.
    is_first_due: bool,
    unacked: Option<Unacked>,
    /// When the first of the changes was made that it could not be sent.
    behind_since: Option<Micros>,
    failures: u32,
    not_before: Millis,
}

#[derive(Debug)]
struct Unacked {
    push: UdpPush,
    /// When the first of the changes was made that it tells of.
    changed: Option<Micros>,
    is_repeated: bool,
}

/// All addresses that are pushed to over UDP, and what each still has to acknowledge.
#[derive(Debug)]
pub(super) struct UdpTable {
    targets: Mutex<Targets>,
    waits: Mutex<Waits>,
    limit: usize,
}

#[derive(Debug)]
struct Targets {
    table: HashMap<UdpTarget, Target, FixedState>,
    /// When each target is to be looked at, one entry for each.
    looks: BTreeSet<(Millis, UdpTarget)>,
    n_subscriptions: usize,
}

#[derive(Debug)]
struct Target {
    services: BTreeSet<ServiceKey>,
    last_poll: Millis,
    /// What the client calls itself.
    agent: SmolStr,
}

/// What a poll that names a port asks for.
#[derive(Debug)]
pub(crate) struct Poll<'a> {
    pub(crate) service: &'a ServiceKey,
    pub(crate) clusters: SmolStr,
    /// What the client calls itself.
    pub(crate) agent: SmolStr,
}

/// Pushes that are not acknowledged, by deadline and by what an acknowledgement names.
#[derive(Debug)]
struct Waits {
    deadlines: BTreeSet<(Millis, UdpTarget, u64)>,
    pushes: HashMap<(UdpTarget, u64), (ServiceKey, Millis), FixedState>,
}

impl Waits {
    fn add(&mut self, deadline: Millis, push: &UdpPush) {
        self.deadlines.insert((deadline, push.target.clone(), push.stamp));
        let key = (push.target.clone(), push.stamp);
        self.pushes.insert(key, (push.service.clone(), deadline));
    }

    fn remove(&mut self, target: &UdpTarget, stamp: u64) -> Option<ServiceKey> {
        let key = (target.clone(), stamp);
        let (service, deadline) = self.pushes.remove(&key)?;
        self.deadlines.remove(&(deadline, key.0, stamp));
        Some(service)
    }

    fn pop_due(&mut self, now: Millis) -> Option<(UdpTarget, u64, ServiceKey)> {
        let (deadline, target, stamp) = self.deadlines.first()?.clone();
        if deadline > now {
            return None;
        }
        let service = self.remove(&target, stamp)?;
        Some((target, stamp, service))
    }
}

impl UdpTable {
    pub(super) fn new(config: &NodeConfig) -> Self {
        let hasher = || FixedState::with_seed(config.seed);
        UdpTable {
            targets: Mutex::new(Targets {
                table: HashMap::with_hasher(hasher()),
                looks: BTreeSet::new(),
                n_subscriptions: 0,
            }),
            waits: Mutex::new(Waits {
                deadlines: BTreeSet::new(),
                pushes: HashMap::with_hasher(hasher()),
            }),
            limit: config.udp_subscriptions,
        }
    }

    pub(super) fn next_due(&self) -> Option<Millis> {
        let wait = self.waits.lock().deadlines.first().map(|wait| wait.0);
        let look = self.targets.lock().looks.first().map(|look| look.0);
        wait.into_iter().chain(look).min()
    }
}

impl Targets {
    /// Notes a poll; false when there are too many subscriptions for this one.
    fn polled(&mut self, target: &UdpTarget, poll: &Poll<'_>, limit: usize, now: Millis) -> bool {
        let service = poll.service;
        let is_full = self.n_subscriptions >= limit;
        match self.table.get_mut(target) {
            Some(entry) => {
                entry.last_poll = now;
                if entry.agent != poll.agent {
                    entry.agent = poll.agent.clone();
                }
                if entry.services.contains(service) {
                    return true;
                }
                if !is_full {
                    entry.services.insert(service.clone());
                    self.n_subscriptions += 1;
                }
            }
            None if is_full => {}
            None => {
                let services = BTreeSet::from([service.clone()]);
                let entry = Target {
                    services,
                    last_poll: now,
                    agent: poll.agent.clone(),
                };
                self.table.insert(target.clone(), entry);
                self.looks.insert((now + LIFE, target.clone()));
                self.n_subscriptions += 1;
            }
        }
        !is_full
    }

    /// Takes out one target that has not polled for `life`.
    fn expired(&mut self, life: Millis, now: Millis) -> Option<(UdpTarget, BTreeSet<ServiceKey>)> {
        while self.looks.first().is_some_and(|look| look.0 <= now) {
            let (_, target) = self.looks.pop_first()?;
            let end = self.table.get(&target).map(|entry| entry.last_poll + life);
            match end {
                Some(end) if end > now => {
                    self.looks.insert((end, target));
                }
                _ => {
                    let entry = self.table.remove(&target)?;
                    self.n_subscriptions -= entry.services.len();
                    return Some((target, entry.services));
                }
            }
        }
        None
    }
}

/// What a fan-out sends to each.
pub(super) struct CurrentList<'a> {
    pub(super) service: &'a ServiceKey,
    pub(super) view: &'a Arc<ServiceView>,
    pub(super) last_ref_time: Millis,
    /// When the first change was made since the last fan-out.
    pub(super) changed: Option<Micros>,
    pub(super) cache: Millis,
}

// === impl Pusher: subscribers over UDP ===

impl Pusher {
    /// The number of addresses pushed to, and of their subscriptions.
    pub(crate) fn n_udp(&self) -> (usize, usize) {
        let targets = self.udp.targets.lock();
        (targets.table.len(), targets.n_subscriptions)
    }

    /// The number of pushes that are not acknowledged yet.
    pub(crate) fn n_udp_unacked(&self) -> usize {
        self.udp.waits.lock().pushes.len()
    }

    /// The addresses that are subscribed to a service over UDP, sorted, each with its clusters text.
    pub(crate) fn udp_subscribers(&self, service: &ServiceKey) -> Vec<(UdpTarget, SmolStr)> {
        let Some(topic) = self.topic(service) else {
            return Vec::new();
        };
        let topic = topic.lock();
        let all = topic.udp.iter();
        all.map(|(target, s)| (target.clone(), s.clusters.clone()))
            .collect()
    }

    /// The addresses that are pushed to over UDP, sorted.
    pub(crate) fn udp_targets(&self) -> Vec<UdpTarget> {
        let mut found: Vec<_> = self.udp.targets.lock().table.keys().cloned().collect();
        found.sort_unstable();
        found
    }

    /// What an address that is pushed to calls itself, when it polled last, and the services it is subscribed to.
    pub(crate) fn udp_subscriptions(&self, target: &UdpTarget) -> Option<(SmolStr, Millis, Vec<ServiceKey>)> {
        let targets = self.udp.targets.lock();
        let entry = targets.table.get(target)?;
        let services = entry.services.iter().cloned().collect();
        Some((entry.agent.clone(), entry.last_poll, services))
    }

    /// A client has polled a list and named its port: starts its subscription or lets it live longer. Another clusters
    /// text replaces the former one, and sends nothing: the poll has been answered with the new list.
    pub(crate) fn udp_polled(
        &self,
        target: &UdpTarget,
        poll: Poll<'_>,
        counters: &Counters,
        now: Now,
        actions: &mut Actions,
    ) {
        // Held until the topic has it too, so that an expiry cannot come in between.
        let mut targets = self.udp.targets.lock();
        if !targets.polled(target, &poll, self.udp.limit, now.mono) {
            Counters::add(&counters.udp_subscriptions_refused);
            return;
        }
        let Poll {
            service, clusters, ..
        } = poll;
        let mut topic = self.topic_or_new(service);
        if let Some(subscriber) = topic.udp.get_mut(target) {
            if subscriber.clusters != clusters {
                subscriber.clusters = clusters;
                if let Some(unacked) = subscriber.unacked.take() {
                    self.udp.waits.lock().remove(target, unacked.push.stamp);
                }
            }
            return;
        }
        let subscriber = UdpSubscriber {
            clusters,
            version: None,
            is_first_due: true,
            unacked: None,
            behind_since: None,
            failures: 0,
            not_before: Millis(0),
        };
        topic.udp.insert(target.clone(), subscriber);
        self.schedule(service, &mut topic, now.mono + FIRST_PUSH_AFTER);
        actions.wake();
    }

    /// Pushes a list to those who do not have it, from one of them on, while there is room. Returns with whom to go on, and
    /// when to come back for those that failed just now.
    #[expect(
        clippy::too_many_arguments,
        reason = "to whom, what, when, and where to note it"
    )]
    pub(super) fn fan_out_udp(
        &self,
        topic: &mut Topic,
        from: Option<UdpTarget>,
        list: &CurrentList<'_>,
        counters: &Counters,
        now: Now,
        actions: &mut Actions,
        room: &mut usize,
    ) -> (Option<UdpTarget>, Option<Millis>) {
        let version = list.view.version();
        let mut retry_at = None::<Millis>;
        let mut stamp = None;
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        for (target, subscriber) in topic.udp.range_mut((from, Bound::Unbounded)) {
            let has_version = subscriber.version == Some(version);
            subscriber.behind_since = match has_version {
                true => None,
                false => subscriber.behind_since.or(list.changed),
            };
            if has_version && !subscriber.is_first_due {
                continue;
            }
            if now.mono < subscriber.not_before {
                let at = subscriber.not_before;
                retry_at = Some(retry_at.map_or(at, |other| other.min(at)));
                continue;
            }
            if *room == 0 {
                return (Some(target.clone()), retry_at);
            }
            // One stamp for all: who has the same clusters text gets the same bytes.
            let stamp = *stamp.get_or_insert_with(|| {
                now.mono.0.saturating_mul(STAMPS_PER_MS) + self.next_request_id() % STAMPS_PER_MS
            });
            let changed = subscriber.behind_since.take();
            let push = UdpPush {
                target: target.clone(),
                stamp,
                service: list.service.clone(),
                clusters: subscriber.clusters.clone(),
                view: list.view.clone(),
                last_ref_time: list.last_ref_time,
                changed,
                cache: list.cache,
            };
            let mut waits = self.udp.waits.lock();
            if let Some(former) = subscriber.unacked.take() {
                waits.remove(target, former.push.stamp);
            }
            waits.add(now.mono + ACK_WAIT, &push);
            subscriber.version = Some(version);
            subscriber.is_first_due = false;
            subscriber.unacked = Some(Unacked {
                push: UdpPush {
                    changed: None,
                    ..push.clone()
                },
                changed,
                is_repeated: false,
            });
            actions.push(Action::PushUdp(push));
            Counters::add(&counters.udp_pushes_sent);
            *room -= 1;
        }
        (None, retry_at)
    }

    /// An acknowledgement came from `target`. What is not waited for is ignored.
    pub(crate) fn udp_acked(&self, target: &UdpTarget, stamp: u64, counters: &Counters, now: Now) {
        if let Some((_, mut topic, unacked)) = self.udp_ended(target, stamp) {
            if let Some(subscriber) = topic.udp.get_mut(target) {
                subscriber.failures = 0;
            }
            Counters::add(&counters.udp_pushes_acked);
            counters.push_costs.acked(PushWay::Udp, unacked.changed, now);
            if is_empty(&unacked.push.view, &unacked.push.clusters) {
                Counters::add(&counters.pushes_empty);
            }
        }
    }

    /// A push could not be sent: it is tried again after a pause, with the list of that moment.
    pub(crate) fn udp_failed(
        &self,
        target: &UdpTarget,
        stamp: u64,
        counters: &Counters,
        now: Now,
        actions: &mut Actions,
    ) {
        let Some((service, mut topic, unacked)) = self.udp_ended(target, stamp) else {
            return;
        };
        let Some(subscriber) = topic.udp.get_mut(target) else {
            return;
        };
        let pause = RETRY_FIRST.0 << subscriber.failures.min(10);
        subscriber.failures += 1;
        subscriber.version = None;
        subscriber.behind_since = unacked.changed.or(subscriber.behind_since);
        subscriber.not_before = now.mono + Millis(pause).min(RETRY_MAX);
        let at = subscriber.not_before;
        self.schedule(&service, &mut topic, at);
        Counters::add(&counters.udp_pushes_failed);
        actions.wake();
    }

    /// Ends the wait for an acknowledgement and returns the topic it is for; nothing when there is no such wait.
    fn udp_ended(&self, target: &UdpTarget, stamp: u64) -> Option<(ServiceKey, TopicGuard, Unacked)> {
        let service = self.udp.waits.lock().remove(target, stamp)?;
        let mut topic = self.topic(&service)?.lock_arc();
        let subscriber = topic.udp.get_mut(target)?;
        let unacked = subscriber
            .unacked
            .take_if(|unacked| unacked.push.stamp == stamp)?;
        Some((service, topic, unacked))
    }

    /// Repeats or gives up pushes that were not acknowledged, and ends subscribers that have stopped to poll: those
    /// silent for [`LIFE`], or as long as they may use a list if that is longer.
    pub(crate) fn tick_udp(&self, push_cache: Millis, counters: &Counters, now: Now, actions: &mut Actions) {
        loop {
            let due = self.udp.waits.lock().pop_due(now.mono);
            let Some((target, stamp, service)) = due else {
                break;
            };
            let Some(topic) = self.topic(&service) else {
                continue;
            };
            let mut topic = topic.lock();
            let Some(subscriber) = topic.udp.get_mut(&target) else {
                continue;
            };
            let Some(mut unacked) = subscriber.unacked.take_if(|u| u.push.stamp == stamp) else {
                continue;
            };
            if unacked.is_repeated {
                Counters::add(&counters.udp_pushes_timed_out);
                continue;
            }
            unacked.is_repeated = true;
            self.udp.waits.lock().add(now.mono + ACK_WAIT, &unacked.push);
            actions.push(Action::PushUdp(unacked.push.clone()));
            subscriber.unacked = Some(unacked);
            Counters::add(&counters.udp_pushes_repeated);
        }
        let mut targets = self.udp.targets.lock();
        while let Some((target, services)) = targets.expired(LIFE.max(push_cache), now.mono) {
            for service in services {
                if let Some(topic) = self.topic(&service) {
                    let ended = topic.lock().udp.remove(&target);
                    if let Some(unacked) = ended.and_then(|subscriber| subscriber.unacked) {
                        self.udp.waits.lock().remove(&target, unacked.push.stamp);
                    }
                }
                self.drop_if_empty(&service);
            }
        }
    }
}

/// The subscribers of a topic over UDP, by address.
pub(super) type UdpSubscribers = BTreeMap<UdpTarget, UdpSubscriber>;
