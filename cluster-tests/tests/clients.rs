//! Official clients, unmodified, against three nodes: what an application does with them, as scenario programs under
//! `clients/`. A program prints one line for each scenario and asks for nodes to be killed and started again; this file
//! starts the nodes, does what is asked, and fails with the first scenario that failed.
//!
//! `scripts/clients.sh` builds and installs the programs. A client that cannot be had is a failure. The clients of the
//! other languages run by `scripts/test.sh --clients`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::{Cluster, Node, eventually};
use serde_json::Value;

/// Time of one scenario program.
const PATIENCE: Duration = Duration::from_secs(400);

/// What every client does, as far as it has the call. `clients/README.md` says what each means.
const SCENARIOS: [&str; 20] = [
    "register",
    "select_healthy",
    "weight",
    "subscribe",
    "unsubscribe",
    "deregister",
    "batch",
    "batch_replacement",
    "group",
    "cluster",
    "namespace",
    "metadata",
    "dubbo_names",
    "service_pages",
    "hundred_instances",
    "abrupt_death",
    "no_beat_expiry",
    "redo",
    "udp_push",
    "two_publishers",
];

/// Scenarios of clients over gRPC are without what belongs to 1.x: their connection is their beat.
const GRPC: [&str; 2] = ["no_beat_expiry", "udp_push"];
/// Scenarios that clients of 1.x have no call for.
const HTTP: [&str; 2] = ["batch", "batch_replacement"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_sdk_finds_its_way() {
    run("rust", &GRPC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_sdk_finds_its_way_over_grpc() {
    run("python-grpc", &GRPC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_sdk_finds_its_way_over_http() {
    let without = [&HTTP[..], &["service_pages", "udp_push"]].concat();
    run("python-http", &without).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_sdk_of_the_second_generation_finds_its_way() {
    run("python-2", &GRPC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parsers_of_others_read_metrics_and_the_description() {
    pass(
        "formats",
        &[
            "the text form is read",
            "the open form is read",
            "the description is valid",
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --clients"]
async fn the_go_sdk_finds_its_way() {
    run("go", &GRPC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --clients"]
async fn the_node_sdk_finds_its_way() {
    run("node", &HTTP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --clients"]
async fn the_java_sdk_1_finds_its_way() {
    run("java-1", &HTTP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --clients"]
async fn the_java_sdk_2_finds_its_way() {
    run("java-2", &GRPC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --clients"]
async fn the_java_sdk_3_finds_its_way() {
    run_with("java-3", &GRPC, &["fuzzy_watch"]).await;
}

/// The command line of a client, which is built or installed for it.
fn command_of(name: &str) -> Result<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/clients.sh");
    let output = Command::new("bash")
        .arg(script)
        .arg(name)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "scripts/clients.sh {name} ended with {}",
        output.status
    );
    let line = String::from_utf8(output.stdout)?;
    let command = line
        .trim_end()
        .strip_prefix(&format!("{name}="))
        .with_context(|| format!("unexpected line {line:?}"))?;
    Ok(command.split(' ').map(str::to_owned).collect())
}

/// A scenario program that ends with this value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one client's scenarios on a cluster of its own: all of them but those `without` a call of this client.
async fn run(name: &'static str, without: &[&str]) {
    run_with(name, without, &[]).await;
}

/// As [`run`], with `more` scenarios that only this client has a call for.
async fn run_with(name: &'static str, without: &[&str], more: &[&str]) {
    let wanted = SCENARIOS.iter().filter(|scenario| !without.contains(scenario));
    pass(name, &wanted.chain(more).copied().collect::<Vec<_>>()).await;
}

/// Runs a program on a cluster of its own; these scenarios and no others must pass.
async fn pass(name: &'static str, wanted: &[&str]) {
    let command = match tokio::task::spawn_blocking(|| command_of(name)).await {
        Ok(Ok(command)) => command,
        Ok(Err(error)) => panic!("the client {name} cannot be had: {error:#}"),
        Err(error) => panic!("{error}"),
    };
    let cluster = Cluster::start(3).await;
    match scenarios(name, &command, &cluster).await {
        Ok(passed) => {
            println!("{name}: {} scenarios passed", passed.len());
            let wanted: BTreeSet<String> = wanted.iter().map(|&scenario| scenario.to_owned()).collect();
            assert_eq!(
                passed, wanted,
                "{name}: the scenarios that were run are not those wanted"
            );
        }
        Err(error) => panic!("{name}: {error:#}"),
    }
}

/// The names of the scenarios that passed, if none failed.
async fn scenarios(name: &str, command: &[String], cluster: &Cluster) -> Result<BTreeSet<String>> {
    let servers: Vec<String> = cluster.nodes().iter().map(Node::address).collect();
    let scratch = tempfile::tempdir()?;
    let (program, args) = command.split_first().context("an empty command")?;
    let child = Command::new(program)
        .args(args)
        .arg(servers.join(","))
        .arg(scratch.path())
        // The clients keep caches and logs in the home directory.
        .env("HOME", scratch.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut child = Program(child);
    let mut input = child.0.stdin.take().context("no standard input")?;
    let output = child.0.stdout.take().context("no standard output")?;
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });

    let deadline = Instant::now() + PATIENCE;
    let (mut passed, mut failed, mut killed) = (BTreeSet::new(), Vec::new(), None);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match tokio::time::timeout(left, lines.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(_) => bail!("not done within {PATIENCE:?}; passed {passed:?}, failed {failed:?}"),
        };
        println!("{name}: {line}");
        if let Some(scenario) = line.strip_prefix("ok ") {
            passed.insert(scenario.to_owned());
        } else if line.starts_with("FAILED ") {
            failed.push(line);
        } else if let Some(service) = line.strip_prefix("? kill the publisher of ") {
            let node = publisher(cluster, service).await?;
            node.kill();
            killed = Some(node);
            writeln!(input, "done")?;
        } else if line == "? start it again" {
            killed
                .take()
                .context("asked to start a node, but none was killed")?
                .start();
            cluster.ready().await;
            writeln!(input, "done")?;
        } else if line.starts_with("? ") {
            bail!("asked for something unknown: {line}");
        }
    }
    let status = child.0.wait()?;
    if !failed.is_empty() {
        cluster.print_logs();
        bail!(
            "{} of {} scenarios failed:\n{}",
            failed.len(),
            failed.len() + passed.len(),
            failed.join("\n")
        );
    }
    ensure!(
        status.success(),
        "ended with {status} after {} scenarios",
        passed.len()
    );
    Ok(passed)
}

/// The node that answers for the only row of a service: it holds the publisher's connection, or owns its beats.
async fn publisher<'a>(cluster: &'a Cluster, service: &str) -> Result<&'a Node> {
    let (group, name) = service
        .split_once("@@")
        .context("no group in the name of the service")?;
    let url = format!("http://{}/rollcall/rows", cluster.node(0).address());
    let client = reqwest::Client::builder().no_proxy().build()?;
    let query = [
        ("namespaceId", "public"),
        ("groupName", group),
        ("serviceName", name),
    ];
    let member = eventually("the row has a publisher", Duration::from_secs(10), || async {
        let rows: Value = client.get(&url).query(&query).send().await?.json().await?;
        let member = rows.pointer("/0/publishers/0/member").and_then(Value::as_str);
        member
            .map(str::to_owned)
            .with_context(|| format!("no publisher in {rows}"))
    })
    .await;
    let node = cluster.nodes().iter().find(|node| node.address() == member);
    node.with_context(|| format!("no node is called {member}"))
}
