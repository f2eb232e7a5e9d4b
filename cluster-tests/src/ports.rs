//! Loopback addresses of a cluster: each has a network `127.x.y.0/24` of its own, so that all clusters use the same
//! ports and never meet.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binary;

/// Main port of every node.
pub const HTTP: u16 = 8848;
/// Port of gRPC clients.
pub const GRPC: u16 = HTTP + 1000;
/// Port between members.
pub const PEER: u16 = HTTP + 1001;

/// Networks that are handed out: `127.1.1.x` to `127.254.254.x`.
const NETWORKS: u32 = 254 * 254;

/// A network that this process holds until the value is dropped.
#[derive(Debug)]
pub struct Block {
    x: u8,
    y: u8,
    // Bound as long as the network is in use: the one thing two processes cannot both have.
    _claim: TcpListener,
}

impl Block {
    /// Takes a network whose first `n_nodes` addresses have all their ports free.
    ///
    /// # Panics
    /// None is free.
    pub fn claim(n_nodes: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let start = std::process::id().wrapping_mul(37);
        for _ in 0..NETWORKS {
            let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % NETWORKS;
            let (x, y) = (octet(number / 254), octet(number % 254));
            let Ok(claim) = TcpListener::bind((Ipv4Addr::new(127, x, y, 254), HTTP)) else {
                continue;
            };
            let block = Block { x, y, _claim: claim };
            if binary::while_nothing_starts(|| (0..n_nodes).all(|node| block.is_free(node))) {
                return block;
            }
        }
        panic!("no network 127.x.y has free ports {HTTP}, {GRPC} and {PEER}");
    }

    /// The address of a node, counted from 0.
    pub fn ip(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(127, self.x, self.y, u8::try_from(node + 1).unwrap_or(u8::MAX))
    }

    /// The address where proxies between nodes listen.
    pub fn proxy_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.x, self.y, 253)
    }

    fn is_free(&self, node: usize) -> bool {
        [HTTP, GRPC, PEER]
            .iter()
            .all(|port| TcpListener::bind(SocketAddr::from((self.ip(node), *port))).is_ok())
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
    fn a_network_with_a_port_in_use_is_passed_over() {
        let block = Block::claim(1);
        let _in_use = TcpListener::bind((block.ip(2), GRPC));
        assert!(block.is_free(0) && !block.is_free(2));
    }
}
