//! Consumers that ask every node, past any cache, and compare each list with what must be in it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster_tests::connection::payload;
use cluster_tests::{Client, Http, Service};
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::ledger::{Ledger, Protocol, RowId, ServiceId};
use crate::providers::World;
use crate::tally::Fault;

/// Time between two questions of one consumer to one node, from begin to begin.
const PACE: Duration = Duration::from_millis(25);
/// The same while the node does not answer, so that its first list is seen.
const EAGER_PACE: Duration = Duration::from_millis(4);
/// Wait for an answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Instances that an example names.
const NAMED: usize = 3;

#[derive(Deserialize)]
struct Listed<'a> {
    #[serde(borrow)]
    hosts: Vec<Host<'a>>,
}

#[derive(Deserialize)]
struct Host<'a> {
    ip: &'a str,
    healthy: bool,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(rename = "resultCode")]
    code: i64,
    #[serde(borrow, rename = "serviceInfo")]
    list: Option<Listed<'a>>,
}

/// The healthy instances of a list, and how many there are of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Those of the load that are healthy.
    pub(crate) healthy: BTreeSet<RowId>,
    /// Number of instances.
    pub(crate) n_hosts: usize,
}

impl From<Listed<'_>> for Seen {
    fn from(list: Listed<'_>) -> Self {
        let healthy = list.hosts.iter().filter(|host| host.healthy);
        Seen {
            healthy: healthy.filter_map(|host| RowId::of(host.ip)).collect(),
            n_hosts: list.hosts.len(),
        }
    }
}

/// A way to ask one node for lists.
pub(crate) enum Asker {
    /// Over HTTP.
    Http(Http),
    /// Over a connection, which is made anew when it is lost.
    Grpc(std::net::SocketAddr, Option<Client>),
}

impl Asker {
    /// The list of a service.
    ///
    /// # Errors
    /// There is none: the node refuses, or does not answer.
    pub(crate) async fn ask(&mut self, service: &Service) -> Result<Seen> {
        let answer = timeout(ANSWER, self.ask_now(service)).await;
        let answer = answer.context("no answer in time").flatten();
        if let (Err(_), Asker::Grpc(_, client)) = (&answer, self) {
            *client = None;
        }
        answer
    }

    async fn ask_now(&mut self, service: &Service) -> Result<Seen> {
        match self {
            Asker::Http(http) => {
                let reply = http.list_reply(service, &[]).await?.with_status(200)?;
                let list: Listed<'_> = serde_json::from_str(&reply.text)?;
                Ok(list.into())
            }
            Asker::Grpc(address, client) => {
                if client.is_none() {
                    *client = Some(Client::connect(*address).await?);
                }
                let client = client.as_ref().context("no connection")?;
                // What is pushed is of no interest, and must not gather.
                client.take_pushes().await;
                let mut body = service.to_json();
                body["cluster"] = json!("");
                body["healthyOnly"] = json!(false);
                let call = client
                    .connection()
                    .call_raw(payload("ServiceQueryRequest", &body));
                let body = call.await?.body.unwrap_or_default().value;
                let answer: Answer<'_> = serde_json::from_slice(&body)?;
                anyhow::ensure!(answer.code == 200, "refused: {}", String::from_utf8_lossy(&body));
                Ok(answer.list.context("no list")?.into())
            }
        }
    }
}

/// Consumers that ask until they are dropped: one of each protocol for each node.
#[derive(Debug)]
pub(crate) struct Checker(Vec<JoinHandle<()>>);

impl Checker {
    /// Starts them.
    pub(crate) fn start(world: &Arc<World>) -> Self {
        let tasks = (0..world.ledger.n_nodes()).flat_map(|node| {
            let http = Asker::Http(world.http[node].clone());
            let grpc = Asker::Grpc(world.grpc[node], None);
            [(http, Protocol::Http), (grpc, Protocol::Grpc)]
                .map(|(asker, protocol)| tokio::spawn(consume(Arc::clone(world), node, protocol, asker)))
        });
        Checker(tasks.collect())
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

async fn consume(world: Arc<World>, node: usize, protocol: Protocol, mut asker: Asker) {
    let ledger = &world.ledger;
    loop {
        for service in ledger.services() {
            let asked = Instant::now();
            let pace = match asker.ask(ledger.name(service)).await {
                Ok(seen) => {
                    world.tally.list();
                    let due = ledger.due(service, node, asked);
                    if let Some((fault, text)) = judge(ledger, service, &due, &seen) {
                        world
                            .tally
                            .fault(fault, || format!("node {node} over {protocol:?}: {text}"));
                    }
                    PACE
                }
                Err(_) => {
                    world.tally.refusal();
                    EAGER_PACE
                }
            };
            sleep_until(asked + pace).await;
        }
    }
}

/// What is wrong with a list.
fn judge(ledger: &Ledger, service: ServiceId, due: &[RowId], seen: &Seen) -> Option<(Fault, String)> {
    let missing: Vec<RowId> = due
        .iter()
        .filter(|row| !seen.healthy.contains(row))
        .copied()
        .collect();
    // Who leaves while the answer is on its way may be in it or not.
    let living = ledger.living(service);
    let missing: Vec<_> = missing.iter().filter(|row| living.contains(row)).collect();
    let first = missing.first()?;
    let fault = if seen.n_hosts == 0 {
        Fault::EmptyList
    } else {
        Fault::ShortList
    };
    let named: Vec<String> = missing
        .iter()
        .take(NAMED)
        .map(|row| row.ip().to_string())
        .collect();
    let name = &ledger.service_of(**first).name;
    Some((
        fault,
        format!(
            "{name} lists {} of {} healthy, lacks {} of those due: {}",
            seen.healthy.len(),
            seen.n_hosts,
            missing.len(),
            named.join(", ")
        ),
    ))
}

/// Waits until every node lists exactly the living instances of every service; what is left over after the time is a
/// fault each.
pub(crate) async fn exact_everywhere(world: &World, within: Duration) {
    let deadline = Instant::now() + within;
    for node in 0..world.ledger.n_nodes() {
        let mut asker = Asker::Http(world.http[node].clone());
        for service in world.ledger.services() {
            let name = world.ledger.name(service);
            loop {
                let living: BTreeSet<RowId> = world.ledger.living(service).into_iter().collect();
                let found = asker.ask(name).await;
                if found
                    .as_ref()
                    .is_ok_and(|seen| seen.healthy == living && seen.n_hosts == living.len())
                {
                    break;
                }
                if Instant::now() < deadline {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
                match found {
                    Ok(seen) if seen.n_hosts > living.len() => world.tally.fault(Fault::DeadRow, || {
                        format!(
                            "node {node}: {} lists {}, {} live",
                            name.name,
                            seen.n_hosts,
                            living.len()
                        )
                    }),
                    Ok(seen) => world.tally.fault(Fault::ShortList, || {
                        format!(
                            "node {node}: {} lists {}, {} live",
                            name.name,
                            seen.n_hosts,
                            living.len()
                        )
                    }),
                    Err(error) => world.tally.fault(Fault::BrokenNode, || {
                        format!("node {node} gives no list: {error:#}")
                    }),
                }
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(hosts: &str) -> Result<Seen> {
        let text = format!(r#"{{"name":"orders","hosts":[{hosts}]}}"#);
        let list: Listed<'_> = serde_json::from_str(&text)?;
        Ok(list.into())
    }

    fn host(row: RowId, healthy: bool) -> String {
        format!(
            r#"{{"ip":"{}","port":8080,"healthy":{healthy},"metadata":{{}}}}"#,
            row.ip()
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_empty_short_or_whole() -> Result<()> {
        let mut ledger = Ledger::new(1);
        let service = ledger.add_service("orders".into());
        let rows: Vec<RowId> = (0..2).map(|_| ledger.add_row(service, Protocol::Grpc)).collect();
        for row in &rows {
            ledger.seen(*row, 0);
        }
        let fault = |hosts: &str| -> Result<Option<Fault>> {
            Ok(judge(&ledger, service, &rows, &seen(hosts)?).map(|(fault, _)| fault))
        };
        let (first, second) = (host(rows[0], true), host(rows[1], true));
        assert_eq!(fault("")?, Some(Fault::EmptyList));
        assert_eq!(fault(&first)?, Some(Fault::ShortList));
        assert_eq!(
            fault(&format!("{first},{}", host(rows[1], false)))?,
            Some(Fault::ShortList)
        );
        assert_eq!(fault(&format!("{first},{second}"))?, None);
        ledger.left(rows[1]);
        assert_eq!(fault(&first)?, None);
        Ok(())
    }
}
