//! Drives every entry with a seeded mutator, and checks that the node behind them serves as before.
//!
//! `ROLLCALL_FUZZ_SEED=n` chooses the seed, `ROLLCALL_FUZZ_RUNS=n` the number of inputs for each entry.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rollcall_fuzz::{ENTRIES, n_kept, n_rows};

const DEFAULT_RUNS: u64 = 300_000;

/// Texts that mean something to some decoder.
const TOKENS: &[&[u8]] = &[
    b"null",
    b"true",
    b"-1",
    b"65536",
    b"1e309",
    b"NaN",
    b"\"\"",
    b"{}",
    b"[]",
    b"@@",
    b"%00",
    b"%",
    b"&",
    b"=",
    b",",
    b"\\u0000",
    b"\\ud800",
    b"\xff\xfe",
    b"ephemeral",
    b"serviceName",
    b"metadata",
    b"instances",
    b"clusters",
    b"port",
    b"weight",
    b"::1",
    b"99999999999999999999",
    b"[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
];

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn mutate(rng: &mut fastrand::Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[rng.usize(0..seeds.len())].clone();
    for _ in 0..rng.usize(1..8) {
        let at = rng.usize(0..=input.len());
        match rng.u32(0..8) {
            0 if !input.is_empty() => {
                let at = rng.usize(0..input.len());
                input[at] ^= 1 << rng.u32(0..8);
            }
            1 if !input.is_empty() => {
                let at = rng.usize(0..input.len());
                input[at] = rng.u8(..);
            }
            2 => input.insert(at, rng.u8(..)),
            3 => input.truncate(at),
            4 if !input.is_empty() => {
                let from = rng.usize(0..input.len());
                let to = (from + rng.usize(1..16)).min(input.len());
                input.drain(from..to);
            }
            5 if !input.is_empty() => {
                let from = rng.usize(0..input.len());
                let to = (from + rng.usize(1..64)).min(input.len());
                let copy = input[from..to].to_vec();
                input.splice(at..at, copy);
            }
            6 => {
                let other = &seeds[rng.usize(0..seeds.len())];
                let from = rng.usize(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                let token = TOKENS[rng.usize(0..TOKENS.len())];
                input.splice(at..at, token.iter().copied());
            }
        }
    }
    input
}

#[test]
fn no_input_panics_or_stops_the_node_from_serving() {
    let seed = from_env("ROLLCALL_FUZZ_SEED", 1);
    let n_runs = from_env("ROLLCALL_FUZZ_RUNS", DEFAULT_RUNS);
    assert_eq!(n_kept(), 1);
    for (name, entry, samples) in ENTRIES {
        // The samples must be understood, else their mutations would reach nothing.
        samples.iter().for_each(|sample| entry(sample));
        match *name {
            "request_json" => assert_eq!(
                n_rows(),
                3,
                "one kept, one batch of two in place of the single one"
            ),
            "http_request" => assert!(n_rows() > 3, "one registered by a beat"),
            _ => {}
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut seeds: Vec<Vec<u8>> = samples.iter().map(|sample| sample.to_vec()).collect();
        for run in 0..n_runs {
            let input = mutate(&mut rng, &seeds);
            if catch_unwind(AssertUnwindSafe(|| entry(&input))).is_err() {
                panic!("{name}, seed {seed}, run {run}: {}", input.escape_ascii());
            }
            // Some inputs become seeds, so that changes add up.
            if rng.u32(0..50) == 0 && input.len() < 4_096 {
                let at = rng.usize(samples.len()..samples.len() + 64);
                match seeds.get_mut(at) {
                    Some(seed) => *seed = input,
                    None => seeds.push(input),
                }
            }
        }
        println!("{name}: {n_runs} inputs, seed {seed}");
    }
    assert_eq!(n_kept(), 1, "the instance of another client is still listed");
}
