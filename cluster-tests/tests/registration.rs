//! Registering and deregistering: rows, publishers, connections, and what is refused.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::client::merged;
use cluster_tests::cluster::SOON;
use cluster_tests::http::{INSTANCE, joined};
use cluster_tests::{Client, ClientOptions, Cluster, Instance, List, Service, SharedCluster, eventually};
use futures_util::future::try_join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

fn weighs(weight: f64) -> impl Fn(&List) -> Result<()> {
    move |list| {
        let weights: Vec<f64> = list.hosts.iter().map(|h| h.weight).collect();
        ensure!(
            weights == [weight],
            "weights {weights:?}, wanted one row of {weight}"
        );
        Ok(())
    }
}

/// The JSON of an instance with one field replaced.
fn with(instance: &Instance, key: &str, value: Value) -> Value {
    merged(instance.to_json(), json!({key: value}))
}

#[tokio::test]
async fn kf_001_a_list_of_clusters_is_no_cluster() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (http, client) = (cluster.node(0).http(), cluster.node(0).client().await?);
    for bad in ["c1,c2", "c 1", "c1,"] {
        let (over_http, over_grpc) = (Service::unique("clusters"), Service::unique("clusters"));
        let instance = Instance::at("10.4.0.1", 80).cluster(bad);
        http.register(&over_http, &instance)
            .await?
            .refused(400, "cluster")?;
        client
            .instance_request("registerInstance", &over_grpc, instance.to_json())
            .await?
            .refused(400)?;
        for service in [&over_http, &over_grpc] {
            http.list(service).await?.expect(&NOBODY)?;
        }
    }
    let service = Service::unique("clusters");
    let good = Instance::at("10.4.0.1", 80).cluster("c1");
    http.register(&service, &good).await?.ok()?;
    client
        .register(&service, &Instance::at("10.4.0.1", 81).cluster("c1"))
        .await?;
    http.list(&service).await?.expect(&["10.4.0.1:80", "10.4.0.1:81"])
}

#[tokio::test]
async fn kf_002_ports_are_0_to_65535() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (http, client) = (cluster.node(1).http(), cluster.node(1).client().await?);
    let good = Instance::at("10.4.0.2", 1);
    for port in [0, 1, 65535] {
        let service = Service::unique("ports");
        let address = format!("10.4.0.2:{port}");
        http.register(&service, &Instance::at("10.4.0.2", port))
            .await?
            .ok()?;
        http.list(&service).await?.expect(&[&address])?;
        let service = Service::unique("ports");
        client.register(&service, &Instance::at("10.4.0.2", port)).await?;
        http.list(&service).await?.expect(&[&address])?;
    }
    for port in ["65536", "-1", "99999999999", "1.5", "x"] {
        let service = Service::unique("ports");
        let params = joined(
            &service,
            vec![("ip".into(), "10.4.0.2".into()), ("port".into(), port.into())],
        );
        http.query(Method::POST, INSTANCE, &params)
            .await?
            .refused(400, "Param 'port' is illegal")?;
        http.list(&service).await?.expect(&NOBODY)?;
    }
    for port in [65536, -1] {
        let service = Service::unique("ports");
        let instance = with(&good, "port", json!(port));
        client
            .instance_request("registerInstance", &service, instance)
            .await?
            .refused(400)?;
        client.query(&service).await?.expect(&NOBODY)?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_003_weights_over_http_are_0_to_10000() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(2).http();
    let instance = Instance::at("10.4.0.3", 80).patient();
    for weight in [0.0, 10_000.0] {
        let service = Service::unique("weights");
        http.register(&service, &instance.clone().weight(weight))
            .await?
            .ok()?;
        cluster.eventually_list(&service, SOON, weighs(weight)).await;
        http.update(&service, &instance.clone().weight(10_000.0 - weight))
            .await?
            .ok()?;
        cluster
            .eventually_list(&service, SOON, weighs(10_000.0 - weight))
            .await;
    }
    let kept = Service::unique("weights");
    http.register(&kept, &instance.clone().weight(3.0)).await?.ok()?;
    for weight in [-1.0, 10_001.0, f64::NAN] {
        let service = Service::unique("weights");
        let refused = instance.clone().weight(weight);
        http.register(&service, &refused).await?.refused(400, "weight")?;
        http.list(&service).await?.expect(&NOBODY)?;
        http.register(&kept, &refused).await?.refused(400, "weight")?;
        http.update(&kept, &refused).await?.refused(400, "weight")?;
        weighs(3.0)(&http.list(&kept).await?)?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_003_weights_over_grpc_are_not_checked() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(2).client().await?;
    for weight in [-1.0, 0.0, 10_000.0, 10_001.0] {
        let service = Service::unique("weights");
        client
            .register(&service, &Instance::at("10.4.0.3", 81).weight(weight))
            .await?;
        cluster.eventually_list(&service, SOON, weighs(weight)).await;
    }
    Ok(())
}

#[tokio::test]
async fn kf_007_a_deregistration_removes_the_row_it_means_and_no_other() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("leaving");
    let http = cluster.node(0).http();
    let in_c1 = Instance::at("192.0.2.21", 9002).cluster("c1").patient();
    let in_default = Instance::at("192.0.2.22", 9002).patient();
    http.register(&service, &in_c1).await?.ok()?;
    http.register(&service, &in_default).await?.ok()?;
    let without_cluster = |ip: &str| {
        joined(
            &service,
            vec![("ip".into(), ip.into()), ("port".into(), "9002".into())],
        )
    };

    http.deregister(&service, &in_c1.clone().cluster("c2"))
        .await?
        .ok()?;
    http.query(Method::DELETE, INSTANCE, &without_cluster("192.0.2.22"))
        .await?
        .ok()?;
    cluster.eventually_listed(&service, &["192.0.2.21:9002"]).await;

    http.query(Method::DELETE, INSTANCE, &without_cluster("192.0.2.21"))
        .await?
        .ok()?;
    cluster.eventually_listed(&service, &NOBODY).await;
    Ok(())
}

#[tokio::test]
async fn kf_007_without_a_cluster_the_default_row_is_meant_first() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("leaving");
    let http = cluster.node(1).http();
    for name in ["c1", "DEFAULT", "c2"] {
        http.register(
            &service,
            &Instance::at("192.0.2.23", 9002).cluster(name).patient(),
        )
        .await?
        .ok()?;
    }
    let blank =
        [("ip", "192.0.2.23"), ("port", "9002"), ("clusterName", "")].map(|(k, v)| (k.into(), v.into()));
    let params = joined(&service, blank.into());

    http.query(Method::DELETE, INSTANCE, &params).await?.ok()?;
    http.query(Method::DELETE, INSTANCE, &params).await?.ok()?;

    cluster
        .eventually_list(&service, SOON, |list| {
            let clusters: Vec<&str> = list.hosts.iter().map(|h| h.cluster.as_str()).collect();
            ensure!(
                clusters == ["c1", "c2"],
                "the second call is ambiguous and removes nothing: {clusters:?}"
            );
            Ok(())
        })
        .await;
    Ok(())
}

/// Two connections publish one row, one of them at each of two nodes; then one closes, then the other.
async fn two_publishers_of_one_row(closes_older_first: bool) -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("twice");
    let row = Instance::at("192.0.2.30", 8556);
    let older = cluster.node(0).client().await?;
    let newer = cluster.node(1).client().await?;
    older.register(&service, &row.clone().weight(1.0)).await?;
    cluster.eventually_list(&service, SOON, weighs(1.0)).await;
    newer.register(&service, &row.clone().weight(2.0)).await?;
    cluster.eventually_list(&service, SOON, weighs(2.0)).await;

    let (first, second, left) = if closes_older_first {
        (older, newer, 2.0)
    } else {
        (newer, older, 1.0)
    };
    let watcher = cluster.node(2).client().await?;
    watcher.subscribe(&service, "").await?;
    drop(first);
    cluster.eventually_list(&service, SOON, weighs(left)).await;
    for push in watcher.take_pushes().await {
        ensure!(
            push.list()?.hosts.len() == 1,
            "there is always one row: {:?}",
            push.body
        );
    }
    drop(second);
    cluster.eventually_listed(&service, &NOBODY).await;
    Ok(())
}

#[tokio::test]
async fn kf_008_a_row_stays_when_its_older_publisher_goes() -> Result<()> {
    two_publishers_of_one_row(true).await
}

#[tokio::test]
async fn kf_008_a_row_shows_the_older_publisher_when_the_newer_goes() -> Result<()> {
    two_publishers_of_one_row(false).await
}

#[tokio::test]
async fn kf_009_a_persistent_registration_of_an_ephemeral_service_is_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("both");
    let instance = Instance::at("10.4.0.9", 80).patient();
    let http = cluster.node(0).http();
    http.register(&service, &instance).await?.ok()?;
    let mut params = joined(&service, instance.to_params());
    params
        .iter_mut()
        .filter(|(k, _)| k == "ephemeral")
        .for_each(|(_, v)| *v = "false".into());

    let reply = http.query(Method::POST, INSTANCE, &params).await?;

    ensure!(
        (400..=503).contains(&reply.status) && reply.text.contains("ephemeral"),
        "{reply:?}"
    );
    cluster
        .eventually_list(&service, SOON, |list| list.expect_only(&instance))
        .await;
    Ok(())
}

#[tokio::test]
async fn kf_010_a_service_that_is_used_again_while_it_is_cleaned_up_is_not_lost() -> Result<()> {
    let life = Duration::from_millis(300);
    let cluster = Cluster::builder(3)
        .flag("--empty-service-life", "300ms")
        .start()
        .await;
    let tries = (0..60_u64).map(|i| {
        let cluster = &cluster;
        async move {
            let service = Service::unique("cleaned");
            let instance = Instance::at("10.4.0.10", 80).patient();
            let client = cluster.node(i as usize % 3).client().await?;
            client.register(&service, &instance).await?;
            client.deregister(&service, &instance).await?;
            // The wait is what is tried: up to, at, and after the moment of cleaning.
            sleep(Duration::from_millis(fastrand::u64(250..=350))).await;
            client.register(&service, &instance).await?;
            sleep(life * 2).await;
            client.query(&service).await?.expect(&["10.4.0.10:80"])?;
            cluster.eventually_listed(&service, &["10.4.0.10:80"]).await;
            client.deregister(&service, &instance).await?;
            cluster.eventually_listed(&service, &NOBODY).await;
            anyhow::Ok(())
        }
    });
    try_join_all(tries).await?;
    Ok(())
}

#[tokio::test]
async fn kf_011_deregistering_one_of_a_batch_leaves_the_others() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let batch: Vec<Instance> = (1..=3).map(|port| Instance::at("10.4.0.11", port)).collect();
    for by_batch in [false, true] {
        let service = Service::unique("batch");
        let client = cluster.node(0).client().await?;
        let subscriber = cluster.node(2).client().await?;
        client.batch(&service, &batch).await?;
        cluster
            .eventually_listed(&service, &["10.4.0.11:1", "10.4.0.11:2", "10.4.0.11:3"])
            .await;
        subscriber.subscribe(&service, "").await?;
        if by_batch {
            client
                .batch(&service, &[batch[0].clone(), batch[2].clone()])
                .await?;
        } else {
            client.deregister(&service, &batch[1]).await?;
        }
        let left = ["10.4.0.11:1", "10.4.0.11:3"];
        cluster.eventually_listed(&service, &left).await;
        subscriber.pushed_exactly(&service, &left, SOON).await?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_012_a_connection_holds_one_registration_and_http_holds_rows() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (over_grpc, over_http) = (Service::unique("one"), Service::unique("many"));
    let client = cluster.node(0).client().await?;
    let http = cluster.node(1).http();
    for port in [8080, 8081] {
        client
            .register(&over_grpc, &Instance::at("10.4.0.12", port))
            .await?;
        http.register(&over_http, &Instance::at("10.4.0.12", port).patient())
            .await?
            .ok()?;
    }
    cluster.eventually_listed(&over_grpc, &["10.4.0.12:8081"]).await;
    cluster
        .eventually_listed(&over_http, &["10.4.0.12:8080", "10.4.0.12:8081"])
        .await;
    Ok(())
}

#[tokio::test]
async fn kf_013_a_first_registration_is_listed_at_once() -> Result<()> {
    let cluster = CLUSTER.get().await;
    for port in 1..=50 {
        let service = Service::unique("first");
        let http = cluster.node(usize::from(port) % 3).http();
        http.register(&service, &Instance::at("10.4.0.13", port).patient())
            .await?
            .ok()?;
        http.list(&service)
            .await?
            .expect(&[format!("10.4.0.13:{port}")])?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_014_an_update_of_an_unknown_instance_is_refused_and_forgotten() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let instance = Instance::at("192.0.2.50", 1000).patient();
    let changed = instance.clone().weight(9.0).meta("lane", "a");
    let (unknown, known) = (Service::unique("unknown"), Service::unique("known"));
    http.register(&known, &Instance::at("192.0.2.51", 1000).patient())
        .await?
        .ok()?;

    http.update(&unknown, &changed)
        .await?
        .refused(400, "service not found")?;
    http.update(&known, &changed)
        .await?
        .refused(404, "no matched ip found!")?;

    for service in [&unknown, &known] {
        http.register(service, &instance).await?.ok()?;
        let list = http.list(service).await?;
        assert_eq!(
            list.at("192.0.2.50:1000")?,
            &instance,
            "none of the refused values"
        );
    }
    Ok(())
}

#[tokio::test]
async fn kf_015_a_connection_that_is_not_set_up_gets_301() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("early");
    let connection = cluster_tests::Connection::open(cluster.node(0).grpc_address()).await?;
    let body = merged(
        service.to_json(),
        json!({"type": "registerInstance", "instance": Instance::at("10.4.0.15", 80).to_json()}),
    );
    for kind in [
        "InstanceRequest",
        "HealthCheckRequest",
        "ServiceQueryRequest",
        "SubscribeServiceRequest",
    ] {
        let answer = connection.send(kind, &body).await?.refused(301)?;
        assert_eq!(
            (answer.kind.as_str(), answer.message()),
            ("ErrorResponse", "Connection is unregistered.")
        );
    }
    // An open stream without a setup counts for nothing.
    let _stream = connection.stream().await?;
    connection.send("InstanceRequest", &body).await?.refused(301)?;
    cluster.node(0).http().list(&service).await?.expect(&NOBODY)
}

#[tokio::test]
async fn kf_015_a_connection_that_the_node_dropped_gets_301() -> Result<()> {
    let cluster = Cluster::builder(1)
        .flag("--detect-after", "1s")
        .flag("--drop-after", "2s")
        .start()
        .await;
    let service = Service::unique("dropped");
    let silent = ClientOptions::default().acks(cluster_tests::Acks::None);
    let client = cluster.node(0).client_with(silent).await?;
    client.register(&service, &Instance::at("10.4.0.15", 81)).await?;

    client.stream_end(SOON).await?;

    cluster.eventually_listed(&service, &NOBODY).await;
    let late = Instance::at("10.4.0.15", 81).to_json();
    client
        .instance_request("registerInstance", &service, late)
        .await?
        .refused(301)?;
    cluster.node(0).http().list(&service).await?.expect(&NOBODY)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_016_registrations_right_after_the_setup_are_taken() -> Result<()> {
    // Services of 25, so that subscribers are not pushed 500 lists of 500 each.
    const EACH: u16 = 25;
    let cluster = CLUSTER.get().await;
    let services: Vec<Service> = (0..20).map(|_| Service::unique("eager")).collect();
    let mut clients = Vec::new();
    for service in &services {
        let eager = (1..=EACH).map(|port| {
            let node = cluster.node(usize::from(port) % 3);
            async move {
                let client = node.client_with(ClientOptions::default().impatient()).await?;
                sleep(Duration::from_micros(fastrand::u64(0..2000))).await;
                client.register(service, &Instance::at("10.4.0.16", port)).await?;
                client.subscribe(service, "").await?;
                anyhow::Ok(client)
            }
        });
        clients.extend(try_join_all(eager).await?);
    }
    let all: Vec<String> = (1..=EACH).map(|port| format!("10.4.0.16:{port}")).collect();
    for service in &services {
        cluster.eventually_listed(service, &all).await;
    }
    ensure!(
        !clients.iter().any(Client::is_closed),
        "a client lost its connection"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_064_clients_that_close_right_after_a_registration_leave_nothing() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("hasty");
    let hasty = |port: u16| {
        let node = cluster.node(usize::from(port) % 3);
        let service = &service;
        async move {
            let client = node.client().await?;
            let instance = Instance::at("10.4.0.64", port);
            let register = client.register(service, &instance);
            // Sent, but the answer is not awaited: sometimes it has come, sometimes not.
            let _ = tokio::time::timeout(Duration::from_micros(fastrand::u64(0..2000)), register).await;
            anyhow::Ok(())
        }
    };
    for chunk in (1..=1000_u16).collect::<Vec<_>>().chunks(40) {
        try_join_all(chunk.iter().map(|port| hasty(*port))).await?;
    }
    cluster.eventually_listed(&service, &NOBODY).await;
    for node in cluster.nodes() {
        let http = node.http();
        eventually("no row is left", SOON, || async {
            let rows = http.rows(&service).await?;
            ensure!(rows.is_empty(), "{} rows, first {:?}", rows.len(), rows.first());
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_come_and_go_leave_nothing_behind() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let node = cluster.node(0);
    let service = Service::unique("visitors");
    let visit = |port: u16| {
        let service = &service;
        async move {
            let client = node.client().await?;
            client.register(service, &Instance::at("10.4.0.65", port)).await?;
            client.subscribe(service, "").await?;
            anyhow::Ok(())
        }
    };
    try_join_all((1..=20).map(visit)).await?;
    let idle = node.open_files()?;
    for _ in 0..20 {
        try_join_all((1..=50).map(visit)).await?;
    }
    cluster.eventually_listed(&service, &NOBODY).await;
    eventually("no connection is left", SOON, || async {
        let state = node.http().state().await?;
        ensure!((state.connections, state.instances) == (0, 0), "{state:?}");
        Ok(())
    })
    .await;
    eventually("no file is left open", SOON, || async {
        let open = node.open_files()?;
        ensure!(open <= idle + 20, "{open} files, {idle} at first");
        Ok(())
    })
    .await;
    Ok(())
}
