//! Figures of clusters that are large for one machine: what members tell each other when nothing happens, how long a
//! node takes to load everything, and what a storm of clients costs. Nothing is broken here but what is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::wait::try_eventually;
use cluster_tests::{Client, Cluster, Instance, Node, Service};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::ledger::{Ledger, Protocol, RowId};
use crate::providers::{Provider, World, all_registered};
use crate::tally::Tally;

/// Clients with a connection each.
const N_CONNECTED: usize = 10_000;
/// Of these, so many connect at a time when they first come.
const WAVE: usize = 500;
/// Clients that beat, which need no connection.
const N_BEATING: usize = 100_000;
/// Of these, so many register at a time.
const N_WRITERS: usize = 48;
/// Instances that a node loads, on so many connections.
const N_LOADED: usize = 300_000;
/// Connections that register them.
const N_BATCHES: usize = 300;
/// Services of many instances.
const N_SERVICES: usize = 1_000;
/// Time over which bytes are counted.
const COUNTED: Duration = Duration::from_secs(20);
/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(180);
/// Directed links of three nodes.
const LINKS: f64 = 6.0;
const MIB: f64 = 1_048_576.0;

/// Takes all figures; a table in Markdown.
///
/// # Errors
/// Something does not come about.
pub(crate) async fn table() -> Result<String> {
    let mut rows = Vec::new();
    storm(&mut rows).await.context("10,000 clients")?;
    many_clients(&mut rows).await.context("100,000 clients")?;
    snapshot(&mut rows).await.context("300,000 instances")?;
    let rows: String = rows
        .iter()
        .map(|(what, value)| format!("| {what} | {value} |\n"))
        .collect();
    Ok(format!("| figure | value |\n| --- | --- |\n{rows}"))
}

type Rows = Vec<(String, String)>;

fn note(rows: &mut Rows, what: &str, value: String) {
    eprintln!("  {what}: {value}");
    rows.push((what.to_owned(), value));
}

/// 10,000 connections at one node, which is killed.
async fn storm(rows: &mut Rows) -> Result<()> {
    let cluster = Cluster::start(3).await;
    let mut ledger = Ledger::new(3);
    let services: Vec<_> = (0..N_SERVICES)
        .map(|i| ledger.add_service(format!("storm-{i}")))
        .collect();
    let planned: Vec<RowId> = (0..N_CONNECTED)
        .map(|i| ledger.add_row(services[i % N_SERVICES], Protocol::Grpc))
        .collect();
    let world = Arc::new(World::of(&cluster, ledger, Tally::new("storm")));
    let mut providers = Vec::new();
    for wave in planned.chunks(WAVE) {
        providers.extend(
            wave.iter()
                .map(|row| Provider::start(&world, *row, Protocol::Grpc, 2, false)),
        );
        all_registered(&world, PATIENCE).await?;
    }
    hold(&cluster, N_CONNECTED).await?;
    let state = cluster.node(2).http().state().await?;
    let connected = usize::try_from(state.connections)?;
    ensure!(
        connected == N_CONNECTED,
        "only {connected} are connected to one node"
    );
    let before = memory(&cluster, 2)?;
    note(
        rows,
        "verify, 10,000 clients with a connection each, bytes/s on each link",
        format!("{:.0}", bytes_per_second(&cluster).await? / LINKS),
    );

    let peaks = [AtomicU64::new(0), AtomicU64::new(0)];
    let survivors = [cluster.node(0), cluster.node(1)];
    let used = || -> Result<Duration> { survivors.iter().map(|node| node.cpu_time()).sum() };
    let used_before = used()?;
    let began = Instant::now();
    cluster.node(2).kill();
    let watch = async {
        loop {
            for (node, peak) in survivors.iter().zip(&peaks) {
                peak.fetch_max(node.resident_memory().unwrap_or_default(), Ordering::Relaxed);
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    // All of them count as registered until they have noticed.
    let over = async {
        sleep(Duration::from_secs(1)).await;
        all_registered(&world, PATIENCE).await
    };
    tokio::select! {
        () = watch => {}
        result = over => result?,
    }
    let took = began.elapsed();
    let used = used()?.saturating_sub(used_before);
    let peak = peaks
        .iter()
        .map(|peak| peak.load(Ordering::Relaxed))
        .max()
        .unwrap_or_default();
    note(
        rows,
        "storm: 10,000 clients of a killed node registered elsewhere after, s",
        format!("{:.1}", took.as_secs_f64()),
    );
    note(
        rows,
        "storm: memory of the node with 10,000 clients before, MiB",
        mib(before),
    );
    note(rows, "storm: peak memory of a survivor, MiB", mib(peak));
    note(
        rows,
        "storm: processor time of both survivors, s",
        format!("{:.1}", used.as_secs_f64()),
    );
    let outcome = world.tally.next("");
    note(
        rows,
        "storm: providers that found no node within 13 s",
        outcome.n_faults().to_string(),
    );
    Ok(())
}

/// 100,000 clients without a connection.
async fn many_clients(rows: &mut Rows) -> Result<()> {
    let cluster = Cluster::start(3).await;
    let https: Vec<_> = cluster.nodes().iter().map(Node::http).collect();
    let write = async |writer: usize| -> Result<()> {
        for i in (writer..N_BEATING).step_by(N_WRITERS) {
            let service = Service::new(format!("many-{}", i % N_SERVICES));
            https[i % https.len()]
                .register(&service, &RowId(i).instance().patient())
                .await?
                .ok()?;
        }
        Ok(())
    };
    try_join_all((0..N_WRITERS).map(write)).await?;
    hold(&cluster, N_BEATING).await?;
    note(
        rows,
        "verify, 100,000 HTTP clients, bytes/s on each link",
        format!("{:.0}", bytes_per_second(&cluster).await? / LINKS),
    );
    Ok(())
}

/// 300,000 instances, which a node that starts loads.
async fn snapshot(rows: &mut Rows) -> Result<()> {
    let cluster = Cluster::start(3).await;
    let mut clients: Vec<Client> = Vec::new();
    let each = N_LOADED / N_BATCHES;
    for i in 0..N_BATCHES {
        let client = cluster.node(0).client().await?;
        let instances: Vec<Instance> = (0..each).map(|n| RowId(i * each + n).instance()).collect();
        client
            .batch(&Service::new(format!("batch-{i}")), &instances)
            .await?;
        clients.push(client);
    }
    hold(&cluster, N_LOADED).await?;
    let held = memory(&cluster, 0)?;
    let node = cluster.node(2);
    node.kill();
    let began = Instant::now();
    node.start();
    let http = node.http();
    try_eventually(PATIENCE, || async {
        ensure!(http.is_ready().await?, "readiness is red");
        Ok(())
    })
    .await?;
    let took = began.elapsed();
    let instances = http.state().await?.instances;
    ensure!(
        instances == u64::try_from(N_LOADED)?,
        "ready with {instances} instances"
    );
    note(
        rows,
        "snapshot: start to ready with 300,000 instances, s",
        format!("{:.2}", took.as_secs_f64()),
    );
    note(
        rows,
        "snapshot: memory of a node with 300,000 instances, MiB",
        mib(held),
    );
    Ok(())
}

/// Waits until every node holds so many instances and all are equal.
async fn hold(cluster: &Cluster, n_instances: usize) -> Result<()> {
    let wanted = u64::try_from(n_instances)?;
    try_eventually(PATIENCE, || async {
        for node in cluster.nodes() {
            let instances = node.http().state().await?.instances;
            ensure!(
                instances == wanted,
                "{} holds {instances} of {wanted}",
                node.address()
            );
        }
        Ok(())
    })
    .await?;
    timeout(PATIENCE, cluster.equal(PATIENCE)).await?;
    Ok(())
}

/// Bytes that all nodes send to each other in frames and replies, while nobody changes anything.
async fn bytes_per_second(cluster: &Cluster) -> Result<f64> {
    let sent = async || -> Result<f64> {
        let mut sum = 0.0;
        for node in cluster.nodes() {
            let http = node.http();
            sum += http.metric("rollcall_peer_frame_bytes_sent_total").await?;
            sum += http.metric("rollcall_peer_reply_bytes_sent_total").await?;
        }
        Ok(sum)
    };
    // What the last registrations left behind is told first.
    sleep(Duration::from_secs(3)).await;
    let (began, before) = (Instant::now(), sent().await?);
    sleep(COUNTED).await;
    Ok((sent().await? - before) / began.elapsed().as_secs_f64())
}

fn memory(cluster: &Cluster, node: usize) -> Result<u64> {
    cluster.node(node).resident_memory()
}

fn mib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    format!("{:.0}", bytes / MIB)
}
