//! What was found: faults by kind with examples, and times. Everything is told to the scenario that runs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use cluster_tests::Times;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Examples that are kept and printed for each kind of fault in a scenario.
const MAX_EXAMPLES: usize = 5;

/// What must not happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    /// A node answered with a list without an instance.
    EmptyList,
    /// A node answered with a list that lacks a live instance, or shows it unhealthy.
    ShortList,
    /// An official client told its application such a list.
    ShortListTold,
    /// A provider could not register at any node for longer than clients try.
    FailedRegistration,
    /// An instance whose provider left is still listed after its limit.
    DeadRow,
    /// The nodes did not become equal in time.
    Unequal,
    /// A node ended by itself, panicked, or did not become ready.
    BrokenNode,
}

/// All kinds, in the order of tables.
pub(crate) const FAULTS: [Fault; 7] = [
    Fault::EmptyList,
    Fault::ShortList,
    Fault::ShortListTold,
    Fault::FailedRegistration,
    Fault::DeadRow,
    Fault::Unequal,
    Fault::BrokenNode,
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::EmptyList => "empty lists",
            Fault::ShortList => "short lists",
            Fault::ShortListTold => "short lists told by official clients",
            Fault::FailedRegistration => "failed registrations",
            Fault::DeadRow => "dead rows",
            Fault::Unequal => "times unequal",
            Fault::BrokenNode => "broken nodes",
        })
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Measure {
    /// From a change at one node to the list of another, while nothing is broken or just was.
    Convergence,
    /// The same during a fault, between nodes that are not cut from each other.
    ConvergenceInFault,
    /// From a fault of a node until another says `DOWN`.
    Detection,
    /// From the start of a node's process until it is ready.
    Start,
    /// From the end of a fault until all nodes hold the same.
    Equal,
}

/// One scenario's outcome.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Its name.
    pub(crate) name: String,
    /// How long it took.
    pub(crate) took: Duration,
    /// Lists that were checked.
    pub(crate) lists: u64,
    /// Questions that were refused or not answered.
    pub(crate) refused: u64,
    /// Lists that official clients told.
    pub(crate) told: u64,
    /// Registrations that were acknowledged, those after a reconnect included.
    pub(crate) registrations: u64,
    /// Times that were measured.
    pub(crate) times: BTreeMap<Measure, Times>,
    faults: BTreeMap<Fault, u64>,
    examples: Vec<(Fault, String)>,
}

impl Outcome {
    fn new(name: &str) -> Self {
        Outcome {
            name: name.to_owned(),
            took: Duration::ZERO,
            lists: 0,
            refused: 0,
            told: 0,
            registrations: 0,
            times: BTreeMap::new(),
            faults: BTreeMap::new(),
            examples: Vec::new(),
        }
    }

    /// How often a fault happened.
    pub(crate) fn count(&self, fault: Fault) -> u64 {
        self.faults.get(&fault).copied().unwrap_or_default()
    }

    /// How many faults happened.
    pub(crate) fn n_faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// No fault happened.
    pub(crate) fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    /// Some faults of each kind.
    pub(crate) fn examples(&self) -> impl Iterator<Item = String> {
        self.examples
            .iter()
            .map(|(fault, text)| format!("{fault}: {text}"))
    }
}

/// Takes what is found, of all tasks.
#[derive(Debug)]
pub(crate) struct Tally {
    current: Mutex<(Instant, Outcome)>,
}

impl Tally {
    /// A tally whose first scenario has this name.
    pub(crate) fn new(first: &str) -> Self {
        Tally {
            current: Mutex::new((Instant::now(), Outcome::new(first))),
        }
    }

    /// Begins the next scenario and gives the outcome of the one before.
    pub(crate) fn next(&self, name: &str) -> Outcome {
        let next = (Instant::now(), Outcome::new(name));
        let (began, mut outcome) = std::mem::replace(&mut *self.current.lock(), next);
        outcome.took = began.elapsed();
        outcome
    }

    /// A list was checked.
    pub(crate) fn list(&self) {
        self.current.lock().1.lists += 1;
    }

    /// A question was refused or not answered.
    pub(crate) fn refusal(&self) {
        self.current.lock().1.refused += 1;
    }

    /// An official client told a list.
    pub(crate) fn told(&self) {
        self.current.lock().1.told += 1;
    }

    /// A registration was acknowledged.
    pub(crate) fn registration(&self) {
        self.current.lock().1.registrations += 1;
    }

    /// A fault.
    pub(crate) fn fault(&self, fault: Fault, example: impl FnOnce() -> String) {
        let (began, outcome) = &mut *self.current.lock();
        let count = outcome.faults.entry(fault).or_default();
        *count += 1;
        if *count <= MAX_EXAMPLES as u64 {
            let text = format!("{:.3} s: {}", began.elapsed().as_secs_f64(), example());
            eprintln!("  fault in {}: {fault}: {text}", outcome.name);
            outcome.examples.push((fault, text));
        }
    }

    /// A time.
    pub(crate) fn time(&self, measure: Measure, time: Duration) {
        self.current.lock().1.times.entry(measure).or_default().note(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_belong_to_the_scenario_that_runs() {
        let tally = Tally::new("first");
        tally.fault(Fault::EmptyList, || "orders".into());
        tally.list();
        let first = tally.next("second");
        assert_eq!((first.count(Fault::EmptyList), first.lists), (1, 1));
        assert!(!first.is_good() && tally.next("third").is_good());
        assert!(first.examples().all(|text| text.starts_with("empty lists: ")));
    }
}
