//! A 1.x client as a receiver of pushes: a UDP socket on loopback that polls lists, reads datagrams and acknowledges.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::http::{INSTANCE, Reply, joined};
use crate::model::{List, Service};
use crate::node::Node;

/// What the official Java client of the 1.x line calls itself.
pub const JAVA: &str = "Nacos-Java-Client:v1.4.7";

/// A receiver of pushes.
#[derive(Debug)]
pub struct UdpReceiver {
    socket: UdpSocket,
    ip: IpAddr,
    agent: String,
}

/// A datagram as it came.
#[derive(Clone, PartialEq, Debug)]
pub struct Datagram {
    /// Where from: acknowledgements go there.
    pub from: SocketAddr,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It was compressed.
    pub is_compressed: bool,
    /// Length of its text.
    pub length: usize,
    /// Its text as JSON.
    pub json: Value,
    /// The list that stands in it as a text.
    pub list: Value,
}

impl Datagram {
    /// Reads a datagram as clients do: compressed or not by its first two bytes.
    ///
    /// # Errors
    /// It is no push.
    pub fn read(from: SocketAddr, bytes: Vec<u8>) -> Result<Self> {
        let is_compressed = bytes.starts_with(&[0x1f, 0x8b]);
        let mut text = String::new();
        match is_compressed {
            true => GzDecoder::new(&*bytes).read_to_string(&mut text)?,
            false => (&*bytes).read_to_string(&mut text)?,
        };
        let json: Value = serde_json::from_str(&text).with_context(|| format!("no JSON in {text}"))?;
        let inner = json["data"].as_str().context("no list in the datagram")?;
        Ok(Datagram {
            list: serde_json::from_str(inner)?,
            length: text.len(),
            from,
            bytes,
            is_compressed,
            json,
        })
    }

    /// The key under which the Java client keeps the list: the grouped name, and the clusters if there are any.
    ///
    /// # Errors
    /// The list has no name.
    pub fn cache_key(&self) -> Result<String> {
        let name = self.list["name"].as_str().context("no name")?;
        Ok(match self.list["clusters"].as_str() {
            None | Some("") => name.to_owned(),
            Some(clusters) => format!("{name}@@{clusters}"),
        })
    }

    /// The acknowledgement that the Java and Go clients send: the time as a text.
    pub fn ack(&self) -> Value {
        json!({"type": "push-ack", "lastRefTime": self.json["lastRefTime"].to_string(), "data": ""})
    }
}

impl UdpReceiver {
    /// A receiver on `127.0.0.1` that calls itself the Java client.
    ///
    /// # Errors
    /// No port is free.
    pub async fn open() -> Result<Self> {
        Self::open_as(Ipv4Addr::LOCALHOST.into(), JAVA).await
    }

    /// A receiver on this address with this `User-Agent`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn open_as(ip: IpAddr, agent: &str) -> Result<Self> {
        Ok(UdpReceiver {
            socket: UdpSocket::bind((ip, 0)).await?,
            ip,
            agent: agent.to_owned(),
        })
    }

    /// The port to be pushed to.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn port(&self) -> Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Polls a list as the Java client does, which subscribes.
    ///
    /// # Errors
    /// There is no answer, or it is no list.
    pub async fn poll(&self, node: &Node, service: &Service, clusters: &str) -> Result<List> {
        let ip = self.ip.to_string();
        List::from_json(self.poll_with(node, service, clusters, &ip).await?.json()?)
    }

    /// Polls with this `clientIP`.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn poll_with(
        &self,
        node: &Node,
        service: &Service,
        clusters: &str,
        client_ip: &str,
    ) -> Result<Reply> {
        let http = node.http();
        let params = joined(
            service,
            [
                ("clusters", clusters),
                ("udpPort", &self.port()?.to_string()),
                ("clientIP", client_ip),
                ("healthyOnly", "false"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        );
        let request = http
            .request(Method::GET, &format!("{INSTANCE}/list"))
            .query(&params)
            .header("User-Agent", &self.agent);
        http.send(request).await
    }

    /// The next datagram, not acknowledged.
    ///
    /// # Errors
    /// None comes in time, or it is no push.
    pub async fn next(&self, within: Duration) -> Result<Datagram> {
        let mut buffer = vec![0u8; 1 << 16];
        let (length, from) = timeout(within, self.socket.recv_from(&mut buffer))
            .await
            .context("no datagram in time")??;
        buffer.truncate(length);
        Datagram::read(from, buffer)
    }

    /// Reads and acknowledges datagrams until one holds exactly these instances.
    ///
    /// # Errors
    /// None comes in time.
    pub async fn pushed(
        &self,
        service: &Service,
        addresses: &[impl AsRef<str>],
        within: Duration,
    ) -> Result<Datagram> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let left = deadline.duration_since(tokio::time::Instant::now());
            let datagram = self.next(left).await?;
            self.ack(&datagram).await?;
            ensure!(
                datagram.list["name"] == service.grouped(),
                "a push of another service: {datagram:?}"
            );
            if List::from_json(datagram.list.clone())?.expect(addresses).is_ok() {
                return Ok(datagram);
            }
        }
    }

    /// Acknowledges as the Java client does.
    ///
    /// # Errors
    /// It cannot be sent.
    pub async fn ack(&self, datagram: &Datagram) -> Result<()> {
        self.send(datagram.from, datagram.ack().to_string().as_bytes())
            .await
    }

    /// Sends any bytes from the port that is pushed to.
    ///
    /// # Errors
    /// They cannot be sent.
    pub async fn send(&self, to: SocketAddr, bytes: &[u8]) -> Result<()> {
        self.socket.send_to(bytes, to).await?;
        Ok(())
    }
}
