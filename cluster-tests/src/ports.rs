//! Loopback addresses of a cluster. Mostly it has a network `127.x.y.0/24` of its own, so that all clusters use the same
//! ports and never meet; a cluster on one host has ports of its own instead.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binary;

/// Main port of every node with an address of its own.
pub const HTTP: u16 = 8848;
/// Port of gRPC clients.
pub const GRPC: u16 = HTTP + GRPC_OFFSET;
/// Port between members.
pub const PEER: u16 = HTTP + PEER_OFFSET;

pub(crate) const GRPC_OFFSET: u16 = 1000;
const PEER_OFFSET: u16 = 1001;

/// Networks that are handed out: `127.1.1.x` to `127.254.254.x`.
const NETWORKS: u32 = 254 * 254;

/// Ranges of 100 main ports that are handed out on one host. Ten are followed by the ten of their derived ports; all lie
/// below the ports that systems give to outgoing connections.
const RANGES: u32 = 30;
/// First port of the first range.
const FIRST_RANGE: u32 = 10_000;
/// Distance of the main ports of two nodes on one host.
const NEXT_NODE: u16 = 10;

/// Where a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its host as members write it: a name, an IPv4 address, or an IPv6 address in brackets.
    pub host: String,
    /// The address to bind.
    pub ip: IpAddr,
    /// Its main port.
    pub port: u16,
    /// Network namespace that its process is started in, if not in that of this process.
    pub namespace: Option<String>,
}

impl Place {
    /// The form `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Where HTTP is served.
    pub fn http(&self) -> SocketAddr {
        (self.ip, self.port).into()
    }

    /// Where gRPC clients connect.
    pub fn grpc(&self) -> SocketAddr {
        (self.ip, self.port + GRPC_OFFSET).into()
    }

    /// Where other members connect.
    pub fn peer(&self) -> SocketAddr {
        (self.ip, self.port + PEER_OFFSET).into()
    }

    fn is_free(&self) -> bool {
        // A namespace is for its nodes alone, and its ports cannot be tried from here.
        self.namespace.is_some()
            || [self.http(), self.grpc(), self.peer()]
                .iter()
                .all(|address| TcpListener::bind(address).is_ok())
    }
}

/// Places that this process holds until the value is dropped.
#[derive(Debug)]
pub struct Block {
    places: Vec<Place>,
    proxy_ip: IpAddr,
    // Bound as long as the places are in use: the one thing two processes cannot both have.
    _claim: TcpListener,
}

impl Block {
    /// Takes a network whose first `n_nodes` addresses have all their ports free.
    ///
    /// # Panics
    /// None is free.
    pub fn claim(n_nodes: usize) -> Self {
        Self::first_free(NETWORKS, |number| {
            let (x, y) = (octet(number / 254), octet(number % 254));
            let ip = |last: u8| IpAddr::from(Ipv4Addr::new(127, x, y, last));
            let place = |last: u8| Place {
                host: ip(last).to_string(),
                ip: ip(last),
                port: HTTP,
                namespace: None,
            };
            let places = (1..=253).take(n_nodes).map(place).collect();
            (places, ip(253), (ip(254), HTTP).into())
        })
    }

    /// Takes ports that are free on this host, a name or an IPv6 address in brackets.
    ///
    /// # Panics
    /// The host has no address, or none of its ranges is free.
    pub fn claim_on(host: &str, n_nodes: usize) -> Self {
        let found = format!("{host}:0").to_socket_addrs().ok();
        let Some(ip) = found.and_then(|mut all| all.next()).map(|first| first.ip()) else {
            panic!("{host} has no address");
        };
        Self::first_free(RANGES, |number| {
            let first = FIRST_RANGE + number / 10 * 2_000 + number % 10 * 100;
            let first = u16::try_from(first).unwrap_or(u16::MAX);
            let place = |port: u16| Place {
                host: host.to_owned(),
                ip,
                port,
                namespace: None,
            };
            let ports = (first..first + 90).step_by(usize::from(NEXT_NODE));
            let places = ports.take(n_nodes).map(place).collect();
            (places, ip, (ip, first + 99).into())
        })
    }

    /// Takes one address in each of these network namespaces, given by their names; nothing else may use them.
    ///
    /// # Panics
    /// There is no namespace, or no port for the claim.
    pub fn claim_in(namespaces: &[(String, IpAddr)]) -> Self {
        let place = |(name, ip): &(String, IpAddr)| Place {
            host: ip.to_string(),
            ip: *ip,
            port: HTTP,
            namespace: Some(name.clone()),
        };
        let here = Ipv4Addr::LOCALHOST;
        Self::first_free(1, |_| {
            (
                namespaces.iter().map(place).collect(),
                here.into(),
                (here, 0).into(),
            )
        })
    }

    /// Tries so many choices of places, proxy address and claimed address, from one that other processes hardly begin at.
    fn first_free(n_choices: u32, choice: impl Fn(u32) -> (Vec<Place>, IpAddr, SocketAddr)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let start = std::process::id().wrapping_mul(37);
        for _ in 0..n_choices {
            let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % n_choices;
            let (places, proxy_ip, claimed) = choice(number);
            let Ok(claim) = TcpListener::bind(claimed) else {
                continue;
            };
            if binary::while_nothing_starts(|| places.iter().all(Place::is_free)) {
                return Block {
                    places,
                    proxy_ip,
                    _claim: claim,
                };
            }
        }
        panic!("none of {n_choices} places of a cluster has its ports free");
    }

    /// Where a node is, counted from 0.
    pub fn place(&self, node: usize) -> &Place {
        &self.places[node]
    }

    /// The address of a node, counted from 0.
    pub fn ip(&self, node: usize) -> IpAddr {
        self.places[node].ip
    }

    /// The address where proxies between nodes listen.
    pub fn proxy_ip(&self) -> IpAddr {
        self.proxy_ip
    }
}

fn octet(number: u32) -> u8 {
    u8::try_from(number % 254 + 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_never_share_an_address() {
        let (a, b) = (Block::claim(3), Block::claim(3));
        assert_ne!(a.ip(0), b.ip(0));
        assert!(a.ip(0).is_loopback() && a.ip(2) != a.proxy_ip());
    }

    #[test]
    fn two_blocks_on_one_host_never_share_a_port() {
        let blocks = [Block::claim_on("[::1]", 3), Block::claim_on("[::1]", 3)];
        let places = blocks.iter().flat_map(|block| &block.places);
        let mut addresses: Vec<SocketAddr> = places.flat_map(|p| [p.http(), p.grpc(), p.peer()]).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 18);
    }

    #[test]
    fn nodes_in_namespaces_have_the_addresses_there() {
        let ip = IpAddr::from([10, 1, 2, 3]);
        let block = Block::claim_in(&[("apart".into(), ip)]);
        let place = block.place(0);
        assert_eq!(
            (place.http(), place.namespace.as_deref()),
            ((ip, HTTP).into(), Some("apart"))
        );
    }

    #[test]
    fn a_place_with_a_port_in_use_is_passed_over() {
        let block = Block::claim(2);
        let _in_use = TcpListener::bind(block.place(1).grpc());
        assert!(block.place(0).is_free() && !block.place(1).is_free());
    }
}
