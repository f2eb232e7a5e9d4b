//! Consumers that we did not write: official clients as programs of their own, which tell what their application is told.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::reaper;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::ledger::ServiceId;
use crate::providers::World;
use crate::tally::Fault;

/// Time in which a program must have been told a first list of everything.
const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// An official client that is subscribed to services; ends when dropped.
#[derive(Debug)]
pub(crate) struct Consumer {
    name: String,
    child: Child,
    has_all: Arc<AtomicBool>,
    reader: JoinHandle<()>,
    _scratch: TempDir,
}

impl Consumer {
    /// Starts one by `NAME=PROGRAM ARGUMENT...`, subscribed to these services, whose instances must not change.
    ///
    /// # Errors
    /// The program cannot be started, or is not told of all services.
    pub(crate) async fn start(world: &Arc<World>, line: &str, services: &[ServiceId]) -> Result<Self> {
        let (name, command) = line
            .split_once('=')
            .context("a consumer is NAME=PROGRAM ARGUMENT...")?;
        let mut words = command.split(' ');
        let scratch = tempfile::tempdir()?;
        let mut command = Command::new(words.next().context("a consumer without a program")?);
        command
            .args(words)
            .arg(world.names.join(","))
            .arg(scratch.path())
            .arg("watch");
        command.args(services.iter().map(|service| &world.ledger.name(*service).name));
        // The clients keep caches and logs in the home directory.
        command
            .env("HOME", scratch.path())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        if let Some(pid) = child.id() {
            reaper::watch_pid(pid);
        }
        let output = child.stdout.take().context("no standard output")?;
        let has_all = Arc::new(AtomicBool::new(false));
        let mut reading = Reading {
            world: Arc::clone(world),
            name: name.to_owned(),
            waits_for: services.to_vec(),
            services: services.to_vec(),
            has_all: Arc::clone(&has_all),
        };
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                reading.take(&line);
            }
        });
        let mut consumer = Consumer {
            name: name.to_owned(),
            child,
            has_all,
            reader,
            _scratch: scratch,
        };
        let began = Instant::now();
        while !consumer.has_all.load(Ordering::Relaxed) {
            consumer.check()?;
            ensure!(
                began.elapsed() < STARTED_WITHIN,
                "{} was not told of all services",
                consumer.name
            );
            sleep(Duration::from_millis(50)).await;
        }
        Ok(consumer)
    }

    /// Checks that the program runs.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the client {} has ended: {ended:?}", self.name);
        Ok(())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.reader.abort();
        if let Some(pid) = self.child.id() {
            let _ = self.child.start_kill();
            reaper::forget_pid(pid);
        }
    }
}

/// Reads what a program is told.
struct Reading {
    world: Arc<World>,
    name: String,
    services: Vec<ServiceId>,
    /// Services of which no whole list was told yet.
    waits_for: Vec<ServiceId>,
    has_all: Arc<AtomicBool>,
}

impl Reading {
    /// A line is `listed SERVICE COUNT`: the application was told a list of so many healthy instances.
    fn take(&mut self, line: &str) {
        let ledger = &self.world.ledger;
        let words: Vec<&str> = line.split(' ').collect();
        let &["listed", name, count] = words.as_slice() else {
            return;
        };
        let Some(service) = self
            .services
            .iter()
            .find(|service| ledger.name(**service).name == name)
        else {
            return;
        };
        let wanted = ledger.rows_of(*service).len();
        let is_whole = count.parse::<usize>().is_ok_and(|count| count >= wanted);
        self.world.tally.told();
        if is_whole {
            self.waits_for.retain(|waiting| waiting != service);
            self.has_all.store(self.waits_for.is_empty(), Ordering::Relaxed);
        } else if !self.waits_for.contains(service) && ledger.is_whole() {
            self.world.tally.fault(Fault::ShortListTold, || {
                format!("{} was told {count} of {wanted} instances of {name}", self.name)
            });
        }
    }
}
