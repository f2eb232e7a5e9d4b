//! Behaviour of the protocol that no recording shows; `golden/COVERAGE.md` lists which tests cover what.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::connection::payload;
use cluster_tests::{Acks, ClientOptions, Instance, Service, SharedCluster};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

static CLUSTER: SharedCluster = SharedCluster::of(1);

/// Longest wait for an acknowledgement of a push.
const PUSH_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn what_clients_add_for_other_servers_is_ignored() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("signed");
    let instance = Instance::at("10.6.0.1", 80);
    let mut params = service.to_params();
    params.extend(instance.to_params());
    for name in [
        "ak",
        "data",
        "signature",
        "Spas-SecurityToken",
        "app",
        "accessToken",
    ] {
        params.push((name.into(), "x".into()));
    }
    let path = "/nacos/v1/ns/instance";
    http.query(Method::POST, path, &params).await?.ok()?;
    http.list(&service).await?.expect(&["10.6.0.1:80"])?;
    http.form(Method::DELETE, path, &params).await?.ok()?;
    http.list(&service).await?.expect(&[] as &[&str])
}

#[tokio::test]
async fn a_form_that_comes_in_chunks_is_read() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(0);
    let service = Service::unique("chunked");
    let mut stream = TcpStream::connect(node.http_address()).await?;
    let form = format!("serviceName={}&ip=10.6.0.2&port=80", service.name);
    let (first, second) = form.split_at(form.len() / 2);
    let head = "POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
        Content-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\n\r\n";
    let request = format!(
        "{head}{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"),
        "{answer}"
    );
    node.http().list(&service).await?.expect(&["10.6.0.2:80"])
}

#[tokio::test]
async fn a_negative_threshold_acts_as_zero() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("negative");
    let mut params = service.to_params();
    for (name, value) in [("ip", "10.6.0.3"), ("port", "80"), ("healthy", "false")] {
        params.push((name.into(), value.into()));
    }
    http.query(Method::POST, "/nacos/v1/ns/instance", &params)
        .await?
        .ok()?;
    let mut params = service.to_params();
    params.push(("protectThreshold".into(), "-1".into()));
    http.query(Method::PUT, "/nacos/v1/ns/service", &params)
        .await?
        .ok()?;
    let list = http.list_reply(&service, &[]).await?.json()?;
    ensure!(
        list["reachProtectionThreshold"] == true && list["hosts"][0]["healthy"] == true,
        "{list}"
    );
    Ok(())
}

#[tokio::test]
async fn an_acknowledgement_counts_by_its_code_and_one_that_says_no_brings_the_list_again() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let options = ClientOptions::default().acks(Acks::DetectionOnly);
    let client = cluster.node(0).client_with(options).await?;
    let service = Service::unique("acked");
    client.subscribe(&service, "").await?;
    let start = Instant::now();
    let push = client.next_push(SOON).await?;
    let id = push.json()?["requestId"].as_str().context("no id")?.to_owned();
    let refusal = json!({"resultCode": 500, "errorCode": 500, "success": false, "requestId": id});
    client.send_up(payload("NotifySubscriberResponse", &refusal))?;
    let again = client.next_push(SOON).await?;
    ensure!(again.json()?["serviceInfo"]["name"] == service.name.as_str());
    ensure!(
        start.elapsed() < PUSH_TIMEOUT,
        "it waited for the time-out: {:?}",
        start.elapsed()
    );
    // Python clients send no `success`.
    let id = again.json()?["requestId"].as_str().context("no id")?.to_owned();
    let accepted = json!({"resultCode": 200, "errorCode": 0, "requestId": id});
    client.send_up(payload("NotifySubscriberResponse", &accepted))?;
    let more = client.next_push(PUSH_TIMEOUT + Duration::from_secs(2)).await;
    ensure!(more.is_err(), "pushed again: {more:?}");
    Ok(())
}
