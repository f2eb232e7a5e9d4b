//! What applications do: HTTP clients that register and beat, gRPC clients that follow resets and register anew.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rollcall_server::grpc::any::Any;
use rollcall_server::pb::bi_request_stream_client::BiRequestStreamClient;
use rollcall_server::pb::request_client::RequestClient;
use rollcall_server::pb::{Metadata, Payload};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use turmoil::net::TcpStream;

use crate::network::channel;
use crate::world::{Shared, main_port};

pub(crate) const SERVICE: &str = "ring";
const PATIENCE: Duration = Duration::from_secs(3);
const BEAT_INTERVAL: Duration = Duration::from_secs(5);

/// One HTTP request over a connection of its own.
pub(crate) async fn http(
    address: SocketAddr,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes), String> {
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        let task = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "node")
            .body(Empty::<Bytes>::new())
            .map_err(|e| e.to_string())?;
        let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|e| e.to_string())?;
        task.abort();
        Ok((status, body.to_bytes()))
    };
    match timeout(PATIENCE, exchange).await {
        Ok(result) => result,
        Err(_) => Err("no answer in time".into()),
    }
}

/// Registers over HTTP and beats, each time at any member and at the next one after a failure.
pub(crate) async fn beating(shared: Shared, port: u16) {
    let instance = format!("serviceName={SERVICE}&ip=10.1.0.1&port={port}");
    let beat = format!("/nacos/v1/ns/instance/beat?{instance}&ephemeral=true");
    let register = format!("/nacos/v1/ns/instance?{instance}&ephemeral=true");
    at_any(&shared, Method::POST, &register).await;
    shared.note_registered(port);
    loop {
        sleep(BEAT_INTERVAL).await;
        let answer = at_any(&shared, Method::PUT, &beat).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if answer["code"] == 20404 {
            shared.broken(format!("the beat of {port} was asked to register anew"));
            at_any(&shared, Method::POST, &register).await;
        }
    }
}

/// Tries every member in turn, as clients do: one of three always takes a write.
async fn at_any(shared: &Shared, method: Method, path: &str) -> Bytes {
    let first = shared.pick(3);
    let mut failures = Vec::new();
    for turn in 0..6 {
        let at = (first + turn) % 3;
        match http(main_port(at), method.clone(), path).await {
            Ok((StatusCode::OK, body)) => return body,
            Ok((status, body)) => failures.push(format!("{status} {}", String::from_utf8_lossy(&body))),
            Err(error) => failures.push(error),
        }
    }
    shared.broken(format!("{method} {path} failed everywhere: {failures:?}"));
    Bytes::new()
}

struct Session {
    calls: RequestClient<Channel>,
    up: mpsc::UnboundedSender<Payload>,
    down: Streaming<Payload>,
}

fn payload(kind: &str, body: &Value) -> Payload {
    Payload {
        metadata: Some(Metadata {
            r#type: kind.into(),
            client_ip: "10.1.0.2".into(),
            headers: Default::default(),
        }),
        body: Some(Any {
            type_url: String::new(),
            value: body.to_string().into(),
        }),
    }
}

impl Session {
    async fn open(address: SocketAddr) -> Result<Self, String> {
        let channel = channel(address).await.map_err(|e| e.to_string())?;
        let mut calls = RequestClient::new(channel.clone());
        call(&mut calls, "ServerCheckRequest", &json!({})).await?;
        let (up, outgoing) = mpsc::unbounded_channel();
        let setup = json!({"clientVersion": "Nacos-Java-Client:v2.5.1", "tenant": "", "labels": {"module": "naming", "source": "sdk"}});
        let _ = up.send(payload("ConnectionSetupRequest", &setup));
        let down = BiRequestStreamClient::new(channel)
            .request_bi_stream(UnboundedReceiverStream::new(outgoing))
            .await
            .map_err(|e| e.to_string())?;
        Ok(Session {
            calls,
            up,
            down: down.into_inner(),
        })
    }
}

async fn call(calls: &mut RequestClient<Channel>, kind: &str, body: &Value) -> Result<(), String> {
    let answer = timeout(PATIENCE, calls.request(payload(kind, body))).await;
    let answer = answer.map_err(|_| format!("{kind}: no answer in time"))?;
    let answer = answer.map_err(|e| e.to_string())?.into_inner();
    let body: Value = serde_json::from_slice(&answer.body.unwrap_or_default().value).unwrap_or_default();
    match body["resultCode"] == 200 {
        true => Ok(()),
        false => Err(format!("{kind}: {body}")),
    }
}

/// Holds a connection to some member with one instance; when it ends or falls silent, goes to the next one.
pub(crate) async fn connected(shared: Shared, port: u16) {
    let mut at = usize::from(port) % 3;
    let mut is_first = true;
    loop {
        let opening = timeout(PATIENCE, Session::open(main_port(at))).await;
        if let Ok(Ok(mut session)) = opening {
            let instance = json!({
                "namespace": "public", "serviceName": SERVICE, "groupName": "DEFAULT_GROUP", "type": "registerInstance",
                "instance": {"ip": "10.1.0.2", "port": port, "weight": 1.0, "healthy": true, "enabled": true, "ephemeral": true,
                    "clusterName": "DEFAULT", "metadata": {}},
            });
            if call(&mut session.calls, "InstanceRequest", &instance)
                .await
                .is_ok()
            {
                shared.note_registered(port);
                if !is_first {
                    shared.count(|counts| counts.reconnects += 1);
                }
                is_first = false;
                stay(session).await;
            }
        }
        at = (at + 1) % 3;
        sleep(Duration::from_millis(200 + shared.pick(800) as u64)).await;
    }
}

/// Answers what the member asks and asks whether it is well, until it is not or sends the client away.
async fn stay(mut session: Session) {
    let mut check = tokio::time::interval(BEAT_INTERVAL);
    loop {
        tokio::select! {
            message = session.down.message() => {
                let Ok(Some(message)) = message else { return };
                let kind = message.metadata.map(|m| m.r#type).unwrap_or_default();
                let body: Value = serde_json::from_slice(&message.body.unwrap_or_default().value).unwrap_or_default();
                if kind == "ConnectResetRequest" {
                    return;
                }
                let answer = json!({"resultCode": 200, "requestId": body["requestId"]});
                let _ = session.up.send(payload(&kind.replace("Request", "Response"), &answer));
            }
            _ = check.tick() => {
                if call(&mut session.calls, "HealthCheckRequest", &json!({})).await.is_err() {
                    return;
                }
            }
        }
    }
}
