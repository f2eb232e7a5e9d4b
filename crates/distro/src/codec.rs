//! Bytes of the peer protocol. The only file that names bincode.
//!
//! A message is `[format version][kind][flags][body]`; the body is bincode's standard configuration, deflated when
//! [`FLAG_DEFLATED`] is set. Decoding bounds every length before it allocates and refuses trailing bytes.

use std::io::{Read, Write};

use bincode::{Decode, Encode};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::message::{
    Brief, Forward, ForwardReply, Frame, FullProbe, LinkHello, LinkRefusal, Op, Probe, Reply, Welcome,
};

/// The newest format version this code speaks.
pub const FORMAT: u8 = 4;
/// The oldest format version this code speaks. What is said before both sides know of each other's is written in it.
pub const OLDEST_FORMAT: u8 = 2;
/// Largest body, before compression, in bytes.
pub const MAX_BODY: usize = 16 << 20;
/// Bodies from this size on are deflated, in bytes.
pub const DEFLATE_FROM: usize = 4 << 10;
/// The body is deflated.
const FLAG_DEFLATED: u8 = 1;

/// Bytes from a member that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// Shorter than the head.
    #[error("message of {0} bytes is shorter than its head")]
    Short(usize),
    /// A format version this code does not speak.
    #[error("format version {0} is not spoken here")]
    Version(u8),
    /// Another kind of message than expected.
    #[error("message kind {found}, expected {expected}")]
    Kind {
        /// Kind in the head.
        found: u8,
        /// Kind asked for.
        expected: u8,
    },
    /// Unknown flags.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// The body is larger than [`MAX_BODY`].
    #[error("body is larger than {MAX_BODY} bytes")]
    TooLarge,
    /// The body does not decode.
    #[error("body does not decode: {0}")]
    Body(String),
    /// Bytes follow the body.
    #[error("{0} bytes follow the body")]
    Trailing(usize),
}

/// A message with a kind of its own.
pub trait Message: Encode + Decode<()> {
    /// Number of the kind in the head.
    const KIND: u8;

    /// The format version that brought this message.
    fn since(&self) -> u8 {
        OLDEST_FORMAT
    }
}

macro_rules! kinds {
    ($($kind:literal $name:ty),* $(,)?) => {
        $(impl Message for $name { const KIND: u8 = $kind; })*
    };
}

kinds! {
    1 LinkHello, 2 Challenge, 3 Proof, 4 Result<Welcome, LinkRefusal>,
    7 FullProbe, 8 Forward, 9 ForwardReply,
    10 Verdict, 11 Sealed, 12 Op,
}

impl Message for Frame {
    const KIND: u8 = 5;

    fn since(&self) -> u8 {
        match self {
            Frame::RowsOf { .. } | Frame::BeatsFor { .. } => 3,
            Frame::Starting(_) => 4,
            _ => OLDEST_FORMAT,
        }
    }
}

impl Message for Reply {
    const KIND: u8 = 6;

    fn since(&self) -> u8 {
        match self {
            Reply::Relay { .. } => 3,
            _ => OLDEST_FORMAT,
        }
    }
}

impl Message for Brief {
    const KIND: u8 = 13;

    fn since(&self) -> u8 {
        3
    }
}

/// The acceptor's challenge: second message of the handshake.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Challenge {
    /// Random bytes of the acceptor.
    pub nonce: [u8; 32],
    /// The acceptor's advertised address: both proofs cover it, so the dialer knows whom it reached.
    pub member: String,
}

/// The dialer's proof: third message of the handshake.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Proof {
    /// Random bytes of the dialer.
    pub nonce: [u8; 32],
    /// HMAC over both nonces, the acceptor's address and the hello.
    pub mac: [u8; 32],
}

/// The acceptor's last word in the handshake, and its own proof.
#[derive(Clone, PartialEq, Encode, Decode)]
pub struct Verdict {
    /// An encoded `Result<Welcome, LinkRefusal>`.
    pub body: Vec<u8>,
    /// Token that the dialer shows with each forward.
    pub session: [u8; 32],
    /// HMAC over all of the dialer's proof and the two fields above.
    pub mac: [u8; 32],
}

/// A single message with a proof of the cluster secret.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Sealed {
    /// Random bytes of the asking side; the answer repeats them.
    pub nonce: [u8; 32],
    /// HMAC over the nonce and the body.
    pub mac: [u8; 32],
    /// An encoded message.
    pub body: Vec<u8>,
}

fn config() -> bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<MAX_BODY>,
> {
    bincode::config::standard().with_limit::<MAX_BODY>()
}

/// The bytes of `message` in the newest format.
///
/// # Errors
/// [`CodecError::Body`] when the message is larger than [`MAX_BODY`]; senders keep theirs far below.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, CodecError> {
    encode_as(FORMAT, message)
}

/// The bytes of `message` for a member that speaks `format`.
///
/// # Errors
/// [`CodecError::Version`] when that format does not have the message, and those of [`encode`].
pub fn encode_as<M: Message>(format: u8, message: &M) -> Result<Vec<u8>, CodecError> {
    if !(message.since()..=FORMAT).contains(&format) {
        return Err(CodecError::Version(format));
    }
    let body = bincode::encode_to_vec(message, config()).map_err(|e| CodecError::Body(e.to_string()))?;
    if body.len() < DEFLATE_FROM {
        let mut bytes = vec![format, M::KIND, 0];
        bytes.extend_from_slice(&body);
        return Ok(bytes);
    }
    let head = vec![format, M::KIND, FLAG_DEFLATED];
    let mut encoder = DeflateEncoder::new(head, Compression::fast());
    encoder
        .write_all(&body)
        .map_err(|e| CodecError::Body(e.to_string()))?;
    encoder.finish().map_err(|e| CodecError::Body(e.to_string()))
}

/// The format version that encoded bytes name in their head.
///
/// # Errors
/// [`CodecError`] when they have none, or one that is not spoken here.
pub fn format_of(bytes: &[u8]) -> Result<u8, CodecError> {
    match bytes.first() {
        None => Err(CodecError::Short(0)),
        Some(version) if (OLDEST_FORMAT..=FORMAT).contains(version) => Ok(*version),
        Some(version) => Err(CodecError::Version(*version)),
    }
}

/// The bytes of a probe, in the format that has its kind.
///
/// # Errors
/// Those of [`encode`].
pub fn encode_probe(probe: &Probe) -> Result<Vec<u8>, CodecError> {
    match probe {
        Probe::Full(full) => encode_as(OLDEST_FORMAT, full),
        Probe::Brief(brief) => encode_as(brief.since(), &**brief),
    }
}

/// Reads a probe of either kind.
///
/// # Errors
/// Those of [`decode`].
pub fn decode_probe(bytes: &[u8]) -> Result<Probe, CodecError> {
    match bytes.get(1) {
        Some(&Brief::KIND) => decode(bytes).map(Box::new).map(Probe::Brief),
        _ => decode(bytes).map(Probe::Full),
    }
}

/// Reads one message of kind `M`.
///
/// # Errors
/// [`CodecError`]; never panics, never allocates more than [`MAX_BODY`] for a hostile length.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, CodecError> {
    let [version, kind, flags, body @ ..] = bytes else {
        return Err(CodecError::Short(bytes.len()));
    };
    format_of(bytes)?;
    if *kind != M::KIND {
        return Err(CodecError::Kind {
            found: *kind,
            expected: M::KIND,
        });
    }
    let message: M = match *flags {
        0 => decode_body(body)?,
        FLAG_DEFLATED => {
            let mut plain = Vec::new();
            let limit = MAX_BODY as u64 + 1;
            DeflateDecoder::new(body)
                .take(limit)
                .read_to_end(&mut plain)
                .map_err(|e| CodecError::Body(e.to_string()))?;
            if plain.len() > MAX_BODY {
                return Err(CodecError::TooLarge);
            }
            decode_body(&plain)?
        }
        other => return Err(CodecError::Flags(other)),
    };
    match message.since() <= *version {
        true => Ok(message),
        false => Err(CodecError::Version(*version)),
    }
}

fn decode_body<M: Message>(body: &[u8]) -> Result<M, CodecError> {
    let (message, used) =
        bincode::decode_from_slice(body, config()).map_err(|e| CodecError::Body(e.to_string()))?;
    match body.len() - used {
        0 => Ok(message),
        rest => Err(CodecError::Trailing(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back() {
        for frame in [
            Frame::Jump { seq: 7 },
            Frame::Buckets {
                origin: 1,
                digests: vec![3; 4096],
            },
        ] {
            assert_eq!(decode::<Frame>(&encode(&frame).unwrap()).unwrap(), frame);
        }
    }

    #[test]
    fn damage_is_told_apart() {
        let bytes = encode(&Frame::Jump { seq: 7 }).unwrap();
        assert_eq!(decode::<Frame>(&bytes[..2]), Err(CodecError::Short(2)));
        assert_eq!(decode::<Frame>(&[9, 5, 0]), Err(CodecError::Version(9)));
        assert_eq!(
            decode::<Reply>(&bytes),
            Err(CodecError::Kind {
                found: 5,
                expected: 6
            })
        );
        assert_eq!(
            decode::<Frame>(&[&bytes[..], &[0]].concat()),
            Err(CodecError::Trailing(1))
        );
        assert_eq!(decode::<Frame>(&[FORMAT, 5, 8]), Err(CodecError::Flags(8)));
        assert!(matches!(decode::<Frame>(&bytes[..3]), Err(CodecError::Body(_))));
    }

    #[test]
    fn a_hostile_length_is_refused_before_it_allocates() {
        // Variant 7 (Buckets), origin 0, then a length of 2^62.
        let bytes = [FORMAT, 5, 0, 7, 0, 253, 0, 0, 0, 0, 0, 0, 0, 64];
        assert!(matches!(decode::<Frame>(&bytes), Err(CodecError::Body(_))));
    }

    #[test]
    fn a_deflate_bomb_is_refused() {
        let mut encoder = DeflateEncoder::new(vec![FORMAT, 5, FLAG_DEFLATED], Compression::best());
        encoder.write_all(&vec![0; MAX_BODY + 2]).unwrap();
        assert_eq!(
            decode::<Frame>(&encoder.finish().unwrap()),
            Err(CodecError::TooLarge)
        );
    }
}
