//! The rule by which owners are found: the one that is not the default, and members that do not agree on it.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{BeatingInstance, Cluster, Http, Instance, Service, eventually};

/// W10: with `rendezvous` every node takes registrations, beats and removals of every service and knows its owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_clients_register_and_beat_through_any_node_with_rendezvous() -> Result<()> {
    let cluster = Cluster::builder(3).flag("--mapper", "rendezvous").start().await;
    let https: Vec<Http> = cluster.nodes().iter().map(|node| node.http()).collect();
    let mut owned = [0; 3];
    for n in 0..12u16 {
        let service = Service::unique("ranked");
        let mut addresses = Vec::new();
        for (at, http) in https.iter().enumerate() {
            let instance = Instance::at("10.9.1.1", 1 + n * 3 + at as u16);
            http.register(&service, &instance.clone().patient()).await?.ok()?;
            addresses.push(instance.address());
        }
        cluster.eventually_listed(&service, &addresses).await;
        let owner = https[0].owner(&service).await?;
        for (at, http) in https.iter().enumerate() {
            ensure!(
                http.owner(&service).await? == owner,
                "node {at} knows another owner"
            );
            owned[at] += usize::from(cluster.node(at).address() == owner);
            ensure!(
                http.rows(&service)
                    .await?
                    .iter()
                    .all(|row| row.publishers[0].member == owner)
            );
        }
        let first = Instance::at("10.9.1.1", 1 + n * 3);
        https[2].deregister(&service, &first).await?.ok()?;
        cluster.eventually_listed(&service, &addresses[1..]).await;
    }
    ensure!(owned.iter().all(|n| *n > 0), "owned by each: {owned:?}");

    // Silence is judged by the owner, by what any node hears.
    let service = Service::unique("beating");
    let lively = Instance::at("10.9.1.2", 1).beat_times(300, 1_500, 3_000);
    let beats =
        BeatingInstance::start(https.clone(), service.clone(), lively, Duration::from_millis(300)).await?;
    let silent = Instance::at("10.9.1.2", 2).beat_times(300, 1_500, 3_000);
    https[1].register(&service, &silent).await?.ok()?;
    cluster
        .eventually_listed(&service, &["10.9.1.2:1", "10.9.1.2:2"])
        .await;
    cluster
        .eventually_list(&service, SOON, |list| {
            list.expect(&["10.9.1.2:1"])?;
            ensure!(list.at("10.9.1.2:1")?.healthy);
            Ok(())
        })
        .await;
    ensure!(beats.unknown() == 0 && beats.failures() == 0);

    // A death moves the dead node's services, and only those.
    let services: Vec<Service> = (0..12).map(|_| Service::unique("kept")).collect();
    let mut before = Vec::new();
    for service in &services {
        before.push(https[0].owner(service).await?);
    }
    cluster.node(2).kill();
    let dead = cluster.node(2).address();
    for (service, former) in services.iter().zip(&before) {
        https[1]
            .register(service, &Instance::at("10.9.1.3", 1))
            .await?
            .ok()?;
        eventually("the dead node owns nothing", SOON, || async {
            let owner = https[0].owner(service).await?;
            ensure!(
                owner != dead && (*former == dead || owner == *former),
                "{former}, then {owner}"
            );
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// A node with another rule than the others is refused, and both sides say which the two are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_another_rule_is_refused_by_name() -> Result<()> {
    let cluster = Cluster::builder(3)
        .flag("--gate-limit", "3s")
        .node_flag(2, "--mapper", "rendezvous")
        .launch();
    let (odd, others) = (cluster.node(2), [cluster.node(0), cluster.node(1)]);
    for node in others {
        node.ready().await;
    }
    for (node, other, theirs, ours) in [
        (cluster.node(0), odd, "rendezvous", "modulo"),
        (odd, cluster.node(1), "modulo", "rendezvous"),
    ] {
        eventually("the refusal is told", SOON, || async {
            let log = node.log();
            let refusal = |a, b| format!("maps services by \\\"{a}\\\", this member by \\\"{b}\\\"");
            let plain = |text: String| text.replace('\\', "");
            ensure!(
                plain(log).contains(&plain(refusal(theirs, ours))),
                "the log does not say it"
            );
            let members = node.http().state().await?.members;
            let seen = members.iter().find(|member| member.address == other.address());
            let trouble = seen.and_then(|member| member.trouble.clone()).unwrap_or_default();
            ensure!(
                trouble.contains("modulo") && trouble.contains("rendezvous"),
                "{members:?}"
            );
            Ok(())
        })
        .await;
    }
    eventually(
        "the odd one has found out that it has nothing to serve",
        SOON,
        || async {
            ensure!(odd.log().contains("still not ready after gate_limit"));
            Ok(())
        },
    )
    .await;
    let members = odd.http().state().await?.members;
    let odd_state = members.iter().find(|member| member.address == odd.address());
    ensure!(odd_state.is_some_and(|member| !member.ready), "{members:?}");
    eventually("the two others are one cluster without it", SOON, || async {
        let members = cluster.node(0).http().state().await?.members;
        let states: Vec<_> = members.iter().map(|m| m.state.as_str()).collect();
        ensure!(states == ["UP", "UP", "DOWN"], "{members:?}");
        ensure!(
            members.iter().filter(|m| m.trouble.is_some()).count() == 1,
            "{members:?}"
        );
        Ok(())
    })
    .await;
    Ok(())
}
