//! Member lists that change while the nodes run: by edited files, and by an address server.

use std::fs;
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::{
    AddressServer, BeatingInstance, Cluster, Instance, SdkClient, Service, Watch, eventually,
};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Time in which nodes take a changed list and agree.
const AGREED: Duration = Duration::from_secs(25);

/// Instances of both kinds at all of these nodes, which must never be missing.
struct Providers {
    sdk: Vec<SdkClient>,
    _beating: Vec<BeatingInstance>,
    live: Vec<(Service, Vec<String>)>,
}

impl Providers {
    async fn start(cluster: &Cluster, nodes: &[usize]) -> Result<Self> {
        let servers: Vec<_> = nodes.iter().map(|i| cluster.node(*i).grpc_address()).collect();
        let https: Vec<_> = nodes.iter().map(|i| cluster.node(*i).http()).collect();
        let mut live = Vec::new();
        let mut sdk = Vec::new();
        let mut beating = Vec::new();
        for (n, _) in nodes.iter().enumerate() {
            let service = Service::unique("held");
            let client = SdkClient::start(servers.clone(), n).await;
            client.register(&service, &Instance::at("10.13.0.1", 80)).await?;
            sdk.push(client);
            live.push((service, vec!["10.13.0.1:80".to_owned()]));
            let service = Service::unique("beaten");
            let instance = Instance::at("10.13.0.2", 80);
            let interval = Duration::from_secs(2);
            beating.push(BeatingInstance::start(https.clone(), service.clone(), instance, interval).await?);
            live.push((service, vec!["10.13.0.2:80".to_owned()]));
        }
        for (service, addresses) in &live {
            cluster.eventually_listed(service, addresses).await;
        }
        Ok(Providers {
            sdk,
            _beating: beating,
            live,
        })
    }
}

/// Each node sees at most one instance, and never none: what is live is never missing and never unhealthy.
fn unbroken(watch: &Watch) -> Result<()> {
    let seen = watch.seen();
    ensure!(seen.answers > 0 && seen.gaps.is_empty(), "{:?}", seen.gaps);
    Ok(())
}

/// KF-075: each node takes its changed file while it runs.
#[tokio::test]
async fn a_fourth_node_joins_by_edited_files_and_nothing_flaps() -> Result<()> {
    let mut settings = Cluster::builder(4).member_file().hold_back(3);
    for node in 0..3 {
        settings = settings.members_of(node, &[0, 1, 2]);
    }
    let cluster = settings.start().await;
    let providers = Providers::start(&cluster, &[0, 1, 2]).await?;
    let https = (0..3).map(|i| cluster.node(i).http()).collect();
    let watch = Watch::start(https, providers.live.clone());
    // It starts before anybody lists it, and does not serve what it has not got.
    cluster.node(3).start();
    let whole = cluster.member_text(&[0, 1, 2, 3]);
    // In two halves.
    let half = cluster.member_text(&[0, 1]);
    let mut file = fs::File::create(cluster.member_file(0))?;
    file.write_all(half.as_bytes())?;
    file.sync_all()?;
    tokio::time::sleep(Duration::from_secs(2)).await; // The time between the halves.
    file.write_all(&whole.as_bytes()[half.len()..])?;
    // By renaming, with what an editor of another system leaves.
    let other = cluster.member_file(1).with_extension("new");
    fs::write(
        &other,
        format!("\u{feff}# four\r\n\r\n{}", whole.replace('\n', "\r\n")),
    )?;
    fs::rename(&other, cluster.member_file(1))?;
    // By appending, without the port.
    let mut file = fs::OpenOptions::new().append(true).open(cluster.member_file(2))?;
    let host = cluster.node(3).address();
    writeln!(file, "{} # new", host.split(':').next().unwrap_or_default())?;
    cluster.agree_on(&[0, 1, 2, 3], AGREED).await;
    cluster.equal(Duration::from_secs(10)).await;
    for (service, addresses) in &providers.live {
        cluster.node(3).http().list(service).await?.expect(addresses)?;
    }
    unbroken(&watch)?;
    for i in 0..4 {
        ensure!(
            cluster
                .node(i)
                .http()
                .metric("rollcall_member_lists_differ")
                .await?
                == 0.0
        );
    }
    Ok(())
}

/// KF-075, the other way.
#[tokio::test]
async fn a_node_that_all_files_drop_sends_its_clients_on_and_may_come_back() -> Result<()> {
    let cluster = Cluster::builder(3).member_file().start().await;
    let providers = Providers::start(&cluster, &[0, 1, 2]).await?;
    let watch = Watch::start(
        vec![cluster.node(0).http(), cluster.node(1).http()],
        providers.live.clone(),
    );
    let (left, http) = (cluster.node(2).grpc_address(), cluster.node(2).http());
    fs::write(cluster.member_file(0), cluster.member_text(&[0, 1]))?;
    // As long as one file lists it, it takes part.
    eventually("the first node has the new list", AGREED, || async {
        ensure!(cluster.node(0).http().state().await?.members.len() == 2);
        Ok(())
    })
    .await;
    ensure!(http.is_ready().await?);
    fs::write(cluster.member_file(1), cluster.member_text(&[0, 1]))?;
    cluster.agree_on(&[0, 1], AGREED).await;
    eventually("the third node knows that it is out", AGREED, || async {
        let own = http
            .state()
            .await?
            .members
            .into_iter()
            .find(|m| m.address == cluster.node(2).address());
        ensure!(own.as_ref().is_some_and(|m| m.state == "ISOLATION"), "{own:?}");
        ensure!(!http.is_ready().await?);
        Ok(())
    })
    .await;
    for client in &providers.sdk {
        eventually("the client is at another node", AGREED, || async {
            ensure!(client.server().is_some_and(|server| server != left));
            Ok(())
        })
        .await;
    }
    eventually(
        "the others say that somebody asks who is no member",
        AGREED,
        || async {
            ensure!(cluster.node(0).http().metric("rollcall_strangers").await? == 1.0);
            Ok(())
        },
    )
    .await;
    // It reads and does not write.
    let (service, addresses) = &providers.live[0];
    http.list(service).await?.expect(addresses)?;
    let refused = http
        .register(&Service::unique("refused"), &Instance::at("10.13.0.3", 80))
        .await?;
    refused.refused(503, "ISOLATION")?;
    fs::write(cluster.member_file(0), cluster.member_text(&[0, 1, 2]))?;
    fs::write(cluster.member_file(1), cluster.member_text(&[0, 1, 2]))?;
    cluster.agree_on(&[0, 1, 2], AGREED).await;
    cluster.equal(Duration::from_secs(10)).await;
    unbroken(&watch)
}

/// Two members that the others drop together know each other, and would be a cluster of their own with a part of the
/// instances.
#[tokio::test]
async fn members_that_are_dropped_together_do_not_go_on_by_themselves() -> Result<()> {
    let cluster = Cluster::builder(5).member_file().start().await;
    let providers = Providers::start(&cluster, &[0, 3, 4]).await?;
    let watch = Watch::start(vec![cluster.node(0).http()], providers.live.clone());
    for node in 0..3 {
        fs::write(cluster.member_file(node), cluster.member_text(&[0, 1, 2]))?;
    }
    cluster.agree_on(&[0, 1, 2], AGREED).await;
    for node in [3, 4] {
        let http = cluster.node(node).http();
        eventually("a node that is dropped knows it", AGREED, || async {
            ensure!(!http.is_ready().await?);
            Ok(())
        })
        .await;
        let refused = http
            .register(&Service::unique("refused"), &Instance::at("10.13.0.3", 80))
            .await?;
        refused.refused(503, "ISOLATION")?;
    }
    let kept: Vec<_> = (0..3).map(|node| cluster.node(node).grpc_address()).collect();
    for client in &providers.sdk {
        eventually("the client is at a node that is left", AGREED, || async {
            ensure!(client.server().is_some_and(|server| kept.contains(&server)));
            Ok(())
        })
        .await;
    }
    unbroken(&watch)
}

/// KF-081: a member that is down is dialed until it is taken out of the list, and then no more.
#[tokio::test]
async fn a_member_that_is_down_is_left_alone_once_it_is_out() -> Result<()> {
    let cluster = Cluster::builder(3).member_file().start().await;
    let (down, http) = (cluster.node(2), cluster.node(0).http());
    down.kill();
    // Somebody who hangs up stands in for it, to hear of each attempt.
    let stand_in = TcpListener::bind(down.peer_address()).await?;
    let attempt = async |within| timeout(within, stand_in.accept()).await.is_ok();
    let write = async |n_writes: u16| {
        for port in 1..=n_writes {
            let instance = Instance::at("10.13.0.4", port).patient();
            http.register(&Service::unique("steady"), &instance).await?.ok()?;
        }
        anyhow::Ok(())
    };
    write(100).await?;
    ensure!(attempt(AGREED).await, "a member in the list is not dialed");
    for node in [0, 1] {
        fs::write(cluster.member_file(node), cluster.member_text(&[0, 1]))?;
    }
    cluster.agree_on(&[0, 1], AGREED).await;
    // Those that were under way.
    eventually("attempts end", AGREED, || async {
        ensure!(!attempt(Duration::from_secs(1)).await, "one more");
        Ok(())
    })
    .await;
    write(100).await?;
    ensure!(
        !attempt(Duration::from_secs(5)).await,
        "a member that is out is still dialed"
    );
    cluster.equal(Duration::from_secs(10)).await;
    Ok(())
}

#[tokio::test]
async fn a_file_that_will_not_do_changes_nothing_and_is_named_with_its_line() -> Result<()> {
    let cluster = Cluster::builder(2).member_file().start().await;
    let http = cluster.node(0).http();
    let good = fs::read_to_string(cluster.member_file(0))?;
    let others = cluster.member_text(&[1]);
    for (text, said) in [
        (
            format!("{good}nonsense:port\n"),
            "line 5: \"nonsense:port\" is no address",
        ),
        (others, "is not in the member list"),
        (String::new(), "lists no member"),
    ] {
        fs::write(cluster.member_file(0), text)?;
        eventually("the log says what is wrong", AGREED, || async {
            ensure!(cluster.node(0).log().contains(said), "{said:?} is not logged");
            Ok(())
        })
        .await;
        ensure!(http.metric("rollcall_member_list_stale").await? == 1.0);
        ensure!(http.state().await?.members.len() == 2 && http.is_ready().await?);
    }
    fs::remove_file(cluster.member_file(0))?;
    eventually("the file is missed", AGREED, || async {
        ensure!(cluster.node(0).log().contains("cannot read the file"));
        Ok(())
    })
    .await;
    fs::write(cluster.member_file(0), good)?;
    eventually("the file is good again", AGREED, || async {
        ensure!(http.metric("rollcall_member_list_stale").await? == 0.0);
        Ok(())
    })
    .await;
    ensure!(http.metric("rollcall_member_list_changes_total").await? == 0.0);
    Ok(())
}

#[tokio::test]
async fn an_address_server_drives_a_cluster() -> Result<()> {
    let server = AddressServer::start().await?;
    let cluster = Cluster::builder(3)
        .address_server(&server)
        .flag("--address-server-interval", "500ms")
        .hold_back(2)
        .start()
        .await;
    cluster.agree_on(&[0, 1], AGREED).await;
    server.tell(&cluster.member_text(&[0, 1, 2]));
    cluster.node(2).start();
    cluster.agree_on(&[0, 1, 2], AGREED).await;
    let stale = |is_stale: f64| {
        let cluster = &cluster;
        async move {
            for node in cluster.nodes() {
                let http = node.http();
                eventually("all nodes see the state of the server", AGREED, || async {
                    ensure!(http.metric("rollcall_member_list_stale").await? == is_stale);
                    Ok(())
                })
                .await;
            }
        }
    };
    for answer in ["10.13.0.9:8848\n", "<html>not found</html>", ""] {
        server.tell(answer);
        stale(1.0).await;
        cluster.agree_on(&[0, 1, 2], AGREED).await;
        server.tell(&cluster.member_text(&[0, 1, 2]));
        stale(0.0).await;
    }
    server.fail();
    stale(1.0).await;
    cluster.agree_on(&[0, 1, 2], AGREED).await;
    let log = cluster.node(0).log();
    ensure!(
        log.matches("500 Internal Server Error").count() == 1,
        "a lasting failure is logged once"
    );
    server.tell(&cluster.member_text(&[0, 1]));
    cluster.agree_on(&[0, 1], AGREED).await;
    Ok(())
}
