//! What operators set and see: instances taken out of lists, protection, counts, namespaces, services and probes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::{INSTANCE, Params, joined};
use cluster_tests::{
    BeatingInstance, Client, Cluster, Http, Instance, List, Service, SharedCluster, always, eventually,
    unique,
};
use futures_util::future::try_join_all;
use reqwest::Method;
use serde_json::Value;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

const SECOND: Duration = Duration::from_secs(1);

/// Time in which what an operator does must show everywhere, on a machine that is busy with other tests.
const AT_ONCE: Duration = Duration::from_secs(2);

const SERVICE: &str = "/nacos/v1/ns/service";

fn params(pairs: &[(&str, &str)]) -> Params {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn disabled(instance: &Instance) -> Instance {
    let mut instance = instance.clone();
    instance.enabled = false;
    instance
}

async fn namespaces(http: &Http) -> Result<[Vec<String>; 3]> {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for (path, ids) in [
        "/nacos/v1/console/namespaces",
        "/nacos/v2/console/namespace/list",
        "/nacos/v3/admin/core/namespace/list",
    ]
    .iter()
    .zip(&mut all)
    {
        let body = http.query(Method::GET, path, &Vec::new()).await?.json()?;
        let list = body["data"]
            .as_array()
            .with_context(|| format!("no data in {body}"))?;
        ids.extend(
            list.iter()
                .filter_map(|one| one["namespace"].as_str().map(String::from)),
        );
    }
    Ok(all)
}

/// KF-026: a namespace that nobody made is one, holds what is registered in it and nothing else, and is listed while it
/// holds anything.
#[tokio::test]
async fn kf_026_a_namespace_that_nobody_made_is_listed_while_it_holds_data() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let ghost = unique("ghost-ns");
    let service = Service::unique("haunted").namespace(&ghost);
    let instance = Instance::at("10.15.0.26", 80).patient();
    cluster.node(0).http().register(&service, &instance).await?.ok()?;
    cluster
        .eventually_list(&service, SOON, |list| list.expect_only(&instance))
        .await;
    for node in cluster.nodes() {
        let http = node.http();
        for elsewhere in ["public", "other"] {
            http.list(&service.clone().namespace(elsewhere))
                .await?
                .expect(&NOBODY)?;
        }
        for ids in namespaces(&http).await? {
            ensure!(ids.contains(&ghost), "{ids:?}");
        }
    }

    cluster
        .node(1)
        .http()
        .deregister(&service, &instance)
        .await?
        .ok()?;
    let named = joined(&service, Vec::new());
    cluster.eventually_listed(&service, &NOBODY).await;
    cluster
        .node(1)
        .http()
        .query(Method::DELETE, SERVICE, &named)
        .await?
        .ok()?;
    for node in cluster.nodes() {
        eventually("the namespace is gone", SOON, || async {
            for ids in namespaces(&node.http()).await? {
                ensure!(!ids.contains(&ghost), "{ids:?}");
            }
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// KF-033: metadata set for two of three rows in one call: the answer names both, all nodes agree, subscribers are
/// pushed; the same for a key that is taken away again.
#[tokio::test]
async fn kf_033_metadata_of_many_rows_are_set_and_removed_everywhere() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("batched");
    let rows: Vec<Instance> = (1..=3)
        .map(|port| Instance::at("10.15.0.33", port).weight(2.0).patient())
        .collect();
    for row in &rows {
        cluster.node(0).http().register(&service, row).await?.ok()?;
    }
    let subscriber = cluster.node(2).client().await?;
    subscriber.subscribe(&service, "").await?;
    let named = serde_json::json!([
        {"ip": "10.15.0.33", "port": 1, "clusterName": "DEFAULT", "ephemeral": true},
        {"ip": "10.15.0.33", "port": "3", "ephemeral": true},
        {"ip": "10.15.0.33", "port": 4},
    ])
    .to_string();
    let path = format!("{INSTANCE}/metadata/batch");
    let call = async |method: Method, metadata: &str| {
        let more = params(&[
            ("instances", named.as_str()),
            ("metadata", metadata),
            ("consistencyType", "ephemeral"),
        ]);
        let http = cluster.node(1).http();
        let body = http.query(method, &path, &joined(&service, more)).await?.json()?;
        let names = body["updated"].as_array().context("nothing updated")?;
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        ensure!(
            names.len() == 2
                && names[0].starts_with("10.15.0.33:1:")
                && names[1].starts_with("10.15.0.33:3:"),
            "{names:?}"
        );
        anyhow::Ok(())
    };
    let are = |wanted: &[Instance]| {
        let wanted = wanted.to_vec();
        move |list: &List| {
            ensure!(list.hosts == wanted, "{:?} is not {wanted:?}", list.hosts);
            Ok(())
        }
    };
    let laid = |rows: &[Instance], pairs: &[(&str, &str)]| -> Vec<Instance> {
        let with = |row: &Instance| pairs.iter().fold(row.clone(), |row, (k, v)| row.meta(k, v));
        vec![with(&rows[0]), rows[1].clone(), with(&rows[2])]
    };

    call(Method::PUT, r#"{"lane":"a","zone":"b"}"#).await?;
    let wanted = laid(&rows, &[("lane", "a"), ("zone", "b")]);
    cluster.eventually_list(&service, SOON, are(&wanted)).await;
    subscriber.pushed(&service, SOON, are(&wanted)).await?;

    call(Method::DELETE, r#"{"lane":""}"#).await?;
    let wanted = laid(&rows, &[("zone", "b")]);
    cluster.eventually_list(&service, SOON, are(&wanted)).await;
    subscriber.pushed(&service, SOON, are(&wanted)).await?;
    Ok(())
}

/// KF-045: an instance that is disabled leaves what is pushed and what is asked for, and comes back enabled.
#[tokio::test]
async fn kf_045_disabling_and_enabling_show_in_pushes_and_queries() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("switched");
    let (stays, switched) = (
        Instance::at("10.15.0.45", 1).patient(),
        Instance::at("10.15.0.45", 2).patient(),
    );
    for instance in [&stays, &switched] {
        cluster.node(0).http().register(&service, instance).await?.ok()?;
    }
    let both = ["10.15.0.45:1", "10.15.0.45:2"];
    cluster.eventually_listed(&service, &both).await;
    let subscribers = cluster.clients().await?;
    for subscriber in &subscribers {
        subscriber.subscribe(&service, "").await?;
        subscriber.pushed_exactly(&service, &both, SOON).await?;
    }
    for (instance, shown) in [(disabled(&switched), &both[..1]), (switched, &both)] {
        cluster.node(1).http().update(&service, &instance).await?.ok()?;
        for (subscriber, node) in subscribers.iter().zip(cluster.nodes()) {
            subscriber.pushed_exactly(&service, shown, SOON).await?;
            // What was pushed is what is there: a query may not lag behind.
            subscriber.query(&service).await?.expect(shown)?;
            node.http().list(&service).await?.expect(shown)?;
        }
    }
    Ok(())
}

/// KF-046: with one healthy of five and a threshold of 0.8, clients get all five as healthy with the flag, in lists and
/// pushes; who asks for healthy ones gets the one without; operators see how it is.
#[tokio::test]
async fn kf_046_protection_is_for_clients_and_operators_see_how_it_is() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("protected");
    let http = cluster.node(0).http();
    let more = params(&[("protectThreshold", "0.8"), ("ephemeral", "true")]);
    http.query(Method::POST, SERVICE, &joined(&service, more))
        .await?
        .ok()?;
    let silent = |port| Instance::at("10.15.0.46", port).beat_times(500, 1_000, 3_600_000);
    let _beats = BeatingInstance::start(
        vec![http.clone()],
        service.clone(),
        Instance::at("10.15.0.46", 1).patient(),
        SECOND,
    )
    .await?;
    for port in 2..=5 {
        http.register(&service, &silent(port)).await?.ok()?;
    }
    let subscriber = cluster.node(2).client().await?;
    subscriber.subscribe(&service, "").await?;
    let all: Vec<String> = (1..=5).map(|port| format!("10.15.0.46:{port}")).collect();
    let is_protected = |list: &List| {
        list.expect(&all)?;
        ensure!(list.hosts.iter().all(|host| host.healthy), "{:?}", list.hosts);
        ensure!(list.json["reachProtectionThreshold"] == true, "{}", list.json);
        Ok(())
    };
    subscriber.pushed(&service, SOON, is_protected).await?;
    for node in cluster.nodes() {
        let http = node.http();
        // Until the last of the four is found silent here too.
        let seen = eventually("operators see one healthy instance", SOON, || async {
            let more = params(&[("pageNo", "1"), ("pageSize", "10"), ("clusterName", "DEFAULT")]);
            let path = "/nacos/v1/ns/catalog/instances";
            let body = http
                .query(Method::GET, path, &joined(&service, more))
                .await?
                .json()?;
            let list = body["list"].as_array().context("no list")?;
            let healthy: Vec<u64> = list
                .iter()
                .filter(|one| one["healthy"] == true)
                .filter_map(|one| one["port"].as_u64())
                .collect();
            ensure!(healthy == [1], "{healthy:?}");
            Ok(list.len())
        })
        .await;
        assert_eq!(seen, 5);
        is_protected(&http.list(&service).await?)?;
        let only = http.list_with(&service, &[("healthyOnly", "true")]).await?;
        only.expect(&["10.15.0.46:1"])?;
        assert_eq!(only.json["reachProtectionThreshold"], false);
        is_protected(&node.client().await?.query(&service).await?)?;
    }
    Ok(())
}

/// KF-092: what an operator disabled stays so when its client reconnects through another node, until its publisher
/// takes it back itself.
#[tokio::test]
async fn kf_092_a_disabled_instance_stays_so_when_its_client_reconnects_elsewhere() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("disabled");
    let instance = Instance::at("10.15.0.92", 80);
    let first = cluster.node(0).client().await?;
    first.register(&service, &instance).await?;
    cluster.eventually_listed(&service, &["10.15.0.92:80"]).await;
    cluster
        .node(1)
        .http()
        .update(&service, &disabled(&instance))
        .await?
        .ok()?;
    cluster.eventually_listed(&service, &NOBODY).await;

    drop(first);
    for node in cluster.nodes() {
        eventually("the row is gone", SOON, || async {
            let rows = node.http().rows(&service).await?;
            ensure!(rows.is_empty(), "{rows:?}");
            Ok(())
        })
        .await;
    }
    let second = cluster.node(2).client().await?;
    second.register(&service, &instance).await?;
    for node in cluster.nodes() {
        let http = node.http();
        eventually("the row is there again", SOON, || async {
            ensure!(http.rows(&service).await?.len() == 1, "no row");
            Ok(())
        })
        .await;
        always("it is not listed", SECOND, || async {
            http.list(&service).await?.expect(&NOBODY)
        })
        .await;
    }

    second.deregister(&service, &instance).await?;
    second.register(&service, &instance).await?;
    cluster.eventually_listed(&service, &["10.15.0.92:80"]).await;
    Ok(())
}

/// KF-099: what an operator disables leaves all lists at once, and neither beats nor registrations bring it back. A
/// deletion lasts until the next full beat, and means nothing for what a connection holds.
#[tokio::test]
async fn kf_099_live_instances_can_be_disabled_but_not_deleted() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let (over_http, over_grpc) = (Service::unique("live"), Service::unique("live"));
    let instance = Instance::at("10.15.0.99", 80).patient();
    let https: Vec<Http> = cluster.nodes().iter().map(|node| node.http()).collect();
    let client = cluster.node(0).client().await?;
    client.register(&over_grpc, &instance).await?;
    https[0].register(&over_http, &instance).await?.ok()?;
    for service in [&over_http, &over_grpc] {
        cluster.eventually_listed(service, &["10.15.0.99:80"]).await;
        https[1].update(service, &disabled(&instance)).await?.ok()?;
        cluster
            .eventually_list(service, AT_ONCE, |list| list.expect(&NOBODY))
            .await;
    }
    for http in https.iter().cycle().take(6) {
        assert_eq!(http.light_beat(&over_http, &instance).await?.code, 10200);
        assert_eq!(http.full_beat(&over_http, &instance).await?.code, 10200);
        http.register(&over_http, &instance).await?.ok()?;
        client.register(&over_grpc, &instance).await?;
        for service in [&over_http, &over_grpc] {
            for http in &https {
                http.list(service).await?.expect(&NOBODY)?;
            }
        }
    }

    for service in [&over_http, &over_grpc] {
        https[2].update(service, &instance).await?.ok()?;
        cluster.eventually_listed(service, &["10.15.0.99:80"]).await;
    }
    https[1].deregister(&over_http, &instance).await?.ok()?;
    cluster.eventually_listed(&over_http, &NOBODY).await;
    assert_eq!(https[0].light_beat(&over_http, &instance).await?.code, 20404);
    assert_eq!(https[0].full_beat(&over_http, &instance).await?.code, 10200);
    cluster
        .eventually_list(&over_http, SOON, |list| list.expect_only(&instance))
        .await;

    https[1].deregister(&over_grpc, &instance).await?.ok()?;
    for http in &https {
        always("the connection's row stays", SECOND / 2, || async {
            http.list(&over_grpc).await?.expect_only(&instance)
        })
        .await;
    }
    Ok(())
}

/// The counts that a node shows to operators.
async fn counts(http: &Http) -> Result<BTreeMap<String, u64>> {
    let path = "/nacos/v1/ns/operator/metrics";
    let body = http
        .query(Method::GET, path, &params(&[("onlyStatus", "false")]))
        .await?
        .json()?;
    let body = body.as_object().context("no counts")?;
    let names = body.keys().filter(|name| name.ends_with("Count"));
    Ok(names
        .filter_map(|name| Some((name.clone(), body[name].as_u64()?)))
        .collect())
}

/// KF-093: registrations, batches, updates, beats, subscriptions and disconnects leave counts that are equal among the
/// nodes when quiet, and zero when all is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kf_093_counts_agree_when_quiet_and_are_zero_when_all_is_gone() -> Result<()> {
    let cluster = Cluster::builder(3)
        .flag("--empty-service-life", "1s")
        .start()
        .await;
    let services: Vec<Service> = (0..10).map(|_| Service::unique("counted")).collect();
    let mut random = fastrand::Rng::with_seed(93);
    let mut clients: Vec<Client> = Vec::new();
    for round in 0..400_u16 {
        let service = &services[random.usize(..services.len())];
        let node = cluster.node(random.usize(..3));
        let instance = Instance::at("10.15.0.93", random.u16(1..20)).patient();
        let n = clients.len();
        match random.u8(0..10) {
            0 | 1 => clients.push(node.client().await?),
            2 if n > 3 => drop(clients.swap_remove(random.usize(..n))),
            3 if n > 0 => clients[random.usize(..n)].register(service, &instance).await?,
            4 if n > 0 => {
                let batch: Vec<Instance> = (0..random.u16(0..4))
                    .map(|i| Instance::at("10.15.1.93", round + i))
                    .collect();
                clients[random.usize(..n)].batch(service, &batch).await?;
            }
            5 if n > 0 => {
                let client = &clients[random.usize(..n)];
                client.deregister(service, &instance).await?;
                client.deregister(service, &instance).await?;
            }
            6 if n > 0 => _ = clients[random.usize(..n)].subscribe(service, "").await?,
            7 => node.http().register(service, &instance).await?.ok()?,
            8 => {
                // Known or not, either is an answer.
                node.http().update(service, &instance).await?;
            }
            _ => {
                node.http().deregister(service, &instance).await?.ok()?;
                node.http().deregister(service, &instance).await?.ok()?;
            }
        }
    }
    let https: Vec<Http> = cluster.nodes().iter().map(|node| node.http()).collect();
    cluster.equal(SOON).await;
    eventually("the counts are those of the lists and equal", SOON, || async {
        let mut listed = 0;
        for service in &services {
            listed += https[0].rows(service).await?.len() as u64;
        }
        for http in &https {
            let counts = counts(http).await?;
            ensure!(counts["instanceCount"] == listed, "{listed} rows, {counts:?}");
            let (of_all, first) = (
                counts["serviceCount"],
                counts_of(&https[0], "serviceCount").await?,
            );
            ensure!(of_all == first, "{of_all} and {first} services");
        }
        Ok(())
    })
    .await;

    clients.clear();
    for service in &services {
        for port in 1..20 {
            let instance = Instance::at("10.15.0.93", port);
            https[0].deregister(service, &instance).await?.ok()?;
        }
    }
    for http in &https {
        eventually("all counts are zero", 2 * SOON, || async {
            let counts = counts(http).await?;
            ensure!(counts.values().all(|count| *count == 0), "{counts:?}");
            let state = http.state().await?;
            ensure!(
                (state.connections, state.services, state.instances) == (0, 0, 0),
                "{state:?}"
            );
            Ok(())
        })
        .await;
    }
    Ok(())
}

async fn counts_of(http: &Http, name: &str) -> Result<u64> {
    counts(http).await?.get(name).copied().context("no such count")
}

/// KF-055: who has unsubscribed is shown as a subscriber nowhere.
#[tokio::test]
async fn kf_055_who_has_unsubscribed_is_in_no_list_of_subscribers() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("unsubscribed");
    let client = cluster.node(0).client().await?;
    let shown = async |http: &Http| {
        let path = "/nacos/v1/ns/service/subscribers";
        let more = params(&[("pageNo", "1"), ("pageSize", "10")]);
        let body = http
            .query(Method::GET, path, &joined(&service, more))
            .await?
            .json()?;
        body["count"].as_u64().context("no count")
    };
    client.subscribe(&service, "").await?;
    assert_eq!(shown(&cluster.node(0).http()).await?, 1);
    client.unsubscribe(&service, "").await?;
    for node in cluster.nodes() {
        assert_eq!(shown(&node.http()).await?, 0);
    }
    Ok(())
}

/// KF-095: a service with an instance and one that is not there cannot be deleted; once empty it can, at any node, and
/// is gone from all.
#[tokio::test]
async fn kf_095_only_a_service_that_is_there_and_empty_can_be_deleted() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let namespace = unique("deleting");
    let service = Service::unique("deleted").namespace(&namespace);
    let instance = Instance::at("10.15.0.95", 80);
    let client = cluster.node(0).client().await?;
    client.register(&service, &instance).await?;
    cluster.eventually_listed(&service, &["10.15.0.95:80"]).await;
    let http = cluster.node(1).http();
    let delete = async |path: &str, service: &Service| {
        http.query(Method::DELETE, path, &joined(service, Vec::new()))
            .await
    };
    for path in [SERVICE, "/nacos/v2/ns/service", "/nacos/v3/admin/ns/service"] {
        let full = delete(path, &service).await?;
        ensure!(
            full.status == 400 && full.text.contains(&service.grouped()) && full.text.contains("not empty"),
            "{path}: {full:?}"
        );
        let unknown = Service::unique("unknown").namespace(&namespace);
        let reply = delete(path, &unknown).await?;
        ensure!(
            reply.status == 400 && reply.text.contains(&unknown.name),
            "{path}: {reply:?}"
        );
    }
    http.list(&service).await?.expect_only(&instance)?;

    client.deregister(&service, &instance).await?;
    cluster.eventually_listed(&service, &NOBODY).await;
    delete(SERVICE, &service).await?.ok()?;
    for node in cluster.nodes() {
        eventually("it is listed nowhere", SOON, || async {
            let names = node.http().services(&namespace, "DEFAULT_GROUP", 1, 10).await?;
            ensure!(names.0 == 0, "{names:?}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// The answers of all probes of a node: readiness and liveness of each generation, and the status that clients ask for.
#[derive(Debug)]
struct Probes {
    ready: [bool; 4],
    live: [bool; 4],
    status: (u16, String),
}

impl Probes {
    async fn of(http: &Http) -> Result<Self> {
        let (mut ready, mut live) = ([false; 4], [false; 4]);
        for (at, base) in [
            "/nacos/v1/console/health",
            "/nacos/v2/console/health",
            "/nacos/v3/admin/core/state",
            "/nacos/v3/console/health",
        ]
        .iter()
        .enumerate()
        {
            for (probe, shown) in [("readiness", &mut ready), ("liveness", &mut live)] {
                let path = format!("{base}/{probe}");
                let reply = http.query(Method::GET, &path, &Vec::new()).await?;
                let body: Value = serde_json::from_str(&reply.text).unwrap_or_default();
                // By the status alone, and by the body too where there is a result.
                let code = body.get("code").and_then(Value::as_i64).unwrap_or(0);
                let wanted = match (at, reply.status) {
                    (0, 200) => reply.text == "OK",
                    (0, status) => status == 500 && !reply.text.is_empty(),
                    (_, 200) => code == 0,
                    (_, status) => status == 503 && code == 30000,
                };
                ensure!(wanted, "{path}: {reply:?}");
                shown[at] = reply.status == 200;
            }
        }
        let metrics = http
            .query(Method::GET, "/nacos/v1/ns/operator/metrics", &Vec::new())
            .await?;
        Ok(Probes {
            ready,
            live,
            status: (metrics.status, metrics.text),
        })
    }

    fn is(&self, is_ready: bool) -> Result<()> {
        ensure!(self.ready == [is_ready; 4] && self.live == [true; 4], "{self:?}");
        ensure!(
            (self.status == (200, r#"{"status":"UP"}"#.into())) == is_ready,
            "{self:?}"
        );
        Ok(())
    }
}

/// KF-097: readiness is green only while a node serves full data, through start, run and stop; liveness always.
#[tokio::test]
async fn kf_097_readiness_is_green_only_while_a_node_serves_and_liveness_always() -> Result<()> {
    let cluster = Cluster::builder(2)
        .proxied()
        .flag("--drain-time", "6s")
        .start()
        .await;
    let node = cluster.node(1);
    let http = node.http();
    Probes::of(&http).await?.is(true)?;

    // It starts and cannot load: the other member is there and does not answer.
    node.kill();
    cluster.links().set_around(1, cluster_tests::LinkState::Paused);
    node.start();
    eventually("it answers", SOON, || async { Probes::of(&http).await }).await;
    always("a loading node is alive and not ready", 3 * SECOND, || async {
        Probes::of(&http).await?.is(false)
    })
    .await;
    cluster.links().heal();
    node.ready().await;
    Probes::of(&http).await?.is(true)?;

    // It leaves, and a client that stays keeps it from ending at once.
    let _client = node.client().await?;
    node.terminate();
    eventually("a leaving node is alive and not ready", SOON, || async {
        Probes::of(&http).await?.is(false)
    })
    .await;
    assert_eq!(node.wait_exit(2 * SOON).await.code(), Some(0));
    Ok(())
}

/// KF-094 for what a node holds itself, and for what 3.x operators ask: each subscriber once, in pages.
#[tokio::test]
async fn subscribers_of_a_node_are_listed_in_pages() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("subscribed");
    let clients = try_join_all((0..5).map(|_| cluster.node(0).client())).await?;
    for client in &clients {
        client.subscribe(&service, "").await?;
    }
    let http = cluster.node(0).http();
    for (page, n_shown) in [("1", 2), ("2", 2), ("3", 1), ("4", 0)] {
        let more = params(&[("pageNo", page), ("pageSize", "2")]);
        let path = "/nacos/v1/ns/service/subscribers";
        let body = http
            .query(Method::GET, path, &joined(&service, more))
            .await?
            .json()?;
        assert_eq!(
            (&body["count"], body["subscribers"].as_array().map(Vec::len)),
            (&5.into(), Some(n_shown)),
            "page {page}"
        );
    }
    Ok(())
}
