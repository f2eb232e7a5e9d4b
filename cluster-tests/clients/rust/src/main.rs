//! What an application does with the official Rust client (`nacos-sdk`), as scenarios.
//!
//! Run as `rust-client SERVERS`, with the main addresses of all nodes separated by commas. Prints `ok NAME` or
//! `FAILED NAME: reason` for each scenario and ends with 1 if one failed. Where a scenario needs something done to the
//! cluster, it prints a line that starts with `? ` and waits for a line on standard input:
//!
//! - `? kill the publisher of GROUP@@SERVICE`: kill the node that holds the connection which publishes this service
//! - `? start it again`: start the node that was killed

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nacos_sdk::api::naming::{
    NamingChangeEvent, NamingEventListener, NamingService, NamingServiceBuilder, ServiceInstance,
};
use nacos_sdk::api::props::ClientProps;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Time in which a change must reach every client.
const SOON: Duration = Duration::from_secs(10);
/// Time in which a client must have found another node. The client itself waits seconds between its tries.
const RECONNECTED: Duration = Duration::from_secs(40);
/// Time of a whole scenario.
const PATIENCE: Duration = Duration::from_secs(120);

const GROUP: &str = "DEFAULT_GROUP";

#[tokio::main]
async fn main() {
    let Some(servers) = std::env::args().nth(1) else {
        eprintln!("usage: rust-client ADDRESS,ADDRESS,...");
        std::process::exit(2);
    };
    if servers == "--hold" {
        hold().await;
        return;
    }
    let mut failed = 0;
    for (name, scenario) in scenarios(&servers) {
        let result = match timeout(PATIENCE, scenario).await {
            Ok(result) => result,
            Err(_) => Err(anyhow!("not done within {PATIENCE:?}")),
        };
        match result {
            Ok(()) => println!("ok {name}"),
            Err(error) => {
                failed += 1;
                println!("FAILED {name}: {}", format!("{error:#}").replace('\n', " "));
            }
        }
    }
    std::process::exit(i32::from(failed > 0));
}

type Scenario = std::pin::Pin<Box<dyn Future<Output = Result<()>>>>;

fn scenarios(servers: &str) -> Vec<(&'static str, Scenario)> {
    let s = || servers.to_owned();
    vec![
        ("register, query, select", Box::pin(register_query_select(s()))),
        ("subscribe: change and removal", Box::pin(subscribe(s()))),
        ("unsubscribe", Box::pin(unsubscribe(s()))),
        ("deregister", Box::pin(deregister(s()))),
        ("batch", Box::pin(batch(s()))),
        ("groups are apart", Box::pin(groups(s()))),
        ("clusters", Box::pin(clusters(s()))),
        ("metadata with Unicode", Box::pin(metadata(s()))),
        ("service list", Box::pin(service_list(s()))),
        ("a client that goes takes its instance along", Box::pin(gone(s()))),
        ("restart of the node it is connected to", Box::pin(restart(s()))),
    ]
}

// === Scenarios ===

async fn register_query_select(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    provider
        .register_instance("rs-query".into(), None, instance("10.1.0.1", 8080))
        .await?;
    eventually("the instance is listed", SOON, async || {
        let all = list(&consumer, "rs-query", GROUP).await?;
        ensure!(all.len() == 1, "{} instances", all.len());
        let one = &all[0];
        ensure!(one.ip == "10.1.0.1" && one.port == 8080, "{one:?}");
        ensure!(
            one.healthy && one.enabled && one.ephemeral && one.weight == 1.0,
            "{one:?}"
        );
        ensure!(one.cluster_name.as_deref() == Some("DEFAULT"), "{one:?}");
        ensure!(
            one.service_name.as_deref() == Some("DEFAULT_GROUP@@rs-query"),
            "{one:?}"
        );
        ensure!(
            one.instance_id.as_deref() == Some("10.1.0.1#8080#DEFAULT#DEFAULT_GROUP@@rs-query"),
            "{one:?}"
        );
        Ok(())
    })
    .await?;
    let one = consumer
        .select_one_healthy_instance("rs-query".into(), None, vec![], false)
        .await?;
    ensure!(one.ip == "10.1.0.1", "selected {one:?}");
    let healthy = consumer
        .select_instances("rs-query".into(), None, vec![], false, true)
        .await?;
    ensure!(healthy.len() == 1, "{} healthy ones", healthy.len());
    let unhealthy = consumer
        .select_instances("rs-query".into(), None, vec![], false, false)
        .await?;
    ensure!(unhealthy.is_empty(), "{} unhealthy ones", unhealthy.len());
    Ok(())
}

async fn subscribe(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    let mut seen = Seen::subscribe(&consumer, "rs-watch").await?;
    provider
        .register_instance("rs-watch".into(), None, instance("10.1.1.1", 8080))
        .await?;
    seen.until("the instance is notified", SOON, |list| {
        list.len() == 1 && list[0].weight == 1.0
    })
    .await?;
    let changed = ServiceInstance {
        weight: 3.0,
        ..instance("10.1.1.1", 8080)
    };
    provider
        .register_instance("rs-watch".into(), None, changed)
        .await?;
    seen.until("the change is notified", SOON, |list| {
        list.len() == 1 && list[0].weight == 3.0
    })
    .await?;
    let other = client(&servers).await?;
    other
        .register_instance("rs-watch".into(), None, instance("10.1.1.2", 8080))
        .await?;
    seen.until("the second is notified", SOON, |list| list.len() == 2)
        .await?;
    provider
        .deregister_instance("rs-watch".into(), None, instance("10.1.1.1", 8080))
        .await?;
    seen.until("the removal is notified", SOON, |list| {
        list.len() == 1 && list[0].ip == "10.1.1.2"
    })
    .await?;
    other
        .deregister_instance("rs-watch".into(), None, instance("10.1.1.2", 8080))
        .await?;
    seen.until("the last removal is notified", SOON, <[_]>::is_empty)
        .await
}

async fn unsubscribe(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    let mut seen = Seen::subscribe(&consumer, "rs-unwatch").await?;
    provider
        .register_instance("rs-unwatch".into(), None, instance("10.1.2.1", 8080))
        .await?;
    seen.until("the instance is notified", SOON, |list| list.len() == 1)
        .await?;
    consumer
        .unsubscribe("rs-unwatch".into(), None, vec![], seen.listener.clone())
        .await?;
    provider
        .deregister_instance("rs-unwatch".into(), None, instance("10.1.2.1", 8080))
        .await?;
    eventually("the list is empty", SOON, async || {
        let n = list(&consumer, "rs-unwatch", GROUP).await?.len();
        ensure!(n == 0, "{n} instances");
        Ok(())
    })
    .await?;
    sleep(Duration::from_millis(500)).await;
    ensure!(
        seen.now().len() == 1,
        "notified after unsubscribing: {:?}",
        seen.now()
    );
    Ok(())
}

async fn deregister(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    provider
        .register_instance("rs-leave".into(), None, instance("10.1.3.1", 8080))
        .await?;
    addresses_become(&consumer, "rs-leave", GROUP, &["10.1.3.1:8080"]).await?;
    provider
        .deregister_instance("rs-leave".into(), None, instance("10.1.3.1", 8080))
        .await?;
    addresses_become(&consumer, "rs-leave", GROUP, &[]).await
}

async fn batch(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    let three = vec![
        instance("10.1.4.1", 1),
        instance("10.1.4.1", 2),
        instance("10.1.4.2", 3),
    ];
    provider
        .batch_register_instance("rs-batch".into(), None, three.clone())
        .await?;
    addresses_become(
        &consumer,
        "rs-batch",
        GROUP,
        &["10.1.4.1:1", "10.1.4.1:2", "10.1.4.2:3"],
    )
    .await?;
    // A second batch replaces the first, whole.
    provider
        .batch_register_instance("rs-batch".into(), None, three[1..].to_vec())
        .await?;
    addresses_become(&consumer, "rs-batch", GROUP, &["10.1.4.1:2", "10.1.4.2:3"]).await?;
    provider
        .batch_register_instance("rs-batch".into(), None, vec![three[2].clone()])
        .await?;
    addresses_become(&consumer, "rs-batch", GROUP, &["10.1.4.2:3"]).await
}

async fn groups(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    provider
        .register_instance("rs-group".into(), Some("blue".into()), instance("10.1.5.1", 8080))
        .await?;
    provider
        .register_instance(
            "rs-group".into(),
            Some("green".into()),
            instance("10.1.5.2", 8080),
        )
        .await?;
    addresses_become(&consumer, "rs-group", "blue", &["10.1.5.1:8080"]).await?;
    addresses_become(&consumer, "rs-group", "green", &["10.1.5.2:8080"]).await?;
    addresses_become(&consumer, "rs-group", GROUP, &[]).await
}

async fn clusters(servers: String) -> Result<()> {
    let (first, second, consumer) = (
        client(&servers).await?,
        client(&servers).await?,
        client(&servers).await?,
    );
    let of = |ip: &str, cluster: &str| ServiceInstance {
        cluster_name: Some(cluster.into()),
        ..instance(ip, 8080)
    };
    first
        .register_instance("rs-clusters".into(), None, of("10.1.6.1", "east"))
        .await?;
    second
        .register_instance("rs-clusters".into(), None, of("10.1.6.2", "west"))
        .await?;
    addresses_become(
        &consumer,
        "rs-clusters",
        GROUP,
        &["10.1.6.1:8080", "10.1.6.2:8080"],
    )
    .await?;
    let east = consumer
        .get_all_instances("rs-clusters".into(), None, vec!["east".into()], false)
        .await?;
    ensure!(east.len() == 1 && east[0].ip == "10.1.6.1", "in east: {east:?}");
    ensure!(
        east[0].cluster_name.as_deref() == Some("east"),
        "in east: {east:?}"
    );
    let nowhere = consumer
        .get_all_instances("rs-clusters".into(), None, vec!["north".into()], false)
        .await?;
    ensure!(nowhere.is_empty(), "in north: {nowhere:?}");
    Ok(())
}

async fn metadata(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    let metadata: HashMap<String, String> = [
        ("plain", "value"),
        ("名字", "服务 \u{1F980}"),
        ("quote\"d", "back\\slash, {\"json\": [1]}"),
        ("empty", ""),
        ("línea", "a\nb\tc"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let one = ServiceInstance {
        metadata: metadata.clone(),
        weight: 2.5,
        ..instance("10.1.7.1", 8080)
    };
    let mut seen = Seen::subscribe(&consumer, "rs-metadata").await?;
    provider
        .register_instance("rs-metadata".into(), None, one)
        .await?;
    seen.until("the metadata are notified", SOON, |list| {
        list.len() == 1 && list[0].metadata == metadata
    })
    .await?;
    let all = list(&consumer, "rs-metadata", GROUP).await?;
    ensure!(
        all.len() == 1 && all[0].metadata == metadata && all[0].weight == 2.5,
        "listed: {all:?}"
    );
    Ok(())
}

async fn service_list(servers: String) -> Result<()> {
    let (provider, consumer) = (client(&servers).await?, client(&servers).await?);
    for name in ["rs-list-a", "rs-list-b", "rs-list-c"] {
        provider
            .register_instance(name.into(), Some("rs-lists".into()), instance("10.1.8.1", 8080))
            .await?;
    }
    eventually("all three are listed, in two pages", SOON, async || {
        let (mut names, count) = consumer.get_service_list(1, 2, Some("rs-lists".into())).await?;
        ensure!(count == 3 && names.len() == 2, "page 1: {names:?} of {count}");
        names.extend(consumer.get_service_list(2, 2, Some("rs-lists".into())).await?.0);
        names.sort();
        ensure!(names == ["rs-list-a", "rs-list-b", "rs-list-c"], "{names:?}");
        Ok(())
    })
    .await
}

async fn gone(servers: String) -> Result<()> {
    let consumer = client(&servers).await?;
    let mut seen = Seen::subscribe(&consumer, "rs-gone").await?;
    // The client has no way to be closed but the end of its process.
    let program = std::env::current_exe()?;
    let mut child = tokio::task::spawn_blocking(move || {
        std::process::Command::new(program)
            .args(["--hold", &servers, "rs-gone"])
            .spawn()
    })
    .await??;
    let registered = seen
        .until("the instance is notified", SOON, |list| list.len() == 1)
        .await;
    child.kill()?;
    child.wait()?;
    registered?;
    seen.until("its end is notified", SOON, <[_]>::is_empty).await
}

async fn restart(servers: String) -> Result<()> {
    let (provider, subscriber) = (client(&servers).await?, client(&servers).await?);
    provider
        .register_instance("rs-restart".into(), None, instance("10.1.9.1", 8080))
        .await?;
    let mut seen = Seen::subscribe(&subscriber, "rs-restart").await?;
    seen.until("the instance is notified", SOON, |list| list.len() == 1)
        .await?;

    ask("kill the publisher of DEFAULT_GROUP@@rs-restart").await?;
    // New clients find the nodes that are left, and the instance never leaves their lists.
    let late = eventually("a new client connects", RECONNECTED, async || {
        client(&servers).await
    })
    .await?;
    late.register_instance("rs-restart".into(), None, instance("10.1.9.2", 8080))
        .await?;
    seen.until("both are notified", RECONNECTED, |list| list.len() == 2)
        .await?;
    // Longer than rows of a node that is gone are kept: what is still listed has been registered again.
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let listed = list(&late, "rs-restart", GROUP).await?;
        ensure!(
            listed.iter().any(|i| i.ip == "10.1.9.1"),
            "the list lacks a live instance: {listed:?}"
        );
        sleep(Duration::from_millis(100)).await;
    }

    ask("start it again").await?;
    addresses_become(&late, "rs-restart", GROUP, &["10.1.9.1:8080", "10.1.9.2:8080"]).await?;
    provider
        .deregister_instance("rs-restart".into(), None, instance("10.1.9.1", 8080))
        .await?;
    seen.until("the removal is notified", RECONNECTED, |list| {
        list.len() == 1 && list[0].ip == "10.1.9.2"
    })
    .await?;
    addresses_become(&client(&servers).await?, "rs-restart", GROUP, &["10.1.9.2:8080"]).await
}

/// `rust-client --hold SERVERS SERVICE`: registers an instance and lives until it is killed.
async fn hold() {
    let mut args = std::env::args().skip(2);
    let (Some(servers), Some(service)) = (args.next(), args.next()) else {
        return;
    };
    if let Ok(provider) = client(&servers).await {
        let _ = provider
            .register_instance(service, None, instance("10.1.10.1", 8080))
            .await;
        std::future::pending::<()>().await;
    }
}

// === What they share ===

async fn client(servers: &str) -> Result<NamingService> {
    let props = ClientProps::new()
        .server_addr(servers)
        .namespace("public")
        .app_name("rust-client")
        .naming_push_empty_protection(false);
    NamingServiceBuilder::new(props)
        .build()
        .await
        .context("the client does not start")
}

fn instance(ip: &str, port: i32) -> ServiceInstance {
    ServiceInstance {
        ip: ip.into(),
        port,
        ..ServiceInstance::default()
    }
}

async fn list(client: &NamingService, service: &str, group: &str) -> Result<Vec<ServiceInstance>> {
    Ok(client
        .get_all_instances(service.into(), Some(group.into()), vec![], false)
        .await?)
}

async fn addresses_become(client: &NamingService, service: &str, group: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("{service} of {group} is {wanted:?}"), SOON, async || {
        let mut now: Vec<String> = list(client, service, group)
            .await?
            .iter()
            .map(ServiceInstance::ip_and_port)
            .collect();
        now.sort();
        ensure!(now == wanted, "it is {now:?}");
        Ok(())
    })
    .await
}

async fn eventually<T>(what: &str, within: Duration, check: impl AsyncFn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        match check().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("not within {within:?}: {what}")));
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The list as the listener of a subscription knows it.
struct Seen {
    lists: watch::Receiver<Vec<ServiceInstance>>,
    listener: Arc<Listener>,
}

struct Listener(watch::Sender<Vec<ServiceInstance>>);

impl NamingEventListener for Listener {
    fn event(&self, event: Arc<NamingChangeEvent>) {
        self.0.send_replace(event.instances.clone().unwrap_or_default());
    }
}

impl Seen {
    async fn subscribe(client: &NamingService, service: &str) -> Result<Self> {
        let (sender, lists) = watch::channel(Vec::new());
        let listener = Arc::new(Listener(sender));
        client
            .subscribe(service.into(), None, vec![], listener.clone())
            .await?;
        Ok(Seen { lists, listener })
    }

    fn now(&self) -> Vec<ServiceInstance> {
        self.lists.borrow().clone()
    }

    async fn until(
        &mut self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&[ServiceInstance]) -> bool,
    ) -> Result<()> {
        if timeout(within, self.lists.wait_for(|list| wanted(list)))
            .await
            .is_ok()
        {
            return Ok(());
        }
        Err(anyhow!(
            "not within {within:?}: {what}; the last list was {:?}",
            self.now()
        ))
    }
}

/// Asks whoever started this program to do something to the cluster, and waits until it is done.
async fn ask(what: &str) -> Result<()> {
    println!("? {what}");
    let mut answer = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut answer).await?;
    ensure!(
        answer.trim() == "done",
        "asked to {what}, the answer was {answer:?}"
    );
    Ok(())
}
