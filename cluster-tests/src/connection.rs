//! The clients' wire: one HTTP/2 connection, the envelope, unary calls and the stream.
//!
//! Nothing here reconnects or retries: when the connection is dropped, its TCP connection is closed.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result, ensure};
use http::uri::PathAndQuery;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use pb::bi_request_stream_client::BiRequestStreamClient;
use pb::request_client::RequestClient;
pub use pb::{Metadata, Payload};

#[allow(
    missing_docs,
    non_camel_case_types,
    unreachable_pub,
    unused_qualifications,
    clippy::all
)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/_.rs"));
}

/// Largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// A payload with a JSON body.
pub fn payload(kind: &str, body: &Value) -> Payload {
    payload_of_text(kind, body.to_string())
}

/// A payload with any body.
pub fn payload_of_text(kind: &str, body: impl Into<Vec<u8>>) -> Payload {
    Payload {
        metadata: Some(Metadata {
            r#type: kind.into(),
            client_ip: "127.0.0.1".into(),
            headers: Default::default(),
        }),
        body: Some(prost_types::Any {
            type_url: String::new(),
            value: body.into(),
        }),
    }
}

/// An answer or a push: its type and its body.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Type of the body.
    pub kind: String,
    /// The body.
    pub body: Value,
}

impl Answer {
    /// Opens the envelope.
    ///
    /// # Errors
    /// There is no metadata, or the body is no JSON.
    pub fn open(payload: Payload) -> Result<Self> {
        let kind = payload.metadata.context("a payload without metadata")?.r#type;
        let body = payload.body.unwrap_or_default();
        ensure!(body.type_url.is_empty(), "{kind} has a type url");
        let body = serde_json::from_slice(&body.value).with_context(|| format!("body of {kind}"))?;
        Ok(Answer { kind, body })
    }

    /// `resultCode`.
    pub fn result_code(&self) -> i64 {
        self.body["resultCode"].as_i64().unwrap_or(i64::MIN)
    }

    /// `errorCode`.
    pub fn error_code(&self) -> i64 {
        self.body["errorCode"].as_i64().unwrap_or(i64::MIN)
    }

    /// `message`, or nothing.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Checks that the request was accepted.
    ///
    /// # Errors
    /// It was refused, or the fields that every answer has are missing.
    pub fn accepted(self) -> Result<Self> {
        let is_accepted =
            self.result_code() == 200 && self.error_code() == 0 && self.body["success"] == Value::Bool(true);
        ensure!(is_accepted, "refused: {} {}", self.kind, self.body);
        Ok(self)
    }

    /// Checks that the request was refused with this code.
    ///
    /// # Errors
    /// It was accepted, or refused otherwise.
    pub fn refused(self, error_code: i64) -> Result<Self> {
        let is_refused = self.result_code() != 200
            && self.error_code() == error_code
            && self.body["success"] == Value::Bool(false);
        ensure!(
            is_refused,
            "wanted error {error_code}, got {} {}",
            self.kind,
            self.body
        );
        Ok(self)
    }
}

/// One HTTP/2 connection to a node's gRPC port.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    origin: http::Uri,
    local: SocketAddr,
    task: AbortHandle,
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// Nobody listens, or what listens does not speak HTTP/2.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        Self::open_with_window(address, None).await
    }

    /// Opens a connection on which each answer, and what comes by the stream, may be so many bytes ahead of what is read;
    /// the usual number when `None`.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub async fn open_with_window(address: SocketAddr, window: Option<u32>) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        let mut builder = Builder::new(TokioExecutor::new());
        if let Some(window) = window {
            builder.initial_stream_window_size(window);
        }
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let task = tokio::spawn(connection).abort_handle();
        let origin = format!("http://{address}").parse()?;
        Ok(Connection {
            wire: Wire(sender),
            origin,
            local,
            task,
        })
    }

    /// The address of this end.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// One call with one answer.
    ///
    /// # Errors
    /// The gRPC status when it is not OK, or an answer that cannot be read.
    pub async fn call(&self, payload: Payload) -> Result<Answer> {
        Answer::open(self.call_raw(payload).await?)
    }

    /// One call, the envelope unopened.
    ///
    /// # Errors
    /// The gRPC status when it is not OK.
    pub async fn call_raw(&self, payload: Payload) -> Result<Payload, tonic::Status> {
        let client = RequestClient::with_origin(self.wire.clone(), self.origin.clone());
        let mut client = client.max_decoding_message_size(MAX_ANSWER);
        Ok(client.request(payload).await?.into_inner())
    }

    /// One call whose answer has begun and is not read: what comes out is to be kept for as long as nobody reads it.
    ///
    /// # Errors
    /// The gRPC status when it is not OK.
    pub async fn call_unread(&self, payload: Payload) -> Result<Streaming<Payload>, tonic::Status> {
        let mut client = tonic::client::Grpc::with_origin(self.wire.clone(), self.origin.clone());
        let broken = |error| tonic::Status::unknown(format!("{error}"));
        client.ready().await.map_err(broken)?;
        let path = PathAndQuery::from_static("/Request/request");
        let codec = tonic_prost::ProstCodec::<Payload, Payload>::default();
        let answer = client.server_streaming(tonic::Request::new(payload), path, codec);
        Ok(answer.await?.into_inner())
    }

    /// One call with a JSON body.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub async fn send(&self, kind: &str, body: &Value) -> Result<Answer> {
        self.call(payload(kind, body)).await
    }

    /// Opens the stream; what is sent into the first goes up, the second is what comes down.
    ///
    /// # Errors
    /// The gRPC status when it is not OK.
    pub async fn stream(&self) -> Result<(mpsc::UnboundedSender<Payload>, Streaming<Payload>)> {
        let client = BiRequestStreamClient::with_origin(self.wire.clone(), self.origin.clone());
        let mut client = client.max_decoding_message_size(MAX_ANSWER);
        let (up, outgoing) = mpsc::unbounded_channel();
        let down = client
            .request_bi_stream(UnboundedReceiverStream::new(outgoing))
            .await?;
        Ok((up, down.into_inner()))
    }

    /// Closes the TCP connection now.
    pub fn close(&self) {
        self.task.abort();
    }

    /// Whether the TCP connection is closed, by either end.
    pub fn is_closed(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// The connection as tonic wants it.
#[derive(Clone, Debug)]
struct Wire(SendRequest<tonic::body::Body>);

impl tower::Service<http::Request<tonic::body::Body>> for Wire {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(task)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
