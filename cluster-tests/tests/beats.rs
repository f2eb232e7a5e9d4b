//! Instances that are kept alive by beats: how they turn unhealthy, go, and stay.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::joined;
use cluster_tests::{
    BeatingInstance, Cluster, Http, Instance, List, Service, SharedCluster, always, eventually,
};
use tokio::time::{Instant as Clock, sleep};

static CLUSTER: SharedCluster = SharedCluster::of(3);

const SECOND: Duration = Duration::from_secs(1);

fn https(cluster: &Cluster) -> Vec<Http> {
    cluster.nodes().iter().map(|node| node.http()).collect()
}

/// Times after the last beat at which a node showed an instance unhealthy and gone.
#[derive(Debug)]
struct Decline {
    unhealthy: Duration,
    gone: Duration,
}

/// Watches one node until the instance is gone.
async fn decline(http: Http, service: Service, address: String, last_beat: Clock) -> Result<Decline> {
    let mut unhealthy = None;
    loop {
        let list = http.list(&service).await?;
        let now = last_beat.elapsed();
        match list.at(&address) {
            Ok(instance) if !instance.healthy => _ = unhealthy.get_or_insert(now),
            Ok(_) => {}
            Err(_) => {
                return Ok(Decline {
                    unhealthy: unhealthy.unwrap_or(now),
                    gone: now,
                });
            }
        }
        ensure!(
            now < Duration::from_secs(60),
            "{address} is still listed {now:?} after the last beat"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Checks on every node that the instance declines on schedule.
async fn declines(
    cluster: &Cluster,
    service: &Service,
    address: &str,
    last_beat: Clock,
    unhealthy: std::ops::Range<Duration>,
    gone: std::ops::Range<Duration>,
) -> Result<()> {
    let watches = https(cluster)
        .into_iter()
        .map(|http| tokio::spawn(decline(http, service.clone(), address.to_owned(), last_beat)));
    for watch in watches.collect::<Vec<_>>() {
        let decline = watch.await??;
        ensure!(
            unhealthy.contains(&decline.unhealthy),
            "wanted {unhealthy:?}, {gone:?}: {decline:?}"
        );
        ensure!(
            gone.contains(&decline.gone),
            "wanted {unhealthy:?}, {gone:?}: {decline:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn kf_038_an_instance_declines_by_its_own_times_on_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("silent");
    let instance = Instance::at("10.3.0.1", 80).beat_times(2_000, 6_000, 9_000);
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster.eventually_listed(&service, &["10.3.0.1:80"]).await;
    let reply = cluster.node(1).http().light_beat(&service, &instance).await?;
    let last_beat = Clock::now();
    assert_eq!((reply.code, reply.interval), (10200, 2000));

    declines(
        &cluster,
        &service,
        "10.3.0.1:80",
        last_beat,
        SECOND * 6 - SECOND / 5..SECOND * 8,
        SECOND * 9 - SECOND / 5..SECOND * 12,
    )
    .await
}

#[tokio::test]
async fn subscribers_everywhere_are_pushed_when_beats_stop() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("silent");
    let instance = Instance::at("10.3.0.2", 80).beat_times(1_000, 2_000, 4_000);
    let clients = cluster.clients().await?;
    for subscriber in &clients {
        subscriber.subscribe(&service, "").await?;
    }
    cluster.node(2).http().register(&service, &instance).await?.ok()?;

    for subscriber in &clients {
        subscriber
            .pushed(&service, SOON, |list| {
                ensure!(list.at("10.3.0.2:80")?.healthy, "not healthy yet");
                Ok(())
            })
            .await?;
        subscriber
            .pushed(&service, SOON, |list| {
                ensure!(!list.at("10.3.0.2:80")?.healthy, "not unhealthy yet");
                Ok(())
            })
            .await?;
        subscriber.pushed_exactly(&service, &[], SOON).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_beat_makes_an_unhealthy_instance_healthy_again() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("revived");
    let instance = Instance::at("10.3.0.3", 80).beat_times(1_000, 2_000, 60_000);
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster
        .eventually_list(&service, SOON, |list| {
            ensure!(!list.at("10.3.0.3:80")?.healthy, "still healthy");
            Ok(())
        })
        .await;

    assert_eq!(
        cluster.node(1).http().light_beat(&service, &instance).await?.code,
        10200
    );

    // Healthy on each node at some time before it declines again.
    for http in https(&cluster) {
        eventually("healthy again", SOON, || async {
            http.light_beat(&service, &instance).await?;
            ensure!(http.list(&service).await?.at("10.3.0.3:80")?.healthy, "unhealthy");
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn kf_004_host_names_decline_and_deregister_as_addresses_do() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("hosts");
    let http = cluster.node(0).http();
    let silent = Instance::at("node-1.example.test", 8091).beat_times(1_000, 3_000, 6_000);
    let leaving = Instance::at("localhost", 8091).patient();
    http.register(&service, &silent).await?.ok()?;
    http.register(&service, &leaving).await?.ok()?;
    let last_beat = Clock::now();
    cluster
        .eventually_listed(&service, &["localhost:8091", "node-1.example.test:8091"])
        .await;

    cluster
        .node(1)
        .http()
        .deregister(&service, &leaving)
        .await?
        .ok()?;
    cluster
        .node(1)
        .http()
        .list(&service)
        .await?
        .expect(&["node-1.example.test:8091"])?;

    declines(
        &cluster,
        &service,
        "node-1.example.test:8091",
        last_beat,
        SECOND * 3 - SECOND / 5..SECOND * 5,
        SECOND * 6 - SECOND / 5..SECOND * 9,
    )
    .await
}

#[tokio::test]
async fn kf_005_an_ipv6_address_can_be_registered_beaten_updated_and_removed() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("six");
    for (node, ip) in ["fe80::3c:7d01:f92a:8dd0", "2001:db8::10"].iter().enumerate() {
        let http = cluster.node(node).http();
        let instance = Instance::at(ip, 7001).patient();
        let is_listed_as = |wanted: Instance| move |list: &List| list.expect_only(&wanted);
        http.register(&service, &instance).await?.ok()?;
        cluster
            .eventually_list(&service, SOON, is_listed_as(instance.clone()))
            .await;
        assert_eq!(http.light_beat(&service, &instance).await?.code, 10200);
        assert_eq!(http.full_beat(&service, &instance).await?.code, 10200);
        let updated = instance.clone().meta("v", "2");
        http.update(&service, &updated).await?.ok()?;
        cluster
            .eventually_list(&service, SOON, is_listed_as(updated))
            .await;
        http.deregister(&service, &instance).await?.ok()?;
        cluster.eventually_listed(&service, &[""; 0]).await;
    }
    Ok(())
}

#[tokio::test]
async fn kf_006_one_address_in_three_clusters_is_three_rows() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("zones");
    let rows: Vec<Instance> = ["c1", "c2", "c3"]
        .map(|c| {
            Instance::at("192.0.2.20", 9001)
                .cluster(c)
                .beat_times(1_000, 4_000, 6_000)
        })
        .into();
    let mut beats = Vec::new();
    for row in &rows {
        let beating = BeatingInstance::start(https(&cluster), service.clone(), row.clone(), SECOND);
        beats.push(beating.await?);
    }
    let has_all = |list: &List| {
        rows.iter().try_for_each(|r| {
            ensure!(
                list.in_cluster("192.0.2.20:9001", &r.cluster)?.healthy,
                "{} is unhealthy",
                r.cluster
            );
            Ok(())
        })
    };
    cluster.eventually_list(&service, SOON, has_all).await;

    beats.pop();

    cluster
        .eventually_list(&service, SECOND * 15, |list| {
            ensure!(
                list.in_cluster("192.0.2.20:9001", "c3").is_err(),
                "c3 is still there"
            );
            Ok(())
        })
        .await;
    for http in https(&cluster) {
        let list = http.list(&service).await?;
        assert_eq!(list.hosts, rows[..2], "c1 and c2 stay healthy");
    }
    ensure!(
        beats.iter().all(|beat| beat.unknown() == 0),
        "no beat met an unknown row"
    );
    Ok(())
}

#[tokio::test]
async fn kf_034_a_registry_without_data_learns_instances_from_beats() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let service = Service::unique("learned");
    let instance = Instance::at("10.3.0.4", 80).weight(3.0).meta("v", "1").patient();
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster.node(0).restart();
    cluster.ready().await;
    let http = cluster.node(0).http();
    ensure!(
        http.list(&service).await?.hosts.is_empty(),
        "a single node forgets"
    );

    assert_eq!(http.light_beat(&service, &instance).await?.code, 20404);
    ensure!(
        http.list(&service).await?.hosts.is_empty(),
        "a light beat creates nothing"
    );
    assert_eq!(http.full_beat(&service, &instance).await?.code, 10200);

    assert_eq!(http.list(&service).await?.hosts, [instance]);
    Ok(())
}

#[tokio::test]
async fn kf_035_beats_do_not_change_weight_and_metadata() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("kept");
    let instance = Instance::at("10.3.0.5", 80).weight(5.0).meta("v", "1").patient();
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    let bare = serde_json::json!({"ip": "10.3.0.5", "port": 80, "cluster": "DEFAULT"}).to_string();
    let other =
        serde_json::json!({"ip": "10.3.0.5", "port": 80, "weight": 1.0, "metadata": {"v": "2"}}).to_string();
    for beat in [bare, other] {
        for http in https(&cluster) {
            let params = joined(&service, vec![("beat".into(), beat.clone())]);
            assert_eq!(http.beat_with(&params).await?.code, 10200);
        }
    }
    for http in https(&cluster) {
        always("weight and metadata stay", SECOND, || async {
            http.list(&service).await?.expect_only(&instance)
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn kf_036_the_cluster_in_the_beats_json_counts() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("json-cluster");
    let instance = Instance::at("192.0.2.60", 9100)
        .cluster("c1")
        .beat_times(1_000, 3_000, 5_000);
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster.eventually_listed(&service, &["192.0.2.60:9100"]).await;
    let beat = instance.to_beat(&service).to_string();
    // Without a cluster among the parameters, and with another one.
    let params = [
        joined(&service, vec![("beat".into(), beat.clone())]),
        joined(
            &service,
            vec![("beat".into(), beat), ("clusterName".into(), "c2".into())],
        ),
    ];
    for round in 0..8 {
        let http = cluster.node(round % 3).http();
        assert_eq!(http.beat_with(&params[round % 2]).await?.code, 10200);
        for http in https(&cluster) {
            // Healthy in c1, and nowhere else.
            http.list(&service).await?.expect_only(&instance)?;
        }
        sleep(SECOND).await;
    }
    Ok(())
}

#[tokio::test]
async fn kf_037_beats_name_the_group_apart_or_before_the_name() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("grouped").group("G2");
    let instance = Instance::at("10.3.0.6", 80).beat_times(1_000, 3_000, 5_000);
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster.eventually_listed(&service, &["10.3.0.6:80"]).await;
    let apart = joined(&service, instance.row_params());
    let mut before = vec![("serviceName".to_owned(), service.grouped())];
    before.extend(instance.row_params());
    for round in 0..8 {
        let params = if round % 2 == 0 { &apart } else { &before };
        assert_eq!(
            cluster.node(round % 3).http().beat_with(params).await?.code,
            10200
        );
        for http in https(&cluster) {
            ensure!(
                http.list(&service).await?.at("10.3.0.6:80")?.healthy,
                "unhealthy in G2"
            );
        }
        sleep(SECOND).await;
    }
    let default = Service::new(service.name);
    for http in https(&cluster) {
        ensure!(
            http.list(&default).await?.hosts.is_empty(),
            "nothing appears in DEFAULT_GROUP"
        );
    }
    Ok(())
}

#[tokio::test]
async fn kf_043_two_instances_go_one_after_the_other() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("pair");
    let instance = |ip| Instance::at(ip, 80).beat_times(1_000, 3_000, 6_000);
    let first =
        BeatingInstance::start(https(&cluster), service.clone(), instance("10.3.0.7"), SECOND / 2).await?;
    let second =
        BeatingInstance::start(https(&cluster), service.clone(), instance("10.3.0.8"), SECOND / 2).await?;
    cluster
        .eventually_listed(&service, &["10.3.0.7:80", "10.3.0.8:80"])
        .await;

    for (beats, address) in [(first, "10.3.0.7:80"), (second, "10.3.0.8:80")] {
        drop(beats);
        // The last beat was up to half a second before.
        let stopped = Clock::now();
        let gone = SECOND * 5..SECOND * 9;
        declines(&cluster, &service, address, stopped, SECOND * 2..SECOND * 5, gone).await?;
    }
    cluster.eventually_listed(&service, &[""; 0]).await;
    Ok(())
}
