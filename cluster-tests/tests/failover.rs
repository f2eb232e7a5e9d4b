//! A node goes, in whatever way: its clients move, and no list of another node lacks a live instance meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::fault::{LinkState, Proxy};
use cluster_tests::{
    BeatingInstance, Client, Cluster, Http, Instance, SdkClient, Service, Watch, eventually,
};
use futures_util::future::try_join_all;

const SECOND: Duration = Duration::from_secs(1);

/// Longer than rows of a member that is gone stay (15 s).
const PAST_THE_GRACE: Duration = Duration::from_secs(18);

/// Live instances of all kinds, spread over all nodes, with clients that move when their node goes.
struct Fleet {
    clients: Vec<SdkClient>,
    beats: Vec<BeatingInstance>,
    live: Vec<(Service, Vec<String>)>,
}

impl Fleet {
    /// So many gRPC clients and HTTP instances on each node; each pair of services is shared by ten of them.
    async fn start(cluster: &Cluster, per_node: u16) -> Result<Self> {
        let servers: Vec<SocketAddr> = cluster.nodes().iter().map(|n| n.grpc_address()).collect();
        let https: Vec<Http> = cluster.nodes().iter().map(|n| n.http()).collect();
        let n = per_node * u16::try_from(servers.len())?;
        let services: Vec<(Service, Service)> = (0..n.div_ceil(10))
            .map(|_| (Service::unique("sdk"), Service::unique("beat")))
            .collect();
        let clients = try_join_all((0..n).map(|i| {
            let (servers, services) = (servers.clone(), &services);
            async move {
                let client = SdkClient::with_pause(servers, usize::from(i), 2 * SECOND).await;
                let service = &services[usize::from(i / 10)].0;
                client.register(service, &Instance::at("10.9.0.1", i + 1)).await?;
                client.subscribe(service).await?;
                anyhow::Ok(client)
            }
        }))
        .await?;
        let beats = try_join_all((0..n).map(|i| {
            let mut nodes = https.clone();
            nodes.rotate_left(usize::from(i) % https.len());
            let service = services[usize::from(i / 10)].1.clone();
            let instance = Instance::at("10.9.0.2", i + 1).beat_times(1_000, 8_000, 12_000);
            BeatingInstance::start(nodes, service, instance, SECOND)
        }))
        .await?;
        let live = services
            .iter()
            .zip((0..n).step_by(10))
            .flat_map(|((over_grpc, over_http), first)| {
                let of = |ip: &str| {
                    (first..n.min(first + 10))
                        .map(|i| format!("{ip}:{}", i + 1))
                        .collect()
                };
                [
                    (over_grpc.clone(), of("10.9.0.1")),
                    (over_http.clone(), of("10.9.0.2")),
                ]
            })
            .collect();
        let fleet = Fleet { clients, beats, live };
        fleet.is_listed(cluster).await;
        Ok(fleet)
    }

    /// Waits until every running node lists exactly the live instances.
    async fn is_listed(&self, cluster: &Cluster) {
        for (service, addresses) in &self.live {
            cluster.eventually_listed(service, addresses).await;
        }
    }

    /// Watches all services at some nodes.
    fn watch(&self, nodes: &[&cluster_tests::Node]) -> Watch {
        Watch::start(nodes.iter().map(|node| node.http()).collect(), self.live.clone())
    }

    /// Waits until no client is connected to this node, and each is connected somewhere.
    async fn has_left(&self, node: SocketAddr) {
        eventually("all clients have moved", 2 * SOON, || async {
            let left = self
                .clients
                .iter()
                .filter(|c| c.server().is_none_or(|server| server == node))
                .count();
            ensure!(left == 0, "{left} clients are still there or nowhere");
            Ok(())
        })
        .await;
    }

    /// Checks that subscribers of every service know all its instances, and knew them all the time.
    async fn is_known_to_subscribers(&self) -> Result<()> {
        for (i, client) in self.clients.iter().enumerate() {
            let (service, addresses) = &self.live[i / 10 * 2];
            eventually("a subscriber knows all instances", SOON, || async {
                let Some(list) = client.latest(service) else {
                    anyhow::bail!("no list")
                };
                list.expect(addresses)
            })
            .await;
        }
        let shrinks: u64 = self.clients.iter().map(SdkClient::shrinks).sum();
        ensure!(
            shrinks == 0,
            "{shrinks} lists that subscribers got lacked an instance of the list before"
        );
        Ok(())
    }
}

impl Fleet {
    /// Changes every service once and checks that all its subscribers are told.
    async fn hears_of_changes(&self, cluster: &Cluster) -> Result<()> {
        for (n, (service, _)) in self.live.iter().step_by(2).enumerate() {
            let provider = cluster.node(n % 3).client().await?;
            provider.register(service, &Instance::at("10.9.0.9", 1)).await?;
            for (i, client) in self.clients.iter().enumerate().filter(|(i, _)| i / 10 == n) {
                eventually("a change reaches every subscriber", SOON, || async {
                    let Some(list) = client.latest(service) else {
                        anyhow::bail!("no list")
                    };
                    list.at("10.9.0.9:1")
                        .with_context(|| format!("client {i} of {}", service.name))?;
                    Ok(())
                })
                .await;
            }
        }
        Ok(())
    }
}

/// Checks that a watch saw many answers and none that lacked anything.
fn has_no_gaps(watch: &Watch) -> Result<()> {
    let seen = watch.seen();
    ensure!(seen.answers > 100, "only {} answers", seen.answers);
    ensure!(
        seen.failures.is_empty(),
        "a list was refused: {:?}",
        &seen.failures[..seen.failures.len().min(3)]
    );
    ensure!(
        seen.gaps.is_empty(),
        "{} of {} answers lacked an instance: {:?}",
        seen.gaps.len(),
        seen.answers,
        &seen.gaps[..seen.gaps.len().min(3)]
    );
    Ok(())
}

/// KF-065, KF-083, KF-101: a killed node takes no live instance along; after the restart of a node every change
/// reaches all subscribers; all clients of a node that ended are back (here 120 in all).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_leaves_no_gap_in_any_list() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let fleet = Fleet::start(&cluster, 40).await?;
    let survivors = [cluster.node(1), cluster.node(2)];
    let watch = fleet.watch(&survivors);
    let killed = cluster.node(0).grpc_address();

    cluster.node(0).kill();

    fleet.has_left(killed).await;
    tokio::time::sleep(PAST_THE_GRACE).await;
    has_no_gaps(&watch)?;
    for (service, addresses) in &fleet.live {
        for node in survivors {
            let rows = node.http().rows(service).await?;
            assert_eq!(rows.len(), addresses.len());
            let is_orphan = |row: &&cluster_tests::http::Row| row.publishers.iter().any(|p| p.is_orphan);
            ensure!(
                !rows.iter().any(|r| is_orphan(&r)),
                "an orphan after the grace: {rows:?}"
            );
        }
    }
    fleet.is_known_to_subscribers().await?;
    ensure!(
        fleet.beats.iter().all(|beat| beat.unknown() == 0),
        "a beat met an unknown instance"
    );
    cluster.equal(SOON).await;

    // And back again.
    cluster.node(0).start();
    cluster.ready().await;
    cluster.equal(SOON).await;
    fleet.is_listed(&cluster).await;
    fleet.hears_of_changes(&cluster).await?;
    has_no_gaps(&watch)
}

/// KF-113: a rolling restart leaves no gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_leaves_no_gap_in_any_list() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let fleet = Fleet::start(&cluster, 20).await?;
    let all: Vec<&cluster_tests::Node> = cluster.nodes().iter().collect();
    let watch = fleet.watch(&all);
    for node in &all {
        node.kill();
        fleet.has_left(node.grpc_address()).await;
        node.start();
        cluster.ready().await;
        cluster.equal(SOON).await;
    }
    fleet.is_listed(&cluster).await;
    fleet.is_known_to_subscribers().await?;
    fleet.hears_of_changes(&cluster).await?;
    // Nodes that are down or loading give no list; those that give one give all of it.
    let seen = watch.seen();
    ensure!(
        seen.gaps.is_empty(),
        "{} of {} answers: {:?}",
        seen.gaps.len(),
        seen.answers,
        seen.gaps.first()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_node_leaves_no_gap_in_any_list() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let fleet = Fleet::start(&cluster, 10).await?;
    let survivors = [cluster.node(0), cluster.node(2)];
    let watch = fleet.watch(&survivors);

    cluster.node(1).freeze();

    let http = cluster.node(0).http();
    let hung = cluster.node(1).address();
    eventually("a hung node counts as failed", SOON, || async {
        let members = http.state().await?.members;
        ensure!(
            members.iter().any(|m| m.address == hung && m.state == "DOWN"),
            "{members:?}"
        );
        Ok(())
    })
    .await;
    // Its clients find out by their own health checks.
    fleet.has_left(cluster.node(1).grpc_address()).await;
    for service in fleet.live.iter().map(|(service, _)| service).take(5) {
        http.register(service, &Instance::at("10.9.0.3", 1).patient())
            .await?
            .ok()?;
        http.deregister(service, &Instance::at("10.9.0.3", 1))
            .await?
            .ok()?;
    }
    has_no_gaps(&watch)?;

    cluster.node(1).thaw();
    cluster.ready().await;
    cluster.equal(SOON).await;
    fleet.is_listed(&cluster).await;
    fleet.is_known_to_subscribers().await?;
    has_no_gaps(&watch)
}

/// What became of writes while a member hung.
#[derive(Default)]
struct Written {
    /// When each was begun, counted from the moment at which the member stood still, and how long it took.
    times: Vec<(Duration, Duration)>,
    failures: Vec<String>,
}

/// W11: a member hangs. Clients that write through the others wait for it once, for half a second, and no write
/// is refused; the figures are printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_pass_a_hung_owner_after_one_time_out() -> Result<()> {
    const WRITERS: u16 = 8;
    let cluster = Cluster::start(3).await;
    let services: Vec<Service> = (0..30).map(|_| Service::unique("hung")).collect();
    let entries = [cluster.node(0).http(), cluster.node(2).http()];
    let write = async |writer: u16, n: u16| -> Result<()> {
        let service = &services[(usize::from(n) * 7 + usize::from(writer)) % services.len()];
        let instance = Instance::at(&format!("10.9.2.{writer}"), n + 1).patient();
        entries[usize::from(writer) % 2]
            .register(service, &instance)
            .await?
            .ok()
    };
    for n in 0..20 {
        for writer in 0..WRITERS {
            write(writer, n).await?;
        }
    }

    cluster.node(1).freeze();
    let frozen = tokio::time::Instant::now();
    let all = parking_lot::Mutex::new(Written::default());
    let (write, written) = (&write, &all);
    let writers = (0..WRITERS).map(|writer| async move {
        for n in 20.. {
            let begun = frozen.elapsed();
            if begun > 5 * SECOND {
                break;
            }
            let done = write(writer, n).await;
            let mut written = written.lock();
            written.times.push((begun, frozen.elapsed() - begun));
            written
                .failures
                .extend(done.err().map(|error| format!("{error:#}")));
        }
    });
    futures_util::future::join_all(writers).await;
    cluster.node(1).thaw();

    let Written { mut times, failures } = all.into_inner();
    ensure!(
        failures.is_empty(),
        "{} failed: {:?}",
        failures.len(),
        failures.first()
    );
    let waited = times
        .iter()
        .filter(|(_, took)| *took >= Duration::from_millis(400));
    let (n_waited, last) = (waited.clone().count(), waited.map(|(begun, _)| *begun).max());
    times.sort_by_key(|(_, took)| *took);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].1;
    println!(
        "{} writes while a member hangs: p50 {:?}, p99 {:?}, max {:?}; {n_waited} waited for it, the last begun at {last:?}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    ensure!(
        n_waited <= usize::from(2 * WRITERS),
        "{n_waited} writes waited for it"
    );
    ensure!(
        last.is_none_or(|begun| begun < 2 * SECOND),
        "one waited for it at {last:?}"
    );
    ensure!(at(1.0) < 2 * SECOND, "one took {:?}", at(1.0));
    cluster.ready().await;
    cluster.equal(SOON).await;
    Ok(())
}

/// Freezes a node for longer than any of its clients may be silent, and checks that it holds that against none.
async fn blames_nobody_after_a_freeze(n_nodes: usize) -> Result<()> {
    let cluster = Cluster::start(n_nodes).await;
    let over_grpc = Service::unique("frozen");
    let over_http = cluster.service_owned_by(0, "frozen").await?;
    let client = cluster.node(0).client().await?;
    client.register(&over_grpc, &Instance::at("10.9.0.8", 1)).await?;
    let https: Vec<Http> = cluster.nodes().iter().map(|n| n.http()).collect();
    let beating = Instance::at("10.9.0.8", 2).beat_times(500, 6_000, 9_000);
    let beats = BeatingInstance::start(https.clone(), over_http.clone(), beating, SECOND / 2).await?;
    cluster.eventually_listed(&over_http, &["10.9.0.8:2"]).await;
    cluster.eventually_listed(&over_grpc, &["10.9.0.8:1"]).await;

    cluster.node(0).freeze();
    tokio::time::sleep(16 * SECOND).await;
    // A client that asks meanwhile whether its node lives would leave at once if that were refused.
    let nothing = serde_json::json!({});
    let asking = client.send("HealthCheckRequest", &nothing);
    let thawing = async {
        tokio::time::sleep(SECOND / 10).await;
        cluster.node(0).thaw();
    };
    tokio::join!(asking, thawing).0?.accepted()?;

    // It may refuse lists for a moment, but one that it gives has both.
    cluster_tests::always("both are listed after the freeze", 3 * SECOND, || async {
        for (service, address) in [(&over_grpc, "10.9.0.8:1"), (&over_http, "10.9.0.8:2")] {
            let reply = https[0].list_reply(service, &[]).await?;
            if reply.status != 503 {
                let list = cluster_tests::List::from_json(reply.json()?)?;
                ensure!(list.at(address)?.healthy, "{address} is unhealthy");
            }
        }
        Ok(())
    })
    .await;
    cluster.ready().await;
    ensure!(
        !client.is_closed() && beats.unknown() == 0,
        "a client was given up"
    );
    cluster.eventually_listed(&over_grpc, &["10.9.0.8:1"]).await;
    cluster.equal(SOON).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_040_a_single_node_that_was_frozen_blames_nobody() -> Result<()> {
    blames_nobody_after_a_freeze(1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_040_a_member_that_was_frozen_blames_nobody() -> Result<()> {
    blames_nobody_after_a_freeze(3).await
}

/// KF-084: a planned stop leaves no gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_node_stops_in_good_order() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let fleet = Fleet::start(&cluster, 20).await?;
    let survivors = [cluster.node(0), cluster.node(1)];
    let watch = fleet.watch(&survivors);
    let stopped = cluster.node(2).grpc_address();

    cluster.node(2).terminate();

    let status = cluster.node(2).wait_exit(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(0), "{status:?}");
    fleet.has_left(stopped).await;
    tokio::time::sleep(PAST_THE_GRACE).await;
    has_no_gaps(&watch)?;
    fleet.is_known_to_subscribers().await?;
    cluster.equal(SOON).await;
    Ok(())
}

/// KF-079: clients that die with their node are gone after the grace.
#[tokio::test]
async fn clients_that_die_with_their_node_are_gone_after_the_grace() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("doomed");
    let (doomed, survivor) = (cluster.node(0).client().await?, cluster.node(1).client().await?);
    doomed.register(&service, &Instance::at("10.9.0.4", 1)).await?;
    survivor.register(&service, &Instance::at("10.9.0.4", 2)).await?;
    cluster
        .eventually_listed(&service, &["10.9.0.4:1", "10.9.0.4:2"])
        .await;

    cluster.node(0).kill();
    drop(doomed);

    let http = cluster.node(2).http();
    http.list(&service).await?.expect(&["10.9.0.4:1", "10.9.0.4:2"])?;
    // A refused connection is a member that is gone: its rows stay 15 s, and it took a second or two to see it.
    cluster
        .eventually_list(&service, 25 * SECOND, |list| list.expect(&["10.9.0.4:2"]))
        .await;
    Ok(())
}

#[tokio::test]
async fn the_owner_of_a_dead_nodes_services_is_another_node() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let moved = cluster.service_owned_by(2, "moved").await?;
    let kept = cluster.service_owned_by(1, "kept").await?;
    let instance = Instance::at("10.9.0.5", 80).patient();
    let before = cluster.node(0).http();
    before.register(&moved, &instance).await?.ok()?;
    cluster.node(2).kill();

    // At once, before anybody knows of the death: the write still succeeds.
    before
        .register(&moved, &Instance::at("10.9.0.5", 81).patient())
        .await?
        .ok()?;

    let dead = cluster.node(2).address();
    for node in cluster.running() {
        let http = node.http();
        eventually("another owner", SOON, || async {
            let owner = http.owner(&moved).await?;
            ensure!(owner != dead, "still {owner}");
            Ok(())
        })
        .await;
        assert_eq!(
            http.owner(&kept).await?,
            cluster.node(1).address(),
            "only the dead node's share moves"
        );
    }
    cluster
        .node(1)
        .http()
        .register(&moved, &Instance::at("10.9.0.5", 82).patient())
        .await?
        .ok()?;
    cluster
        .eventually_listed(&moved, &["10.9.0.5:80", "10.9.0.5:81", "10.9.0.5:82"])
        .await;
    let states = before.cluster_nodes().await?;
    ensure!(states.contains(&(dead, "DOWN".into())), "{states:?}");
    Ok(())
}

/// KF-063: a client whose network is cut without a word is gone everywhere within 45 s.
#[tokio::test]
async fn a_client_whose_network_is_cut_without_a_word_is_gone() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("cut-off");
    let line = Proxy::start(([127, 0, 0, 1], 0).into(), cluster.node(0).grpc_address())?;
    let cut_off = Client::connect(line.address()).await?;
    cut_off.register(&service, &Instance::at("10.9.0.6", 1)).await?;
    cut_off.subscribe(&service, "").await?;
    let subscriber = cluster.node(1).client().await?;
    subscriber.subscribe(&service, "").await?;
    cluster.eventually_listed(&service, &["10.9.0.6:1"]).await;
    line.set(LinkState::Paused);
    let cut = tokio::time::Instant::now();

    // Many large lists for somebody who does not read: others do not notice.
    let provider = cluster.node(0).client().await?;
    let fill: Vec<Instance> = (1..=500)
        .map(|p| Instance::at("10.9.0.7", p).meta("x", &"x".repeat(900)))
        .collect();
    let before = cluster.node(0).resident_memory()?;
    let http = cluster.node(0).http();
    for n in 1..=50 {
        provider.batch(&service, &fill[n..]).await?;
        let list = http.list(&service).await?;
        let listed = list.hosts.iter().filter(|host| host.ip == "10.9.0.7").count();
        ensure!(listed == fill.len() - n, "{listed} instances after {n} changes");
    }
    let grown = cluster.node(0).resident_memory()?.saturating_sub(before);
    ensure!(grown < 64 << 20, "the node grew by {grown} bytes");

    cluster
        .eventually_list(&service, 25 * SECOND, |list| {
            ensure!(
                list.at("10.9.0.6:1").is_err(),
                "still listed after {:?}",
                cut.elapsed()
            );
            Ok(())
        })
        .await;
    let left: Vec<String> = fill[50..].iter().map(Instance::address).collect();
    subscriber
        .pushed(&service, SOON, |list| list.expect(&left))
        .await?;
    ensure!(
        cut.elapsed() > 10 * SECOND,
        "a client may be silent for 10 s: {:?}",
        cut.elapsed()
    );
    Ok(())
}
