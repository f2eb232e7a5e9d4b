//! The failure detector at work: engines in virtual time that exchange probes and nothing else.

#![allow(clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::{MemberId, Millis, Now, Registry};
use rollcall_distro::codec::{FORMAT, encode_probe};
use rollcall_distro::message::Probe;
use rollcall_distro::{Death, Effect, Effects, Engine, MemberState, ProbeResult, Report};
use smol_str::SmolStr;

use common::config;

const WALL: u64 = 1_700_000_000_000;
const TIMEOUT: u64 = 900;

/// What a member does with what comes for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Alive,
    /// Its address refuses connections.
    Gone,
    /// It takes connections and answers nothing, and sends nothing.
    Hung,
}

enum Event {
    Tick(usize),
    Probe(usize, usize, Probe, u64),
    Done(usize, usize, ProbeResult),
    Life(usize, Life),
}

/// A cluster in which only probes pass.
struct Cluster {
    engines: Vec<Engine>,
    ids: Vec<MemberId>,
    lives: Vec<Life>,
    /// Messages from the first to the second are lost.
    cuts: Vec<(usize, usize)>,
    /// One message in so many is lost; 0 for none.
    loss: u64,
    random: u64,
    now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    ticks: Vec<u64>,
    /// Deaths and returns as they were reported: when, by whom, of whom.
    deaths: Vec<(u64, usize, usize, Death)>,
    backs: Vec<(u64, usize, usize)>,
    n_messages: u64,
    n_bytes: u64,
}

impl Cluster {
    fn new(n: usize, newest_format: impl Fn(usize) -> u8) -> Self {
        let addresses: Vec<SmolStr> = (0..n)
            .map(|n| SmolStr::from(format!("10.8.0.{n:03}:8848")))
            .collect();
        let engine = |at: usize| {
            let config = config(addresses[at].clone(), addresses.clone(), newest_format(at));
            let now = Now::at(Millis(0), Millis(WALL));
            let registry = Arc::new(Registry::new(MemberId::of(&addresses[at]), 1, 0, now.mono));
            Engine::new(config, registry, at as u64 * 7_919 + 1, now)
        };
        let mut cluster = Cluster {
            engines: (0..n).map(engine).collect(),
            ids: addresses.iter().map(|a| MemberId::of(a)).collect(),
            lives: vec![Life::Alive; n],
            cuts: Vec::new(),
            loss: 0,
            random: 1,
            now: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            ticks: vec![0; n],
            deaths: Vec::new(),
            backs: Vec::new(),
            n_messages: 0,
            n_bytes: 0,
        };
        // Links tell each side which format the other speaks.
        for from in 0..n {
            for to in (0..n).filter(|to| *to != from) {
                let (hello, now) = (cluster.engines[from].hello(), cluster.clock());
                let accepted = cluster.engines[to].accept_link(&hello, now, &mut Effects::default());
                assert!(accepted.is_ok());
            }
        }
        for at in 0..n {
            let start = cluster.random() % 1_000;
            cluster.at(start, Event::Tick(at));
            cluster.ticks[at] = start;
        }
        cluster.run_until(5_000);
        cluster.deaths.clear();
        cluster.backs.clear();
        cluster
    }

    fn random(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn clock(&self) -> Now {
        Now::at(Millis(self.now), Millis(WALL + self.now))
    }

    fn at(&mut self, time: u64, event: Event) {
        self.next_event += 1;
        self.queue.insert((time.max(self.now), self.next_event), event);
    }

    fn is_lost(&mut self, from: usize, to: usize) -> bool {
        self.n_messages += 1;
        self.cuts.contains(&(from, to)) || (self.loss > 0 && self.random().is_multiple_of(self.loss))
    }

    fn call<R>(&mut self, at: usize, call: impl FnOnce(&Engine, Now, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = call(&self.engines[at], self.clock(), &mut effects);
        for effect in effects.list {
            match effect {
                Effect::Probe(to, probe) => {
                    let to = self.index(to);
                    self.n_bytes += encode_probe(&probe).expect("a probe").len() as u64;
                    let (timeout, latency) = (self.now + TIMEOUT, self.random() % 3);
                    match self.is_lost(at, to) {
                        true => self.at(timeout, Event::Done(at, to, ProbeResult::Missed)),
                        false => self.at(self.now + latency, Event::Probe(at, to, probe, timeout)),
                    }
                }
                Effect::Wake => {
                    self.ticks[at] = self.now + 1;
                    self.at(self.now + 1, Event::Tick(at));
                }
                Effect::Report(Report::MemberDead(id, death)) => {
                    let of = self.index(id);
                    self.deaths.push((self.now, at, of, death));
                }
                Effect::Report(Report::MemberBack(id)) => {
                    let of = self.index(id);
                    self.backs.push((self.now, at, of));
                }
                _ => {}
            }
        }
        result
    }

    fn index(&self, id: MemberId) -> usize {
        self.ids.iter().position(|other| *other == id).expect("a member")
    }

    fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= end) {
            let ((time, _), event) = entry.remove_entry();
            self.now = time;
            match event {
                Event::Tick(at) if self.ticks[at] == time => self.tick(at),
                Event::Tick(_) => {}
                Event::Life(at, life) => {
                    self.lives[at] = life;
                    self.ticks[at] = time;
                    self.tick(at);
                }
                Event::Probe(from, to, probe, timeout) => match self.lives[to] {
                    Life::Hung => self.at(timeout, Event::Done(from, to, ProbeResult::Missed)),
                    Life::Gone => self.at(time + 1, Event::Done(from, to, ProbeResult::Refused)),
                    Life::Alive => {
                        let answer =
                            self.call(to, |engine, now, effects| engine.on_probe(&probe, now, effects));
                        let answer = answer.expect("members of one cluster");
                        self.n_bytes += encode_probe(&answer).expect("an answer").len() as u64;
                        let latency = self.random() % 3;
                        match self.is_lost(to, from) {
                            true => self.at(timeout, Event::Done(from, to, ProbeResult::Missed)),
                            false => {
                                self.at(time + latency, Event::Done(from, to, ProbeResult::Answer(answer)))
                            }
                        }
                    }
                },
                Event::Done(at, of, result) => {
                    if self.lives[at] == Life::Alive {
                        let id = self.ids[of];
                        self.call(at, |engine, now, effects| {
                            engine.probe_done(id, result, now, effects)
                        });
                    }
                }
            }
        }
        self.now = end;
    }

    fn tick(&mut self, at: usize) {
        if self.lives[at] != Life::Alive {
            return;
        }
        let next = self.call(at, |engine, now, effects| engine.tick(now, effects));
        self.ticks[at] = next.0.max(self.now + 1);
        self.at(self.ticks[at], Event::Tick(at));
    }

    fn state(&self, at: usize, of: usize) -> MemberState {
        let members = self.engines[at].members();
        let member = members.iter().find(|m| m.id == self.ids[of]);
        member.expect("a member").state()
    }

    /// How long each living member took to count `of` as dead since `since`, in milliseconds.
    fn detection(&self, of: usize, since: u64) -> Vec<u64> {
        let deaths = self.deaths.iter().filter(|d| d.2 == of);
        deaths.map(|d| d.0 - since).collect()
    }
}

fn all_new(_: usize) -> u8 {
    FORMAT
}

fn report(what: &str, n: usize, times: &[u64]) -> u64 {
    let max = times.iter().copied().max().unwrap_or_default();
    let mean = times.iter().sum::<u64>() as f64 / times.len().max(1) as f64;
    println!(
        "{what}, {n} members: max {:.2} s, mean {:.2} s",
        max as f64 / 1e3,
        mean / 1e3
    );
    max
}

#[test]
fn a_hung_and_a_crashed_member_are_down_everywhere_within_five_seconds_at_any_size() {
    for n in [2, 3, 9, 50] {
        for (what, life) in [("hung", Life::Hung), ("crashed", Life::Gone)] {
            let mut times = Vec::new();
            let mut cluster = Cluster::new(n, all_new);
            cluster.loss = 100;
            for of in (0..n).step_by(n.div_ceil(8)) {
                let since = cluster.now + 137 * of as u64 % 1_000;
                cluster.deaths.clear();
                cluster.at(since, Event::Life(of, life));
                cluster.run_until(since + 6_000);
                let detection = cluster.detection(of, since);
                assert_eq!(detection.len(), n - 1, "{what}, {n} members, member {of}");
                let is_of = |d: &&(u64, usize, usize, Death)| d.2 != of;
                assert_eq!(cluster.deaths.iter().find(is_of), None, "nobody else died");
                let death = if life == Life::Gone {
                    Death::Gone
                } else {
                    Death::Unreachable
                };
                assert!(cluster.deaths.iter().all(|d| d.3 == death));
                times.extend(detection);
                cluster.at(cluster.now, Event::Life(of, Life::Alive));
                cluster.run_until(cluster.now + 5_000);
            }
            assert!(report(what, n, &times) <= 5_000);
        }
    }
}

#[test]
fn half_a_cluster_behind_a_cut_is_down_within_five_seconds_and_back_within_three() {
    for n in [9, 50] {
        let mut cluster = Cluster::new(n, all_new);
        let (since, half) = (cluster.now, n / 2);
        let pairs = |n: usize| (0..n).flat_map(move |a| (0..n).map(move |b| (a, b)));
        cluster.cuts = pairs(n).filter(|(a, b)| (*a < half) != (*b < half)).collect();
        cluster.run_until(since + 5_000);
        let times: Vec<u64> = cluster.deaths.iter().map(|d| d.0 - since).collect();
        assert_eq!(
            times.len(),
            2 * half * (n - half),
            "each counts all of the other side as dead"
        );
        report("cut in two", n, &times);
        cluster.run_until(since + 20_000);
        cluster.cuts.clear();
        let healed = cluster.now;
        cluster.run_until(healed + 3_000);
        let times: Vec<u64> = cluster.backs.iter().map(|b| b.0 - healed).collect();
        assert_eq!(times.len(), 2 * half * (n - half), "all are back");
        report("healed", n, &times);
    }
}

#[test]
fn what_a_quiet_member_sends_does_not_grow_with_the_cluster() {
    let quiet = |n: usize, format: u8| {
        let mut cluster = Cluster::new(n, |_| format);
        cluster.run_until(20_000);
        (cluster.n_messages, cluster.n_bytes) = (0, 0);
        cluster.run_until(80_000);
        let per_second = |sum: u64| sum as f64 / n as f64 / 60.0;
        let (messages, bytes) = (per_second(cluster.n_messages), per_second(cluster.n_bytes));
        println!(
            "format {format}, {n} members: {messages:.2} messages and {bytes:.0} bytes a member and second"
        );
        (messages, bytes)
    };
    let (three, nine, fifty) = (quiet(3, FORMAT), quiet(9, FORMAT), quiet(50, FORMAT));
    assert!(three.0 <= 4.1, "two probes and two answers");
    assert!(
        nine.0 <= 6.1 && fifty.0 <= nine.0 * 1.02,
        "three probes and three answers"
    );
    assert!(fifty.1 <= nine.1 * 1.05);
    let before = quiet(9, 2);
    assert!(
        (before.0 - 16.0).abs() < 0.1,
        "format 2: everyone probes everyone"
    );
}

#[test]
fn lost_messages_and_a_short_pause_kill_nobody() {
    let mut cluster = Cluster::new(9, all_new);
    cluster.loss = 30;
    cluster.run_until(120_000);
    assert_eq!(cluster.deaths, []);
    cluster.loss = 0;
    for of in 0..9 {
        cluster.at(cluster.now, Event::Life(of, Life::Hung));
        cluster.at(cluster.now + 1_900, Event::Life(of, Life::Alive));
        cluster.run_until(cluster.now + 6_000);
    }
    assert_eq!(cluster.deaths, []);
    let denied: u64 = cluster.engines.iter().map(|e| e.detector_counts().denied).sum();
    assert!(denied > 0, "some were suspected, and denied");
}

#[test]
fn a_member_that_others_reach_is_not_dead_whatever_happens_on_the_way_from_here() {
    for cut in [vec![(0, 1)], vec![(1, 0)], vec![(0, 1), (1, 0)]] {
        let mut cluster = Cluster::new(3, all_new);
        cluster.cuts = cut;
        cluster.run_until(cluster.now + 30_000);
        assert_eq!(cluster.deaths, []);
        assert_eq!(cluster.state(0, 1), MemberState::Suspicious);
        assert_eq!(cluster.state(2, 1), MemberState::Up);
        // Who is cut off owns what it owned, in everyone's view.
        let view = |at: usize| cluster.engines[at].view().number();
        assert!(view(0) == view(2) && view(1) == view(2));
        let since = cluster.now;
        cluster.at(since, Event::Life(1, Life::Hung));
        cluster.run_until(since + 6_000);
        let times = cluster.detection(1, since);
        assert_eq!(times.len(), 2);
        assert!(report("hung behind a cut", 3, &times) <= 5_000);
    }
}

#[test]
fn one_members_refusal_is_not_believed_of_a_member_that_others_reach() {
    let mut cluster = Cluster::new(3, all_new);
    for _ in 0..10 {
        let refused = Event::Done(0, 1, ProbeResult::Refused);
        cluster.at(cluster.now + 500, refused);
        cluster.run_until(cluster.now + 1_000);
    }
    assert_eq!(cluster.deaths, []);
    cluster.run_until(cluster.now + 1_000);
    assert_eq!(cluster.state(0, 1), MemberState::Up);
}

#[test]
fn members_of_format_2_are_probed_by_everyone_as_before() {
    let mut cluster = Cluster::new(3, |at| if at == 1 { 2 } else { FORMAT });
    assert!((0..3).all(|at| (0..3).all(|of| at == of || cluster.state(at, of) == MemberState::Up)));
    let since = cluster.now;
    cluster.at(since, Event::Life(1, Life::Hung));
    cluster.run_until(since + 5_000);
    assert_eq!(cluster.detection(1, since).len(), 2);
    cluster.at(cluster.now, Event::Life(1, Life::Alive));
    cluster.run_until(cluster.now + 3_000);
    let since = cluster.now;
    cluster.deaths.clear();
    cluster.at(since, Event::Life(2, Life::Gone));
    cluster.run_until(since + 5_000);
    let times = cluster.detection(2, since);
    assert_eq!(times.len(), 2);
    report("crashed, seen by a member of format 2 too", 3, &times);
}

#[test]
fn a_question_in_the_own_name_is_answered_by_whoever_is_there_and_heeded_by_nobody() {
    let mut cluster = Cluster::new(2, |_| FORMAT);
    let now = cluster.clock();
    let (address, list) = (cluster.engines[0].hello().member, cluster.engines[0].members());
    let others = [list[0].address.clone(), SmolStr::from(&address)];
    let registry = Arc::new(Registry::new(cluster.ids[0], 1, 0, now.mono));
    let second = Engine::new(
        config(address.as_str().into(), others.into(), FORMAT),
        registry,
        99,
        now,
    );

    let before = format!("{:?}", cluster.engines[0].members());
    let question = second.own_probe(now);
    let answer = cluster.call(0, |engine, now, effects| {
        let answer = engine.on_probe(&question, now, effects);
        assert!(effects.list.is_empty());
        answer
    });
    let answer = answer.expect("an answer");
    assert_eq!(answer.member(), address);
    assert_eq!(answer.state().boot, cluster.engines[0].hello().boot);
    assert_ne!(answer.state().boot, second.hello().boot);
    assert_eq!(format!("{:?}", cluster.engines[0].members()), before);
}
