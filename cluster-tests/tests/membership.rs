//! Who may be a member of a cluster, and where the list comes from.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Cluster, ClusterBuilder, Instance, Node, SdkClient, Service, always, eventually};

/// KF-074: a node shows the configured members, and stops when its own address is not among them.
#[tokio::test]
async fn members_come_from_a_file_too() -> Result<()> {
    let cluster = Cluster::builder(3).member_file().start().await;
    let service = Service::unique("filed");
    let client = cluster.node(0).client().await?;
    client.register(&service, &Instance::at("10.12.0.1", 80)).await?;
    cluster.eventually_listed(&service, &["10.12.0.1:80"]).await;
    for node in cluster.nodes() {
        let state = node.http().state().await?;
        let members: Vec<String> = state.members.iter().map(|m| m.address.clone()).collect();
        assert_eq!(
            members,
            cluster.nodes().iter().map(|n| n.address()).collect::<Vec<_>>()
        );
        assert_eq!(state.address, node.address());
    }
    Ok(())
}

/// Three members on this host know each other by it: each holds what any of them took over either protocol, also one
/// that was killed and started again.
async fn each_holds_what_any_took(host: &str) -> Result<()> {
    let cluster = Cluster::builder(3).on_host(host).start().await;
    let addresses: Vec<String> = cluster.nodes().iter().map(Node::address).collect();
    assert!(addresses.iter().all(|address| address.starts_with(host)));
    let servers: Vec<_> = cluster.nodes().iter().map(Node::grpc_address).collect();
    let mut clients = Vec::new();
    let mut services = Vec::new();
    for (i, node) in cluster.nodes().iter().enumerate() {
        let over_grpc = Service::unique("addressed");
        let client = SdkClient::start(servers.clone(), i).await;
        client
            .register(&over_grpc, &Instance::at("10.12.0.5", 80))
            .await?;
        clients.push(client);
        services.push(over_grpc);
        for owner in 0..3 {
            let over_http = cluster.service_owned_by(owner, "addressed").await?;
            let instance = Instance::at("10.12.0.5", 80).patient();
            node.http().register(&over_http, &instance).await?.ok()?;
            services.push(over_http);
        }
    }
    for service in &services {
        cluster.eventually_listed(service, &["10.12.0.5:80"]).await;
    }

    cluster.node(1).restart();
    cluster.ready().await;
    cluster.agree_on(&[0, 1, 2], SOON).await;
    cluster.equal(SOON).await;
    for service in &services {
        cluster.eventually_listed(service, &["10.12.0.5:80"]).await;
    }
    for node in cluster.nodes() {
        let shown = node.http().cluster_nodes().await?;
        ensure!(
            shown.iter().map(|(address, _)| address).eq(&addresses),
            "{shown:?}"
        );
    }
    Ok(())
}

/// KF-076: members may be host names; one that is started again is recognised.
#[tokio::test]
async fn members_may_be_host_names() -> Result<()> {
    each_holds_what_any_took("localhost").await
}

/// KF-077: members may have IPv6 addresses.
#[tokio::test]
async fn members_may_have_ipv6_addresses() -> Result<()> {
    each_holds_what_any_took("[::1]").await
}

/// The name has one address on some machines and two on others; that each is a member is tested where names are read.
#[tokio::test]
async fn a_dns_name_may_tell_the_members() -> Result<()> {
    let cluster = Cluster::builder(1)
        .on_host("127.0.0.1")
        .member_dns("localhost")
        .start()
        .await;
    let own = cluster.node(0).address();
    let shown = cluster.node(0).http().cluster_nodes().await?;
    ensure!(shown.iter().any(|(address, _)| *address == own), "{shown:?}");
    ensure!(
        cluster
            .node(0)
            .http()
            .metric("rollcall_member_list_stale")
            .await?
            == 0.0
    );
    Ok(())
}

#[tokio::test]
async fn a_single_node_needs_no_members() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let service = Service::unique("single");
    cluster
        .node(0)
        .http()
        .register(&service, &Instance::at("10.12.0.2", 80).patient())
        .await?
        .ok()?;
    cluster
        .node(0)
        .client()
        .await?
        .query(&service)
        .await?
        .expect(&["10.12.0.2:80"])
}

#[tokio::test]
async fn a_common_secret_lets_members_in() -> Result<()> {
    let settings = Cluster::builder(2)
        .flag("--cluster-name", "blue")
        .flag("--cluster-secret", "open sesame");
    let cluster = settings.start().await;
    let service = Service::unique("secret");
    cluster
        .node(0)
        .client()
        .await?
        .query(&service)
        .await?
        .expect(&[""; 0])?;
    let owned = cluster.service_owned_by(1, "secret").await?;
    cluster
        .node(0)
        .http()
        .register(&owned, &Instance::at("10.12.0.3", 80).patient())
        .await?
        .ok()?;
    cluster.eventually_listed(&owned, &["10.12.0.3:80"]).await;
    Ok(())
}

/// A node that does not agree with the one that serves gets nothing of it, and shows nobody empty lists.
async fn stays_out(settings: ClusterBuilder) -> Result<()> {
    let cluster = settings.flag("--gate-limit", "2s").hold_back(1).start().await;
    let https = [cluster.node(0).http(), cluster.node(1).http()];
    let over_grpc = Service::unique("apart");
    let over_http: Vec<Service> = (0..10).map(|_| Service::unique("apart")).collect();
    let client = cluster.node(0).client().await?;
    client
        .register(&over_grpc, &Instance::at("10.12.0.4", 80))
        .await?;
    cluster.node(1).start();
    eventually("the log says why", Duration::from_secs(20), || async {
        let log = cluster.node(1).log();
        ensure!(log.contains("still not ready after gate_limit"), "{log}");
        let log = log.to_lowercase();
        ensure!(log.contains("secret") || log.contains("cluster \""), "{log}");
        Ok(())
    })
    .await;
    // Whoever owns it: nothing is forwarded to the other.
    for service in &over_http {
        https[0]
            .register(service, &Instance::at("10.12.0.4", 80).patient())
            .await?
            .ok()?;
    }
    always(
        "nothing gets to the other node",
        Duration::from_secs(3),
        || async {
            for service in over_http.iter().chain([&over_grpc]) {
                https[0].list(service).await?.expect(&["10.12.0.4:80"])?;
                https[1].list_reply(service, &[]).await?.refused(503, "")?;
            }
            ensure!(!https[1].is_ready().await?);
            let members = https[1].state().await?.members;
            let other = cluster.node(0).address();
            ensure!(
                !members.iter().any(|m| m.address == other && m.state == "UP"),
                "{members:?}"
            );
            Ok(())
        },
    )
    .await;
    Ok(())
}

#[tokio::test]
async fn a_member_with_another_cluster_name_is_not_let_in() -> Result<()> {
    let named = Cluster::builder(2)
        .node_flag(0, "--cluster-name", "blue")
        .node_flag(1, "--cluster-name", "green");
    stays_out(named).await
}

#[tokio::test]
async fn a_member_with_another_secret_is_not_let_in() -> Result<()> {
    let settings = Cluster::builder(2).node_flag(0, "--cluster-secret", "one");
    stays_out(settings.node_flag(1, "--cluster-secret", "two")).await
}

#[tokio::test]
async fn a_member_without_the_secret_is_not_let_in() -> Result<()> {
    stays_out(Cluster::builder(2).node_flag(0, "--cluster-secret", "one")).await
}
