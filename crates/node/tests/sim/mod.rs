//! Whole clusters in virtual time: nodes, their network, clients, faults, and the oracle that watches.
//!
//! Everything is drawn from one seed; the same seed gives the same trace hash.

pub(crate) mod blackout;
pub(crate) mod clients;
pub(crate) mod clocks;
pub(crate) mod invariants;
pub(crate) mod lists;
pub(crate) mod network;
pub(crate) mod oracle;
pub(crate) mod watch;
pub(crate) mod world;

use std::sync::Arc;

use rollcall_core::ownership::{Mapper, ModuloMapper, RendezvousMapper};
use rollcall_node::Fault;

/// What a run looks like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Seed of everything.
    pub(crate) seed: u64,
    /// Number of nodes.
    pub(crate) n_nodes: usize,
    /// Number of SDK clients.
    pub(crate) n_sdk: usize,
    /// Number of clients that beat.
    pub(crate) n_beating: usize,
    /// Operations of clients.
    pub(crate) n_operations: usize,
    /// Crashes, each followed by a restart, and pauses.
    pub(crate) n_crashes: usize,
    /// Changes of the member list: a node joins, leaves, or is replaced.
    pub(crate) n_list_changes: usize,
    /// Crashes and pauses in the middle of such a change.
    pub(crate) n_disturbances: usize,
    /// Partitions of the network, each healed before the next.
    pub(crate) n_partitions: usize,
    /// Losses of power of all nodes at once.
    pub(crate) n_blackouts: usize,
    /// The power stays away for so long that the copies on disk grow too old.
    pub(crate) has_long_blackout: bool,
    /// Period of the copies on disk, in milliseconds; 0 for none.
    pub(crate) copy_period: u64,
    /// Period of the checks, in milliseconds.
    pub(crate) check_period: u64,
    /// Wall clocks that somebody sets.
    pub(crate) n_clock_jumps: usize,
    /// A fault planted in every node.
    pub(crate) planted: Option<Fault>,
    /// Hash every event, for [`Report::trace`].
    pub(crate) hash_trace: bool,
    /// Print every event.
    pub(crate) print_trace: bool,
}

/// So long at most nobody looks at the nodes; the usual period of the checks, in milliseconds.
const CHECK_PERIOD: u64 = 100;

/// Three nodes in half of the seeds, up to seven in the others.
fn n_nodes(seed: u64) -> usize {
    // Other properties of a run depend on whether its seed is even.
    [3, 4, 3, 5, 3, 6, 3, 7][(seed / 2) as usize % 8]
}

impl Plan {
    /// The standard run of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Plan {
            seed,
            n_nodes: n_nodes(seed),
            n_sdk: 14,
            n_beating: 8,
            n_operations: 500,
            n_crashes: 3,
            n_list_changes: 0,
            n_disturbances: 0,
            n_partitions: 0,
            n_blackouts: 0,
            has_long_blackout: false,
            copy_period: 0,
            check_period: CHECK_PERIOD,
            n_clock_jumps: if seed.is_multiple_of(3) { 3 } else { 0 },
            planted: None,
            hash_trace: false,
            print_trace: false,
        }
    }

    /// A run in which the member list changes as well.
    pub(crate) fn changing(seed: u64) -> Self {
        Plan {
            n_crashes: 1,
            n_list_changes: 4,
            ..Plan::of(seed)
        }
    }

    /// A run in which nodes die or stand still while some members have another list than others.
    pub(crate) fn disturbed(seed: u64) -> Self {
        Plan {
            n_crashes: 0,
            n_disturbances: 4,
            copy_period: if seed % 4 == 1 { blackout::COPY_PERIOD } else { 0 },
            ..Plan::changing(seed)
        }
    }

    /// The rule of ownership: every fourth seed uses the one that is not the default.
    pub(crate) fn mapper(&self) -> Arc<dyn Mapper> {
        match self.seed % 4 {
            0 => Arc::new(RendezvousMapper),
            _ => Arc::new(ModuloMapper),
        }
    }

    /// A run in which the network falls apart as well.
    pub(crate) fn partitioned(seed: u64) -> Self {
        Plan {
            n_crashes: 1,
            n_partitions: 3,
            copy_period: if matches!(seed % 8, 2 | 7) {
                blackout::COPY_PERIOD
            } else {
                0
            },
            ..Plan::of(seed)
        }
    }
}

impl Plan {
    /// A run in which all nodes lose power at once, most of them with copies on disk.
    pub(crate) fn dark(seed: u64) -> Self {
        Plan {
            n_crashes: 1,
            n_blackouts: 1,
            has_long_blackout: seed % 8 == 5,
            copy_period: if seed % 4 == 3 { 0 } else { blackout::COPY_PERIOD },
            ..Plan::of(seed)
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Hash over every event; the same for all runs that hash none.
    pub(crate) trace: u64,
    /// Operations of clients that were carried out.
    pub(crate) operations: u64,
    /// Stream messages lost, each breaking its stream.
    pub(crate) lost: u64,
    /// Messages delayed far beyond the usual.
    pub(crate) delayed: u64,
    /// Messages delivered twice.
    pub(crate) duplicated: u64,
    /// Messages that met a cut.
    pub(crate) cut_off: u64,
    /// Partitions.
    pub(crate) partitions: u64,
    /// Those of them that came and went.
    pub(crate) flapping: u64,
    /// Those of them in which messages passed in one direction.
    pub(crate) one_way: u64,
    /// Partitions after which all nodes were equal in time, without another fault meanwhile.
    pub(crate) healed: u64,
    /// Longest time that this took, in milliseconds, and the seed in which it did.
    pub(crate) slowest_heal: (u64, u64),
    /// Losses of power.
    pub(crate) blackouts: u64,
    /// Copies that were offered after them.
    pub(crate) copies_used: u64,
    /// Wall clocks set.
    pub(crate) clocks_set: u64,
    /// Nodes crashed.
    pub(crate) crashed: u64,
    /// Nodes paused with their sockets open.
    pub(crate) paused: u64,
    /// Nodes restarted.
    pub(crate) restarted: u64,
    /// Nodes that came to the member list.
    pub(crate) joined: u64,
    /// Nodes that were taken off the member list.
    pub(crate) left: u64,
    /// Nodes that crashed or were paused while the list changed.
    pub(crate) disturbed: u64,
    /// Checks that found a node which was off the list and knew it.
    pub(crate) unlisted: u64,
    /// Checks of all invariants.
    pub(crate) checks: u64,
    /// Pushes that clients took.
    pub(crate) pushes: u64,
    /// Writes that were forwarded.
    pub(crate) forwards: u64,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.lost += other.lost;
        self.delayed += other.delayed;
        self.duplicated += other.duplicated;
        self.cut_off += other.cut_off;
        self.partitions += other.partitions;
        self.flapping += other.flapping;
        self.one_way += other.one_way;
        self.healed += other.healed;
        self.slowest_heal = self.slowest_heal.max(other.slowest_heal);
        self.blackouts += other.blackouts;
        self.copies_used += other.copies_used;
        self.clocks_set += other.clocks_set;
        self.crashed += other.crashed;
        self.restarted += other.restarted;
        self.paused += other.paused;
        self.joined += other.joined;
        self.left += other.left;
        self.disturbed += other.disturbed;
        self.unlisted += other.unlisted;
        self.checks += other.checks;
        self.pushes += other.pushes;
        self.forwards += other.forwards;
    }
}

/// An invariant that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    /// Which.
    pub(crate) invariant: &'static str,
    /// What was seen.
    pub(crate) what: String,
}

/// Runs a plan to its end, or to the first broken invariant.
pub(crate) fn run(plan: Plan) -> Result<Report, Broken> {
    world::World::new(plan).run()
}
