//! What subscribers are sent, when, and how often.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::joined;
use cluster_tests::udp::UdpReceiver;
use cluster_tests::{Acks, Client, ClientOptions, Instance, Service, SharedCluster, eventually};
use futures_util::future::try_join_all;
use reqwest::Method;
use tokio::time::{Instant as Clock, interval};

static CLUSTER: SharedCluster = SharedCluster::of(3);

/// Fails if anything about the service is pushed within a second.
async fn is_left_alone(client: &Client, service: &Service) -> Result<()> {
    let pushed = client.pushed(service, Duration::from_secs(1), |_| Ok(())).await;
    ensure!(pushed.is_err(), "pushed {:?}", pushed.map(|list| list.json));
    Ok(())
}

#[tokio::test]
async fn kf_052_changes_of_metadata_and_weight_are_pushed() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("changing");
    let instance = Instance::at("10.8.0.52", 80).patient();
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster.eventually_listed(&service, &["10.8.0.52:80"]).await;
    let subscribers = cluster.clients().await?;
    for subscriber in &subscribers {
        subscriber.subscribe(&service, "").await?;
    }
    let with_metadata = instance.clone().meta("lane", "b");
    let with_weight = with_metadata.clone().weight(0.25);
    for changed in [with_metadata, with_weight] {
        cluster.node(1).http().update(&service, &changed).await?.ok()?;
        for subscriber in &subscribers {
            subscriber
                .pushed(&service, SOON, |list| list.expect_only(&changed))
                .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_053_a_burst_of_changes_makes_a_few_pushes() -> Result<()> {
    const CHANGES: u16 = 1000;
    let cluster = CLUSTER.get().await;
    let service = Service::unique("burst");
    let subscribers = cluster.clients().await?;
    for subscriber in &subscribers {
        subscriber.subscribe(&service, "").await?;
    }
    let providers = try_join_all((0..10).map(|_| cluster.node(0).client())).await?;
    let mut pace = interval(Duration::from_millis(20));
    for round in 0..CHANGES / 10 {
        pace.tick().await;
        try_join_all((1..).zip(&providers).map(|(port, provider)| {
            let (service, instance) = (&service, Instance::at("10.8.0.53", port));
            async move {
                match round % 2 {
                    0 => provider.register(service, &instance).await,
                    _ => provider.deregister(service, &instance).await,
                }
            }
        }))
        .await?;
    }
    providers[4]
        .register(&service, &Instance::at("10.8.0.53", 99))
        .await?;

    for subscriber in &subscribers {
        eventually("the last push is the final list", SOON, || async {
            subscriber.query(&service).await?.expect(&["10.8.0.53:99"])
        })
        .await;
        let before = subscriber.take_pushes().await;
        let last = match before.last() {
            Some(push) if push.list()?.addresses() == ["10.8.0.53:99"] => 0,
            _ => {
                subscriber
                    .pushed_exactly(&service, &["10.8.0.53:99"], SOON)
                    .await?;
                1
            }
        };
        let n_pushes = before.len() + last;
        // The more changes a second, the longer they are merged; a slow machine makes fewer a second, and more pushes.
        ensure!(
            n_pushes <= usize::from(CHANGES) / 10,
            "{n_pushes} pushes for {CHANGES} changes"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_054_subscribers_that_never_acknowledge_cost_others_nothing() -> Result<()> {
    const SILENT: usize = 200;
    let cluster = CLUSTER.get().await;
    let service = Service::unique("unacked");
    let node = cluster.node(0);
    let silent = ClientOptions::default().acks(Acks::DetectionOnly);
    let silent = try_join_all((0..SILENT).map(|_| node.client_with(silent.clone()))).await?;
    for client in &silent {
        client.subscribe(&service, "").await?;
    }
    let good = node.client().await?;
    good.subscribe(&service, "").await?;
    let provider = cluster.node(1).client().await?;
    let mut pace = interval(Duration::from_millis(100));
    let mut memory = None;
    for port in 1..=100 {
        pace.tick().await;
        let changed = Clock::now();
        provider
            .register(
                &service,
                &Instance::at("10.8.0.54", port).meta("blob", &"x".repeat(900)),
            )
            .await?;
        good.pushed_exactly(&service, &[&format!("10.8.0.54:{port}")], Duration::from_secs(2))
            .await?;
        ensure!(
            changed.elapsed() < Duration::from_secs(2),
            "pushed {:?} after the change",
            changed.elapsed()
        );
        if port == 20 {
            memory = Some(node.resident_memory()?);
        }
    }
    // 80 changes held back for each of 200 subscribers would be 16 MB and more.
    let grown = node.resident_memory()?.saturating_sub(memory.unwrap_or_default());
    ensure!(grown < 12 << 20, "the node grew by {grown} bytes");
    ensure!(
        !silent.iter().any(Client::is_closed),
        "a client that lives was dropped"
    );
    Ok(())
}

#[tokio::test]
async fn a_push_without_an_acknowledgement_is_sent_again() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("again");
    let silent = ClientOptions::default().acks(Acks::DetectionOnly);
    let subscriber = cluster.node(0).client_with(silent).await?;
    let provider = cluster.node(0).client().await?;
    provider.register(&service, &Instance::at("10.8.0.1", 80)).await?;
    subscriber.subscribe(&service, "").await?;

    let first = subscriber.next_push(SOON).await?;
    let second = subscriber.next_push(Duration::from_secs(20)).await?;

    for push in [&first, &second] {
        push.list()?.expect(&["10.8.0.1:80"])?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_055_after_an_unsubscription_nothing_is_pushed() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("left");
    let provider = cluster.node(1).client().await?;
    let (leaver, stayer) = (cluster.node(0).client().await?, cluster.node(0).client().await?);
    for subscriber in [&leaver, &stayer] {
        subscriber.subscribe(&service, "").await?;
        subscriber.pushed_exactly(&service, &[], SOON).await?;
    }
    leaver.unsubscribe(&service, "").await?;
    leaver.take_pushes().await;

    for port in 1..=3 {
        provider
            .register(&service, &Instance::at("10.8.0.55", port))
            .await?;
        stayer
            .pushed_exactly(&service, &[&format!("10.8.0.55:{port}")], SOON)
            .await?;
    }
    is_left_alone(&leaver, &service).await
}

#[tokio::test]
async fn kf_056_an_unsubscription_ends_only_the_one_with_its_clusters() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("two-listeners");
    let subscriber = cluster.node(0).client().await?;
    for clusters in ["c1", "c2"] {
        subscriber.subscribe(&service, clusters).await?;
    }
    subscriber.unsubscribe(&service, "c1").await?;
    let provider = cluster.node(1).client().await?;
    let both = [
        Instance::at("10.8.0.56", 1).cluster("c1"),
        Instance::at("10.8.0.56", 2).cluster("c2"),
    ];

    provider.batch(&service, &both).await?;

    let of_c2 = subscriber.pushed(&service, SOON, |list| {
        ensure!(
            list.clusters() == Some("c2") || list.hosts.is_empty(),
            "for another: {}",
            list.json
        );
        list.expect(&["10.8.0.56:2"])
    });
    assert_eq!(of_c2.await?.clusters(), Some("c2"));
    let later = subscriber.pushed(&service, Duration::from_secs(1), |list| {
        ensure!(list.clusters() == Some("c1"), "of c2");
        Ok(())
    });
    ensure!(later.await.is_err(), "the listener of c1 is gone");
    Ok(())
}

#[tokio::test]
async fn kf_057_a_subscription_before_the_first_registration_is_served() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("later");
    let subscribers = cluster.clients().await?;
    for subscriber in &subscribers {
        ensure!(
            subscriber.subscribe(&service, "").await?.hosts.is_empty(),
            "nobody is there"
        );
    }
    cluster.node(0).http().list(&service).await?.expect(&[""; 0])?;
    let registered = Clock::now();
    let provider = cluster.node(2).client().await?;
    provider
        .register(&service, &Instance::at("10.8.0.57", 80))
        .await?;
    for subscriber in &subscribers {
        subscriber
            .pushed_exactly(&service, &["10.8.0.57:80"], SOON)
            .await?;
    }
    ensure!(
        registered.elapsed() < Duration::from_secs(2),
        "pushed after {:?}",
        registered.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn kf_058_what_is_pushed_is_what_a_query_answers() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("filtered");
    let subscriber = cluster.node(0).client().await?;
    subscriber.subscribe(&service, "c1").await?;
    let (p1, p2) = (cluster.node(1).client().await?, cluster.node(2).client().await?);
    p2.register(&service, &Instance::at("10.8.0.58", 2).cluster("c2"))
        .await?;
    p1.register(&service, &Instance::at("10.8.0.58", 1).cluster("c1"))
        .await?;
    let pushed = subscriber
        .pushed_exactly(&service, &["10.8.0.58:1"], SOON)
        .await?;
    assert_eq!(pushed.clusters(), Some("c1"));
    p1.register(&service, &Instance::at("10.8.0.58", 3).cluster("c1").weight(2.0))
        .await?;
    p2.deregister(&service, &Instance::at("10.8.0.58", 2).cluster("c2"))
        .await?;
    let pushed = subscriber
        .pushed_exactly(&service, &["10.8.0.58:3"], SOON)
        .await?;
    let queried = subscriber.query_with(&service, "c1", false).await?;
    assert_eq!(pushed.hosts, queried.hosts);
    for push in subscriber.take_pushes().await {
        assert_eq!(push.list()?.hosts, queried.hosts);
    }
    Ok(())
}

/// With the guard against empty lists: nobody on any node sees one while a provider is away for less than its time, and
/// everybody does when it stays away, or deregisters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_service_is_empty_only_when_its_provider_stays_away_or_deregisters() -> Result<()> {
    const HELD: Duration = Duration::from_secs(3);
    let cluster = CLUSTER.get().await;
    let service = Service::unique("guarded");
    let params = joined(&service, vec![("seconds".into(), HELD.as_secs().to_string())]);
    let http = cluster.node(0).http();
    http.query(Method::PUT, "/rollcall/emptyPushGuard", &params)
        .await?
        .with_status(200)?;
    for node in cluster.nodes() {
        let params = service.to_params();
        eventually("the guard is known", SOON, async || {
            let http = node.http();
            let shown = http
                .query(Method::GET, "/rollcall/emptyPushGuard", &params)
                .await?;
            ensure!(shown.json()?["guard"]["seconds"] == HELD.as_secs());
            Ok(())
        })
        .await;
    }
    let provider = cluster.node(1).client().await?;
    provider.register(&service, &Instance::at("10.8.0.8", 1)).await?;
    cluster.eventually_listed(&service, &["10.8.0.8:1"]).await;
    let subscribers = cluster.clients().await?;
    for subscriber in &subscribers {
        subscriber.subscribe(&service, "").await?;
        subscriber.pushed_exactly(&service, &["10.8.0.8:1"], SOON).await?;
    }
    let receiver = UdpReceiver::open().await?;
    receiver.poll(cluster.node(2), &service, "").await?;
    receiver.pushed(&service, &["10.8.0.8:1"], SOON).await?;

    drop(provider);
    for node in cluster.nodes() {
        eventually("the row is gone", SOON, async || {
            ensure!(node.http().rows(&service).await?.is_empty());
            Ok(())
        })
        .await;
        // Whoever polls or comes anew sees what the others see.
        node.http().list(&service).await?.expect(&["10.8.0.8:1"])?;
        let newcomer = node.client().await?;
        newcomer.subscribe(&service, "").await?.expect(&["10.8.0.8:1"])?;
    }
    let provider = cluster.node(0).client().await?;
    provider.register(&service, &Instance::at("10.8.0.8", 2)).await?;
    for subscriber in &subscribers {
        let next = subscriber.pushed(&service, SOON, |_| Ok(())).await?;
        next.expect(&["10.8.0.8:2"])?;
    }
    let datagram = receiver.next(SOON).await?;
    ensure!(datagram.list["hosts"][0]["port"] == 2, "{datagram:?}");
    receiver.ack(&datagram).await?;

    let lost = Clock::now();
    drop(provider);
    for subscriber in &subscribers {
        subscriber.pushed_exactly(&service, &[], SOON).await?;
        ensure!(lost.elapsed() >= HELD, "after {:?}", lost.elapsed());
    }
    receiver.pushed(&service, &[""; 0], SOON).await?;

    let provider = cluster.node(0).client().await?;
    let instance = Instance::at("10.8.0.8", 3);
    provider.register(&service, &instance).await?;
    for subscriber in &subscribers {
        subscriber.pushed_exactly(&service, &["10.8.0.8:3"], SOON).await?;
    }
    provider.deregister(&service, &instance).await?;
    let wanted = Clock::now();
    for subscriber in &subscribers {
        let left = (HELD / 2).saturating_sub(wanted.elapsed());
        subscriber.pushed_exactly(&service, &[], left).await?;
    }
    Ok(())
}

/// KF-051: with subscribers over gRPC and over UDP on every node, each has every change within two seconds, whichever
/// node it was made on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_051_every_subscriber_on_every_node_has_every_change_within_two_seconds() -> Result<()> {
    const EACH: usize = 30;
    const CHANGES: u16 = 20;
    let cluster = CLUSTER.get().await;
    let service = Service::unique("followed");
    let (mut over_grpc, mut over_udp) = (Vec::new(), Vec::new());
    for node in cluster.nodes() {
        over_grpc.extend(try_join_all((0..EACH).map(|_| node.client())).await?);
        for _ in 0..EACH {
            let receiver = UdpReceiver::open().await?;
            receiver.poll(node, &service, "").await?;
            receiver.pushed(&service, &[""; 0], SOON).await?;
            over_udp.push(receiver);
        }
    }
    try_join_all(over_grpc.iter().map(|client| client.subscribe(&service, ""))).await?;
    for change in 1..=CHANGES {
        let instance = Instance::at("10.8.0.51", change).patient();
        let former = Instance::at("10.8.0.51", change - 1).patient();
        let http = cluster.node(usize::from(change) % 3).http();
        http.register(&service, &instance).await?.ok()?;
        http.deregister(&service, &former).await?.ok()?;
        let (made, listed) = (Clock::now(), [instance.address()]);
        let left = || Duration::from_secs(2).saturating_sub(made.elapsed());
        let wanted = [listed[0].as_str()];
        let grpc = over_grpc
            .iter()
            .map(|client| client.pushed_exactly(&service, &wanted, left()));
        let udp = over_udp
            .iter()
            .map(|receiver| receiver.pushed(&service, &wanted, left()));
        tokio::try_join!(try_join_all(grpc), try_join_all(udp))
            .with_context(|| format!("change {change}"))?;
    }
    Ok(())
}
