//! The network between nodes in namespaces: `scripts/chaos.sh` makes them, and here packets from one to another are lost.
//!
//! A packet is lost by a wrong neighbour entry: the sender puts it on the wire to a hardware address that nobody has. So a
//! cut is silent and one-way, and what the load sends from its own address passes.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A hardware address that no interface has.
const NOBODY: &str = "02:00:00:00:00:fe";
/// The interface in each namespace.
const DEVICE: &str = "eth0";

/// Namespaces of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Namespaces {
    nodes: Vec<(String, IpAddr)>,
}

impl Namespaces {
    /// Reads `NAME=A.B.C`: node i is in the namespace `NAME-i` and has the address `A.B.C.(i + 1)` there.
    ///
    /// # Errors
    /// It has another form.
    pub(crate) fn read(text: &str, n_nodes: u8) -> Result<Self> {
        let (name, network) = text.split_once('=').context("namespaces are NAME=A.B.C")?;
        let nodes = (0..n_nodes).map(|i| {
            let ip: Ipv4Addr = format!("{network}.{}", i + 1).parse()?;
            Ok((format!("{name}-{i}"), ip.into()))
        });
        let nodes = nodes.collect::<Result<_>>()?;
        Ok(Namespaces { nodes })
    }

    /// Name and address of each.
    pub(crate) fn all(&self) -> &[(String, IpAddr)] {
        &self.nodes
    }

    /// Loses all packets that one node sends to another.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn cut(&self, from: usize, to: usize) -> Result<()> {
        self.neighbour(from, to, &["replace"], &["lladdr", NOBODY, "nud", "permanent"])
    }

    /// Passes them again.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn heal(&self, from: usize, to: usize) -> Result<()> {
        self.neighbour(from, to, &["del"], &[])
    }

    fn neighbour(&self, from: usize, to: usize, verb: &[&str], what: &[&str]) -> Result<()> {
        let (namespace, _) = &self.nodes[from];
        let address = self.nodes[to].1.to_string();
        let mut command = Command::new("ip");
        command
            .args(["-n", namespace, "neigh"])
            .args(verb)
            .args([&address, "dev", DEVICE]);
        let output = command.args(what).output()?;
        ensure!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_read() -> Result<()> {
        let found = Namespaces::read("chaos=10.1.2", 2)?;
        let wanted = [
            ("chaos-0".to_owned(), [10, 1, 2, 1]),
            ("chaos-1".to_owned(), [10, 1, 2, 2]),
        ];
        let wanted: Vec<(String, IpAddr)> = wanted.map(|(name, ip)| (name, IpAddr::from(ip))).into();
        assert_eq!(found.all(), wanted);
        assert!(Namespaces::read("10.1.2", 2).is_err() && Namespaces::read("chaos=10.1", 2).is_err());
        Ok(())
    }
}
