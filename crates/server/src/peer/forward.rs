//! Clients' writes on their way to the member that owns them: `POST /forward` on the peer port, both sides.
//!
//! Plain HTTP/1.1 with kept connections: a request that takes too long costs its own connection and nothing else. The
//! session token of the last handshake shows that the sender is a member.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rollcall_core::MemberId;
use rollcall_distro::codec::{self, CodecError};
use rollcall_distro::message::{Forward, ForwardReply};
use rollcall_node::Node;
use rollcall_node::action::ForwardId;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::dial::Connector;
use super::handshake::Session;
use super::{FORWARDS_AT_ONCE, MESSAGE_LIMIT, Peer, Shared, sessions};
use crate::error::root_cause;

/// Path of forwarded writes.
pub(super) const PATH: &str = "/forward";
/// Header with the session token.
const SESSION: &str = "x-rollcall-session";
/// How long the node may take over a forwarded write.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Largest reply, in bytes.
const REPLY_LIMIT: usize = 64 << 10;
/// Subject of [`Peer::trouble`].
const FORWARD: &str = "forward";

/// Why a forward has no reply.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the owner is no other member")]
    NoMember,
    #[error("no session: the link has not been up yet")]
    NoSession,
    #[error("no answer in time")]
    Late,
    #[error("{}", root_cause(.0))]
    Http(#[from] hyper_util::client::legacy::Error),
    #[error("{}", root_cause(.0))]
    Request(#[from] http::Error),
    #[error("the reply breaks off: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
    #[error("answered {0}")]
    Status(StatusCode),
    #[error("reply is larger than {REPLY_LIMIT} bytes")]
    TooLarge,
    #[error("bad reply: {0}")]
    Codec(#[from] CodecError),
}

/// How long a connection may rest before it is closed.
const IDLE: Duration = Duration::from_secs(30);

/// A client for forwards.
pub(super) type HttpClient = Client<Connector, Full<Bytes>>;

/// The client for forwards to all members.
pub(super) fn client(connector: Connector) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(FORWARDS_AT_ONCE)
        .build(connector)
}

/// Sends a write from a task of its own and reports to the node.
pub(super) fn send(shared: Arc<Shared>, id: ForwardId, to: MemberId, forward: Forward) {
    tokio::spawn(async move {
        let result = match shared.peer(to) {
            Some(peer) => send_to(&shared, &peer, &forward).await,
            None => Err(Failure::NoMember),
        };
        match result {
            Ok(reply) => {
                shared.with_node(|node, now, actions| node.forward_replied(id, reply, now, actions));
            }
            Err(error) => {
                shared.metrics.forwards_failed.one();
                debug!(?to, %error, "forward failed");
                shared.with_node(|node, now, actions| node.forward_failed(id, now, actions));
            }
        }
    });
}

async fn send_to(shared: &Shared, peer: &Peer, forward: &Forward) -> Result<ForwardReply, Failure> {
    let Some((session, format)) = *peer.session.lock() else {
        return Err(Failure::NoSession);
    };
    let body = codec::encode_as(format, forward)?;
    shared.metrics.forwards_sent.one();
    let result = match timeout(shared.limits.forward, post(shared, peer, session, body)).await {
        Ok(result) => result,
        Err(_) => Err(Failure::Late),
    };
    match &result {
        Ok(_) => peer.trouble.clear(FORWARD),
        Err(error) => {
            if peer
                .trouble
                .is_new(FORWARD, &error.to_string(), shared.now().mono)
            {
                warn!(member = %peer.address, %error, "forward failed");
            }
        }
    }
    result
}

async fn post(
    shared: &Shared,
    peer: &Peer,
    session: Session,
    body: Vec<u8>,
) -> Result<ForwardReply, Failure> {
    let _place = peer.forwards.acquire().await; // Never closed.
    let url = format!("http://{}{PATH}", peer.target);
    let request = Request::post(url)
        .header(SESSION, sessions::to_text(&session))
        .body(Full::from(body))?;
    let response = shared.http.request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(Failure::Status(response.status()));
    }
    let reply = Limited::new(response.into_body(), REPLY_LIMIT).collect().await;
    match reply {
        Ok(reply) => Ok(codec::decode(&reply.to_bytes())?),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::TooLarge),
        Err(error) => Err(Failure::Broken(error)),
    }
}

/// Serves a write that another member sends.
pub(super) async fn receive(shared: Arc<Shared>, headers: HeaderMap, body: Body) -> Response {
    let session = headers
        .get(SESSION)
        .and_then(|text| sessions::from_text(text.to_str().ok()?));
    if session
        .and_then(|session| shared.sessions.member(&session))
        .is_none()
    {
        shared.metrics.forwards_denied.one();
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(bytes) = to_bytes(body, MESSAGE_LIMIT).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let read = || Ok((codec::format_of(&bytes)?, codec::decode::<Forward>(&bytes)?));
    let (format, forward) = match read() {
        Ok(read) => read,
        Err::<_, CodecError>(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    shared.metrics.forwards_received.one();
    let (ticket, answer) = shared.executor.ticket();
    shared.with_node(|node, now, actions| node.forwarded(ticket, forward, now, actions));
    let Ok(Ok((result, accepted))) = timeout(ANSWER_LIMIT, answer).await else {
        return StatusCode::GATEWAY_TIMEOUT.into_response();
    };
    match codec::encode_as(format, &Node::forward_reply(result, accepted)) {
        Ok(bytes) => bytes.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
