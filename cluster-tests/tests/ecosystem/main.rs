//! Applications of Spring Cloud Alibaba and Dubbo, with their published packages as they are, find and call each other
//! through three nodes, while the nodes are restarted one by one.
//!
//! | module | what it holds |
//! |---|---|
//! | [`app`] | a Java application as a child process |
//! | [`record`] | what a consumer says about its calls |
//! | [`scene`] | the steps that both kinds of applications go through |
//!
//! The applications are in `ecosystem/`, with a README; `scripts/ecosystem.sh` builds them, and installs Java and Maven
//! where they are missing. What cannot be had is a failure.

mod app;
mod record;
mod scene;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use app::{App, Site};
use cluster_tests::cluster::SOON;
use cluster_tests::{Cluster, Service, eventually};
use scene::{Ending, JVM_STARTS, Scene};

/// Time of an application to end in order: both frameworks wait 10 s for calls that are under way.
const JVM_ENDS: Duration = Duration::from_secs(60);

/// Time in which a silent client is found (14 s), and in which it finds that nobody hears it.
const SILENT: Duration = Duration::from_secs(40);

// === Spring Cloud Alibaba ===

fn spring(site: &Site, name: &str, class: &str, ip: u8, application: &str) -> Result<App> {
    let ip = site.ip(ip);
    let args = [
        format!("--server.address={ip}"),
        "--server.port=8080".into(),
        format!("--spring.application.name={application}"),
        format!("--spring.cloud.nacos.discovery.server-addr={}", site.servers()),
        format!("--spring.cloud.nacos.discovery.ip={ip}"),
    ];
    site.start(name, &[], &format!("ecosystem.spring.{class}"), &args)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --ecosystem"]
async fn spring_cloud_applications_call_each_other_while_nodes_restart() {
    let cluster = Cluster::start(3).await;
    let site = Site::beside(&cluster, "spring").await.unwrap();
    let greeter = Service::new("greeter");
    let (a, b) = (format!("{}:8080", site.ip(101)), format!("{}:8080", site.ip(102)));

    let _provider_a = spring(&site, "provider-a", "Provider", 101, "greeter").unwrap();
    let consumer = spring(&site, "consumer", "Consumer", 100, "caller").unwrap();
    let mut scene = Scene::new("spring", &cluster, &consumer, &["rest"]);
    scene.listed(&greeter, &[&a], JVM_STARTS).await;
    scene.reaches("rest", &a, JVM_STARTS).await;

    let provider_b = spring(&site, "provider-b", "Provider", 102, "greeter").unwrap();
    scene.listed(&greeter, &[&a, &b], JVM_STARTS).await;
    scene.reaches("rest", &b, SOON).await;

    let n_before = consumer.record().heartbeats().len();
    let names = eventually("two more heartbeats of the discovery client", SOON, || async {
        let heartbeats = consumer.record().heartbeats();
        ensure!(
            heartbeats.len() >= n_before + 2,
            "{} heartbeats",
            heartbeats.len()
        );
        heartbeats.last().cloned().context("no heartbeat")
    })
    .await;
    assert_eq!(names, ["caller", "greeter"]);
    scene.passed("getServices() of the discovery client names the services at each heartbeat");

    let live = [(greeter.clone(), vec![a.clone(), b.clone()])];
    scene.nodes_restart_one_by_one(&live).await.unwrap();

    let from = Instant::now();
    provider_b.terminate().unwrap();
    scene.listed(&greeter, &[&a], JVM_ENDS).await;
    provider_b.wait_exit(JVM_ENDS).await;
    scene.no_longer_calls(&b, Ending::InOrder, from).await.unwrap();

    let provider_b = spring(&site, "provider-b-again", "Provider", 102, "greeter").unwrap();
    scene.listed(&greeter, &[&a, &b], JVM_STARTS).await;
    scene.reaches("rest", &b, SOON).await;

    provider_b.freeze().unwrap();
    scene.listed(&greeter, &[&a], SILENT).await;
    provider_b.thaw().unwrap();
    scene.listed(&greeter, &[&a, &b], SILENT).await;
    scene.reaches("rest", &b, SOON).await;
    scene.passed(format!("{b} was frozen, left the lists, went on and came back"));

    let from = Instant::now();
    provider_b.kill();
    scene.listed(&greeter, &[&a], SOON).await;
    scene.no_longer_calls(&b, Ending::Killed, from).await.unwrap();
    scene.end();
}

// === Dubbo ===

/// Options for the Java machine: host names `greeter-1` and so on for addresses of the cluster's network. Where Dubbo
/// is told to use an address that starts with `127.`, it listens on all addresses and registers another one.
fn dubbo_options(site: &Site) -> Result<Vec<String>> {
    let hosts = site.scratch().join("hosts");
    let line = |i: u8| format!("{} greeter-{i}\n", site.ip(100 + i));
    std::fs::write(&hosts, (1..=3).map(line).collect::<String>())?;
    Ok(vec![format!("-Djdk.net.hosts.file={}", hosts.display())])
}

fn dubbo_provider(site: &Site, host: &str, mode: &str, note: usize) -> Result<App> {
    let args = [site.servers(), host, "20880", mode, &note.to_string()].map(str::to_owned);
    site.start(host, &dubbo_options(site)?, "ecosystem.dubbo.Provider", &args)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --ecosystem"]
async fn dubbo_applications_call_each_other_while_nodes_restart() {
    let cluster = Cluster::start(3).await;
    let site = Site::beside(&cluster, "dubbo").await.unwrap();
    // Where Dubbo registers: the interface with its version and group, the same without, the application.
    let versioned = Service::new("providers:ecosystem.dubbo.Greeter:1.0.0:ecosystem");
    let plain = Service::new("providers:ecosystem.dubbo.Greeter::");
    let application = Service::new("greeter");
    let [both, by_interface, by_application] = ["greeter-1:20880", "greeter-2:20880", "greeter-3:20880"];

    let _provider_1 = dubbo_provider(&site, "greeter-1", "all", 0).unwrap();
    for service in [&versioned, &plain, &application] {
        cluster
            .eventually_list(service, JVM_STARTS, |list| list.expect(&[both]))
            .await;
    }
    let servers = [site.servers().to_owned()];
    let consumer = site
        .start(
            "consumer",
            &dubbo_options(&site).unwrap(),
            "ecosystem.dubbo.Consumer",
            &servers,
        )
        .unwrap();
    let vias = &["interface", "application", "either", "wildcard"];
    let mut scene = Scene::new("dubbo", &cluster, &consumer, vias);
    for via in vias {
        scene.reaches(via, both, JVM_STARTS).await;
    }

    let http = cluster.node(1).http();
    let (n_names, names) = http.services("public", "DEFAULT_GROUP", 1, 100).await.unwrap();
    let wanted = [&application.name, &versioned.name, &plain.name];
    assert!(
        n_names == 3 && wanted.iter().all(|name| names.contains(name)),
        "{names:?}"
    );
    scene.passed("the list of service names has the two names of the interface and that of the application");
    for service in [&versioned, &application] {
        let metadata = http
            .list(service)
            .await
            .unwrap()
            .at(both)
            .unwrap()
            .metadata
            .clone();
        for node in cluster.nodes() {
            assert_eq!(
                node.http()
                    .list(service)
                    .await
                    .unwrap()
                    .at(both)
                    .unwrap()
                    .metadata,
                metadata
            );
        }
        let length: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        let n_pairs = metadata.len();
        scene.passed(format!(
            "{n_pairs} pairs of metadata, {length} characters, of {}",
            service.name
        ));
    }

    let provider_2 = dubbo_provider(&site, "greeter-2", "interface", 0).unwrap();
    scene.listed(&versioned, &[both, by_interface], JVM_STARTS).await;
    for via in ["interface", "wildcard"] {
        scene.reaches(via, by_interface, SOON).await;
    }
    let provider_3 = dubbo_provider(&site, "greeter-3", "instance", 0).unwrap();
    scene
        .listed(&application, &[both, by_application], JVM_STARTS)
        .await;
    for via in ["application", "either"] {
        scene.reaches(via, by_application, SOON).await;
    }

    let live = [
        (versioned.clone(), vec![both.to_owned(), by_interface.to_owned()]),
        (plain.clone(), vec![both.to_owned(), by_interface.to_owned()]),
        (
            application.clone(),
            vec![both.to_owned(), by_application.to_owned()],
        ),
    ];
    scene.nodes_restart_one_by_one(&live).await.unwrap();
    let calls = consumer.record().since(Instant::now() - JVM_ENDS);
    for (via, strange) in [("interface", by_application), ("application", by_interface)] {
        assert!(
            !calls.answers(via).contains_key(strange),
            "{via}: {:?}",
            calls.answers(via)
        );
    }
    scene.passed("references by interface and by application each keep to their own providers");

    let from = Instant::now();
    provider_2.terminate().unwrap();
    scene.listed(&versioned, &[both], JVM_ENDS).await;
    scene.listed(&plain, &[both], JVM_ENDS).await;
    provider_2.wait_exit(JVM_ENDS).await;
    scene
        .no_longer_calls(by_interface, Ending::InOrder, from)
        .await
        .unwrap();

    let from = Instant::now();
    provider_3.kill();
    scene.listed(&application, &[both], SOON).await;
    scene
        .no_longer_calls(by_application, Ending::Killed, from)
        .await
        .unwrap();
    scene.end();
}

/// Longer than the metadata of an instance may be without a setting.
const LONG: usize = 4000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --ecosystem"]
async fn long_settings_of_dubbo_services_need_a_higher_limit_unless_registered_by_application() {
    let by_interface = Service::new("providers:ecosystem.dubbo.Greeter:1.0.0:ecosystem");
    let by_application = Service::new("greeter");
    let cluster = Cluster::start(1).await;
    let site = Site::beside(&cluster, "dubbo").await.unwrap();

    let refused = dubbo_provider(&site, "greeter-1", "interface", LONG).unwrap();
    let accepted = dubbo_provider(&site, "greeter-2", "instance", LONG).unwrap();
    let mut scene = Scene::new("dubbo, long settings", &cluster, &accepted, &[]);
    scene
        .listed(&by_application, &["greeter-2:20880"], JVM_STARTS)
        .await;
    refused.wait_exit(JVM_STARTS).await;
    let rule = "Param 'Metadata' is illegal, the param length should not exceed 1024.";
    assert!(refused.log().contains(rule), "the log does not tell the rule");
    assert_eq!(
        cluster
            .node(0)
            .http()
            .list(&by_interface)
            .await
            .unwrap()
            .addresses(),
        [""; 0]
    );
    scene
        .passed("a registration by interface is refused with the rule that it breaks, and the provider ends");
    scene.end();

    let cluster = Cluster::builder(2).flag("--metadata-limit", "8192").start().await;
    let site = Site::beside(&cluster, "dubbo").await.unwrap();
    let provider = dubbo_provider(&site, "greeter-1", "interface", LONG).unwrap();
    let mut scene = Scene::new("dubbo, higher limit", &cluster, &provider, &[]);
    scene
        .listed(&by_interface, &["greeter-1:20880"], JVM_STARTS)
        .await;
    for node in cluster.nodes() {
        let list = node.http().list(&by_interface).await.unwrap();
        assert_eq!(list.hosts[0].metadata["note"].len(), LONG);
    }
    scene.passed("with metadata_limit 8192 every node lists the long parameter");
    scene.end();
}
