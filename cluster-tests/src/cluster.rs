//! A set of nodes that know each other.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;

use crate::address_server::AddressServer;
use crate::client::Client;
use crate::disk::Disk;
use crate::fault::Links;
use crate::model::{List, Service, unique};
use crate::node::Node;
use crate::ports::{Block, Place};
use crate::wait::eventually;
use crate::{binary, reaper};

/// Time in which a change must be everywhere, on a machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(10);

/// Environment variable with flags for every node of every cluster, e.g. `--log-level debug`; flags of a test win.
pub const MORE_FLAGS: &str = "CLUSTER_TESTS_FLAGS";

/// Settings of a cluster that is about to be started.
#[derive(Debug)]
pub struct ClusterBuilder {
    n_nodes: usize,
    host: Option<String>,
    namespaces: Vec<(String, IpAddr)>,
    flags: Vec<String>,
    node_flags: Vec<(usize, Vec<String>)>,
    members: Vec<(usize, Vec<usize>)>,
    held_back: Vec<usize>,
    has_proxies: bool,
    has_member_file: bool,
    address_server: Option<Arc<AddressServer>>,
    member_dns: Option<String>,
    disks: Vec<usize>,
}

impl ClusterBuilder {
    /// Sets a flag of every node, e.g. `("--gate-limit", "5s")`.
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Sets a flag of one node.
    pub fn node_flag(mut self, node: usize, name: &str, value: &str) -> Self {
        self.node_flags
            .push((node, vec![name.to_owned(), value.to_owned()]));
        self
    }

    /// Puts all nodes on this host, a name or an IPv6 address in brackets, each with ports of its own. Members are listed
    /// by it.
    pub fn on_host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    /// Starts each node in a network namespace, given by its name and the node's address there. They must exist.
    pub fn in_namespaces(mut self, namespaces: &[(String, IpAddr)]) -> Self {
        self.namespaces = namespaces.to_vec();
        self
    }

    /// Gives one node another member list than all nodes.
    pub fn members_of(mut self, node: usize, members: &[usize]) -> Self {
        self.members.push((node, members.to_vec()));
        self
    }

    /// Does not start this node; the others have it in their lists.
    pub fn hold_back(mut self, node: usize) -> Self {
        self.held_back.push(node);
        self
    }

    /// Puts a proxy between each two nodes and direction, see [`Cluster::links`].
    pub fn proxied(mut self) -> Self {
        self.has_proxies = true;
        self
    }

    /// Gives the members in a file of the `cluster.conf` kind instead of by a flag.
    pub fn member_file(mut self) -> Self {
        self.has_member_file = true;
        self
    }

    /// Lets the nodes ask a server for the members; it tells them those that are not held back.
    pub fn address_server(mut self, server: &Arc<AddressServer>) -> Self {
        self.address_server = Some(Arc::clone(server));
        self
    }

    /// Lets the nodes look the members up: all addresses of this DNS name.
    pub fn member_dns(mut self, name: &str) -> Self {
        self.member_dns = Some(name.to_owned());
        self
    }

    /// Puts a node on a disk that can hang or be full, see [`Node::disk`].
    pub fn disk(mut self, node: usize) -> Self {
        self.disks.push(node);
        self
    }

    /// Starts the nodes without waiting for them.
    ///
    /// # Panics
    /// A node cannot be started.
    pub fn launch(self) -> Cluster {
        binary::rollcall();
        let block = match &self.host {
            Some(host) => Block::claim_on(host, self.n_nodes),
            None if !self.namespaces.is_empty() => Block::claim_in(&self.namespaces),
            None => Block::claim(self.n_nodes),
        };
        let dir = std::env::temp_dir().join(unique(&format!("rollcall-tests-{}", std::process::id())));
        reaper::watch_dir(&dir);
        let links = self.has_proxies.then(|| Links::between(&block, self.n_nodes));
        let places: Vec<&Place> = (0..self.n_nodes).map(|i| block.place(i)).collect();
        if let Some(server) = &self.address_server {
            let listed = (0..self.n_nodes).filter(|i| !self.held_back.contains(i));
            let listed = listed.map(|i| places[i].address() + "\n");
            server.tell(&listed.collect::<String>());
        }
        let nodes = (0..self.n_nodes)
            .map(|i| {
                let node_dir = dir.join(format!("node-{i}"));
                match self.args(i, &places, &node_dir, links.as_ref()) {
                    Ok(args) => {
                        let node = Node::new(places[i].clone(), args, node_dir);
                        match self.disks.contains(&i).then(|| Disk::prepare(&dir)) {
                            None => node,
                            Some(Ok(disk)) => node.on_disk(disk),
                            Some(Err(error)) => panic!("no disk for node {i}: {error:#}"),
                        }
                    }
                    Err(error) => panic!("cannot prepare node {i}: {error:#}"),
                }
            })
            .collect();
        let cluster = Cluster {
            nodes,
            links,
            dir,
            _block: block,
        };
        for (i, node) in cluster.nodes.iter().enumerate() {
            if !self.held_back.contains(&i) {
                node.start();
            }
        }
        cluster
    }

    /// Starts the nodes and waits until all of them serve and see each other.
    ///
    /// # Panics
    /// They do not.
    pub async fn start(self) -> Cluster {
        let cluster = self.launch();
        cluster.ready().await;
        cluster
    }

    fn args(&self, i: usize, places: &[&Place], dir: &PathBuf, links: Option<&Links>) -> Result<Vec<String>> {
        let address = |node: usize| places[node].address();
        let own = self
            .members
            .iter()
            .find(|(node, _)| *node == i)
            .map(|(_, list)| list.clone());
        let members: Vec<String> = own
            .unwrap_or_else(|| (0..self.n_nodes).collect())
            .into_iter()
            .map(address)
            .collect();
        let mut args: Vec<String> = ["--bind".to_owned(), places[i].ip.to_string()].into();
        args.extend([
            "--port".to_owned(),
            places[i].port.to_string(),
            "--advertise".to_owned(),
            address(i),
        ]);
        if let Some(server) = &self.address_server {
            args.extend(["--address-server".to_owned(), server.url()]);
        } else if let Some(name) = &self.member_dns {
            args.extend(["--member-dns".to_owned(), name.clone()]);
        } else if self.has_member_file {
            std::fs::create_dir_all(dir)?;
            let path = dir.join("cluster.conf");
            std::fs::write(&path, format!("# members\n\n{}\n", members.join("\n")))?;
            args.extend(["--member-file".to_owned(), path.display().to_string()]);
        } else {
            args.extend(["--members".to_owned(), members.join(",")]);
        }
        if let Some(links) = links {
            let others = (0..self.n_nodes).filter(|to| *to != i);
            let routes: Vec<String> = others
                .map(|to| format!("{}={}", address(to), links.address(i, to)))
                .collect();
            args.extend(["--peer-addresses".to_owned(), routes.join(",")]);
        }
        if let Ok(more) = std::env::var(MORE_FLAGS) {
            args.extend(more.split_whitespace().map(String::from));
        }
        args.extend(self.flags.iter().cloned());
        args.extend(
            self.node_flags
                .iter()
                .filter(|(node, _)| *node == i)
                .flat_map(|(_, f)| f.clone()),
        );
        Ok(args)
    }
}

/// Nodes that know each other.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    links: Option<Links>,
    dir: PathBuf,
    _block: Block,
}

impl Cluster {
    /// Starts so many nodes and waits until all of them serve and see each other.
    ///
    /// # Panics
    /// They do not.
    pub async fn start(n_nodes: usize) -> Self {
        Self::builder(n_nodes).start().await
    }

    /// Settings for a cluster of so many nodes.
    pub fn builder(n_nodes: usize) -> ClusterBuilder {
        ClusterBuilder {
            n_nodes,
            host: None,
            namespaces: Vec::new(),
            flags: Vec::new(),
            node_flags: Vec::new(),
            members: Vec::new(),
            held_back: Vec::new(),
            has_proxies: false,
            has_member_file: false,
            address_server: None,
            member_dns: None,
            disks: Vec::new(),
        }
    }

    /// A node, counted from 0.
    pub fn node(&self, i: usize) -> &Node {
        &self.nodes[i]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that run.
    pub fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_started())
    }

    /// The proxies between the nodes.
    ///
    /// # Panics
    /// The cluster was started without.
    pub fn links(&self) -> &Links {
        match &self.links {
            Some(links) => links,
            None => panic!("the cluster has no proxies: start it with Cluster::builder(n).proxied()"),
        }
    }

    /// One gRPC client on each node that runs.
    ///
    /// # Errors
    /// A node refuses it.
    pub async fn clients(&self) -> Result<Vec<Client>> {
        try_join_all(self.running().map(Node::client)).await
    }

    /// The member file of a node, in a cluster that was started with [`ClusterBuilder::member_file`].
    pub fn member_file(&self, i: usize) -> PathBuf {
        self.dir.join(format!("node-{i}")).join("cluster.conf")
    }

    /// A member file with these nodes, as an operator may write it.
    pub fn member_text(&self, members: &[usize]) -> String {
        let addresses = members.iter().map(|i| self.nodes[*i].address() + "\n");
        addresses.collect()
    }

    // === Waiting ===

    /// Waits until these nodes serve and each lists exactly them, all up and ready.
    ///
    /// # Panics
    /// They do not within the time.
    pub async fn agree_on(&self, members: &[usize], within: Duration) {
        let wanted: Vec<String> = members.iter().map(|i| self.nodes[*i].address()).collect();
        for i in members {
            let http = self.nodes[*i].http();
            let what = format!("{} lists {wanted:?}, all up", self.nodes[*i].address());
            eventually(&what, within, || async {
                let members = http.state().await?.members;
                let listed: Vec<&String> = members.iter().map(|m| &m.address).collect();
                ensure!(listed.iter().copied().eq(&wanted), "it lists {listed:?}");
                ensure!(members.iter().all(|m| m.state == "UP" && m.ready), "{members:?}");
                Ok(())
            })
            .await;
        }
    }

    /// Waits until all running nodes serve and each sees every other running node up and ready.
    ///
    /// # Panics
    /// They do not in time.
    pub async fn ready(&self) {
        for node in self.running() {
            node.ready().await;
        }
        let addresses: Vec<String> = self.running().map(Node::address).collect();
        for node in self.running() {
            let http = node.http();
            eventually(
                &format!("{} sees all running nodes up", node.address()),
                SOON,
                || async {
                    let members = http.state().await?.members;
                    for member in members.iter().filter(|m| addresses.contains(&m.address)) {
                        ensure!(member.state == "UP" && member.ready, "{member:?}");
                    }
                    Ok(())
                },
            )
            .await;
        }
    }

    /// Waits until all running nodes hold the same rows, by their digests.
    ///
    /// # Panics
    /// They do not within the time.
    pub async fn equal(&self, within: Duration) {
        eventually("all nodes hold the same rows", within, || async {
            let states = try_join_all(self.running().map(|n| async move { n.http().state().await })).await?;
            for state in &states {
                ensure!(state.digests == states[0].digests, "digests differ: {states:#?}");
                ensure!(
                    state.instances == states[0].instances,
                    "counts differ: {states:#?}"
                );
            }
            Ok(())
        })
        .await;
    }

    /// Waits until every running node lists exactly these addresses of a service.
    ///
    /// # Panics
    /// One does not within [`SOON`].
    pub async fn eventually_listed(&self, service: &Service, addresses: &[impl AsRef<str>]) {
        self.eventually_list(service, SOON, |list| list.expect(addresses))
            .await;
    }

    /// Waits until every running node's list of a service passes a check.
    ///
    /// # Panics
    /// One does not within the time.
    pub async fn eventually_list(
        &self,
        service: &Service,
        within: Duration,
        check: impl Fn(&List) -> Result<()>,
    ) {
        for node in self.running() {
            let http = node.http();
            eventually(
                &format!("{} at {}", service.grouped(), node.address()),
                within,
                || async { check(&http.list(service).await?) },
            )
            .await;
        }
    }

    /// A new service that the mapper gives to this node.
    ///
    /// # Errors
    /// A node cannot be asked.
    pub async fn service_owned_by(&self, node: usize, stem: &str) -> Result<Service> {
        let http = self.node(node).http();
        let wanted = self.node(node).address();
        for _ in 0..1000 {
            let service = Service::unique(stem);
            if http.owner(&service).await? == wanted {
                return Ok(service);
            }
        }
        anyhow::bail!("none of 1000 names is owned by {wanted}")
    }

    // === The end ===

    /// Checks that no node ended by itself or panicked.
    ///
    /// # Errors
    /// One did.
    pub fn check(&self) -> Result<()> {
        self.nodes.iter().try_for_each(Node::check)
    }

    /// Prints the last lines of every node's log.
    pub fn print_logs(&self) {
        for node in &self.nodes {
            eprintln!("{}", node.log_tail());
        }
    }

    /// What a test does at its end: shows the logs if it fails, fails it if a node did.
    pub(crate) fn finish(&self) {
        if std::thread::panicking() {
            reaper::forget_dir(&self.dir);
            self.print_logs();
        } else if let Err(error) = self.check() {
            reaper::forget_dir(&self.dir);
            panic!("{error:#}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.finish();
        for node in &self.nodes {
            node.kill();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
