//! Names of namespaces, groups, services and clusters: what is one service and what is another, and what is refused.

use anyhow::{Result, ensure};
use cluster_tests::client::merged;
use cluster_tests::cluster::SOON;
use cluster_tests::http::{INSTANCE, joined};
use cluster_tests::{Instance, Service, SharedCluster, unique};
use reqwest::Method;
use serde_json::{Value, json};

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

/// Registers one instance in each service (alternately over gRPC and HTTP) and checks that each lists its own only.
async fn are_apart(services: &[Service]) -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(0).client().await?;
    for (port, service) in (1..).zip(services) {
        if port % 2 == 0 {
            cluster
                .node(1)
                .http()
                .register(service, &Instance::at("10.5.0.1", port).patient())
                .await?
                .ok()?;
        } else {
            client.register(service, &Instance::at("10.5.0.1", port)).await?;
        }
    }
    for (port, service) in (1..).zip(services) {
        cluster
            .eventually_listed(service, &[format!("10.5.0.1:{port}")])
            .await;
        client
            .query(service)
            .await?
            .expect(&[format!("10.5.0.1:{port}")])?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_019_trailing_colons_and_versions_make_other_services() -> Result<()> {
    let name = unique("com.example.api.UserService");
    let names = [
        format!("providers:{name}::"),
        format!("providers:{name}:1.0.0:"),
        format!("providers:{name}"),
    ];
    are_apart(&names.map(Service::new)).await
}

#[tokio::test]
async fn kf_020_a_unicode_hyphen_is_not_a_hyphen() -> Result<()> {
    let name = unique("core");
    are_apart(&[
        Service::new(format!("pay\u{2010}{name}")),
        Service::new(format!("pay-{name}")),
    ])
    .await
}

#[tokio::test]
async fn kf_021_case_of_letters_counts() -> Result<()> {
    let name = unique("Service");
    are_apart(&[
        Service::new(format!("ORDER-{name}")),
        Service::new(format!("order-{name}")),
    ])
    .await?;
    let cluster = CLUSTER.get().await;
    let third = Service::new(format!("Order-{name}"));
    cluster.node(0).http().list(&third).await?.expect(&NOBODY)?;
    cluster
        .node(0)
        .client()
        .await?
        .query(&third)
        .await?
        .expect(&NOBODY)
}

#[tokio::test]
async fn kf_018_slashes_are_letters_like_others() -> Result<()> {
    let name = unique("orders.v1");
    are_apart(&[
        Service::new(format!("/{name}")),
        Service::new(format!("a/{name}")),
        Service::new(name),
    ])
    .await
}

#[tokio::test]
async fn kf_022_grouped_name_with_group_means_the_plain_name() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let plain = Service::unique("svc").group("G1");
    let grouped = Service {
        name: plain.grouped(),
        ..plain.clone()
    };
    let client = cluster.node(0).client().await?;
    let instance = Instance::at("10.5.0.22", 80);

    client.register(&grouped, &instance).await?;

    cluster.eventually_listed(&plain, &["10.5.0.22:80"]).await;
    let other = cluster.node(1).client().await?;
    for service in [&plain, &grouped] {
        other.query(service).await?.expect(&["10.5.0.22:80"])?;
    }
    let by_joined_name = vec![
        ("serviceName".into(), plain.grouped()),
        ("namespaceId".into(), "public".into()),
    ];
    let list = cluster
        .node(2)
        .http()
        .query(Method::GET, &format!("{INSTANCE}/list"), &by_joined_name)
        .await?;
    cluster_tests::List::from_json(list.json()?)?.expect(&["10.5.0.22:80"])?;
    let (_, names) = client.services("public", "G1", 1, 1000).await?;
    assert_eq!(
        names.iter().filter(|n| n.contains(&plain.name)).count(),
        1,
        "one service: {names:?}"
    );

    client.deregister(&grouped, &instance).await?;
    cluster.eventually_listed(&plain, &NOBODY).await;
    Ok(())
}

#[tokio::test]
async fn kf_022_a_prefix_that_differs_from_the_group_is_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let plain = Service::unique("svc").group("G1");
    let crossed = Service {
        name: format!("G2@@{}", plain.name),
        ..plain.clone()
    };
    let client = cluster.node(0).client().await?;
    let instance = Instance::at("10.5.0.22", 81).to_json();
    client
        .instance_request("registerInstance", &crossed, instance)
        .await?
        .refused(400)?;
    client
        .send_on("ServiceQueryRequest", &crossed, json!({}))
        .await?
        .refused(400)?;
    client
        .send_on("SubscribeServiceRequest", &crossed, json!({"subscribe": true}))
        .await?
        .refused(400)?;
    for service in [plain.clone(), plain.group("G2")] {
        client.query(&service).await?.expect(&NOBODY)?;
    }
    Ok(())
}

#[tokio::test]
async fn kf_023_a_blank_service_name_is_refused_and_breaks_nothing() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let namespace = unique("blank");
    for name in ["one", "two"] {
        let service = Service::new(name).namespace(&namespace);
        http.register(&service, &Instance::at("10.5.0.23", 80).patient())
            .await?
            .ok()?;
    }
    for name in [None, Some(""), Some(" ")] {
        let mut params = Instance::at("10.5.0.23", 80).to_params();
        params.push(("namespaceId".into(), namespace.clone()));
        params.extend(name.map(|name| ("serviceName".into(), name.into())));
        http.query(Method::POST, INSTANCE, &params)
            .await?
            .refused(400, "serviceName")?;
        http.form(Method::POST, INSTANCE, &params)
            .await?
            .refused(400, "serviceName")?;
        http.query(Method::PUT, INSTANCE, &params)
            .await?
            .refused(400, "serviceName")?;
        http.query(Method::DELETE, INSTANCE, &params)
            .await?
            .refused(400, "serviceName")?;
    }
    let client = cluster.node(0).client().await?;
    for name in [Value::Null, json!("")] {
        let body = json!({"namespace": namespace, "groupName": "DEFAULT_GROUP", "serviceName": name,
            "type": "registerInstance", "instance": Instance::at("10.5.0.23", 80).to_json()});
        let answer = client.send("InstanceRequest", &body).await?;
        ensure!(
            answer.result_code() != 200 && answer.message().contains("serviceName"),
            "{answer:?}"
        );
    }
    let (count, names) = http.services(&namespace, "DEFAULT_GROUP", 1, 10).await?;
    assert_eq!((count, names), (2, vec!["one".to_owned(), "two".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn kf_024_a_missing_cluster_is_default() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("default-cluster");
    let mut clients = Vec::new();
    for (port, name) in (1..).zip([None, Some(Value::Null), Some(json!(""))]) {
        let client = cluster.node(0).client().await?;
        let mut instance = json!({"ip": "10.5.0.24", "port": port});
        if let Some(name) = name {
            instance["clusterName"] = name;
        }
        client
            .instance_request("registerInstance", &service, instance)
            .await?
            .accepted()?;
        clients.push(client);
    }
    let mut params = vec![("ip".into(), "10.5.0.24".into()), ("port".into(), "4".into())];
    params.push(("clusterName".into(), String::new()));
    cluster
        .node(1)
        .http()
        .query(Method::POST, INSTANCE, &joined(&service, params))
        .await?
        .ok()?;

    let all = ["10.5.0.24:1", "10.5.0.24:2", "10.5.0.24:3", "10.5.0.24:4"];
    cluster
        .eventually_list(&service, SOON, |list| {
            list.expect(&all)?;
            ensure!(
                list.hosts.iter().all(|h| h.cluster == "DEFAULT"),
                "{:?}",
                list.hosts
            );
            Ok(())
        })
        .await;
    for node in cluster.nodes() {
        node.http()
            .list_with(&service, &[("clusters", "DEFAULT")])
            .await?
            .expect(&all)?;
        node.client()
            .await?
            .query_with(&service, "DEFAULT", false)
            .await?
            .expect(&all)?;
    }
    Ok(())
}

/// A text of exactly this length that no other test uses.
fn long(stem: &str, length: usize) -> String {
    let mut text = unique(stem);
    text.push_str(&"x".repeat(length - text.len()));
    text
}

#[tokio::test]
async fn kf_025_names_at_their_limits_work_on_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    for over_grpc in [false, true] {
        let service = Service::new(long("s", 512))
            .group(&long("g", 128))
            .namespace(&long("n", 64));
        let instance = Instance::at(&long("i", 128), 80)
            .cluster(&long("c", 64))
            .patient();
        let client = cluster.node(0).client().await?;
        if over_grpc {
            client.register(&service, &instance).await?;
        } else {
            cluster.node(0).http().register(&service, &instance).await?.ok()?;
        }
        cluster
            .eventually_list(&service, SOON, |list| list.expect_only(&instance))
            .await;
    }
    Ok(())
}

#[tokio::test]
async fn kf_025_names_above_their_limits_are_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (http, client) = (cluster.node(0).http(), cluster.node(0).client().await?);
    let instance = Instance::at("10.5.0.25", 80);
    let service = || Service::unique("limits");
    let too_long = [
        (Service::new(long("s", 513)), instance.clone(), 512),
        (service().group(&long("g", 129)), instance.clone(), 128),
        (service().namespace(&long("n", 65)), instance.clone(), 64),
        (service(), Instance::at(&long("i", 129), 80), 128),
        (service(), instance.clone().cluster(&long("c", 65)), 64),
    ];
    for (service, instance, limit) in too_long {
        let text = format!("the param length should not exceed {limit}.");
        http.register(&service, &instance).await?.refused(400, &text)?;
        let answer = client
            .instance_request("registerInstance", &service, instance.to_json())
            .await?;
        let answer = answer.refused(400)?;
        ensure!(answer.message().contains(&text), "{answer:?}");
        let (count, _) = client
            .services("public", &service.group, 1, 1)
            .await
            .unwrap_or_default();
        ensure!(
            service.group == "DEFAULT_GROUP" || count == 0,
            "nothing is stored"
        );
    }
    Ok(())
}

#[tokio::test]
async fn kf_027_empty_and_missing_namespaces_are_public() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("namespaces");
    let forms = [Some(""), None, Some("public")];
    let mut clients = Vec::new();
    for (port, form) in (1_u16..).zip(forms) {
        let instance = Instance::at("10.5.0.27", port).patient();
        let client = cluster.node(0).client().await?;
        let mut body = merged(
            service.to_json(),
            json!({"type": "registerInstance", "instance": instance.to_json()}),
        );
        set_namespace(&mut body, form);
        client.send("InstanceRequest", &body).await?.accepted()?;
        clients.push(client);
        let instance = Instance::at("10.5.0.27", port + 10).patient();
        cluster
            .node(0)
            .http()
            .query(Method::POST, INSTANCE, &in_namespace(&service, form, &instance))
            .await?
            .ok()?;
    }
    let all: Vec<String> = [1, 2, 3, 11, 12, 13]
        .map(|port| format!("10.5.0.27:{port}"))
        .into();
    cluster.eventually_listed(&service, &all).await;
    for node in cluster.nodes() {
        let (http, client) = (node.http(), node.client().await?);
        for form in forms {
            let mut body = service.to_json();
            set_namespace(&mut body, form);
            let answer = client.send("ServiceQueryRequest", &body).await?.accepted()?;
            cluster_tests::List::from_json(answer.body["serviceInfo"].clone())?.expect(&all)?;
            let params = in_namespace(&service, form, &Instance::at("", 0));
            let reply = http
                .query(Method::GET, &format!("{INSTANCE}/list"), &params)
                .await?;
            cluster_tests::List::from_json(reply.json()?)?.expect(&all)?;
        }
    }
    Ok(())
}

fn set_namespace(body: &mut Value, form: Option<&str>) {
    if let Value::Object(fields) = body {
        fields.remove("namespace");
        fields.extend(form.map(|text| ("namespace".to_owned(), json!(text))));
    }
}

fn in_namespace(service: &Service, form: Option<&str>, instance: &Instance) -> Vec<(String, String)> {
    let mut params = joined(service, instance.to_params());
    params.retain(|(key, _)| key != "namespaceId");
    params.extend(form.map(|text| ("namespaceId".into(), text.into())));
    params
}
