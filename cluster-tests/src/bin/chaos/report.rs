//! What a run found, as a table in Markdown and as one last line.

use std::fmt::Write;
use std::time::Duration;

use cluster_tests::Times;

use crate::N_NODES;
use crate::tally::{FAULTS, Measure, Outcome};

/// Outcomes of scenarios as a table.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| scenario | s | questions/s to each node | lists checked | refused | lists told | registrations |",
    );
    for fault in FAULTS {
        let _ = write!(text, " {fault} |");
    }
    text.push_str(" detection s | start to ready s | equal after s | convergence p50, p99 ms | in the fault p50, p99 ms |\n");
    text.push_str(&"| --- ".repeat(7 + FAULTS.len() + 5));
    text.push_str("|\n");
    for outcome in outcomes {
        let Outcome {
            name,
            took,
            lists,
            refused,
            told,
            registrations,
            ..
        } = outcome;
        let seconds = took.as_secs_f64();
        #[expect(clippy::cast_precision_loss)]
        let pace = (lists + refused) as f64 / f64::from(N_NODES) / seconds;
        let _ = write!(
            text,
            "| {name} | {seconds:.0} | {pace:.0} | {lists} | {refused} | {told} | {registrations} |"
        );
        for fault in FAULTS {
            let _ = write!(text, " {} |", outcome.count(fault));
        }
        let times = |measure| outcome.times.get(&measure).cloned().unwrap_or_default();
        for measure in [Measure::Detection, Measure::Start, Measure::Equal] {
            let longest = times(measure).longest();
            let _ = write!(
                text,
                " {} |",
                longest.map_or("-".into(), |t| format!("{:.1}", t.as_secs_f64()))
            );
        }
        for measure in [Measure::Convergence, Measure::ConvergenceInFault] {
            let _ = write!(text, " {} |", p50_p99(&times(measure)));
        }
        text.push('\n');
    }
    text
}

/// The run in one line.
pub(crate) fn summary(outcomes: &[Outcome]) -> String {
    let n_good = outcomes.iter().filter(|outcome| outcome.is_good()).count();
    let lists: u64 = outcomes.iter().map(|outcome| outcome.lists).sum();
    let mut text = format!("chaos: {n_good} passed, {} failed;", outcomes.len() - n_good);
    for fault in FAULTS {
        let count: u64 = outcomes.iter().map(|outcome| outcome.count(fault)).sum();
        let _ = write!(text, " {count} {fault},");
    }
    let _ = write!(text, " {lists} lists checked");
    text
}

fn p50_p99(times: &Times) -> String {
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    match times.quantile(0.5).zip(times.quantile(0.99)) {
        Some((p50, p99)) => format!("{}, {}", ms(p50), ms(p99)),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{Fault, Tally};

    #[test]
    fn a_run_with_a_fault_says_so_in_its_last_line_and_in_its_table() {
        let tally = Tally::new("kill");
        tally.list();
        tally.fault(Fault::ShortList, || "orders".into());
        tally.time(Measure::Detection, Duration::from_millis(3_250));
        let outcomes = [tally.next("stop"), tally.next("")];
        let line = summary(&outcomes);
        assert!(
            line.starts_with("chaos: 1 passed, 1 failed; 0 empty lists, 1 short lists, "),
            "{line}"
        );
        let table = table(&outcomes);
        let columns: Vec<usize> = table.lines().map(|row| row.matches('|').count()).collect();
        assert_eq!(columns, [20; 4]);
        assert!(
            table.contains(" | 1 | 0 | 0 | 0 | 0 | 1 | 0 |") && table.contains("| 3.2 |"),
            "{table}"
        );
    }
}
