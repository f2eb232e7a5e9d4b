//! What monitoring reads of real nodes: metrics, targets, and the description of the HTTP surface.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Cluster, Http, Instance, Service, SharedCluster, eventually, unique};
use reqwest::Method;
use serde_json::Value;

static CLUSTER: SharedCluster = SharedCluster::of(3);

/// Address and labels of every target, checked for the form that Prometheus reads.
async fn targets(http: &Http, below: &str) -> Result<Vec<(String, Value)>> {
    let path = format!("/nacos/prometheus{below}");
    let reply = http.query(Method::GET, &path, &Vec::new()).await?;
    ensure!(
        reply.content_type.as_deref() == Some("application/json"),
        "{reply:?}"
    );
    let document = reply.json()?;
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in document.as_array().context("no list")? {
        let fields: Vec<_> = entry.as_object().context("no object")?.keys().collect();
        ensure!(fields == ["labels", "targets"], "{entry}");
        let addresses = entry["targets"].as_array().context("no targets")?;
        ensure!(addresses.len() == 1, "{entry}");
        let address = addresses[0].as_str().context("no text")?;
        ensure!(is_address(address), "{address}");
        for (name, value) in entry["labels"].as_object().context("no labels")? {
            ensure!(is_label(name) && value.is_string(), "{name}: {value}");
        }
        ensure!(seen.insert(entry.to_string()), "twice: {entry}");
        found.push((address.to_owned(), entry["labels"].clone()));
    }
    Ok(found)
}

/// True for `host:port`, IPv6 in brackets.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_plain = !host.is_empty() && !host.contains([':', '/', '[', ']']);
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    port.parse::<u16>().is_ok() && (is_plain || in_brackets.is_some_and(|host| host.contains(':')))
}

/// True for a name that Prometheus takes.
fn is_label(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[tokio::test]
async fn kf_098_every_row_is_a_target_with_legal_labels() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let namespace = unique("targets");
    let http = cluster.node(0).http();
    let of = |name: &str, group: &str| Service::new(name).namespace(&namespace).group(group);
    let odd = Instance::at("10.9.0.1", 80)
        .patient()
        .cluster("c1")
        .meta("management.endpoints.web.base-path", "/manage")
        .meta("management-endpoints.web.base.path", "/other")
        .meta("区域", "东\"1\\")
        .meta("1st", "x");
    http.register(&of("orders", "g0"), &odd).await?.ok()?;
    let v6 = Instance::at("fd00:9::1", 81).patient();
    http.register(&of("orders", "g1"), &v6).await?.ok()?;
    let provider = cluster.node(1).client().await?;
    for n in 2..12 {
        let (service, row) = (of("orders", &format!("g{n}")), Instance::at("10.9.0.2", n));
        provider.register(&service, &row).await?;
    }
    provider
        .register(&of("other", "g0"), &Instance::at("10.9.0.3", 80))
        .await?;

    for node in cluster.nodes() {
        let http = node.http();
        let below = format!("/namespaceId/{namespace}");
        let all = eventually("13 targets", SOON, || async {
            let all = targets(&http, &below).await?;
            ensure!(all.len() == 13, "{} targets", all.len());
            Ok(all)
        })
        .await;
        let labels = |address: &str| {
            let found = all.iter().find(|(known, _)| known == address);
            found.map(|(_, labels)| labels.clone()).unwrap_or_default()
        };
        assert_eq!(labels("[fd00:9::1]:81")["__meta_groupName"], "g1");
        let odd = labels("10.9.0.1:80");
        for (name, value) in [
            ("__meta_namespaceId", namespace.as_str()),
            ("__meta_serviceName", "orders"),
            ("__meta_clusterName", "c1"),
            ("__meta_healthy", "true"),
            ("management_endpoints_web_base_path", "/other"),
            ("management_endpoints_web_base_path_2", "/manage"),
            ("preserved_heart_beat_timeout", "3600000"),
            ("__", "东\"1\\"),
            ("_1st", "x"),
        ] {
            assert_eq!(odd[name], value, "{name} of {odd}");
        }
        let n_of = async |below: String| targets(&http, &below).await.map(|found| found.len());
        assert_eq!(n_of(format!("{below}/service/orders")).await?, 12, "in any group");
        assert_eq!(n_of(format!("{below}/service/g1@@orders")).await?, 1);
        assert_eq!(n_of(format!("{below}/service/g1@@other")).await?, 0);
        assert_eq!(n_of(format!("{below}/service/nobody")).await?, 0);
        assert_eq!(n_of("/namespaceId/nowhere".into()).await?, 0);
        assert!(n_of(String::new()).await? >= 13, "all namespaces");
        let path = format!("/nacos/prometheus{below}/service/%40%40");
        http.query(Method::GET, &path, &Vec::new())
            .await?
            .with_status(400)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_target_stays_while_it_is_disabled() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("disabled");
    let http = cluster.node(0).http();
    let row = Instance::at("10.9.1.1", 80).patient();
    http.register(&service, &row).await?.ok()?;
    let mut params = service.to_params();
    params.extend(row.row_params());
    params.push(("enabled".into(), "false".into()));
    http.query(Method::PUT, "/nacos/v1/ns/instance", &params)
        .await?
        .ok()?;
    eventually("it is shown as disabled", SOON, || async {
        let found = targets(&http, &format!("/namespaceId/public/service/{}", service.name)).await?;
        ensure!(found.len() == 1, "{found:?}");
        ensure!(found[0].1["__meta_enabled"] == "false", "{found:?}");
        http.list(&service).await?.expect(&[] as &[&str])
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn metrics_tell_what_has_happened() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("told");
    let subscriber = cluster.node(1).client().await?;
    subscriber.subscribe(&service, "").await?;
    let provider = cluster.node(0).client().await?;
    provider.register(&service, &Instance::at("10.9.2.1", 80)).await?;
    subscriber
        .pushed(&service, SOON, |list| list.expect(&["10.9.2.1:80"]))
        .await?;
    let beating = Instance::at("10.9.2.2", 80).patient();
    cluster.node(2).http().register(&service, &beating).await?.ok()?;
    subscriber
        .pushed(&service, SOON, |list| {
            list.expect(&["10.9.2.1:80", "10.9.2.2:80"])
        })
        .await?;

    let (origin, at_subscriber) = (cluster.node(0).http(), cluster.node(1).http());
    let monitor = |name: &str| format!("nacos_monitor{{module=\"naming\",name=\"{name}\"}}");
    eventually("both pushes are timed", SOON, || async {
        let n_acked = at_subscriber
            .metric("rollcall_push_acked_seconds_count{way=\"grpc\"}")
            .await?;
        let n_sent = at_subscriber
            .metric("rollcall_push_sent_seconds_count{way=\"grpc\"}")
            .await?;
        ensure!(
            (n_sent, n_acked) == (2.0, 2.0),
            "{n_sent} sent, {n_acked} acknowledged"
        );
        Ok(())
    })
    .await;
    for (name, value) in [
        (monitor("serviceCount"), 1.0),
        (monitor("ipCount"), 2.0),
        (monitor("subscriberCount"), 1.0),
        (monitor("failedPush"), 0.0),
        (monitor("totalPushCountForAvg"), 2.0),
        (monitor("pushPendingTaskCount"), 0.0),
        (monitor("longConnection"), 1.0),
        (
            "nacos_monitor{module=\"core\",name=\"longConnection\"}".to_owned(),
            1.0,
        ),
        ("nacos_naming_publisher{version=\"v1\"}".to_owned(), 1.0),
        ("nacos_naming_publisher{version=\"v2\"}".to_owned(), 1.0),
        ("nacos_naming_subscriber{version=\"v1\"}".to_owned(), 0.0),
        ("nacos_naming_subscriber{version=\"v2\"}".to_owned(), 1.0),
        ("rollcall_orphans".to_owned(), 0.0),
        ("rollcall_peer_link_up".to_owned(), 2.0),
    ] {
        assert_eq!(at_subscriber.metric(&name).await?, value, "{name}");
    }
    let total = at_subscriber.metric(&monitor("totalPush")).await?;
    let empty = at_subscriber.metric(&monitor("emptyPush")).await?;
    assert!(total >= 2.0 && empty <= 1.0, "{total} pushes, {empty} empty");
    let (max, average) = (monitor("maxPushCost"), monitor("avgPushCost"));
    let (max, average) = (
        at_subscriber.metric(&max).await?,
        at_subscriber.metric(&average).await?,
    );
    assert!(0.0 <= average && average <= max, "{average} of at most {max} ms");

    // The write of the connection reached both other members, and says how long that took.
    eventually("the write is acknowledged by both", SOON, || async {
        let (n, behind) = (
            origin.metric("rollcall_sync_seconds_count").await?,
            origin.metric("rollcall_peer_log_behind").await?,
        );
        ensure!(n >= 2.0 && behind == 0.0, "{n} times, {behind} behind");
        Ok(())
    })
    .await;
    let calls = "grpc_server_requests_seconds_count{errorCode=\"0\",module=\"naming\",requestClass=\"InstanceRequest\",\
                 success=\"true\",throwableClass=\"None\"}";
    assert_eq!(origin.metric(calls).await?, 1.0);

    // What a dead member leaves behind is counted until its grace ends.
    cluster.node(0).kill();
    eventually("its row is an orphan", Duration::from_secs(20), || async {
        let orphans = at_subscriber.metric("rollcall_orphans").await?;
        ensure!(orphans == 1.0, "{orphans} orphans");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_node_describes_its_http_surface() -> Result<()> {
    let http = CLUSTER.get().await.node(0).http();
    let document = http
        .query(Method::GET, "/nacos/openapi.json", &Vec::new())
        .await?
        .json()?;
    assert_eq!(document["openapi"], "3.0.3");
    let register = &document["paths"]["/v1/ns/instance"]["post"];
    let required: Vec<_> = register["parameters"]
        .as_array()
        .context("no parameters")?
        .iter()
        .filter(|param| param["required"] == true)
        .map(|param| param["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(required, ["serviceName", "ip", "port"]);
    Ok(())
}
