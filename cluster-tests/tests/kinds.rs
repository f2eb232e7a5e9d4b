//! Services made for one kind of instances, and what operators see of services and members.

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::udp::UdpReceiver;
use cluster_tests::{Instance, Node, Service, SharedCluster, eventually};
use reqwest::Method;
use serde_json::{Value, json};

static CLUSTER: SharedCluster = SharedCluster::of(3);

async fn get(node: &Node, path: &str) -> Result<Value> {
    let http = node.http();
    let reply = http.send(http.request(Method::GET, path)).await?;
    reply.json()
}

async fn create(node: &Node, service: &Service, is_ephemeral: bool) -> Result<()> {
    let mut params = service.to_params();
    params.push(("ephemeral".into(), is_ephemeral.to_string()));
    node.http()
        .query(Method::POST, "/nacos/v1/ns/service", &params)
        .await?
        .ok()
}

/// Waits until all nodes list a service without instances.
async fn listed(service: &Service) {
    let cluster = CLUSTER.get().await;
    eventually("the service is known everywhere", SOON, || async {
        for node in cluster.nodes() {
            get(
                node,
                &format!("/nacos/v1/ns/service?serviceName={}", service.name),
            )
            .await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_service_made_for_persistent_instances_refuses_others_at_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("persistent");
    create(cluster.node(0), &service, false).await?;
    listed(&service).await;
    let text = format!(
        "Current service {} is persistent service, can't register ephemeral instance. ",
        service.grouped()
    );
    let instance = Instance::at("10.8.0.1", 80);
    for node in cluster.nodes() {
        let http = node.http();
        http.register(&service, &instance).await?.refused(400, &text)?;
        let beat = instance.to_beat(&service).to_string();
        let mut params = service.to_params();
        params.push(("beat".into(), beat));
        http.query(Method::PUT, "/nacos/v1/ns/instance/beat", &params)
            .await?
            .refused(400, &text)?;
        let client = node.client().await?;
        for (kind, more) in [
            (
                "InstanceRequest",
                json!({"type": "registerInstance", "instance": instance.to_json()}),
            ),
            (
                "BatchInstanceRequest",
                json!({"type": "batchRegisterInstance", "instances": [instance.to_json()]}),
            ),
        ] {
            let answer = client.send_on(kind, &service, more).await?;
            ensure!(answer.message().contains(&text), "{answer:?}");
            answer.refused(400)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_service_with_ephemeral_instances_refuses_persistent_ones_at_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (held, made) = (Service::unique("held"), Service::unique("made"));
    create(cluster.node(1), &made, true).await?;
    listed(&made).await;
    let instance = Instance::at("10.8.0.2", 80).patient();
    cluster.node(2).http().register(&held, &instance).await?.ok()?;
    cluster.eventually_listed(&held, &["10.8.0.2:80"]).await;
    for (node, service) in cluster
        .nodes()
        .iter()
        .flat_map(|node| [(node, &held), (node, &made)])
    {
        let text = format!(
            "Current service {} is ephemeral service, can't register persistent instance. ",
            service.grouped()
        );
        let mut params = service.to_params();
        for (name, value) in [("ip", "10.8.0.3"), ("port", "80"), ("ephemeral", "false")] {
            params.push((name.into(), value.into()));
        }
        node.http()
            .query(Method::POST, "/nacos/v1/ns/instance", &params)
            .await?
            .refused(400, &text)?;
        let client = node.client().await?;
        let more = json!({"type": "registerInstance", "instance": instance.to_json()});
        let answer = client.send_on("PersistentInstanceRequest", service, more).await?;
        ensure!(answer.message().contains(&text), "{answer:?}");
        answer.refused(400)?;
    }
    // Settings do not change the kind.
    let mut params = held.to_params();
    params.push(("protectThreshold".into(), "0.5".into()));
    let http = cluster.node(0).http();
    http.query(Method::PUT, "/nacos/v1/ns/service", &params)
        .await?
        .ok()?;
    let removed = http.deregister(&held, &instance).await?;
    removed.ok()?;
    cluster.eventually_listed(&held, &[] as &[&str]).await;
    http.register(&held, &instance).await?.ok()
}

/// KF-094: a subscriber at each of three nodes: each node lists all three, in pages as well, or its own when asked for
/// those.
#[tokio::test]
async fn kf_094_each_node_lists_the_subscribers_of_all() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("audience");
    let clients = cluster.clients().await?;
    for client in &clients {
        client.subscribe(&service, "").await?;
    }
    let name = &service.name;
    let count = |body: &Value| body["count"].as_u64().or(body["data"]["totalCount"].as_u64());
    for node in cluster.nodes() {
        for (path, pages) in [
            ("/nacos/v1/ns/service/subscribers", "/subscribers"),
            ("/nacos/v3/admin/ns/service/subscribers", "/data/pageItems"),
        ] {
            let all = get(node, &format!("{path}?serviceName={name}&pageNo=1&pageSize=10")).await?;
            let listed = all.pointer(pages).and_then(Value::as_array).context("no list")?;
            ensure!(listed.len() == 3 && count(&all) == Some(3), "{path}: {all}");
            let page = get(node, &format!("{path}?serviceName={name}&pageNo=2&pageSize=2")).await?;
            let listed = page.pointer(pages).and_then(Value::as_array).context("no list")?;
            ensure!(listed.len() == 1 && count(&page) == Some(3), "{path}: {page}");
            let own = get(
                node,
                &format!("{path}?serviceName={name}&aggregation=false&pageNo=1&pageSize=10"),
            )
            .await?;
            ensure!(count(&own) == Some(1), "{path}: {own}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn subscribers_over_grpc_and_over_udp_are_listed_in_all_generations() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(1);
    let service = Service::unique("subscribers");
    let client = node.client().await?;
    client.subscribe(&service, "").await?;
    let receiver = UdpReceiver::open().await?;
    receiver.poll(node, &service, "").await?;
    let port = receiver.port()?;
    let port_text = port.to_string();
    let (address, id) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{port}#true"));
    let name = &service.name;
    for (path, list, field, value) in [
        (
            format!("/nacos/v1/ns/service/subscribers?serviceName={name}"),
            "/subscribers",
            "addrStr",
            &address,
        ),
        (
            format!("/nacos/v2/ns/client/service/subscriber/list?serviceName={name}"),
            "/data",
            "clientId",
            &id,
        ),
        (
            format!("/nacos/v3/admin/ns/client/service/subscriber/list?serviceName={name}"),
            "/data",
            "address",
            &address,
        ),
    ] {
        let body = get(node, &path).await?;
        let found = body.pointer(list).and_then(Value::as_array).context("no list")?;
        ensure!(found.len() == 2, "{path}: {body}");
        ensure!(found.iter().any(|s| s[field] == value.as_str()), "{path}: {body}");
    }
    let body = get(
        node,
        &format!("/nacos/v3/console/ns/service/subscribers?serviceName={name}"),
    )
    .await?;
    let ports: Vec<_> = body["data"]["pageItems"]
        .as_array()
        .context("no page")?
        .iter()
        .map(|s| &s["port"])
        .collect();
    ensure!(ports == [&json!(0), &json!(port)], "{body}");

    let escaped = id.replace('#', "%23");
    let listed = get(node, "/nacos/v2/ns/client/list").await?;
    ensure!(
        listed["data"].as_array().context("no list")?.contains(&json!(id)),
        "{listed}"
    );
    let detail = get(node, &format!("/nacos/v2/ns/client?clientId={escaped}")).await?;
    ensure!(
        detail["data"]["clientType"] == "ipPort" && detail["data"]["clientPort"] == port_text.as_str(),
        "{detail}"
    );
    let services = get(
        node,
        &format!("/nacos/v2/ns/client/subscribe/list?clientId={escaped}"),
    )
    .await?;
    ensure!(
        services["data"][0]["serviceName"] == name.as_str()
            && services["data"][0]["subscriberInfo"]["addr"] == address.as_str(),
        "{services}"
    );
    Ok(())
}

#[tokio::test]
async fn services_are_found_by_expressions_and_by_words_with_stars() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("filtered").group("grpF");
    create(cluster.node(0), &service, true).await?;
    let stem = &service.name;
    for (pattern, group, is_found) in [
        (stem.clone(), "grpF", true),
        (format!("^{stem}$"), "^grp.$", true),
        (format!("*{stem}*"), "*F*", true),
        (format!("^{}$", &stem[1..]), "", false),
        (stem.clone(), "^rpF", false),
        ("filtered.*[0-9]".to_owned(), "", true),
    ] {
        for (path, list) in [
            ("/nacos/v1/ns/catalog/services", "/serviceList"),
            ("/nacos/v3/admin/ns/service/list", "/data/pageItems"),
        ] {
            let params = [
                ("serviceNameParam", pattern.as_str()),
                ("groupNameParam", group),
                ("pageNo", "1"),
                ("pageSize", "500"),
            ];
            let http = cluster.node(0).http();
            let body = http
                .send(http.request(Method::GET, path).query(&params))
                .await?
                .json()?;
            let found = body.pointer(list).and_then(Value::as_array).context("no list")?;
            let is_there = found.iter().any(|s| s["name"] == stem.as_str());
            ensure!(is_there == is_found, "{pattern} {group} {path}: {body}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_node_tells_the_addresses_of_all_members() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let mut addresses: Vec<_> = cluster.nodes().iter().map(Node::address).collect();
    addresses.sort();
    for node in cluster.nodes() {
        let http = node.http();
        let reply = http.send(http.request(Method::GET, "/nacos/serverlist")).await?;
        let text = reply.with_status(200)?.text;
        ensure!(text.lines().eq(addresses.iter()), "{text}");
    }
    Ok(())
}
