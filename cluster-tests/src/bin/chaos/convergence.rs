//! How long a change takes to the other nodes: an instance comes and goes at one node after the other, and the others are
//! asked until they show it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Client, Instance, Service};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::providers::World;
use crate::tally::Measure;

/// Time between two changes.
const PACE: Duration = Duration::from_millis(100);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for a change to show; a longer one counts as this.
const LONGEST: Duration = Duration::from_secs(5);
/// Wait for a node's answer.
const ANSWER: Duration = Duration::from_millis(500);

/// Measures until it is dropped.
#[derive(Debug)]
pub(crate) struct Convergence {
    task: JoinHandle<()>,
    is_in_fault: Arc<AtomicBool>,
}

impl Convergence {
    /// Starts to measure, outside of any fault.
    pub(crate) fn start(world: &Arc<World>) -> Self {
        let is_in_fault = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(measure(Arc::clone(world), Arc::clone(&is_in_fault)));
        Convergence { task, is_in_fault }
    }

    /// Whether a fault goes on: its times are kept apart.
    pub(crate) fn set_in_fault(&self, is_in_fault: bool) {
        self.is_in_fault.store(is_in_fault, Ordering::Relaxed);
    }
}

impl Drop for Convergence {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn measure(world: Arc<World>, is_in_fault: Arc<AtomicBool>) {
    let mut clients: Vec<Option<Client>> = world.grpc.iter().map(|_| None).collect();
    let service = Service::new("changing");
    for turn in 0_u16.. {
        for (client, address) in clients.iter_mut().zip(&world.grpc) {
            if client.as_ref().is_none_or(Client::is_closed) {
                *client = connected(*address).await.ok();
            }
        }
        let instance = Instance::at("10.9.9.9", turn % 60_000 + 1);
        let from = usize::from(turn) % clients.len();
        for is_registered in [true, false] {
            let began = Instant::now();
            let Some(client) = &clients[from] else { break };
            client.take_pushes().await;
            if change(client, &service, &instance, is_registered).await.is_err() {
                clients[from] = None;
                break;
            }
            for to in (0..clients.len()).filter(|to| *to != from) {
                let measure = match is_in_fault.load(Ordering::Relaxed) {
                    true => Measure::ConvergenceInFault,
                    false => Measure::Convergence,
                };
                let are_connected = || world.ledger.are_connected(from, to);
                let Some(client) = clients[to].as_ref().filter(|_| are_connected()) else {
                    continue;
                };
                match shows(client, &service, &instance, is_registered, began).await {
                    Ok(took) if are_connected() => world.tally.time(measure, took),
                    Ok(_) => {}
                    Err(_) => clients[to] = None,
                }
            }
        }
        sleep(PACE).await;
    }
}

async fn connected(address: SocketAddr) -> Result<Client> {
    timeout(ANSWER, Client::connect(address)).await?
}

async fn change(client: &Client, service: &Service, instance: &Instance, is_registered: bool) -> Result<()> {
    let change = async {
        match is_registered {
            true => client.register(service, instance).await,
            false => client.deregister(service, instance).await,
        }
    };
    timeout(ANSWER, change).await?
}

/// Asks until the list is as it must be; gives how long that took.
async fn shows(
    client: &Client,
    service: &Service,
    instance: &Instance,
    is_registered: bool,
    began: Instant,
) -> Result<Duration> {
    loop {
        let list = timeout(ANSWER, client.query(service))
            .await
            .context("no answer")??;
        let took = began.elapsed();
        if list.at(&instance.address()).is_ok() == is_registered || took > LONGEST {
            ensure!(!client.is_closed(), "the connection is gone");
            return Ok(took);
        }
        sleep(PAUSE).await;
    }
}
