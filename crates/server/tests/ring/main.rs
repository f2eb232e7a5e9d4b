//! The second ring of simulation: whole servers with their real transports (HTTP, gRPC, the members' streams, forwards)
//! in a simulated network, in virtual time. The first ring (`crates/node/tests/simulation.rs`) tries far more histories,
//! but frames and requests are values there; here they are bytes on connections that break, stall and refuse.
//!
//! `ROLLCALL_RING_SEED=n` runs one seed, `ROLLCALL_RING_SEEDS=n` that many instead of the default;
//! `ROLLCALL_RING_TRACE=filter` prints the log of the members. A seed decides faults, delays and what clients do; random
//! numbers of handshakes differ from run to run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod clients;
mod network;
mod world;

use parking_lot::Mutex;
use world::{Counts, run};

const DEFAULT_SEEDS: u64 = 4;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn no_list_is_short_while_links_break_and_members_crash() {
    let seeds: Vec<u64> = match from_env("ROLLCALL_RING_SEED") {
        Some(seed) => vec![seed],
        None => (1..=from_env("ROLLCALL_RING_SEEDS").unwrap_or(DEFAULT_SEEDS)).collect(),
    };
    if let Ok(filter) = std::env::var("ROLLCALL_RING_TRACE") {
        let log = tracing_subscriber::fmt().with_env_filter(filter).without_time();
        log.with_ansi(false).with_test_writer().init();
    }
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seeds_left = Mutex::new(seeds.iter());
    let total = Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..n_threads.min(seeds.len()) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds_left.lock().next() else {
                        return;
                    };
                    match run(*seed) {
                        Ok(counts) => *total.lock() += counts,
                        Err(broken) => {
                            panic!("seed {seed}: {broken}\nrun it again with ROLLCALL_RING_SEED={seed}")
                        }
                    }
                }
            });
        }
    });
    let total = total.into_inner();
    println!("{} seeds: {total:?}", seeds.len());
    if seeds.len() > 1 {
        let happened = [
            total.lists,
            total.forwarded,
            total.crashes,
            total.cuts,
            total.refusals,
            total.one_way_cuts,
            total.reconnects,
        ];
        assert!(
            happened.iter().all(|n| *n > 0),
            "something never happened: {total:?}"
        );
    }
}
