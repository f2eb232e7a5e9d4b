//! An instance that is kept alive as 1.x SDKs do it: registered over HTTP, then beaten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::http::Http;
use crate::model::{Instance, Service};

/// An instance that beats in the background until it is dropped; then it is silent.
#[derive(Debug)]
pub struct BeatingInstance {
    task: JoinHandle<()>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    beats: AtomicU64,
    failures: AtomicU64,
    unknown: AtomicU64,
}

impl BeatingInstance {
    /// Registers at the first node and beats at each in turn, at this interval. A node that does not answer
    /// within the interval is passed over; an instance that a node does not know is registered again.
    ///
    /// # Errors
    /// The registration is refused.
    pub async fn start(
        nodes: Vec<Http>,
        service: Service,
        instance: Instance,
        interval: Duration,
    ) -> Result<Self> {
        if let Some(first) = nodes.first() {
            first.register(&service, &instance).await?.ok()?;
        }
        let counters = Arc::new(Counters::default());
        let seen = Arc::clone(&counters);
        let task = tokio::spawn(async move {
            for node in nodes.iter().cycle() {
                sleep(interval).await;
                match timeout(interval, node.light_beat(&service, &instance)).await {
                    Ok(Ok(reply)) if reply.code == 20404 => {
                        seen.unknown.fetch_add(1, Ordering::Relaxed);
                        let _ = node.register(&service, &instance).await;
                    }
                    Ok(Ok(_)) => _ = seen.beats.fetch_add(1, Ordering::Relaxed),
                    Ok(Err(_)) | Err(_) => _ = seen.failures.fetch_add(1, Ordering::Relaxed),
                }
            }
        });
        Ok(BeatingInstance { task, counters })
    }

    /// Beats that were answered for a known instance.
    pub fn beats(&self) -> u64 {
        self.counters.beats.load(Ordering::Relaxed)
    }

    /// Beats without an answer.
    pub fn failures(&self) -> u64 {
        self.counters.failures.load(Ordering::Relaxed)
    }

    /// Beats that were answered for an unknown instance.
    pub fn unknown(&self) -> u64 {
        self.counters.unknown.load(Ordering::Relaxed)
    }
}

impl Drop for BeatingInstance {
    fn drop(&mut self) {
        self.task.abort();
    }
}
