//! Switches that operators set: at one node, heeded by all, over every protocol.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::joined;
use cluster_tests::udp::UdpReceiver;
use cluster_tests::{Cluster, Instance, Node, Service, always, eventually};
use reqwest::Method;
use serde_json::{Value, json};

/// Longer than the silence after which the rows of a test would be gone.
const UNJUDGED: Duration = Duration::from_secs(5);

/// Sets a switch over v2, which answers whatever status is set.
async fn set(node: &Node, entry: &str, value: &str) -> Result<()> {
    let params = [("entry", entry), ("value", value)];
    let http = node.http();
    let request = http
        .request(Method::PUT, "/nacos/v2/ns/operator/switches")
        .query(&params);
    http.send(request).await?.with_status(200)?;
    Ok(())
}

async fn get(node: &Node, path: &str) -> Result<(u16, String)> {
    let http = node.http();
    let reply = http.send(http.request(Method::GET, path)).await?;
    Ok((reply.status, reply.text))
}

async fn switches(node: &Node) -> Result<Value> {
    let (_, text) = get(node, "/nacos/v2/ns/operator/switches").await?;
    Ok(serde_json::from_str::<Value>(&text)?["data"].take())
}

/// Waits until all nodes heed the value of a field.
async fn heeded(cluster: &Cluster, field: &str, value: Value) {
    eventually(&format!("{field} is {value} everywhere"), SOON, || async {
        for node in cluster.nodes() {
            let shown = &switches(node).await?[field];
            ensure!(*shown == value, "{}: {shown}", node.address());
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_set_at_one_node_refuses_clients_at_all_until_it_is_taken_back() -> Result<()> {
    const REFUSED: &str = "server is DOWNnow, please try again later!";
    let cluster = Cluster::start(3).await;
    let service = Service::unique("status");
    let instance = Instance::at("10.7.0.1", 80);
    let provider = cluster.node(1).client().await?;
    provider.register(&service, &instance).await?;
    cluster.eventually_listed(&service, &["10.7.0.1:80"]).await;

    set(cluster.node(0), "overriddenServerStatus", "DOWN").await?;
    heeded(&cluster, "overriddenServerStatus", json!("DOWN")).await;
    for node in cluster.nodes() {
        for path in [
            format!("/nacos/v1/ns/instance/list?serviceName={}", service.name),
            "/nacos/v1/ns/operator/switches".to_owned(),
            "/nacos/v1/ns/operator/metrics".to_owned(),
        ] {
            let answer = get(node, &path).await?;
            ensure!(answer == (503, REFUSED.to_owned()), "{path}: {answer:?}");
        }
        for (path, status) in [
            ("/nacos/v1/console/health/readiness", 500),
            ("/nacos/v2/console/health/readiness", 503),
            ("/nacos/v3/admin/core/state/readiness", 503),
            ("/nacos/v1/console/health/liveness", 200),
            ("/nacos/v1/core/cluster/health", 200),
            ("/nacos/v2/ns/instance/list?serviceName=x", 200),
        ] {
            let answer = get(node, path).await?;
            ensure!(answer.0 == status, "{path}: {answer:?}");
        }
        let (_, metrics) = get(node, "/nacos/v2/ns/operator/metrics").await?;
        ensure!(metrics.contains(r#""status":"DOWN""#), "{metrics}");
        ensure!(node.client().await.is_err());
    }
    // Who is connected stays: signs of life are answered, everything else is refused.
    let refused = provider
        .instance_request("registerInstance", &service, instance.to_json())
        .await?;
    ensure!(
        refused.message() == "Server is down,please try later.",
        "{refused:?}"
    );
    refused.refused(300)?;
    provider
        .send("HealthCheckRequest", &json!({}))
        .await?
        .accepted()?;

    set(cluster.node(2), "overriddenServerStatus", "READ_ONLY").await?;
    heeded(&cluster, "overriddenServerStatus", json!("READ_ONLY")).await;
    for node in cluster.nodes() {
        node.http().list(&service).await?.expect(&["10.7.0.1:80"])?;
        let other = Instance::at("10.7.0.2", 80);
        node.http()
            .register(&service, &other)
            .await?
            .refused(503, "server is READ_ONLYnow, please try again later!")?;
        let reader = node.client().await?;
        reader.query(&service).await?.expect(&["10.7.0.1:80"])?;
        reader
            .instance_request("registerInstance", &service, other.to_json())
            .await?
            .refused(300)?;
    }

    set(cluster.node(1), "overriddenServerStatus", "UP").await?;
    heeded(&cluster, "overriddenServerStatus", json!("UP")).await;
    for node in cluster.nodes() {
        node.http().list(&service).await?.expect(&["10.7.0.1:80"])?;
        ensure!(node.http().is_ready().await?);
    }
    provider.register(&service, &instance).await?;
    cluster.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_are_told_and_who_is_pushed_to_follows_switches_on_all_nodes() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("told");
    set(cluster.node(0), "pushCacheMillis", "20000").await?;
    set(cluster.node(1), "pushVersion", "java:1.4.0").await?;
    set(cluster.node(2), "limitedUrlMap", "/nacos/v1/ns/service/list:429").await?;
    set(cluster.node(0), "defaultInstanceEphemeral", "false").await?;
    heeded(&cluster, "defaultPushCacheMillis", json!(20_000)).await;
    heeded(&cluster, "pushJavaVersion", json!("1.4.0")).await;
    heeded(
        &cluster,
        "limitedUrlMap",
        json!({"/nacos/v1/ns/service/list": 429}),
    )
    .await;
    heeded(&cluster, "defaultInstanceEphemeral", json!(false)).await;
    for node in cluster.nodes() {
        let list = node.http().list_reply(&service, &[]).await?.json()?;
        ensure!(list["cacheMillis"] == 20_000, "{list}");
        let reader = node.client().await?;
        let answer = reader.send_on("ServiceQueryRequest", &service, json!({})).await?;
        let answer = answer.accepted()?;
        ensure!(answer.body["serviceInfo"]["cacheMillis"] == 20_000, "{answer:?}");
        for (version, is_pushed) in [("v1.3.9", false), ("v1.4.0", true)] {
            let agent = format!("Nacos-Java-Client:{version}");
            let receiver = UdpReceiver::open_as(Ipv4Addr::LOCALHOST.into(), &agent).await?;
            receiver.poll(node, &service, "").await?;
            if is_pushed {
                let pushed = receiver.next(SOON).await?;
                ensure!(pushed.list["cacheMillis"] == 20_000, "{pushed:?}");
            }
            let port = receiver.port()?;
            let (_, subscribers) = get(
                node,
                &format!("/nacos/v1/ns/service/subscribers?serviceName={}", service.name),
            )
            .await?;
            ensure!(
                subscribers.contains(&format!("127.0.0.1:{port}")) == is_pushed,
                "{subscribers}"
            );
        }
        let limited = get(node, "/nacos/v1/ns/service/list?pageNo=1&pageSize=10").await?;
        ensure!(limited == (429, String::new()), "{limited:?}");
        ensure!(get(node, "/nacos/v2/ns/service/list?pageNo=1").await?.0 == 200);
        // Persistent by default, and there is no store for that yet.
        let params = [
            ("serviceName", service.name.as_str()),
            ("ip", "10.7.0.3"),
            ("port", "80"),
        ];
        let http = node.http();
        let request = http.request(Method::POST, "/nacos/v1/ns/instance").query(&params);
        http.send(request).await?.refused(501, "persistent")?;
    }
    cluster.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_judged_by_beats_while_checks_are_off() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("unjudged");
    set(cluster.node(1), "check", "false").await?;
    heeded(&cluster, "healthCheckEnabled", json!(false)).await;
    let silent = Instance::at("10.7.0.4", 80).beat_times(500, 1_000, 2_000);
    cluster.node(0).http().register(&service, &silent).await?.ok()?;
    always("it stays healthy", UNJUDGED, || async {
        for node in cluster.nodes() {
            let list = node
                .http()
                .list_with(&service, &[("healthyOnly", "true")])
                .await?;
            list.expect(&["10.7.0.4:80"])?;
        }
        Ok(())
    })
    .await;
    set(cluster.node(2), "check", "true").await?;
    cluster.eventually_listed(&service, &[] as &[&str]).await;
    cluster.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_heeds_what_was_set_before() -> Result<()> {
    let cluster = Cluster::start(3).await;
    set(cluster.node(0), "pushCacheMillis", "30000").await?;
    heeded(&cluster, "defaultPushCacheMillis", json!(30_000)).await;
    cluster.node(2).kill();
    cluster.node(2).restart();
    cluster.ready().await;
    heeded(&cluster, "defaultPushCacheMillis", json!(30_000)).await;
    let list = cluster
        .node(2)
        .http()
        .list_reply(&Service::unique("back"), &[])
        .await?;
    ensure!(list.json()?["cacheMillis"] == 30_000);
    cluster.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_neither_true_nor_false_changes_no_switch() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let http = cluster.node(0).http();
    for (path, status) in [
        ("/nacos/v1/ns/operator/switches", 400),
        ("/nacos/v2/ns/operator/switches", 400),
        ("/nacos/v3/admin/ns/ops/switches", 400),
    ] {
        let params = [("entry", "pushEnabled"), ("value", "ture")];
        let reply = http.send(http.request(Method::PUT, path).query(&params)).await?;
        ensure!(
            reply.status == status && reply.text.contains("neither true nor false: ture"),
            "{reply:?}"
        );
    }
    ensure!(switches(cluster.node(0)).await?["pushEnabled"] == true);
    set(cluster.node(0), "pushEnabled", "OFF").await?;
    ensure!(switches(cluster.node(0)).await?["pushEnabled"] == false);
    Ok(())
}

/// A quarantine holds whenever the row comes: before, after, and at a node that has started anew meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_holds_for_rows_that_come_later_and_through_restarts() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("evicted");
    let params = joined(
        &service,
        vec![("ip".into(), "10.16.1.1".into()), ("port".into(), "80".into())],
    );
    let http = cluster.node(0).http();
    http.query(Method::POST, "/rollcall/quarantine", &params)
        .await?
        .with_status(200)?;

    // Registered at every node, over both protocols, before and after one of them has started anew.
    let clients = cluster.clients().await?;
    clients[1]
        .register(&service, &Instance::at("10.16.1.1", 80))
        .await?;
    clients[1]
        .register(&Service::unique("sign"), &Instance::at("10.16.1.1", 80))
        .await?;
    let seen = Instance::at("10.16.1.2", 80).patient();
    http.register(&service, &seen).await?.ok()?;
    cluster.eventually_listed(&service, &["10.16.1.2:80"]).await;
    cluster.node(2).kill();
    cluster.node(2).restart();
    cluster.ready().await;
    let evicted = Instance::at("10.16.1.1", 80).patient();
    cluster.node(2).http().register(&service, &evicted).await?.ok()?;
    cluster.eventually_listed(&service, &["10.16.1.2:80"]).await;
    for node in cluster.nodes() {
        node.http().list(&service).await?.expect(&["10.16.1.2:80"])?;
    }

    cluster
        .node(1)
        .http()
        .query(Method::DELETE, "/rollcall/quarantine", &params)
        .await?
        .with_status(200)?;
    cluster
        .eventually_listed(&service, &["10.16.1.1:80", "10.16.1.2:80"])
        .await;
    cluster.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_of_the_log_is_set_over_http_and_has_an_effect_at_once() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let node = cluster.node(0);
    let http = node.http();
    let set_level = |path: &'static str, name: &'static str, level: &'static str| {
        let params = [("logName", name), ("logLevel", level)];
        http.send(http.request(Method::PUT, path).query(&params))
    };
    let (v1, core) = ("/nacos/v1/ns/operator/log", "/nacos/v1/core/ops/log");
    set_level(v1, "naming-main", "loud")
        .await?
        .refused(400, "'logLevel'")?;
    set_level(v1, "naming-main", "").await?.refused(400, "logLevel")?;
    let client = node.client().await?;
    let unknown = || cluster_tests::connection::payload("NoSuchRequest", &json!({}));
    client.send_up(unknown())?;
    client.send("HealthCheckRequest", &json!({})).await?.accepted()?;
    set_level(v1, "naming-main", "DEBUG").await?.ok()?;
    client.send_up(unknown())?;
    let logged = || async {
        let n = node.log().matches("message on the stream is not known").count();
        ensure!(n == 1, "logged {n} times");
        Ok(())
    };
    eventually("one of two messages is logged", SOON, logged).await;
    let reply = set_level(core, "naming-main", "WARN").await?.with_status(200)?;
    ensure!(reply.text == "200", "{reply:?}");
    Ok(())
}
