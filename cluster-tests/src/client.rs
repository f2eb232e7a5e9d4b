//! A gRPC client of the 2.x protocol on one connection, without any retry: what it is told is what it reports.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tonic::Streaming;

use crate::connection::{Answer, Connection, Payload, payload};
use crate::model::{Instance, List, Service};

/// Longest wait for the answer to one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that a node can send to a client that does not read.
const SMALL_WINDOW: u32 = 4 << 10;

/// What a client acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// Everything, at once.
    All,
    /// Only whether it lives, not pushes.
    DetectionOnly,
    /// Nothing.
    None,
}

/// How a client sets its connection up.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What it acknowledges.
    pub acks: Acks,
    /// It reads what comes by the stream. False: nothing after the answer to the setup, and the node can send it no more
    /// than a few kilobytes.
    pub reads: bool,
    /// Body of the `ConnectionSetupRequest`.
    pub setup: Value,
    /// Wait for the answer to the setup; false: the client is given out right after sending it.
    pub awaits_setup: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            acks: Acks::All,
            reads: true,
            setup: json!({
                "clientVersion": "Nacos-Java-Client:v2.5.1", "tenant": "",
                "labels": {"source": "sdk", "module": "naming", "AppName": "cluster-tests"}, "abilityTable": {},
            }),
            awaits_setup: true,
        }
    }
}

impl ClientOptions {
    /// The same with other acknowledgements.
    pub fn acks(mut self, acks: Acks) -> Self {
        self.acks = acks;
        self
    }

    /// The same of a client that does not read what comes by the stream.
    pub fn unreading(mut self) -> Self {
        self.reads = false;
        self
    }

    /// The same, without waiting for the answer to the setup.
    pub fn impatient(mut self) -> Self {
        self.awaits_setup = false;
        self
    }
}

/// Something the node sent down the stream. Its body is not parsed until it is asked for: there may be many.
#[derive(Clone, Debug)]
pub struct Push {
    /// When it came.
    pub at: Instant,
    /// Type of the body.
    pub kind: String,
    /// The body.
    pub body: Bytes,
}

impl Push {
    fn of(payload: Payload) -> Result<Self> {
        let kind = payload.metadata.context("a push without metadata")?.r#type;
        Ok(Push {
            at: Instant::now(),
            kind,
            body: payload.body.unwrap_or_default().value.into(),
        })
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("body of {}", self.kind))
    }

    /// The list in a `NotifySubscriberRequest`.
    ///
    /// # Errors
    /// It is another message, or its list is not as in the protocol.
    pub fn list(&self) -> Result<List> {
        ensure!(
            self.kind == "NotifySubscriberRequest",
            "a {} is no list",
            self.kind
        );
        List::from_json(self.json()?["serviceInfo"].take())
    }

    /// The answer of a client that took it.
    fn acknowledgement(&self) -> Result<Payload> {
        #[derive(serde::Deserialize)]
        struct Id {
            #[serde(rename = "requestId")]
            id: String,
        }
        let Some(stem) = self.kind.strip_suffix("Request") else {
            bail!("a push of type {}", self.kind)
        };
        let Id { id } =
            serde_json::from_slice(&self.body).with_context(|| format!("no requestId in {}", self.kind))?;
        let body = json!({"requestId": id, "resultCode": 200, "errorCode": 0, "success": true});
        Ok(payload(&format!("{stem}Response"), &body))
    }
}

/// What came down the stream and was not asked for yet.
#[derive(Debug)]
struct Inbox {
    pushes: mpsc::UnboundedReceiver<Push>,
    /// Passed over while another was looked for.
    kept: VecDeque<Push>,
}

impl Inbox {
    async fn receive(&mut self, within: Duration) -> Result<Push> {
        timeout(within, self.pushes.recv())
            .await
            .context("no push in time")?
            .context("the stream has ended")
    }
}

/// A gRPC client. Dropping it closes its TCP connection, which is how clients die.
#[derive(Debug)]
pub struct Client {
    connection: Arc<Connection>,
    id: String,
    up: mpsc::UnboundedSender<Payload>,
    inbox: Mutex<Inbox>,
    closed: watch::Receiver<bool>,
    reader: JoinHandle<()>,
}

impl Client {
    /// Connects and sets up as an official client does: server check, stream, setup, answer to the setup.
    ///
    /// # Errors
    /// The node refuses it.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        Self::connect_with(address, ClientOptions::default()).await
    }

    /// Connects and sets up with options.
    ///
    /// # Errors
    /// The node refuses it.
    pub async fn connect_with(address: SocketAddr, options: ClientOptions) -> Result<Self> {
        timeout(CALL_TIMEOUT, Self::connect_now(address, options))
            .await
            .context("no setup in time")?
    }

    async fn connect_now(address: SocketAddr, options: ClientOptions) -> Result<Self> {
        let window = (!options.reads).then_some(SMALL_WINDOW);
        let connection = Arc::new(Connection::open_with_window(address, window).await?);
        let check = connection
            .send("ServerCheckRequest", &json!({}))
            .await?
            .accepted()?;
        let id = check.body["connectionId"]
            .as_str()
            .context("a server check without connectionId")?
            .to_owned();
        let (up, down) = connection.stream().await?;
        up.send(payload("ConnectionSetupRequest", &options.setup))?;
        let (into_pushes, pushes) = mpsc::unbounded_channel();
        let (into_ready, mut ready) = watch::channel(false);
        let (into_closed, closed) = watch::channel(false);
        let reader = Reader {
            acks: options.acks,
            reads: options.reads,
            up: up.clone(),
            pushes: into_pushes,
            ready: into_ready,
        };
        let reader = tokio::spawn(async move {
            let _ended = reader.run(down).await;
            into_closed.send_replace(true);
        });
        let client = Client {
            connection,
            id,
            up,
            inbox: Mutex::new(Inbox {
                pushes,
                kept: VecDeque::new(),
            }),
            closed,
            reader,
        };
        if options.awaits_setup {
            ensure!(
                ready.wait_for(|is_ready| *is_ready).await.is_ok(),
                "the stream ended before the setup was answered"
            );
        }
        Ok(client)
    }

    /// The connection's id, as the node told it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The connection beneath.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    // === Requests ===

    /// Any request, whatever the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send(&self, kind: &str, body: &Value) -> Result<Answer> {
        timeout(CALL_TIMEOUT, self.connection.send(kind, body))
            .await
            .context("no answer in time")?
    }

    /// A request on a service with more fields, whatever the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send_on(&self, kind: &str, service: &Service, more: Value) -> Result<Answer> {
        self.send(kind, &merged(service.to_json(), more)).await
    }

    /// An `InstanceRequest` with the given operation, whatever the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn instance_request(
        &self,
        operation: &str,
        service: &Service,
        instance: Value,
    ) -> Result<Answer> {
        self.send_on(
            "InstanceRequest",
            service,
            json!({"type": operation, "instance": instance}),
        )
        .await
    }

    /// Registers; replaces what this client registered for the service.
    ///
    /// # Errors
    /// It is refused.
    pub async fn register(&self, service: &Service, instance: &Instance) -> Result<()> {
        self.instance_request("registerInstance", service, instance.to_json())
            .await?
            .accepted()?;
        Ok(())
    }

    /// Deregisters.
    ///
    /// # Errors
    /// It is refused.
    pub async fn deregister(&self, service: &Service, instance: &Instance) -> Result<()> {
        self.instance_request("deregisterInstance", service, instance.to_json())
            .await?
            .accepted()?;
        Ok(())
    }

    /// Registers a list; replaces what this client registered for the service.
    ///
    /// # Errors
    /// It is refused.
    pub async fn batch(&self, service: &Service, instances: &[Instance]) -> Result<()> {
        let list: Vec<Value> = instances.iter().map(Instance::to_json).collect();
        let more = json!({"type": "batchRegisterInstance", "instances": list});
        self.send_on("BatchInstanceRequest", service, more)
            .await?
            .accepted()?;
        Ok(())
    }

    /// The list of a service.
    ///
    /// # Errors
    /// It is refused.
    pub async fn query(&self, service: &Service) -> Result<List> {
        self.query_with(service, "", false).await
    }

    /// The list of some clusters of a service.
    ///
    /// # Errors
    /// It is refused.
    pub async fn query_with(&self, service: &Service, clusters: &str, healthy_only: bool) -> Result<List> {
        let more = json!({"cluster": clusters, "healthyOnly": healthy_only, "udpPort": 0});
        let answer = self
            .send_on("ServiceQueryRequest", service, more)
            .await?
            .accepted()?;
        ensure!(
            answer.kind == "QueryServiceResponse",
            "answered by {}",
            answer.kind
        );
        List::from_json(answer.body["serviceInfo"].clone())
    }

    /// A page of service names of a group: number of all names, names of the page.
    ///
    /// # Errors
    /// It is refused.
    pub async fn services(
        &self,
        namespace: &str,
        group: &str,
        page: i64,
        size: i64,
    ) -> Result<(u64, Vec<String>)> {
        let body = json!({"namespace": namespace, "groupName": group, "serviceName": "", "pageNo": page, "pageSize": size});
        let answer = self.send("ServiceListRequest", &body).await?.accepted()?;
        names_of(&answer.body, "serviceNames")
    }

    /// Subscribes; later lists come as pushes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn subscribe(&self, service: &Service, clusters: &str) -> Result<List> {
        self.subscription(service, clusters, true).await
    }

    /// Unsubscribes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn unsubscribe(&self, service: &Service, clusters: &str) -> Result<List> {
        self.subscription(service, clusters, false).await
    }

    async fn subscription(&self, service: &Service, clusters: &str, subscribe: bool) -> Result<List> {
        let more = json!({"subscribe": subscribe, "clusters": clusters});
        let answer = self
            .send_on("SubscribeServiceRequest", service, more)
            .await?
            .accepted()?;
        ensure!(
            answer.kind == "SubscribeServiceResponse",
            "answered by {}",
            answer.kind
        );
        List::from_json(answer.body["serviceInfo"].clone())
    }

    /// Sends something up the stream.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_up(&self, payload: Payload) -> Result<()> {
        Ok(self.up.send(payload)?)
    }

    // === Pushes ===

    /// The next message of the node, of any kind.
    ///
    /// # Errors
    /// None comes within the time, or the stream has ended.
    pub async fn next_push(&self, within: Duration) -> Result<Push> {
        let mut inbox = self.inbox.lock().await;
        match inbox.kept.pop_front() {
            Some(push) => Ok(push),
            None => inbox.receive(within).await,
        }
    }

    /// Reads pushes of a service until one holds a list that passes the check; gives that list. Other messages are
    /// kept for later.
    ///
    /// # Errors
    /// None does within the time; says why the last one did not.
    pub async fn pushed(
        &self,
        service: &Service,
        within: Duration,
        check: impl Fn(&List) -> Result<()>,
    ) -> Result<List> {
        let deadline = Instant::now() + within;
        let mut last = format!("no list of {} was pushed", service.grouped());
        let mut inbox = self.inbox.lock().await;
        let mut others = VecDeque::new();
        let found = loop {
            let push = match inbox.kept.pop_front() {
                Some(push) => push,
                None => match inbox
                    .receive(deadline.saturating_duration_since(Instant::now()))
                    .await
                {
                    Ok(push) => push,
                    Err(error) => break Err(error.context(last)),
                },
            };
            match push.list() {
                Ok(list) if list.is_of(service) => match check(&list) {
                    Ok(()) => break Ok(list),
                    Err(error) => last = format!("the last list pushed: {error:#}"),
                },
                Err(error) if push.kind == "NotifySubscriberRequest" => break Err(error),
                _ => others.push_back(push),
            }
        };
        others.append(&mut inbox.kept);
        inbox.kept = others;
        found
    }

    /// Reads pushes of a service until one lists exactly these addresses.
    ///
    /// # Errors
    /// None does within the time.
    pub async fn pushed_exactly(
        &self,
        service: &Service,
        addresses: &[&str],
        within: Duration,
    ) -> Result<List> {
        self.pushed(service, within, |list| list.expect(addresses)).await
    }

    /// Takes all messages that have come, without waiting.
    pub async fn take_pushes(&self) -> Vec<Push> {
        let mut inbox = self.inbox.lock().await;
        let mut taken: Vec<Push> = inbox.kept.drain(..).collect();
        while let Ok(push) = inbox.pushes.try_recv() {
            taken.push(push);
        }
        taken
    }

    // === The end ===

    /// Waits until the node or the network ends the stream.
    ///
    /// # Errors
    /// It has not ended within the time.
    pub async fn stream_end(&self, within: Duration) -> Result<()> {
        let mut closed = self.closed.clone();
        timeout(within, closed.wait_for(|is_closed| *is_closed))
            .await
            .context("the stream goes on")??;
        Ok(())
    }

    /// Whether the stream has ended.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.close();
        self.reader.abort();
    }
}

/// Reads `count` and a list of names.
///
/// # Errors
/// One of them is missing.
pub fn names_of(body: &Value, key: &str) -> Result<(u64, Vec<String>)> {
    let count = body["count"]
        .as_u64()
        .with_context(|| format!("no count in {body}"))?;
    let names = body[key]
        .as_array()
        .with_context(|| format!("no {key} in {body}"))?;
    Ok((
        count,
        names
            .iter()
            .filter_map(|n| n.as_str().map(String::from))
            .collect(),
    ))
}

/// The fields of both objects.
pub fn merged(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// Reads the stream, acknowledges and passes on.
struct Reader {
    acks: Acks,
    reads: bool,
    up: mpsc::UnboundedSender<Payload>,
    pushes: mpsc::UnboundedSender<Push>,
    ready: watch::Sender<bool>,
}

impl Reader {
    async fn run(self, mut down: Streaming<Payload>) -> Result<()> {
        while let Some(payload_down) = down.message().await? {
            let push = Push::of(payload_down)?;
            let is_acked = match push.kind.as_str() {
                "SetupAckRequest" => {
                    self.ready.send_replace(true);
                    if !self.reads {
                        // The stream stays open.
                        std::future::pending::<()>().await;
                    }
                    continue;
                }
                "ClientDetectionRequest" => self.acks != Acks::None,
                _ => self.acks == Acks::All,
            };
            if is_acked {
                self.up.send(push.acknowledgement()?)?;
            }
            // The receiver is gone only when the client is.
            let _ = self.pushes.send(push);
        }
        Ok(())
    }
}
