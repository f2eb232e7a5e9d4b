//! The dialing side of a link: one task per member that keeps a link up and carries the node's frames over it.
//!
//! The node holds what is to be sent and is asked for one frame at a time, when the stream has room for it; what comes
//! up meanwhile is merged there. Called by `mod.rs` at start; everything else reaches it through [`Peer`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollcall_distro::LinkError;
use rollcall_distro::codec::{self, Challenge, CodecError, Verdict};
use rollcall_distro::message::{LinkRefusal, Reply, Welcome};
use rollcall_node::LinkId;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::dial::{self, DialError};
use super::handshake::{self, HandshakeError, Session, Transcript};
use super::pb::Envelope;
use super::{Peer, STALL, STREAM_DEPTH, Shared, random};

/// How long the acceptor may take over its part of the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);
/// Shortest and longest pause between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Subject of [`Peer::trouble`].
pub(super) const LINK: &str = "link";

/// How a link, or the attempt to open one, ended.
enum End {
    /// The process stops, or the member has left the list.
    Gone,
    /// The node, or the probes, want a new one.
    Redial,
    Failed(Failure),
}

/// What went wrong with a link.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot connect: {0}")]
    Dial(#[from] DialError),
    #[error("no {0} in time")]
    Late(&'static str),
    #[error("the stream broke: {0}")]
    Broken(#[from] Status),
    #[error("the acceptor ended the stream")]
    Ended,
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("refused: {0}")]
    Refused(LinkRefusal),
    #[error("nothing could be written for {STALL:?}")]
    Stalled,
    #[error("bad message: {0}")]
    Codec(#[from] CodecError),
    #[error("bad reply: {0}")]
    Reply(LinkError),
    #[error("no random bytes: {0}")]
    Random(#[from] io::Error),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failed(failure)
    }
}

/// A stream whose other end has proven the secret.
struct Open {
    frames: mpsc::Sender<Envelope>,
    replies: Streaming<Envelope>,
    welcome: Welcome,
    session: Session,
    /// The newest format version that both sides speak.
    format: u8,
}

/// Keeps a link to `peer` until it has left the list or the process stops.
pub(super) async fn run(shared: Arc<Shared>, peer: Arc<Peer>) {
    let mut pauses = Pauses::new();
    loop {
        let started = Instant::now();
        let pause = match one_link(&shared, &peer).await {
            End::Gone => return,
            End::Redial => {
                info!(member = %peer.address, "link is dialed anew");
                Duration::ZERO
            }
            End::Failed(failure) => {
                report(&shared, &peer, &failure);
                if started.elapsed() > BACKOFF.1 * 5 {
                    pauses.restart();
                }
                pauses.next()
            }
        };
        tokio::select! {
            () = peer.gone.cancelled() => return,
            () = peer.awake.notified() => pauses.restart(),
            () = sleep(pause) => {}
        }
        // Whatever wakes this task, attempts keep a distance: two members must not wake each other in a circle.
        sleep_until(started + BACKOFF.0).await;
    }
}

/// Opens one link and serves it to its end.
async fn one_link(shared: &Shared, peer: &Peer) -> End {
    // Seen before the hello is made: a redial asked for after it drops this attempt.
    let mut redial = peer.redial.subscribe();
    let opened = tokio::select! {
        () = peer.gone.cancelled() => return End::Gone,
        _ = redial.changed() => return End::Redial,
        opened = open(shared, peer) => opened,
    };
    let Open {
        frames,
        replies,
        welcome,
        session,
        format,
    } = match opened {
        Ok(open) => open,
        Err(failure) => return failure.into(),
    };
    *peer.session.lock() = Some((session, format));
    peer.trouble.clear(LINK);
    shared.metrics.links_opened.one();
    info!(member = %peer.address, resume = ?welcome.resume, format, "link is up");
    let link =
        shared.with_node(|node, now, actions| node.link_up(peer.member, format, welcome, now, actions));
    let end = serve(shared, peer, (link, format), frames, replies, &mut redial).await;
    shared.with_node(|node, now, actions| node.link_down(link, now, actions));
    end
}

/// Dials and shakes hands.
async fn open(shared: &Shared, peer: &Peer) -> Result<Open, Failure> {
    let connect = async { dial::client(dial::connect(&*shared.network, &peer.target).await?).await };
    let client = timeout(shared.limits.dial, connect)
        .await
        .map_err(|_| Failure::Late("connection"))??;
    match timeout(HANDSHAKE_LIMIT, shake_hands(shared, peer, client)).await {
        Ok(opened) => opened,
        Err(_) => Err(Failure::Late("handshake")),
    }
}

async fn shake_hands(shared: &Shared, peer: &Peer, mut client: dial::Client) -> Result<Open, Failure> {
    // In the oldest format: what the acceptor speaks is not known yet.
    let hello = codec::encode_as(codec::OLDEST_FORMAT, &shared.node.link_hello())?;
    let (frames, outgoing) = mpsc::channel(STREAM_DEPTH);
    send(&frames, hello.clone()).await?;
    let mut replies = client.link(ReceiverStream::new(outgoing)).await?.into_inner();

    let bytes = next(&mut replies).await?;
    let challenge = match codec::decode::<Challenge>(&bytes) {
        Err(CodecError::Kind { .. }) => return Err(bare_refusal(&bytes)),
        challenge => challenge?,
    };
    handshake::check_challenge(&challenge, &peer.address)?;
    let nonce = random::bytes()?;
    let transcript = Transcript {
        hello: &hello,
        challenge: &challenge,
        nonce: &nonce,
    };
    let proof = handshake::prove(&shared.secret, &transcript);
    send(&frames, codec::encode_as(codec::OLDEST_FORMAT, &proof)?).await?;

    let bytes = next(&mut replies).await?;
    let verdict = match codec::decode::<Verdict>(&bytes) {
        Err(CodecError::Kind { .. }) => return Err(bare_refusal(&bytes)),
        verdict => verdict?,
    };
    let session = verdict.session;
    match handshake::check_verdict(&shared.secret, &transcript, &verdict)? {
        (format, Ok(welcome)) => Ok(Open {
            frames,
            replies,
            welcome,
            session,
            format,
        }),
        (_, Err(refusal)) => Err(Failure::Refused(refusal)),
    }
}

/// Reads a refusal that comes without a proof. What only a member may say is not believed then.
fn bare_refusal(bytes: &[u8]) -> Failure {
    match codec::decode::<Result<Welcome, LinkRefusal>>(bytes) {
        Ok(Err(LinkRefusal::EpochUsed { .. } | LinkRefusal::NotAMember { .. }) | Ok(_)) => {
            HandshakeError::Unproven.into()
        }
        Ok(Err(refusal)) => Failure::Refused(refusal),
        Err(error) => error.into(),
    }
}

/// Carries frames out and replies in until the link ends.
async fn serve(
    shared: &Shared,
    peer: &Peer,
    (link, format): (LinkId, u8),
    frames: mpsc::Sender<Envelope>,
    mut replies: Streaming<Envelope>,
    redial: &mut watch::Receiver<u64>,
) -> End {
    let mut is_waiting = true; // Frames may wait at the node.
    let stall = sleep(STALL);
    tokio::pin!(stall);
    loop {
        tokio::select! {
            () = peer.gone.cancelled() => return End::Gone,
            _ = redial.changed() => return End::Redial,
            reply = next(&mut replies) => {
                if let Err(failure) = reply.and_then(|bytes| apply(shared, link, &bytes)) {
                    return failure.into();
                }
            }
            room = frames.reserve(), if is_waiting => {
                let Ok(room) = room else { return Failure::Ended.into() };
                stall.as_mut().reset(Instant::now() + STALL);
                match shared.node.poll_link(link, shared.now()).map(|frame| codec::encode_as(format, &frame)) {
                    Some(Ok(body)) => {
                        shared.metrics.frames_sent.one();
                        shared.metrics.frame_bytes_sent.add(body.len());
                        room.send(envelope(body));
                    }
                    Some(Err(error)) => return Failure::Codec(error).into(),
                    None => is_waiting = false,
                }
            }
            () = peer.ready.notified(), if !is_waiting => {
                stall.as_mut().reset(Instant::now() + STALL);
                is_waiting = true;
            }
            () = &mut stall, if is_waiting => {
                shared.metrics.links_stalled.one();
                return Failure::Stalled.into();
            }
        }
    }
}

/// Hands one reply to the node.
fn apply(shared: &Shared, link: LinkId, bytes: &Bytes) -> Result<(), Failure> {
    shared.metrics.replies_received.one();
    shared.metrics.reply_bytes_received.add(bytes.len());
    let reply = codec::decode::<Reply>(bytes).inspect_err(|_| shared.metrics.bad_messages.one())?;
    let applied = shared.with_node(|node, now, actions| node.on_reply(link, reply, now, actions));
    applied.map_err(|error| match error {
        LinkError::Closed => Failure::Ended,
        LinkError::Protocol(_) => {
            shared.metrics.bad_messages.one();
            Failure::Reply(error)
        }
    })
}

/// Logs a failure when it is another than the last one, and tells the node of a refusal.
fn report(shared: &Shared, peer: &Peer, failure: &Failure) {
    let text = failure.to_string();
    let is_new = peer.trouble.is_new(LINK, &text, shared.now().mono);
    match failure {
        Failure::Refused(refusal) => {
            shared.metrics.handshakes_failed.one();
            if is_new {
                warn!(member = %peer.address, %refusal, "link refused, will be tried again");
            }
            shared.with_node(|node, now, actions| node.link_refused(peer.member, refusal, now, actions));
        }
        Failure::Handshake(error) => {
            shared.metrics.handshakes_failed.one();
            if is_new {
                warn!(member = %peer.address, %error, "handshake failed, will be tried again");
            }
        }
        Failure::Codec(_) | Failure::Reply(_) | Failure::Stalled | Failure::Random(_) if is_new => {
            warn!(member = %peer.address, error = %text, "link dropped, will be dialed again");
        }
        _ if is_new => info!(member = %peer.address, error = %text, "no link, will be dialed again"),
        _ => debug!(member = %peer.address, error = %text, "still no link"),
    }
}

async fn send(frames: &mpsc::Sender<Envelope>, body: Vec<u8>) -> Result<(), Failure> {
    frames.send(envelope(body)).await.map_err(|_| Failure::Ended)
}

/// The next body of the stream. Nothing is lost when it is dropped before it completes.
async fn next(replies: &mut Streaming<Envelope>) -> Result<Bytes, Failure> {
    Ok(replies.message().await?.ok_or(Failure::Ended)?.body)
}

pub(super) fn envelope(body: Vec<u8>) -> Envelope {
    Envelope { body: body.into() }
}

/// Growing pauses between attempts, each a little random so that members do not dial in step.
struct Pauses {
    next: Duration,
    random: fastrand::Rng,
}

impl Pauses {
    fn new() -> Self {
        Pauses {
            next: BACKOFF.0,
            random: fastrand::Rng::new(),
        }
    }

    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(BACKOFF.1);
        pause.mul_f64(0.75 + self.random.f64() / 4.0)
    }

    fn restart(&mut self) {
        self.next = BACKOFF.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second() {
        let mut pauses = Pauses::new();
        let first: Vec<_> = (0..6).map(|_| pauses.next().as_millis()).collect();
        for (pause, most) in first.iter().zip([100, 200, 400, 800, 1000, 1000]) {
            assert!((most * 3 / 4..=most).contains(pause), "{first:?}");
        }
        pauses.restart();
        assert!(pauses.next().as_millis() <= 100);
    }

    #[test]
    fn what_only_a_member_may_say_needs_a_proof() {
        let bare = |refusal| bare_refusal(&codec::encode(&Err::<Welcome, _>(refusal)).unwrap());
        assert!(matches!(
            bare(LinkRefusal::Secret),
            Failure::Refused(LinkRefusal::Secret)
        ));
        assert!(matches!(
            bare(LinkRefusal::EpochUsed { at_least: u64::MAX }),
            Failure::Handshake(HandshakeError::Unproven)
        ));
    }
}
