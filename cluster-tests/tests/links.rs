//! Links between members that break: both sides serve, and after healing all nodes are equal.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{BeatingInstance, Cluster, Instance, LinkState, Service, eventually};

/// `design.md`: after healing all nodes are equal within 5 s; twice that on a busy machine.
const HEALED: Duration = Duration::from_secs(10);

/// Cuts node 2 off in some way, writes on both sides, heals, and compares.
async fn writes_on_both_sides_meet(state: LinkState) -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let (left, right) = (Service::unique("left"), Service::unique("right"));
    let both = Service::unique("both");
    let [c0, c2] = [cluster.node(0).client().await?, cluster.node(2).client().await?];
    c0.register(&both, &Instance::at("10.11.0.1", 1)).await?;
    c2.register(&both, &Instance::at("10.11.0.1", 2)).await?;
    cluster
        .eventually_listed(&both, &["10.11.0.1:1", "10.11.0.1:2"])
        .await;

    cluster.links().set_around(2, state);
    let (here, there) = (cluster.node(0).http(), cluster.node(2).http());
    for (http, other) in [
        (&here, cluster.node(2).address()),
        (&there, cluster.node(0).address()),
    ] {
        eventually("each side sees the other down", SOON * 2, || async {
            let members = http.state().await?.members;
            ensure!(
                members.iter().any(|m| m.address == other && m.state == "DOWN"),
                "{members:?}"
            );
            Ok(())
        })
        .await;
    }
    // Removals and registrations over both interfaces on both sides, none of them reaches the other side.
    let stays = Instance::at("10.11.0.2", 1).patient();
    here.register(&left, &stays).await?.ok()?;
    there.register(&right, &stays).await?.ok()?;
    let second = cluster.node(2).client().await?;
    second.register(&right, &Instance::at("10.11.0.2", 2)).await?;
    c0.deregister(&both, &Instance::at("10.11.0.1", 1)).await?;
    there
        .list(&right)
        .await?
        .expect(&["10.11.0.2:1", "10.11.0.2:2"])?;
    there.list(&left).await?.expect(&[""; 0])?;
    here.list(&right).await?.expect(&[""; 0])?;

    cluster.links().heal();

    cluster.ready().await;
    cluster.equal(HEALED).await;
    cluster.eventually_listed(&left, &["10.11.0.2:1"]).await;
    cluster
        .eventually_listed(&right, &["10.11.0.2:1", "10.11.0.2:2"])
        .await;
    cluster.eventually_listed(&both, &["10.11.0.1:2"]).await;
    Ok(())
}

/// KF-078: both sides of a cut serve, and after healing all are equal.
#[tokio::test]
async fn after_a_black_hole_all_nodes_are_equal() -> Result<()> {
    writes_on_both_sides_meet(LinkState::Paused).await
}

/// KF-078, KF-082: both sides of a cut serve, and after healing all are equal; operators see a broken link soon, and
/// it repairs itself.
#[tokio::test]
async fn after_a_cut_all_nodes_are_equal() -> Result<()> {
    writes_on_both_sides_meet(LinkState::Cut).await
}

#[tokio::test]
async fn after_refused_connections_all_nodes_are_equal() -> Result<()> {
    writes_on_both_sides_meet(LinkState::Refused).await
}

#[tokio::test]
async fn a_stream_that_breaks_again_and_again_loses_nothing() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let service = Service::unique("broken");
    let client = cluster.node(0).client().await?;
    for port in 1..=30 {
        client
            .register(&service, &Instance::at("10.11.0.3", port))
            .await?;
        let links = cluster.links();
        links.set(0, usize::from(port) % 2 + 1, LinkState::Cut);
        client
            .batch(
                &Service::new(format!("{}-{port}", service.name)),
                &[Instance::at("10.11.0.3", port)],
            )
            .await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        links.heal();
    }
    cluster.eventually_listed(&service, &["10.11.0.3:30"]).await;
    for port in 1..=30 {
        let one = Service::new(format!("{}-{port}", service.name));
        cluster
            .eventually_listed(&one, &[format!("10.11.0.3:{port}")])
            .await;
    }
    cluster.equal(HEALED).await;
    Ok(())
}

/// KF-068: a node that stands still holds up nobody.
#[tokio::test]
async fn a_write_whose_owner_cannot_be_reached_is_taken_by_another() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let service = cluster.service_owned_by(2, "unreachable-owner").await?;
    cluster.links().set(0, 2, LinkState::Paused);

    let http = cluster.node(0).http();
    let begin = tokio::time::Instant::now();
    http.register(&service, &Instance::at("10.11.0.4", 80).patient())
        .await?
        .ok()?;

    ensure!(
        begin.elapsed() < Duration::from_secs(5),
        "answered after {:?}",
        begin.elapsed()
    );
    http.list(&service).await?.expect(&["10.11.0.4:80"])?;
    cluster.links().heal();
    cluster.eventually_listed(&service, &["10.11.0.4:80"]).await;
    cluster.equal(HEALED).await;
    ensure!(
        http.metric("rollcall_forwards_failed_total").await? >= 1.0,
        "the failed forward is counted"
    );
    Ok(())
}

#[tokio::test]
async fn an_instance_that_beats_on_one_side_is_on_both_after_healing() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    // Each of them is owned by the other side, which hears nothing of it for longer than it may be silent.
    let cut_off = cluster.service_owned_by(0, "beats-at-2").await?;
    let staying = cluster.service_owned_by(2, "beats-at-0").await?;
    let instance = Instance::at("10.11.0.5", 80).beat_times(500, 2_000, 4_000);
    let half = Duration::from_millis(500);
    let (here, there) = (cluster.node(0).http(), cluster.node(2).http());
    let beats = [
        BeatingInstance::start(vec![there.clone()], cut_off.clone(), instance.clone(), half).await?,
        BeatingInstance::start(vec![here.clone()], staying.clone(), instance.clone(), half).await?,
    ];
    for service in [&cut_off, &staying] {
        cluster.eventually_listed(service, &["10.11.0.5:80"]).await;
    }

    cluster.links().set_around(2, LinkState::Paused);

    for (http, service) in [(&here, &cut_off), (&there, &staying)] {
        eventually("the side without beats gives it up", 2 * SOON, || async {
            http.list(service).await?.expect(&[""; 0])
        })
        .await;
    }
    for (http, service) in [(&there, &cut_off), (&here, &staying)] {
        ensure!(
            http.list(service).await?.at("10.11.0.5:80")?.healthy,
            "the side with beats keeps it"
        );
    }

    cluster.links().heal();

    cluster.ready().await;
    for service in [&cut_off, &staying] {
        cluster
            .eventually_list(service, HEALED, |list| {
                ensure!(list.at("10.11.0.5:80")?.healthy, "unhealthy");
                Ok(())
            })
            .await;
    }
    ensure!(
        beats.iter().all(|beat| beat.unknown() == 0),
        "a beat met an unknown instance"
    );
    cluster.equal(HEALED).await;
    Ok(())
}

/// KF-078: both sides of a cut serve, and after healing all are equal.
#[tokio::test]
async fn what_was_removed_on_one_side_does_not_come_back() -> Result<()> {
    let cluster = Cluster::builder(3).proxied().start().await;
    let mut services = Vec::new();
    for owner in 0..3 {
        services.push(cluster.service_owned_by(owner, "removed").await?);
    }
    let (gone, kept) = (
        Instance::at("10.11.0.6", 1).patient(),
        Instance::at("10.11.0.6", 2).patient(),
    );
    for service in &services {
        for instance in [&gone, &kept] {
            cluster.node(1).http().register(service, instance).await?.ok()?;
        }
        cluster
            .eventually_listed(service, &["10.11.0.6:1", "10.11.0.6:2"])
            .await;
    }
    cluster.links().set_around(2, LinkState::Cut);
    let (here, there) = (cluster.node(0).http(), cluster.node(2).http());

    // The one with the removal wins for one row, the later registration for the other.
    for service in &services {
        here.deregister(service, &gone).await?.ok()?;
        there.deregister(service, &kept).await?.ok()?;
        there.register(service, &kept.clone().weight(5.0)).await?.ok()?;
    }

    cluster.links().heal();
    cluster.ready().await;
    cluster.equal(HEALED).await;
    for service in &services {
        cluster
            .eventually_list(service, SOON, |list| list.expect_only(&kept.clone().weight(5.0)))
            .await;
    }
    Ok(())
}
