//! Recorded datagrams: ports that listen and acknowledge as the recorder's did.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::udp::{Datagram, JAVA};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::try_join_all;
use serde_json::{Map, Value, json};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::case::{Case, numbered};
use crate::compare::{has_all_messages, recorded_among};
use crate::http::Replayer;
use crate::pushes::without_superseded;

/// Largest datagram.
const LARGEST: usize = 1 << 16;
/// From this length on a datagram is compressed.
const COMPRESSED_FROM: u64 = 1024;
/// Longest wait for the datagram that follows a subscription.
const PATIENCE: Duration = Duration::from_secs(5);
/// A datagram that is not acknowledged comes again within this time.
const REPEATED_WITHIN: Duration = Duration::from_secs(12);
/// Service that the table of acknowledgements subscribes to. It has no instances.
const ACKED_SERVICE: &str = "udp-acks";
/// How long to go on listening for datagrams beyond the recorded ones.
const LINGER: Duration = Duration::from_millis(300);
/// Cases whose time must pass as it did.
const TIMED: [&str; 2] = [AGEING, "expiry: "];
/// Cases that watch rows age. When a server looks at them is its own affair, so a datagram may come before the case
/// that shows it, in an earlier one of these; and the lists that are polled are not compared.
pub(crate) const AGEING: &str = "health: ";

/// The datagrams of a case, in the form in which they are compared: sorted by port, sizes without the digits of the
/// server's clock. Adds their pointers to those of the case.
pub(crate) fn recorded(raw: &Value, volatile: &mut Vec<String>, unordered: &mut Vec<String>) -> Vec<Value> {
    let list = raw["datagrams"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut list: Vec<&Value> = list.iter().collect();
    list.sort_by_key(|datagram| datagram["to"].to_string());
    for (i, datagram) in list.iter().enumerate() {
        for (field, pointers) in [("volatile", &mut *volatile), ("unordered", &mut *unordered)] {
            let own = datagram[field].as_array().into_iter().flatten();
            let own = own.filter_map(Value::as_str);
            pointers.extend(own.map(|pointer| format!("/received/{i}{pointer}")));
        }
    }
    if volatile.iter().any(|pointer| pointer == "/datagrams") {
        volatile.push("/received".into());
    }
    list.into_iter()
        .map(|datagram| {
            let length = datagram["uncompressed_size"].as_u64().unwrap_or_default();
            let is_compressed = datagram["gzip"] == true;
            shown(&datagram["to"], length, is_compressed, datagram["json"].clone())
        })
        .collect()
}

/// A datagram as it is compared.
fn shown(to: &Value, length: u64, is_compressed: bool, json: Value) -> Value {
    let n_digits = json["lastRefTime"].to_string().len() as u64;
    json!({
        "to": to,
        "length_beside_time": length.saturating_sub(n_digits),
        "is_compressed_when_long": is_compressed == (length >= COMPRESSED_FROM),
        "json": json,
    })
}

/// The ports of a file.
#[derive(Debug)]
pub(crate) struct Ports {
    open: BTreeMap<String, Port>,
    came: UnboundedReceiver<Value>,
    coming: UnboundedSender<Value>,
    /// What came in a case about ageing and was not recorded there.
    early: Vec<Value>,
}

#[derive(Debug)]
struct Port {
    number: u16,
    reader: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The letter in `<udp port X>`, with what stands before and behind the mark.
fn marked(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("<udp port ")?;
    let (letter, behind) = rest.split_once('>')?;
    Some((before, letter, behind))
}

impl Ports {
    pub(crate) fn new() -> Self {
        let (coming, came) = mpsc::unbounded_channel();
        Ports {
            open: BTreeMap::new(),
            came,
            coming,
            early: Vec::new(),
        }
    }

    /// The request with the ports of ours in place of the recorded ones; a port is opened when it is first named.
    ///
    /// # Errors
    /// No port is free.
    pub(crate) async fn with_ports(&mut self, mut request: Value) -> Result<Value> {
        let named = request["query"]["clientIP"].as_str();
        let ip = named.and_then(|ip| ip.parse().ok());
        for value in request["query"]
            .as_object_mut()
            .into_iter()
            .flat_map(|q| q.values_mut())
        {
            if let Some((before, letter, behind)) = value.as_str().and_then(marked) {
                let number = self
                    .number(letter, ip.unwrap_or(Ipv4Addr::LOCALHOST.into()))
                    .await?;
                *value = json!(format!("{before}{number}{behind}"));
            }
        }
        Ok(request)
    }

    async fn number(&mut self, letter: &str, ip: IpAddr) -> Result<u16> {
        if let Some(port) = self.open.get(letter) {
            return Ok(port.number);
        }
        let socket = UdpSocket::bind((ip, 0)).await?;
        let number = socket.local_addr()?.port();
        let (to, coming) = (json!(letter), self.coming.clone());
        let reader = tokio::spawn(async move {
            while let Ok(datagram) = receive(&socket).await {
                // The server is gone then.
                let _ = socket
                    .send_to(datagram.ack().to_string().as_bytes(), datagram.from)
                    .await;
                let mut json = datagram.json;
                json["data"] = datagram.list;
                let shown = shown(&to, datagram.length as u64, datagram.is_compressed, json);
                if coming.send(shown).is_err() {
                    return;
                }
            }
        });
        self.open.insert(letter.to_owned(), Port { number, reader });
        Ok(number)
    }

    /// An answer with the recorded ports in place of ours.
    pub(crate) fn as_recorded(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|field| self.as_recorded(field)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.as_recorded(item)),
            Value::Number(number) => {
                let port = self
                    .open
                    .iter()
                    .find(|(_, port)| number.as_u64() == Some(port.number.into()));
                if let Some((letter, _)) = port {
                    *value = json!(format!("<udp port {letter}>"));
                }
            }
            Value::String(text) => {
                for (letter, port) in &self.open {
                    *text = text.replace(&format!(":{}", port.number), &format!(":<udp port {letter}>"));
                }
            }
            Value::Bool(_) | Value::Null => {}
        }
    }

    /// Forgets what came until now.
    pub(crate) fn forget(&mut self) {
        while self.came.try_recv().is_ok() {}
    }

    /// What comes within this time for the services of the case, sorted by port. Where time does not matter, it ends a
    /// little after all that was recorded has come.
    pub(crate) async fn listen(&mut self, case: &Case, listened: Duration) -> Value {
        let is_timed = TIMED.iter().any(|start| case.name.starts_with(start));
        let n_recorded = case.answer["received"].as_object().map_or(0, Map::len);
        let names = services(case);
        let mut datagrams = std::mem::take(&mut self.early);
        let mut deadline = Instant::now() + listened;
        while let Ok(Some(datagram)) = timeout_at(deadline, self.came.recv()).await {
            if names.contains(&datagram["json"]["data"]["name"]) {
                datagrams.push(datagram);
            }
            datagrams.sort_by_key(|datagram| datagram["to"].to_string());
            let has_all = has_all_messages(case, &datagrams);
            if !is_timed && n_recorded > 0 && has_all {
                deadline = deadline.min(Instant::now() + LINGER);
            }
        }
        let mut kept = without_superseded(case, datagrams);
        if case.name.starts_with(AGEING) {
            let is_recorded = recorded_among(case, &kept);
            let (now, early): (Vec<_>, Vec<_>) = kept
                .into_iter()
                .enumerate()
                .partition(|(i, _)| is_recorded.contains(i));
            kept = now.into_iter().map(|(_, datagram)| datagram).collect();
            self.early = early.into_iter().map(|(_, datagram)| datagram).collect();
        }
        numbered(&kept)
    }

    /// What came early and was not recorded later either.
    pub(crate) fn left_over(&self) -> &[Value] {
        &self.early
    }

    /// Which of these clients got a list of `n_hosts` within this time: the n-th listens on the port `U` and n, the one
    /// without a `User-Agent` whose version is named on `UV`.
    pub(crate) async fn pushed_agents(
        &mut self,
        agents: &[Value],
        n_hosts: usize,
        listened: Duration,
    ) -> Value {
        let deadline = Instant::now() + listened;
        let mut pushed = Vec::new();
        while let Ok(Some(datagram)) = timeout_at(deadline, self.came.recv()).await {
            let hosts = datagram.pointer("/json/data/hosts").and_then(Value::as_array);
            if hosts.is_some_and(|hosts| hosts.len() == n_hosts) {
                pushed.push(datagram["to"].clone());
            }
        }
        let rows = agents.iter().enumerate().map(|(i, agent)| {
            let letter = match agent["client_version"] {
                Value::Null => format!("U{i}"),
                _ => "UV".to_owned(),
            };
            let mut row = agent.clone();
            row["pushed"] = json!(pushed.contains(&json!(letter)));
            row
        });
        numbered(&rows.collect::<Vec<_>>())
    }
}

/// The grouped names of the services that a case is about: that of its request, and those in its datagrams.
fn services(case: &Case) -> Vec<Value> {
    let recorded = case.answer["received"].as_object().into_iter().flatten();
    let mut names: Vec<_> = recorded
        .map(|(_, datagram)| datagram["json"]["data"]["name"].clone())
        .collect();
    let query = &case.request["query"];
    if let Some(name) = query["serviceName"].as_str() {
        let group = query["groupName"].as_str().unwrap_or("DEFAULT_GROUP");
        names.push(match name.contains("@@") {
            true => json!(name),
            false => json!(format!("{group}@@{name}")),
        });
    }
    names
}

async fn receive(socket: &UdpSocket) -> Result<Datagram> {
    let mut buffer = vec![0u8; LARGEST];
    let (length, from) = socket.recv_from(&mut buffer).await?;
    buffer.truncate(length);
    Datagram::read(from, buffer)
}

/// Tries each acknowledgement of a table on a port of its own; what follows has the form of the recorded rows.
///
/// # Errors
/// A subscription is not followed by a datagram.
pub(crate) async fn try_acks(http: &Replayer, table: &[Value]) -> Result<Value> {
    let rows = try_join_all(table.iter().map(|row| try_ack(http, row))).await?;
    Ok(json!({ "acks": numbered(&rows) }))
}

async fn try_ack(http: &Replayer, recorded: &Value) -> Result<Value> {
    let name = recorded["ack"]
        .as_str()
        .context("an acknowledgement without a name")?;
    let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    let port = socket.local_addr()?.port().to_string();
    let query = json!({"serviceName": ACKED_SERVICE, "udpPort": port, "clientIP": "127.0.0.1"});
    let request = json!({"method": "GET", "path": "/nacos/v1/ns/instance/list", "query": query,
        "headers": {"User-Agent": JAVA}});
    let answer = http.send(&request).await?;
    ensure!(answer["response"]["status"] == 200, "{name}: {answer}");
    let first = timeout(PATIENCE, receive(&socket))
        .await
        .context("no datagram")??;
    let deadline = Instant::now() + REPEATED_WITHIN;
    if name.ends_with("3 s late") {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    if let Some(bytes) = ack_of(name, &recorded["sent"], &first)? {
        let another = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let from = if name.ends_with("from another port") {
            &another
        } else {
            &*socket
        };
        from.send_to(&bytes, first.from).await?;
    }
    let mut datagrams = vec![first.bytes];
    while let Ok(datagram) = timeout_at(deadline, receive(&socket)).await {
        datagrams.push(datagram?.bytes);
    }
    let mut row = recorded.clone();
    row["datagrams"] = json!(datagrams.len());
    row["identical_bytes"] = json!(datagrams.windows(2).all(|pair| pair[0] == pair[1]));
    row["accepted"] = json!(datagrams.len() == 1);
    Ok(row)
}

/// The bytes of an acknowledgement of a datagram, by the recorded text; `None` when nothing is sent.
fn ack_of(name: &str, sent: &Value, datagram: &Datagram) -> Result<Option<Vec<u8>>> {
    let Some(text) = sent.as_str() else {
        return Ok(None);
    };
    if name == "gzip" {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(datagram.ack().to_string().as_bytes())?;
        return Ok(Some(encoder.finish()?));
    }
    let time = datagram.json["lastRefTime"].as_u64().context("no time")?;
    let inner = datagram.list["lastRefTime"].to_string();
    let text = text
        .replace("<lastRefTime+1>", &(time + 1).to_string())
        .replace("<inner lastRefTime>", &inner)
        .replace("<lastRefTime>", &time.to_string());
    Ok(Some(text.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_by_its_letter() {
        assert_eq!(marked("<udp port A>"), Some(("", "A", "")));
        assert_eq!(
            marked("127.0.0.1:<udp port QQ>#true"),
            Some(("127.0.0.1:", "QQ", "#true"))
        );
        assert_eq!(marked("8080"), None);
    }

    #[test]
    fn an_acknowledgement_names_the_time_of_its_datagram() {
        let from: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let bytes = br#"{"type":"dom","data":"{\"lastRefTime\":7}","lastRefTime":41}"#.to_vec();
        let datagram = Datagram::read(from, bytes).unwrap();
        let text = |sent: &str| {
            let bytes = ack_of("x", &json!(sent), &datagram).unwrap();
            String::from_utf8(bytes.unwrap()).unwrap()
        };
        assert_eq!(
            text("<lastRefTime> <lastRefTime+1> <inner lastRefTime>"),
            "41 42 7"
        );
        assert_eq!(ack_of("x", &Value::Null, &datagram).unwrap(), None);
    }
}
