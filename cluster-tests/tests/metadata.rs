//! Metadata: what survives unchanged, what an operator lays over it, and what is refused.

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::{INSTANCE, joined};
use cluster_tests::{Instance, List, Service, SharedCluster};
use reqwest::Method;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

fn is(wanted: &Instance) -> impl Fn(&List) -> Result<()> {
    let wanted = wanted.clone();
    move |list| list.expect_only(&wanted)
}

#[tokio::test]
async fn kf_029_a_deregistration_ends_what_the_operator_set() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("overridden");
    let http = cluster.node(0).http();
    let instance = Instance::at("192.0.2.40", 8080).patient();
    http.register(&service, &instance).await?.ok()?;
    http.update(&service, &instance.clone().weight(0.0).meta("lane", "a"))
        .await?
        .ok()?;
    cluster
        .eventually_list(
            &service,
            SOON,
            is(&instance.clone().weight(0.0).meta("lane", "a")),
        )
        .await;
    cluster
        .node(1)
        .http()
        .deregister(&service, &instance)
        .await?
        .ok()?;
    cluster.eventually_listed(&service, &NOBODY).await;

    cluster.node(2).http().register(&service, &instance).await?.ok()?;

    cluster.eventually_list(&service, SOON, is(&instance)).await;
    Ok(())
}

#[tokio::test]
async fn kf_029_a_registration_without_a_deregistration_keeps_what_the_operator_set() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("overridden");
    let instance = Instance::at("192.0.2.41", 8080).patient();
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster
        .node(1)
        .http()
        .update(&service, &instance.clone().weight(6.0).meta("lane", "a"))
        .await?
        .ok()?;

    cluster
        .node(2)
        .http()
        .register(&service, &instance.clone().weight(2.0).meta("v", "2"))
        .await?
        .ok()?;

    let wanted = instance.weight(6.0).meta("lane", "a").meta("v", "2");
    cluster.eventually_list(&service, SOON, is(&wanted)).await;
    Ok(())
}

#[tokio::test]
async fn an_update_of_an_instance_registered_over_grpc_lasts_until_it_deregisters() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("overridden");
    let instance = Instance::at("192.0.2.42", 8080);
    let client = cluster.node(0).client().await?;
    client.register(&service, &instance).await?;
    cluster.eventually_list(&service, SOON, is(&instance)).await;

    cluster
        .node(1)
        .http()
        .update(&service, &instance.clone().weight(4.0))
        .await?
        .ok()?;
    cluster
        .eventually_list(&service, SOON, is(&instance.clone().weight(4.0)))
        .await;
    client
        .register(&service, &instance.clone().meta("v", "2"))
        .await?;
    cluster
        .eventually_list(&service, SOON, is(&instance.clone().weight(4.0).meta("v", "2")))
        .await;

    client.deregister(&service, &instance).await?;
    cluster.eventually_listed(&service, &NOBODY).await;
    client.register(&service, &instance).await?;
    cluster.eventually_list(&service, SOON, is(&instance)).await;
    Ok(())
}

#[tokio::test]
async fn kf_030_any_text_comes_back_as_it_was_sent() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let instance = |port| {
        Instance::at("10.6.0.30", port)
            .meta("说明", "灰度\"1\"")
            .meta("e", "a+b%20c&d=e,f")
            .meta("n", "l1\nl2")
            .meta("😀", "🚀")
            .meta("quote", "'\\/\t")
    };
    let (by_query, by_form, by_grpc) = (
        Service::unique("text"),
        Service::unique("text"),
        Service::unique("text"),
    );
    let subscriber = cluster.node(2).client().await?;
    for service in [&by_query, &by_form, &by_grpc] {
        subscriber.subscribe(service, "").await?;
    }
    let http = cluster.node(0).http();
    // No beat times here: metadata has to be exactly this.
    http.register(&by_query, &instance(1)).await?.ok()?;
    http.form(Method::POST, INSTANCE, &joined(&by_form, instance(2).to_params()))
        .await?
        .ok()?;
    let client = cluster.node(1).client().await?;
    client.register(&by_grpc, &instance(3)).await?;

    for (port, service) in [(1, &by_query), (2, &by_form), (3, &by_grpc)] {
        subscriber.pushed(service, SOON, is(&instance(port))).await?;
        cluster.eventually_list(service, SOON, is(&instance(port))).await;
        for node in cluster.nodes() {
            let reader = node.client().await?;
            for _ in 0..20 {
                is(&instance(port))(&reader.query(service).await?)?;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn kf_031_pairs_with_equals_signs_are_metadata_too() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("pairs");
    let http = cluster.node(0).http();
    let instance = Instance::at("10.6.0.31", 80);
    let with = |metadata: &str| {
        let mut params = joined(&service, instance.row_params());
        params.push(("metadata".into(), metadata.into()));
        params
    };
    http.query(Method::POST, INSTANCE, &with("v=1,zone=a"))
        .await?
        .ok()?;
    cluster
        .eventually_list(
            &service,
            SOON,
            is(&instance.clone().meta("v", "1").meta("zone", "a")),
        )
        .await;
    http.query(Method::PUT, INSTANCE, &with("zone=b,lane=c"))
        .await?
        .ok()?;
    let updated = instance
        .clone()
        .meta("v", "1")
        .meta("zone", "b")
        .meta("lane", "c");
    cluster.eventually_list(&service, SOON, is(&updated)).await;

    for bad in ["abc", "a=b=c", "a=", "{\"a\":", "[\"a\"]", "{\"a\":{\"b\":1}}"] {
        http.query(Method::POST, INSTANCE, &with(bad))
            .await?
            .refused(400, bad)?;
        http.query(Method::PUT, INSTANCE, &with(bad))
            .await?
            .refused(400, bad)?;
    }
    is(&updated)(&http.list(&service).await?)
}

#[tokio::test]
async fn kf_032_a_megabyte_of_metadata_is_refused_and_the_connection_goes_on() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("huge");
    let small = Instance::at("10.6.0.32", 80).patient();
    let huge = small.clone().meta("blob", &"x".repeat(1024 * 1024));
    let limit = "Param 'Metadata' is illegal, the param length should not exceed 1024.";

    let http = cluster.node(0).http();
    http.form(Method::POST, INSTANCE, &joined(&service, huge.to_params()))
        .await?
        .refused(400, limit)?;
    http.list(&service).await?.expect(&NOBODY)?;
    http.register(&service, &small).await?.ok()?;

    let client = cluster.node(0).client().await?;
    let answer = client
        .instance_request("registerInstance", &service, huge.to_json())
        .await?
        .refused(400)?;
    ensure!(answer.message().contains(limit), "{answer:?}");
    client.register(&service, &Instance::at("10.6.0.32", 81)).await?;
    cluster
        .eventually_listed(&service, &["10.6.0.32:80", "10.6.0.32:81"])
        .await;
    Ok(())
}

#[tokio::test]
async fn an_update_shows_in_detail_and_can_disable() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("disabled");
    let instance = Instance::at("10.6.0.33", 80).patient();
    let http = cluster.node(0).http();
    http.register(&service, &instance).await?.ok()?;
    let mut off = instance.clone();
    off.enabled = false;

    cluster.node(1).http().update(&service, &off).await?.ok()?;

    cluster.eventually_listed(&service, &NOBODY).await;
    let detail = http.detail(&service, &instance).await?.json()?;
    assert_eq!(
        (detail["ip"].as_str(), detail["service"].as_str()),
        (Some("10.6.0.33"), Some(&*service.grouped()))
    );
    cluster.node(2).http().update(&service, &instance).await?.ok()?;
    cluster.eventually_list(&service, SOON, is(&instance)).await;
    let unknown = Instance::at("10.6.0.99", 80);
    http.detail(&service, &unknown)
        .await?
        .refused(404, "no matched ip found!")
}

#[tokio::test]
async fn of_changes_at_one_moment_through_different_nodes_none_is_lost() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("patched");
    let instance = Instance::at("10.6.0.34", 80).patient();
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster.eventually_listed(&service, &[instance.address()]).await;
    let batch = |pair: String| {
        let mut params = service.to_params();
        params.push(("metadata".into(), pair));
        params
    };

    for round in 1..=30 {
        let mut weight = joined(&service, instance.row_params());
        weight.push(("weight".into(), round.to_string()));
        let (a, b) = (
            batch(format!(r#"{{"a":"{round}"}}"#)),
            batch(format!(r#"{{"b":"{round}"}}"#)),
        );
        let path = format!("{INSTANCE}/metadata/batch");
        let [first, second, third] = [0, 1, 2].map(|n| cluster.node(n).http());
        let (first, second, third) = tokio::join!(
            first.query(Method::PATCH, INSTANCE, &weight),
            second.query(Method::PUT, &path, &a),
            third.query(Method::PUT, &path, &b),
        );
        first?.ok()?;
        for reply in [second?, third?] {
            let updated = reply.with_status(200)?.json()?;
            ensure!(
                updated["updated"].as_array().is_some_and(|rows| rows.len() == 1),
                "{updated}"
            );
        }

        cluster
            .eventually_list(&service, SOON, |list| {
                let now = list.hosts.first().context("nothing is listed")?;
                let value = round.to_string();
                let metadata = [now.metadata.get("a"), now.metadata.get("b")];
                ensure!(now.weight == f64::from(round), "round {round}: {now:?}");
                ensure!(metadata == [Some(&value), Some(&value)], "round {round}: {now:?}");
                Ok(())
            })
            .await;
    }

    let long = batch(format!(r#"{{"c":"{}"}}"#, "x".repeat(1020)));
    let http = cluster.node(1).http();
    let reply = http
        .query(Method::PUT, &format!("{INSTANCE}/metadata/batch"), &long)
        .await?;
    reply.refused(
        400,
        "Param 'Metadata' is illegal, the param length should not exceed 1024.",
    )
}
