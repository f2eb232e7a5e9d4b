//! A poller that asks nodes for lists without a pause and counts answers that lack a live instance.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::http::Http;
use crate::model::Service;

/// What a watch has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Lists that were answered.
    pub answers: u64,
    /// Answers that lacked an instance or showed one unhealthy: how long after the start, and what.
    pub gaps: Vec<(Duration, String)>,
    /// Requests without a list in answer: how long after the start, and why.
    pub failures: Vec<(Duration, String)>,
}

/// A running poller; stops when dropped.
#[derive(Debug)]
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Asks each of the nodes for each of the services in turn; each list must hold these addresses, healthy.
    pub fn start(nodes: Vec<Http>, live: Vec<(Service, Vec<String>)>) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let live = Arc::new(live);
        let start = Instant::now();
        let tasks = nodes
            .into_iter()
            .map(|node| tokio::spawn(poll(node, Arc::clone(&live), Arc::clone(&seen), start)))
            .collect();
        Watch { seen, tasks }
    }

    /// What has been seen so far.
    pub fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn poll(node: Http, live: Arc<Vec<(Service, Vec<String>)>>, seen: Arc<Mutex<Seen>>, start: Instant) {
    loop {
        for (service, addresses) in live.iter() {
            let answer = node.list(service).await;
            let at = start.elapsed();
            match answer {
                Ok(list) => {
                    let lacking: Vec<&String> = addresses
                        .iter()
                        .filter(|address| !list.at(address).is_ok_and(|instance| instance.healthy))
                        .collect();
                    let mut seen = seen.lock();
                    seen.answers += 1;
                    if !lacking.is_empty() {
                        seen.gaps.push((
                            at,
                            format!("{} at {} lacks {lacking:?}", service.grouped(), node.base()),
                        ));
                    }
                }
                Err(error) => {
                    seen.lock().failures.push((at, format!("{error:#}")));
                    // An answer that is refused at once must not make this a busy loop.
                    sleep(Duration::from_millis(10)).await;
                }
            }
        }
        // Lets a single-threaded runtime breathe, and leaves the machine to others.
        sleep(Duration::from_millis(1)).await;
    }
}
