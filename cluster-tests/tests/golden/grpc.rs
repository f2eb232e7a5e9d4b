//! Recorded gRPC calls, sent as recorded: any type name, any body.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::connection::{self, Payload, payload_of_text};
use cluster_tests::wait::try_eventually;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use crate::case::{Case, numbered};
use crate::compare::has_all_messages;
use crate::pushes::without_superseded;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to go on listening for messages beyond the recorded ones.
const LINGER: Duration = Duration::from_millis(200);

/// One recorded connection: one TCP connection, at most one stream.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What `ServerCheckResponse` calls it.
    pub(crate) id: String,
    wire: connection::Connection,
    stream: Option<Stream>,
    /// Recorded request ids and the ones that came instead.
    ids: HashMap<String, String>,
}

#[derive(Debug)]
struct Stream {
    outbox: Outbox,
    inbox: UnboundedReceiver<Value>,
    is_acking: Arc<AtomicBool>,
    is_moving: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

type Outbox = Arc<Mutex<Option<UnboundedSender<Payload>>>>;

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Connection {
    /// Connects and asks for the id; sets nothing up.
    ///
    /// # Errors
    /// The server cannot be reached or does not answer `ServerCheckRequest`.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let wire = connection::Connection::open(address).await?;
        let mut connection = Connection {
            id: String::new(),
            wire,
            stream: None,
            ids: HashMap::new(),
        };
        let check = connection
            .call(&json!({"type": "ServerCheckRequest", "body": {}}))
            .await?;
        let id = check.pointer("/body/connectionId").and_then(Value::as_str);
        connection.id = id
            .with_context(|| format!("no connection id in {check}"))?
            .to_owned();
        Ok(connection)
    }

    /// Sets the connection up as the recorder did before the cases, as a client that calls itself `client`, and takes
    /// the answer to that.
    ///
    /// # Errors
    /// The server does not acknowledge it.
    pub(crate) async fn set_up(&mut self, is_sdk: bool, client: &str) -> Result<()> {
        let labels = match is_sdk {
            true => json!({"source": "sdk", "module": "naming"}),
            false => json!({"module": "naming"}),
        };
        let setup = json!({"type": "ConnectionSetupRequest", "body": {
            "clientVersion": client, "tenant": "",
            "labels": labels, "abilityTable": {},
        }});
        self.open_stream(true).await?;
        self.send_on_stream(&setup)?;
        let stream = self.stream.as_mut().context("no stream")?;
        let ack = timeout(PATIENCE, stream.inbox.recv())
            .await?
            .context("the stream ended")?;
        ensure!(
            ack["type"] == "SetupAckRequest",
            "the answer to the set-up is {ack}"
        );
        Ok(())
    }

    /// Opens the stream if there is none. `is_answering`: detection requests are answered and not shown, since the
    /// recorder was never idle long enough to get one, except where the case is about that.
    ///
    /// # Errors
    /// The server refuses it.
    pub(crate) async fn open_stream(&mut self, is_answering: bool) -> Result<()> {
        if self.stream.is_some() {
            return Ok(());
        }
        let (up, mut down) = timeout(PATIENCE, self.wire.stream()).await??;
        let (incoming, inbox) = mpsc::unbounded_channel();
        let outbox: Outbox = Arc::new(Mutex::new(Some(up)));
        let is_acking = Arc::new(AtomicBool::new(true));
        let (acks, acking) = (Arc::clone(&outbox), Arc::clone(&is_acking));
        let is_moving = Arc::new(AtomicBool::new(true));
        let resets = Arc::clone(&is_moving);
        let reader = tokio::spawn(async move {
            while let Ok(Some(payload)) = down.message().await {
                let message = shown(payload);
                let answer = match message["type"].as_str() {
                    Some("NotifySubscriberRequest") if acking.load(Ordering::SeqCst) => {
                        "NotifySubscriberResponse"
                    }
                    Some("ConnectResetRequest") if resets.load(Ordering::SeqCst) => "ConnectResetResponse",
                    Some("ClientDetectionRequest") if is_answering => "ClientDetectionResponse",
                    _ => "",
                };
                if !answer.is_empty() {
                    let id = &message["body"]["requestId"];
                    let body = json!({"resultCode": 200, "errorCode": 0, "requestId": id, "success": true});
                    // The client's half may be closed; then there is nothing to say.
                    let _ = post(&acks, payload_of(&json!({"type": answer, "body": body})));
                }
                if answer != "ClientDetectionResponse" && incoming.send(message).is_err() {
                    return;
                }
            }
            let _ = incoming.send(json!({"stream": "END"}));
        });
        self.stream = Some(Stream {
            outbox,
            inbox,
            is_acking,
            is_moving,
            reader,
        });
        Ok(())
    }

    /// Ends the client's half of the stream.
    pub(crate) fn close_half(&mut self) {
        if let Some(stream) = &self.stream {
            stream.outbox.lock().take();
        }
    }

    /// From now on pushes are not acknowledged. The one that follows the last subscription still is.
    ///
    /// # Errors
    /// No push follows it.
    pub(crate) async fn stop_acking(&mut self) -> Result<()> {
        let stream = self.stream.as_ref().context("no stream")?;
        let arrived = || async {
            ensure!(!stream.inbox.is_empty(), "no push after the subscription");
            Ok(())
        };
        try_eventually(PATIENCE, arrived).await?;
        stream.is_acking.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Requests to move are answered from now on, or not.
    pub(crate) fn answer_resets(&self, is_on: bool) {
        if let Some(stream) = &self.stream {
            stream.is_moving.store(is_on, Ordering::SeqCst);
        }
    }

    fn send_on_stream(&self, message: &Value) -> Result<()> {
        let stream = self.stream.as_ref().context("no stream")?;
        post(&stream.outbox, payload_of(message))
    }

    /// A unary call; the answer in the recorded form, `refused` with the reason where there is none.
    pub(crate) async fn unary(&self, request: &Value) -> Value {
        match self.call(request).await {
            Ok(answer) => json!({ "response": answer }),
            Err(error) => json!({ "refused": format!("{error:#}") }),
        }
    }

    async fn call(&self, request: &Value) -> Result<Value> {
        Ok(shown(
            timeout(PATIENCE, self.wire.call_raw(payload_of(request))).await??,
        ))
    }

    /// Sends messages on the stream and listens as long as the recorder did, or until all that was recorded has come
    /// and a little longer.
    ///
    /// # Errors
    /// The stream cannot be written.
    pub(crate) async fn exchange(&mut self, case: &Case, sent: &[Value], waited: Duration) -> Result<Value> {
        self.open_stream(true).await?;
        for message in sent {
            let mut message = message.clone();
            if let Some(id) = message.pointer_mut("/body/requestId")
                && let Some(actual) = id.as_str().and_then(|recorded| self.ids.get(recorded))
            {
                *id = json!(actual);
            }
            self.send_on_stream(&message)?;
        }
        let recorded = case.answer["received"].as_object().map_or(0, Map::len);
        let is_open_end = case.volatile.iter().any(|place| place == "/received");
        let stream = self.stream.as_mut().context("no stream")?;
        let mut messages: Vec<Value> = Vec::new();
        let mut deadline = Instant::now() + waited;
        let mut is_lingering = false;
        while let Ok(Some(message)) = timeout_at(deadline.into(), stream.inbox.recv()).await {
            messages.push(message);
            if !is_lingering && !is_open_end && recorded > 0 && has_all_messages(case, &messages) {
                is_lingering = true;
                deadline = deadline.min(Instant::now() + LINGER);
            }
        }
        Ok(json!({ "received": numbered(&without_superseded(case, messages)) }))
    }

    /// Remembers which of our request ids stand for recorded ones.
    pub(crate) fn learn_ids(&mut self, recorded: &Value, ours: &Value) {
        let id = |message: Option<&Value>| message?.pointer("/body/requestId")?.as_str().map(str::to_owned);
        for (place, message) in recorded["received"].as_object().into_iter().flatten() {
            if let (Some(was), Some(is)) = (id(Some(message)), id(ours["received"].get(place))) {
                self.ids.insert(was, is);
            }
        }
    }
}

fn post(outbox: &Outbox, payload: Payload) -> Result<()> {
    let outbox = outbox.lock();
    outbox
        .as_ref()
        .context("the client's half is closed")?
        .send(payload)
        .context("the stream is closed")
}

fn payload_of(message: &Value) -> Payload {
    let text = match &message["body_text"] {
        Value::String(text) => text.clone(),
        _ => message["body"].to_string(),
    };
    payload_of_text(message["type"].as_str().unwrap_or_default(), text)
}

/// A message as the recordings show it: what is empty is left out.
fn shown(payload: Payload) -> Value {
    let metadata = payload.metadata.unwrap_or_default();
    let mut out = Map::from_iter([("type".to_owned(), json!(metadata.r#type))]);
    if !metadata.client_ip.is_empty() {
        out.insert("clientIp".into(), json!(metadata.client_ip));
    }
    if !metadata.headers.is_empty() {
        out.insert("headers".into(), json!(metadata.headers));
    }
    let body = payload.body.unwrap_or_default();
    if !body.type_url.is_empty() {
        out.insert("type_url".into(), json!(body.type_url));
    }
    match serde_json::from_slice(&body.value) {
        Ok(value) => out.insert("body".into(), value),
        Err(_) => out.insert("body_text".into(), json!(String::from_utf8_lossy(&body.value))),
    };
    Value::Object(out)
}
