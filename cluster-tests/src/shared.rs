//! A cluster that all tests of a binary use at the same time.

use std::ops::Deref;

use tokio::sync::OnceCell;

use crate::cluster::Cluster;

/// A cluster that is started by the first test that asks for it. Put it into a `static`.
#[derive(Debug)]
pub struct SharedCluster {
    n_nodes: usize,
    cluster: OnceCell<Cluster>,
}

impl SharedCluster {
    /// A cluster of so many nodes.
    pub const fn of(n_nodes: usize) -> Self {
        SharedCluster {
            n_nodes,
            cluster: OnceCell::const_new(),
        }
    }

    /// The cluster, started if need be. Keep the guard to the end of the test: it shows the logs when the test fails.
    ///
    /// # Panics
    /// The nodes do not come up.
    pub async fn get(&'static self) -> SharedGuard {
        SharedGuard(self.cluster.get_or_init(|| Cluster::start(self.n_nodes)).await)
    }
}

/// Access to a shared cluster for one test.
#[derive(Debug)]
pub struct SharedGuard(&'static Cluster);

impl Deref for SharedGuard {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.0
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        self.0.finish();
    }
}
