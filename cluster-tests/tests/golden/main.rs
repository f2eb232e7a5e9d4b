//! Replays what a real server was recorded to answer, and compares.
//!
//! | module | what it holds |
//! |---|---|
//! | [`case`] | a recorded case, read from `golden/` |
//! | [`replay`], [`http`], [`grpc`] | sends the recorded requests to nodes of ours |
//! | [`compare`] | finds the places where two answers differ |
//! | [`ledger`] | the list of differences that are meant, and of cases that need what is not there yet |
//! | [`mutate`] | faults put into right answers, to prove that the comparison sees them |
//!
//! `golden/README.md` tells what the recordings are. `ROLLCALL_GOLDEN=file,file` replays only these.

mod case;
mod compare;
mod grpc;
mod http;
mod ledger;
mod mutate;
mod replay;

use std::collections::{BTreeMap, BTreeSet};

use case::FILES;
use futures_util::future::join_all;
use ledger::{Ledger, Verdict};

/// KF-107, KF-111: answers are as recorded, but for the differences that are meant; the calls of dashboards are
/// answered, or refused in words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_case_is_answered_as_recorded_or_as_listed() {
    let ledger = Ledger::load().unwrap();
    let only = std::env::var("ROLLCALL_GOLDEN").unwrap_or_default();
    let files = || {
        FILES
            .into_iter()
            .filter(|file| only.is_empty() || only.split(',').any(|name| name == *file))
    };
    // Each file has nodes of its own and mostly waits.
    let replayed = join_all(files().map(|file| tokio::spawn(replay::replay(file)))).await;

    let (mut wrong, mut counts, mut n_mutations) = (Vec::new(), BTreeMap::new(), 0);
    for (file, result) in files().zip(replayed) {
        let cases = match result {
            Ok(Ok(cases)) => cases,
            Ok(Err(error)) => {
                wrong.push(format!("{error:#}"));
                continue;
            }
            Err(error) => {
                wrong.push(format!("{file}: {error}"));
                continue;
            }
        };
        for (case, comparison) in cases {
            match ledger.judge(&(file.to_owned(), case.name.clone()), &comparison) {
                Ok(verdict) => {
                    *counts.entry((file, verdict)).or_insert(0usize) += 1;
                    // The same comparison must see every fault in the answer that this server gave.
                    if verdict == Verdict::Pass {
                        match mutate::check(&case, &comparison.ours) {
                            Ok(n) => n_mutations += n,
                            Err(error) => wrong.push(format!("{file}: {error}")),
                        }
                    }
                }
                Err(lines) => wrong.extend(
                    lines
                        .into_iter()
                        .map(|line| format!("{file}: {}: {line}", case.name)),
                ),
            }
        }
    }

    println!("golden replay:");
    println!("{:<28}{:>8}{:>12}{:>8}", "file", "pass", "difference", "later");
    let n = |file: &str, verdict| {
        counts
            .iter()
            .filter(|((f, v), _)| *f == file && *v == verdict)
            .map(|(_, n)| n)
            .sum()
    };
    let mut total = [0usize; 3];
    for file in files() {
        let row: [usize; 3] =
            [Verdict::Pass, Verdict::Difference, Verdict::Later].map(|verdict| n(file, verdict));
        println!("{file:<28}{:>8}{:>12}{:>8}", row[0], row[1], row[2]);
        total.iter_mut().zip(row).for_each(|(sum, n)| *sum += n);
    }
    println!("{:<28}{:>8}{:>12}{:>8}", "all", total[0], total[1], total[2]);
    println!("later, by what is missing: {:?}", ledger.missing());
    println!("faults put into answers and seen: {n_mutations}");
    assert!(
        wrong.is_empty(),
        "{} places are not as listed:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_list_names_only_cases_that_exist() {
    let mut known = BTreeSet::new();
    for file in FILES {
        known.extend(
            case::load(file)
                .unwrap()
                .into_iter()
                .map(|case| (file.to_owned(), case.name)),
        );
    }
    assert_eq!(Ledger::load().unwrap().unknown(&known), []);
}

#[test]
fn a_recorded_answer_is_as_recorded_and_every_fault_in_it_is_seen() {
    let (mut n_cases, mut n_faults, mut open) = (0, 0, Vec::new());
    for file in FILES {
        for case in case::load(file).unwrap() {
            assert_eq!(
                compare::compare(&case, &case.answer).mismatches,
                [],
                "{file}: {}",
                case.name
            );
            match mutate::check(&case, &case.answer) {
                Ok(0) => open.push(case.name),
                Ok(n) => (n_cases, n_faults) = (n_cases + 1, n_faults + n),
                Err(error) => panic!("{file}: {error}"),
            }
        }
    }
    println!("{n_faults} faults in {n_cases} recorded answers, all seen");
    // How many pushes come of five changes in a row is open; the replay looks at the last one. So is which of two
    // connections is asked to move.
    let expected = [
        "burst of five changes comes as one or a few pushes",
        "A after count 2",
        "B after count 2",
    ];
    assert_eq!(open, expected);
}
