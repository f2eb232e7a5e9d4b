//! A disk that hangs under one of three real nodes: the others own its services meanwhile, and nobody waits for it. And a
//! disk that is full.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Cluster, Instance, Service, eventually};
use reqwest::Method;

/// A write is slow after 2 s, and the disk is so until 10 s after the last slow write; twice that on a busy machine.
const WORKS_AGAIN: Duration = Duration::from_secs(24);

/// An operator creates a service at a node, which is kept on the disks of all.
async fn create(cluster: &Cluster, node: usize, service: &Service) -> Result<()> {
    let params = service.to_params();
    let http = cluster.node(node).http();
    http.query(Method::POST, "/nacos/v1/ns/service", &params)
        .await?
        .ok()
}

/// How node 2 is called at every node: its state, whether its own metric says that it is impaired, and whether it owns
/// the service.
async fn is_called(cluster: &Cluster, state: &str, service: &Service, is_owner: bool) -> Result<()> {
    let address = cluster.node(2).address();
    for node in cluster.nodes() {
        let http = node.http();
        let members = http.state().await?.members;
        let told = members.iter().find(|member| member.address == address);
        ensure!(
            told.is_some_and(|member| member.state == state && member.ready),
            "{members:?}"
        );
        let owner = http.owner(service).await?;
        ensure!((owner == address) == is_owner, "{} says {owner}", node.address());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_hangs_owns_nothing_and_serves_everybody() -> Result<()> {
    let cluster = Cluster::builder(3).disk(2).start().await;
    let service = cluster.service_owned_by(2, "slow").await?;
    let connected = cluster.node(2).client().await?;
    connected
        .register(&service, &Instance::at("10.19.0.1", 1))
        .await?;
    let patient = |port| Instance::at("10.19.0.1", port).patient();
    let at_node_0 = cluster.node(0).http();
    at_node_0.register(&service, &patient(2)).await?.ok()?;
    create(&cluster, 0, &Service::unique("before")).await?;
    let stored = async || {
        let waiting = cluster.node(2).http().metric("rollcall_store_waiting").await?;
        ensure!(waiting == 0.0, "{waiting} wait for the disk");
        Ok(())
    };
    eventually("what operators set is on the disk", SOON, stored).await;

    cluster.node(2).disk().hang()?;
    let created: Vec<Service> = (0..4).map(|_| Service::unique("meanwhile")).collect();
    create(&cluster, 0, &created[0]).await?;
    eventually("the others own its services", SOON, || {
        is_called(&cluster, "SUSPICIOUS", &service, false)
    })
    .await;
    ensure!(cluster.node(2).http().metric("rollcall_impaired").await? == 1.0);

    // Writes of all kinds, at that node and at others.
    for (node, port) in [(0, 3), (2, 4)] {
        let http = cluster.node(node).http();
        http.register(&service, &patient(port)).await?.ok()?;
        http.full_beat(&service, &patient(port)).await?;
    }
    connected
        .register(&service, &Instance::at("10.19.0.1", 5))
        .await?;
    let newcomer = cluster.node(2).client().await?;
    newcomer.register(&service, &Instance::at("10.19.0.1", 6)).await?;
    at_node_0.deregister(&service, &patient(2)).await?.ok()?;
    for (node, other) in [(0, 1), (2, 2), (2, 3)] {
        create(&cluster, node, &created[other]).await?;
    }
    let addresses = [3, 4, 5, 6].map(|port| format!("10.19.0.1:{port}"));
    cluster.eventually_listed(&service, &addresses).await;
    cluster.equal(SOON).await;
    is_called(&cluster, "SUSPICIOUS", &service, false).await?;
    ensure!(stored().await.is_err(), "the disk works");

    cluster.node(2).disk().go_on()?;
    eventually("it owns its services again", WORKS_AGAIN, || {
        is_called(&cluster, "UP", &service, true)
    })
    .await;
    stored().await?;
    ensure!(
        !connected.is_closed() && !newcomer.is_closed(),
        "a client was lost"
    );
    cluster
        .node(1)
        .http()
        .register(&service, &patient(7))
        .await?
        .ok()?;
    let addresses = [3, 4, 5, 6, 7].map(|port| format!("10.19.0.1:{port}"));
    cluster.eventually_listed(&service, &addresses).await;
    cluster.equal(SOON).await;

    // What was set meanwhile is on that disk: the others do not have it any more.
    for node in cluster.nodes() {
        node.kill();
    }
    for node in [0, 1] {
        std::fs::remove_dir_all(cluster.node(node).dir().join("data"))?;
    }
    for node in cluster.nodes() {
        node.start();
    }
    cluster.ready().await;
    for service in &created {
        eventually("what operators set is there", SOON, || async {
            let path = format!("/nacos/v1/ns/service?serviceName={}", service.name);
            let http = cluster.node(0).http();
            http.send(http.request(Method::GET, &path))
                .await?
                .with_status(200)?;
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// A full disk stops the first start, which says so, names no file to move away and leaves none. Later it stops nothing,
/// and metrics tell; a node that ends then says how much it could not keep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_a_first_start_only_and_is_told() -> Result<()> {
    let cluster = Cluster::builder(1)
        .hold_back(0)
        .disk(0)
        .flag("--ephemeral-copy", "1s")
        .launch();
    let node = cluster.node(0);
    node.disk().fill()?;
    node.start();
    let status = node.wait_exit(SOON).await;
    ensure!(status.code() == Some(1), "{status:?}");
    let log = node.log();
    ensure!(
        log.contains("cannot be made") && log.contains("No space left on device"),
        "{log}"
    );
    ensure!(!log.contains("move it away"), "{log}");
    let left = std::fs::read_dir(node.dir().join("data"))?.count();
    ensure!(left == 0, "{left} files are left");
    node.disk().empty()?;
    node.start();
    node.ready().await;

    let service = Service::unique("copied");
    let is_failing = async |wanted: f64| {
        // A copy is written for a change only.
        let instance = Instance::at("10.19.0.2", 1).meta("for", &Service::unique("change").name);
        node.http().register(&service, &instance).await?.ok()?;
        let failing = node.http().metric("rollcall_copy_failing").await?;
        ensure!(failing == wanted, "{failing}");
        Ok(())
    };
    eventually("copies are written", SOON, || is_failing(0.0)).await;
    node.disk().fill()?;
    eventually("a copy cannot be written", SOON, || is_failing(1.0)).await;
    ensure!(node.http().metric("rollcall_impaired").await? == 0.0);
    node.disk().empty()?;
    eventually("copies are written again", SOON, || is_failing(0.0)).await;

    node.disk().fill()?;
    for name in ["lost", "lost-too"] {
        create(&cluster, 0, &Service::unique(name)).await?;
    }
    node.terminate();
    let status = node.wait_exit(SOON).await;
    ensure!(status.success(), "{status:?}");
    let log = node.log();
    ensure!(log.contains("are lost on this node n_lost=2"), "{log}");
    Ok(())
}
