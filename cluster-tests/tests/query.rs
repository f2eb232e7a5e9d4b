//! Lists and pages as clients ask for them.

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Instance, Service, SharedCluster, eventually, unique};

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

#[tokio::test]
async fn kf_047_a_list_does_not_need_a_udp_port() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("udp");
    let http = cluster.node(0).http();
    http.register(&service, &Instance::at("10.7.0.1", 80).patient())
        .await?
        .ok()?;
    for more in [&[][..], &[("udpPort", "")], &[("udpPort", "0"), ("clientIP", "")]] {
        http.list_with(&service, more).await?.expect(&["10.7.0.1:80"])?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_048_an_unknown_service_has_an_empty_list() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("nobody");
    for node in cluster.nodes() {
        let over_http = node.http().list(&service).await?;
        let over_grpc = node.client().await?.query(&service).await?;
        for list in [&over_http, &over_grpc] {
            list.expect(&NOBODY)?;
            assert_eq!(
                (list.clusters(), list.json["groupName"].as_str()),
                (Some(""), Some("DEFAULT_GROUP"))
            );
            assert_eq!(
                (&list.json["valid"], &list.json["cacheMillis"]),
                (&true.into(), &10000.into())
            );
        }
        assert_eq!(over_grpc.json["name"], service.name);
    }
    Ok(())
}

#[tokio::test]
async fn kf_049_pages_are_cut_from_the_whole_count() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let namespace = unique("pages");
    let http = cluster.node(0).http();
    let mut all: Vec<String> = (0..25).map(|i| format!("page-{i:02}")).collect();
    for name in &all {
        let service = Service::new(name).namespace(&namespace);
        http.register(&service, &Instance::at("10.7.0.2", 80).patient())
            .await?
            .ok()?;
    }
    all.sort();
    for node in cluster.nodes() {
        let (http, client) = (node.http(), node.client().await?);
        eventually("25 services", SOON, || async {
            let (count, _) = http.services(&namespace, "DEFAULT_GROUP", 1, 1).await?;
            ensure!(count == 25, "{count} services");
            Ok(())
        })
        .await;
        let (mut over_http, mut over_grpc) = (Vec::new(), Vec::new());
        for (page, size) in (1..).zip([10, 10, 5, 0]) {
            let (count, names) = http.services(&namespace, "DEFAULT_GROUP", page, 10).await?;
            assert_eq!((count, names.len()), (25, size), "page {page} over HTTP");
            over_http.extend(names);
            let (count, names) = client.services(&namespace, "DEFAULT_GROUP", page, 10).await?;
            assert_eq!((count, names.len()), (25, size), "page {page} over gRPC");
            over_grpc.extend(names);
        }
        over_http.sort();
        over_grpc.sort();
        assert_eq!((&over_http, &over_grpc), (&all, &all), "each name once");
    }
    Ok(())
}

#[tokio::test]
async fn kf_050_namespaces_and_groups_are_apart() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (name, a, b) = (unique("svc"), unique("ns-a"), unique("ns-b"));
    let services: Vec<Service> = [(&a, "g1"), (&a, "g2"), (&b, "g1"), (&b, "g2")]
        .map(|(namespace, group)| Service::new(&*name).namespace(namespace).group(group))
        .into();
    let subscriber = cluster.node(1).client().await?;
    subscriber.subscribe(&services[0], "").await?;
    let provider = cluster.node(0).client().await?;
    for round in [0, 10] {
        // The subscribed one last: had another been pushed, it would have come before.
        for (port, service) in (1..=4).zip(&services).rev() {
            provider
                .register(service, &Instance::at("10.7.0.3", round + port))
                .await?;
        }
        for (port, service) in (1..).zip(&services) {
            cluster
                .eventually_listed(service, &[format!("10.7.0.3:{}", round + port)])
                .await;
        }
        let own = format!("10.7.0.3:{}", round + 1);
        subscriber
            .pushed(&services[0], SOON, |list| {
                let foreign = list.hosts.iter().any(|h| h.port % 10 != 1);
                assert!(
                    !foreign,
                    "another service's instance was pushed: {:?}",
                    list.hosts
                );
                list.expect(&[&own])
            })
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn clusters_and_health_select() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("selected");
    let mut sick = Instance::at("10.7.0.4", 2).cluster("c1");
    sick.healthy = false;
    let all = [
        Instance::at("10.7.0.4", 1).cluster("c1"),
        sick,
        Instance::at("10.7.0.4", 3),
    ];
    let provider = cluster.node(0).client().await?;
    provider.batch(&service, &all).await?;
    cluster
        .eventually_listed(&service, &["10.7.0.4:1", "10.7.0.4:2", "10.7.0.4:3"])
        .await;
    let wanted: [(&str, bool, &[&str]); 5] = [
        ("c1", false, &["10.7.0.4:1", "10.7.0.4:2"]),
        ("c1", true, &["10.7.0.4:1"]),
        ("DEFAULT,c1", false, &["10.7.0.4:1", "10.7.0.4:2", "10.7.0.4:3"]),
        ("", true, &["10.7.0.4:1", "10.7.0.4:3"]),
        ("c2", false, &[]),
    ];
    for node in cluster.nodes() {
        let (http, client) = (node.http(), node.client().await?);
        for (clusters, healthy_only, addresses) in wanted {
            let healthy = if healthy_only { "true" } else { "false" };
            let more = [("clusters", clusters), ("healthyOnly", healthy)];
            let over_http = http.list_with(&service, &more).await?;
            over_http.expect(addresses)?;
            let over_grpc = client.query_with(&service, clusters, healthy_only).await?;
            over_grpc.expect(addresses)?;
            assert_eq!(
                (over_http.clusters(), over_grpc.clusters()),
                (Some(clusters), Some(clusters))
            );
        }
    }
    Ok(())
}
