//! What operators ask about clients: which there are, what each publishes and subscribes to.
//!
//! A client is a connection that this node holds, known by the id that it was told, or an address (ip and port) that
//! beats or that is pushed to over UDP, known as `ip:port#true`. Connections of other members are named `number@member` where they publish.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_core::registry::change::ClientId;
use rollcall_core::registry::row::{Publication, Publisher};
use rollcall_core::{Instance, MemberId, Millis, Now, ServiceKey};
use smol_str::{SmolStr, format_smolstr};

use crate::connection::Connection;
use crate::node::Node;
use crate::request::{ConnectionInfo, UdpTarget};

/// A client as operators see it.
#[derive(Clone, Debug)]
pub struct ClientStatus {
    /// Its id.
    pub id: SmolStr,
    /// When it opened its connection or last registered, in milliseconds since the Unix epoch.
    pub updated: Millis,
    /// What it is.
    pub kind: ClientKind,
}

/// What a client is.
#[derive(Clone, Debug)]
pub enum ClientKind {
    /// A connection that this node holds.
    Connection(ConnectionInfo),
    /// A connection that another member holds.
    Remote,
    /// An address that beats, or that is pushed to over UDP.
    Address {
        /// Address.
        ip: SmolStr,
        /// Port.
        port: u16,
    },
}

/// Who publishes a row of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePublisher {
    /// Id of the client.
    pub client: SmolStr,
    /// Address of the row.
    pub ip: SmolStr,
    /// Its port.
    pub port: u16,
    /// Its cluster.
    pub cluster: SmolStr,
}

/// A client that this node pushes a service to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceSubscriber {
    /// The service.
    pub service: ServiceKey,
    /// Id of the client.
    pub client: SmolStr,
    /// Its address.
    pub ip: SmolStr,
    /// The port that is pushed to over UDP; 0 for a connection, which has none that others could reach.
    pub port: u16,
    /// What the client calls itself.
    pub agent: SmolStr,
    /// Name of its application; may be empty.
    pub app: SmolStr,
}

impl ServiceSubscriber {
    fn connected(service: ServiceKey, info: &ConnectionInfo) -> Self {
        ServiceSubscriber {
            service,
            client: info.text_id.clone(),
            ip: info.client_ip.clone(),
            port: 0,
            agent: info.client_version.clone(),
            app: info.app.clone(),
        }
    }

    fn polling(service: ServiceKey, target: &UdpTarget, agent: &SmolStr) -> Self {
        ServiceSubscriber {
            service,
            client: address_id(&target.ip, target.port),
            ip: target.ip.clone(),
            port: target.port,
            agent: agent.clone(),
            app: SmolStr::default(),
        }
    }

    /// Its address as operators see it: with the port, if it has one.
    pub fn address(&self) -> SmolStr {
        match self.port {
            0 => self.ip.clone(),
            port => format_smolstr!("{}:{port}", self.ip),
        }
    }
}

/// A connection of this node as operators see it.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// What its client said of itself.
    pub info: ConnectionInfo,
    /// When it was opened, in milliseconds since the Unix epoch.
    pub opened: Millis,
    /// Time since its client was last heard.
    pub idle: Millis,
}

/// A client by its id.
enum Found {
    Connection(Arc<Connection>),
    Remote(ClientId),
    Address(SmolStr, u16),
}

impl Node {
    /// The ids of the connections that this node holds, then those of all addresses that beat or that it pushes to over
    /// UDP. Looks at every row.
    pub fn client_ids(&self) -> Vec<SmolStr> {
        let connections = self.connections.all();
        let mut ids: Vec<_> = connections.iter().map(|c| c.info.text_id.clone()).collect();
        let mut addresses = self.registry.beating_addresses();
        let targets = self.pusher.udp_targets().into_iter();
        addresses.extend(targets.map(|target| (target.ip, target.port)));
        addresses.sort_unstable();
        addresses.dedup();
        ids.extend(addresses.iter().map(|(ip, port)| address_id(ip, *port)));
        ids
    }

    /// A client. An address is looked for in every service. `now` tells when one last polled.
    pub fn client(&self, id: &str, now: Now) -> Option<ClientStatus> {
        let (updated, kind) = match self.find_client(id)? {
            Found::Connection(c) => (opened(c.client), ClientKind::Connection(c.info.clone())),
            Found::Remote(client) => {
                self.registry.publications_of(client)?;
                (opened(client), ClientKind::Remote)
            }
            Found::Address(ip, port) => {
                let rows = self.registry.beat_rows_at(&ip, port);
                let newest = rows.iter().map(|(.., stamp)| Millis(stamp.time >> 16)).max();
                let target = UdpTarget { ip, port };
                let polled = self.pusher.udp_subscriptions(&target);
                let polled = polled.map(|(_, at, _)| Millis(now.wall.0.saturating_sub(now.mono.since(at).0)));
                let UdpTarget { ip, port } = target;
                (newest.max(polled)?, ClientKind::Address { ip, port })
            }
        };
        let id = SmolStr::new(id);
        Some(ClientStatus { id, updated, kind })
    }

    /// What a client publishes, sorted by service; `None` when there is no such client.
    pub fn client_publications(&self, id: &str) -> Option<Vec<(ServiceKey, Arc<Instance>)>> {
        match self.find_client(id)? {
            Found::Connection(connection) => self.registry.publications_of(connection.client),
            Found::Remote(client) => self.registry.publications_of(client),
            Found::Address(ip, port) => {
                let rows = self.registry.beat_rows_at(&ip, port);
                let rows: Vec<_> = rows.into_iter().map(|(service, row, _)| (service, row)).collect();
                let target = UdpTarget { ip, port };
                let is_client = !rows.is_empty() || self.pusher.udp_subscriptions(&target).is_some();
                is_client.then_some(rows)
            }
        }
    }

    /// What a client subscribes to; `None` when there is no such client. Only what this node pushes to is known to
    /// subscribe to anything.
    pub fn client_subscriptions(&self, id: &str, now: Now) -> Option<Vec<ServiceSubscriber>> {
        match self.find_client(id)? {
            Found::Connection(connection) => {
                let mut services = connection.subscriptions();
                services.retain(|service| self.pusher.has(connection.id, service));
                let services = services.into_iter();
                Some(
                    services
                        .map(|service| ServiceSubscriber::connected(service, &connection.info))
                        .collect(),
                )
            }
            Found::Address(ip, port) => {
                let target = UdpTarget { ip, port };
                let Some((agent, _, services)) = self.pusher.udp_subscriptions(&target) else {
                    return self.client(id, now).map(|_| Vec::new());
                };
                let services = services.into_iter();
                Some(
                    services
                        .map(|service| ServiceSubscriber::polling(service, &target, &agent))
                        .collect(),
                )
            }
            Found::Remote(_) => self.client(id, now).map(|_| Vec::new()),
        }
    }

    /// Who publishes a service, sorted by row.
    pub fn publishers(&self, service: &ServiceKey) -> Vec<ServicePublisher> {
        let publications = self.registry.publications_in(service);
        if publications.is_empty() {
            return Vec::new();
        }
        let connections = self.connections.all().into_iter();
        let here: BTreeMap<ClientId, _> = connections.map(|c| (c.client, c.info.text_id.clone())).collect();
        let view = self.engine.view();
        let name = |client: ClientId| {
            here.get(&client).cloned().unwrap_or_else(|| {
                let member = view.address(client.origin).cloned().unwrap_or_default();
                format_smolstr!("{}@{member}", client.number)
            })
        };
        let publisher = |publication: Publication| {
            let Instance {
                ip, port, cluster, ..
            } = &*publication.instance;
            ServicePublisher {
                client: match publication.publisher {
                    Publisher::Connection(client) => name(client),
                    Publisher::Beats => address_id(ip, *port),
                },
                ip: ip.clone(),
                port: *port,
                cluster: cluster.clone(),
            }
        };
        publications.into_iter().map(publisher).collect()
    }

    /// The clients that this node pushes a service to for which `is_meant` holds: connections first, then addresses that
    /// poll.
    pub fn subscribers(&self, is_meant: &dyn Fn(&ServiceKey) -> bool) -> Vec<ServiceSubscriber> {
        let subscriptions = self.pusher.subscribers(is_meant).into_iter();
        let connected = subscriptions.filter_map(|(service, id)| {
            let connection = self.connections.get(id)?;
            Some(ServiceSubscriber::connected(service, &connection.info))
        });
        let mut found: Vec<_> = connected.collect();
        for target in self.pusher.udp_targets() {
            if let Some((agent, _, services)) = self.pusher.udp_subscriptions(&target) {
                let meant = services.into_iter().filter(|service| is_meant(service));
                found.extend(meant.map(|service| ServiceSubscriber::polling(service, &target, &agent)));
            }
        }
        found
    }

    /// Address of the member that takes care of a client that beats: the owner of the first service in which it does,
    /// this node while it beats in none.
    pub fn judge_of(&self, ip: &str, port: u16) -> SmolStr {
        let rows = self.registry.beat_rows_at(ip, port);
        let first = rows.first().and_then(|(service, ..)| self.owner(service));
        first.unwrap_or_else(|| self.config.self_address.clone())
    }

    /// The connections that this node holds, oldest first.
    pub fn connections(&self, now: Now) -> Vec<ConnectionStatus> {
        let connections = self.connections.all().into_iter();
        connections
            .map(|c| ConnectionStatus {
                info: c.info.clone(),
                opened: opened(c.client),
                idle: c.idle(now.mono),
            })
            .collect()
    }

    fn find_client(&self, id: &str) -> Option<Found> {
        if let Some(address) = id.strip_suffix("#true") {
            let (ip, port) = address.rsplit_once(':')?;
            return Some(Found::Address(SmolStr::new(ip), port.parse().ok()?));
        }
        if let Some((number, member)) = id.split_once('@') {
            let number = number.parse().ok()?;
            let origin = MemberId::of(member);
            return Some(Found::Remote(ClientId { origin, number }));
        }
        let connections = self.connections.all().into_iter();
        connections
            .into_iter()
            .find(|c| c.info.text_id == id)
            .map(Found::Connection)
    }
}

fn address_id(ip: &str, port: u16) -> SmolStr {
    format_smolstr!("{ip}:{port}#true")
}

/// A connection's number is the hybrid time at which it was opened.
fn opened(client: ClientId) -> Millis {
    Millis(client.plain_number() >> 16)
}
