//! Random bytes from the operating system, for what an adversary must not guess.

use std::io;

/// 32 fresh random bytes.
///
/// # Errors
/// When the operating system has none to give; nothing may be authenticated then.
pub(super) fn bytes() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}
