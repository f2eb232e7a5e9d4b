//! All nodes lose power at once: what readers find afterwards, with and without a copy on disk.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Client, Cluster, ClusterBuilder, Instance, Node, Service, eventually};
use tokio::time::Instant as Clock;

const SECOND: Duration = Duration::from_secs(1);
/// Grace of the rows of a copy.
const GRACE: Duration = Duration::from_secs(12);

/// What is registered before the loss.
struct Fleet {
    service: Service,
    returning: Instance,
    all: Vec<String>,
    _clients: Vec<Client>,
}

/// Nobody.
const NONE: [&str; 0] = [];

/// Three nodes with a copy of each second.
fn with_copies() -> ClusterBuilder {
    Cluster::builder(3).flag("--ephemeral-copy", "1s")
}

/// Waits for nodes to be ready, and looks whether each lists these addresses at once.
async fn all_list(nodes: &[Node], service: &Service, addresses: &[impl AsRef<str>]) -> Result<()> {
    for node in nodes {
        node.ready().await;
        node.http().list(service).await?.expect(addresses)?;
    }
    Ok(())
}

/// Two instances over gRPC, at two nodes, and one over HTTP at the third.
async fn register(cluster: &Cluster) -> Result<Fleet> {
    let service = Service::unique("power");
    let returning = Instance::at("10.20.0.1", 80);
    let gone = Instance::at("10.20.0.2", 80);
    let beating = Instance::at("10.20.0.3", 80);
    let clients = vec![cluster.node(0).client().await?, cluster.node(1).client().await?];
    clients[0].register(&service, &returning).await?;
    clients[1].register(&service, &gone).await?;
    cluster.node(2).http().register(&service, &beating).await?;
    let all = vec![returning.address(), gone.address(), beating.address()];
    cluster.eventually_listed(&service, &all).await;
    Ok(Fleet {
        service,
        returning,
        all,
        _clients: clients,
    })
}

fn lose_power(cluster: &Cluster) {
    cluster.nodes().iter().for_each(Node::kill);
    cluster.nodes().iter().for_each(Node::start);
}

fn copy_of(node: &Node) -> PathBuf {
    let name = format!("ephemeral-{}.copy", node.address().replace(':', "_"));
    node.log_path().with_file_name("data").join(name)
}

/// Waits until every node has written a copy that was begun now or later: one that was finished a second from now. Each
/// look changes something, as a copy is written for a change only.
async fn copied(cluster: &Cluster) {
    let now = SystemTime::now();
    let other = Service::unique("other");
    for node in cluster.nodes() {
        eventually("the node has a new copy", SOON, || async {
            let millis = now.elapsed()?.as_millis();
            let instance = Instance::at("10.20.0.9", 80).meta("at", &millis.to_string());
            node.http().register(&other, &instance).await?;
            let written = std::fs::metadata(copy_of(node))?.modified()?;
            ensure!(written > now + SECOND, "the last copy is from {written:?}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_copy_the_lists_are_there_and_each_row_waits_for_its_client() -> Result<()> {
    let cluster = with_copies()
        .flag("--orphan-unreachable", &format!("{}s", GRACE.as_secs()))
        .flag("--orphan-gone", &format!("{}s", GRACE.as_secs()))
        .flag("--orphan-slow-extra", "0s")
        .start()
        .await;
    let fleet = register(&cluster).await?;
    copied(&cluster).await;

    lose_power(&cluster);
    let begin = Clock::now();
    all_list(cluster.nodes(), &fleet.service, &fleet.all).await?;
    // One client comes back, at another node than before.
    let client = cluster.node(1).client().await?;
    client.register(&fleet.service, &fleet.returning).await?;
    all_list(cluster.nodes(), &fleet.service, &fleet.all).await?;
    ensure!(begin.elapsed() < GRACE, "the machine is too slow for this test");
    // The connection that is gone goes after the grace, the instance that beats no more after its time-out.
    cluster
        .eventually_list(&fleet.service, 60 * SECOND, |list| {
            list.expect(&[fleet.returning.address()])
        })
        .await;
    Ok(())
}

/// Two disks are new: their nodes start first, and must not serve what they do not have.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_without_a_copy_wait_for_the_one_that_has_it() -> Result<()> {
    let cluster = with_copies().start().await;
    let fleet = register(&cluster).await?;
    copied(&cluster).await;
    cluster.nodes().iter().for_each(Node::kill);
    for node in &cluster.nodes()[..2] {
        std::fs::remove_file(copy_of(node))?;
        node.start();
    }
    for node in &cluster.nodes()[..2] {
        eventually("both look for a copy", SOON, || async {
            let log = node.log();
            ensure!(log.contains("cold start without a copy"), "{log}");
            Ok(())
        })
        .await;
    }
    cluster.node(2).start();
    all_list(cluster.nodes(), &fleet.service, &fleet.all).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_copy_the_lists_are_empty_until_clients_return() -> Result<()> {
    let cluster = Cluster::builder(3).start().await;
    let fleet = register(&cluster).await?;
    lose_power(&cluster);
    all_list(cluster.nodes(), &fleet.service, &NONE).await?;
    let client = cluster.node(2).client().await?;
    client.register(&fleet.service, &fleet.returning).await?;
    cluster
        .eventually_listed(&fleet.service, &[fleet.returning.address()])
        .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_does_not_stop_the_start() -> Result<()> {
    let cluster = with_copies().start().await;
    let fleet = register(&cluster).await?;
    copied(&cluster).await;
    cluster.nodes().iter().for_each(Node::kill);
    for node in cluster.nodes() {
        let path = copy_of(node);
        let mut bytes = std::fs::read(&path)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes)?;
    }
    cluster.nodes().iter().for_each(Node::start);
    all_list(cluster.nodes(), &fleet.service, &NONE).await?;
    let reads_copy = |node: &Node| node.log().contains("is not used");
    ensure!(
        cluster.nodes().iter().any(reads_copy),
        "nobody says that the copy is damaged"
    );
    Ok(())
}
