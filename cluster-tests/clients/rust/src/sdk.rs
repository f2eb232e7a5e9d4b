//! The client, in fewer words: clients of chosen nodes, lists, and what a subscriber was told.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nacos_sdk::api::naming::{
    NamingChangeEvent, NamingEventListener, NamingService, NamingServiceBuilder, ServiceInstance,
};
use nacos_sdk::api::props::ClientProps;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::driver::{SOON, eventually};

pub const GROUP: &str = "DEFAULT_GROUP";
pub const PUBLIC: &str = "public";

/// The nodes of the cluster, with a client of each that asks what it lists.
pub struct Nodes {
    servers: Vec<String>,
    observers: Vec<NamingService>,
}

impl Nodes {
    /// Connects to the nodes at these addresses, which are separated by commas.
    pub async fn connect(servers: &str) -> Result<Self> {
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        let mut observers = Vec::new();
        for server in &servers {
            observers.push(client(server, PUBLIC).await?);
        }
        Ok(Nodes { servers, observers })
    }

    /// A client of one node.
    pub async fn client(&self, node: usize) -> Result<NamingService> {
        self.client_in(node, PUBLIC).await
    }

    /// A client of one node in a namespace.
    pub async fn client_in(&self, node: usize, namespace: &str) -> Result<NamingService> {
        client(&self.servers[node], namespace).await
    }

    /// A client of all nodes. It begins with any.
    pub async fn roaming_client(&self) -> Result<NamingService> {
        client(&self.servers.join(","), PUBLIC).await
    }

    /// As these nodes were found, but with new connections.
    pub async fn again(&self) -> Result<Self> {
        Self::connect(&self.servers.join(",")).await
    }

    /// The clients of the nodes that can be reached: two of three at least.
    pub fn living(&self) -> Result<Vec<&NamingService>> {
        let pairs = self.servers.iter().zip(&self.observers);
        let living: Vec<_> = pairs
            .filter(|(server, _)| TcpStream::connect(server).is_ok())
            .map(|(_, observer)| observer)
            .collect();
        ensure!(living.len() >= 2, "only {} nodes can be reached", living.len());
        Ok(living)
    }

    /// Waits until every node lists these addresses.
    pub async fn list(&self, service: &str, wanted: &[&str]) -> Result<()> {
        self.list_in_group(service, GROUP, wanted).await
    }

    /// Waits until every node lists these addresses for a service of this group.
    pub async fn list_in_group(&self, service: &str, group: &str, wanted: &[&str]) -> Result<()> {
        for observer in &self.observers {
            becomes(observer, service, group, wanted).await?;
        }
        Ok(())
    }
}

async fn client(servers: &str, namespace: &str) -> Result<NamingService> {
    let props = ClientProps::new()
        .server_addr(servers)
        .namespace(namespace)
        .app_name("rust-client")
        .naming_push_empty_protection(false);
    let building = NamingServiceBuilder::new(props).build();
    building.await.context("the client does not start")
}

pub fn instance(ip: &str, port: i32) -> ServiceInstance {
    ServiceInstance {
        ip: ip.into(),
        port,
        ..ServiceInstance::default()
    }
}

/// `ip:port` of each instance, in order.
pub fn addresses(instances: &[ServiceInstance]) -> Vec<String> {
    let mut all: Vec<String> = instances.iter().map(ServiceInstance::ip_and_port).collect();
    all.sort();
    all
}

/// What the client's node lists now.
pub async fn list(
    client: &NamingService,
    service: &str,
    group: &str,
    clusters: &[&str],
) -> Result<Vec<ServiceInstance>> {
    let clusters = clusters.iter().map(|&name| name.to_owned()).collect();
    Ok(client
        .get_all_instances(service.into(), Some(group.into()), clusters, false)
        .await?)
}

/// The only instance that the client's node lists in the default group, as soon as there is one.
pub async fn only(client: &NamingService, service: &str) -> Result<ServiceInstance> {
    eventually(&format!("{service} has one instance"), SOON, async || {
        let mut all = list(client, service, GROUP, &[]).await?;
        ensure!(all.len() == 1, "it has {all:?}");
        Ok(all.remove(0))
    })
    .await
}

/// Waits until the client's node lists these addresses.
pub async fn becomes(client: &NamingService, service: &str, group: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("{service} of {group} is {wanted:?}"), SOON, async || {
        let now = addresses(&list(client, service, group, &[]).await?);
        ensure!(now == wanted, "it is {now:?}");
        Ok(())
    })
    .await
}

/// The list as the listener of a subscription was told it.
pub struct Seen {
    lists: watch::Receiver<Option<Vec<ServiceInstance>>>,
    listener: Arc<Listener>,
}

struct Listener {
    list: watch::Sender<Option<Vec<ServiceInstance>>>,
    calls: AtomicUsize,
}

impl NamingEventListener for Listener {
    fn event(&self, event: Arc<NamingChangeEvent>) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.list.send_replace(event.instances.clone());
    }
}

impl Seen {
    /// Subscribes to a service of the default group.
    pub async fn subscribe(client: &NamingService, service: &str) -> Result<Self> {
        Self::subscribe_in(client, service, GROUP, &[]).await
    }

    /// Subscribes to these clusters of a service, or to all if none is named.
    pub async fn subscribe_in(
        client: &NamingService,
        service: &str,
        group: &str,
        clusters: &[&str],
    ) -> Result<Self> {
        let (list, lists) = watch::channel(None);
        let calls = AtomicUsize::new(0);
        let listener = Arc::new(Listener { list, calls });
        let clusters = clusters.iter().map(|&name| name.to_owned()).collect();
        client
            .subscribe(service.into(), Some(group.into()), clusters, listener.clone())
            .await?;
        Ok(Seen { lists, listener })
    }

    /// Prints every list that is told, until the client ends.
    pub async fn print(&mut self, service: &str) {
        while self.lists.changed().await.is_ok() {
            let told = self.lists.borrow_and_update().clone().unwrap_or_default();
            println!(
                "listed {service} {}",
                told.iter().filter(|instance| instance.healthy).count()
            );
        }
    }

    /// Ends the subscription to a service of the default group.
    pub async fn unsubscribe(&self, client: &NamingService, service: &str) -> Result<()> {
        Ok(client
            .unsubscribe(service.into(), None, vec![], self.listener.clone())
            .await?)
    }

    /// How often the listener was called.
    pub fn calls(&self) -> usize {
        self.listener.calls.load(Ordering::SeqCst)
    }

    /// Waits until the list told is as wanted.
    pub async fn until(
        &mut self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&[ServiceInstance]) -> bool,
    ) -> Result<()> {
        let told = self.lists.wait_for(|list| list.as_deref().is_some_and(&wanted));
        if timeout(within, told).await.is_ok() {
            return Ok(());
        }
        let last = self.lists.borrow().clone();
        Err(anyhow!("not within {within:?}: told of {what}; last of {last:?}"))
    }

    /// Waits until these addresses are told.
    pub async fn until_addresses(&mut self, wanted: &[&str]) -> Result<()> {
        self.until_addresses_within(SOON, wanted).await
    }

    /// As [`Seen::until_addresses`], with another time.
    pub async fn until_addresses_within(&mut self, within: Duration, wanted: &[&str]) -> Result<()> {
        self.until(&format!("{wanted:?}"), within, |list| addresses(list) == wanted)
            .await
    }

    /// Waits until one instance of this weight is told.
    pub async fn until_weight(&mut self, weight: f64) -> Result<()> {
        self.until(&format!("the weight {weight}"), SOON, |list| {
            list.len() == 1 && list[0].weight == weight
        })
        .await
    }
}
