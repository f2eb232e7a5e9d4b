//! What 1.x clients are pushed over UDP, by processes.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::udp::{JAVA, UdpReceiver};
use cluster_tests::{Cluster, Instance, Service, SharedCluster, eventually};
use serde_json::Value;
use tokio::time::Instant as Clock;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NONE: &[&str] = &[];

/// Long enough for a push that would come.
const QUIET: Duration = Duration::from_millis(700);

/// Fails if anything comes.
async fn is_left_alone(receiver: &UdpReceiver) -> Result<()> {
    let datagram = receiver.next(QUIET).await;
    ensure!(datagram.is_err(), "pushed {:?}", datagram.map(|d| d.list));
    Ok(())
}

#[tokio::test]
async fn a_poll_is_followed_by_one_push_and_every_change_on_any_node_by_another() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("udp");
    let receiver = UdpReceiver::open().await?;
    receiver.poll(cluster.node(0), &service, "").await?.expect(NONE)?;
    let first = receiver.pushed(&service, NONE, SOON).await?;
    ensure!(first.json["type"] == "dom" && first.cache_key()? == service.grouped());
    ensure!(first.list.get("groupName").is_none() && first.list["reachProtectionThreshold"] == false);
    receiver.poll(cluster.node(0), &service, "").await?;
    is_left_alone(&receiver).await?;

    let mut last_time = first.list["lastRefTime"].as_u64();
    for (node, port) in [(0, 1), (1, 2), (2, 3)] {
        let instance = Instance::at("10.9.0.1", port).patient();
        cluster
            .node(node)
            .http()
            .register(&service, &instance)
            .await?
            .ok()?;
        let all: Vec<String> = (1..=port).map(|p| format!("10.9.0.1:{p}")).collect();
        let pushed = receiver.pushed(&service, &all, SOON).await?;
        let time = pushed.list["lastRefTime"].as_u64();
        ensure!(time > last_time, "{time:?} is not after {last_time:?}");
        ensure!(pushed.is_compressed == (pushed.length >= 1024), "{pushed:?}");
        last_time = time;
    }
    let removed = Instance::at("10.9.0.1", 2);
    cluster
        .node(1)
        .http()
        .deregister(&service, &removed)
        .await?
        .ok()?;
    receiver
        .pushed(&service, &["10.9.0.1:1", "10.9.0.1:3"], SOON)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_grpc_provider_that_dies_leaves_the_list_of_a_udp_subscriber() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("udp-grpc");
    let provider = cluster.node(1).client().await?;
    provider.register(&service, &Instance::at("10.9.0.2", 80)).await?;
    cluster.eventually_listed(&service, &["10.9.0.2:80"]).await;
    let receiver = UdpReceiver::open().await?;
    receiver.poll(cluster.node(2), &service, "").await?;
    receiver.pushed(&service, &["10.9.0.2:80"], SOON).await?;
    drop(provider);
    receiver.pushed(&service, NONE, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn clusters_are_filtered_and_part_of_the_key() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(0);
    let service = Service::unique("udp-clusters");
    for (port, name) in [(1, "c1"), (2, "c2")] {
        let instance = Instance::at("10.9.0.3", port).cluster(name).patient();
        node.http().register(&service, &instance).await?.ok()?;
    }
    let receiver = UdpReceiver::open().await?;
    receiver
        .poll(node, &service, "c1")
        .await?
        .expect(&["10.9.0.3:1"])?;
    let pushed = receiver.pushed(&service, &["10.9.0.3:1"], SOON).await?;
    ensure!(pushed.cache_key()? == format!("{}@@c1", service.grouped()));
    // The same port without a filter: answered at once, so nothing is sent; then all of it.
    receiver
        .poll(node, &service, "")
        .await?
        .expect(&["10.9.0.3:1", "10.9.0.3:2"])?;
    is_left_alone(&receiver).await?;
    let third = Instance::at("10.9.0.3", 3).patient();
    node.http().register(&service, &third).await?.ok()?;
    let all = ["10.9.0.3:1", "10.9.0.3:2", "10.9.0.3:3"];
    let pushed = receiver.pushed(&service, &all, SOON).await?;
    ensure!(pushed.cache_key()? == service.grouped());
    Ok(())
}

#[tokio::test]
async fn the_target_is_what_the_poll_names() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(0);
    let service = Service::unique("udp-ip");
    // Another loopback address, a host name, and none at all: then the address that polls.
    let other = UdpReceiver::open_as(Ipv4Addr::new(127, 0, 0, 9).into(), JAVA).await?;
    other.poll(node, &service, "").await?;
    other.pushed(&service, NONE, SOON).await?;
    for client_ip in ["localhost", ""] {
        let receiver = UdpReceiver::open().await?;
        receiver
            .poll_with(node, &service, "", client_ip)
            .await?
            .with_status(200)?;
        receiver.pushed(&service, NONE, SOON).await?;
    }
    // What cannot be resolved is answered all the same, and nothing else suffers.
    let receiver = UdpReceiver::open().await?;
    receiver
        .poll_with(node, &service, "", "no such host")
        .await?
        .with_status(200)?;
    is_left_alone(&receiver).await
}

#[tokio::test]
async fn v2_takes_ip_and_port_as_the_receiver() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("udp-v2");
    let receiver = UdpReceiver::open().await?;
    let port = receiver.port()?.to_string();
    for (ip_name, port_name, is_pushed) in [("clientIP", "udpPort", false), ("ip", "port", true)] {
        let params = [
            ("serviceName", service.name.as_str()),
            (ip_name, "127.0.0.1"),
            (port_name, &port),
        ];
        let request = http
            .request(reqwest::Method::GET, "/nacos/v2/ns/instance/list")
            .query(&params)
            .header("User-Agent", JAVA);
        http.send(request).await?.with_status(200)?;
        if is_pushed {
            receiver.pushed(&service, NONE, SOON).await?;
        } else {
            is_left_alone(&receiver).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_clients_that_take_pushes_are_pushed_to() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("udp-agents");
    for (agent, is_pushed) in [
        ("Nacos-Go-Client:v1.1.4", true),
        ("Nacos-Java-Client:v1.0.0", true), // What the Node SDK calls itself.
        ("Nacos-Python-Client:v0.1.17", false),
        ("curl/8.5.0", false),
    ] {
        let receiver = UdpReceiver::open_as(Ipv4Addr::LOCALHOST.into(), agent).await?;
        receiver.poll(cluster.node(0), &service, "").await?;
        if is_pushed {
            receiver.pushed(&service, NONE, SOON).await?;
        } else {
            is_left_alone(&receiver).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_acknowledge_gets_the_same_bytes_once_more() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let node = cluster.node(0);
    let service = Service::unique("udp-ack");
    let (silent, good, odd) = (
        UdpReceiver::open().await?,
        UdpReceiver::open().await?,
        UdpReceiver::open().await?,
    );
    for receiver in [&silent, &good, &odd] {
        receiver.poll(node, &service, "").await?;
    }
    let start = Clock::now();
    let first = silent.next(SOON).await?;
    good.pushed(&service, NONE, SOON).await?;
    let pushed = odd.next(SOON).await?;
    odd.send(pushed.from, b"zzz").await?;
    odd.send(pushed.from, pushed.list["lastRefTime"].to_string().as_bytes())
        .await?;
    let number = format!("{{\"lastRefTime\":{}}}zzz", pushed.json["lastRefTime"]);
    odd.send(pushed.from, number.as_bytes()).await?;
    eventually("two are acknowledged", SOON, || async {
        let acked = node.http().metric("rollcall_udp_pushes_acked_total").await?;
        ensure!(acked == 2.0, "{acked}");
        Ok(())
    })
    .await;

    let again = silent.next(2 * SOON).await?;
    ensure!(again.bytes == first.bytes, "{again:?} is not {first:?}");
    let after = start.elapsed();
    ensure!(after > Duration::from_millis(9_500), "repeated after {after:?}");
    silent.ack(&again).await?;
    is_left_alone(&good).await?;
    eventually("the repetition is acknowledged", SOON, || async {
        let (acked, bad) = (
            node.http().metric("rollcall_udp_pushes_acked_total").await?,
            node.http().metric("rollcall_udp_bad_acks_total").await?,
        );
        ensure!(acked == 3.0 && bad == 2.0, "{acked} {bad}");
        Ok(())
    })
    .await;
    Ok(())
}

/// KF-059: a list too large for a datagram does no harm and is had by the next poll.
#[tokio::test]
async fn a_list_that_no_datagram_holds_is_left_to_the_next_poll() -> Result<()> {
    let cluster = Cluster::start(1).await;
    let node = cluster.node(0);
    let service = Service::unique("udp-large");
    let receiver = UdpReceiver::open().await?;
    receiver.poll(node, &service, "").await?;
    receiver.pushed(&service, NONE, SOON).await?;
    // Metadata that do not compress.
    let mut digits = fastrand::Rng::with_seed(1);
    let provider = node.client().await?;
    let instances: Vec<Instance> = (1..=140)
        .map(|port| {
            let text: String = (0..980).map(|_| digits.alphanumeric()).collect();
            Instance::at("10.9.0.4", port).meta("k", &text)
        })
        .collect();
    provider.batch(&service, &instances).await?;
    eventually("the list is counted as too large", SOON, || async {
        let n = node.http().metric("rollcall_udp_too_large_total").await?;
        ensure!(n >= 1.0, "{n}");
        Ok(())
    })
    .await;
    ensure!(receiver.poll(node, &service, "").await?.addresses().len() == 140);
    provider.batch(&service, &instances[..1]).await?;
    let pushed = receiver.pushed(&service, &["10.9.0.4:1"], SOON).await?;
    ensure!(matches!(pushed.list["hosts"], Value::Array(_)));
    Ok(())
}

#[tokio::test]
async fn no_subscription_is_held_where_the_limit_is_zero() -> Result<()> {
    let cluster = Cluster::builder(1).flag("--udp-subscriptions", "0").start().await;
    let receiver = UdpReceiver::open().await?;
    receiver
        .poll(cluster.node(0), &Service::unique("udp-off"), "")
        .await?;
    let refused = cluster
        .node(0)
        .http()
        .metric("rollcall_udp_subscriptions_refused_total")
        .await?;
    ensure!(refused == 1.0, "{refused}");
    is_left_alone(&receiver).await
}

/// KF-112: one subscriber over HTTP and UDP and one over gRPC hold the same within two seconds of each change, of an
/// HTTP and of a gRPC provider.
#[tokio::test]
async fn kf_112_subscribers_of_both_protocols_hold_the_same() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("mixed");
    let (over_udp, over_grpc) = (UdpReceiver::open().await?, cluster.node(1).client().await?);
    over_udp.poll(cluster.node(0), &service, "").await?;
    over_grpc.subscribe(&service, "").await?;
    over_udp.pushed(&service, NONE, SOON).await?;
    let (http, grpc) = (cluster.node(2).http(), cluster.node(0).client().await?);
    let (by_http, by_grpc) = (
        Instance::at("10.9.0.12", 1).meta("by", "http").patient(),
        Instance::at("10.9.0.12", 2).meta("by", "grpc").weight(2.0),
    );
    let two_seconds = Duration::from_secs(2);
    for round in 0..4 {
        let shown: &[&str] = match round {
            0 => {
                http.register(&service, &by_http).await?.ok()?;
                &["10.9.0.12:1"]
            }
            1 => {
                grpc.register(&service, &by_grpc).await?;
                &["10.9.0.12:1", "10.9.0.12:2"]
            }
            2 => {
                http.deregister(&service, &by_http).await?.ok()?;
                &["10.9.0.12:2"]
            }
            _ => {
                grpc.deregister(&service, &by_grpc).await?;
                NONE
            }
        };
        let made = Clock::now();
        let datagram = over_udp.pushed(&service, shown, two_seconds).await?;
        let left = two_seconds.saturating_sub(made.elapsed());
        let pushed = over_grpc.pushed_exactly(&service, shown, left).await?;
        let of_udp = cluster_tests::List::from_json(datagram.list)?;
        assert_eq!(of_udp.hosts, pushed.hosts, "in all that a client sees of them");
    }
    Ok(())
}
