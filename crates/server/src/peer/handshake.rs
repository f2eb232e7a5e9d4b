//! Proofs of the cluster secret: what each side of a link says, and what it checks, as pure functions.
//!
//! ```text
//! dialer                                acceptor
//!   hello                      ->         LinkHello::check: same cluster, mapper and a common format version
//!                              <-         challenge: random bytes, the acceptor's address
//!   prove: random bytes, MAC   ->         check_proof
//!   check_verdict              <-         verdict: welcome or refusal, session token, MAC
//! ```
//!
//! Every MAC is HMAC-SHA256 under the cluster secret over a context text, both sides' random bytes, the acceptor's
//! address and the hello. A proof is therefore good for one challenge of one acceptor, a proof of one side is never one
//! of the other, and the dialer knows that the member it meant has answered. Randomness comes in as arguments; the
//! sockets are in `grpc_peer.rs` and `inbound.rs`. Nothing hides the frames that follow from someone who can read
//! or change the traffic: the peer port belongs on a network that only members use.

use hmac::{Hmac, KeyInit, Mac};
use rollcall_distro::codec::{self, Challenge, CodecError, Proof, Sealed, Verdict};
use rollcall_distro::message::{LinkRefusal, Welcome};
use sha2::Sha256;

/// Random bytes that are used once.
pub(crate) type Nonce = [u8; 32];
/// Random bytes that the acceptor of a link gives to its dialer, shown with each forward.
pub(crate) type Session = [u8; 32];

/// The cluster secret, ready to make MACs. Never printed.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

/// Contexts: what a MAC stands for. No MAC of one is good for another.
const DIALER: &[u8] = b"rollcall distro v1 link dialer";
const ACCEPTOR: &[u8] = b"rollcall distro v1 link acceptor";
const QUESTION: &[u8] = b"rollcall distro v1 probe question";
const ANSWER: &[u8] = b"rollcall distro v1 probe answer";

impl Secret {
    /// The secret with this text; the empty text is a secret as well.
    pub(crate) fn new(text: &str) -> Result<Self, hmac::digest::InvalidLength> {
        Ok(Secret(Hmac::new_from_slice(text.as_bytes())?))
    }

    /// A MAC over the context and all parts, each with its length before it so that none can flow into the next.
    fn over(&self, context: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in std::iter::once(&context).chain(parts) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    fn sign(&self, context: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        self.over(context, parts).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    fn verify(&self, context: &[u8], parts: &[&[u8]], mac: &[u8; 32]) -> bool {
        self.over(context, parts).verify_slice(mac).is_ok()
    }
}

/// Why a dialer does not trust, or cannot read, what an acceptor says.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The acceptor did not prove the secret.
    #[error("the acceptor's proof of the cluster secret is wrong")]
    Unproven,
    /// Another member answers at the address.
    #[error("dialed {dialed}, but {found} answers there")]
    OtherMember {
        /// Address of the member that was meant.
        dialed: String,
        /// Address that the acceptor gives for itself.
        found: String,
    },
    /// A message does not decode.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// What both sides know when the dialer has drawn its random bytes; all that the proofs cover.
pub(crate) struct Transcript<'a> {
    /// The hello as it was sent.
    pub(crate) hello: &'a [u8],
    /// The acceptor's challenge.
    pub(crate) challenge: &'a Challenge,
    /// The dialer's random bytes.
    pub(crate) nonce: &'a Nonce,
}

impl Transcript<'_> {
    fn parts(&self) -> [&[u8]; 4] {
        [
            &self.challenge.nonce,
            self.nonce,
            self.challenge.member.as_bytes(),
            self.hello,
        ]
    }
}

/// Dialer: checks that the member it meant has answered.
pub(crate) fn check_challenge(challenge: &Challenge, dialed: &str) -> Result<(), HandshakeError> {
    if challenge.member == dialed {
        return Ok(());
    }
    Err(HandshakeError::OtherMember {
        dialed: dialed.to_owned(),
        found: challenge.member.clone(),
    })
}

/// Dialer: proves the secret.
pub(crate) fn prove(secret: &Secret, transcript: &Transcript<'_>) -> Proof {
    Proof {
        nonce: *transcript.nonce,
        mac: secret.sign(DIALER, &transcript.parts()),
    }
}

/// Acceptor: checks the dialer's proof.
pub(crate) fn check_proof(
    secret: &Secret,
    hello: &[u8],
    challenge: &Challenge,
    proof: &Proof,
) -> Result<(), LinkRefusal> {
    let transcript = Transcript {
        hello,
        challenge,
        nonce: &proof.nonce,
    };
    match secret.verify(DIALER, &transcript.parts(), &proof.mac) {
        true => Ok(()),
        false => Err(LinkRefusal::Secret),
    }
}

/// Acceptor: its decision and its own proof, once the dialer's proof is good. The head of the decision names the format
/// of the link, and so proves it too.
pub(crate) fn verdict(
    secret: &Secret,
    transcript: &Transcript<'_>,
    decision: &Result<Welcome, LinkRefusal>,
    session: Session,
    format: u8,
) -> Result<Verdict, CodecError> {
    let body = codec::encode_as(format, decision)?;
    let [a, b, member, hello] = transcript.parts();
    let mac = secret.sign(ACCEPTOR, &[a, b, member, hello, &body, &session]);
    Ok(Verdict { body, session, mac })
}

/// Dialer: checks the acceptor's proof and reads its decision and the format of the link.
pub(crate) fn check_verdict(
    secret: &Secret,
    transcript: &Transcript<'_>,
    verdict: &Verdict,
) -> Result<(u8, Result<Welcome, LinkRefusal>), HandshakeError> {
    let [a, b, member, hello] = transcript.parts();
    let parts: [&[u8]; 6] = [a, b, member, hello, &verdict.body, &verdict.session];
    if !secret.verify(ACCEPTOR, &parts, &verdict.mac) {
        return Err(HandshakeError::Unproven);
    }
    Ok((codec::format_of(&verdict.body)?, codec::decode(&verdict.body)?))
}

/// Asking side of a probe: the encoded question with a proof.
pub(crate) fn seal_question(secret: &Secret, nonce: Nonce, body: Vec<u8>) -> Sealed {
    let mac = secret.sign(QUESTION, &[&nonce, &body]);
    Sealed { nonce, mac, body }
}

/// Answering side of a probe: whether the question is from someone who knows the secret.
pub(crate) fn check_question(secret: &Secret, sealed: &Sealed) -> bool {
    secret.verify(QUESTION, &[&sealed.nonce, &sealed.body], &sealed.mac)
}

/// Answering side of a probe: the encoded answer to the question with this nonce.
pub(crate) fn seal_answer(secret: &Secret, nonce: Nonce, body: Vec<u8>) -> Sealed {
    let mac = secret.sign(ANSWER, &[&nonce, &body]);
    Sealed { nonce, mac, body }
}

/// Asking side of a probe: whether this answers the question with this nonce and knows the secret.
pub(crate) fn check_answer(secret: &Secret, nonce: &Nonce, sealed: &Sealed) -> bool {
    secret.verify(ANSWER, &[nonce, &sealed.body], &sealed.mac)
}

#[cfg(test)]
mod tests {
    use rollcall_distro::message::Resume;

    use rollcall_distro::message::LinkHello;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text).unwrap()
    }

    fn hello(cluster: &str) -> LinkHello {
        LinkHello {
            cluster: cluster.into(),
            mapper: "modulo".into(),
            formats: (1, 1),
            member: "127.0.0.1:8848".into(),
            epoch: 7,
            boot: 9,
        }
    }

    fn challenge(n: u8) -> Challenge {
        Challenge {
            nonce: [n; 32],
            member: "127.0.0.1:8858".into(),
        }
    }

    fn welcome() -> Result<Welcome, LinkRefusal> {
        Ok(Welcome {
            resume: Resume::Fresh,
            epoch: 3,
            boot: 4,
        })
    }

    #[test]
    fn the_right_secret_is_accepted_on_both_sides() {
        let secret = secret("s");
        let hello = codec::encode(&hello("a")).unwrap();
        let challenge = challenge(1);
        let transcript = Transcript {
            hello: &hello,
            challenge: &challenge,
            nonce: &[2; 32],
        };
        let proof = prove(&secret, &transcript);
        assert_eq!(check_proof(&secret, &hello, &challenge, &proof), Ok(()));
        let verdict = verdict(&secret, &transcript, &welcome(), [5; 32], codec::FORMAT).unwrap();
        assert_eq!(
            check_verdict(&secret, &transcript, &verdict),
            Ok((codec::FORMAT, welcome()))
        );
    }

    #[test]
    fn a_wrong_secret_is_refused_by_either_side() {
        let (ours, theirs) = (secret("s"), secret("t"));
        let hello = codec::encode(&hello("a")).unwrap();
        let challenge = challenge(1);
        let transcript = Transcript {
            hello: &hello,
            challenge: &challenge,
            nonce: &[2; 32],
        };
        let proof = prove(&theirs, &transcript);
        assert_eq!(
            check_proof(&ours, &hello, &challenge, &proof),
            Err(LinkRefusal::Secret)
        );
        let verdict = verdict(&theirs, &transcript, &welcome(), [5; 32], codec::FORMAT).unwrap();
        assert_eq!(
            check_verdict(&ours, &transcript, &verdict),
            Err(HandshakeError::Unproven)
        );
    }

    #[test]
    fn a_proof_is_good_for_one_challenge_and_one_hello() {
        let secret = secret("s");
        let first = codec::encode(&hello("a")).unwrap();
        let other = codec::encode(&LinkHello {
            epoch: 8,
            ..hello("a")
        })
        .unwrap();
        let proof = prove(
            &secret,
            &Transcript {
                hello: &first,
                challenge: &challenge(1),
                nonce: &[2; 32],
            },
        );
        assert_eq!(
            check_proof(&secret, &first, &challenge(3), &proof),
            Err(LinkRefusal::Secret)
        );
        assert_eq!(
            check_proof(&secret, &other, &challenge(1), &proof),
            Err(LinkRefusal::Secret)
        );
        let renamed = Challenge {
            member: "127.0.0.1:8868".into(),
            ..challenge(1)
        };
        assert_eq!(
            check_proof(&secret, &first, &renamed, &proof),
            Err(LinkRefusal::Secret)
        );
        let renonced = Proof {
            nonce: [4; 32],
            ..proof
        };
        assert_eq!(
            check_proof(&secret, &first, &challenge(1), &renonced),
            Err(LinkRefusal::Secret)
        );
    }

    #[test]
    fn a_dialers_proof_cannot_be_sent_back_as_the_acceptors() {
        let secret = secret("s");
        let hello = codec::encode(&hello("a")).unwrap();
        let challenge = challenge(1);
        let transcript = Transcript {
            hello: &hello,
            challenge: &challenge,
            nonce: &[2; 32],
        };
        let mac = prove(&secret, &transcript).mac;
        let forged = Verdict {
            body: codec::encode(&welcome()).unwrap(),
            session: [0; 32],
            mac,
        };
        assert_eq!(
            check_verdict(&secret, &transcript, &forged),
            Err(HandshakeError::Unproven)
        );
    }

    #[test]
    fn a_changed_verdict_is_noticed() {
        let secret = secret("s");
        let hello = codec::encode(&hello("a")).unwrap();
        let challenge = challenge(1);
        let transcript = Transcript {
            hello: &hello,
            challenge: &challenge,
            nonce: &[2; 32],
        };
        let good = verdict(&secret, &transcript, &welcome(), [5; 32], codec::FORMAT).unwrap();
        let session = Verdict {
            session: [6; 32],
            ..good.clone()
        };
        assert_eq!(
            check_verdict(&secret, &transcript, &session),
            Err(HandshakeError::Unproven)
        );
        let refusal = Err(LinkRefusal::EpochUsed { at_least: u64::MAX });
        let body = Verdict {
            body: codec::encode(&refusal).unwrap(),
            ..good
        };
        assert_eq!(
            check_verdict(&secret, &transcript, &body),
            Err(HandshakeError::Unproven)
        );
    }

    #[test]
    fn another_member_at_the_address_is_noticed() {
        assert_eq!(check_challenge(&challenge(1), "127.0.0.1:8858"), Ok(()));
        assert!(matches!(
            check_challenge(&challenge(1), "127.0.0.1:8868"),
            Err(HandshakeError::OtherMember { .. })
        ));
    }

    #[test]
    fn an_answer_belongs_to_its_question() {
        let (ours, theirs) = (secret("s"), secret("t"));
        let question = seal_question(&ours, [1; 32], vec![7]);
        assert!(check_question(&ours, &question));
        assert!(!check_question(&theirs, &question));
        let answer = seal_answer(&ours, question.nonce, vec![8]);
        assert!(check_answer(&ours, &[1; 32], &answer));
        assert!(!check_answer(&ours, &[2; 32], &answer));
        assert!(!check_answer(&theirs, &[1; 32], &answer));
        assert!(!check_answer(&ours, &[1; 32], &question));
    }
}
