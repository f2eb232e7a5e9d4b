//! Clients that nodes send to other nodes by themselves: when connections are uneven, and behind a cut.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Cluster, Http, Instance, LinkState, SdkClient, Service, Watch, eventually};
use futures_util::future::try_join_all;

const SERVICES: usize = 6;

/// Clients with one instance each, spread over a few services.
struct Fleet {
    clients: Vec<SdkClient>,
    live: Vec<(Service, Vec<String>)>,
}

impl Fleet {
    /// Client `n` begins at node `n` modulo `n_nodes`.
    async fn start(cluster: &Cluster, n: u16, n_nodes: usize) -> Result<Self> {
        let servers: Vec<SocketAddr> = cluster.nodes().iter().map(|node| node.grpc_address()).collect();
        let services: Vec<Service> = (0..SERVICES).map(|_| Service::unique("moving")).collect();
        let clients = try_join_all((0..n).map(|n| {
            let (servers, service) = (servers.clone(), &services[usize::from(n) % SERVICES]);
            async move {
                let client = SdkClient::start(servers, usize::from(n) % n_nodes).await;
                client
                    .register(service, &Instance::at("10.17.0.1", n + 1))
                    .await?;
                client.subscribe(service).await?;
                anyhow::Ok(client)
            }
        }))
        .await?;
        let addresses = |at: usize| {
            let ports = (0..n).filter(move |n| usize::from(*n) % SERVICES == at);
            ports.map(|n| format!("10.17.0.1:{}", n + 1)).collect()
        };
        let live = services.into_iter().enumerate();
        let live: Vec<(Service, Vec<String>)> = live.map(|(at, service)| (service, addresses(at))).collect();
        for (service, addresses) in &live {
            cluster.eventually_listed(service, addresses).await;
        }
        Ok(Fleet { clients, live })
    }

    fn has_no_gaps(&self, watch: &Watch) -> Result<()> {
        let seen = watch.seen();
        ensure!(
            seen.answers > 100 && seen.gaps.is_empty() && seen.failures.is_empty(),
            "{} answers, {:?}, {:?}",
            seen.answers,
            seen.gaps.first(),
            seen.failures.first()
        );
        let shrinks: u64 = self.clients.iter().map(SdkClient::shrinks).sum();
        ensure!(
            shrinks == 0,
            "{shrinks} lists that subscribers got lacked something"
        );
        Ok(())
    }
}

async fn connections(https: &[Http]) -> Result<Vec<u64>> {
    let states = try_join_all(https.iter().map(Http::state)).await?;
    Ok(states.iter().map(|state| state.connections).collect())
}

/// H12: two members are full and one is empty; without anybody's doing they even out, a few clients at a time, and no
/// list lacks anything meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_even_out_by_themselves() -> Result<()> {
    let cluster = Cluster::builder(3)
        .flag("--balance-per-minute", "60")
        .flag("--balance-after", "2s")
        .flag("--balance-calm", "2s")
        .flag("--balance-rest", "4s")
        .start()
        .await;
    let fleet = Fleet::start(&cluster, 60, 2).await?;
    let https: Vec<Http> = cluster.nodes().iter().map(|node| node.http()).collect();
    let watch = Watch::start(https.clone(), fleet.live.clone());
    eventually("connections even out", SOON * 9, || async {
        let counts = connections(&https).await?;
        ensure!(counts.iter().all(|n| (18..=22).contains(n)), "{counts:?}");
        Ok(())
    })
    .await;
    for (service, addresses) in &fleet.live {
        cluster.eventually_listed(service, addresses).await;
    }
    fleet.has_no_gaps(&watch)?;
    let mut n_moved = 0.0;
    for http in &https {
        n_moved += http.metric("rollcall_balance_moved_total").await?;
    }
    ensure!((16.0..=24.0).contains(&n_moved), "{n_moved} were asked");
    ensure!(https[2].metric("rollcall_balance_moved_total").await? == 0.0);
    let sessions = fleet.clients.iter().map(SdkClient::sessions).max();
    ensure!(
        sessions == Some(2),
        "a client was sent to and fro: {sessions:?} sessions"
    );
    Ok(())
}

/// A node whose links to the others are cut sends its clients there, serves who stays, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_in_a_minority_sends_its_clients_to_the_others() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let fleet = Fleet::start(&cluster, 45, 3).await?;
    let https: Vec<Http> = cluster.nodes().iter().map(|node| node.http()).collect();
    let watch = Watch::start(https[..2].to_vec(), fleet.live.clone());
    ensure!(!https[2].state().await?.minority);

    cluster.links().set_around(2, LinkState::Paused);

    eventually("the node sees that it is in a minority", SOON, || async {
        ensure!(https[2].state().await?.minority);
        Ok(())
    })
    .await;
    eventually("its clients are with the others", SOON * 3, || async {
        let counts = connections(&https).await?;
        ensure!(
            counts[2] == 0 && counts[..2].iter().sum::<u64>() == 45,
            "{counts:?}"
        );
        Ok(())
    })
    .await;
    ensure!(https[2].metric("rollcall_minority_moved_total").await? >= 15.0);
    ensure!(https[2].metric("rollcall_in_minority").await? == 1.0);
    ensure!(cluster.node(2).log().contains("cut off with the fewer members"));
    for http in &https[..2] {
        ensure!(!http.state().await?.minority && http.metric("rollcall_minority_moved_total").await? == 0.0);
    }
    let written = Service::unique("written");
    let instance = Instance::at("10.17.0.2", 1).patient();
    https[2].register(&written, &instance).await?.ok()?;
    https[2].list(&written).await?.expect(&["10.17.0.2:1"])?;

    cluster.links().heal();

    cluster.ready().await;
    cluster.equal(SOON).await;
    cluster.eventually_listed(&written, &["10.17.0.2:1"]).await;
    for (service, addresses) in &fleet.live {
        cluster.eventually_listed(service, addresses).await;
    }
    eventually("it is over", SOON, || async {
        ensure!(!https[2].state().await?.minority);
        Ok(())
    })
    .await;
    fleet.has_no_gaps(&watch)
}

/// A node whose others are dead, and not behind a cut, sends nobody to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_node_of_three_keeps_its_clients() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let client = SdkClient::start(vec![cluster.node(2).grpc_address()], 0).await;
    let service = Service::unique("kept");
    client.register(&service, &Instance::at("10.17.0.3", 1)).await?;
    cluster.node(0).kill();
    cluster.node(1).kill();
    let http = cluster.node(2).http();
    cluster_tests::always("it is in no minority", Duration::from_secs(12), || async {
        ensure!(!http.state().await?.minority && client.sessions() == 1);
        http.list(&service).await?.expect(&["10.17.0.3:1"])
    })
    .await;
    ensure!(http.metric("rollcall_minority_moved_total").await? == 0.0);
    Ok(())
}
