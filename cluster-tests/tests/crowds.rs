//! Much at once: bursts of registrations, nodes that join under load, subscribers by the hundred, many clients of a node
//! that is killed. Each of these at a size for every run, and at a larger one for `scripts/test.sh --soak`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{
    BeatingInstance, Bystander, Client, Cluster, Http, Instance, List, Node, SdkClient, Service, eventually,
};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::time::{Instant as Clock, interval};

const NOBODY: [&str; 0] = [];

const SECOND: Duration = Duration::from_secs(1);

/// Waits until each of the nodes holds so many instances.
async fn eventually_hold(nodes: impl IntoIterator<Item = &Node>, n_instances: u64, within: Duration) {
    for node in nodes {
        let http = node.http();
        eventually("a node holds so many instances", within, || async {
            let instances = http.state().await?.instances;
            ensure!(
                instances == n_instances,
                "{instances} of {n_instances} instances at {}",
                node.address()
            );
            Ok(())
        })
        .await;
    }
}

/// So many clients of each protocol at once register services of their own through one node, and take every fourth back.
/// Then all nodes hold what was acknowledged and nothing else.
async fn all_hold_what_was_acknowledged(n_clients: u16, services_each: u16) -> Result<()> {
    let cluster = Cluster::start(3).await;
    let node = cluster.node(0);
    let instance = Instance::at("10.18.0.72", 80).patient();
    let over_grpc = async || {
        let client = node.client().await?;
        let mut kept = Vec::new();
        for n in 0..services_each {
            let service = Service::unique("burst");
            client.register(&service, &instance).await?;
            match n % 4 {
                3 => client.deregister(&service, &instance).await?,
                _ => kept.push(service.name),
            }
        }
        anyhow::Ok((client, kept))
    };
    let over_http = async || {
        let http = node.http();
        let mut kept = Vec::new();
        for n in 0..services_each {
            let service = Service::unique("burst");
            http.register(&service, &instance).await?.ok()?;
            match n % 4 {
                3 => http.deregister(&service, &instance).await?.ok()?,
                _ => kept.push(service.name),
            }
        }
        anyhow::Ok(kept)
    };
    let grpc = try_join_all((0..n_clients).map(|_| over_grpc()));
    let http = try_join_all((0..n_clients).map(|_| over_http()));
    let (grpc, http) = tokio::try_join!(grpc, http)?;
    let (_clients, kept): (Vec<Client>, Vec<Vec<String>>) = grpc.into_iter().unzip();
    let mut acknowledged: Vec<String> = kept.into_iter().chain(http).flatten().collect();
    acknowledged.sort();

    cluster.equal(30 * SECOND).await;
    for node in cluster.nodes() {
        let http = node.http();
        let state = http.state().await?;
        ensure!(
            state.instances == u64::try_from(acknowledged.len())?,
            "{} of {} instances at {}",
            state.instances,
            acknowledged.len(),
            node.address()
        );
        let holds = async |name: &String| http.list(&Service::new(name)).await?.expect(&["10.18.0.72:80"]);
        for names in acknowledged.chunks(100) {
            try_join_all(names.iter().map(holds)).await?;
        }
    }
    Ok(())
}

/// KF-072: after a burst of registrations through one node all nodes hold what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_burst_all_nodes_hold_what_was_acknowledged() -> Result<()> {
    all_hold_what_was_acknowledged(50, 20).await
}

/// KF-072, with 800 clients and more than 7,000 services.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn after_a_large_burst_all_nodes_hold_what_was_acknowledged() -> Result<()> {
    all_hold_what_was_acknowledged(400, 12).await
}

/// Instances that beat at a node alone, at the times given (interval, unhealthy, removed); two nodes join; all clients
/// stop. Meanwhile all nodes list all instances, healthy, and within a minute none.
async fn all_is_gone_when_clients_stop(n_services: u16, instances_each: u16, times: [u32; 3]) -> Result<()> {
    let cluster = Cluster::builder(3)
        .hold_back(1)
        .hold_back(2)
        .flag("--gate-limit", "5s")
        .start()
        .await;
    let services: Vec<Service> = (0..n_services).map(|_| Service::unique("loaded")).collect();
    let instances: Vec<Instance> = (1..=instances_each)
        .map(|port| Instance::at("10.18.0.80", port).beat_times(times[0], times[1], times[2]))
        .collect();
    let addresses: Vec<String> = instances.iter().map(Instance::address).collect();
    let (http, beat) = (cluster.node(0).http(), Duration::from_millis(times[0].into()));
    let mut beats = Vec::new();
    for service in &services {
        let all = instances.iter().map(|instance| {
            BeatingInstance::start(vec![http.clone()], service.clone(), instance.clone(), beat)
        });
        beats.extend(try_join_all(all).await?);
    }
    cluster.node(1).start();
    cluster.node(2).start();
    cluster.ready().await;
    let all_live = |list: &List| {
        list.expect(&addresses)?;
        ensure!(list.hosts.iter().all(|host| host.healthy), "{:?}", list.hosts);
        Ok(())
    };
    // Until those that joined have owned their share for longer than an instance may be silent.
    let joined = Clock::now();
    while joined.elapsed() < Duration::from_millis(times[2].into()) {
        for service in &services {
            cluster.eventually_list(service, SOON, all_live).await;
        }
    }
    ensure!(
        beats.iter().all(|beat| beat.unknown() == 0),
        "a beat met an unknown row"
    );

    drop(beats);
    eventually_hold(cluster.nodes(), 0, 60 * SECOND).await;
    for service in &services {
        cluster.eventually_listed(service, &NOBODY).await;
    }
    cluster.equal(SOON).await;
    Ok(())
}

/// KF-080: a loaded node and two that join agree when all clients stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loaded_node_and_two_that_join_agree_when_all_clients_stop() -> Result<()> {
    all_is_gone_when_clients_stop(20, 15, [1_000, 4_000, 6_000]).await
}

/// KF-080, with thousands of instances and the default times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn thousands_of_instances_are_gone_from_all_nodes_when_their_clients_stop() -> Result<()> {
    all_is_gone_when_clients_stop(100, 40, [5_000, 15_000, 30_000]).await
}

/// So many subscribers on all nodes, of one service of 50 instances that changes so many times at this interval. All hold
/// the final list within 3 s of the last change, and no query takes long meanwhile.
async fn all_hold_the_final_list(n_subscribers: usize, n_changes: u32, pause: Duration) -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("popular");
    let state = |change: u32| -> Vec<Instance> {
        let instances = (1..=50).map(|port| Instance::at("10.18.0.100", port));
        instances.map(|i| i.meta("change", &change.to_string())).collect()
    };
    let provider = cluster.node(0).client().await?;
    provider.batch(&service, &state(0)).await?;
    let mut subscribers = Vec::new();
    while subscribers.len() < n_subscribers {
        let some = cluster
            .nodes()
            .iter()
            .cycle()
            .take(99.min(n_subscribers - subscribers.len()));
        subscribers.extend(try_join_all(some.map(Node::client)).await?);
    }
    for some in subscribers.chunks(100) {
        try_join_all(some.iter().map(|client| client.subscribe(&service, ""))).await?;
    }

    let nodes: Vec<&Node> = cluster.nodes().iter().collect();
    let bystander = Bystander::asking(&nodes, &service);
    let mut pace = interval(pause);
    for change in 1..=n_changes {
        pace.tick().await;
        provider.batch(&service, &state(change)).await?;
    }
    let end = Clock::now();
    let slowest = bystander.stop()?.longest();

    let wanted = n_changes.to_string();
    for client in &subscribers {
        let last = Mutex::new(None);
        let at = eventually("the final list is pushed", SOON, || async {
            if let Some(push) = client.take_pushes().await.pop() {
                *last.lock() = Some(push);
            }
            let push = last.lock().clone().context("nothing was pushed")?;
            let list = push.list()?;
            let is_final = |host: &Instance| host.metadata.get("change") == Some(&wanted);
            ensure!(
                list.hosts.len() == 50 && list.hosts.iter().all(is_final),
                "the last list is {:?}",
                list.hosts
            );
            Ok(push.at)
        })
        .await;
        let late = at.saturating_duration_since(end);
        ensure!(
            late < 3 * SECOND,
            "the final list came {late:?} after the last change"
        );
    }
    ensure!(slowest < SECOND, "a query took {slowest:?}");
    Ok(())
}

/// KF-100: hundreds of subscribers of one service hold the final list within 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_subscribers_hold_the_final_list_soon() -> Result<()> {
    all_hold_the_final_list(400, 10, SECOND / 2).await
}

/// KF-100, with thousands of them over a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn thousands_of_subscribers_hold_the_final_list_soon() -> Result<()> {
    all_hold_the_final_list(3_000, 60, SECOND).await
}

/// Each of so many clients registers in three services, ten in each, and follows one; one node is killed. Within 30 s
/// every registration and subscription is back at the other nodes; then the node is started, and another is killed.
async fn all_is_back_after_a_node_was_killed(n_clients: u16) -> Result<()> {
    let cluster = Cluster::start(3).await;
    let servers: Vec<SocketAddr> = cluster.nodes().iter().map(Node::grpc_address).collect();
    let groups: Vec<[Service; 3]> = (0..n_clients / 10)
        .map(|_| [(); 3].map(|()| Service::unique("returning")))
        .collect();
    let clients = try_join_all((0..n_clients).map(|i| {
        let (servers, services) = (servers.clone(), &groups[usize::from(i / 10)]);
        async move {
            let client = SdkClient::with_pause(servers, usize::from(i), 2 * SECOND).await;
            for service in services {
                client
                    .register(service, &Instance::at("10.18.0.101", i + 1))
                    .await?;
            }
            client.subscribe(&services[0]).await?;
            anyhow::Ok(client)
        }
    }))
    .await?;
    for (round, killed) in (1..).zip([0, 1]) {
        cluster.node(killed).kill();
        let end = Clock::now() + 30 * SECOND;
        let https: Vec<Http> = cluster.running().map(Node::http).collect();
        for (group, first) in groups.iter().zip((1..).step_by(10)) {
            let addresses: Vec<String> = (first..first + 10)
                .map(|port: u16| format!("10.18.0.101:{port}"))
                .collect();
            for (http, service) in https.iter().flat_map(|http| group.iter().map(move |s| (http, s))) {
                let left = end.saturating_duration_since(Clock::now());
                eventually("every row has its client again", left, || async {
                    http.list(service).await?.expect(&addresses)?;
                    let rows = http.rows(service).await?;
                    let is_back = rows.iter().flat_map(|row| &row.publishers).all(|p| !p.is_orphan);
                    ensure!(is_back, "{rows:?}");
                    Ok(())
                })
                .await;
            }
        }
        let provider = cluster.running().next().context("no node runs")?.client().await?;
        let news = format!("10.18.1.101:{round}");
        for ([service, ..], followers) in groups.iter().zip(clients.chunks(10)) {
            provider
                .register(service, &Instance::at("10.18.1.101", round))
                .await?;
            for follower in followers {
                eventually("a follower is told of a change", SOON, || async {
                    follower.latest(service).context("no list")?.at(&news).map(drop)
                })
                .await;
            }
        }
        drop(provider);
        for [service, ..] in &groups {
            cluster
                .eventually_list(service, SOON, |list| {
                    ensure!(list.at(&news).is_err(), "{news} is still listed");
                    Ok(())
                })
                .await;
        }
        cluster.node(killed).start();
        cluster.ready().await;
    }
    cluster.equal(SOON).await;
    Ok(())
}

/// KF-101: after the end of a node with hundreds of clients every registration and subscription is back in 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_clients_of_a_killed_node_are_back_within_thirty_seconds() -> Result<()> {
    all_is_back_after_a_node_was_killed(300).await
}

/// KF-101, with thousands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn thousands_of_clients_of_a_killed_node_are_back_within_thirty_seconds() -> Result<()> {
    all_is_back_after_a_node_was_killed(2_000).await
}

/// So many clients connect to one node at the same moment, and each registers an instance and follows a service; whoever
/// is turned away comes again, as SDKs do. All are served in the end, others' queries are answered all along, and memory
/// is bounded by the number of clients. Returns how long it took and the most memory that the node had.
async fn all_are_served_who_come_at_once(n_clients: u16, within: Duration) -> Result<()> {
    /// What a connection may cost at the most, with all that it registered, and what a node costs without any.
    const BYTES_EACH: u64 = 96 << 10;
    const BYTES_ALONE: u64 = 64 << 20;
    let cluster = Cluster::start(1).await;
    let node = cluster.node(0);
    let groups: Vec<Service> = (0..n_clients.div_ceil(10))
        .map(|_| Service::unique("storm"))
        .collect();
    let bystander = Bystander::asking(&[node], &groups[0]);
    let began = Clock::now();
    let come = |i: u16| {
        let service = &groups[usize::from(i / 10)];
        async move {
            loop {
                let instance = Instance::at("10.18.0.200", i + 1);
                let served = async {
                    let client = node.client().await?;
                    client.register(service, &instance).await?;
                    client.subscribe(service, "").await?;
                    anyhow::Ok(client)
                };
                match served.await {
                    Ok(client) => break anyhow::Ok(client),
                    Err(error) => ensure!(began.elapsed() < within, "{i}: {error:#}"),
                }
                tokio::time::sleep(SECOND / 2).await;
            }
        }
    };
    let clients = try_join_all((0..n_clients).map(come)).await?;
    let took = began.elapsed();
    let slowest = bystander.stop()?.longest();
    let peak = node.peak_memory()?;
    let refused = node.http().metric("rollcall_busy_refused_total").await?;
    println!(
        "{n_clients} clients at once: all served after {took:?}, {refused} refused, slowest query {slowest:?}, \
         at most {} MiB resident",
        peak >> 20
    );
    ensure!(node.http().state().await?.instances == u64::from(n_clients));
    let allowed = BYTES_ALONE + u64::from(n_clients) * BYTES_EACH;
    ensure!(peak < allowed, "{peak} bytes resident, {allowed} are allowed");
    ensure!(slowest < 2 * SECOND, "a query took {slowest:?}");

    // The same fleet goes at once.
    let bystander = Bystander::asking(&[node], &groups[0]);
    let began = Clock::now();
    drop(clients);
    eventually("all are gone", SOON + within, || async {
        let state = node.http().state().await?;
        ensure!((state.connections, state.instances) == (0, 0), "{state:?}");
        Ok(())
    })
    .await;
    let slowest = bystander.stop()?.longest();
    println!(
        "they are gone after {:?}, slowest query {slowest:?}",
        began.elapsed()
    );
    ensure!(slowest < 2 * SECOND, "a query took {slowest:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_clients_that_come_at_once_are_served() -> Result<()> {
    all_are_served_who_come_at_once(600, 60 * SECOND).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn ten_thousand_clients_that_come_at_once_are_served() -> Result<()> {
    all_are_served_who_come_at_once(10_000, 300 * SECOND).await
}

/// Connections of one node with so many rows all told, a hundred in each service.
async fn fleet(node: &Node, n_rows: u32) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for of_client in 0..n_rows / 1_000 {
        let client = node.client().await?;
        for n in 0..10 {
            let service = Service::unique("fleet");
            let ip = format!("10.20.{}.{}", of_client >> 8, of_client & 255);
            let ports = (1..=100).map(|port| n * 100 + port);
            let instances: Vec<Instance> = ports.map(|port| Instance::at(&ip, port)).collect();
            client.batch(&service, &instances).await?;
        }
        clients.push(client);
    }
    Ok(clients)
}

/// A fleet of so many rows dies: with the node of its connections, and another one by closing them all. Every query and
/// registration of somebody else at the nodes that stay is answered meanwhile, and soon; the rows of the dead node stay for
/// their grace, those of the closed connections go at once.
async fn the_end_of_a_fleet_delays_nobody(n_rows: u32) -> Result<()> {
    let cluster = Cluster::builder(3).flag("--orphan-gone", "3s").start().await;
    let service = Service::unique("beside");
    let provider = cluster.node(0).client().await?;
    provider
        .register(&service, &Instance::at("10.18.0.202", 1))
        .await?;
    cluster.eventually_listed(&service, &["10.18.0.202:1"]).await;
    let staying = [cluster.node(0), cluster.node(1)];
    // One is the provider's, and one is the bystander's at each node.
    let hold = async |n_rows: u32| eventually_hold(staying, u64::from(n_rows) + 3, 3 * SOON).await;
    for (node, how) in [(2, "its node is killed"), (0, "its connections are closed")] {
        let bystander = Bystander::asking_and_registering(&staying, &service);
        let clients = fleet(cluster.node(node), n_rows).await?;
        hold(n_rows).await;
        bystander.stop()?;
        // The figures are those of the end alone.
        let bystander = Bystander::asking_and_registering(&staying, &service);
        let began = Clock::now();
        if node == 2 {
            cluster.node(2).kill();
            for node in staying {
                let http = node.http();
                eventually("all rows are orphans", SOON, || async {
                    let orphans = http.metric("rollcall_orphans").await?;
                    ensure!(orphans >= f64::from(n_rows), "{orphans} orphans of {n_rows} rows");
                    Ok(())
                })
                .await;
            }
        }
        drop(clients);
        hold(0).await;
        let took = bystander.stop()?;
        println!(
            "{n_rows} rows, {how}: gone after {:?}; meanwhile {} queries, p99 {:?}, longest {:?}, and as many registrations, \
             p99 {:?}, longest {:?}",
            began.elapsed(),
            took.queries.len(),
            took.queries.quantile(0.99).unwrap_or_default(),
            took.queries.longest().unwrap_or_default(),
            took.registrations.quantile(0.99).unwrap_or_default(),
            took.registrations.longest().unwrap_or_default(),
        );
        ensure!(took.longest() < 2 * SECOND, "{:?}", took.longest());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_twenty_thousand_rows_delays_nobody() -> Result<()> {
    the_end_of_a_fleet_delays_nobody(20_000).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn the_end_of_two_hundred_thousand_rows_delays_nobody() -> Result<()> {
    the_end_of_a_fleet_delays_nobody(200_000).await
}

/// One member stands still, with its sockets open, while so many changes are made at another. The memory of the others
/// does not grow with what it misses beyond the log that is kept for it, and all are equal soon after it goes on.
async fn a_member_that_stands_still_costs_little(n_changes: u32) -> Result<()> {
    /// The operations that are kept for members that fall behind, and what allocators keep.
    const KEPT: u64 = 64 << 20;
    let cluster = Cluster::start(3).await;
    let service = Service::unique("missed");
    let providers = try_join_all((0..50).map(|_| cluster.node(0).client())).await?;
    let change = async |n: u32| {
        try_join_all((1u16..).zip(&providers).map(|(port, provider)| {
            let instance = Instance::at("10.18.0.201", port).meta("change", &n.to_string());
            let service = &service;
            async move { provider.register(service, &instance).await }
        }))
        .await
    };
    change(0).await?;
    cluster.equal(SOON).await;
    let memory = || -> Result<Vec<u64>> {
        [0, 1]
            .map(|i| cluster.node(i).resident_memory())
            .into_iter()
            .collect()
    };
    let before = memory()?;
    cluster.node(2).freeze();
    for n in 1..=n_changes / 50 {
        change(n).await?;
    }
    let after = memory()?;
    for (before, after) in before.iter().zip(&after) {
        println!(
            "{} MiB before {n_changes} changes, {} MiB after",
            before >> 20,
            after >> 20
        );
        ensure!(*after < before + KEPT, "{before} bytes before, {after} after");
    }
    cluster.node(2).thaw();
    let last = (n_changes / 50).to_string();
    eventually("it has caught up", 3 * SOON, || async {
        let list = cluster.node(2).http().list(&service).await?;
        ensure!(list.hosts.len() == 50 && list.hosts.iter().all(|host| host.metadata["change"] == last));
        Ok(())
    })
    .await;
    cluster.equal(SOON).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stands_still_for_thousands_of_changes_costs_the_others_little() -> Result<()> {
    a_member_that_stands_still_costs_little(20_000).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_member_that_stands_still_for_a_hundred_thousand_changes_costs_the_others_little() -> Result<()> {
    a_member_that_stands_still_costs_little(100_000).await
}
