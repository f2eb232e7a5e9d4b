//! What is done to the nodes while the load runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::wait::try_eventually;
use cluster_tests::{Cluster, Http, Node, binary};
use futures_util::future::try_join_all;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checker::exact_everywhere;
use crate::convergence::Convergence;
use crate::ledger::HEALED_WITHIN;
use crate::network::Namespaces;
use crate::providers::{Provider, Wish, World, all_registered};
use crate::tally::{Fault, Measure};

/// Time in which a node that is asked to end must have ended.
const END: Duration = Duration::from_secs(15);
/// Time in which a node that was started, or goes on, must be ready.
const READY: Duration = Duration::from_secs(60);
/// Time in which all providers must be registered after a fault.
const SETTLED: Duration = Duration::from_secs(40);
/// Time in which a dead node must be called so, for its detection to be measured.
const DETECTED: Duration = Duration::from_secs(20);
/// Time after which no instance of a provider that left may be listed: the longest is an instance of a provider that
/// falls silent just before its owner changes, which has its time-out of 30 s twice.
const GONE: Duration = Duration::from_secs(65);
/// Time of a rest without faults in which times are measured.
const REST: Duration = Duration::from_secs(15);

/// The scenarios, by the names that `--scenario` takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scenario {
    /// Nothing is done.
    Quiet,
    /// One node after the other is asked to end and started again.
    Rolling,
    /// One node after the other is killed and, when its instances are registered elsewhere, started again.
    Kill,
    /// A node stands still and goes on.
    Stop,
    /// One node is cut from the two others.
    Partition,
    /// What one node sends to another is lost.
    OneWay,
    /// A node is cut off and back again, and again.
    Flapping,
}

/// All scenarios, in the order in which they run.
pub(crate) const SCENARIOS: [Scenario; 7] = [
    Scenario::Quiet,
    Scenario::Rolling,
    Scenario::Kill,
    Scenario::Stop,
    Scenario::Partition,
    Scenario::OneWay,
    Scenario::Flapping,
];

impl Scenario {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scenario::Quiet => "quiet",
            Scenario::Rolling => "rolling",
            Scenario::Kill => "kill",
            Scenario::Stop => "stop",
            Scenario::Partition => "partition",
            Scenario::OneWay => "one-way",
            Scenario::Flapping => "flapping",
        }
    }

    /// Whether it cuts the network, which takes namespaces.
    pub(crate) fn needs_namespaces(self) -> bool {
        matches!(self, Scenario::Partition | Scenario::OneWay | Scenario::Flapping)
    }
}

/// What scenarios act on.
pub(crate) struct Stage<'a> {
    /// The nodes.
    pub(crate) cluster: &'a Cluster,
    /// The load and what is known of it.
    pub(crate) world: Arc<World>,
    /// Where the nodes are, if they have namespaces.
    pub(crate) namespaces: Option<Namespaces>,
    /// Providers that leave during each scenario and come back after it.
    pub(crate) leavers: Vec<Provider>,
    /// Measures how long changes take.
    pub(crate) convergence: Convergence,
    /// Less of everything.
    pub(crate) is_quick: bool,
}

impl Stage<'_> {
    /// Runs a scenario and what follows each: all providers are registered, the nodes hold the same, nothing that left is
    /// left over.
    ///
    /// # Errors
    /// Something cannot be done, so that the run has to end.
    pub(crate) async fn run(&self, scenario: Scenario) -> Result<()> {
        self.convergence.set_in_fault(scenario != Scenario::Quiet);
        self.send_away(0);
        let second_half = async {
            sleep(Duration::from_secs(2)).await;
            self.send_away(1);
            anyhow::Ok(())
        };
        tokio::try_join!(self.act(scenario), second_half)?;
        self.convergence.set_in_fault(false);
        let ended = Instant::now();
        if let Err(error) = all_registered(&self.world, SETTLED).await {
            self.world
                .tally
                .fault(Fault::FailedRegistration, || format!("{error:#}"));
        }
        let rest = if self.is_quick { REST / 5 } else { REST };
        sleep_until(ended + rest).await;
        exact_everywhere(&self.world, GONE.saturating_sub(ended.elapsed())).await;
        if let Err(error) = self.verify().await {
            self.world.tally.fault(Fault::Unequal, || format!("{error:#}"));
        }
        if let Err(error) = self.cluster.check() {
            self.world.tally.fault(Fault::BrokenNode, || format!("{error:#}"));
        }
        for leaver in &self.leavers {
            leaver.tell(Wish::Live);
        }
        all_registered(&self.world, SETTLED).await
    }

    async fn act(&self, scenario: Scenario) -> Result<()> {
        let second = Duration::from_secs(1);
        match scenario {
            Scenario::Quiet => sleep(if self.is_quick { 5 * second } else { 30 * second }).await,
            Scenario::Rolling => {
                for node in self.cluster.nodes() {
                    node.terminate();
                    let status = node.wait_exit(END).await;
                    ensure!(status.success(), "{} ended with {status}", node.address());
                    self.start(node).await;
                    if !self.is_quick {
                        sleep(10 * second).await;
                    }
                }
            }
            Scenario::Kill => {
                let n_nodes = if self.is_quick {
                    1
                } else {
                    self.cluster.nodes().len()
                };
                for (i, node) in self.cluster.nodes().iter().enumerate().take(n_nodes) {
                    node.kill();
                    self.detect(i, Instant::now()).await;
                    // All have moved, and the grace of what they left is over, before it comes back.
                    all_registered(&self.world, SETTLED).await?;
                    if !self.is_quick {
                        sleep(20 * second).await;
                    }
                    self.start(node).await;
                    if !self.is_quick {
                        sleep(10 * second).await;
                    }
                }
            }
            Scenario::Stop => {
                let node = self.cluster.node(1);
                let stopped = Instant::now();
                node.freeze();
                self.detect(1, stopped).await;
                sleep_until(stopped + if self.is_quick { 6 * second } else { 30 * second }).await;
                node.thaw();
                self.become_equal(Instant::now()).await;
            }
            Scenario::Partition => {
                self.cut(&[(0, 2), (2, 0), (1, 2), (2, 1)], 40 * second).await?;
                self.become_equal(Instant::now()).await;
            }
            Scenario::OneWay => {
                self.cut(&[(0, 1)], 40 * second).await?;
                self.become_equal(Instant::now()).await;
            }
            Scenario::Flapping => {
                for _ in 0..6 {
                    self.cut(&[(0, 1), (1, 0), (1, 2), (2, 1)], 3 * second).await?;
                    sleep(3 * second).await;
                }
                self.become_equal(Instant::now()).await;
            }
        }
        Ok(())
    }

    /// Every second leaver goes: by turns with and without a word.
    fn send_away(&self, half: usize) {
        for (i, leaver) in self.leavers.iter().enumerate().filter(|(i, _)| i % 2 == half) {
            leaver.tell(if i / 2 % 2 == 0 {
                Wish::Deregister
            } else {
                Wish::Vanish
            });
        }
    }

    /// Starts a node and waits until it is ready and holds what the others hold.
    async fn start(&self, node: &Node) {
        let began = Instant::now();
        node.start();
        let http = node.http();
        let ready = try_eventually(READY, || async {
            node.check()?;
            ensure!(http.is_ready().await?, "readiness is red");
            Ok(())
        });
        match ready.await {
            Ok(()) => self.world.tally.time(Measure::Start, began.elapsed()),
            Err(error) => self.world.tally.fault(Fault::BrokenNode, || {
                format!("{} is not ready: {error:#}", node.address())
            }),
        }
        self.become_equal(Instant::now()).await;
    }

    /// Measures until all other nodes list one as `DOWN`.
    async fn detect(&self, node: usize, since: Instant) {
        let address = self.cluster.node(node).address();
        let others = self
            .cluster
            .nodes()
            .iter()
            .filter(|other| other.address() != address);
        let https: Vec<Http> = others.map(Node::http).collect();
        let detected = try_eventually(DETECTED, || async {
            for http in &https {
                let nodes = http.cluster_nodes().await?;
                let state = nodes.iter().find(|(name, _)| *name == address);
                ensure!(state.is_some_and(|(_, state)| state == "DOWN"), "{state:?}");
            }
            Ok(())
        });
        match detected.await {
            Ok(()) => self.world.tally.time(Measure::Detection, since.elapsed()),
            Err(error) => self.world.tally.fault(Fault::BrokenNode, || {
                format!("{address} is dead and not called so after {DETECTED:?}: {error:#}")
            }),
        }
    }

    /// Measures until all nodes serve, see each other up and hold the same rows.
    async fn become_equal(&self, since: Instant) {
        let https: Vec<Http> = self.cluster.nodes().iter().map(Node::http).collect();
        let equal = try_eventually(READY, || async {
            let states = try_join_all(https.iter().map(Http::state)).await?;
            for state in &states {
                let is_up = state.ready && state.members.iter().all(|m| m.state == "UP" && m.ready);
                ensure!(is_up, "{} sees {:?}", state.address, state.members);
                ensure!(state.digests == states[0].digests, "digests differ");
            }
            Ok(())
        });
        let result = equal.await;
        let took = since.elapsed();
        self.world.tally.time(Measure::Equal, took);
        let late = match result {
            Err(error) => Some(format!("not equal after {took:?}: {error:#}")),
            Ok(()) if took > HEALED_WITHIN => Some(format!("equal after {took:?} only")),
            Ok(()) => None,
        };
        if let Some(late) = late {
            self.world.tally.fault(Fault::Unequal, || late);
        }
    }

    /// Asks as operators do whether all nodes agree.
    async fn verify(&self) -> Result<()> {
        let mut command = binary::command();
        command
            .args(["verify", "--patience", "5"])
            .args(&self.world.names);
        let output = spawn_blocking(move || command.output()).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "rollcall verify: {}: {text}",
            output.status
        );
        Ok(())
    }

    /// Loses packets from one to the other of each pair, for a time.
    async fn cut(&self, pairs: &[(usize, usize)], time: Duration) -> Result<()> {
        let network = self
            .namespaces
            .as_ref()
            .context("nodes without namespaces cannot be cut")?;
        self.world.ledger.cut(pairs);
        for (from, to) in pairs {
            network.cut(*from, *to)?;
        }
        sleep(time).await;
        for (from, to) in pairs {
            network.heal(*from, *to)?;
        }
        self.world.ledger.heal();
        Ok(())
    }
}
