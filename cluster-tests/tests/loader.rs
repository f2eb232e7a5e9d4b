//! Limits of connections, and operators who move connections to other members.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Client, ClientOptions, Cluster, Http, Instance, SdkClient, Service, Watch, eventually};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::Value;

const V2: &str = "/nacos/v2/core/loader";
const V3: &str = "/nacos/v3/admin/core/loader";

async fn get(http: &Http, path: &str, params: &[(&str, &str)]) -> Result<cluster_tests::Reply> {
    let params = params.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    http.query(Method::GET, &format!("{V2}/{path}"), &params.collect())
        .await
}

/// Who was asked to move, and to which address.
async fn asked(clients: &[Client]) -> Result<Vec<String>> {
    let mut asked = Vec::new();
    for client in clients {
        for push in client.take_pushes().await {
            if push.kind == "ConnectResetRequest" {
                let body = push.json()?;
                asked.push(format!(
                    "{}:{}",
                    body["serverIp"].as_str().unwrap_or_default(),
                    body["serverPort"].as_str().unwrap_or_default()
                ));
            }
        }
    }
    Ok(asked)
}

/// Waits until so many were asked.
async fn eventually_asked(clients: &[Client], n: usize) -> Vec<String> {
    let all = Mutex::new(Vec::new());
    eventually("clients are asked to move", SOON, || async {
        let more = asked(clients).await?;
        let mut all = all.lock();
        all.extend(more);
        ensure!(all.len() == n, "{all:?}");
        Ok(())
    })
    .await;
    all.into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_the_load_and_even_it_out() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let (full, http) = (cluster.node(0), cluster.node(0).http());
    let clients = try_join_all((0..20).map(|_| full.client())).await?;
    let seen = cluster.node(1).http();
    eventually("another member knows the load", SOON, || async {
        let load = get(&seen, "cluster", &[]).await?.json()?;
        ensure!(
            load["total"] == 20 && load["max"] == 20 && load["avg"] == 6,
            "{load}"
        );
        ensure!(load["memberCount"] == 3 && load["completed"] == true, "{load}");
        Ok(())
    })
    .await;
    let current = get(&http, "current", &[]).await?.json()?;
    ensure!(current.as_object().map(|all| all.len()) == Some(20), "{current}");
    let one = &current[clients[3].id()];
    ensure!(one["metaInfo"]["sdkSource"] == true && one["metaInfo"]["appName"] == "cluster-tests");

    // A tenth at a time, to the other two in turn, whichever member is asked.
    let reply = get(&seen, "smartReloadCluster", &[]).await?;
    ensure!(reply.status == 200 && reply.text == "Ok", "{reply:?}");
    let others = [cluster.node(1).address(), cluster.node(2).address()];
    let mut moved = eventually_asked(&clients, 2).await;
    moved.sort();
    ensure!(moved == others, "{moved:?} is not {others:?}");
    Ok(())
}

#[tokio::test]
async fn in_v3_changes_are_posted_and_answered_in_a_result() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let http = cluster.node(0).http();
    let clients = vec![cluster.node(0).client().await?, cluster.node(0).client().await?];
    let params = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let load: Value = http
        .query(Method::GET, &format!("{V3}/cluster"), &params(&[]))
        .await?
        .json()?;
    ensure!(
        load["code"] == 0 && load["data"]["detail"][0]["sdkConCount"] == 2,
        "{load}"
    );
    let wish = params(&[("count", "1"), ("redirectAddress", "127.0.0.9:8848")]);
    let path = format!("{V3}/reloadCurrent");
    http.query(Method::GET, &path, &wish).await?.with_status(405)?;
    let reply = http.form(Method::POST, &path, &wish).await?.json()?;
    ensure!(reply["code"] == 0 && reply["data"].is_null(), "{reply}");
    ensure!(eventually_asked(&clients, 1).await == ["127.0.0.9:8848"]);
    Ok(())
}

#[tokio::test]
async fn further_connections_from_an_address_are_refused_without_a_word() -> Result<()> {
    let cluster = Cluster::builder(1)
        .flag("--connection-limit-per-ip", "2")
        .start()
        .await;
    let node = cluster.node(0);
    let first = node.client().await?;
    let _second = node.client().await?;
    let third = node.client_with(ClientOptions::default().impatient()).await?;
    third.stream_end(SOON).await?;
    ensure!(third.take_pushes().await.is_empty());
    ensure!(node.http().metric("rollcall_connections_refused_total").await? == 1.0);
    drop(first);
    eventually("the free place is given", SOON, || async {
        let again = node.client_with(ClientOptions::default().impatient()).await?;
        ensure!(again.stream_end(Duration::from_millis(300)).await.is_err());
        Ok(())
    })
    .await;
    Ok(())
}

/// KF-061: an operator sheds the connections of two full members to one that has come back empty: they even out, and no
/// registration is missing from any list meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_061_connections_even_out_and_no_instance_is_missing_meanwhile() -> Result<()> {
    const CLIENTS: u16 = 60;
    let cluster = Cluster::start(3).await;
    cluster.node(2).restart();
    cluster.ready().await;
    let servers: Vec<_> = cluster.nodes().iter().map(|node| node.grpc_address()).collect();
    let services: Vec<Service> = (0..6).map(|_| Service::unique("evened")).collect();
    let clients = try_join_all((0..CLIENTS).map(|n| {
        let (servers, service) = (servers.clone(), &services[usize::from(n) % 6]);
        async move {
            // On the first two only.
            let client = SdkClient::start(servers, usize::from(n) % 2).await;
            client
                .register(service, &Instance::at("10.16.0.61", n + 1))
                .await?;
            client.subscribe(service).await?;
            anyhow::Ok(client)
        }
    }))
    .await?;
    let live: Vec<(Service, Vec<String>)> = (0..6)
        .map(|at| {
            let ports = (0..CLIENTS).filter(|n| usize::from(*n) % 6 == at);
            let addresses = ports.map(|n| format!("10.16.0.61:{}", n + 1)).collect();
            (services[at].clone(), addresses)
        })
        .collect();
    for (service, addresses) in &live {
        cluster.eventually_listed(service, addresses).await;
    }
    let https: Vec<Http> = cluster.nodes().iter().map(|node| node.http()).collect();
    let watch = Watch::start(https.clone(), live.clone());

    let connections = async || -> Result<Vec<u64>> {
        let states = try_join_all(https.iter().map(Http::state)).await?;
        Ok(states.iter().map(|state| state.connections).collect())
    };
    eventually("connections even out", SOON * 3, || async {
        for http in &https {
            get(http, "smartReloadCluster", &[("loaderFactor", "0.1")])
                .await?
                .with_status(200)?;
        }
        let counts = connections().await?;
        ensure!(counts.iter().all(|n| (18..=22).contains(n)), "{counts:?}");
        Ok(())
    })
    .await;

    for (service, addresses) in &live {
        cluster.eventually_listed(service, addresses).await;
    }
    let seen = watch.seen();
    ensure!(
        seen.answers > 100 && seen.gaps.is_empty() && seen.failures.is_empty(),
        "{seen:?}"
    );
    for (n, client) in clients.iter().enumerate() {
        let (service, addresses) = &live[n % 6];
        eventually("each subscriber knows all", SOON, || async {
            client.latest(service).context("no list")?.expect(addresses)
        })
        .await;
        ensure!(
            client.shrinks() == 0,
            "client {n} was shown a list that lacked something"
        );
    }
    Ok(())
}

/// KF-062: of 130 clients at a limit of 100 the first 100 go on undisturbed, the rest are refused cleanly: their stream
/// ends and their calls get 301.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_062_at_the_limit_some_work_undisturbed_and_the_rest_are_refused_cleanly() -> Result<()> {
    let cluster = Cluster::builder(1)
        .flag("--connection-limit", "100")
        .start()
        .await;
    let node = cluster.node(0);
    let service = Service::unique("limited");
    let served = try_join_all((0..100).map(|_| node.client())).await?;
    let impatient = ClientOptions::default().impatient();
    let refused = try_join_all((0..30).map(|_| node.client_with(impatient.clone()))).await?;
    for client in &refused {
        client.stream_end(SOON).await?;
        let instance = Instance::at("10.16.0.62", 999).to_json();
        client
            .instance_request("registerInstance", &service, instance)
            .await?
            .refused(301)?;
    }
    for (port, client) in (1..).zip(&served) {
        client
            .register(&service, &Instance::at("10.16.0.62", port))
            .await?;
    }
    let all: Vec<String> = (1..=100).map(|port| format!("10.16.0.62:{port}")).collect();
    cluster.eventually_listed(&service, &all).await;
    ensure!(
        !served.iter().any(Client::is_closed),
        "a client within the limit was closed"
    );
    ensure!(node.http().metric("rollcall_connections_refused_total").await? == 30.0);
    Ok(())
}

/// One that hangs does not count as dead for some seconds, and is named to nobody all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_sends_its_clients_to_members_that_answer() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let clients = try_join_all((0..8).map(|_| cluster.node(0).client())).await?;
    cluster.node(1).freeze();
    cluster.node(0).terminate();
    let named = eventually_asked(&clients, clients.len()).await;
    let lives = cluster.node(2).address();
    ensure!(named.iter().all(|address| *address == lives), "{named:?}");
    cluster.node(1).thaw();
    Ok(())
}
