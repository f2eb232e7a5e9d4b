//! Whole clusters in deterministic simulation: the same node type that the server runs.
//!
//! `ROLLCALL_SIM_SEED=n` runs one seed, `ROLLCALL_SIM_SEEDS=n` runs that many instead of the default, from
//! `ROLLCALL_SIM_FROM` on; `ROLLCALL_SIM_TRACE=1` prints every event, `ROLLCALL_SIM_ROW` one row (`sim/watch.rs`).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod sim;

use rollcall_node::Fault;
use sim::{Plan, Report, run};

const DEFAULT_SEEDS: u64 = 100;

/// Seeds that once failed; each stays.
const FAILED_ONCE: &[u64] = &[
    90, 97, 123, 159, 168, 306, 329, 358, 477, 149, 1080, 3084, 3305, 3437, 3868, 4132,
];

/// The same, of seeds in which the member list changes.
const CHANGING_FAILED_ONCE: &[u64] = &[
    16, 30, 52, 57, 73, 91, 102, 114, 181, 191, 62, 82, 95, 824, 982, 1089, 1096, 1224, 1233, 1613, 1989,
    2336,
];

const DEFAULT_CHANGING: u64 = 30;

/// The same, of seeds in which nodes fail while the member list changes.
const DISTURBED_FAILED_ONCE: &[u64] = &[
    5, 41, 56, 70, 108, 137, 149, 168, 174, 182, 221, 383, 477, 583, 719, 756, 1071, 1241, 1296, 1319, 1414,
    1730, 1898, 1948, 2012, 2167, 3130, 742, 3481, 4160, 4425, 4621, 4711, 10008, 10092, 10115, 10291, 10325,
    10476,
];

const DEFAULT_DISTURBED: u64 = 45;

/// The same, of seeds in which the network falls apart.
const PARTITIONED_FAILED_ONCE: &[u64] = &[
    24, 32, 36, 44, 52, 70, 79, 84, 117, 160, 163, 289, 30, 390, 10075, 10081, 10286, 10315, 12295, 12367,
    20081, 20156, 2112, 2499,
];

const DEFAULT_PARTITIONED: u64 = 80;

/// The same, of seeds in which all nodes lose power.
const DARK_FAILED_ONCE: &[u64] = &[
    2, 4, 21, 46, 74, 10284, 10290, 10403, 10537, 258, 312, 936, 1110, 1382, 2465, 2582,
];

const DEFAULT_DARK: u64 = 45;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs a plan; an invariant that broke is told at once, since others may follow for hours.
fn run_plan(plan: Plan) -> Option<Report> {
    let print_trace = std::env::var_os("ROLLCALL_SIM_TRACE").is_some();
    let result = run(Plan { print_trace, ..plan });
    if let Err(broken) = &result {
        println!(
            "seed {}: broken invariant: {}\n{}\nrun it again with ROLLCALL_SIM_SEED={}",
            plan.seed, broken.invariant, broken.what, plan.seed
        );
    }
    result.ok()
}

/// Seeds of each kind of plan in the long run.
const MANY_SEEDS: u64 = 4_000;

/// Takes hours; `ROLLCALL_SIM_SEEDS` sets another number of seeds of each kind.
#[test]
#[ignore = "run by scripts/test.sh --sim"]
fn invariants_hold_in_many_seeds() {
    let plans: [(&str, PlanOf); 5] = [
        ("standard", Plan::of),
        ("changing", Plan::changing),
        ("disturbed", Plan::disturbed),
        ("partitioned", Plan::partitioned),
        ("dark", Plan::dark),
    ];
    let runs = plans.map(|(name, plan)| {
        println!("plan {name}");
        run_seeds(plan, &[], MANY_SEEDS)
    });
    let n_seeds: usize = runs.iter().map(|run| run.n_seeds).sum();
    let n_failed: usize = runs.iter().map(|run| run.failed.len()).sum();
    println!("invariants held in {} of {n_seeds} seeds", n_seeds - n_failed);
    assert_eq!(n_failed, 0, "an invariant broke");
}

/// The plan of each seed.
type PlanOf = fn(u64) -> Plan;

/// What the seeds of a plan did.
#[derive(Default)]
struct Runs {
    n_seeds: usize,
    total: Report,
    failed: Vec<u64>,
}

/// Runs the plans of all seeds that are asked for, on all cores; the invariants must hold in all of them.
fn run_all(plan: PlanOf, failed_once: &[u64], default: u64) -> (usize, Report) {
    let runs = run_seeds(plan, failed_once, default);
    assert!(
        runs.failed.is_empty(),
        "an invariant broke in seeds {:?}",
        runs.failed
    );
    (runs.n_seeds, runs.total)
}

fn run_seeds(plan: PlanOf, failed_once: &[u64], default: u64) -> Runs {
    let seeds: Vec<u64> = match from_env("ROLLCALL_SIM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let n_seeds = from_env("ROLLCALL_SIM_SEEDS").unwrap_or(default);
            let first = from_env("ROLLCALL_SIM_FROM").unwrap_or(1);
            failed_once
                .iter()
                .copied()
                .chain(first..first + n_seeds)
                .collect()
        }
    };
    let n_threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(seeds.len());
    let parts: Vec<Runs> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads)
            .map(|t| {
                let mine: Vec<u64> = seeds.iter().copied().skip(t).step_by(n_threads).collect();
                scope.spawn(move || {
                    let mut part = Runs::default();
                    for seed in mine {
                        match run_plan(plan(seed)) {
                            Some(report) => part.total += report,
                            None => part.failed.push(seed),
                        }
                    }
                    part
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    let mut runs = Runs {
        n_seeds: seeds.len(),
        ..Runs::default()
    };
    for part in parts {
        runs.total += part.total;
        runs.failed.extend(part.failed);
    }
    println!("{} seeds: {:?}", runs.n_seeds, runs.total);
    runs
}

/// KF-039: clocks of members differ by up to a minute and a half, and are set back at a restart.
#[test]
fn invariants_hold_in_every_seed() {
    let (n_seeds, total) = run_all(Plan::of, FAILED_ONCE, DEFAULT_SEEDS);
    if n_seeds > 20 {
        let faults = [
            total.lost,
            total.delayed,
            total.duplicated,
            total.crashed,
            total.restarted,
            total.paused,
        ];
        assert!(
            faults.iter().all(|n| *n > 0),
            "a kind of fault never happened: {total:?}"
        );
        assert!(total.pushes > 0 && total.forwards > 0);
    }
}

#[test]
fn invariants_hold_while_the_member_list_changes() {
    let (n_seeds, total) = run_all(Plan::changing, CHANGING_FAILED_ONCE, DEFAULT_CHANGING);
    if n_seeds > 20 {
        let changes = [total.joined, total.left, total.unlisted];
        assert!(
            changes.iter().all(|n| *n > 0),
            "a kind of change never happened: {total:?}"
        );
    }
}

#[test]
fn invariants_hold_when_nodes_fail_while_the_member_list_changes() {
    let (n_seeds, total) = run_all(Plan::disturbed, DISTURBED_FAILED_ONCE, DEFAULT_DISTURBED);
    if n_seeds > 20 {
        let kinds = [
            total.joined,
            total.left,
            total.disturbed,
            total.crashed,
            total.paused,
        ];
        assert!(
            kinds.iter().all(|n| *n > 0),
            "a kind of fault never happened: {total:?}"
        );
    }
}

#[test]
fn invariants_hold_while_the_network_falls_apart() {
    let (n_seeds, total) = run_all(Plan::partitioned, PARTITIONED_FAILED_ONCE, DEFAULT_PARTITIONED);
    if n_seeds > 20 {
        let kinds = [total.partitions, total.flapping, total.one_way, total.healed];
        assert!(
            kinds.iter().all(|n| *n > 0),
            "a kind of partition never happened: {total:?}"
        );
    }
}

#[test]
fn invariants_hold_when_all_nodes_lose_power() {
    let (n_seeds, total) = run_all(Plan::dark, DARK_FAILED_ONCE, DEFAULT_DARK);
    if n_seeds > 20 {
        assert!(
            total.blackouts > 0 && total.copies_used > 0,
            "a kind of blackout never happened: {total:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run_traced = |seed| {
        let plan = Plan {
            hash_trace: true,
            ..Plan::of(seed)
        };
        run_plan(plan).expect("the invariants hold")
    };
    let (a, b, other) = (run_traced(7), run_traced(7), run_traced(8));
    assert_eq!(a, b);
    assert_ne!(a.trace, other.trace);
}

/// Each planted fault must break an invariant within some seeds; else the simulation would prove nothing.
#[test]
fn every_planted_fault_is_caught() {
    let faults = [
        Fault::LostRemoval,
        Fault::StaleSnapshotRow,
        Fault::NoGate,
        Fault::ReusedEpoch,
        Fault::NoRepair,
        Fault::NoOrphanGrace,
        Fault::OrphansForEver,
        Fault::NoRelay,
        Fault::LostPush,
        Fault::NoExpiry,
        Fault::NoTakeoverGrace,
        Fault::NoLeaveGrace,
        Fault::CopyLives,
        Fault::OldCopy,
        Fault::NoCopyOrder,
        Fault::NoReturn,
        Fault::CopyBesideLive,
    ];
    let mut missed = Vec::new();
    for fault in faults {
        let caught = (1..=20).find_map(|seed| {
            let plan = match fault {
                // Whoever has heard the beats objects to a wrong verdict within milliseconds.
                Fault::NoTakeoverGrace => Plan {
                    check_period: 5,
                    ..Plan::changing(seed)
                },
                Fault::NoLeaveGrace => Plan::changing(seed),
                Fault::CopyLives | Fault::OldCopy | Fault::NoCopyOrder | Fault::CopyBesideLive => {
                    Plan::dark(seed)
                }
                Fault::NoReturn => Plan::partitioned(seed),
                _ => Plan::of(seed),
            };
            let plan = Plan {
                planted: Some(fault),
                ..plan
            };
            run(plan).err().map(|broken| (seed, broken.invariant))
        });
        match caught {
            Some((seed, invariant)) => println!("{fault:?}: caught by seed {seed}: {invariant}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
