//! More than a node can do: it says so early, keeps the clients that it has, and its memory stays bounded, whoever does
//! not read.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::connection::{Payload, payload};
use cluster_tests::{
    Acks, Answer, Client, ClientOptions, Cluster, Connection, Instance, List, Node, Service, eventually,
};
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::time::{Instant as Clock, interval};

const SECOND: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

/// A list of so many instances, all of which say which change it is.
fn state(n_instances: u16, change: u32) -> Vec<Instance> {
    let instances = (1..=n_instances).map(|port| Instance::at("10.18.1.1", port));
    let padding = "a text that makes the list long ".repeat(8);
    instances
        .map(|i| i.meta("change", &change.to_string()).meta("padding", &padding))
        .collect()
}

fn is_state(list: &List, n_instances: u16, change: u32) -> Result<()> {
    let wanted = change.to_string();
    let is_last = |host: &Instance| host.metadata.get("change") == Some(&wanted);
    ensure!(
        list.hosts.len() == usize::from(n_instances) && list.hosts.iter().all(is_last),
        "{} hosts, the first is {:?}",
        list.hosts.len(),
        list.hosts.first()
    );
    Ok(())
}

/// Clients that show that they live once a second, as SDKs do, for as long as `work` takes; every answer must be a yes.
async fn while_they_live<T>(clients: &[Client], work: impl Future<Output = Result<T>>) -> Result<T> {
    let live = async {
        let mut pace = interval(SECOND);
        loop {
            pace.tick().await;
            let checks = clients
                .iter()
                .map(async |c| c.send("HealthCheckRequest", &json!({})).await);
            for answer in try_join_all(checks).await.context("a health check")? {
                answer.accepted().context("a health check")?;
            }
        }
    };
    tokio::select! {
        ended = live => ended,
        done = work => done,
    }
}

/// How much of what is pushed waits in a node at the most.
#[derive(Debug, Default)]
struct Waiting {
    unacked: f64,
    queued: f64,
    queued_for_one: f64,
    unread: f64,
}

impl Waiting {
    async fn look(&mut self, node: &Node) -> Result<()> {
        let http = node.http();
        for (most, name) in [
            (&mut self.unacked, "rollcall_pushes_unacked"),
            (&mut self.queued, "rollcall_messages_waiting"),
            (&mut self.queued_for_one, "rollcall_messages_waiting_most"),
            (&mut self.unread, "rollcall_messages_unread_bytes"),
        ] {
            *most = most.max(http.metric(name).await?);
        }
        Ok(())
    }
}

/// Subscribers of one long list that changes all the time: so many who read, so many who read and acknowledge nothing,
/// and so many who do not even read. Who reads gets lists all along and the last one in the end. Of the others each costs
/// what was pushed to it and is not acknowledged, which is one list, and one more each time that `push_timeout` is over.
async fn pushes_to_those_who_do_not_read_are_bounded(
    [n_reading, n_silent, n_shut]: [usize; 3],
    n_instances: u16,
    n_changes: u32,
) -> Result<()> {
    /// Time between two changes.
    const PAUSE: Duration = Duration::from_millis(50);
    /// Default of `push_timeout`.
    const AGAIN: Duration = Duration::from_secs(5);
    /// What allocators keep, and the lists that are being made.
    const SPARE: u64 = 24 * MIB;
    let cluster = Cluster::start(1).await;
    let (node, service) = (cluster.node(0), Service::unique("storm"));
    let provider = node.client().await?;
    provider.batch(&service, &state(n_instances, 0)).await?;
    let list_bytes = node.http().list_reply(&service, &[]).await?.text.len() as u64;
    let come = async |n: usize, options: ClientOptions| {
        let mut clients = Vec::new();
        while clients.len() < n {
            let some = (clients.len()..n).take(100);
            let some = try_join_all(some.map(|_| node.client_with(options.clone()))).await?;
            try_join_all(some.iter().map(|client| client.subscribe(&service, ""))).await?;
            clients.extend(some);
        }
        anyhow::Ok(clients)
    };
    let reading = come(n_reading, ClientOptions::default()).await?;
    let silent = come(n_silent, ClientOptions::default().acks(Acks::None)).await?;
    let shut = come(n_shut, ClientOptions::default().unreading()).await?;
    let before = node.resident_memory()?;

    let others: Vec<Client> = silent.into_iter().chain(shut).collect();
    let mut waiting = Waiting::default();
    let began = Clock::now();
    while_they_live(&others, async {
        let mut pace = interval(PAUSE);
        for change in 1..=n_changes {
            pace.tick().await;
            provider.batch(&service, &state(n_instances, change)).await?;
            for client in &reading {
                client.take_pushes().await; // Not the memory of this process is measured here, but it has its end.
            }
            if change % 10 == 0 {
                waiting.look(node).await?;
            }
        }
        provider
            .batch(&service, &state(n_instances, n_changes + 1))
            .await?;
        for client in &reading {
            let is_last = |list: &List| is_state(list, n_instances, n_changes + 1);
            client.pushed(&service, SOON, is_last).await?;
        }
        waiting.look(node).await
    })
    .await?;

    let peak = node.peak_memory()?;
    let n_times = 1 + began.elapsed().as_secs() / AGAIN.as_secs();
    println!(
        "list of {} KiB, {n_changes} changes in {:?}, {n_reading} reading, {n_silent} silent, {n_shut} shut: {} MiB before, \
         {} MiB at most; {waiting:?}",
        list_bytes >> 10,
        began.elapsed(),
        before / MIB,
        peak / MIB,
    );
    let n_subscribers = (n_reading + others.len()) as f64;
    ensure!(waiting.unacked <= n_subscribers, "{waiting:?}");
    ensure!(waiting.queued_for_one <= n_times as f64, "{n_times}: {waiting:?}");
    ensure!(
        waiting.queued <= n_times as f64 * n_subscribers,
        "{n_times}: {waiting:?}"
    );
    let allowed = before + SPARE + (n_reading + n_shut) as u64 * 2 * list_bytes + n_times * list_bytes;
    ensure!(peak < allowed, "{peak} bytes resident, {allowed} are allowed");
    ensure!(
        others.iter().all(|client| !client.is_closed()),
        "somebody was cut off who would have been given time"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_storm_to_dozens_who_do_not_read_is_bounded() -> Result<()> {
    pushes_to_those_who_do_not_read_are_bounded([10, 40, 40], 300, 160).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_push_storm_to_hundreds_who_do_not_read_is_bounded() -> Result<()> {
    pushes_to_those_who_do_not_read_are_bounded([20, 200, 400], 400, 250).await
}

// === refusal ===

/// Questions for a long list, which the node writes anew for each, as it is told to keep no answers.
struct Burden {
    clients: Vec<Client>,
    question: Payload,
}

impl Burden {
    /// So many clients, of a list of so many instances.
    async fn of(node: &Node, provider: &Client, n_clients: usize, n_instances: u16) -> Result<Self> {
        let service = Service::unique("burden");
        provider.batch(&service, &state(n_instances, 0)).await?;
        let clients = try_join_all((0..n_clients).map(|_| node.client())).await?;
        let question = payload("ServiceQueryRequest", &service.to_json());
        Ok(Burden { clients, question })
    }

    /// Asks all the time, one question at a time by each client, for as long as `work` takes. No answer is read: it is the
    /// node that shall be busy, not this process.
    async fn while_it_weighs<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let weigh = async |client: &Client| -> Result<()> {
            loop {
                client.connection().call_unread(self.question.clone()).await?;
            }
        };
        tokio::select! {
            ended = try_join_all(self.clients.iter().map(weigh)) => bail!("the burden fell: {ended:?}"),
            done = work => done,
        }
    }
}

/// The code by which clients try another server.
const NO_SERVER: i64 = 300;

/// A node whose one thread is given more than it can do turns newcomers away, over HTTP and gRPC, with what makes them
/// try another node, then the work of those it has; it answers their health checks and keeps them. When the burden is
/// gone it serves everybody again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_follow_says_so_early_and_keeps_its_clients() -> Result<()> {
    let cluster = Cluster::builder(1)
        .flag("--worker-threads", "1")
        .flag("--busy-after", "50ms")
        .flag("--answer-budget", "0")
        .start()
        .await;
    let (node, service) = (cluster.node(0), Service::unique("kept"));
    let http = node.http();
    let kept = try_join_all((0..20).map(|_| node.client())).await?;
    for (port, client) in (1..).zip(&kept) {
        client
            .register(&service, &Instance::at("10.18.1.2", port))
            .await?;
    }
    let burden = Burden::of(node, &kept[0], 300, 2_000).await?;
    let refused = |answer: Answer| answer.refused(NO_SERVER).map(drop);
    burden
        .while_it_weighs(while_they_live(&kept, async {
            eventually("a newcomer is turned away over gRPC", 2 * SOON, || async {
                let connection = Connection::open(node.grpc_address()).await?;
                refused(connection.send("ServerCheckRequest", &json!({})).await?)
            })
            .await;
            eventually("a question is turned away over HTTP", 2 * SOON, || async {
                let reply = http.list_reply(&service, &[]).await?.with_status(503)?;
                ensure!(reply.retry_after.as_deref() == Some("1"), "{reply:?}");
                Ok(())
            })
            .await;
            eventually("a registration is turned away over gRPC", 2 * SOON, || async {
                let instance = Instance::at("10.18.1.2", 1).to_json();
                refused(
                    kept[0]
                        .instance_request("registerInstance", &service, instance)
                        .await?,
                )
            })
            .await;
            // Removals never are: who goes must not stay listed.
            kept[19]
                .deregister(&service, &Instance::at("10.18.1.2", 20))
                .await
        }))
        .await?;
    ensure!(kept.iter().all(|client| !client.is_closed()), "a client was lost");

    drop(burden);
    let client = eventually("newcomers are served again", SOON, || node.client()).await;
    client.register(&service, &Instance::at("10.18.1.2", 80)).await?;
    let addresses: Vec<String> = (1..20)
        .chain([80])
        .map(|port| format!("10.18.1.2:{port}"))
        .collect();
    http.list(&service).await?.expect(&addresses)?;
    ensure!(http.metric("rollcall_busy_refused_total").await? >= 3.0);
    Ok(())
}

// === answers that nobody reads ===

/// A client asks for a long list as often as one connection may, and never reads: the windows of its streams are shut.
/// The node holds no more than these answers for it and serves others as before; `until_cut`: it closes the connection
/// when nothing has been read for long.
async fn a_client_that_never_reads_costs_its_answers_only(until_cut: bool) -> Result<()> {
    /// Calls in progress on one connection that a node allows.
    const N_CALLS: u64 = 256;
    /// `UNREAD_LIMIT` of the node, which may pass twice, and a second for the close.
    const CUT_WITHIN: Duration = Duration::from_secs(75);
    /// What the node holds besides: lists in the two forms of the interfaces, and what allocators keep.
    const SPARE: u64 = 24 * MIB;
    let cluster = Cluster::start(1).await;
    let (node, service) = (cluster.node(0), Service::unique("unread"));
    let (provider, http) = (node.client().await?, node.http());
    provider.batch(&service, &state(600, 0)).await?;
    let list_bytes = http.list_reply(&service, &[]).await?.text.len() as u64;
    let client = node.client_with(ClientOptions::default().unreading()).await?;
    let before = node.resident_memory()?;
    let question = payload("ServiceQueryRequest", &service.to_json());
    // One place is for the stream, one for health checks.
    let answers = (2..N_CALLS).map(|_| client.connection().call_unread(question.clone()));
    let answers = try_join_all(answers).await?;
    let mut slowest = Duration::ZERO;
    for change in 1..=50 {
        let asked = Clock::now();
        provider.batch(&service, &state(600, change)).await?;
        is_state(&http.list(&service).await?, 600, change)?;
        is_state(&provider.query(&service).await?, 600, change)?;
        slowest = slowest.max(asked.elapsed());
    }
    let peak = node.peak_memory()?;
    println!(
        "{} answers of {} KiB unread: {} MiB before, {} MiB at most; slowest change and two questions {slowest:?}",
        answers.len(),
        list_bytes >> 10,
        before / MIB,
        peak / MIB,
    );
    let allowed = before + SPARE + N_CALLS * list_bytes;
    ensure!(peak < allowed, "{peak} bytes resident, {allowed} are allowed");
    ensure!(slowest < 5 * SECOND, "{slowest:?}");
    if until_cut {
        // It shows all the while that it lives.
        let cut = eventually("the connection is closed", CUT_WITHIN, || async {
            let _ = client.send("HealthCheckRequest", &json!({})).await;
            ensure!(client.connection().is_closed());
            Ok(())
        });
        cut.await;
        is_state(&http.list(&service).await?, 600, 50)?;
    }
    drop(answers);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_hinders_nobody() -> Result<()> {
    a_client_that_never_reads_costs_its_answers_only(false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by scripts/test.sh --soak"]
async fn a_client_that_never_reads_is_cut_off() -> Result<()> {
    a_client_that_never_reads_costs_its_answers_only(true).await
}
