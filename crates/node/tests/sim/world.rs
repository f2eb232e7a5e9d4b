//! The event loop: virtual time, the network between nodes, crashes and restarts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use rollcall_core::registry::change::RowOp;
use rollcall_core::{MemberId, Millis, Now};
use rollcall_distro::CopyTime;
use rollcall_distro::codec::FORMAT;
use rollcall_distro::message::{Forward, ForwardReply, Frame, LinkHello, LinkRefusal, Probe, Reply, Welcome};
use rollcall_node::{
    Accepted, Action, Actions, ConnectionId, Faults, ForwardId, LinkId, Node, NodeConfig, NodeError,
    ProbeResult, Push, Ticket, WriteDone,
};
use xxhash_rust::xxh3::Xxh3;

use super::clients::Clients;
use super::clocks::Clocks;
use super::network::{Cuts, Network};
use super::oracle::Oracle;
use super::watch::Watch;
use super::{Broken, Plan, Report};

/// Virtual time over which operations and faults are spread.
const BUSY: u64 = 150_000;
/// Virtual time after that in which the cluster has to come to rest: longer than any grace and any beat time-out.
const QUIET: u64 = 90_000;
/// Longest time without power.
const LONGEST_BLACKOUT: u64 = 1_020_000;
/// How long the shell waits for a probe and for a forward.
const PROBE_TIMEOUT: u64 = 900;
const FORWARD_TIMEOUT: u64 = 1_000;

/// One stream between two nodes: frames one way, replies the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) from: usize,
    pub(super) to: usize,
    out: LinkId,
    inbound: LinkId,
    last_frame_at: u64,
    last_reply_at: u64,
    /// A message was lost: nothing comes through any more, and both ends will find out.
    is_doomed: bool,
}

#[derive(Debug)]
pub(super) enum Event {
    /// A wake, or the standing tick of a node.
    Tick(usize, u64, bool),
    Dial(usize, usize, u64),
    /// A hello, with the time at which the dialer gives up.
    Hello(usize, usize, u64, LinkHello, u64),
    Welcome(usize, usize, u64, Result<(LinkId, Welcome), LinkRefusal>, u64),
    Frame(u64, Frame),
    Reply(u64, Reply),
    StreamBroken(u64),
    /// A stream was cut for the time after which it is given up; with the number of the cut.
    StreamStalled(u64, u64),
    /// What a stream held while it was cut is sent again.
    StreamResent(u64),
    /// The accepting end of a stream finds out that it is broken.
    InboundLost(usize, u64, LinkId),
    /// The next partition begins.
    Partition,
    /// A copy is on the disk of a node.
    CopyWritten(usize, u64, DiskCopy),
    /// The disk of a node has found its copy.
    CopyRead(usize, u64),
    /// All nodes lose power.
    Blackout,
    /// Somebody sets the wall clock of a node.
    SetClock,
    /// These links are cut from now on, and no others.
    Cut(Cuts),
    Probe(usize, usize, u64, Probe, u64),
    /// The answer to a probe, with the time at which whoever asked gives up.
    ProbeAnswer(usize, usize, u64, ProbeResult, u64),
    ProbeDone(usize, usize, u64, ProbeResult),
    Forward(usize, usize, u64, ForwardId, Forward),
    ForwardReply(usize, usize, u64, ForwardId, ForwardReply),
    ForwardTimeout(usize, u64, ForwardId),
    Push(usize, u64, Push),
    Ack(usize, u64, ConnectionId, u64),
    /// A client that was asked to goes to another node.
    Move(usize, u64, ConnectionId),
    Crash,
    Resume(usize, u64),
    Restart(usize),
    /// The member list changes for the next time.
    ChangeList,
    /// An operator saves a node's list.
    SaveList(usize, Vec<usize>),
    /// A node that has left the list ends.
    Stop(usize, u64),
    /// A node dies or stands still while the list changes.
    Disturb(usize),
    Operation,
    Client(usize),
    Redo(usize, ConnectionId),
    Beat(usize),
    Check,
}

/// Who waits for a ticket.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    Client(usize),
    Forward(usize, u64, ForwardId),
}

/// A copy on a disk.
#[derive(Clone, Debug)]
pub(super) struct DiskCopy {
    /// When it was begun, as the node tells it.
    pub(super) begun: CopyTime,
    /// The same in virtual time.
    pub(super) begun_at: u64,
    pub(super) parts: Vec<Frame>,
}

pub(super) struct Slot {
    pub(super) node: Option<Node>,
    /// Number of the process: events of an earlier one are void.
    pub(super) life: u64,
    clocks: Clocks,
    /// It stands still: everything that comes for it waits until then.
    paused_until: u64,
    /// Connections that their clients have closed while it stood still.
    pub(super) left_behind: Vec<ConnectionId>,
    /// Its member list, by number.
    pub(super) list: Vec<usize>,
    /// When it was taken off the list the last time.
    pub(super) left_at: u64,
    /// When a node dropped it from its list the last time.
    pub(super) dropped_at: u64,
    /// When it died or stood still the last time.
    pub(super) failed_at: u64,
    /// It has taken writes off the list, of which nobody else knows, nor of their end.
    pub(super) has_lone_writes: bool,
    /// When the standing tick is due; an event with another time is void.
    tick_at: u64,
    tickets: BTreeMap<Ticket, Waiting>,
    next_ticket: u64,
    /// What the node wants kept for its next life.
    disk: BTreeMap<String, RowOp>,
    /// The copy of its rows.
    pub(super) copy: Option<DiskCopy>,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: fastrand::Rng,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    pub(super) slots: Vec<Slot>,
    pub(super) addresses: Vec<String>,
    /// The member list that operators want.
    pub(super) wanted: Vec<usize>,
    /// Until then some list is not yet as they want it.
    pub(super) list_busy_until: u64,
    pub(super) list_changes_left: usize,
    pub(super) disturbances_left: usize,
    /// When a list or a node changed the last time in the middle of a change of the list: owners may be others since.
    pub(super) disturbed_at: u64,
    /// Until then a node may come back that has not heard of removals which all others have forgotten.
    pub(super) outdated_until: u64,
    /// Who dials whom again and again, by number and life.
    dialers: BTreeSet<(usize, usize, u64)>,
    pub(super) network: Network,
    pub(super) partitions_left: usize,
    /// When the network became whole, until the nodes are seen to be equal or something else happens.
    pub(super) healed_at: Option<u64>,
    pub(super) streams: BTreeMap<u64, Stream>,
    dialing: BTreeMap<(usize, usize), u64>,
    next_stream: u64,
    trace: Xxh3,
    pub(super) report: Report,
    pub(super) oracle: Oracle,
    pub(super) clients: Clients,
    crashes_left: usize,
    pub(super) watch: Option<Watch>,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let n_slots = plan.n_nodes + usize::from(plan.n_list_changes > 0);
        let addresses: Vec<String> = (1..=n_slots).map(|n| format!("10.9.0.{n}:8848")).collect();
        let slot = || Slot {
            node: None,
            life: 0,
            clocks: Clocks::default(),
            paused_until: 0,
            left_behind: Vec::new(),
            list: (0..plan.n_nodes).collect(),
            left_at: 0,
            dropped_at: 0,
            failed_at: 0,
            has_lone_writes: false,
            tick_at: 0,
            tickets: BTreeMap::new(),
            next_ticket: 0,
            disk: BTreeMap::new(),
            copy: None,
        };
        let mut world = World {
            plan,
            rng: fastrand::Rng::with_seed(plan.seed),
            now: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            slots: (0..n_slots).map(|_| slot()).collect(),
            addresses,
            wanted: (0..plan.n_nodes).collect(),
            list_busy_until: 0,
            list_changes_left: plan.n_list_changes,
            disturbances_left: plan.n_disturbances,
            disturbed_at: 0,
            outdated_until: 0,
            dialers: BTreeSet::new(),
            network: Network::new(n_slots),
            partitions_left: plan.n_partitions,
            healed_at: None,
            streams: BTreeMap::new(),
            dialing: BTreeMap::new(),
            next_stream: 0,
            trace: Xxh3::new(),
            report: Report::default(),
            oracle: Oracle::default(),
            clients: Clients::new(plan.n_sdk, plan.n_beating),
            crashes_left: plan.n_crashes,
            watch: Watch::from_env(),
        };
        for n in 0..n_slots {
            world.slots[n].clocks = Clocks::new(&mut world.rng);
        }
        for n in 0..plan.n_nodes {
            let at = world.rng.u64(0..500);
            world.at(at, Event::Restart(n));
        }
        let start = 5_000;
        for _ in 0..plan.n_operations {
            let at = start + world.rng.u64(0..BUSY);
            world.at(at, Event::Operation);
        }
        for n in 0..plan.n_sdk + plan.n_beating {
            let at = start + world.rng.u64(0..2_000);
            world.at(at, Event::Client(n));
        }
        if plan.n_crashes > 0 {
            let at = start + world.rng.u64(8_000..20_000);
            world.at(at, Event::Crash);
        }
        if plan.n_list_changes > 0 {
            let at = start + world.rng.u64(5_000..15_000);
            world.at(at, Event::ChangeList);
        }
        if plan.n_blackouts > 0 {
            let at = start + world.rng.u64(30_000..100_000);
            world.at(at, Event::Blackout);
        }
        for _ in 0..plan.n_clock_jumps {
            let at = start + world.rng.u64(0..BUSY);
            world.at(at, Event::SetClock);
        }
        if plan.n_partitions > 0 {
            let at = start + world.rng.u64(5_000..15_000);
            world.at(at, Event::Partition);
        }
        world.at(plan.check_period, Event::Check);
        world
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.next_event += 1;
        self.events.insert(self.next_event, event);
        self.queue.push(Reverse((time.max(self.now), self.next_event)));
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(super) fn run(mut self) -> Result<Report, Broken> {
        let end = self.busy_until() + QUIET;
        while let Some(Reverse((time, id))) = self.queue.pop() {
            if time > end {
                break;
            }
            self.now = time;
            let Some(event) = self.events.remove(&id) else {
                continue;
            };
            if self.plan.print_trace || self.plan.hash_trace {
                let line = format!("{time} {event:?}");
                self.trace.update(line.as_bytes());
                if self.plan.print_trace {
                    println!("{line}");
                }
            }
            let result = self.handle(event);
            self.look();
            result?;
        }
        self.check_at_rest()?;
        self.report.trace = self.trace.digest();
        Ok(self.report)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.now < self.busy_until()
    }

    pub(super) fn busy_until(&self) -> u64 {
        let dark = match self.plan.has_long_blackout {
            true => LONGEST_BLACKOUT,
            false => 0,
        };
        5_000 + BUSY + dark
    }

    pub(super) fn clock(&self, n: usize) -> Now {
        let clocks = &self.slots[n].clocks;
        Now::at(Millis(clocks.mono(self.now)), Millis(clocks.wall(self.now)))
    }

    fn index(&self, id: MemberId) -> usize {
        self.addresses
            .iter()
            .position(|a| MemberId::of(a) == id)
            .expect("a member of this world")
    }

    pub(super) fn is_paused(&self, n: usize) -> bool {
        self.slots[n].paused_until > self.now
    }

    pub(super) fn is_alive(&self, n: usize, life: u64) -> bool {
        self.slots[n].life == life && self.slots[n].node.is_some()
    }

    /// Calls a node and carries out what it asks for.
    pub(super) fn with<R>(
        &mut self,
        n: usize,
        call: impl FnOnce(&Node, Now, &mut Actions) -> R,
    ) -> Option<R> {
        let now = self.clock(n);
        let node = self.slots[n].node.take()?;
        let mut actions = Actions::default();
        let result = call(&node, now, &mut actions);
        self.slots[n].node = Some(node);
        for action in actions.0 {
            self.perform(n, action);
        }
        Some(result)
    }

    fn latency(&mut self) -> u64 {
        if self.is_busy() && self.rng.u32(0..200) == 0 {
            self.report.delayed += 1;
            return self.rng.u64(100..800);
        }
        self.rng.u64(0..4)
    }

    fn is_lost(&mut self, one_in: u32) -> bool {
        let lost = self.is_busy() && self.rng.u32(0..one_in) == 0;
        self.report.lost += u64::from(lost);
        lost
    }

    fn is_doubled(&mut self) -> bool {
        let doubled = self.is_busy() && self.rng.u32(0..100) == 0;
        self.report.duplicated += u64::from(doubled);
        doubled
    }

    fn perform(&mut self, n: usize, action: Action) {
        let life = self.slots[n].life;
        match action {
            // No client of the simulation polls with a port or watches by a pattern.
            Action::Report(_) | Action::Brake { .. } | Action::PushUdp(_) | Action::Fuzzy { .. } => {}
            Action::Store(ops) => {
                for op in ops {
                    let key = match &op {
                        RowOp::Versioned { service, row, .. } => format!("{service} {row:?}"),
                        RowOp::Record { key, .. } => key.text(),
                        _ => continue,
                    };
                    self.slots[n].disk.insert(key, op);
                }
            }
            Action::WriteCopy => self.write_copy(n),
            Action::ReadCopy => self.read_copy(n),
            Action::Wake => self.after(0, Event::Tick(n, life, true)),
            Action::LinkReady { member } => {
                let to = self.index(member);
                self.pump_frames(n, to);
            }
            Action::Joined { member } => {
                let to = self.index(member);
                self.keep_dialing(n, to, life);
            }
            Action::Left { member } => {
                let other = self.index(member);
                // An attempt whose hello is out already is given up.
                self.dialing.remove(&(n, other));
                let between = |s: &Stream| (s.from, s.to) == (n, other) || (s.from, s.to) == (other, n);
                let streams = self.streams.iter().filter(|(_, s)| between(s));
                for id in streams.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.after(0, Event::StreamBroken(id));
                }
            }
            Action::RepliesReady { member } => {
                let from = self.index(member);
                self.pump_replies(from, n);
            }
            Action::Redial { member } => {
                let to = self.index(member);
                let stream = self
                    .streams
                    .iter()
                    .find(|(_, s)| s.from == n && s.to == to)
                    .map(|(id, _)| *id);
                // An attempt whose hello is out already is given up.
                self.dialing.remove(&(n, to));
                if let Some(stream) = stream {
                    self.after(0, Event::StreamBroken(stream));
                }
            }
            Action::Probe { to, probe } => {
                let to = self.index(to);
                let (delay, timeout) = (self.latency(), self.now + PROBE_TIMEOUT);
                if self.is_lost(100) {
                    self.at(timeout, Event::ProbeDone(n, to, life, ProbeResult::Missed));
                } else {
                    self.after(delay, Event::Probe(n, to, life, probe, timeout));
                }
            }
            Action::Forward { id, to, forward } => {
                self.report.forwards += 1;
                let to = self.index(to);
                self.after(FORWARD_TIMEOUT, Event::ForwardTimeout(n, life, id));
                if !self.is_lost(100) {
                    if self.is_doubled() {
                        // The second one may come after its sender has given up and later writes have followed.
                        let late = self.rng.u64(0..3 * FORWARD_TIMEOUT);
                        self.after(late, Event::Forward(n, to, life, id, forward.clone()));
                    }
                    let delay = self.latency();
                    self.after(delay, Event::Forward(n, to, life, id, forward));
                }
            }
            Action::Answer {
                ticket,
                result,
                accepted,
            } => self.answered(n, ticket, result, accepted),
            Action::Push(push) => {
                let delay = self.latency();
                self.after(delay, Event::Push(n, life, push));
            }
            Action::Detect {
                connection,
                request_id,
            } => {
                if self.client_of(n, connection).is_some() {
                    let delay = self.latency();
                    self.after(delay, Event::Ack(n, life, connection, request_id));
                }
            }
            Action::Reset {
                connection,
                request_id,
                ..
            } => {
                if self.client_of(n, connection).is_some() {
                    let delay = self.latency();
                    self.after(delay, Event::Ack(n, life, connection, request_id));
                    let later = delay + self.rng.u64(0..500);
                    self.after(later, Event::Move(n, life, connection));
                }
            }
            Action::Close { connection } => {
                if let Some(client) = self.client_of(n, connection) {
                    self.connection_lost(client);
                }
            }
        }
    }

    pub(super) fn ticket(&mut self, n: usize, client: usize) -> Ticket {
        self.new_ticket(n, Waiting::Client(client))
    }

    fn new_ticket(&mut self, n: usize, waiting: Waiting) -> Ticket {
        let slot = &mut self.slots[n];
        slot.next_ticket += 1;
        let ticket = Ticket(slot.next_ticket);
        slot.tickets.insert(ticket, waiting);
        ticket
    }

    fn answered(
        &mut self,
        n: usize,
        ticket: Ticket,
        result: Result<WriteDone, NodeError>,
        accepted: Option<Accepted>,
    ) {
        match self.slots[n].tickets.remove(&ticket) {
            Some(Waiting::Client(client)) => self.write_answered(client, Some((n, ticket)), result),
            Some(Waiting::Forward(from, life, id)) => {
                let reply = Node::forward_reply(result, accepted);
                let delay = self.latency();
                self.after(delay, Event::ForwardReply(from, n, life, id, reply));
            }
            None => {}
        }
    }

    /// The node that would have to act on an event.
    fn actor(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Tick(n, ..) | Event::Dial(n, ..) | Event::Ack(n, ..) | Event::SaveList(n, ..) => Some(*n),
            Event::Hello(_, to, ..) | Event::Probe(_, to, ..) | Event::Forward(_, to, ..) => Some(*to),
            Event::InboundLost(to, ..) => Some(*to),
            Event::Welcome(from, ..)
            | Event::ProbeAnswer(from, ..)
            | Event::ProbeDone(from, ..)
            | Event::ForwardReply(from, ..)
            | Event::ForwardTimeout(from, ..) => Some(*from),
            Event::Frame(stream, _) => self.streams.get(stream).map(|s| s.to),
            Event::Reply(stream, _) => self.streams.get(stream).map(|s| s.from),
            _ => None,
        }
    }

    pub(super) fn handle(&mut self, event: Event) -> Result<(), Broken> {
        let Some(event) = self.carry(event) else {
            return Ok(());
        };
        let paused_until = self.actor(&event).map_or(0, |n| self.slots[n].paused_until);
        if paused_until > self.now {
            if let Event::Probe(from, to, life, _, timeout) = &event {
                // Nobody answers; who asked finds out in time.
                self.at(*timeout, Event::ProbeDone(*from, *to, *life, ProbeResult::Missed));
                return Ok(());
            }
            self.at(paused_until, event);
            return Ok(());
        }
        match event {
            Event::Tick(n, life, is_wake) => {
                if self.is_alive(n, life) && (is_wake || self.slots[n].tick_at == self.now) {
                    self.tick(n, life, is_wake);
                }
            }
            Event::Dial(from, to, life) => self.dial(from, to, life),
            Event::Hello(from, to, life, hello, until) => self.hello(from, to, life, hello, until),
            Event::Welcome(from, to, life, answer, until) => self.welcome(from, to, life, answer, until),
            Event::Frame(stream, frame) => self.frame(stream, frame),
            Event::Reply(stream, reply) => self.reply(stream, reply),
            Event::StreamBroken(stream) => self.break_stream(stream),
            Event::StreamStalled(stream, n_cuts) => self.stream_stalled(stream, n_cuts),
            Event::StreamResent(stream) => self.stream_resent(stream)?,
            Event::InboundLost(n, life, link) => {
                if self.is_alive(n, life) {
                    self.with(n, |node, now, actions| node.inbound_down(link, now, actions));
                }
            }
            Event::CopyWritten(n, life, copy) => {
                if self.is_alive(n, life) {
                    self.slots[n].copy = Some(copy);
                    self.with(n, |node, _, _| node.copy_written());
                }
            }
            Event::CopyRead(n, life) => {
                if self.is_alive(n, life) {
                    self.copy_read(n);
                }
            }
            Event::Blackout => self.blackout(),
            Event::Partition => self.partition(),
            Event::SetClock => self.set_clock(),
            Event::Cut(cuts) => self.set_cuts(cuts),
            Event::Probe(from, to, life, probe, timeout) => {
                let answer = self.with(to, |node, now, actions| node.on_probe(&probe, now, actions));
                let result = match answer {
                    Some(Ok(answer)) => ProbeResult::Answer(answer),
                    Some(Err(_)) => ProbeResult::Missed,
                    None => ProbeResult::Refused,
                };
                let at = self.now + self.latency();
                if at > timeout {
                    self.at(timeout, Event::ProbeDone(from, to, life, ProbeResult::Missed));
                } else {
                    self.at(at, Event::ProbeAnswer(from, to, life, result, timeout));
                }
            }
            Event::ProbeAnswer(from, to, life, result, _) | Event::ProbeDone(from, to, life, result) => {
                if self.is_alive(from, life) {
                    let id = MemberId::of(&self.addresses[to]);
                    self.with(from, |node, now, actions| {
                        node.probe_done(id, result, now, actions)
                    });
                }
            }
            Event::Forward(from, to, life, id, forward) => {
                if self.slots[to].node.is_some() {
                    let ticket = self.new_ticket(to, Waiting::Forward(from, life, id));
                    self.with(to, |node, now, actions| {
                        node.forwarded(ticket, forward, now, actions)
                    });
                } else if self.is_alive(from, life) && self.network.passes(to, from) {
                    self.with(from, |node, now, actions| node.forward_failed(id, now, actions));
                }
            }
            Event::ForwardReply(from, _, life, id, reply) => {
                if self.is_alive(from, life) {
                    self.with(from, |node, now, actions| {
                        node.forward_replied(id, reply, now, actions)
                    });
                }
            }
            Event::ForwardTimeout(from, life, id) => {
                if self.is_alive(from, life) {
                    self.with(from, |node, now, actions| node.forward_failed(id, now, actions));
                }
            }
            Event::Push(n, life, push) => self.push(n, life, push)?,
            Event::Ack(n, life, connection, id) => {
                if self.is_alive(n, life) {
                    self.with(n, |node, now, actions| {
                        node.push_acked(connection, id, true, now, actions)
                    });
                }
            }
            Event::Move(n, life, connection) => self.client_moves(n, life, connection),
            Event::ChangeList => self.change_list(),
            Event::SaveList(n, list) => self.save_list(n, list),
            Event::Stop(n, life) => {
                if self.is_alive(n, life) && !self.wanted.contains(&n) {
                    self.take_down(n);
                    self.note_disturbance();
                    self.oracle.node_left(n);
                }
            }
            Event::Disturb(n) => self.disturb(n),
            Event::Crash => self.crash(),
            Event::Resume(n, life) => self.resume(n, life),
            Event::Restart(n) => self.restart(n),
            Event::Operation => self.operation(),
            Event::Redo(client, connection) => self.redo(client, connection),
            Event::Client(client) => self.client_turn(client),
            Event::Beat(client) => self.beat_turn(client),
            Event::Check => {
                self.report.checks += 1;
                self.check()?;
                self.after(self.plan.check_period, Event::Check);
            }
        }
        Ok(())
    }

    fn tick(&mut self, n: usize, life: u64, is_wake: bool) {
        let next = self.with(n, |node, now, actions| node.tick(now, actions));
        let Some(next) = next else { return };
        let next = self.slots[n].clocks.true_time(next.0).max(self.now + 1);
        if !is_wake || next < self.slots[n].tick_at {
            self.slots[n].tick_at = next;
            self.at(next, Event::Tick(n, life, false));
        }
    }

    // === streams ===

    fn keep_dialing(&mut self, from: usize, to: usize, life: u64) {
        if self.dialers.insert((from, to, life)) {
            self.after(1, Event::Dial(from, to, life));
        }
    }

    fn dial(&mut self, from: usize, to: usize, life: u64) {
        let id = MemberId::of(&self.addresses[to]);
        let node = self.slots[from].node.as_ref();
        if !self.is_alive(from, life) || !node.is_some_and(|x| x.peers().iter().any(|p| p.0 == id)) {
            self.dialers.remove(&(from, to, life));
            return;
        }
        let is_up = self.streams.values().any(|s| s.from == from && s.to == to);
        if !is_up
            && self
                .dialing
                .get(&(from, to))
                .is_none_or(|until| *until <= self.now)
        {
            let until = self.now + 2_000;
            self.dialing.insert((from, to), until);
            if let Some(hello) = self.slots[from].node.as_ref().map(Node::link_hello) {
                let delay = self.latency();
                self.after(delay, Event::Hello(from, to, life, hello, until));
            }
        }
        let again = 200 + self.rng.u64(0..100);
        self.after(again, Event::Dial(from, to, life));
    }

    fn hello(&mut self, from: usize, to: usize, life: u64, hello: LinkHello, until: u64) {
        if self.now > until {
            return;
        }
        let answer = self.with(to, |node, now, actions| node.accept_link(&hello, now, actions));
        let Some(answer) = answer else {
            self.dialing.remove(&(from, to));
            return;
        };
        let answer = answer.map(|(link, _, welcome)| (link, welcome));
        let delay = self.latency();
        self.after(delay, Event::Welcome(from, to, life, answer, until));
    }

    fn welcome(
        &mut self,
        from: usize,
        to: usize,
        life: u64,
        answer: Result<(LinkId, Welcome), LinkRefusal>,
        until: u64,
    ) {
        if self.now > until || self.dialing.get(&(from, to)) != Some(&until) {
            return;
        }
        self.dialing.remove(&(from, to));
        if !self.is_alive(from, life) {
            return;
        }
        let id = MemberId::of(&self.addresses[to]);
        match answer {
            Ok((inbound, welcome)) => {
                let out = self.with(from, |node, now, actions| {
                    node.link_up(id, FORMAT, welcome, now, actions)
                });
                let Some(out) = out else { return };
                self.next_stream += 1;
                let stream = Stream {
                    from,
                    to,
                    out,
                    inbound,
                    last_frame_at: self.now,
                    last_reply_at: self.now,
                    is_doomed: false,
                };
                self.streams.insert(self.next_stream, stream);
                self.pump_frames(from, to);
            }
            Err(refusal) => {
                self.with(from, |node, now, actions| {
                    node.link_refused(id, &refusal, now, actions)
                });
            }
        }
    }

    fn pump_frames(&mut self, from: usize, to: usize) {
        let Some((&id, _)) = self.streams.iter().find(|(_, s)| s.from == from && s.to == to) else {
            return;
        };
        if self.is_paused(from) {
            return;
        }
        loop {
            let now = self.clock(from);
            let Some(stream) = self.streams.get(&id).copied() else {
                return;
            };
            if stream.is_doomed {
                return;
            }
            let Some(frame) = self.slots[from]
                .node
                .as_ref()
                .and_then(|n| n.poll_link(stream.out, now))
            else {
                return;
            };
            if self.is_lost(400) {
                // A stream does not lose a message and go on: it breaks.
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.is_doomed = true;
                }
                let delay = self.rng.u64(0..300);
                self.after(delay, Event::StreamBroken(id));
                return;
            }
            let at = (self.now + self.latency()).max(stream.last_frame_at);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.last_frame_at = at;
            }
            self.at(at, Event::Frame(id, frame));
        }
    }

    fn pump_replies(&mut self, from: usize, to: usize) {
        let Some((&id, _)) = self.streams.iter().find(|(_, s)| s.from == from && s.to == to) else {
            return;
        };
        loop {
            let Some(stream) = self.streams.get(&id).copied() else {
                return;
            };
            let Some(reply) = self.slots[to]
                .node
                .as_ref()
                .and_then(|n| n.poll_reply(stream.inbound))
            else {
                return;
            };
            let at = (self.now + self.latency()).max(stream.last_reply_at);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.last_reply_at = at;
            }
            self.at(at, Event::Reply(id, reply));
        }
    }

    fn frame(&mut self, id: u64, frame: Frame) {
        let Some(stream) = self.streams.get(&id).copied() else {
            return;
        };
        let done = self.with(stream.to, |node, now, actions| {
            node.on_frame(stream.inbound, frame, now, actions)
        });
        match done {
            Some(Ok(())) => self.pump_replies(stream.from, stream.to),
            Some(Err(_)) => self.break_stream(id),
            None => {}
        }
    }

    fn reply(&mut self, id: u64, reply: Reply) {
        let Some(stream) = self.streams.get(&id).copied() else {
            return;
        };
        let done = self.with(stream.from, |node, now, actions| {
            node.on_reply(stream.out, reply, now, actions)
        });
        match done {
            Some(Ok(())) => self.pump_frames(stream.from, stream.to),
            Some(Err(_)) => self.break_stream(id),
            None => {}
        }
    }

    pub(super) fn break_stream(&mut self, id: u64) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        self.forget_held(id);
        self.with(stream.from, |node, now, actions| {
            node.link_down(stream.out, now, actions)
        });
        // The other end hears of it at once, unless the news is cut off too.
        let delay = match self.network.passes(stream.from, stream.to) {
            true => 0,
            false => self.rng.u64(0..3_000),
        };
        let life = self.slots[stream.to].life;
        self.after(delay, Event::InboundLost(stream.to, life, stream.inbound));
    }

    // === crashes ===

    /// One node at a time: the next crash waits until all are ready again and a little longer.
    fn crash(&mut self) {
        if !self.is_quiet() {
            if self.is_busy() {
                self.after(1_000, Event::Crash);
            }
            return;
        }
        let n = self.wanted[self.rng.usize(0..self.wanted.len())];
        self.crashes_left -= 1;
        let away = self.strike(n);
        if self.crashes_left > 0 {
            let next = away + self.rng.u64(5_000..25_000);
            self.after(next, Event::Crash);
        }
    }

    /// A node crashes and is started again, or stands still and goes on. Returns after which time.
    pub(super) fn strike(&mut self, n: usize) -> u64 {
        if self.rng.u32(0..3) == 0 {
            return self.pause(n);
        }
        self.report.crashed += 1;
        self.take_down(n);
        let down = match self.rng.u32(0..3) {
            0 => self.rng.u64(200..1_500),
            1 => self.rng.u64(1_500..8_000),
            _ => self.rng.u64(8_000..25_000),
        };
        self.after(down, Event::Restart(n));
        down
    }

    /// Every member is ready and has been so for a while, and no list is being changed: the next fault is a single one.
    pub(super) fn is_quiet(&self) -> bool {
        let is_ready = |n: &usize| self.slots[*n].node.as_ref().is_some_and(Node::is_ready);
        self.wanted.iter().all(is_ready)
            && self.oracle.quiet_since_restart(self.now)
            && self.list_busy_until <= self.now
    }

    fn set_clock(&mut self) {
        let n = self.rng.usize(0..self.slots.len());
        let by = self.rng.i64(-90_000..90_000);
        self.report.clocks_set += 1;
        self.slots[n].clocks.set_wall(by);
    }

    /// The process is gone from one moment to the next.
    pub(super) fn take_down(&mut self, n: usize) {
        self.healed_at = None;
        self.slots[n].node = None;
        self.slots[n].life += 1;
        self.slots[n].tickets.clear();
        self.slots[n].left_behind.clear();
        self.slots[n].has_lone_writes = false;
        let broken: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, s)| s.from == n || s.to == n)
            .map(|(id, _)| *id)
            .collect();
        for id in broken {
            self.break_stream(id);
        }
        self.oracle.node_crashed(n);
        self.node_lost(n);
    }

    /// The process stands still, with its sockets open. Its clients give up on it and move, as official ones do after
    /// three unanswered health checks; its peers find it unreachable.
    fn pause(&mut self, n: usize) -> u64 {
        self.report.paused += 1;
        self.healed_at = None;
        let life = self.slots[n].life;
        let span = self.rng.u64(5_000..25_000);
        self.slots[n].paused_until = self.now + span;
        self.oracle.node_crashed(n);
        self.node_lost(n);
        self.after(span, Event::Resume(n, life));
        span
    }

    /// It goes on: the first thing it sees is that its clients have closed their connections.
    fn resume(&mut self, n: usize, life: u64) {
        if !self.is_alive(n, life) {
            return;
        }
        self.healed_at = None;
        self.node_started(n);
        for id in std::mem::take(&mut self.slots[n].left_behind) {
            self.with(n, |node, now, actions| node.close_connection(id, now, actions));
        }
        self.slots[n].tick_at = self.now;
        self.at(self.now, Event::Tick(n, life, true));
    }

    /// Others wait for it to be ready, unless it has left the list.
    fn node_started(&mut self, n: usize) {
        self.note_disturbance();
        if self.wanted.contains(&n) {
            self.oracle.node_started(n, self.now);
        }
    }

    fn restart(&mut self, n: usize) {
        self.healed_at = None;
        let list = self.slots[n].list.iter().map(|m| self.addresses[*m].as_str());
        let members: Vec<&str> = list.collect();
        let mut config = NodeConfig::new(&self.addresses[n], &members, self.plan.seed);
        config.mapper = self.plan.mapper();
        if self.plan.seed.is_multiple_of(2) {
            // So small that a member that stands still falls out of it: the rest is up to the digests.
            config.log_capacity = 16;
        }
        if self.plan.seed % 5 < 2 {
            // So few that the death of a member takes many ticks, and much happens between them.
            config.rows_at_a_time = 1;
        }
        config.copy_period = Millis(self.plan.copy_period);
        if let Some(fault) = self.plan.planted {
            config.faults = Faults::plant(fault);
        }
        if self.slots[n].life > 0 {
            self.report.restarted += 1;
            // The wall clock may have been set back meanwhile: epochs and stamps must rise all the same.
            let by = self.rng.i64(0..60_000);
            self.slots[n].clocks.set_wall(-by);
        }
        self.slots[n].clocks.restart(&mut self.rng);
        self.slots[n].life += 1;
        let (life, boot) = (self.slots[n].life, self.rng.u64(..));
        let now = self.clock(n);
        let node = Node::new(config, boot, now);
        node.restore(self.slots[n].disk.values().cloned().collect(), now);
        self.slots[n].node = Some(node);
        self.node_started(n);
        self.slots[n].tick_at = self.now;
        self.after(0, Event::Tick(n, life, false));
        for to in self.slots[n].list.clone().into_iter().filter(|to| *to != n) {
            self.keep_dialing(n, to, life);
        }
    }
}
