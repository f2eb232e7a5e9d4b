//! What takes minutes: the times that hold unless set, kept by real clocks, and memory, files and processor time over
//! many rounds.
//!
//! Ignored but for `scripts/test.sh --soak`; about ten minutes. The same behaviour is tested by the other files with
//! shortened times, and in virtual time by `crates/node/tests`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{
    Acks, BeatingInstance, Client, ClientOptions, Cluster, Http, Instance, LinkState, List, Node, SdkClient,
    Service, Watch, always, eventually,
};
use futures_util::future::try_join_all;
use tokio::time::{Instant as Clock, interval, sleep_until};

const NOBODY: [&str; 0] = [];

const SECOND: Duration = Duration::from_secs(1);

/// The interval of beats that clients keep unless told otherwise.
const BEAT: Duration = Duration::from_secs(5);

/// Memory that a node may use more after many rounds than after the first: what allocators and caches settle to.
const SETTLING: u64 = 24 << 20;

fn https(cluster: &Cluster) -> Vec<Http> {
    cluster.running().map(Node::http).collect()
}

/// Waits at every node until it shows that an instance is unhealthy, and then that it is gone; both on the schedule of
/// the default times after the last beat.
async fn declines_on_schedule(
    cluster: &Cluster,
    service: &Service,
    address: &str,
    last_beat: Clock,
) -> Result<()> {
    let watches = https(cluster).into_iter().map(|http| async move {
        let mut unhealthy = None;
        loop {
            let list = http.list(service).await?;
            let after = last_beat.elapsed();
            match list.at(address) {
                Ok(instance) if instance.healthy => ensure!(unhealthy.is_none(), "healthy again"),
                Ok(_) => _ = unhealthy.get_or_insert(after),
                Err(_) => break anyhow::Ok((unhealthy, after)),
            }
            ensure!(after < 60 * SECOND, "{address} is still listed");
            tokio::time::sleep(SECOND / 5).await;
        }
    });
    for (unhealthy, gone) in try_join_all(watches).await? {
        let unhealthy = unhealthy.context("it went without turning unhealthy")?;
        // A beat is timed when it is sent here and when it is heard there.
        let slack = SECOND / 2;
        ensure!(
            unhealthy > 15 * SECOND - slack && unhealthy < 20 * SECOND + slack,
            "unhealthy after {unhealthy:?}"
        );
        ensure!(
            gone > 30 * SECOND - slack && gone < 36 * SECOND + slack,
            "gone after {gone:?}"
        );
    }
    Ok(())
}

/// KF-004, KF-042, KF-043: instances by address and by name, of one service and of two, go on schedule one after the
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn instances_decline_by_the_default_times_on_every_node() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (pair, elsewhere) = (Service::unique("pair"), Service::unique("elsewhere"));
    let (named, plain) = (
        Instance::at("node-1.example.test", 8091),
        Instance::at("192.0.2.70", 8080),
    );
    let start = async |service: &Service, instance: &Instance| {
        BeatingInstance::start(https(&cluster), service.clone(), instance.clone(), BEAT).await
    };
    let beats = [start(&pair, &named).await?, start(&pair, &plain).await?];
    cluster
        .eventually_listed(&pair, &[named.address(), plain.address()])
        .await;

    for (beat, instance) in beats.into_iter().zip([&named, &plain]) {
        let n_beats = beat.beats();
        eventually("one more beat", 2 * BEAT, || async {
            ensure!(beat.beats() > n_beats, "none yet");
            Ok(())
        })
        .await;
        drop(beat);
        let last_beat = Clock::now();
        // The address goes on to beat, for another service.
        let _other = start(&elsewhere, instance).await?;
        declines_on_schedule(&cluster, &pair, &instance.address(), last_beat).await?;
        ensure!(
            cluster
                .node(0)
                .http()
                .list(&elsewhere)
                .await?
                .at(&instance.address())?
                .healthy,
            "the other service keeps it"
        );
    }
    cluster.eventually_listed(&pair, &NOBODY).await;
    Ok(())
}

/// KF-096: services that emptied stay listed for a minute and are listed nowhere after three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn empty_services_are_cleaned_up_after_a_minute() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let client = cluster.node(0).client().await?;
    let instance = Instance::at("10.17.0.96", 80);
    for _ in 0..300 {
        let (over_grpc, over_http) = (Service::unique("emptied"), Service::unique("emptied"));
        client.register(&over_grpc, &instance).await?;
        client.deregister(&over_grpc, &instance).await?;
        let http = cluster.node(1).http();
        http.register(&over_http, &instance).await?.ok()?;
        http.deregister(&over_http, &instance).await?.ok()?;
    }
    let emptied = Clock::now();
    for http in https(&cluster) {
        eventually("all are listed at first", SOON, || async {
            let (count, _) = http.services("public", "DEFAULT_GROUP", 1, 1).await?;
            ensure!(count == 600, "{count} services");
            Ok(())
        })
        .await;
    }
    sleep_until(emptied + 40 * SECOND).await;
    for http in https(&cluster) {
        let (count, _) = http.services("public", "DEFAULT_GROUP", 1, 1).await?;
        ensure!(count == 600, "{count} services after 40 s");
    }
    for http in https(&cluster) {
        eventually("none is listed", 140 * SECOND, || async {
            let (count, _) = http.services("public", "DEFAULT_GROUP", 1, 1).await?;
            ensure!(
                count == 0 && http.state().await?.services == 0,
                "{count} services"
            );
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// KF-092: an override outlives its row for the time that is set, through a restart of the owner, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn an_override_ends_so_long_after_its_row_was_seen() -> Result<()> {
    let cluster = Cluster::builder(3).flag("--override-life", "60s").start().await;
    let (kept, ended) = (Service::unique("override"), Service::unique("override"));
    let instance = Instance::at("10.17.0.92", 80);
    let mut off = instance.clone();
    off.enabled = false;
    let client = cluster.node(0).client().await?;
    for service in [&kept, &ended] {
        client.register(service, &instance).await?;
        cluster.eventually_listed(service, &["10.17.0.92:80"]).await;
        cluster.node(1).http().update(service, &off).await?.ok()?;
        cluster.eventually_listed(service, &NOBODY).await;
    }
    drop(client);
    let gone = Clock::now();
    cluster.node(1).restart();
    cluster.ready().await;

    sleep_until(gone + 40 * SECOND).await;
    let client = cluster.node(2).client().await?;
    client.register(&kept, &instance).await?;
    always("the override is kept", 10 * SECOND, || async {
        cluster.node(0).http().list(&kept).await?.expect(&NOBODY)
    })
    .await;
    sleep_until(gone + 130 * SECOND).await;
    client.register(&ended, &instance).await?;
    cluster.eventually_listed(&ended, &["10.17.0.92:80"]).await;
    cluster.node(0).http().list(&kept).await?.expect(&NOBODY)
}

/// KF-104, and the default times of idle connections: clients that answer stay for as long as they like, those that do
/// not are dropped within 20 s, and a node that nothing happens on uses next to no processor time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn idle_clients_stay_silent_ones_go_and_neither_costs_processor_time() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let node = cluster.node(0);
    let service = Service::unique("idle");
    let idle = try_join_all((0..100).map(|_| node.client())).await?;
    for (port, client) in (1..).zip(&idle) {
        client
            .register(&service, &Instance::at("10.17.0.104", port))
            .await?;
    }
    let all: Vec<String> = (1..=100).map(|port| format!("10.17.0.104:{port}")).collect();
    cluster.eventually_listed(&service, &all).await;

    let mute = Service::unique("mute");
    let silent = node
        .client_with(ClientOptions::default().acks(Acks::None))
        .await?;
    silent.register(&mute, &Instance::at("10.17.0.105", 80)).await?;
    silent.stream_end(20 * SECOND).await?;
    cluster.eventually_listed(&mute, &NOBODY).await;

    let (start, used) = (Clock::now(), node.cpu_time()?);
    sleep_until(start + 120 * SECOND).await;
    let used = node.cpu_time()?.saturating_sub(used);
    // 2 % of one processor, questions to 100 clients and digests of two members included.
    ensure!(used < start.elapsed() / 50, "{used:?} of {:?}", start.elapsed());
    ensure!(
        !idle.iter().any(Client::is_closed),
        "a client that answers was dropped"
    );
    cluster.eventually_listed(&service, &all).await;
    Ok(())
}

/// What a node holds, and what the operating system says it uses.
async fn use_of(node: &Node) -> Result<(u64, usize)> {
    Ok((node.resident_memory()?, node.open_files()?))
}

/// KF-103: thousands of clients with instances and services of their own come and go; memory, open files and counts are
/// then what they were after the first of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn clients_that_come_and_go_leave_no_memory_behind() -> Result<()> {
    const ROUNDS: u16 = 120;
    const CLIENTS: u16 = 50;
    let cluster = Cluster::builder(3)
        .flag("--empty-service-life", "5s")
        .start()
        .await;
    let visit = async |round: u16, n: u16| {
        let node = cluster.node(usize::from(n) % 3);
        let client = node.client().await?;
        let http = cluster.node(usize::from(n + 1) % 3).http();
        let port = round * CLIENTS + n;
        let service = Service::unique("visited");
        let instance = Instance::at("10.17.0.103", port).meta("k", &"v".repeat(200));
        client.register(&service, &instance).await?;
        client.subscribe(&service, "").await?;
        let beating = Instance::at("10.17.1.103", port).beat_times(1_000, 2_000, 4_000);
        http.register(&service, &beating).await?.ok()?;
        client.query(&service).await?;
        anyhow::Ok(())
    };
    let mut first = Vec::new();
    for round in 0..ROUNDS {
        try_join_all((0..CLIENTS).map(|n| visit(round, n))).await?;
        if round == ROUNDS / 6 {
            for node in cluster.nodes() {
                first.push(use_of(node).await?);
            }
        }
    }
    for (node, (memory, files)) in cluster.nodes().iter().zip(first) {
        let http = node.http();
        eventually("all is gone", 60 * SECOND, || async {
            let state = http.state().await?;
            let left = (state.connections, state.services, state.instances);
            ensure!(left == (0, 0, 0), "{left:?}");
            Ok(())
        })
        .await;
        eventually("memory and files are given back", 60 * SECOND, || async {
            let (last, open) = use_of(node).await?;
            ensure!(
                last < memory + SETTLING,
                "{memory} bytes at first, {last} at last"
            );
            ensure!(open <= files + 20, "{files} files at first, {open} at last");
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// KF-054: subscribers that never acknowledge cost no memory over minutes of changes, and nobody else a late push.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn subscribers_that_never_acknowledge_cost_nothing_over_minutes() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let node = cluster.node(0);
    let service = Service::unique("unacknowledged");
    let options = ClientOptions::default().acks(Acks::DetectionOnly);
    let silent = try_join_all((0..100).map(|_| node.client_with(options.clone()))).await?;
    for client in &silent {
        client.subscribe(&service, "").await?;
    }
    let (good, provider) = (node.client().await?, node.client().await?);
    good.subscribe(&service, "").await?;
    let (start, mut pace, mut first) = (Clock::now(), interval(SECOND / 10), None);
    let mut change = 0;
    while start.elapsed() < 150 * SECOND {
        pace.tick().await;
        change += 1;
        let instance = Instance::at("10.17.0.54", change).meta("blob", &"x".repeat(900));
        provider.register(&service, &instance).await?;
        good.pushed_exactly(&service, &[&instance.address()], 2 * SECOND)
            .await?;
        if start.elapsed() > 30 * SECOND && first.is_none() {
            first = Some(node.resident_memory()?);
        }
    }
    let (first, last) = (first.context("too short")?, node.resident_memory()?);
    ensure!(last < first + SETTLING, "{first} bytes at first, {last} at last");
    ensure!(
        !silent.iter().any(Client::is_closed),
        "a client that lives was dropped"
    );
    Ok(())
}

/// KF-041, KF-085: instances whose beats all go to one node are healthy everywhere for minutes, while others of their
/// service come and go ten times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn instances_that_beat_at_one_node_are_healthy_everywhere() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = cluster.service_owned_by(1, "steady").await?;
    let one = vec![cluster.node(0).http()];
    let beats = try_join_all((1..=100).map(|port| {
        let instance = Instance::at("10.17.0.41", port);
        BeatingInstance::start(one.clone(), service.clone(), instance, BEAT)
    }))
    .await?;
    let all: Vec<String> = (1..=100).map(|port| format!("10.17.0.41:{port}")).collect();
    cluster.eventually_listed(&service, &all).await;
    let watch = Watch::start(https(&cluster), vec![(service.clone(), all)]);
    let (start, mut pace) = (Clock::now(), interval(SECOND / 10));
    let (passing, http) = (Instance::at("10.17.1.41", 80), cluster.node(2).http());
    while start.elapsed() < 120 * SECOND {
        pace.tick().await;
        http.register(&service, &passing).await?.ok()?;
        http.deregister(&service, &passing).await?.ok()?;
    }
    let seen = watch.seen();
    ensure!(
        seen.answers > 1000 && seen.gaps.is_empty(),
        "{:?}",
        seen.gaps.first()
    );
    ensure!(
        beats.iter().all(|beat| beat.unknown() == 0),
        "a beat met an unknown row"
    );
    Ok(())
}

/// KF-065: after the hard end of one of three nodes no live instance turns unhealthy or disappears in the next 90 s,
/// by the default times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_killed_node_takes_no_beating_instance_along_within_ninety_seconds() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let nodes = https(&cluster);
    let services: Vec<Service> = (0..60).map(|_| Service::unique("survivor")).collect();
    let beats = try_join_all(services.iter().zip(1..).flat_map(|(service, port)| {
        [1, 2].map(|ip| {
            // Each begins at another node.
            let mut nodes = nodes.clone();
            nodes.rotate_left(usize::from(port + ip) % 3);
            let instance = Instance::at(&format!("10.17.2.{ip}"), port);
            BeatingInstance::start(nodes, service.clone(), instance, BEAT)
        })
    }))
    .await?;
    let live: Vec<(Service, Vec<String>)> = services
        .iter()
        .zip(1..)
        .map(|(service, port): (_, u16)| {
            let addresses = [1, 2].map(|ip| format!("10.17.2.{ip}:{port}"));
            (service.clone(), addresses.into())
        })
        .collect();
    for (service, addresses) in &live {
        cluster.eventually_listed(service, addresses).await;
    }
    cluster.node(0).kill();
    let killed = Clock::now();
    let watch = Watch::start(https(&cluster), live);
    sleep_until(killed + 90 * SECOND).await;
    let seen = watch.seen();
    ensure!(
        seen.answers > 1000 && seen.gaps.is_empty(),
        "{:?}",
        seen.gaps.first()
    );
    ensure!(seen.failures.is_empty(), "{:?}", seen.failures.first());
    ensure!(
        beats.iter().all(|beat| beat.unknown() == 0),
        "a beat met an unknown row"
    );
    Ok(())
}

/// KF-068, KF-040: while one node stands still for a minute, with its ports open, the others answer quickly; no write
/// waits longer than 5 s, and from 15 s on all are quick. When it goes on, nobody is blamed for the pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_node_that_stands_still_for_a_minute_holds_up_nobody_and_blames_nobody() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let services: Vec<Service> = (0..60).map(|_| Service::unique("held-up")).collect();
    // At the two that go on: a client that waits for the third is silent meanwhile.
    let others = [cluster.node(0).http(), cluster.node(1).http()];
    let beats = try_join_all(services.iter().map(|service| {
        let instance = Instance::at("10.17.0.68", 80);
        BeatingInstance::start(others.to_vec(), service.clone(), instance, BEAT)
    }))
    .await?;
    for service in &services {
        cluster.eventually_listed(service, &["10.17.0.68:80"]).await;
    }
    cluster.node(2).freeze();
    let frozen = Clock::now();
    let live: Vec<(Service, Vec<String>)> = services
        .iter()
        .map(|service| (service.clone(), vec!["10.17.0.68:80".to_owned()]))
        .collect();
    let watch = Watch::start(others.to_vec(), live);
    let mut pace = interval(SECOND / 10);
    for (service, http) in services.iter().cycle().zip(others.iter().cycle()) {
        pace.tick().await;
        let at = Clock::now();
        http.register(service, &Instance::at("10.17.1.68", 80).patient())
            .await?
            .ok()?;
        let write = at.elapsed();
        ensure!(write < 5 * SECOND, "a write took {write:?}");
        ensure!(
            frozen.elapsed() < 15 * SECOND || write < SECOND,
            "a write took {write:?} {:?} after the freeze",
            frozen.elapsed()
        );
        let at = Clock::now();
        http.list(service).await?;
        ensure!(at.elapsed() < SECOND, "a list took {:?}", at.elapsed());
        if frozen.elapsed() > 60 * SECOND {
            break;
        }
    }
    cluster.node(2).thaw();
    cluster.ready().await;
    cluster.equal(SOON).await;
    let thawed = Clock::now();
    sleep_until(thawed + 40 * SECOND).await;
    let seen = watch.seen();
    ensure!(
        seen.gaps.is_empty() && seen.failures.is_empty(),
        "{:?} {:?}",
        seen.gaps.first(),
        seen.failures.first()
    );
    let healthy = |list: &List| {
        ensure!(list.at("10.17.0.68:80")?.healthy, "unhealthy");
        Ok(())
    };
    for service in &services {
        cluster.eventually_list(service, SOON, healthy).await;
    }
    ensure!(
        beats.iter().all(|beat| beat.unknown() == 0),
        "a beat met an unknown row"
    );
    Ok(())
}

/// Writes at two nodes as fast as they are answered, until dropped.
struct Load {
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Result<()>>>,
}

impl Load {
    /// So many writers at each node, each of some writes a second.
    fn start(nodes: &[&Node], per_node: u16) -> Self {
        let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = nodes
            .iter()
            .flat_map(|node| (0..per_node).map(move |n| (node.http(), n)));
        let tasks = tasks
            .map(|(http, n)| {
                let (stop, writes) = (Arc::clone(&stop), Arc::clone(&writes));
                tokio::spawn(async move {
                    let service = Service::unique("loaded");
                    let mut pace = interval(SECOND / 50);
                    let instance = |port| Instance::at(&format!("10.17.3.{n}"), port).patient();
                    for port in (1..=50).cycle() {
                        pace.tick().await;
                        http.register(&service, &instance(port)).await?.ok()?;
                        http.deregister(&service, &instance(port % 50 + 1)).await?.ok()?;
                        writes.fetch_add(2, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        Load { stop, writes, tasks }
    }

    /// Ends; how many writes there were.
    async fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await??;
        }
        Ok(self.writes.load(Ordering::Relaxed))
    }
}

/// Memory and files of the first two nodes stay bounded while the third cannot be written to for two minutes, and all
/// three are equal soon after it can.
async fn a_member_that_takes_nothing_costs_nothing(
    cluster: &Cluster,
    is_away: impl Fn(),
    is_back: impl AsyncFn(),
) -> Result<()> {
    let nodes = [cluster.node(0), cluster.node(1)];
    is_away();
    let start = Clock::now();
    let load = Load::start(&nodes, 4);
    sleep_until(start + 30 * SECOND).await;
    let mut first = Vec::new();
    for node in nodes {
        first.push((use_of(node).await?, node.log().len()));
    }
    sleep_until(start + 120 * SECOND).await;
    for (node, ((memory, files), logged)) in nodes.iter().zip(first) {
        let (last, open) = use_of(node).await?;
        ensure!(
            last < memory + SETTLING,
            "{memory} bytes at first, {last} at last"
        );
        ensure!(open <= files + 20, "{files} files at first, {open} at last");
        let more = node.log().len() - logged;
        ensure!(more < 64 << 10, "{more} bytes were logged in 90 s");
    }
    is_back().await;
    let writes = load.stop().await?;
    ensure!(writes > 5_000, "only {writes} writes");
    cluster.ready().await;
    cluster.equal(30 * SECOND).await;
    Ok(())
}

/// KF-081: a member that is down under steady writes costs the others neither memory nor log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_member_that_is_down_costs_the_others_nothing() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let node = cluster.node(2);
    a_member_that_takes_nothing_costs_nothing(
        &cluster,
        || node.kill(),
        async || {
            node.start();
            node.ready().await;
        },
    )
    .await
}

/// KF-102: so does one that swallows everything without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_member_that_swallows_everything_costs_the_others_nothing() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let links = cluster.links();
    a_member_that_takes_nothing_costs_nothing(
        &cluster,
        || links.set_around(2, LinkState::Paused),
        async || links.heal(),
    )
    .await
}

/// Fifty clients of each protocol end together with their node. Rows of gRPC clients stay for the grace, at least `least`
/// after the end and at most `most`; rows of beats for the default 30 s. Those of the other nodes stay.
async fn who_ends_with_a_node_is_gone_after_the_grace(
    cluster: &Cluster,
    end: impl Fn(),
    least: Duration,
    most: Duration,
) -> Result<()> {
    let over_grpc = Service::unique("doomed");
    let over_http = cluster.service_owned_by(0, "doomed").await?;
    let doomed = try_join_all((0..50).map(|_| cluster.node(0).client())).await?;
    for (port, client) in (1..).zip(&doomed) {
        client
            .register(&over_grpc, &Instance::at("10.17.0.79", port))
            .await?;
    }
    let survivor = cluster.node(1).client().await?;
    survivor
        .register(&over_grpc, &Instance::at("10.17.1.79", 1))
        .await?;
    let start = |node: usize, instance| {
        BeatingInstance::start(vec![cluster.node(node).http()], over_http.clone(), instance, BEAT)
    };
    let beats = try_join_all((1..=50).map(|port| start(0, Instance::at("10.17.0.79", port)))).await?;
    let _surviving = start(1, Instance::at("10.17.1.79", 1)).await?;
    let mut all: Vec<String> = (1..=50).map(|port| format!("10.17.0.79:{port}")).collect();
    all.push("10.17.1.79:1".to_owned());
    for service in [&over_grpc, &over_http] {
        cluster.eventually_listed(service, &all).await;
    }

    end();
    drop((doomed, beats));
    let ended = Clock::now();
    let survivors = [cluster.node(1).http(), cluster.node(2).http()];
    for (service, least, most) in [(&over_grpc, least, most), (&over_http, 24 * SECOND, 40 * SECOND)] {
        let listed = async |addresses: &[String]| {
            for http in &survivors {
                http.list(service).await?.expect(addresses)?;
            }
            Ok(())
        };
        let grace = (least - SECOND).saturating_sub(ended.elapsed());
        always("all are listed within the grace", grace, || listed(&all)).await;
        let left = most.saturating_sub(ended.elapsed());
        eventually("those that ended are gone", left, || listed(&all[50..])).await;
    }
    Ok(())
}

/// KF-079: clients that die with their node, whose address refuses connections, are gone after the grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn clients_of_both_protocols_that_die_with_their_node_are_gone_after_the_grace() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let end = || cluster.node(0).kill();
    who_ends_with_a_node_is_gone_after_the_grace(&cluster, end, 15 * SECOND, 25 * SECOND).await
}

/// KF-079, with an address that is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn clients_that_go_silent_with_their_node_are_gone_after_the_longer_grace() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let end = || {
        cluster.links().set_around(0, LinkState::Paused);
        cluster.node(0).kill();
    };
    who_ends_with_a_node_is_gone_after_the_grace(&cluster, end, 30 * SECOND, 40 * SECOND).await
}

/// KF-083, and connections that live long: clients of all nodes go on for minutes, through the restart of each node,
/// and every change reaches all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn long_lived_clients_follow_every_change_through_restarts() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let servers: Vec<_> = cluster.nodes().iter().map(Node::grpc_address).collect();
    let service = Service::unique("followed");
    let clients = try_join_all((0..60).map(|n| {
        let (servers, service) = (servers.clone(), &service);
        async move {
            let client = SdkClient::with_pause(servers, n, SECOND).await;
            client.subscribe(service).await?;
            anyhow::Ok(client)
        }
    }))
    .await?;
    for (round, node) in (1..).zip(cluster.nodes().iter().chain(cluster.nodes())) {
        let started = Clock::now();
        node.restart();
        cluster.ready().await;
        for change in 0..20 {
            sleep_until(started + (change + 1) * SECOND).await;
            let address = format!("10.17.0.83:{}", round * 100 + change);
            let instance = Instance::at("10.17.0.83", u16::try_from(round * 100 + change)?);
            let provider = cluster.node(round as usize % 3).client().await?;
            provider.register(&service, &instance).await?;
            for client in &clients {
                eventually("a change reaches every client", SOON, || async {
                    client.latest(&service).context("no list")?.expect(&[&address])
                })
                .await;
            }
            drop(provider);
            cluster.eventually_listed(&service, &NOBODY).await;
        }
        ensure!(
            clients.iter().all(|client| client.server().is_some()),
            "a client is connected nowhere"
        );
    }
    Ok(())
}
