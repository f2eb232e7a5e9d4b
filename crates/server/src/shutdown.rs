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

/// The signals that ask the process to end.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens for `SIGTERM` and `SIGINT`, from now on.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Completes when one of them comes, with its name.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Tells the members that this node leaves, and its clients to go elsewhere, spread over `time`. Returns early when
/// no client is left.
pub async fn drain(exec: &Executor, time: Duration) {
    let farewell = tokio::time::sleep(if exec.node().peers().is_empty() {
        Duration::ZERO
    } else {
        FAREWELL
    });
    let mut actions = Actions::default();
    exec.node().start_leaving(exec.now(), &mut actions);
    exec.run(actions);
    let mut resets = Actions::default();
    exec.node().reset_connections(&mut resets);
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
