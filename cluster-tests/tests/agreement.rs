//! Whether nodes hold the same, as operators ask it: `rollcall verify` and `/rollcall/agreement`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::ports::Block;
use cluster_tests::{Cluster, Instance, Node, Service, binary, eventually};
use reqwest::Method;
use serde_json::Value;

/// What `rollcall verify` prints about these nodes, and its exit code.
async fn verify(nodes: &[&Node], patience: &str) -> Result<(i32, String)> {
    let addresses: Vec<String> = nodes.iter().map(|node| node.address()).collect();
    let (code, text, _) = verify_addresses(&addresses, patience).await?;
    Ok((code, text))
}

/// The same of addresses, and what it says on standard error.
async fn verify_addresses(addresses: &[String], patience: &str) -> Result<(i32, String, String)> {
    let mut command = binary::command();
    command
        .arg("verify")
        .args(["--patience", patience])
        .args(addresses);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let code = output.status.code().context("ended by a signal")?;
    Ok((
        code,
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    ))
}

/// What a node answers about all members, and how long that took.
async fn agreement(node: &Node) -> Result<(Value, Duration)> {
    let begun = Instant::now();
    let reply = node
        .http()
        .query(Method::GET, "/rollcall/agreement", &Vec::new())
        .await?;
    Ok((reply.with_status(200)?.json()?, begun.elapsed()))
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
    let (found, _) = agreement(cluster.node(2)).await?;
    ensure!(
        found["agree"] == true && found["verdict"] == "agree" && found["reason"] == "all nodes agree",
        "{found}"
    );
    ensure!(found["differences"] == Value::Array(Vec::new()), "{found}");
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
            let verdict = format!(
                "not known: the nodes that serve agree, and not all do; no answer from {}\n",
                cluster.node(2).address()
            );
            ensure!(code == 2 && text.ends_with(&verdict), "{code}: {text}");
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
async fn a_silent_member_leaves_it_unknown_after_one_short_wait() -> Result<()> {
    let cluster = Cluster::start(3).await;
    let silent = cluster.node(2);
    let is_unknown = |found: &Value| {
        let names_it = found["reason"].as_str().is_some_and(|reason| {
            reason.starts_with("not known: ")
                && reason.contains(&format!("no answer from {}", silent.address()))
        });
        found["agree"] == false && found["verdict"] == "unknown" && names_it
    };
    silent.freeze();
    let (found, took) = agreement(cluster.node(0)).await?;
    silent.thaw();
    ensure!(is_unknown(&found), "{found}");
    // Two seconds, one for a last answer, and a machine that is busy with other tests.
    ensure!(took < Duration::from_secs(5), "{took:?}");

    silent.kill();
    let (found, took) = agreement(cluster.node(0)).await?;
    ensure!(
        is_unknown(&found) && took < Duration::from_secs(5),
        "{took:?}: {found}"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_no_address_is_a_usage_error_and_nodes_that_are_not_there_agree_on_nothing() -> Result<()> {
    for wrong in [
        "localhost",
        "127.0.0.1:http",
        "http://127.0.0.1:8848",
        "0.0.0.0:8848",
    ] {
        let addresses = ["127.0.0.1:8848", wrong].map(String::from);
        let (code, _, complaint) = verify_addresses(&addresses, "0").await?;
        ensure!(
            code == 64 && complaint.contains(wrong),
            "{wrong}: {code}: {complaint}"
        );
    }
    let block = Block::claim(2);
    let nobody = [0, 1].map(|at| block.place(at).address());
    let (code, text, _) = verify_addresses(&nobody, "0").await?;
    let verdict = format!(
        "not known: no node serves; no answer from {}\n",
        nobody.join(", ")
    );
    ensure!(code == 2 && text.ends_with(&verdict), "{code}: {text}");
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
