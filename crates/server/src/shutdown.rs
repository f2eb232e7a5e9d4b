//! The end of the process: which signal asks for it, and how clients are sent away first.

use std::time::Duration;

use rollcall_node::action::Actions;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use crate::executor::Executor;

/// Steps in which the drain sends clients away.
const DRAIN_STEPS: u32 = 20;
/// Least time between the word to the members and the end, so that it and the last writes arrive.
const FAREWELL: Duration = Duration::from_millis(200);

/// How long the members may take to answer to that word: clients are sent to those that have.
const ANSWERS: Duration = Duration::from_millis(100);

/// The signals that ask the process to end.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Whoever started the process wants it to outlive its terminal when this is `None`, as `nohup` does.
    hangup: Option<Signal>,
}

impl Signals {
    /// Listens for `SIGTERM` and `SIGINT`, from now on, and for `SIGHUP` unless the process was started to ignore it.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            // Looked at first: to listen is to ignore it no more.
            hangup: match ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Completes when one of them comes, with its name.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            Some(_) = async { self.hangup.as_mut()?.recv().await } => "SIGHUP",
        }
    }
}

/// Whether the process was started with `SIGHUP` ignored; taken for no where the system does not say.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| has_hangup_ignored(&status))
}

/// The same by the text in which Linux describes a process: a mask whose lowest bit is signal 1.
fn has_hangup_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Tells the members that this node leaves, and its clients to go elsewhere, spread over `time`. Returns early when
/// no client is left.
pub async fn drain(exec: &Executor, time: Duration) {
    let (answers, farewell) = match exec.node().peers().is_empty() {
        true => (Duration::ZERO, Duration::ZERO),
        false => (ANSWERS, FAREWELL),
    };
    let farewell = tokio::time::sleep(farewell);
    let mut actions = Actions::default();
    let began = exec.now();
    exec.node().start_leaving(began, &mut actions);
    exec.run(actions);
    tokio::time::sleep(answers).await;
    let mut resets = Actions::default();
    exec.node().reset_connections(began.mono, &mut resets);
    info!(
        clients = exec.connections().len(),
        asked = resets.0.len(),
        "leaving"
    );
    // Half of the time to ask them, half for the last ones to go.
    let step = time / (2 * DRAIN_STEPS);
    let per_step = resets.0.len().div_ceil(DRAIN_STEPS as usize).max(1);
    let mut resets = resets.0;
    while !resets.is_empty() {
        let later = resets.split_off(per_step.min(resets.len()));
        exec.run(Actions(resets));
        resets = later;
        tokio::time::sleep(step).await;
    }
    for _ in 0..DRAIN_STEPS {
        if exec.connections().is_empty() {
            break;
        }
        tokio::time::sleep(step).await;
    }
    farewell.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_hangup_is_ignored_is_the_lowest_bit() {
        for (line, is_ignored) in [
            ("SigIgn:\t0000000000000001\n", true),
            ("SigIgn:\t0000000000001001\n", true),
            ("SigIgn:\t0000000000001000\n", false),
            ("SigBlk:\t0000000000000001\n", false),
            ("SigIgn:\tnothing\n", false),
        ] {
            let status = format!("Name:\trollcall\n{line}SigCgt:\t0000000000000001\n");
            assert_eq!(has_hangup_ignored(&status), is_ignored, "{line}");
        }
    }
}
