//! A Java application as a child process, and what it printed.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Cluster, Node, binary, eventually, reaper};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::record::Record;

/// Memory of one application: at most four run at a time.
const HEAP: &str = "-Xmx128m";

/// Where applications run: a cluster's network and a folder of their own.
pub(crate) struct Site {
    java: String,
    class_path: String,
    servers: String,
    network: Ipv4Addr,
    scratch: tempfile::TempDir,
}

impl Site {
    /// A place for the applications of this kind, `spring` or `dubbo`, beside this cluster.
    pub(crate) async fn beside(cluster: &Cluster, kind: &str) -> Result<Self> {
        let wanted = kind.to_owned();
        let (java, class_path) = tokio::task::spawn_blocking(move || prepare(&wanted)).await??;
        let servers: Vec<String> = cluster.nodes().iter().map(Node::address).collect();
        let std::net::IpAddr::V4(network) = cluster.node(0).http_address().ip() else {
            anyhow::bail!("the cluster is not on IPv4");
        };
        let scratch = tempfile::tempdir()?;
        Ok(Site {
            java,
            class_path,
            servers: servers.join(","),
            network,
            scratch,
        })
    }

    /// The registry's addresses as clients are given them.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    /// An address in the network of the cluster.
    pub(crate) fn ip(&self, last: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.network.octets();
        Ipv4Addr::new(a, b, c, last)
    }

    /// A folder for files of the applications.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Starts the main class of an application; `options` are for the Java machine.
    pub(crate) fn start(&self, name: &str, options: &[String], class: &str, args: &[String]) -> Result<App> {
        // The clients keep caches and logs in the home directory, which must not be that of another run.
        let home = self.scratch().join(name);
        std::fs::create_dir_all(&home)?;
        let mut command = Command::new(&self.java);
        command
            .args([HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg(format!("-Duser.home={}", home.display()))
            .args(options)
            .args(["-cp", &self.class_path, class])
            .args(args)
            .current_dir(&home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let log_path = home.join("log");
        let log = File::create(&log_path)?;
        command.stderr(log.try_clone()?);
        let mut child = binary::spawn(&mut command).with_context(|| format!("cannot start {}", self.java))?;
        reaper::watch_pid(child.id());
        let output = child.stdout.take().context("no standard output")?;
        let record = Arc::new(Record::default());
        std::thread::spawn({
            let record = Arc::clone(&record);
            move || read(output, log, &record)
        });
        println!("    {name} is process {}", child.id());
        Ok(App {
            name: name.to_owned(),
            child: Mutex::new(child),
            log_path,
            record,
        })
    }
}

/// Java and the class path of an application.
fn prepare(kind: &str) -> Result<(String, String)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ecosystem.sh");
    let output = Command::new("bash")
        .arg(script)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "scripts/ecosystem.sh ended with {}",
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    let value = |name: &str| {
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found
            .map(str::to_owned)
            .with_context(|| format!("scripts/ecosystem.sh does not tell {name}"))
    };
    Ok((value("java")?, value(kind)?))
}

/// Keeps what is said to the test, and writes the rest, and failures, to the log.
fn read(output: ChildStdout, mut log: File, record: &Record) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if !record.read(&line) {
            let _ = writeln!(log, "{line}");
        }
    }
}

/// A running Java application, which ends with this value.
pub(crate) struct App {
    name: String,
    child: Mutex<Child>,
    log_path: PathBuf,
    record: Arc<Record>,
}

impl App {
    /// What it said about its calls.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Asks it to end (SIGTERM).
    pub(crate) fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Freezes it (SIGSTOP): its connections stay open and it does nothing.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.lock().id())?;
        kill_process(Pid::from_raw(id).context("no process")?, signal)?;
        Ok(())
    }

    /// Waits until it has ended.
    pub(crate) async fn wait_exit(&self, within: Duration) -> ExitStatus {
        let status = eventually(&format!("{} ends", self.name), within, || async {
            self.child.lock().try_wait()?.context("the process runs")
        })
        .await;
        reaper::forget_pid(self.child.lock().id());
        status
    }

    /// Checks that it runs.
    pub(crate) fn check(&self) -> Result<()> {
        let ended = self.child.lock().try_wait()?;
        ensure!(ended.is_none(), "{} has ended: {ended:?}", self.name);
        Ok(())
    }

    /// Ends it at once, as `kill -9` does.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
        reaper::forget_pid(child.id());
    }

    /// What it wrote besides the lines for the test.
    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(&self.log_path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!("---- last lines of {}\n{}\n", self.name, tail.join("\n"));
        }
    }
}
