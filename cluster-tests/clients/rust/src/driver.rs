//! What has nothing to do with the client: the lines this program speaks with whoever started it, waiting, a provider
//! in a process of its own, and the data of the scenarios.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Time in which a change must reach every client.
pub const SOON: Duration = Duration::from_secs(10);
/// Time in which a client must have found another node. The client itself waits seconds between its tries.
pub const RECONNECTED: Duration = Duration::from_secs(40);
/// Time of a whole scenario.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const ODD_GROUP: &str = "G_1-a.b:c";
pub const OTHER_NAMESPACE: &str = "7b0b4c1e-blue";
pub const WEIGHTS: [f64; 3] = [0.0, 0.25, 99.5];
/// Names that Dubbo gives to the services of an interface, with and without a group of its own.
pub const DUBBO_NAMES: [&str; 2] = [
    "providers:com.example.rs.Api:1.0.0:",
    "providers:com.example.rs.Api:1.0.0:orders",
];

pub fn metadata() -> HashMap<String, String> {
    let entries = [
        ("plain", "value"),
        ("名字", "服务 \u{1F980}"),
        ("quote\"d", "it's \"so\""),
        ("back\\slash", "C:\\new\\"),
        ("json", "{\"a\": [1, null, {\"b\": \"c\"}]}"),
        ("lines", "a\nb\r\nc\td"),
        ("separators", "a@@b#c,d;e=f&g?h%20+/|:"),
        ("empty", ""),
    ];
    entries
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Asks whoever started this program to do something to the cluster, and waits until it is done.
pub async fn ask(what: &str) -> Result<()> {
    println!("? {what}");
    let answer = spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    })
    .await??;
    ensure!(
        answer.trim() == "done",
        "asked to {what}, the answer was {answer:?}"
    );
    Ok(())
}

/// Repeats a check until it holds; gives what it gave.
pub async fn eventually<T>(what: &str, within: Duration, check: impl AsyncFn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        match check().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("not within {within:?}: {what}")));
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A provider in a process of its own: this program, started with `hold`. Killed when it is dropped.
pub struct Held(Child);

impl Held {
    /// Starts one that registers these services.
    pub fn start(services: &[&str]) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .arg("hold")
            .args(services)
            // It ends when its standard input does, so that none is left behind.
            .stdin(Stdio::piped())
            .spawn()?;
        Ok(Held(child))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until standard input ends.
pub async fn end_of_input() -> Result<()> {
    spawn_blocking(|| std::io::stdin().lock().read_to_end(&mut Vec::new())).await??;
    Ok(())
}
