//! A write over HTTP ends at the owner of its service, whichever node it is sent to.

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::{INSTANCE, Params, Publisher, joined};
use cluster_tests::{Cluster, Instance, Service, SharedCluster, eventually};
use reqwest::Method;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const SENT: &str = "rollcall_forwards_sent_total";
const RECEIVED: &str = "rollcall_forwards_received_total";

/// An entry node, an owner, and a service of that owner.
struct Route {
    entry: usize,
    owner: usize,
    service: Service,
}

async fn all_routes(cluster: &Cluster) -> Result<Vec<Route>> {
    let mut routes = Vec::new();
    for entry in 0..3 {
        for owner in 0..3 {
            let service = cluster
                .service_owned_by(owner, &format!("route-{entry}-{owner}"))
                .await?;
            routes.push(Route {
                entry,
                owner,
                service,
            });
        }
    }
    Ok(routes)
}

/// The publishers of the only row of a service, as a node sees them.
async fn publishers(cluster: &Cluster, node: usize, service: &Service) -> Result<Vec<Publisher>> {
    let mut rows = cluster.node(node).http().rows(service).await?;
    ensure!(rows.len() == 1, "rows: {rows:?}");
    Ok(rows.pop().context("no row")?.publishers)
}

/// Checks that the row is held for the owner, on the entry node at once and on all nodes soon.
async fn accepted_by_owner(cluster: &Cluster, route: &Route) -> Result<()> {
    let wanted = [Publisher {
        kind: "beat".into(),
        member: cluster.node(route.owner).address(),
        is_orphan: false,
    }];
    let at_entry = publishers(cluster, route.entry, &route.service).await?;
    assert_eq!(at_entry, wanted, "at the entry node {}", route.entry);
    for node in 0..3 {
        eventually("the owner is the publisher", SOON, || async {
            let seen = publishers(cluster, node, &route.service).await?;
            ensure!(seen == wanted, "at node {node}: {seen:?}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// Runs an action and checks that it was forwarded from the entry to the owner, unless they are the same node.
async fn is_forwarded(
    cluster: &Cluster,
    route: &Route,
    action: impl Future<Output = Result<()>>,
) -> Result<()> {
    let (entry, owner) = (cluster.node(route.entry).http(), cluster.node(route.owner).http());
    let before = (entry.metric(SENT).await?, owner.metric(RECEIVED).await?);
    action.await?;
    let after = (entry.metric(SENT).await?, owner.metric(RECEIVED).await?);
    if route.entry != route.owner {
        ensure!(
            after.0 > before.0,
            "{SENT} at node {} stays {}",
            route.entry,
            after.0
        );
        ensure!(
            after.1 > before.1,
            "{RECEIVED} at node {} stays {}",
            route.owner,
            after.1
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_registration_is_accepted_by_the_owner_through_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = Instance::at("10.2.0.1", 80).patient();
    for route in all_routes(&cluster).await? {
        let entry = cluster.node(route.entry).http();
        is_forwarded(&cluster, &route, async {
            entry.register(&route.service, &instance).await?.ok()
        })
        .await?;
        entry.list(&route.service).await?.expect(&["10.2.0.1:80"])?;
        accepted_by_owner(&cluster, &route).await?;
        cluster.eventually_listed(&route.service, &["10.2.0.1:80"]).await;
    }
    Ok(())
}

#[tokio::test]
async fn writes_of_the_later_generations_reach_the_owner_through_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = Instance::at("10.2.0.9", 80).patient();
    for route in all_routes(&cluster).await? {
        let entry = cluster.node(route.entry).http();
        let row = [
            ("serviceName", route.service.name.as_str()),
            ("groupName", route.service.group.as_str()),
            ("namespaceId", route.service.namespace.as_str()),
            ("ip", "10.2.0.9"),
            ("port", "80"),
        ];
        let params: Params = row.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        for (method, path) in [
            (Method::POST, "/nacos/v2/ns/instance"),
            (Method::DELETE, "/nacos/v2/ns/instance"),
            (Method::POST, "/nacos/v3/client/ns/instance"),
            (Method::PUT, "/nacos/v3/admin/ns/instance"),
        ] {
            is_forwarded(&cluster, &route, async {
                let reply = entry
                    .form(method.clone(), path, &params)
                    .await?
                    .with_status(200)?;
                ensure!(reply.json()?["data"] == "ok", "{method} {path}");
                Ok(())
            })
            .await?;
            let expected: &[&str] = if method == Method::DELETE {
                &[]
            } else {
                &["10.2.0.9:80"]
            };
            entry.list(&route.service).await?.expect(expected)?;
        }
        entry.deregister(&route.service, &instance).await?.ok()?;
    }
    Ok(())
}

#[tokio::test]
async fn a_deregistration_reaches_the_owner_through_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = Instance::at("10.2.0.2", 80).patient();
    for route in all_routes(&cluster).await? {
        cluster
            .node(route.owner)
            .http()
            .register(&route.service, &instance)
            .await?
            .ok()?;
        cluster.eventually_listed(&route.service, &["10.2.0.2:80"]).await;
        let entry = cluster.node(route.entry).http();
        is_forwarded(&cluster, &route, async {
            entry.deregister(&route.service, &instance).await?.ok()
        })
        .await?;
        entry.list(&route.service).await?.expect(&[""; 0])?;
        cluster.eventually_listed(&route.service, &[""; 0]).await;
    }
    Ok(())
}

#[tokio::test]
async fn an_update_reaches_the_owner_through_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = Instance::at("10.2.0.3", 80).patient();
    for route in all_routes(&cluster).await? {
        cluster
            .node(route.owner)
            .http()
            .register(&route.service, &instance)
            .await?
            .ok()?;
        cluster.eventually_listed(&route.service, &["10.2.0.3:80"]).await;
        let entry = cluster.node(route.entry).http();
        let changed = instance.clone().weight(7.5).meta("lane", "b");
        is_forwarded(&cluster, &route, async {
            entry.update(&route.service, &changed).await?.ok()
        })
        .await?;
        // At once where it was written, soon everywhere.
        entry.list(&route.service).await?.expect_only(&changed)?;
        cluster
            .eventually_list(&route.service, SOON, |list| list.expect_only(&changed))
            .await;
        accepted_by_owner(&cluster, &route).await?;
    }
    Ok(())
}

/// KF-085: beats at one node keep an instance healthy on all.
#[tokio::test]
async fn a_beat_through_every_node_keeps_the_instance_alive() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = Instance::at("10.2.0.4", 80).beat_times(1_000, 3_000, 4_000);
    let routes = all_routes(&cluster).await?;
    for route in &routes {
        cluster
            .node(route.owner)
            .http()
            .register(&route.service, &instance)
            .await?
            .ok()?;
        cluster.eventually_listed(&route.service, &["10.2.0.4:80"]).await;
    }
    // Twice the time after which a silent instance is removed.
    let entries: Vec<_> = (0..3).map(|node| cluster.node(node).http()).collect();
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(8);
    let mut second = tokio::time::interval(std::time::Duration::from_secs(1));
    while tokio::time::Instant::now() < end {
        second.tick().await;
        for route in &routes {
            let reply = entries[route.entry].light_beat(&route.service, &instance).await?;
            assert_eq!(
                (reply.code, reply.interval),
                (10200, 1000),
                "through node {}",
                route.entry
            );
        }
        for route in &routes {
            for http in &entries {
                let list = http.list(&route.service).await?;
                ensure!(
                    list.at("10.2.0.4:80")?.healthy,
                    "unhealthy while it beats through node {}",
                    route.entry
                );
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_beat_of_an_unknown_instance_is_answered_by_the_owner() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = Instance::at("10.2.0.5", 80).patient();
    for route in all_routes(&cluster).await? {
        let entry = cluster.node(route.entry).http();
        is_forwarded(&cluster, &route, async {
            let reply = entry.light_beat(&route.service, &instance).await?;
            ensure!(reply.code == 20404, "{reply:?}");
            Ok(())
        })
        .await?;
        let reply = entry.full_beat(&route.service, &instance).await?;
        assert_eq!(reply.code, 10200, "a full beat brings the instance");
        accepted_by_owner(&cluster, &route).await?;
    }
    Ok(())
}

/// KF-091: who claims to be a member in a header is a client like others.
#[tokio::test]
async fn headers_of_a_forward_mean_nothing_on_the_public_port() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = cluster.service_owned_by(1, "faked").await?;
    let instance = Instance::at("10.2.0.6", 80).patient();
    let entry = cluster.node(0).http();
    let faked = entry
        .request(Method::POST, INSTANCE)
        .query(&joined(&service, instance.to_params()))
        .header("User-Agent", "Nacos-Server:v2.5.1")
        .header("Client-Version", "Nacos-Server:v2.5.1")
        .header("X-Rollcall-Hops", "9")
        .header("X-Rollcall-Member", cluster.node(2).address())
        .header("X-Rollcall-Epoch", "1")
        .header("X-Forwarded-For", "10.9.9.9");
    let route = Route {
        entry: 0,
        owner: 1,
        service: service.clone(),
    };

    is_forwarded(&cluster, &route, async { entry.send(faked).await?.ok() }).await?;

    accepted_by_owner(&cluster, &route).await
}

#[tokio::test]
async fn kf_066_nodes_that_disagree_about_the_members_serve_every_write() -> Result<()> {
    let cluster = Cluster::builder(3)
        .members_of(0, &[0, 1])
        .hold_back(2)
        .flag("--gate-limit", "3s")
        .start()
        .await;
    let instance = Instance::at("10.2.0.7", 80).patient();
    let services: Vec<Service> = (0..100).map(|_| Service::unique("disputed")).collect();
    for (i, service) in services.iter().enumerate() {
        cluster
            .node(i % 2)
            .http()
            .register(service, &instance)
            .await?
            .ok()?;
    }
    for service in &services {
        cluster.eventually_listed(service, &["10.2.0.7:80"]).await;
    }
    Ok(())
}
