//! One node: a child process with its addresses and its log.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, ClientOptions};
use crate::cluster::SOON;
use crate::disk::Disk;
use crate::http::Http;
use crate::ports::Place;
use crate::wait::{eventually, try_eventually};
use crate::{binary, reaper};

/// Longest time that a node may take to be ready, its start gate included.
pub const READY_WITHIN: Duration = Duration::from_secs(40);

/// Words of a panic in a log.
const PANIC: &str = "panicked at";

/// One node of a cluster.
#[derive(Debug)]
pub struct Node {
    place: Place,
    args: Vec<String>,
    dir: PathBuf,
    disk: Option<Disk>,
    ignores_hangup: Option<bool>,
    process: Mutex<Process>,
}

#[derive(Debug)]
enum Process {
    /// Not started yet, or ended on purpose.
    Down,
    /// Started and not ended by the test.
    Up(Child),
    /// Asked to end by SIGTERM.
    Leaving(Child),
}

impl Node {
    /// A node that is not started: its place, its arguments, and a directory for its log.
    pub fn new(place: Place, args: Vec<String>, dir: PathBuf) -> Self {
        Node {
            place,
            args,
            dir,
            disk: None,
            ignores_hangup: None,
            process: Mutex::new(Process::Down),
        }
    }

    /// The same on a disk that can hang.
    pub fn on_disk(mut self, disk: Disk) -> Self {
        self.disk = Some(disk);
        self
    }

    /// The same, started with SIGHUP ignored, or not.
    pub fn with_hangup(mut self, is_ignored: bool) -> Self {
        self.ignores_hangup = Some(is_ignored);
        self
    }

    /// The disk, of a node that was started with [`ClusterBuilder::disk`](crate::ClusterBuilder::disk).
    ///
    /// # Panics
    /// It was not.
    pub fn disk(&self) -> &Disk {
        match &self.disk {
            Some(disk) => disk,
            None => panic!("{} has no disk of its own", self.address()),
        }
    }

    // === Addresses ===

    /// The advertised address `host:port`, its name within the cluster.
    pub fn address(&self) -> String {
        self.place.address()
    }

    /// Where HTTP is served.
    pub fn http_address(&self) -> SocketAddr {
        self.place.http()
    }

    /// Where gRPC clients connect.
    pub fn grpc_address(&self) -> SocketAddr {
        self.place.grpc()
    }

    /// Where other members connect.
    pub fn peer_address(&self) -> SocketAddr {
        self.place.peer()
    }

    /// A new HTTP client of this node.
    pub fn http(&self) -> Http {
        Http::new(self.http_address())
    }

    /// A new gRPC client, connected and set up.
    ///
    /// # Errors
    /// The node refuses it.
    pub async fn client(&self) -> Result<Client> {
        Client::connect(self.grpc_address()).await
    }

    /// A new gRPC client of another kind.
    ///
    /// # Errors
    /// The node refuses it.
    pub async fn client_with(&self, options: ClientOptions) -> Result<Client> {
        Client::connect_with(self.grpc_address(), options).await
    }

    // === Process ===

    /// Starts the process; does not wait until it serves.
    ///
    /// # Panics
    /// It runs already, or cannot be started.
    pub fn start(&self) {
        let mut process = self.process.lock();
        assert!(
            matches!(*process, Process::Down),
            "{} runs already",
            self.address()
        );
        match self.spawn() {
            Ok(child) => *process = Process::Up(child),
            Err(error) => panic!("cannot start {}: {error:#}", self.address()),
        }
    }

    fn spawn(&self) -> Result<Child> {
        std::fs::create_dir_all(&self.dir)?;
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        writeln!(log, "==== start of {} with {:?}", self.address(), self.args)?;
        let mut command = match (&self.place.namespace, self.ignores_hangup) {
            (Some(namespace), _) => binary::command_in(namespace),
            (None, Some(is_ignored)) => binary::command_with_hangup(is_ignored),
            (None, None) => binary::command(),
        };
        command.args(&self.args).current_dir(&self.dir);
        if let Some(disk) = &self.disk {
            disk.put_under(&mut command);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = binary::spawn(&mut command)?;
        reaper::watch_pid(child.id());
        Ok(child)
    }

    /// Ends the process at once, as `kill -9` does.
    pub fn kill(&self) {
        let mut process = self.process.lock();
        if let Process::Up(child) | Process::Leaving(child) = &mut *process {
            let _ = child.kill();
            let _ = child.wait();
            reaper::forget_pid(child.id());
        }
        *process = Process::Down;
    }

    /// Tells the process that its terminal is gone (SIGHUP).
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Asks the process to end (SIGTERM); see [`Node::wait_exit`].
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
        let mut process = self.process.lock();
        *process = match std::mem::replace(&mut *process, Process::Down) {
            Process::Up(child) => Process::Leaving(child),
            other => other,
        };
    }

    /// Waits until the process has ended, and gives how.
    ///
    /// # Panics
    /// It still runs after that time, or was not running.
    pub async fn wait_exit(&self, within: Duration) -> ExitStatus {
        let what = format!("{} ends", self.address());
        let status = eventually(&what, within, || async {
            match &mut *self.process.lock() {
                Process::Up(child) | Process::Leaving(child) => child.try_wait()?.context("the process runs"),
                Process::Down => bail!("the process was not started"),
            }
        })
        .await;
        let mut process = self.process.lock();
        if let Process::Up(child) | Process::Leaving(child) = &*process {
            reaper::forget_pid(child.id());
        }
        *process = Process::Down;
        status
    }

    /// Freezes the process (SIGSTOP): its sockets stay open and answer nothing. Returns when all its threads stand still:
    /// the system stops them one after the other.
    ///
    /// # Panics
    /// They do not.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let begin = Instant::now();
        while !self.is_frozen() {
            assert!(begin.elapsed() < SOON, "{} does not stand still", self.address());
            std::thread::yield_now();
        }
    }

    fn is_frozen(&self) -> bool {
        let tasks = self.pid().map(|pid| format!("/proc/{pid}/task"));
        let Some(Ok(tasks)) = tasks.map(std::fs::read_dir) else {
            return false;
        };
        let is_stopped = |status: PathBuf| {
            let status = std::fs::read_to_string(status);
            // One that has ended meanwhile does nothing either.
            status.map_or(true, |text| text.contains("State:\tT"))
        };
        tasks.flatten().all(|task| is_stopped(task.path().join("status")))
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process and starts it again.
    pub fn restart(&self) {
        self.kill();
        self.start();
    }

    /// Whether the process was started and not ended by the test.
    pub fn is_started(&self) -> bool {
        matches!(*self.process.lock(), Process::Up(_))
    }

    fn pid(&self) -> Option<u32> {
        match &*self.process.lock() {
            Process::Up(child) | Process::Leaving(child) => Some(child.id()),
            Process::Down => None,
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self
            .pid()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        let sent = pid.map(|pid| kill_process(pid, signal));
        assert!(
            matches!(sent, Some(Ok(()))),
            "cannot signal {}: {sent:?}",
            self.address()
        );
    }

    /// Resident memory of the process in bytes.
    ///
    /// # Errors
    /// It does not run.
    pub fn resident_memory(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most memory that the process has had resident, in bytes.
    ///
    /// # Errors
    /// It does not run.
    pub fn peak_memory(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> Result<u64> {
        let pid = self.pid().context("the node does not run")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix(field))
            .context("no such field")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// Time of a processor that the process has used so far, by user and system.
    ///
    /// # Errors
    /// It does not run.
    pub fn cpu_time(&self) -> Result<Duration> {
        let pid = self.pid().context("the node does not run")?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name of the program, in parentheses, may hold blanks.
        let (_, rest) = stat.rsplit_once(')').context("no name")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let (user, system) = ticks(11).zip(ticks(12)).context("no times")?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis((user + system) * 1000 / per_second))
    }

    /// Number of files and sockets that the process has open.
    ///
    /// # Errors
    /// It does not run.
    pub fn open_files(&self) -> Result<usize> {
        let pid = self.pid().context("the node does not run")?;
        Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
    }

    // === State ===

    /// Waits until the node serves.
    ///
    /// # Panics
    /// It does not within [`READY_WITHIN`].
    pub async fn ready(&self) {
        let http = self.http();
        let what = format!("{} is ready", self.address());
        let ready = try_eventually(READY_WITHIN, || async {
            self.check()?;
            ensure!(http.is_ready().await?, "readiness is red");
            Ok(())
        });
        if let Err(error) = ready.await {
            panic!(
                "not within {READY_WITHIN:?}: {what}: {error:#}\n{}",
                self.log_tail()
            );
        }
    }

    /// Checks that the node has not ended by itself and has not panicked.
    ///
    /// # Errors
    /// It has.
    pub fn check(&self) -> Result<()> {
        if let Process::Up(child) = &mut *self.process.lock()
            && let Some(status) = child.try_wait()?
        {
            bail!(
                "{} ended by itself: {status}\n{}",
                self.address(),
                self.log_tail()
            );
        }
        if let Some(line) = self.log().lines().find(|line| line.contains(PANIC)) {
            bail!("{} panicked: {line}", self.address());
        }
        Ok(())
    }

    // === Log ===

    /// The directory that the process runs in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where standard output and standard error go.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The whole log so far; empty when there is none.
    pub fn log(&self) -> String {
        let bytes = File::open(self.log_path()).and_then(|mut file| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes)?;
            Ok(bytes)
        });
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// The last lines of the log, with a heading.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(60)..];
        format!(
            "---- last lines of {} ({})\n{}\n",
            self.address(),
            self.log_path().display(),
            tail.join("\n")
        )
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
