//! Runs the cases of one file, in order, on nodes of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::Cluster;
use cluster_tests::wait::PAUSE;
use serde_json::{Value, json};

use crate::case::{self, Call, Case};
use crate::compare::{Comparison, compare};
use crate::grpc::Connection;
use crate::http::Replayer;
use crate::pushes::check_last;
use crate::udp::{self, Ports};

/// Time that a server is given to notice a closed connection.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// Connections that the recorder had set up before the cases of a file.
const SET_UP: [(&str, &[&str]); 5] = [
    ("grpc_naming", &["A", "B", "C"]),
    ("grpc_push", &["S", "P", "Q"]),
    ("grpc_connect", &["F", "G", "H"]),
    ("grpc_detection", &["A", "B"]),
    ("grpc_loader", &["A", "B", "C"]),
];

/// What the recorder did to a connection before a case, beside what the case shows.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// Opened the stream and sent nothing.
    OpenStream,
    /// Ended its half of the stream.
    CloseHalf,
    /// Closed the connection.
    Close,
    /// Stopped to acknowledge pushes.
    StopAcking,
    /// Set it up, long before the case that shows its letter.
    Open,
    /// Answered requests to move, or did not.
    AnswerResets(bool),
}

/// File, case, connection, what was done.
const BEFORE: [(&str, &str, &str, Before); 16] = [
    (
        "grpc_naming",
        "after both connections are closed the service names stay",
        "A",
        Before::Close,
    ),
    (
        "grpc_naming",
        "after both connections are closed the service names stay",
        "B",
        Before::Close,
    ),
    (
        "grpc_connect",
        "stream open but no setup sent: health check",
        "E",
        Before::OpenStream,
    ),
    (
        "grpc_connect",
        "half-close: the client ends its half of the stream",
        "H",
        Before::CloseHalf,
    ),
    (
        "grpc_connect",
        "connection closed: the instance is gone",
        "H",
        Before::Close,
    ),
    (
        "grpc_push",
        "push after the publisher connection in c1 is closed",
        "Q",
        Before::Close,
    ),
    ("grpc_push", "no ack: register", "S", Before::StopAcking),
    (
        "grpc_push",
        "subscribers after the subscriber closed",
        "S",
        Before::Close,
    ),
    ("grpc_loader", THREE_CONNECTIONS, "A", Before::Open),
    ("grpc_loader", THREE_CONNECTIONS, "B", Before::Open),
    ("grpc_loader", THREE_CONNECTIONS, "C", Before::Open),
    ("grpc_loader", "reloadClient A", "A", Before::AnswerResets(false)),
    (
        "grpc_loader",
        "reloadClient A with redirectAddress",
        "A",
        Before::AnswerResets(true),
    ),
    (
        "grpc_loader",
        "reloadCurrent count 2, no acks",
        "A",
        Before::AnswerResets(false),
    ),
    (
        "grpc_loader",
        "reloadCurrent count 2, no acks",
        "B",
        Before::AnswerResets(false),
    ),
    (
        "grpc_loader",
        "limit 2: after one has closed a new one is taken",
        "D",
        Before::Close,
    ),
];

/// While the recorder listened to A here, B was asked to move: the time must pass.
const LISTENED_WHOLE: &str = "A after count 2 without acks: both get a reset";

const THREE_CONNECTIONS: &str = "current with three connections (C has no label source=sdk)";

/// The first case of a file that was recorded on another server, and a flag of that one.
const OTHER_SERVER: (&str, &str, [&str; 2]) = (
    "grpc_loader",
    "limit 2: first connection",
    ["--connection-limit", "2"],
);

/// Answers to all cases of a file, beside the recorded ones.
///
/// # Errors
/// A case could not be run to its end: no answer, a connection refused.
pub(crate) async fn replay(file: &'static str) -> Result<Vec<(Case, Comparison)>> {
    let cases = case::load(file)?;
    let cluster = Cluster::start(if file == "http_cluster_of_three" { 3 } else { 1 }).await;
    let mut run = Run {
        file: case::script(file),
        client: if case::is_later_release(file) {
            "Nacos-Java-Client:v3.0.3"
        } else {
            "Nacos-Java-Client:v2.5.1"
        },
        ports: Ports::new(),
        http: Replayer::new(cluster.nodes())?,
        cluster,
        connections: BTreeMap::new(),
        settles_until: Instant::now(),
    };
    if run.file == "grpc_detection" {
        // Both were idle for the same time.
        run.connection("A").await?;
        run.connection("B").await?;
    }
    let mut out = Vec::new();
    for case in cases {
        if (file, case.name.as_str()) == (OTHER_SERVER.0, OTHER_SERVER.1) {
            let [flag, value] = OTHER_SERVER.2;
            run.connections.clear();
            run.cluster = Cluster::builder(1).flag(flag, value).start().await;
            run.http = Replayer::new(run.cluster.nodes())?;
        }
        tokio::time::sleep(case.wait).await;
        let comparison = run
            .case(&case)
            .await
            .with_context(|| format!("{file}: {}", case.name))?;
        out.push((case, comparison));
    }
    let left_over = run.ports.left_over();
    ensure!(left_over.is_empty(), "{file}: datagrams too many: {left_over:?}");
    Ok(out)
}

struct Run {
    /// Name of the file without its release.
    file: &'static str,
    /// What connections call themselves that the recorder had set up. It said 2.5.1 to both releases; only those who
    /// say 3.x get the field names of 3.x from us.
    client: &'static str,
    ports: Ports,
    http: Replayer,
    connections: BTreeMap<String, Connection>,
    cluster: Cluster,
    /// Until then the server may not have noticed that a connection was closed.
    settles_until: Instant,
}

impl Run {
    async fn case(&mut self, case: &Case) -> Result<Comparison> {
        for (file, name, letter, action) in BEFORE {
            if file == self.file && name == case.name {
                self.prepare(letter, action).await?;
            }
        }
        // A read just after a connection was closed is tried again; every other one must be current at once.
        let mut comparison = self.once(case).await?;
        let is_read = !matches!(case.call, Call::Stream { .. });
        while is_read && !comparison.mismatches.is_empty() && Instant::now() < self.settles_until {
            tokio::time::sleep(PAUSE).await;
            comparison = self.once(case).await?;
        }
        Ok(comparison)
    }

    async fn once(&mut self, case: &Case) -> Result<Comparison> {
        match &case.call {
            Call::Http => {
                let answer = self.http(case).await?;
                Ok(compare(case, &answer))
            }
            Call::Udp { listened, agents } => {
                let mut answer = json!({});
                if !case.request.is_null() {
                    self.ports.forget();
                    answer = self.http(case).await?;
                }
                if agents.is_empty() {
                    answer["received"] = self.ports.listen(case, *listened).await;
                    if case.volatile.iter().any(|place| place == "/received") {
                        check_last(case, &answer)?;
                    }
                } else {
                    let pushed = self.ports.pushed_agents(agents, 2, *listened).await;
                    answer["user_agents"] = pushed;
                }
                Ok(compare(case, &answer))
            }
            Call::Acks(table) => Ok(compare(case, &udp::try_acks(&self.http, table).await?)),
            Call::Unary { connection } => {
                let answer = self.connection(connection).await?.unary(&case.request).await;
                Ok(compare(case, &answer))
            }
            Call::Stream {
                connection,
                sent,
                waited,
            } => {
                let is_loader = self.file == "grpc_loader";
                let letter = connection;
                let connection = self.connection(letter).await?;
                let start = Instant::now();
                let mut answer = connection.exchange(case, sent, *waited).await?;
                if is_loader && case.name == LISTENED_WHOLE {
                    tokio::time::sleep(waited.saturating_sub(start.elapsed())).await;
                }
                if is_loader && let Some(id) = answer.pointer_mut("/received/0/body/connectionId") {
                    ensure!(*id == connection.id.as_str(), "{id} is not {}", connection.id);
                    *id = Value::String(format!("<connectionId {letter}>"));
                }
                // Of requests to move it is open which of two connections gets one.
                if !is_loader && case.volatile.iter().any(|place| place == "/received") {
                    check_last(case, &answer)?;
                }
                let comparison = compare(case, &answer);
                connection.learn_ids(&case.answer, &comparison.ours);
                Ok(comparison)
            }
        }
    }

    async fn http(&mut self, case: &Case) -> Result<Value> {
        let request = self.with_connection_ids(&case.request).await?;
        let request = self.ports.with_ports(request).await?;
        let mut answer = self.http.send(&request).await?;
        self.ports.as_recorded(&mut answer);
        Ok(answer)
    }

    /// The connection of a letter, made when it first appears.
    async fn connection(&mut self, letter: &str) -> Result<&mut Connection> {
        if !self.connections.contains_key(letter) {
            let mut connection = Connection::open(self.cluster.node(0).grpc_address()).await?;
            if SET_UP
                .iter()
                .any(|(file, letters)| *file == self.file && letters.contains(&letter))
            {
                connection.open_stream(self.file != "grpc_detection").await?;
                // The recorder's C of the loader had no label `source`.
                connection
                    .set_up((self.file, letter) != ("grpc_loader", "C"), self.client)
                    .await?;
            }
            self.connections.insert(letter.to_owned(), connection);
        }
        self.connections.get_mut(letter).context("no connection")
    }

    async fn prepare(&mut self, letter: &str, action: Before) -> Result<()> {
        let connection = self.connection(letter).await?;
        match action {
            Before::OpenStream => connection.open_stream(true).await?,
            Before::CloseHalf => connection.close_half(),
            Before::StopAcking => connection.stop_acking().await?,
            Before::Open => {}
            Before::AnswerResets(is_on) => connection.answer_resets(is_on),
            Before::Close => {
                self.connections.remove(letter);
                self.settles_until = Instant::now() + SETTLED_WITHIN;
            }
        }
        Ok(())
    }

    /// `<connectionId of X>` in a parameter is the id of our connection X.
    async fn with_connection_ids(&mut self, request: &Value) -> Result<Value> {
        let mut request = request.clone();
        if let Some(query) = request["query"].as_object_mut() {
            for value in query.values_mut() {
                let letter = value.as_str().and_then(|v| {
                    let letter = v.strip_prefix("<connectionId ")?.strip_suffix('>')?;
                    Some(letter.strip_prefix("of ").unwrap_or(letter))
                });
                if let Some(letter) = letter.map(str::to_owned) {
                    *value = Value::String(self.connection(&letter).await?.id.clone());
                }
            }
        }
        Ok(request)
    }
}
