//! The load: providers of one instance each, over gRPC and over HTTP, that behave as official clients do when a node
//! goes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster_tests::{Client, Cluster, Http, Instance, Node, Push, Service};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::N_NODES;
use crate::ledger::{Ledger, Protocol, RowId};
use crate::tally::{Fault, Tally};

/// Wait of a client for one answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Silence after which a gRPC client asks whether its node lives.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How often it asks before it takes another node.
const HEALTH_CHECKS: usize = 3;
/// Clients register again when a timer of this period comes round, which it does at any time after the connection.
const REDO: Duration = Duration::from_secs(3);
/// Wait of a client for a connection: for the first answer, and for that to the setup.
const CONNECTION: Duration = Duration::from_secs(6);
/// Pause after all nodes were tried in vain, longer by so much each time.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// For so long a provider may find no node that takes it; the timer's period is added.
const TRIES: Duration = Duration::from_secs(10);
/// Time between two beats.
const BEAT: Duration = Duration::from_secs(5);

/// What all providers share.
#[derive(Debug)]
pub(crate) struct World {
    /// The gRPC ports of the nodes.
    pub(crate) grpc: Vec<SocketAddr>,
    /// The main ports of the nodes, as `host:port` by which nodes name each other.
    pub(crate) names: Vec<String>,
    /// HTTP clients of the nodes.
    pub(crate) http: Vec<Http>,
    /// What must be listed.
    pub(crate) ledger: Ledger,
    /// What was found.
    pub(crate) tally: Tally,
    /// Providers that wish to be registered and are not.
    pub(crate) unregistered: AtomicUsize,
}

impl World {
    /// The world of a cluster, with nobody in it yet.
    pub(crate) fn of(cluster: &Cluster, ledger: Ledger, tally: Tally) -> Self {
        World {
            grpc: cluster.nodes().iter().map(Node::grpc_address).collect(),
            names: cluster.nodes().iter().map(Node::address).collect(),
            http: cluster.nodes().iter().map(Node::http).collect(),
            ledger,
            tally,
            unregistered: AtomicUsize::new(0),
        }
    }
}

/// What a provider is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Be registered.
    Live,
    /// Deregister and go.
    Deregister,
    /// Go without a word: the connection is closed, beats end.
    Vanish,
}

/// A provider of one instance; gone without a word when dropped.
#[derive(Debug)]
pub(crate) struct Provider {
    wish: watch::Sender<Wish>,
    task: JoinHandle<()>,
}

impl Provider {
    /// Starts one that tries the nodes in turn from `first` on. A short life is for runs in a hurry: 12 s
    /// without a beat, and the instance goes.
    pub(crate) fn start(
        world: &Arc<World>,
        row: RowId,
        protocol: Protocol,
        first: usize,
        is_short_lived: bool,
    ) -> Self {
        let (wish, wishes) = watch::channel(Wish::Live);
        let mut instance = row.instance();
        let mut beat = BEAT;
        if is_short_lived && protocol == Protocol::Http {
            // One beat may meet a node that hangs, and be late by that.
            instance = instance.beat_times(2_000, 9_000, 12_000);
            beat = Duration::from_secs(2);
        }
        let actor = Actor {
            service: world.ledger.service_of(row).clone(),
            world: Arc::clone(world),
            row,
            instance,
            beat,
            outage: None,
            at: first,
        };
        let task = match protocol {
            Protocol::Grpc => tokio::spawn(actor.run_grpc(wishes)),
            Protocol::Http => tokio::spawn(actor.run_http(wishes)),
        };
        Provider { wish, task }
    }

    /// Tells it what to do.
    pub(crate) fn tell(&self, wish: Wish) {
        self.wish.send_replace(wish);
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Actor {
    world: Arc<World>,
    service: Service,
    row: RowId,
    instance: Instance,
    beat: Duration,
    /// Since when it wishes to be registered and is not, and whether that was told as a fault.
    outage: Option<(Instant, bool)>,
    /// The node that it tries or uses.
    at: usize,
}

/// Why a gRPC session ended.
enum End {
    /// The node asked the client to go, to this node if it said which.
    Moved(Option<usize>),
    /// The connection is lost.
    Lost,
}

impl Actor {
    fn n_nodes(&self) -> usize {
        self.world.grpc.len()
    }

    fn next_node(&mut self) {
        self.at = (self.at + 1) % self.n_nodes();
    }

    /// The node that was tried takes nobody: turns to the next one, after a pause when all were tried.
    async fn pass_on(&mut self, n_tried: &mut u32, error: &anyhow::Error) {
        self.refused(error);
        self.next_node();
        *n_tried += 1;
        let n_nodes = u32::from(N_NODES);
        if n_tried.is_multiple_of(n_nodes) {
            sleep(ROUND_PAUSE * (*n_tried / n_nodes)).await;
        }
    }

    // === What is told ===

    fn unregistered(&mut self) {
        if self.outage.is_none() {
            self.outage = Some((Instant::now(), false));
            self.world.unregistered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn registered(&mut self) {
        self.world.ledger.seen(self.row, self.at);
        if self.outage.take().is_some() {
            self.world.tally.registration();
            self.world.unregistered.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn refused(&mut self, error: &anyhow::Error) {
        let Some((since, is_told)) = &mut self.outage else {
            return;
        };
        if since.elapsed() > TRIES + REDO && !*is_told {
            *is_told = true;
            self.world.tally.fault(Fault::FailedRegistration, || {
                format!(
                    "{} of {} for {:?}, last at node {}: {error:#}",
                    self.instance.address(),
                    self.service.name,
                    since.elapsed(),
                    self.at
                )
            });
        }
    }

    fn gone(&mut self) {
        self.world.ledger.left(self.row);
        if self.outage.take().is_some() {
            self.world.unregistered.fetch_sub(1, Ordering::Relaxed);
        }
    }

    // === gRPC ===

    async fn run_grpc(mut self, mut wishes: watch::Receiver<Wish>) {
        loop {
            if wishes.wait_for(|wish| *wish == Wish::Live).await.is_err() {
                return;
            }
            self.unregistered();
            let mut client = None;
            let wish = {
                let leaves = wishes.wait_for(|wish| *wish != Wish::Live);
                tokio::select! {
                    wish = leaves => wish.map(|wish| *wish),
                    () = self.stay_connected(&mut client) => return,
                }
            };
            let Ok(wish) = wish else { return };
            self.gone();
            if wish == Wish::Deregister
                && let Some(client) = &client
            {
                // A node that hangs does not answer; then the end of the connection has to do.
                let _ = timeout(ANSWER, client.deregister(&self.service, &self.instance)).await;
            }
        }
    }

    /// Keeps itself registered for ever; `held` has the connection meanwhile.
    async fn stay_connected(&mut self, held: &mut Option<Client>) {
        let mut redo = Duration::ZERO;
        loop {
            // The old connection is closed when the new one is there.
            *held = Some(self.connect().await);
            sleep(redo).await;
            redo = REDO.mul_f64(fastrand::f64());
            let Some(client) = held.as_ref() else { return };
            let end = match self.register_and_hold(client).await {
                Ok(end) => end,
                Err(error) => {
                    self.refused(&error);
                    End::Lost
                }
            };
            self.unregistered();
            self.world.ledger.disconnected(self.row);
            match end {
                End::Moved(Some(node)) => self.at = node,
                End::Moved(None) => self.next_node(),
                End::Lost => {
                    *held = None;
                    self.next_node();
                }
            }
        }
    }

    async fn connect(&mut self) -> Client {
        let mut n_tried = 0;
        loop {
            let found = timeout(CONNECTION, Client::connect(self.world.grpc[self.at])).await;
            match found.context("no connection in time").flatten() {
                Ok(client) => return client,
                Err(error) => self.pass_on(&mut n_tried, &error).await,
            }
        }
    }

    async fn register_and_hold(&mut self, client: &Client) -> Result<End> {
        let registering = timeout(ANSWER, client.register(&self.service, &self.instance));
        registering.await.context("no answer in time").flatten()?;
        self.registered();
        loop {
            match client.next_push(KEEP_ALIVE).await {
                Ok(push) if push.kind == "ConnectResetRequest" => return Ok(End::Moved(self.named(&push))),
                Ok(_) => {}
                Err(_) if client.is_closed() => return Ok(End::Lost),
                Err(_) if is_alive(client).await => {}
                Err(_) => return Ok(End::Lost),
            }
        }
    }

    /// The node that a reset names.
    fn named(&self, push: &Push) -> Option<usize> {
        let body = push.json().ok()?;
        let (ip, port) = (&body["serverIp"], &body["serverPort"]);
        let port = port
            .as_str()
            .map(String::from)
            .or_else(|| Some(port.as_u64()?.to_string()))?;
        let name = format!("{}:{port}", ip.as_str()?);
        self.world.names.iter().position(|known| *known == name)
    }

    // === HTTP ===

    async fn run_http(mut self, mut wishes: watch::Receiver<Wish>) {
        loop {
            if wishes.wait_for(|wish| *wish == Wish::Live).await.is_err() {
                return;
            }
            self.unregistered();
            let wish = {
                let leaves = wishes.wait_for(|wish| *wish != Wish::Live);
                tokio::select! {
                    wish = leaves => wish.map(|wish| *wish),
                    () = self.keep_beating() => return,
                }
            };
            let Ok(wish) = wish else { return };
            self.gone();
            for _ in 0..self.n_nodes() {
                if wish == Wish::Vanish {
                    break;
                }
                let http = &self.world.http[self.at];
                let asked = timeout(ANSWER, http.deregister(&self.service, &self.instance)).await;
                if asked
                    .context("no answer in time")
                    .flatten()
                    .and_then(|reply| reply.ok())
                    .is_ok()
                {
                    break;
                }
                self.next_node();
            }
        }
    }

    async fn keep_beating(&mut self) {
        loop {
            self.register_over_http().await;
            // Not all at one moment.
            sleep(self.beat.mul_f64(fastrand::f64())).await;
            while self.beat_once().await {
                sleep(self.beat).await;
            }
            self.unregistered();
        }
    }

    async fn register_over_http(&mut self) {
        let mut n_tried = 0;
        loop {
            let http = &self.world.http[self.at];
            let asked = timeout(ANSWER, http.register(&self.service, &self.instance)).await;
            match asked
                .context("no answer in time")
                .flatten()
                .and_then(|reply| reply.ok())
            {
                Ok(()) => return self.registered(),
                Err(error) => self.pass_on(&mut n_tried, &error).await,
            }
        }
    }

    /// Beats at any node, or at the next one that answers. False: the instance is not known there.
    async fn beat_once(&mut self) -> bool {
        self.at = fastrand::usize(..self.n_nodes());
        for _ in 0..self.n_nodes() {
            let http = &self.world.http[self.at];
            match timeout(ANSWER, http.light_beat(&self.service, &self.instance)).await {
                Ok(Ok(reply)) if reply.code == 20404 => return false,
                Ok(Ok(_)) => {
                    self.world.ledger.seen(self.row, self.at);
                    return true;
                }
                Ok(Err(_)) | Err(_) => self.next_node(),
            }
        }
        true
    }
}

/// Asks whether the node lives: again if there is no answer, but a refusal is taken at its word.
async fn is_alive(client: &Client) -> bool {
    for _ in 0..HEALTH_CHECKS {
        let asked = timeout(ANSWER, client.send("HealthCheckRequest", &json!({}))).await;
        match asked {
            Ok(Ok(answer)) => return answer.accepted().is_ok(),
            Ok(Err(_)) if client.is_closed() => return false,
            Ok(Err(_)) | Err(_) => {}
        }
    }
    false
}

/// Waits until every provider that wishes to be registered is.
///
/// # Errors
/// Some are not within the time.
pub(crate) async fn all_registered(world: &World, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    loop {
        let left = world.unregistered.load(Ordering::Relaxed);
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{left} providers are not registered after {within:?}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}
