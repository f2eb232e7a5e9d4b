//! The scenarios. Each is given the nodes, and has services and clients of its own.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use nacos_sdk::api::naming::{NamingService, ServiceInstance};
use tokio::time::{Instant, sleep};

use crate::Scenario;
use crate::driver::{
    DUBBO_NAMES, Held, ODD_GROUP, OTHER_NAMESPACE, RECONNECTED, SOON, WEIGHTS, ask, end_of_input, eventually,
    metadata,
};
use crate::sdk::{GROUP, Nodes, PUBLIC, Seen, addresses, becomes, instance, list, only};

/// Longer than rows are kept whose node is gone (`orphan_gone`): what is still listed has been registered again.
const GRACE: Duration = Duration::from_secs(20);

/// All but [`redo`], by name.
pub fn all(nodes: &Rc<Nodes>) -> Vec<(&'static str, Scenario)> {
    let n = || nodes.clone();
    vec![
        ("register", Box::pin(register(n()))),
        ("select_healthy", Box::pin(select_healthy(n()))),
        ("weight", Box::pin(weight(n()))),
        ("subscribe", Box::pin(subscribe(n()))),
        ("unsubscribe", Box::pin(unsubscribe(n()))),
        ("deregister", Box::pin(deregister(n()))),
        ("batch", Box::pin(batch(n()))),
        ("batch_replacement", Box::pin(batch_replacement(n()))),
        ("group", Box::pin(group(n()))),
        ("cluster", Box::pin(cluster(n()))),
        ("namespace", Box::pin(namespace(n()))),
        ("metadata", Box::pin(metadata_comes_back(n()))),
        ("dubbo_names", Box::pin(dubbo_names(n()))),
        ("service_pages", Box::pin(service_pages(n()))),
        ("hundred_instances", Box::pin(hundred_instances(n()))),
        ("abrupt_death", Box::pin(abrupt_death(n()))),
        ("two_publishers", Box::pin(two_publishers(n()))),
    ]
}

async fn add(provider: &NamingService, service: &str, instance: ServiceInstance) -> Result<()> {
    Ok(provider.register_instance(service.into(), None, instance).await?)
}

async fn remove(provider: &NamingService, service: &str, ip: &str, port: i32) -> Result<()> {
    Ok(provider
        .deregister_instance(service.into(), None, instance(ip, port))
        .await?)
}

async fn add_batch(provider: &NamingService, service: &str, instances: &[ServiceInstance]) -> Result<()> {
    Ok(provider
        .batch_register_instance(service.into(), None, instances.to_vec())
        .await?)
}

fn in_cluster(ip: &str, cluster: &str) -> ServiceInstance {
    ServiceInstance {
        cluster_name: Some(cluster.into()),
        ..instance(ip, 8080)
    }
}

fn weighted(ip: &str, weight: f64) -> ServiceInstance {
    ServiceInstance {
        weight,
        ..instance(ip, 8080)
    }
}

async fn register(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(0).await?, nodes.client(1).await?);
    let given = ServiceInstance {
        port: 8081,
        weight: 2.5,
        metadata: [("zone".to_owned(), "a".to_owned())].into(),
        ..in_cluster("10.1.0.1", "east")
    };
    add(&provider, "rs-register", given.clone()).await?;
    nodes.list("rs-register", &["10.1.0.1:8081"]).await?;
    let one = only(&consumer, "rs-register").await?;
    let wanted = ServiceInstance {
        service_name: Some("DEFAULT_GROUP@@rs-register".into()),
        instance_id: Some("10.1.0.1#8081#east#DEFAULT_GROUP@@rs-register".into()),
        ..given
    };
    ensure!(one.is_same_instance(&wanted), "{one:?}, not {wanted:?}");
    // Without a cluster it is in the default one.
    let plain = ServiceInstance {
        cluster_name: None,
        ..instance("10.1.0.2", 8080)
    };
    add(&provider, "rs-register-plain", plain).await?;
    let one = only(&consumer, "rs-register-plain").await?;
    ensure!(one.cluster_name.as_deref() == Some("DEFAULT"), "{one:?}");
    Ok(())
}

async fn select_healthy(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(1).await?, nodes.client(2).await?);
    let healthy = instance("10.1.1.1", 8080);
    let unhealthy = ServiceInstance {
        healthy: false,
        ..instance("10.1.1.2", 8080)
    };
    let disabled = ServiceInstance {
        enabled: false,
        ..instance("10.1.1.3", 8080)
    };
    add_batch(&provider, "rs-select", &[healthy, unhealthy, disabled]).await?;
    nodes
        .list("rs-select", &["10.1.1.1:8080", "10.1.1.2:8080"])
        .await?;
    for (is_healthy, wanted) in [(true, "10.1.1.1:8080"), (false, "10.1.1.2:8080")] {
        let found = consumer
            .select_instances("rs-select".into(), None, vec![], false, is_healthy)
            .await?;
        ensure!(addresses(&found) == [wanted], "healthy {is_healthy}: {found:?}");
    }
    let one = consumer
        .select_one_healthy_instance("rs-select".into(), None, vec![], false)
        .await?;
    ensure!(one.ip == "10.1.1.1", "selected {one:?}");
    Ok(())
}

async fn weight(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(2).await?, nodes.client(0).await?);
    let mut seen = Seen::subscribe(&consumer, "rs-weight").await?;
    for weight in WEIGHTS {
        add(&provider, "rs-weight", weighted("10.1.2.1", weight)).await?;
        seen.until_weight(weight).await?;
        let one = only(&consumer, "rs-weight").await?;
        ensure!(one.weight == weight, "listed: {one:?}");
    }
    Ok(())
}

async fn subscribe(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, other) = (nodes.client(0).await?, nodes.client(1).await?);
    let consumer = nodes.client(2).await?;
    let mut seen = Seen::subscribe(&consumer, "rs-subscribe").await?;
    add(&provider, "rs-subscribe", instance("10.1.3.1", 8080)).await?;
    seen.until_addresses(&["10.1.3.1:8080"]).await?;
    add(&provider, "rs-subscribe", weighted("10.1.3.1", 3.0)).await?;
    seen.until_weight(3.0).await?;
    let changed = ServiceInstance {
        metadata: [("zone".to_owned(), "b".to_owned())].into(),
        ..weighted("10.1.3.1", 3.0)
    };
    add(&provider, "rs-subscribe", changed.clone()).await?;
    seen.until("the metadata", SOON, |list| {
        list.len() == 1 && list[0].metadata == changed.metadata
    })
    .await?;
    add(&other, "rs-subscribe", instance("10.1.3.2", 8080)).await?;
    seen.until_addresses(&["10.1.3.1:8080", "10.1.3.2:8080"]).await?;
    remove(&provider, "rs-subscribe", "10.1.3.1", 8080).await?;
    seen.until_addresses(&["10.1.3.2:8080"]).await?;
    remove(&other, "rs-subscribe", "10.1.3.2", 8080).await?;
    seen.until_addresses(&[]).await
}

async fn unsubscribe(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(0).await?, nodes.client(1).await?);
    let witness = nodes.client(1).await?;
    let mut seen = Seen::subscribe(&consumer, "rs-unsubscribe").await?;
    let mut told = Seen::subscribe(&witness, "rs-unsubscribe").await?;
    add(&provider, "rs-unsubscribe", instance("10.1.4.1", 8080)).await?;
    seen.until_addresses(&["10.1.4.1:8080"]).await?;
    seen.unsubscribe(&consumer, "rs-unsubscribe").await?;
    let calls = seen.calls();
    // Two changes that another subscriber at the same node is told: the first would have arrived by then.
    for weight in [2.0, 3.0] {
        add(&provider, "rs-unsubscribe", weighted("10.1.4.1", weight)).await?;
        told.until_weight(weight).await?;
    }
    ensure!(seen.calls() == calls, "called after unsubscribing");
    let mut again = Seen::subscribe(&consumer, "rs-unsubscribe").await?;
    add(&provider, "rs-unsubscribe", weighted("10.1.4.1", 4.0)).await?;
    again.until_weight(4.0).await?;
    remove(&provider, "rs-unsubscribe", "10.1.4.1", 8080).await?;
    again.until_addresses(&[]).await?;
    ensure!(seen.calls() == calls, "called after unsubscribing");
    Ok(())
}

async fn deregister(nodes: Rc<Nodes>) -> Result<()> {
    let provider = nodes.client(1).await?;
    add(&provider, "rs-deregister", instance("10.1.5.1", 8080)).await?;
    nodes.list("rs-deregister", &["10.1.5.1:8080"]).await?;
    remove(&provider, "rs-deregister", "10.1.5.1", 8080).await?;
    nodes.list("rs-deregister", &[]).await
}

async fn batch(nodes: Rc<Nodes>) -> Result<()> {
    let provider = nodes.client(2).await?;
    let three = [("10.1.6.1", 1), ("10.1.6.1", 2), ("10.1.6.2", 3)].map(|(ip, port)| instance(ip, port));
    add_batch(&provider, "rs-batch", &three).await?;
    nodes
        .list("rs-batch", &["10.1.6.1:1", "10.1.6.1:2", "10.1.6.2:3"])
        .await
}

async fn batch_replacement(nodes: Rc<Nodes>) -> Result<()> {
    let provider = nodes.client(0).await?;
    let four = [1, 2, 3, 4].map(|port| instance("10.1.7.1", port));
    add_batch(&provider, "rs-replacement", &four[..3]).await?;
    nodes
        .list("rs-replacement", &["10.1.7.1:1", "10.1.7.1:2", "10.1.7.1:3"])
        .await?;
    add_batch(&provider, "rs-replacement", &four[1..]).await?;
    nodes
        .list("rs-replacement", &["10.1.7.1:2", "10.1.7.1:3", "10.1.7.1:4"])
        .await?;
    // There is no call for several; one of the batch goes by itself.
    remove(&provider, "rs-replacement", "10.1.7.1", 3).await?;
    nodes.list("rs-replacement", &["10.1.7.1:2", "10.1.7.1:4"]).await
}

async fn group(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(0).await?, nodes.client(1).await?);
    let rows = [
        ("blue", "10.1.8.1"),
        ("green", "10.1.8.2"),
        (ODD_GROUP, "10.1.8.3"),
    ];
    for (group, ip) in rows {
        provider
            .register_instance("rs-group".into(), Some(group.into()), instance(ip, 8080))
            .await?;
    }
    for (group, ip) in rows {
        nodes
            .list_in_group("rs-group", group, &[&format!("{ip}:8080")])
            .await?;
    }
    nodes.list("rs-group", &[]).await?;
    let mut seen = Seen::subscribe_in(&consumer, "rs-group", "blue", &[]).await?;
    provider
        .deregister_instance("rs-group".into(), Some("blue".into()), instance("10.1.8.1", 8080))
        .await?;
    seen.until_addresses(&[]).await?;
    nodes.list_in_group("rs-group", "green", &["10.1.8.2:8080"]).await
}

async fn cluster(nodes: Rc<Nodes>) -> Result<()> {
    let (first, second) = (nodes.client(1).await?, nodes.client(2).await?);
    let both = ["10.1.9.1:8080", "10.1.9.2:8080"];
    let wanted: [(&[&str], &[&str]); 3] = [(&["east"], &both[..1]), (&["east", "west"], &both), (&[], &both)];
    // A client each: it keeps one list of a service.
    let mut seen = Vec::new();
    for (clusters, _) in wanted {
        let consumer = nodes.client(0).await?;
        let one = Seen::subscribe_in(&consumer, "rs-cluster", GROUP, clusters).await?;
        seen.push((consumer, one));
    }
    add(&first, "rs-cluster", in_cluster("10.1.9.1", "east")).await?;
    add(&second, "rs-cluster", in_cluster("10.1.9.2", "west")).await?;
    for ((consumer, one), (clusters, instances)) in seen.iter_mut().zip(wanted) {
        one.until_addresses(instances).await?;
        let found = list(consumer, "rs-cluster", GROUP, clusters).await?;
        ensure!(addresses(&found) == instances, "in {clusters:?}: {found:?}");
    }
    let nowhere = list(&seen[0].0, "rs-cluster", GROUP, &["north"]).await?;
    ensure!(nowhere.is_empty(), "in north: {nowhere:?}");
    first
        .deregister_instance("rs-cluster".into(), None, in_cluster("10.1.9.1", "east"))
        .await?;
    seen[0].1.until_addresses(&[]).await?;
    seen[2].1.until_addresses(&both[1..]).await
}

async fn namespace(nodes: Rc<Nodes>) -> Result<()> {
    let mut sides = Vec::new();
    for (namespace, ip) in [(PUBLIC, "10.1.10.1"), (OTHER_NAMESPACE, "10.1.10.2")] {
        let provider = nodes.client_in(0, namespace).await?;
        let consumer = nodes.client_in(1, namespace).await?;
        let seen = Seen::subscribe(&consumer, "rs-namespace").await?;
        add(&provider, "rs-namespace", instance(ip, 8080)).await?;
        sides.push((provider, consumer, seen, format!("{ip}:8080")));
    }
    for (_, consumer, seen, address) in &mut sides {
        seen.until_addresses(&[address]).await?;
        becomes(consumer, "rs-namespace", GROUP, &[address]).await?;
    }
    let (provider, consumer, seen, _) = &mut sides[1];
    remove(provider, "rs-namespace", "10.1.10.2", 8080).await?;
    seen.until_addresses(&[]).await?;
    becomes(consumer, "rs-namespace", GROUP, &[]).await?;
    nodes.list("rs-namespace", &["10.1.10.1:8080"]).await
}

async fn metadata_comes_back(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(1).await?, nodes.client(2).await?);
    let mut seen = Seen::subscribe(&consumer, "rs-metadata").await?;
    let given = ServiceInstance {
        metadata: metadata(),
        ..instance("10.1.11.1", 8080)
    };
    add(&provider, "rs-metadata", given).await?;
    seen.until("the metadata", SOON, |list| {
        list.len() == 1 && list[0].metadata == metadata()
    })
    .await?;
    let one = only(&consumer, "rs-metadata").await?;
    ensure!(one.metadata == metadata(), "listed: {one:?}");
    Ok(())
}

async fn dubbo_names(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(2).await?, nodes.client(0).await?);
    for group in ["DUBBO_GROUP", GROUP] {
        for service in DUBBO_NAMES {
            let mut seen = Seen::subscribe_in(&consumer, service, group, &[]).await?;
            provider
                .register_instance(service.into(), Some(group.into()), instance("10.1.12.1", 20880))
                .await?;
            seen.until_addresses(&["10.1.12.1:20880"]).await?;
            nodes.list_in_group(service, group, &["10.1.12.1:20880"]).await?;
        }
        let (names, _) = consumer.get_service_list(1, 100, Some(group.into())).await?;
        let are_listed = DUBBO_NAMES
            .iter()
            .all(|&service| names.iter().any(|name| name == service));
        ensure!(are_listed, "in {group} are {names:?}");
    }
    Ok(())
}

async fn service_pages(nodes: Rc<Nodes>) -> Result<()> {
    let (provider, consumer) = (nodes.client(0).await?, nodes.client(1).await?);
    let names: Vec<String> = (0..7).map(|number| format!("rs-page-{number}")).collect();
    for name in &names {
        provider
            .register_instance(name.clone(), Some("rs-pages".into()), instance("10.1.13.1", 8080))
            .await?;
    }
    eventually("seven are listed, in three pages", SOON, async || {
        let mut all = Vec::new();
        for (number, length) in [(1, 3), (2, 3), (3, 1), (4, 0)] {
            let (page, count) = consumer
                .get_service_list(number, 3, Some("rs-pages".into()))
                .await?;
            ensure!(
                count == 7 && page.len() == length,
                "page {number}: {page:?} of {count}"
            );
            all.extend(page);
        }
        all.sort();
        ensure!(all == names, "{all:?}");
        Ok(())
    })
    .await
}

async fn hundred_instances(nodes: Rc<Nodes>) -> Result<()> {
    let consumer = nodes.client(2).await?;
    let mut seen = Seen::subscribe(&consumer, "rs-hundred").await?;
    let (mut providers, mut everyone) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let provider = nodes.client(number % 3).await?;
        let ip = format!("10.1.14.{number}");
        let instances: Vec<_> = (1000..1025).map(|port| instance(&ip, port)).collect();
        add_batch(&provider, "rs-hundred", &instances).await?;
        everyone.extend(addresses(&instances));
        providers.push(provider);
    }
    let everyone: Vec<&str> = everyone.iter().map(String::as_str).collect();
    seen.until_addresses(&everyone).await?;
    nodes.list("rs-hundred", &everyone).await?;
    for provider in providers {
        add_batch(&provider, "rs-hundred", &[]).await?;
    }
    seen.until_addresses(&[]).await?;
    nodes.list("rs-hundred", &[]).await
}

async fn abrupt_death(nodes: Rc<Nodes>) -> Result<()> {
    let consumer = nodes.client(1).await?;
    let services = ["rs-death-0", "rs-death-1"];
    let mut seen = Vec::new();
    for service in services {
        seen.push(Seen::subscribe(&consumer, service).await?);
    }
    let provider = Held::start(&services)?;
    for one in &mut seen {
        one.until_addresses_within(RECONNECTED, &["10.1.15.1:8080"])
            .await?;
    }
    drop(provider);
    for (one, service) in seen.iter_mut().zip(services) {
        one.until_addresses(&[]).await?;
        nodes.list(service, &[]).await?;
    }
    Ok(())
}

/// Registers these services and keeps them until standard input ends.
pub async fn hold(servers: &str, services: &[String]) -> Result<()> {
    let provider = Nodes::connect(servers).await?.client(0).await?;
    for service in services {
        add(&provider, service, instance("10.1.15.1", 8080)).await?;
    }
    end_of_input().await
}

/// Prints what is told of these services until standard input ends.
pub async fn watch(servers: &str, services: &[String]) -> Result<()> {
    let consumer = Nodes::connect(servers).await?.roaming_client().await?;
    for service in services {
        let mut seen = Seen::subscribe(&consumer, service).await?;
        let service = service.clone();
        tokio::task::spawn_local(async move { seen.print(&service).await });
    }
    end_of_input().await
}

async fn two_publishers(nodes: Rc<Nodes>) -> Result<()> {
    let (first, second) = (nodes.client(0).await?, nodes.client(1).await?);
    let service = "rs-publishers";
    let (one, two, three) = ("10.1.16.1:1", "10.1.16.1:2", "10.1.16.1:3");
    let row = |port| instance("10.1.16.1", port);
    add(&first, service, row(1)).await?;
    add(&second, service, row(1)).await?;
    nodes.list(service, &[one]).await?;
    remove(&first, service, "10.1.16.1", 1).await?;
    // What the same client does next is everywhere no sooner than that.
    add(&first, service, row(2)).await?;
    nodes.list(service, &[one, two]).await?;
    remove(&second, service, "10.1.16.1", 1).await?;
    nodes.list(service, &[two]).await?;
    add(&second, service, row(3)).await?;
    nodes.list(service, &[two, three]).await?;
    remove(&first, service, "10.1.16.1", 2).await?;
    nodes.list(service, &[three]).await?;
    remove(&second, service, "10.1.16.1", 3).await?;
    nodes.list(service, &[]).await
}

/// The node of a provider and a consumer is killed and started again.
pub async fn redo(nodes: Rc<Nodes>) -> Result<()> {
    let service = "rs-redo";
    let (kept, added) = ("10.1.17.1:8080", "10.1.17.2:8080");
    let (provider, consumer) = (nodes.roaming_client().await?, nodes.roaming_client().await?);
    // The provider subscribes too: of these two, one at least loses its node.
    let mut seen = [
        Seen::subscribe(&provider, service).await?,
        Seen::subscribe(&consumer, service).await?,
    ];
    add(&provider, service, instance("10.1.17.1", 8080)).await?;
    for one in &mut seen {
        one.until_addresses(&[kept]).await?;
    }

    ask(&format!("kill the publisher of {GROUP}@@{service}")).await?;
    let deadline = Instant::now() + GRACE;
    // A new client finds the nodes that are left.
    let late = eventually("a new client connects", RECONNECTED, async || {
        nodes.roaming_client().await
    })
    .await?;
    add(&late, service, instance("10.1.17.2", 8080)).await?;
    let living = nodes.living()?;
    while Instant::now() < deadline {
        for observer in &living {
            let listed = list(observer, service, GROUP, &[]).await?;
            ensure!(
                addresses(&listed).iter().any(|address| address == kept),
                "a live instance is missing: {listed:?}"
            );
        }
        sleep(Duration::from_millis(100)).await;
    }
    for one in &mut seen {
        one.until_addresses_within(RECONNECTED, &[kept, added]).await?;
    }

    ask("start it again").await?;
    let nodes = nodes.again().await?;
    nodes.list(service, &[kept, added]).await?;
    add(&provider, service, weighted("10.1.17.1", 4.0)).await?;
    for one in &mut seen {
        one.until("the weight", SOON, |list| {
            list.iter().any(|i| i.ip == "10.1.17.1" && i.weight == 4.0)
        })
        .await?;
    }
    remove(&provider, service, "10.1.17.1", 8080).await?;
    for one in &mut seen {
        one.until_addresses(&[added]).await?;
    }
    nodes.list(service, &[added]).await
}
