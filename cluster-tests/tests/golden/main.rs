//! Replays what a real server was recorded to answer, and compares.
//!
//! | module | what it holds |
//! |---|---|
//! | [`case`] | a recorded case, read from `golden/` |
//! | [`replay`], [`http`], [`grpc`], [`udp`] | sends the recorded requests to nodes of ours |
//! | [`pushes`] | which of the pushes that come count |
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
mod pushes;
mod replay;
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
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
            let key = (file.to_owned(), case.name.clone());
            match ledger.judge(&key, &comparison) {
                Ok(verdict) => {
                    if verdict == Verdict::Later {
                        *missing.entry(ledger.needs(&key)).or_default() += 1;
                    }
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
    for file in files().filter(|file| ledger.is_whole(file)) {
        if n(file, Verdict::Later) == 0 {
            wrong.push(format!(
                "{file}: listed as later, but every case is answered as recorded"
            ));
        }
    }
    let mut total = [0usize; 3];
    for file in files() {
        let row: [usize; 3] =
            [Verdict::Pass, Verdict::Difference, Verdict::Later].map(|verdict| n(file, verdict));
        println!("{file:<28}{:>8}{:>12}{:>8}", row[0], row[1], row[2]);
        total.iter_mut().zip(row).for_each(|(sum, n)| *sum += n);
    }
    println!("{:<28}{:>8}{:>12}{:>8}", "all", total[0], total[1], total[2]);
    println!("later, by what is missing: {missing:?}");
    println!("faults put into answers and seen: {n_mutations}");
    assert!(
        wrong.is_empty(),
        "{} places are not as listed:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Adds all Rust sources below a folder.
fn sources(folder: &Path, out: &mut String) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, out)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push_str(&std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[test]
fn the_page_of_what_has_no_recording_names_tests_that_exist() {
    let (mut all, root) = (String::new(), Path::new(env!("CARGO_MANIFEST_DIR")));
    sources(&root.join("tests"), &mut all).unwrap();
    sources(&root.join("../crates"), &mut all).unwrap();
    let page = std::fs::read_to_string(case::folder().join("COVERAGE.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let tests: Vec<_> = quoted.filter(|name| name.matches('_').count() > 2).collect();
    assert!(tests.len() > 30, "{} tests are named", tests.len());
    for test in tests {
        assert!(all.contains(&format!("fn {test}()")), "{test} does not exist");
    }
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
        "burst: what came",
        // The same case of the other release.
        "burst of five changes comes as one or a few pushes",
    ];
    assert_eq!(open, expected);
}
