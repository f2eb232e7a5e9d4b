//! How far behind the process is, and whom it turns away then.
//!
//! The measure is how long a task that is ready waits until it runs. A thread of its own hands the runtime an empty task
//! twenty times a second, so the measure also rises when the runtime does not get to it at all. A full processor is no
//! overload while that wait is short; only a wait that has not once been short for a while is. Newcomers are turned away
//! first, with what makes clients try another member; then what costs most. Signs of life, removals and acknowledgements
//! never are, and members have a port of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rollcall_core::{Micros, Millis, Now};
use rollcall_node::error::NodeError;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::metrics::Counter;

/// Time between two empty tasks.
const PULSE: Duration = Duration::from_millis(50);
/// The wait has to be long for so long before newcomers are turned away.
const NEWCOMERS_AFTER: Millis = Millis(300);
/// The same before registrations, subscriptions and queries are.
const ALL_AFTER: Millis = Millis(2_000);

/// What somebody wants who may be turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// To connect.
    Connect,
    /// To register, to subscribe or to ask.
    Work,
}

/// How far behind the process is. A clone costs one reference count.
#[derive(Clone, Debug)]
pub struct Load(Arc<State>);

#[derive(Debug)]
struct State {
    /// A longer wait is too long; 0: none is.
    limit: Millis,
    /// How long waits have to be too long before newcomers are turned away, and before everybody is.
    patience: [Millis; 2],
    /// The last wait, in microseconds.
    wait: AtomicU64,
    /// Since when every wait has been too long; 0: the last one was not.
    behind_since: AtomicU64,
    refused: Counter,
}

impl Load {
    /// Nobody is turned away before a wait of tasks is above `limit` for a while; 0 turns nobody away.
    pub fn new(limit: Millis) -> Self {
        Load(Arc::new(State {
            limit,
            patience: [NEWCOMERS_AFTER, ALL_AFTER],
            wait: AtomicU64::new(0),
            behind_since: AtomicU64::new(0),
            refused: Counter::default(),
        }))
    }

    /// Of a process that is far behind from its first moment on.
    #[cfg(test)]
    pub(crate) fn behind() -> Self {
        Load(Arc::new(State {
            limit: Millis(1),
            patience: [Millis(0); 2],
            wait: AtomicU64::new(0),
            behind_since: AtomicU64::new(1),
            refused: Counter::default(),
        }))
    }

    /// Starts to measure the runtime that this is called in, until `stop`.
    pub fn watch(&self, clock: Clock, stop: CancellationToken) {
        let (load, runtime) = (self.clone(), Handle::current());
        thread::spawn(move || load.beat(&clock, &runtime, &stop));
    }

    fn beat(&self, clock: &Clock, runtime: &Handle, stop: &CancellationToken) {
        /// Nothing is on its way.
        const NONE: u64 = 0;
        let sent = Arc::new(AtomicU64::new(NONE));
        while !stop.is_cancelled() {
            let now = clock.now();
            match sent.load(Ordering::Acquire) {
                NONE => {
                    sent.store(now.fine.0, Ordering::Release);
                    let (load, sent, clock) = (self.clone(), sent.clone(), clock.clone());
                    runtime.spawn(async move {
                        let now = clock.now();
                        load.waited(Micros(now.fine.0 - sent.load(Ordering::Acquire)), now);
                        sent.store(NONE, Ordering::Release);
                    });
                }
                at => self.waited(Micros(now.fine.0 - at), now),
            }
            thread::sleep(PULSE);
        }
    }

    /// A task has waited for so long, and may still.
    fn waited(&self, wait: Micros, now: Now) {
        let state = &self.0;
        state.wait.store(wait.0, Ordering::Relaxed);
        let is_long = state.limit > Millis(0) && wait.0 > state.limit.0 * 1_000;
        if !is_long {
            state.behind_since.store(0, Ordering::Relaxed);
        } else if state.behind_since.load(Ordering::Relaxed) == 0 {
            state.behind_since.store(now.mono.0, Ordering::Relaxed);
        }
    }

    /// Lets what a client wants pass, or not.
    ///
    /// # Errors
    /// [`NodeError::Overloaded`].
    pub fn admit(&self, want: Want, now: Now) -> Result<(), NodeError> {
        let since = self.0.behind_since.load(Ordering::Relaxed);
        if since == 0 {
            return Ok(());
        }
        let behind_for = now.mono.since(Millis(since));
        let [newcomers_after, all_after] = self.0.patience;
        let patience = match want {
            Want::Connect => newcomers_after,
            Want::Work => all_after,
        };
        if behind_for < patience {
            return Ok(());
        }
        self.0.refused.increment();
        Err(NodeError::Overloaded)
    }

    /// The last wait of a task.
    pub fn wait(&self) -> Micros {
        Micros(self.0.wait.load(Ordering::Relaxed))
    }

    /// How often somebody was turned away.
    pub fn n_refused(&self) -> u64 {
        self.0.refused.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now::at(Millis(ms), Millis(0))
    }

    fn passes(load: &Load, ms: u64) -> (bool, bool) {
        let passes = |want| load.admit(want, at(ms)).is_ok();
        (passes(Want::Connect), passes(Want::Work))
    }

    #[test]
    fn newcomers_are_turned_away_first_and_nobody_once_a_wait_is_short() {
        let load = Load::new(Millis(200));
        let long = Micros(200_001);
        load.waited(long, at(1_000));
        assert_eq!(passes(&load, 1_299), (true, true));
        load.waited(long, at(1_200));
        assert_eq!(passes(&load, 1_300), (false, true));
        assert_eq!(passes(&load, 3_000), (false, false));
        assert_eq!(load.n_refused(), 3);
        load.waited(Micros(200_000), at(3_000));
        assert_eq!(passes(&load, 9_000), (true, true));
        load.waited(long, at(9_000));
        assert_eq!(passes(&load, 9_200), (true, true), "counted anew");
    }

    #[test]
    fn without_a_limit_nobody_is_turned_away() {
        let load = Load::new(Millis(0));
        load.waited(Micros(60_000_000), at(1_000));
        assert_eq!(passes(&load, 90_000), (true, true));
    }

    /// A runtime whose only worker is busy is behind, and is not when it gets round to things again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_runtime_that_does_not_get_to_its_tasks_is_behind() {
        let (load, stop) = (Load::new(Millis(100)), CancellationToken::new());
        let clock = Clock::start();
        load.watch(clock.clone(), stop.clone());
        let busy = tokio::spawn({
            let (load, clock) = (load.clone(), clock.clone());
            async move {
                let end = clock.now().mono + Millis(30_000);
                while load.admit(Want::Connect, clock.now()).is_ok() && clock.now().mono < end {
                    std::hint::spin_loop();
                }
                load.admit(Want::Connect, clock.now())
            }
        });
        assert_eq!(busy.await.unwrap(), Err(NodeError::Overloaded));
        let end = clock.now().mono + Millis(30_000);
        while load.admit(Want::Connect, clock.now()).is_err() && clock.now().mono < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(load.admit(Want::Connect, clock.now()), Ok(()));
        stop.cancel();
    }
}
