//! Whether nodes hold the same, as operators ask it: `rollcall verify` and `/rollcall/agreement`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Cluster, Instance, Node, Service, binary, eventually};
use reqwest::Method;
use serde_json::Value;

/// What `rollcall verify` prints about these nodes, and its exit code.
async fn verify(nodes: &[&Node], patience: &str) -> Result<(i32, String)> {
    let mut command = binary::command();
    command.arg("verify").args(["--patience", patience]);
    command.args(nodes.iter().map(|node| node.address()));
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let code = output.status.code().context("ended by a signal")?;
    Ok((code, String::from_utf8(output.stdout)?))
}

#[tokio::test]
async fn members_that_hold_the_same_agree_and_a_dead_one_is_named() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let service = Service::unique("agreed");
    let http = cluster.node(0).http();
    for port in 1..=50 {
        let instance = Instance::at("10.13.0.1", port).patient();
        http.register(&service, &instance).await?.ok()?;
    }
    let client = cluster.node(1).client().await?;
    client.register(&service, &Instance::at("10.13.0.2", 80)).await?;

    let nodes: Vec<&Node> = cluster.nodes().iter().collect();
    let (code, text) = verify(&nodes, "20").await?;
    ensure!(code == 0 && text.ends_with("all nodes agree\n"), "{code}: {text}");
    let reply = cluster
        .node(2)
        .http()
        .query(Method::GET, "/rollcall/agreement", &Vec::new())
        .await?;
    let found: Value = reply.with_status(200)?.json()?;
    ensure!(
        found["agree"] == true && found["differences"] == Value::Array(Vec::new()),
        "{found}"
    );
    ensure!(
        found["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3),
        "{found}"
    );

    cluster.node(2).kill();
    eventually(
        "the others agree without the dead one",
        Duration::from_secs(60),
        || async {
            let (code, text) = verify(&nodes, "5").await?;
            let dead = format!("{}: ", cluster.node(2).address());
            ensure!(
                code == 2 && text.contains("the nodes that serve agree, not all do"),
                "{code}: {text}"
            );
            ensure!(
                text.lines()
                    .any(|line| line.starts_with(&dead) && !line.ends_with("serves")),
                "{text}"
            );
            Ok(())
        },
    )
    .await;
    Ok(())
}

#[tokio::test]
async fn nodes_that_hold_something_else_differ_by_service() -> Result<()> {
    // Two nodes that know nothing of each other.
    let (one, other) = (Cluster::start(1).await, Cluster::start(1).await);
    let different = Service::unique("different");
    let instance = Instance::at("10.13.0.3", 80).patient();
    one.node(0).http().register(&different, &instance).await?.ok()?;

    let nodes = [one.node(0), other.node(0)];
    let (code, text) = verify(&nodes, "2").await?;
    ensure!(
        code == 1 && text.ends_with("the nodes do not agree\n"),
        "{code}: {text}"
    );
    let named: Vec<&str> = text.lines().filter(|line| line.starts_with("differs")).collect();
    ensure!(
        named.len() == 1 && named[0].contains(&different.grouped()),
        "{text}"
    );
    Ok(())
}
