//! Probes, both sides: the node's question whether another member lives, and the answers to such questions.
//!
//! One connection per member is kept for them. A connection that the other process's death has closed fails at once
//! and is replaced within the same probe, so that a refused connection, which means that no process is there, is
//! told from silence.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rollcall_core::MemberId;
use rollcall_distro::codec::{self, CodecError, Sealed};
use rollcall_distro::message::Probe;
use rollcall_node::ProbeResult;
use tokio::time::timeout;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use super::dial::{self, Client, DialError};
use super::grpc_peer::envelope;
use super::pb::Envelope;
use super::{Peer, Shared, handshake, random};

/// Subject of [`Peer::trouble`].
pub(super) const PROBE: &str = "probe";

/// Party of [`Shared::refused`] that other processes are which advertise this member's address.
const NAMESAKE: &str = "namesake";

/// Why a probe has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("no answer in time")]
    Late,
    #[error("refused: {}", .0.message())]
    Refused(Status),
    #[error("{0}")]
    Broken(Status),
    #[error("the answer does not prove the cluster secret")]
    Unproven,
    #[error("{0} answers there")]
    OtherMember(String),
    #[error("bad answer: {0}")]
    Codec(#[from] CodecError),
    #[error("no random bytes: {0}")]
    Random(#[from] io::Error),
}

/// Asks `to` and reports to the node.
pub(super) async fn ask(shared: Arc<Shared>, to: MemberId, probe: Probe) {
    let result = match shared.peer(to) {
        Some(peer) => ask_peer(&shared, &peer, &probe).await,
        None => ProbeResult::Missed,
    };
    shared.with_node(|node, now, actions| node.probe_done(to, result, now, actions));
}

async fn ask_peer(shared: &Shared, peer: &Peer, probe: &Probe) -> ProbeResult {
    let answer = match timeout(shared.limits.probe, exchange(shared, peer, probe)).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::Late),
    };
    let failure = match answer {
        Ok(answer) => {
            shared.metrics.probes_answered.one();
            peer.trouble.clear(PROBE);
            if peer.missed.swap(0, Ordering::Relaxed) > 0 {
                peer.awake.notify_one();
            }
            return ProbeResult::Answer(answer);
        }
        Err(failure) => failure,
    };
    *peer.probe_client.lock() = None;
    report(shared, peer, &failure);
    let is_refused = matches!(failure, Failure::Dial(DialError::Refused));
    let n_missed = if is_refused { shared.limits.misses } else { 1 };
    let before = peer.missed.fetch_add(n_missed, Ordering::Relaxed);
    if before < shared.limits.misses && before + n_missed >= shared.limits.misses {
        // The member counts as dead now. Its link may break by itself only long after the member is back: a new one
        // works as soon as the member does.
        peer.redial();
    }
    if is_refused {
        shared.metrics.probes_refused.one();
        return ProbeResult::Refused;
    }
    shared.metrics.probes_missed.one();
    ProbeResult::Missed
}

/// One question and its answer, over the kept connection if it still works, else over a new one.
pub(super) async fn exchange(shared: &Shared, peer: &Peer, probe: &Probe) -> Result<Probe, Failure> {
    let nonce = random::bytes()?;
    let body = codec::encode_probe(probe)?;
    let format = codec::format_of(&body)?;
    let sealed = handshake::seal_question(&shared.secret, nonce, body);
    let question = codec::encode_as(format, &sealed)?;
    shared.metrics.probe_bytes_sent.add(question.len());
    let kept = peer.probe_client.lock().clone();
    let kept = match kept {
        Some(client) => Some(call(client, question.clone()).await),
        None => None,
    };
    let bytes = match kept {
        Some(Ok(bytes)) => bytes,
        Some(Err(failure @ Failure::Refused(_))) => return Err(failure),
        Some(Err(_)) | None => {
            *peer.probe_client.lock() = None;
            let client = dial::client(dial::connect(&*shared.network, &peer.target).await?).await?;
            let bytes = call(client.clone(), question).await?;
            *peer.probe_client.lock() = Some(client);
            bytes
        }
    };
    let sealed: Sealed = codec::decode(&bytes)?;
    if !handshake::check_answer(&shared.secret, &nonce, &sealed) {
        return Err(Failure::Unproven);
    }
    let answer = codec::decode_probe(&sealed.body)?;
    match answer.member() == peer.address.as_str() {
        true => Ok(answer),
        false => Err(Failure::OtherMember(answer.member().to_owned())),
    }
}

async fn call(mut client: Client, question: Vec<u8>) -> Result<bytes::Bytes, Failure> {
    match client.probe(envelope(question)).await {
        Ok(answer) => Ok(answer.into_inner().body),
        Err(status) if matches!(status.code(), Code::PermissionDenied | Code::FailedPrecondition) => {
            Err(Failure::Refused(status))
        }
        Err(status) => Err(Failure::Broken(status)),
    }
}

/// Logs a failure when it is another than the last one.
fn report(shared: &Shared, peer: &Peer, failure: &Failure) {
    let text = failure.to_string();
    let is_new = peer.trouble.is_new(PROBE, &text, shared.now().mono);
    if matches!(failure, Failure::Refused(_) | Failure::Unproven) {
        shared.metrics.handshakes_failed.one();
    }
    match failure {
        Failure::Dial(_) | Failure::Late | Failure::Broken(_) if is_new => {
            info!(member = %peer.address, error = %text, "probe without an answer");
        }
        _ if is_new => warn!(member = %peer.address, error = %text, "probe without a valid answer"),
        _ => debug!(member = %peer.address, error = %text, "probe without an answer"),
    }
}

/// Answers a question of another member.
pub(super) fn answer(
    shared: &Shared,
    remote: Option<SocketAddr>,
    question: &Envelope,
) -> Result<Envelope, Status> {
    let bad = |error: CodecError| Status::invalid_argument(error.to_string());
    let sealed: Sealed = codec::decode(&question.body).map_err(bad)?;
    if !handshake::check_question(&shared.secret, &sealed) {
        return Err(refuse(
            shared,
            remote,
            "",
            "the proof of the cluster secret is wrong",
            Code::PermissionDenied,
        ));
    }
    let probe = codec::decode_probe(&sealed.body).map_err(bad)?;
    let answer = shared.with_node(|node, now, actions| node.on_probe(&probe, now, actions));
    let answer = answer.map_err(|refusal| {
        refuse(
            shared,
            remote,
            probe.member(),
            &refusal.to_string(),
            Code::FailedPrecondition,
        )
    })?;
    shared.refused.clear(&party(probe.member()));
    if probe.member() == shared.own.address && probe.state().boot != shared.node.link_hello().boot {
        note_namesake(shared, remote, &probe);
    }
    let body = codec::encode_probe(&answer).map_err(bad)?;
    let format = codec::format_of(&body).map_err(bad)?;
    let sealed = handshake::seal_answer(&shared.secret, sealed.nonce, body);
    let answer = codec::encode_as(format, &sealed).map_err(bad)?;
    shared.metrics.probe_bytes_sent.add(answer.len());
    Ok(envelope(answer))
}

fn refuse(shared: &Shared, remote: Option<SocketAddr>, member: &str, reason: &str, code: Code) -> Status {
    shared.metrics.handshakes_refused.one();
    let from = remote.map(|address| address.ip().to_string()).unwrap_or_default();
    if shared.refused.is_new(
        &party(if member.is_empty() { &from } else { member }),
        reason,
        shared.now().mono,
    ) {
        warn!(%from, member, reason, "probe refused");
    }
    Status::new(code, reason)
}

/// Another process goes by this member's address. It gives way as soon as it has the answer.
fn note_namesake(shared: &Shared, remote: Option<SocketAddr>, probe: &Probe) {
    shared.metrics.namesakes.one();
    let from = remote.map(|address| address.ip().to_string()).unwrap_or_default();
    let text = format!("{}: {}", from, probe.state().boot);
    if shared.refused.is_new(NAMESAKE, &text, shared.now().mono) {
        warn!(
            %from,
            address = probe.member(),
            "another process advertises the address of this one, and is told to give way"
        );
    }
}

/// Who asks, apart from the same member's links.
fn party(who: &str) -> String {
    format!("probe of {who}")
}
