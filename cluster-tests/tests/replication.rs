//! What happens on one node is seen on the others, by query and by push.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Instance, Service, SharedCluster};

static CLUSTER: SharedCluster = SharedCluster::of(3);

#[tokio::test]
async fn a_registration_on_one_node_is_listed_and_pushed_on_all() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let orders = Service::unique("orders");
    let clients = cluster.clients().await?;
    for subscriber in &clients {
        ensure!(
            subscriber.subscribe(&orders, "").await?.hosts.is_empty(),
            "nothing is registered yet"
        );
    }
    let instance = Instance::at("10.1.0.1", 8080).weight(2.5).meta("zone", "a");

    clients[0].register(&orders, &instance).await?;

    for subscriber in &clients {
        let pushed = subscriber
            .pushed_exactly(&orders, &["10.1.0.1:8080"], SOON)
            .await?;
        pushed.expect_only(&instance)?;
    }
    for (client, node) in clients.iter().zip(cluster.nodes()) {
        client.query(&orders).await?.expect_only(&instance)?;
        node.http().list(&orders).await?.expect_only(&instance)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_deregistration_on_one_node_is_listed_and_pushed_on_all() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let orders = Service::unique("orders");
    let instance = Instance::at("10.1.0.2", 8080);
    let clients = cluster.clients().await?;
    clients[1].register(&orders, &instance).await?;
    cluster.eventually_listed(&orders, &["10.1.0.2:8080"]).await;
    for subscriber in &clients {
        subscriber
            .subscribe(&orders, "")
            .await?
            .expect(&["10.1.0.2:8080"])?;
    }

    clients[1].deregister(&orders, &instance).await?;

    for subscriber in &clients {
        subscriber.pushed_exactly(&orders, &[], SOON).await?;
    }
    cluster.eventually_listed(&orders, &[""; 0]).await;
    Ok(())
}

#[tokio::test]
async fn a_batch_grows_and_shrinks_on_all_nodes() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let fleet = Service::unique("fleet");
    let provider = cluster.node(2).client().await?;
    let subscriber = cluster.node(0).client().await?;
    subscriber.subscribe(&fleet, "").await?;
    let all: Vec<Instance> = (1..=4)
        .map(|port| Instance::at("10.1.0.3", port).meta("n", "1"))
        .collect();

    provider.batch(&fleet, &all[..2]).await?;
    cluster
        .eventually_listed(&fleet, &["10.1.0.3:1", "10.1.0.3:2"])
        .await;
    provider.batch(&fleet, &all).await?;
    cluster
        .eventually_listed(&fleet, &["10.1.0.3:1", "10.1.0.3:2", "10.1.0.3:3", "10.1.0.3:4"])
        .await;
    provider.batch(&fleet, &all[2..3]).await?;
    cluster.eventually_listed(&fleet, &["10.1.0.3:3"]).await;
    subscriber.pushed_exactly(&fleet, &["10.1.0.3:3"], SOON).await?;
    provider.batch(&fleet, &[]).await?;
    cluster.eventually_listed(&fleet, &[""; 0]).await;
    subscriber.pushed_exactly(&fleet, &[], SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_is_killed_is_gone_everywhere() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let orders = Service::unique("orders");
    let stock = Service::unique("stock");
    let victim = cluster.node(0).client().await?;
    let survivor = cluster.node(0).client().await?;
    let subscriber = cluster.node(1).client().await?;
    victim.register(&orders, &Instance::at("10.1.0.4", 1)).await?;
    victim
        .batch(
            &stock,
            &[Instance::at("10.1.0.4", 2), Instance::at("10.1.0.4", 3)],
        )
        .await?;
    survivor.register(&orders, &Instance::at("10.1.0.5", 1)).await?;
    cluster
        .eventually_listed(&orders, &["10.1.0.4:1", "10.1.0.5:1"])
        .await;
    cluster
        .eventually_listed(&stock, &["10.1.0.4:2", "10.1.0.4:3"])
        .await;
    subscriber.subscribe(&orders, "").await?;

    drop(victim);

    subscriber.pushed_exactly(&orders, &["10.1.0.5:1"], SOON).await?;
    cluster.eventually_listed(&orders, &["10.1.0.5:1"]).await;
    cluster.eventually_listed(&stock, &[""; 0]).await;
    Ok(())
}

#[tokio::test]
async fn an_acknowledged_write_is_in_the_next_read_of_that_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let own = Service::unique("own");
    let client = cluster.node(1).client().await?;
    let http = cluster.node(1).http();
    for port in 1..=200 {
        client.register(&own, &Instance::at("10.1.0.6", port)).await?;
        let address = format!("10.1.0.6:{port}");
        client.query(&own).await?.expect(&[&address])?;
        http.list(&own).await?.expect(&[&address])?;
    }
    Ok(())
}

#[tokio::test]
async fn last_ref_time_rises_with_every_pushed_change() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let clock = Service::unique("clock");
    let provider = cluster.node(0).client().await?;
    let subscriber = cluster.node(2).client().await?;
    let mut last = subscriber.subscribe(&clock, "").await?.last_ref_time();
    for port in 1..=20 {
        provider.register(&clock, &Instance::at("10.1.0.7", port)).await?;
        let list = subscriber
            .pushed_exactly(&clock, &[&format!("10.1.0.7:{port}")], SOON)
            .await?;
        ensure!(
            list.last_ref_time() > last,
            "{} after {last}",
            list.last_ref_time()
        );
        last = list.last_ref_time();
    }
    Ok(())
}

#[tokio::test]
async fn the_first_subscription_of_a_connection_is_followed_by_one_push() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let quiet = Service::unique("quiet");
    let subscriber = cluster.node(0).client().await?;
    subscriber.subscribe(&quiet, "").await?;
    subscriber.pushed_exactly(&quiet, &[], SOON).await?;

    subscriber.subscribe(&quiet, "").await?;
    ensure!(
        subscriber.next_push(Duration::from_secs(2)).await.is_err(),
        "nothing changed, nothing is pushed"
    );
    Ok(())
}

#[tokio::test]
async fn members_are_listed_as_up() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let addresses: Vec<String> = cluster.nodes().iter().map(|node| node.address()).collect();
    for node in cluster.nodes() {
        let listed = node.http().cluster_nodes().await?;
        let up: Vec<String> = listed
            .into_iter()
            .filter(|(_, s)| s == "UP")
            .map(|(address, _)| address)
            .collect();
        assert_eq!(up, addresses, "sorted by address, at {}", node.address());
    }
    Ok(())
}
