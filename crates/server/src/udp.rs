//! Pushes to 1.x clients: one UDP socket, which datagrams leave by and acknowledgements come back to.
//!
//! Who is pushed to, when, and how often is the node's business. Form of both as recorded (`spec/udp-push.md` §4-§6).

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use rollcall_node::PushWay;
use rollcall_node::action::{Actions, UdpPush};
use rollcall_node::request::UdpTarget;
use serde::Deserialize;
use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::executor::Executor;
use crate::json;
use crate::service_info::{self, Header};
use crate::transport::Generation;

/// Bytes from which on a datagram is compressed. Clients tell by its first two bytes.
const COMPRESSED_FROM: usize = 1024;
/// Largest datagram that IPv4 carries. A longer list is lost, and the client gets it by its next poll.
const DATAGRAM_MAX: usize = 65_507;
/// Pushes that may wait for the socket.
const QUEUE: usize = 4096;
/// Host names that may be looked up at a time.
const LOOKUPS: usize = 16;
/// Longest time to look a host name up.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a failed receipt, so that a broken socket does not keep a core busy.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);

/// The way to the socket.
#[derive(Debug)]
pub struct Udp {
    queue: mpsc::Sender<UdpPush>,
    lookups: Arc<Semaphore>,
}

/// Binds the socket; port 0 is any free one.
///
/// # Errors
/// As the operating system says.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

impl Udp {
    /// Starts to send and to receive, until `stop`.
    pub fn start(socket: UdpSocket, exec: Executor, stop: CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let socket = Arc::new(socket);
        let (sending, receiving) = (
            send(socket.clone(), exec.clone(), receiver),
            receive(socket, exec),
        );
        tokio::spawn(async move {
            tokio::select! {
                () = sending => {}
                () = receiving => {}
                () = stop.cancelled() => {}
            }
        });
        Udp {
            queue: sender,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// Queues a push; gives it back when the queue is full.
    ///
    /// # Errors
    /// The push.
    pub fn push(&self, push: UdpPush) -> Result<(), Box<UdpPush>> {
        self.queue.try_send(push).map_err(|error| match error {
            mpsc::error::TrySendError::Full(push) | mpsc::error::TrySendError::Closed(push) => Box::new(push),
        })
    }

    /// Pushes that wait for the socket.
    pub fn n_waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Resolves a host name in a task of its own and tells `then` its address, unless too many are being resolved.
    /// False: too many are.
    pub fn look_up(&self, host: &str, then: impl FnOnce(IpAddr) + Send + 'static) -> bool {
        let Ok(permit) = self.lookups.clone().try_acquire_owned() else {
            return false;
        };
        let host = host.to_owned();
        tokio::spawn(async move {
            let found = tokio::time::timeout(LOOKUP_LIMIT, tokio::net::lookup_host((host.as_str(), 0))).await;
            drop(permit);
            match found {
                Ok(Ok(mut addresses)) => {
                    if let Some(address) = addresses.next() {
                        then(address.ip());
                    }
                }
                _ => debug!(host, "a polling client's host name cannot be resolved"),
            }
        });
        true
    }
}

/// The canonical text of an address, as targets have it.
pub fn ip_text(ip: IpAddr) -> SmolStr {
    format_smolstr!("{}", ip.to_canonical())
}

async fn send(socket: Arc<UdpSocket>, exec: Executor, mut queue: mpsc::Receiver<UdpPush>) {
    let is_v6 = socket.local_addr().is_ok_and(|address| address.is_ipv6());
    let mut last = Datagrams::default();
    while let Some(push) = queue.recv().await {
        let datagram = last.of(&push);
        if datagram.len() > DATAGRAM_MAX {
            exec.metrics().udp_too_large.increment();
            continue;
        }
        let sent = match address(&push.target, is_v6) {
            Some(address) => socket.send_to(&datagram, address).await.map(|_| ()),
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        match sent {
            Ok(()) => exec.node().push_sent(PushWay::Udp, push.changed, exec.now()),
            Err(error) => {
                debug!(ip = %push.target.ip, port = push.target.port, %error, "a push by UDP could not be sent");
                let mut actions = Actions::default();
                exec.node()
                    .udp_failed(&push.target, push.stamp, exec.now(), &mut actions);
                exec.run(actions);
            }
        }
    }
}

/// The address to send to: an IPv6 socket reaches IPv4 addresses in their mapped form.
fn address(target: &UdpTarget, is_v6: bool) -> Option<SocketAddr> {
    let ip = match target.ip.parse().ok()? {
        IpAddr::V4(ip) if is_v6 => IpAddr::V6(ip.to_ipv6_mapped()),
        ip => ip,
    };
    Some(SocketAddr::new(ip, target.port))
}

async fn receive(socket: Arc<UdpSocket>, exec: Executor) {
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                let stamp = buffer.get(..length).and_then(acknowledged);
                match stamp {
                    Some(stamp) => {
                        let target = UdpTarget {
                            ip: ip_text(from.ip()),
                            port: from.port(),
                        };
                        exec.node().udp_acked(&target, stamp, exec.now());
                    }
                    None => exec.metrics().udp_bad_acks.increment(),
                }
            }
            Err(error) => {
                debug!(%error, "cannot receive by UDP");
                tokio::time::sleep(RECEIVE_PAUSE).await;
            }
        }
    }
}

/// The datagrams of one stamp, by clusters text: made once for all subscribers that get the same list.
#[derive(Default)]
struct Datagrams {
    stamp: u64,
    made: Vec<(SmolStr, Bytes)>,
}

impl Datagrams {
    /// Texts that are kept; further ones of the same stamp are made each time.
    const KEPT: usize = 16;

    fn of(&mut self, push: &UdpPush) -> Bytes {
        if self.stamp != push.stamp {
            self.stamp = push.stamp;
            self.made.clear();
        }
        if let Some((_, datagram)) = self.made.iter().find(|(clusters, _)| *clusters == push.clusters) {
            return datagram.clone();
        }
        let datagram = Bytes::from(compressed(document(push)));
        if self.made.len() < Self::KEPT {
            self.made.push((push.clusters.clone(), datagram.clone()));
        }
        datagram
    }
}

/// The JSON of a push: the list as a text within it.
fn document(push: &UdpPush) -> Vec<u8> {
    let mut list = Vec::new();
    let header = Header {
        name: Some(push.service.grouped_name()),
        group: None,
        clusters: Some(&push.clusters),
        last_ref_time: push.last_ref_time,
        cache: push.cache,
        generation: Generation::Two,
    };
    service_info::write_unprotected(&mut list, header, &push.view);
    let mut out = Vec::with_capacity(list.len() + list.len() / 4 + 64);
    out.extend_from_slice(b"{\"type\":\"dom\",\"data\":");
    json::string(&mut out, &String::from_utf8_lossy(&list));
    out.extend_from_slice(b",\"lastRefTime\":");
    json::unsigned(&mut out, push.stamp);
    out.push(b'}');
    out
}

fn compressed(document: Vec<u8>) -> Vec<u8> {
    if document.len() < COMPRESSED_FROM {
        return document;
    }
    let mut encoder = GzEncoder::new(Vec::with_capacity(document.len() / 2), Compression::default());
    // Writing to a vector does not fail; if it did, the plain form is readable as well.
    match encoder.write_all(&document).and_then(|()| encoder.finish()) {
        Ok(bytes) => bytes,
        Err(_) => document,
    }
}

#[derive(Deserialize)]
struct Ack {
    #[serde(rename = "lastRefTime")]
    stamp: Value,
}

/// The stamp that an acknowledgement names: a number or a text, whatever else is in the object or follows it.
pub fn acknowledged(datagram: &[u8]) -> Option<u64> {
    if !datagram.trim_ascii_start().starts_with(b"{") {
        return None; // A struct may be read from an array as well, which clients never send.
    }
    let ack = serde_json::Deserializer::from_slice(datagram)
        .into_iter::<Ack>()
        .next()?
        .ok()?;
    match ack.stamp {
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            // Beyond that a float does not hold every whole number.
            (float.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&float)).then_some(float as u64)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rollcall_core::registry::view::AnswerBudget;
    use rollcall_core::{Millis, ServiceKey, ServiceView};

    use super::*;

    fn push(clusters: &str, stamp: u64) -> UdpPush {
        let service = ServiceKey::new("", "", "udp-unknown");
        UdpPush {
            target: UdpTarget {
                ip: "127.0.0.1".into(),
                port: 7,
            },
            stamp,
            view: Arc::new(ServiceView::empty(
                service.clone(),
                1,
                Arc::new(AnswerBudget::new(0)),
            )),
            service,
            clusters: clusters.into(),
            last_ref_time: Millis(17),
            changed: None,
            cache: Millis(10_000),
        }
    }

    #[test]
    fn a_push_is_a_text_within_an_object_as_recorded() {
        let text = String::from_utf8(document(&push("c9", 5_418_769))).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"type":"dom","data":"{\"name\":\"DEFAULT_GROUP@@udp-unknown\",\"clusters\":\"c9\","#,
                r#"\"cacheMillis\":10000,\"hosts\":[],\"lastRefTime\":17,\"checksum\":\"\",\"allIPs\":false,"#,
                r#"\"reachProtectionThreshold\":false,\"valid\":true}","lastRefTime":5418769}"#
            )
        );
    }

    #[test]
    fn datagrams_are_compressed_from_1024_bytes_on() {
        assert_eq!(compressed(vec![b'x'; 1023]), vec![b'x'; 1023]);
        let packed = compressed(vec![b'x'; 1024]);
        assert!(packed.starts_with(&[0x1f, 0x8b]) && packed.len() < 100);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*packed)
            .read_to_end(&mut plain)
            .unwrap();
        assert_eq!(plain, vec![b'x'; 1024]);
    }

    #[test]
    fn one_datagram_serves_all_who_get_the_same_list() {
        let mut last = Datagrams::default();
        let first = last.of(&push("", 1));
        assert_eq!(last.of(&push("", 1)).as_ptr(), first.as_ptr());
        assert_ne!(last.of(&push("c1", 1)), first);
        assert_ne!(last.of(&push("", 2)), first);
    }

    #[test]
    fn acknowledgements_are_read_as_recorded() {
        for good in [
            r#"{"type":"push-ack","lastRefTime":"123","data":""}"#,
            r#"{"type":"push-ack","lastRefTime":123,"data":""}"#,
            r#"{"lastRefTime":123}"#,
            r#"{"type":"zzz","lastRefTime":"123","data":"x","zzz":1}"#,
            "  {\n \"lastRefTime\": \" 123 \"\n} \r\n",
            "{\"lastRefTime\":\"123\"}\0",
            r#"{"lastRefTime":"123"}zzz"#,
            r#"{"lastRefTime":123.0}"#,
        ] {
            assert_eq!(acknowledged(good.as_bytes()), Some(123), "{good}");
        }
        for bad in [
            "",
            "zzz",
            "123",
            r#"[{"lastRefTime":"123"}]"#,
            r#"["123"]"#,
            r#"{"type":"push-ack","data":""}"#,
            r#"{"lastRefTime":null}"#,
            r#"{"lastRefTime":-1}"#,
            r#"{"lastRefTime":1.5}"#,
            r#"{"lastRefTime":"x"}"#,
        ] {
            assert_eq!(acknowledged(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(acknowledged(&[0x1f, 0x8b, 0]), None);
    }

    #[test]
    fn an_ipv6_socket_reaches_ipv4_targets() {
        let target = push("", 1).target;
        assert_eq!(address(&target, false), Some(([127, 0, 0, 1], 7).into()));
        assert_eq!(
            address(&target, true).unwrap().to_string(),
            "[::ffff:127.0.0.1]:7"
        );
    }
}
