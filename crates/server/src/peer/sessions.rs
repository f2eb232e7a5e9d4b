//! Tokens that this process gave to members which proved the secret. A forward must show one.

use std::collections::HashMap;

use parking_lot::RwLock;
use rollcall_core::MemberId;

use super::handshake::Session;

/// The tokens of each member: the newest and the one before it, which a forward may still carry while the member's link
/// is replaced.
#[derive(Default)]
pub(super) struct Sessions(RwLock<HashMap<MemberId, [Option<Session>; 2]>>);

impl Sessions {
    /// Makes `session` the newest token of `member`.
    pub(super) fn add(&self, member: MemberId, session: Session) {
        let mut sessions = self.0.write();
        let slots = sessions.entry(member).or_default();
        *slots = [Some(session), slots[0]];
    }

    /// Forgets the tokens of a member.
    pub(super) fn remove(&self, member: MemberId) {
        self.0.write().remove(&member);
    }

    /// The member that was given `session`.
    pub(super) fn member(&self, session: &Session) -> Option<MemberId> {
        let sessions = self.0.read();
        let holds =
            |slots: &[Option<Session>; 2]| slots.iter().flatten().any(|known| is_equal(known, session));
        sessions
            .iter()
            .find(|(_, slots)| holds(slots))
            .map(|(member, _)| *member)
    }
}

/// Compares in constant time.
fn is_equal(a: &Session, b: &Session) -> bool {
    a.iter()
        .zip(b)
        .fold(0, |differences, (x, y)| differences | (x ^ y))
        == 0
}

/// The token as text, for a header.
pub(super) fn to_text(session: &Session) -> String {
    session.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The token that a header shows.
pub(super) fn from_text(text: &str) -> Option<Session> {
    let text = text.as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut session = [0; 32];
    for (byte, pair) in session.iter_mut().zip(text.chunks_exact(2)) {
        let mut digits = pair.iter().map(|&digit| char::from(digit).to_digit(16));
        *byte = (digits.next()?? * 16 + digits.next()??) as u8;
    }
    Some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_tokens_of_a_member_are_good() {
        let sessions = Sessions::default();
        for n in 1..=3 {
            sessions.add(MemberId(7), [n; 32]);
        }
        sessions.add(MemberId(8), [9; 32]);
        assert_eq!(sessions.member(&[1; 32]), None);
        assert_eq!(sessions.member(&[2; 32]), Some(MemberId(7)));
        assert_eq!(sessions.member(&[3; 32]), Some(MemberId(7)));
        assert_eq!(sessions.member(&[9; 32]), Some(MemberId(8)));
    }

    #[test]
    fn a_token_survives_its_text() {
        let mut session = [0xa5; 32];
        session[31] = 0x07;
        assert_eq!(from_text(&to_text(&session)), Some(session));
        assert_eq!(from_text("abc"), None);
        assert_eq!(from_text(&"zz".repeat(32)), None);
        assert_eq!(from_text(&"é".repeat(32)), None);
    }
}
