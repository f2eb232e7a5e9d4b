//! A node that starts beside others: what it must have before it serves, and what it does when it cannot get it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::ports::Block;
use cluster_tests::{Client, Cluster, Http, Instance, LinkState, Node, Service, always, eventually};
use futures_util::future::try_join_all;
use tokio::time::{Instant as Clock, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// Number of instances in one batch.
const BATCH: u16 = 500;

/// Registers one service of [`BATCH`] instances on each connection, spread over some nodes.
async fn load(nodes: &[&Node], n_services: usize) -> Result<(Vec<Client>, Vec<(Service, Vec<String>)>)> {
    let (mut clients, mut services) = (Vec::new(), Vec::new());
    for i in 0..n_services {
        let service = Service::unique("big");
        let instances: Vec<Instance> = (1..=BATCH)
            .map(|port| Instance::at(&format!("10.10.0.{i}"), port).meta("version", "1.2.3"))
            .collect();
        let client = nodes[i % nodes.len()].client().await?;
        client.batch(&service, &instances).await?;
        services.push((service, instances.iter().map(Instance::address).collect()));
        clients.push(client);
    }
    Ok((clients, services))
}

/// What a node answered from its start until it was ready.
#[derive(Debug, Default)]
struct Start {
    refused: u64,
    full: u64,
    ready_after: Duration,
}

/// Asks a starting node for lists without a pause until it is ready. Each answer is the whole list or a refusal.
async fn watch_start(node: &Node, services: &[(Service, Vec<String>)]) -> Result<Start> {
    let http = node.http();
    let begin = Clock::now();
    let mut seen = Start::default();
    for (service, addresses) in services.iter().cycle() {
        let is_ready = http.is_ready().await.unwrap_or(false);
        match http.list_reply(service, &[]).await {
            Ok(reply) if reply.status == 200 => {
                cluster_tests::List::from_json(reply.json()?)?.expect(addresses)?;
                seen.full += 1;
            }
            Ok(reply) => {
                ensure!(reply.status == 503, "a loading node answers 503, not {reply:?}");
                ensure!(!is_ready, "readiness is green but lists are refused");
                ensure!(http.is_live().await?, "a loading node is alive");
                seen.refused += 1;
            }
            Err(_) => sleep(Duration::from_millis(2)).await,
        }
        if is_ready {
            seen.ready_after = begin.elapsed();
            return Ok(seen);
        }
        ensure!(
            begin.elapsed() < 60 * SECOND,
            "not ready after {:?}: {seen:?}",
            begin.elapsed()
        );
    }
    Ok(seen)
}

/// KF-069: a starting node gives no short list and is not ready before it holds everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_is_not_ready_until_it_holds_all_20000_instances() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (_clients, services) = load(&[cluster.node(0), cluster.node(1)], 40).await?;
    let beat = Service::unique("beat");
    cluster
        .node(2)
        .http()
        .register(&beat, &Instance::at("10.10.1.1", 80).patient())
        .await?
        .ok()?;
    cluster.equal(30 * SECOND).await;
    let held = cluster.node(0).http().state().await?.instances;
    assert_eq!(held, 20_001);

    cluster.node(2).restart();

    watch_start(cluster.node(2), &services).await?;
    let state = cluster.node(2).http().state().await?;
    assert_eq!(
        (state.ready, state.instances),
        (true, held),
        "ready means everything is there"
    );
    cluster.ready().await;
    cluster.equal(SOON).await;
    for (service, addresses) in &services {
        for node in cluster.nodes() {
            node.http().list(service).await?.expect(addresses)?;
        }
    }
    cluster.eventually_listed(&beat, &["10.10.1.1:80"]).await;
    Ok(())
}

/// KF-069: a starting node gives no short list and is not ready before it holds everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_reach_the_others_serves_no_list_until_the_bound_of_the_gate() -> Result<()> {
    const PAUSE: Duration = Duration::from_secs(30);
    let cluster = Cluster::builder(3).proxied().start().await;
    let (_clients, services) = load(&[cluster.node(0), cluster.node(1)], 2).await?;
    cluster.equal(SOON).await;
    let node = cluster.node(2);
    node.kill();
    cluster.links().set_around(2, LinkState::Paused);
    let begin = Clock::now();
    node.start();

    let http = node.http();
    let mut refused = 0_u64;
    let ready_after = loop {
        let reply = http.list_reply(&services[0].0, &[]).await;
        let grpc = node.client().await;
        let after = begin.elapsed();
        match reply {
            Err(_) => {}
            Ok(reply) if reply.status == 200 => break after,
            Ok(reply) => {
                ensure!(reply.status == 503, "a loading node answers 503, not {reply:?}");
                ensure!(grpc.is_err(), "a loading node refuses gRPC clients");
                ensure!(http.is_live().await?, "a loading node is alive");
                refused += 1;
            }
        }
        ensure!(
            after < PAUSE,
            "no list after {after:?}, the gate is bounded by 20 s"
        );
        sleep(Duration::from_millis(50)).await;
    };
    ensure!(
        ready_after > 18 * SECOND && ready_after < 25 * SECOND,
        "served after {ready_after:?}"
    );
    ensure!(refused > 100, "only {refused} answers before");
    eventually("readiness is green", SOON, || async {
        ensure!(http.is_ready().await?, "readiness is red");
        Ok(())
    })
    .await;
    node.client().await?;
    sleep(PAUSE.saturating_sub(begin.elapsed())).await;

    cluster.links().heal();

    cluster.ready().await;
    cluster.equal(SOON).await;
    for (service, addresses) in &services {
        cluster.eventually_listed(service, addresses).await;
    }
    Ok(())
}

/// Clients that register, change and deregister as fast as they are answered, until told to stop.
struct Writers {
    stop: Arc<AtomicBool>,
    n_writes: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Result<()>>>,
    /// The connections, kept open until the end of the test.
    clients: Vec<Arc<Client>>,
    services: Vec<Service>,
}

impl Writers {
    async fn start(nodes: &[&Node]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let n_writes = Arc::new(AtomicU64::new(0));
        let (mut tasks, mut clients, mut services) = (Vec::new(), Vec::new(), Vec::new());
        for (i, node) in nodes.iter().enumerate() {
            for n in 0..4 {
                let service = Service::unique("churn");
                let client = Arc::new(node.client().await?);
                let run = (Arc::clone(&stop), Arc::clone(&n_writes));
                tasks.push(tokio::spawn(churn(Arc::clone(&client), service.clone(), run)));
                clients.push(client);
                services.push(service);
                let service = Service::unique("churn");
                let run = (Arc::clone(&stop), Arc::clone(&n_writes));
                let ip = format!("10.10.{i}.{n}");
                tasks.push(tokio::spawn(churn_http(node.http(), service.clone(), ip, run)));
                services.push(service);
            }
        }
        Ok(Writers {
            stop,
            n_writes,
            tasks,
            clients,
            services,
        })
    }

    async fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks.drain(..) {
            task.await??;
        }
        Ok(())
    }
}

type Run = (Arc<AtomicBool>, Arc<AtomicU64>);

async fn churn(client: Arc<Client>, service: Service, (stop, n_writes): Run) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let instance = Instance::at("10.10.9.9", fastrand::u16(1..10));
        match fastrand::u8(0..4) {
            0 => client.deregister(&service, &instance).await?,
            1 => {
                client
                    .batch(&service, &[instance, Instance::at("10.10.9.8", 80)])
                    .await?
            }
            _ => {
                client
                    .register(&service, &instance.weight(f64::from(fastrand::u8(..))))
                    .await?
            }
        }
        n_writes.fetch_add(1, Ordering::Relaxed);
    }
    client.register(&service, &Instance::at("10.10.9.9", 99)).await
}

async fn churn_http(http: Http, service: Service, ip: String, (stop, n_writes): Run) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let instance = Instance::at(&ip, fastrand::u16(1..10)).patient();
        match fastrand::bool() {
            true => http.register(&service, &instance).await?.ok()?,
            false => http.deregister(&service, &instance).await?.ok()?,
        }
        n_writes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_started_while_writes_go_on_becomes_equal() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (_clients, full) = load(&[cluster.node(0), cluster.node(1)], 4).await?;
    cluster.node(2).kill();
    let mut writers = Writers::start(&[cluster.node(0), cluster.node(1)]).await?;
    for is_frozen_too in [false, true, false] {
        cluster.node(2).start();
        watch_start(cluster.node(2), &full).await?;
        let so_far = writers.n_writes.load(Ordering::Relaxed);
        eventually("writes go on", SOON, || async {
            ensure!(
                writers.n_writes.load(Ordering::Relaxed) > so_far + 200,
                "no writes"
            );
            Ok(())
        })
        .await;
        if is_frozen_too {
            cluster.node(2).freeze();
            sleep(SECOND / 2).await;
            cluster.node(2).thaw();
        }
        cluster.node(2).kill();
    }
    cluster.node(2).start();
    cluster.node(2).ready().await;
    writers.stop().await?;

    cluster.ready().await;
    cluster.equal(SOON).await;
    for service in &writers.services {
        let wanted = cluster.node(0).http().list(service).await?.hosts;
        for node in &cluster.nodes()[1..] {
            assert_eq!(
                node.http().list(service).await?.hosts,
                wanted,
                "{} at {}",
                service.name,
                node.address()
            );
        }
    }
    ensure!(
        !writers.clients.iter().any(|client| client.is_closed()),
        "a writer lost its connection"
    );
    Ok(())
}

/// KF-070: a cluster that starts again has its clients' instances back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_cluster_that_starts_again_takes_its_clients_back() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let servers: Vec<_> = cluster.nodes().iter().map(Node::grpc_address).collect();
    let service = Service::unique("again");
    let clients = try_join_all((0..30_u16).map(|i| {
        let (servers, service) = (servers.clone(), &service);
        async move {
            let client = cluster_tests::SdkClient::start(servers, usize::from(i)).await;
            client
                .register(service, &Instance::at("10.10.2.1", i + 1))
                .await?;
            anyhow::Ok(client)
        }
    }))
    .await?;
    let all: Vec<String> = (1..=30).map(|port| format!("10.10.2.1:{port}")).collect();
    cluster.eventually_listed(&service, &all).await;

    for node in cluster.nodes() {
        node.kill();
    }
    for node in cluster.nodes() {
        node.start();
    }

    cluster.ready().await;
    cluster.eventually_listed(&service, &all).await;
    ensure!(
        clients.iter().all(|client| client.sessions() >= 2),
        "a client did not reconnect"
    );
    cluster.equal(SOON).await;
    Ok(())
}

/// KF-071: an empty node takes over more than 20 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_takes_over_20_megabytes() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (mut clients, mut services) = (Vec::new(), Vec::new());
    for i in 0..3 {
        let service = Service::unique("wide");
        // Near the largest request that is taken, 10 MiB.
        let instances: Vec<Instance> = (1..=7_500)
            .map(|port| Instance::at(&format!("10.10.3.{i}"), port).meta("blob", &"x".repeat(1000)))
            .collect();
        let client = cluster.node(i % 2).client().await?;
        client.batch(&service, &instances).await?;
        let addresses: Vec<String> = instances.iter().map(Instance::address).collect();
        services.push((service, addresses));
        clients.push(client);
    }
    cluster.equal(30 * SECOND).await;

    cluster.node(2).restart();

    watch_start(cluster.node(2), &services).await?;
    cluster.ready().await;
    cluster.equal(SOON).await;
    ensure!(
        !clients.iter().any(Client::is_closed),
        "a client lost its connection"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_set_survives_the_restart_of_every_node() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (over_http, over_grpc) = (Service::unique("kept"), Service::unique("kept"));
    let instance = Instance::at("10.10.4.1", 80).patient();
    let changed = instance.clone().weight(3.5).meta("lane", "a");
    let servers: Vec<_> = cluster.nodes().iter().map(Node::grpc_address).collect();
    let client = cluster_tests::SdkClient::start(servers, 1).await;
    client.register(&over_grpc, &instance).await?;
    cluster
        .node(0)
        .http()
        .register(&over_http, &instance)
        .await?
        .ok()?;
    for service in [&over_http, &over_grpc] {
        cluster.eventually_listed(service, &["10.10.4.1:80"]).await;
        cluster.node(2).http().update(service, &changed).await?.ok()?;
        cluster
            .eventually_list(service, SOON, |list| list.expect_only(&changed))
            .await;
    }

    for node in cluster.nodes() {
        node.restart();
        cluster.ready().await;
        cluster.equal(SOON).await;
        for service in [&over_http, &over_grpc] {
            cluster
                .eventually_list(service, SOON, |list| list.expect_only(&changed))
                .await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_starts_without_a_member_that_is_down() -> Result<()> {
    let cluster = Cluster::builder(3).hold_back(1).launch();
    let begin = Clock::now();
    cluster.ready().await;
    ensure!(begin.elapsed() < 25 * SECOND, "ready after {:?}", begin.elapsed());
    let service = Service::unique("two-of-three");
    cluster
        .node(2)
        .http()
        .register(&service, &Instance::at("10.10.5.1", 80).patient())
        .await?
        .ok()?;
    cluster.eventually_listed(&service, &["10.10.5.1:80"]).await;

    cluster.node(1).start();

    cluster.ready().await;
    cluster.eventually_listed(&service, &["10.10.5.1:80"]).await;
    cluster.equal(SOON).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_crashes_again_and_again_ends_equal() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (_clients, services) = load(&[cluster.node(0), cluster.node(1)], 4).await?;
    let mut writers = Writers::start(&[cluster.node(0), cluster.node(1)]).await?;
    for round in 0..12 {
        cluster.node(2).restart();
        // Killed at any moment of its start: at once, while it loads, when it is ready.
        sleep(Duration::from_millis(fastrand::u64(0..40 * (round + 1)))).await;
    }
    watch_start(cluster.node(2), &services).await?;
    writers.stop().await?;
    cluster.ready().await;
    cluster.equal(SOON).await;
    for (service, addresses) in &services {
        cluster.eventually_listed(service, addresses).await;
    }
    Ok(())
}

/// A terminal that is closed ends a node in good order, and one that was started to outlive its terminal goes on.
#[tokio::test]
async fn a_hangup_ends_a_node_in_good_order_or_not_at_all() -> Result<()> {
    let (block, dir) = (Block::claim(2), tempfile::tempdir()?);
    let start = |at: usize, is_ignored| {
        let args = vec!["--bind".to_owned(), block.ip(at).to_string()];
        let node = Node::new(block.place(at).clone(), args, dir.path().join(at.to_string()));
        let node = node.with_hangup(is_ignored);
        node.start();
        node
    };
    let (ending, staying) = (start(0, false), start(1, true));
    for node in [&ending, &staying] {
        node.ready().await;
        node.hang_up();
    }
    let status = ending.wait_exit(2 * SOON).await;
    ensure!(status.code() == Some(0), "{status:?}");
    let log = ending.log();
    ensure!(log.contains("SIGHUP") && log.contains("leaving"), "{log}");
    always("the other one serves", SECOND, || async {
        ensure!(staying.http().is_ready().await?);
        Ok(())
    })
    .await;
    staying.terminate();
    let status = staying.wait_exit(2 * SOON).await;
    ensure!(status.code() == Some(0), "{status:?}");
    ensure!(staying.log().contains("SIGTERM"), "{}", staying.log());
    Ok(())
}
