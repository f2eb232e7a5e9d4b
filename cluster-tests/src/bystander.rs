//! A client that has nothing to do with what goes on at its nodes, and notes how long its answers take meanwhile. On a
//! thread of its own, since whatever goes on keeps the threads of the test busy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use tokio::runtime::Builder;
use tokio::time::{Instant, interval};

use crate::client::Client;
use crate::http::Http;
use crate::model::{Instance, Service};
use crate::node::Node;
use crate::times::Times;

/// Time between two turns; each is at the next node.
const PACE: Duration = Duration::from_millis(20);

/// Asks until it is stopped.
#[derive(Debug)]
pub struct Bystander {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Took>>,
}

/// How long answers took.
#[derive(Debug, Default)]
pub struct Took {
    /// Queries over HTTP, each by an answer with the whole list.
    pub queries: Times,
    /// Registrations over gRPC, if any.
    pub registrations: Times,
}

impl Bystander {
    /// Asks these nodes for the list of a service, over and over.
    pub fn asking(nodes: &[&Node], service: &Service) -> Self {
        Self::start(nodes, service, false)
    }

    /// The same; by a connection to each node it also registers an instance in another service, each time with other
    /// metadata.
    pub fn asking_and_registering(nodes: &[&Node], service: &Service) -> Self {
        Self::start(nodes, service, true)
    }

    fn start(nodes: &[&Node], service: &Service, registers: bool) -> Self {
        let addresses = nodes
            .iter()
            .map(|n| (n.http_address(), n.grpc_address()))
            .collect();
        let (service, is_over) = (service.clone(), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(run(addresses, &service, registers, &is_over))
            }
        });
        Bystander { is_over, thread }
    }

    /// Ends, and tells how long its answers took.
    ///
    /// # Errors
    /// One was refused, or did not come.
    pub fn stop(self) -> Result<Took> {
        self.is_over.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(took) => took,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

async fn run(
    addresses: Vec<(SocketAddr, SocketAddr)>,
    service: &Service,
    registers: bool,
    is_over: &AtomicBool,
) -> Result<Took> {
    let https: Vec<Http> = addresses.iter().map(|(http, _)| Http::new(*http)).collect();
    let connected = addresses.iter().filter(|_| registers);
    let clients = try_join_all(connected.map(|(_, grpc)| Client::connect(*grpc))).await?;
    let own = Service::unique("bystander");
    let (mut took, mut pace) = (Took::default(), interval(PACE));
    for turn in 0_u64.. {
        pace.tick().await;
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let at = usize::try_from(turn)? % https.len();
        let asked = Instant::now();
        https[at].list(service).await?;
        took.queries.note(asked.elapsed());
        if let Some(client) = clients.get(at) {
            let port = u16::try_from(at)? + 1;
            let instance = Instance::at("10.18.255.1", port).meta("turn", &turn.to_string());
            let asked = Instant::now();
            client.register(&own, &instance).await?;
            took.registrations.note(asked.elapsed());
        }
    }
    Ok(took)
}

impl Took {
    /// The longest of all.
    pub fn longest(&self) -> Duration {
        let longest = self.queries.longest().max(self.registrations.longest());
        longest.unwrap_or_default()
    }
}
