//! The steps that both kinds of applications go through, each a check that is printed when it has passed.

use std::fmt::{Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::{Cluster, Http, Node, Service, Watch, eventually};

use crate::app::App;

/// Time of an application to start, on a machine that is busy with others.
pub(crate) const JVM_STARTS: Duration = Duration::from_secs(120);

/// Calls with each reference that show that calling goes on: about two seconds of them.
const SOME_CALLS: usize = 40;

/// Time for [`SOME_CALLS`].
const CALLS_GO_ON: Duration = Duration::from_secs(30);

/// Time in which each of several providers is called at least once.
const CALLED_WITHIN: Duration = Duration::from_secs(2);

/// Longest time from the end of a provider to the last call that goes to it.
const LAST_CALL_WITHIN: Duration = Duration::from_secs(3);

/// A cluster and a consumer that calls all the time.
pub(crate) struct Scene<'a> {
    title: &'static str,
    cluster: &'a Cluster,
    consumer: &'a App,
    vias: &'static [&'static str],
    n_passed: usize,
}

impl<'a> Scene<'a> {
    /// `vias` are the references with which the consumer calls.
    pub(crate) fn new(
        title: &'static str,
        cluster: &'a Cluster,
        consumer: &'a App,
        vias: &'static [&'static str],
    ) -> Self {
        Scene {
            title,
            cluster,
            consumer,
            vias,
            n_passed: 0,
        }
    }

    /// Prints a check that has passed.
    pub(crate) fn passed(&mut self, what: impl Display) {
        self.n_passed += 1;
        println!("ok  {}: {what}", self.title);
    }

    /// Prints how many checks have passed.
    pub(crate) fn end(self) {
        println!("{}: {} checks passed", self.title, self.n_passed);
    }

    /// Every node lists exactly these providers of a service.
    pub(crate) async fn listed(&mut self, service: &Service, providers: &[&str], within: Duration) {
        let check = |list: &cluster_tests::List| list.expect(providers);
        self.cluster.eventually_list(service, within, check).await;
        self.passed(format!(
            "every node lists {} at {}",
            service.name,
            providers.join(", ")
        ));
    }

    /// The consumer calls a provider via a reference.
    pub(crate) async fn reaches(&mut self, via: &str, provider: &str, within: Duration) {
        let from = Instant::now();
        let what = format!("{provider} is called via {via}");
        let took = eventually(&what, within, || async {
            self.consumer.check()?;
            let calls = self.consumer.record().since(from);
            let n_answers = calls.answers(via);
            ensure!(n_answers.contains_key(provider), "answers are from {n_answers:?}");
            Ok(from.elapsed())
        })
        .await;
        self.passed(format!("{what}, within {:.1} s", took.as_secs_f64()));
    }

    /// Waits until the consumer has made some more calls with each reference.
    async fn calls_go_on(&self) {
        let from = Instant::now();
        eventually("calls go on", CALLS_GO_ON, || async {
            self.consumer.check()?;
            self.consumer.record().since(from).at_least(SOME_CALLS, self.vias)
        })
        .await;
    }

    /// Each node is restarted, first in order and then by `kill -9`, with a wait for nothing but readiness and some
    /// calls in between. No call fails, and no list of any node lacks a provider that lives.
    pub(crate) async fn nodes_restart_one_by_one(&mut self, live: &[(Service, Vec<String>)]) -> Result<()> {
        let https: Vec<Http> = self.cluster.nodes().iter().map(Node::http).collect();
        let n_nodes = https.len();
        let rounds = [Ending::InOrder, Ending::Killed];
        for (how, i) in rounds
            .into_iter()
            .flat_map(|how| (0..n_nodes).map(move |i| (how, i)))
        {
            let from = Instant::now();
            let watch = Watch::start(https.clone(), live.to_vec());
            let node = self.cluster.node(i);
            match how {
                Ending::Killed => node.kill(),
                Ending::InOrder => {
                    node.terminate();
                    node.wait_exit(SOON).await;
                }
            }
            node.start();
            self.cluster.ready().await;
            self.calls_go_on().await;

            let calls = self.consumer.record().since(from);
            calls.none_failed()?;
            let n_calls = calls.at_least(SOME_CALLS, self.vias)?;
            let seen = watch.seen();
            ensure!(seen.gaps.is_empty(), "lists with gaps: {:?}", seen.gaps);
            self.passed(format!(
                "node {} {how} and started again: none of {n_calls} calls failed, none of {} lists had a gap",
                i + 1,
                seen.answers
            ));
        }
        for (service, providers) in live {
            eventually("every provider has a connection again", 3 * SOON, || async {
                let rows = https[0].rows(service).await?;
                let publishers: Vec<_> = rows.iter().flat_map(|row| &row.publishers).collect();
                ensure!(publishers.len() == providers.len(), "{rows:?}");
                ensure!(publishers.iter().all(|p| !p.is_orphan), "{rows:?}");
                Ok(())
            })
            .await;
        }
        self.cluster.equal(SOON).await;
        self.passed("afterwards all nodes hold the same rows, each published by a connection");
        Ok(())
    }

    /// A provider that ended at a time is soon called no more. Where it ended in order, no call fails; where it was
    /// killed, calls fail for a moment, but none for lack of a provider.
    pub(crate) async fn no_longer_calls(
        &mut self,
        provider: &str,
        how: Ending,
        ended: Instant,
    ) -> Result<()> {
        self.calls_go_on().await;
        let calls = self.consumer.record().since(ended);
        calls.all_had_a_provider()?;
        if how == Ending::InOrder {
            calls.none_failed()?;
        }
        let before = self.consumer.record().since(ended - CALLED_WITHIN);
        let Some(last) = before.last_use_of(provider) else {
            bail!("{provider} was not even called in the {CALLED_WITHIN:?} before its end");
        };
        let after = last.at.saturating_duration_since(ended);
        ensure!(
            after <= LAST_CALL_WITHIN,
            "{provider} was called {after:?} after its end"
        );
        self.passed(format!(
            "{provider}, which {how}, was last called {} ms later; {} calls failed",
            after.as_millis(),
            calls.n_failed()
        ));
        Ok(())
    }
}

/// How an application ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was asked to by SIGTERM.
    InOrder,
    /// By `kill -9`.
    Killed,
}

impl Display for Ending {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Ending::InOrder => "was asked to end",
            Ending::Killed => "was killed",
        })
    }
}
