//! The accepting side of links: checks who dials, then hands each frame to the node in order and sends its replies.
//!
//! Called by `serve.rs` for each stream. One task per link; a newer link of the same member ends the older one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rollcall_core::MemberId;
use rollcall_distro::LinkError;
use rollcall_distro::codec::{self, Challenge, CodecError, Proof};
use rollcall_distro::message::{Frame, LinkHello, LinkRefusal, Welcome};
use rollcall_node::LinkId;
use rollcall_node::action::Actions;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::grpc_peer::envelope;
use super::handshake::{self, Session, Transcript};
use super::pb::Envelope;
use super::{STALL, Shared, random};

/// How long a dialer may take over the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Unfinished handshakes at a time; more are turned away.
const HANDSHAKES_AT_ONCE: usize = 32;

/// Where the answers of a link go.
pub(super) type Answers = mpsc::Sender<Result<Envelope, Status>>;

/// The accepted links, one per member.
pub(super) struct InboundLinks {
    links: Mutex<HashMap<MemberId, Arc<InboundLink>>>,
    handshakes: Arc<Semaphore>,
}

#[derive(Default)]
struct InboundLink {
    /// Replies may wait at the node.
    replies: Notify,
    /// A newer link has taken the place of this one, or the member has left the list.
    replaced: CancellationToken,
}

impl Default for InboundLinks {
    fn default() -> Self {
        InboundLinks {
            links: Mutex::default(),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_AT_ONCE)),
        }
    }
}

impl InboundLinks {
    /// Replies wait for `member` at the node.
    pub(super) fn replies_ready(&self, member: MemberId) {
        if let Some(link) = self.links.lock().get(&member) {
            link.replies.notify_one();
        }
    }

    /// Ends the link of a member.
    pub(super) fn end(&self, member: MemberId) {
        if let Some(link) = self.links.lock().remove(&member) {
            link.replaced.cancel();
        }
    }

    /// A place among the unfinished handshakes, if there is one.
    pub(super) fn begin(&self) -> Option<OwnedSemaphorePermit> {
        self.handshakes.clone().try_acquire_owned().ok()
    }

    fn remove(&self, member: MemberId, link: &Arc<InboundLink>) {
        let mut links = self.links.lock();
        if links
            .get(&member)
            .is_some_and(|current| Arc::ptr_eq(current, link))
        {
            links.remove(&member);
        }
    }
}

/// How an accepted link ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("this member stops")]
    Shutdown,
    #[error("replaced by a newer link of the same member, or not wanted any more")]
    Replaced,
    #[error("the dialer ended the stream")]
    Ended,
    #[error("the stream broke: {0}")]
    Broken(#[from] Status),
    #[error("nothing could be written for {STALL:?}")]
    Stalled,
    #[error("bad message: {0}")]
    Codec(#[from] CodecError),
    #[error("bad frame: {0}")]
    Frame(LinkError),
    #[error("the handshake took too long")]
    Late,
    #[error("{refusal}")]
    Refused {
        /// Address that the dialer gives for itself.
        member: String,
        refusal: LinkRefusal,
    },
}

impl End {
    fn is_fault(&self) -> bool {
        matches!(self, End::Codec(_) | End::Frame(_) | End::Stalled)
    }
}

/// A dialer that has proven the secret.
struct Proven {
    hello: LinkHello,
    /// The newest format version that both sides speak.
    format: u8,
    bytes: Bytes,
    challenge: Challenge,
    nonce: handshake::Nonce,
}

/// Serves one stream from its first message to its end.
pub(super) async fn accept(
    shared: Arc<Shared>,
    remote: Option<SocketAddr>,
    mut frames: Streaming<Envelope>,
    answers: Answers,
    place: OwnedSemaphorePermit,
) {
    let proven = tokio::select! {
        () = shared.shutdown.cancelled() => return,
        proven = timeout(HANDSHAKE_LIMIT, shake_hands(&shared, &mut frames, &answers)) => proven,
    };
    drop(place);
    match proven.unwrap_or(Err(End::Late)) {
        Ok(proven) => admit(&shared, remote, proven, frames, answers).await,
        Err(End::Refused { member, refusal }) => refused(&shared, remote, &member, &refusal.to_string()),
        Err(end @ (End::Codec(_) | End::Late)) => refused(&shared, remote, "", &end.to_string()),
        Err(end) => debug!(?remote, reason = %end, "a dialer left during the handshake"),
    }
}

/// Finds out whether the dialer may be a member, and tells it when not.
async fn shake_hands(
    shared: &Shared,
    frames: &mut Streaming<Envelope>,
    answers: &Answers,
) -> Result<Proven, End> {
    let bytes = next(frames).await?;
    let hello: LinkHello = codec::decode(&bytes)?;
    let ours = shared.node.link_hello();
    // A dialer that speaks no common format reads the refusal in its own newest, if at all.
    let format = hello.formats.1.clamp(codec::OLDEST_FORMAT, ours.formats.1);
    let refusal = match ours.check(&hello) {
        Err(refusal) => refusal,
        Ok(()) => {
            let nonce = random::bytes().map_err(|error| Status::internal(error.to_string()))?;
            let challenge = Challenge {
                nonce,
                member: ours.member,
            };
            send(answers, codec::encode_as(format, &challenge)?).await?;
            let proof: Proof = codec::decode(&next(frames).await?)?;
            match handshake::check_proof(&shared.secret, &bytes, &challenge, &proof) {
                Ok(()) => {
                    return Ok(Proven {
                        hello,
                        format,
                        bytes,
                        challenge,
                        nonce: proof.nonce,
                    });
                }
                Err(refusal) => refusal,
            }
        }
    };
    let refused = Err::<Welcome, _>(refusal.clone());
    send(answers, codec::encode_as(format, &refused)?).await?;
    Err(End::Refused {
        member: hello.member,
        refusal,
    })
}

/// Asks the node for its decision, tells it to the dialer and serves the link.
async fn admit(
    shared: &Shared,
    remote: Option<SocketAddr>,
    proven: Proven,
    frames: Streaming<Envelope>,
    answers: Answers,
) {
    let session = match random::bytes() {
        Ok(session) => session,
        Err(error) => return warn!(%error, "no random bytes for a session"),
    };
    let place = Arc::new(InboundLink::default());
    let mut actions = Actions::default();
    let decision = {
        // One lock around both, so that the node and this table agree on which link of a member is the newest. The node
        // only collects actions; they are carried out after the lock.
        let mut links = shared.inbound.links.lock();
        let decision = shared.node.accept_link(&proven.hello, shared.now(), &mut actions);
        if let Ok((_, member, _)) = &decision
            && let Some(older) = links.insert(*member, place.clone())
        {
            older.replaced.cancel();
        }
        decision
    };
    let (accepted, decision) = match decision {
        Ok((link, member, welcome)) => {
            shared.sessions.add(member, session);
            (Some((link, member)), Ok(welcome))
        }
        Err(refusal) => (None, Err(refusal)),
    };
    shared.executor.run(actions);
    let told = timeout(
        HANDSHAKE_LIMIT,
        tell(shared, &proven, &decision, session, &answers),
    )
    .await;
    let Some((link, member)) = accepted else {
        if let Err(refusal) = decision {
            refused(shared, remote, &proven.hello.member, &refusal.to_string());
        }
        return;
    };
    shared.metrics.links_accepted.one();
    shared.refused.clear(&proven.hello.member);
    info!(member = %proven.hello.member, epoch = proven.hello.epoch, "link accepted");
    if let Some(peer) = shared.peer(member) {
        peer.awake.notify_one(); // It is there: no need to wait before dialing it.
    }
    let end = match told {
        Ok(Ok(())) => serve(shared, (link, proven.format), &place, frames, &answers).await,
        Ok(Err(end)) => end,
        Err(_) => End::Stalled,
    };
    shared.inbound.remove(member, &place);
    shared.with_node(|node, now, actions| node.inbound_down(link, now, actions));
    if end.is_fault() {
        warn!(member = %proven.hello.member, error = %end, "accepted link dropped");
        let _ = answers.try_send(Err(Status::invalid_argument(end.to_string()))); // The dialer sees the end anyway.
    } else {
        info!(member = %proven.hello.member, reason = %end, "accepted link ended");
    }
}

async fn tell(
    shared: &Shared,
    proven: &Proven,
    decision: &Result<Welcome, LinkRefusal>,
    session: Session,
    answers: &Answers,
) -> Result<(), End> {
    let Proven {
        format,
        bytes,
        challenge,
        nonce,
        ..
    } = proven;
    let transcript = Transcript {
        hello: bytes,
        challenge,
        nonce,
    };
    let verdict = handshake::verdict(&shared.secret, &transcript, decision, session, *format)?;
    send(answers, codec::encode_as(*format, &verdict)?).await
}

/// Carries frames in and replies out until the link ends.
async fn serve(
    shared: &Shared,
    (link, format): (LinkId, u8),
    place: &InboundLink,
    mut frames: Streaming<Envelope>,
    answers: &Answers,
) -> End {
    let mut is_waiting = true; // Replies may wait at the node.
    let stall = sleep(STALL);
    tokio::pin!(stall);
    loop {
        tokio::select! {
            () = shared.shutdown.cancelled() => return End::Shutdown,
            () = place.replaced.cancelled() => return End::Replaced,
            frame = next(&mut frames) => {
                if let Err(end) = frame.and_then(|bytes| apply(shared, link, &bytes)) {
                    return end;
                }
                // However many frames are here already: what others want comes in between.
                tokio::task::yield_now().await;
                // The node may have an answer to it at once.
                if !is_waiting {
                    stall.as_mut().reset(Instant::now() + STALL);
                    is_waiting = true;
                }
            }
            room = answers.reserve(), if is_waiting => {
                let Ok(room) = room else { return End::Ended };
                stall.as_mut().reset(Instant::now() + STALL);
                match shared.node.poll_reply(link).map(|reply| codec::encode_as(format, &reply)) {
                    Some(Ok(body)) => {
                        shared.metrics.replies_sent.one();
                        shared.metrics.reply_bytes_sent.add(body.len());
                        room.send(Ok(envelope(body)));
                    }
                    Some(Err(error)) => return error.into(),
                    None => is_waiting = false,
                }
            }
            () = place.replies.notified(), if !is_waiting => {
                stall.as_mut().reset(Instant::now() + STALL);
                is_waiting = true;
            }
            () = &mut stall, if is_waiting => {
                shared.metrics.links_stalled.one();
                return End::Stalled;
            }
        }
    }
}

/// Hands one frame to the node.
fn apply(shared: &Shared, link: LinkId, bytes: &Bytes) -> Result<(), End> {
    shared.metrics.frames_received.one();
    shared.metrics.frame_bytes_received.add(bytes.len());
    let frame = codec::decode::<Frame>(bytes).inspect_err(|_| shared.metrics.bad_messages.one())?;
    let applied = shared.with_node(|node, now, actions| node.on_frame(link, frame, now, actions));
    applied.map_err(|error| match error {
        LinkError::Closed => End::Replaced,
        LinkError::Protocol(_) => {
            shared.metrics.bad_messages.one();
            End::Frame(error)
        }
    })
}

/// Counts a refused dialer, and logs it when the reason is another than the last one.
fn refused(shared: &Shared, remote: Option<SocketAddr>, member: &str, reason: &str) {
    shared.metrics.handshakes_refused.one();
    let from = remote.map(|address| address.ip().to_string()).unwrap_or_default();
    if shared.refused.is_new(
        if member.is_empty() { &from } else { member },
        reason,
        shared.now().mono,
    ) {
        warn!(%from, member, reason, "link of a dialer refused");
    }
}

async fn send(answers: &Answers, body: Vec<u8>) -> Result<(), End> {
    answers.send(Ok(envelope(body))).await.map_err(|_| End::Ended)
}

/// The next body of the stream. Nothing is lost when it is dropped before it completes.
async fn next(frames: &mut Streaming<Envelope>) -> Result<Bytes, End> {
    Ok(frames.message().await?.ok_or(End::Ended)?.body)
}
