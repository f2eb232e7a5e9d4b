//! The network between nodes: which links are cut now, in one or in both directions, and what becomes of a message that
//! meets a cut.
//!
//! A datagram or a request is lost, and whoever waits for the answer finds out by its own time-out. What travels in a
//! stream is sent again by the system until it gets through or the stream is given up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollcall_node::ProbeResult;

use super::Broken;
use super::world::{Event, World};

/// After so long without a cut, a pair of nodes has found each other again and holds the same.
pub(super) const SETTLED: u64 = 5_000;
/// After so long every client has beaten once since they found each other, and that is told.
const BEATS_TOLD: u64 = SETTLED + 2_000;
/// The system gives a stream up whose messages nobody acknowledges, on either side.
const STREAM_STALL: u64 = 10_000;
/// Longest pause between two attempts of the system to send again, in a stream that is not given up yet.
const RESEND: u64 = 3_000;

/// Links that are cut, by the direction of the messages that are lost.
pub(super) type Cuts = BTreeSet<(usize, usize)>;

/// Pairs of nodes.
type Pairs = Vec<(usize, usize)>;

/// How well two nodes reach each other.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Since when no direction is cut; `None` while one is.
    whole_since: Option<u64>,
    /// When it was last whole and had been so for [`SETTLED`].
    settled_until: u64,
    /// The same for [`BEATS_TOLD`].
    told_until: u64,
    /// Number of its cuts so far.
    n_cuts: u64,
}

#[derive(Debug)]
pub(super) struct Network {
    n_nodes: usize,
    cuts: Cuts,
    pairs: BTreeMap<(usize, usize), Pair>,
    /// Messages that wait for a stream to get through, by its number and direction: frames, or replies.
    held: BTreeMap<(u64, bool), VecDeque<Event>>,
    pub(super) changed_at: u64,
}

/// From the start on, or for so long.
fn is_long_whole(since: u64, span: u64, now: u64) -> bool {
    since == 0 || since + span <= now
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub(super) fn new(n_nodes: usize) -> Self {
        let pairs = (0..n_nodes).flat_map(|a| (a + 1..n_nodes).map(move |b| (a, b)));
        let whole = Pair {
            whole_since: Some(0),
            ..Pair::default()
        };
        Network {
            n_nodes,
            cuts: Cuts::new(),
            pairs: pairs.map(|pair| (pair, whole)).collect(),
            held: BTreeMap::new(),
            changed_at: 0,
        }
    }

    /// The one place that decides whether a message from one node reaches another now.
    pub(super) fn passes(&self, from: usize, to: usize) -> bool {
        !self.cuts.contains(&(from, to))
    }

    pub(super) fn is_whole(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Nothing has been cut for so long.
    pub(super) fn is_quiet_for(&self, span: u64, now: u64) -> bool {
        self.changed_at == 0 || (self.is_whole() && self.changed_at + span <= now)
    }

    pub(super) fn is_pair_whole(&self, a: usize, b: usize) -> bool {
        self.passes(a, b) && self.passes(b, a)
    }

    /// When these two last reached each other and had done so for long enough to hold the same; now, if they do.
    pub(super) fn settled_until(&self, a: usize, b: usize, now: u64) -> u64 {
        let Some(pair) = self.pairs.get(&pair(a, b)) else {
            return now; // A node reaches itself.
        };
        match pair.whole_since {
            Some(since) if is_long_whole(since, SETTLED, now) => now,
            _ => pair.settled_until,
        }
    }

    /// Until when all pairs had told each other of all beats, the last time that they had; now, if they have.
    pub(super) fn all_told_until(&self, now: u64) -> u64 {
        let told_until = |pair: &Pair| match pair.whole_since {
            Some(since) if is_long_whole(since, BEATS_TOLD, now) => now,
            _ => pair.told_until,
        };
        self.pairs.values().map(told_until).min().unwrap_or(now)
    }

    /// Nothing has changed since some time before then.
    pub(super) fn is_as_it_was(&self, at: u64) -> bool {
        self.changed_at == 0 || self.changed_at + SETTLED <= at
    }

    /// The nodes fall into sides: all of one side reach each other and have found each other, and nobody reaches another
    /// side.
    pub(super) fn has_clean_sides(&self, now: u64) -> bool {
        let nodes = || 0..self.n_nodes;
        let is_settled =
            |a: usize, b: usize| !self.is_pair_whole(a, b) || self.settled_until(a, b, now) == now;
        if !nodes().all(|a| nodes().all(|b| is_settled(a, b))) {
            return false;
        }
        let reaches = |a: usize, b: usize| a == b || self.is_pair_whole(a, b);
        let are_one = |a: usize, b: usize| nodes().all(|c| reaches(a, c) == reaches(b, c));
        let is_cut = |a: usize, b: usize| !self.passes(a, b) && !self.passes(b, a);
        nodes().all(|a| {
            nodes().all(|b| {
                if reaches(a, b) {
                    are_one(a, b)
                } else {
                    is_cut(a, b)
                }
            })
        })
    }

    /// Takes another set of cuts; returns the pairs that are cut now and were not, and those of which the reverse holds.
    fn change(&mut self, cuts: Cuts, now: u64) -> (Pairs, Pairs) {
        let settled: Vec<u64> = self
            .pairs
            .keys()
            .map(|(a, b)| self.settled_until(*a, *b, now))
            .collect();
        self.cuts = cuts;
        self.changed_at = now;
        let (mut cut, mut healed) = (Vec::new(), Vec::new());
        for ((&(a, b), pair), settled) in self.pairs.iter_mut().zip(settled) {
            let is_whole = !self.cuts.contains(&(a, b)) && !self.cuts.contains(&(b, a));
            match (pair.whole_since, is_whole) {
                (Some(since), false) => {
                    pair.whole_since = None;
                    pair.settled_until = settled;
                    if is_long_whole(since, BEATS_TOLD, now) {
                        pair.told_until = now;
                    }
                    pair.n_cuts += 1;
                    cut.push((a, b));
                }
                (None, true) => {
                    pair.whole_since = Some(now);
                    healed.push((a, b));
                }
                _ => {}
            }
        }
        (cut, healed)
    }

    fn n_cuts(&self, a: usize, b: usize) -> u64 {
        self.pairs.get(&pair(a, b)).map_or(0, |pair| pair.n_cuts)
    }
}

impl World {
    /// From which node to which an event travels as a message.
    fn route(&self, event: &Event) -> Option<(usize, usize)> {
        match event {
            Event::Hello(from, to, ..) | Event::Probe(from, to, ..) | Event::Forward(from, to, ..) => {
                Some((*from, *to))
            }
            Event::Welcome(from, to, ..)
            | Event::ProbeAnswer(from, to, ..)
            | Event::ForwardReply(from, to, ..) => Some((*to, *from)),
            Event::Frame(stream, _) => self.streams.get(stream).map(|s| (s.from, s.to)),
            Event::Reply(stream, _) => self.streams.get(stream).map(|s| (s.to, s.from)),
            _ => None,
        }
    }

    /// Lets an event through, or does with it what becomes of a message that meets a cut.
    pub(super) fn carry(&mut self, event: Event) -> Option<Event> {
        let held_in = match &event {
            Event::Frame(stream, _) => Some((*stream, false)),
            Event::Reply(stream, _) => Some((*stream, true)),
            _ => None,
        };
        // What comes after a message that is held waits behind it.
        let must_wait = held_in.is_some_and(|queue| self.network.held.contains_key(&queue));
        let route = self.route(&event);
        if route.is_none_or(|(from, to)| self.network.passes(from, to)) && !must_wait {
            return Some(event);
        }
        self.report.cut_off += 1;
        match (held_in, event) {
            (Some(queue), event) => self.network.held.entry(queue).or_default().push_back(event),
            (
                _,
                Event::Probe(from, to, life, _, timeout) | Event::ProbeAnswer(from, to, life, _, timeout),
            ) => {
                self.at(timeout, Event::ProbeDone(from, to, life, ProbeResult::Missed));
            }
            _ => {}
        }
        None
    }

    /// Cuts these links and heals all others.
    pub(super) fn set_cuts(&mut self, cuts: Cuts) {
        let now = self.now;
        let (cut, healed) = self.network.change(cuts, now);
        let is_between = |pairs: &[(usize, usize)], from, to| pairs.contains(&pair(from, to));
        let streams: Vec<_> = self.streams.iter().map(|(id, s)| (*id, s.from, s.to)).collect();
        for (id, from, to) in streams {
            if is_between(&cut, from, to) {
                let n_cuts = self.network.n_cuts(from, to);
                let stall = STREAM_STALL + self.rng.u64(0..500);
                self.after(stall, Event::StreamStalled(id, n_cuts));
            } else if is_between(&healed, from, to) {
                let pause = self.rng.u64(0..RESEND);
                self.after(pause, Event::StreamResent(id));
            }
        }
        self.healed_at = self.network.is_whole().then_some(now);
    }

    /// A stream has been cut for so long that both ends give it up, unless it got through meanwhile.
    pub(super) fn stream_stalled(&mut self, id: u64, n_cuts: u64) {
        let Some((from, to)) = self.streams.get(&id).map(|s| (s.from, s.to)) else {
            return;
        };
        if self.network.n_cuts(from, to) == n_cuts && !self.network.is_pair_whole(from, to) {
            self.break_stream(id);
        }
    }

    /// What was held is sent again.
    pub(super) fn stream_resent(&mut self, id: u64) -> Result<(), Broken> {
        let Some((from, to)) = self.streams.get(&id).map(|s| (s.from, s.to)) else {
            return Ok(());
        };
        if self.network.is_pair_whole(from, to) {
            for is_reply in [false, true] {
                for event in self.network.held.remove(&(id, is_reply)).into_iter().flatten() {
                    self.handle(event)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn forget_held(&mut self, id: u64) {
        self.network.held.remove(&(id, false));
        self.network.held.remove(&(id, true));
    }

    // === partitions ===

    /// The next partition: it lasts for a while, perhaps comes and goes, and then all links are whole again.
    pub(super) fn partition(&mut self) {
        if !self.is_quiet() || !self.network.is_whole() {
            if self.is_busy() {
                self.after(1_000, Event::Partition);
            }
            return;
        }
        self.partitions_left -= 1;
        self.report.partitions += 1;
        let cuts = self.some_cuts();
        let rest = self.busy_until().saturating_sub(self.now);
        let span = match self.rng.u32(0..3) {
            0 => self.rng.u64(1_000..8_000),
            1 => self.rng.u64(8_000..25_000),
            _ => self.rng.u64(25_000..50_000),
        };
        let span = span.min(rest);
        let mut at = 0;
        if self.rng.u32(0..3) == 0 {
            self.report.flapping += 1;
            while at < span {
                self.after(at, Event::Cut(cuts.clone()));
                at += self.rng.u64(300..8_000);
                self.after(at, Event::Cut(Cuts::new()));
                at += self.rng.u64(300..6_000);
            }
        } else {
            self.after(at, Event::Cut(cuts));
            self.after(span, Event::Cut(Cuts::new()));
            at = span;
        }
        if self.partitions_left > 0 {
            let next = at + self.rng.u64(10_000..25_000);
            self.after(next, Event::Partition);
        }
    }

    /// Two sides of any sizes, or a single link; cut in both directions or in one.
    fn some_cuts(&mut self) -> Cuts {
        let mut nodes = self.wanted.clone();
        self.rng.shuffle(&mut nodes);
        let (one, other) = match self.rng.u32(0..4) {
            0 => (nodes[..1].to_vec(), nodes[1..2].to_vec()),
            1 => (nodes[..1].to_vec(), nodes[1..].to_vec()),
            _ => {
                let n_one = self.rng.usize(1..nodes.len());
                (nodes[..n_one].to_vec(), nodes[n_one..].to_vec())
            }
        };
        let ways = self.rng.u32(0..4);
        self.report.one_way += u64::from(ways < 2);
        let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b)));
        pairs
            .flat_map(|(a, b)| match ways {
                0 => vec![(a, b)],
                1 => vec![(b, a)],
                _ => vec![(a, b), (b, a)],
            })
            .collect()
    }
}
