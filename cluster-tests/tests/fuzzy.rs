//! Watches of services by a pattern, as 3.x clients have them.

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::connection::payload;
use cluster_tests::{Client, ClientOptions, Instance, Service, SharedCluster, unique};
use serde_json::{Value, json};

static CLUSTER: SharedCluster = SharedCluster::of(3);

/// A client as the Java client 3.1.1 sets itself up.
fn third_generation() -> ClientOptions {
    ClientOptions {
        setup: json!({
            "headers": {}, "clientVersion": "Nacos-Java-Client:v3.1.1",
            "labels": {"source": "sdk", "module": "naming", "AppName": "unknown", "tls.enable": "false"},
            "abilityTable": {"agent": true, "fuzzyWatch": true, "lock": true, "mcp": true}, "module": "internal",
        }),
        ..ClientOptions::default()
    }
}

async fn watch(client: &Client, pattern: &str, kind: &str) -> Result<()> {
    let body = json!({
        "headers": {}, "module": "naming", "namespace": "public", "groupKeyPattern": pattern,
        "receivedGroupKeys": [], "watchType": kind, "initializing": true,
    });
    let answer = client.send("NamingFuzzyWatchRequest", &body).await?.accepted()?;
    ensure!(answer.body["success"] == true, "{:?}", answer.body);
    Ok(())
}

/// The next message about services, acknowledged as the Java client does.
async fn told(client: &Client) -> Result<(String, Value)> {
    loop {
        let push = client.next_push(SOON).await?;
        if let Some(name) = push.kind.strip_prefix("NamingFuzzyWatch") {
            let body = push.json()?;
            let kind = format!("NamingFuzzyWatch{}", name.replace("Request", "Response"));
            let ack =
                json!({"resultCode": 200, "errorCode": 0, "requestId": body["requestId"], "success": true});
            client.send_up(payload(&kind, &ack))?;
            return Ok((push.kind, body));
        }
    }
}

#[tokio::test]
async fn a_watch_is_told_what_is_listed_and_what_comes_on_any_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let stem = unique("fuzzy");
    let name = |n: usize| format!("{stem}-{n:02}");
    let key = |n: usize| format!("public@@DEFAULT_GROUP@@{}", name(n));
    let provider = cluster.node(1).client().await?;
    for n in 0..12 {
        let service = Service::new(name(n));
        provider.register(&service, &Instance::at("10.9.1.1", 80)).await?;
        cluster.eventually_listed(&service, &["10.9.1.1:80"]).await;
    }
    let client = cluster.node(0).client_with(third_generation()).await?;
    let pattern = format!("public>>DEFAULT_GROUP>>{stem}*");
    watch(&client, &pattern, "WATCH").await?;
    let mut keys = Vec::new();
    for (batch, n) in [(1, 10), (2, 2)] {
        let (kind, body) = told(&client).await?;
        ensure!(kind == "NamingFuzzyWatchSyncRequest" && body["syncType"] == "FUZZY_WATCH_INIT_NOTIFY");
        ensure!(body["totalBatch"] == 2 && body["currentBatch"] == batch, "{body}");
        ensure!(body["groupKeyPattern"] == *pattern);
        let contexts = body["contexts"].as_array().context("no contexts")?;
        ensure!(contexts.len() == n && contexts.iter().all(|c| c["changedType"] == "ADD_SERVICE"));
        keys.extend(
            contexts
                .iter()
                .filter_map(|c| c["serviceKey"].as_str().map(str::to_owned)),
        );
    }
    ensure!(keys == (0..12).map(key).collect::<Vec<_>>(), "{keys:?}");
    let (_, end) = told(&client).await?;
    ensure!(
        end["syncType"] == "FINISH_FUZZY_WATCH_INIT_NOTIFY" && end["contexts"] == json!([]),
        "{end}"
    );

    provider
        .register(&Service::new(name(50)), &Instance::at("10.9.1.1", 80))
        .await?;
    let (kind, change) = told(&client).await?;
    ensure!(
        kind == "NamingFuzzyWatchChangeNotifyRequest" && change["syncType"] == "FUZZY_WATCH_RESOURCE_CHANGED"
    );
    ensure!(
        change["serviceKey"] == key(50) && change["changedType"] == "ADD_SERVICE",
        "{change}"
    );
    provider
        .deregister(&Service::new(name(50)), &Instance::at("10.9.1.1", 80))
        .await?;
    let (_, change) = told(&client).await?;
    ensure!(
        change["serviceKey"] == key(50) && change["changedType"] == "DELETE_SERVICE",
        "{change}"
    );

    watch(&client, &pattern, "CANCEL_WATCH").await?;
    let watches = cluster.node(0).http().metric("rollcall_fuzzy_watches").await?;
    ensure!(watches == 0.0, "{watches}");
    Ok(())
}

#[tokio::test]
async fn a_wrong_watch_is_refused_in_its_own_response() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(2).client_with(third_generation()).await?;
    for body in [
        json!({"groupKeyPattern": "public>>G>>s*", "watchType": "zzz"}),
        json!({"groupKeyPattern": "public", "watchType": "WATCH", "receivedGroupKeys": null}),
    ] {
        client
            .send("NamingFuzzyWatchRequest", &body)
            .await?
            .refused(400)?;
    }
    Ok(())
}
