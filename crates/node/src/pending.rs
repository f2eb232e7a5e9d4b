//! Writes whose answer waits: for the owner they were forwarded to, for a second member to have them, or for their
//! change to be visible here. Every wait is bounded.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rollcall_core::{MemberId, Millis};

use crate::action::{Accepted, ForwardId, Ticket};
use crate::error::NodeError;
use crate::request::{HttpWrite, WriteDone};

/// Writes that may wait at one time.
const MAX_PENDING: usize = 65_536;

/// An answer that is known and only waits to be given.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) ticket: Ticket,
    pub(crate) result: Result<WriteDone, NodeError>,
    pub(crate) accepted: Option<Accepted>,
}

/// A write on its way to another member.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded {
    pub(crate) ticket: Ticket,
    pub(crate) write: HttpWrite,
    pub(crate) to: MemberId,
    pub(crate) tried: Vec<MemberId>,
    pub(crate) way: Way,
}

/// How a write came to this node and how often it was sent on from here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// How often the write has been passed on.
    pub(crate) hops: u8,
    /// Hybrid time at which a member took it from its client; `None`: this node just did and has not sent it on.
    pub(crate) taken: Option<u64>,
    /// The client is another member's.
    pub(crate) is_forwarded: bool,
    /// Some member was asked and gave no usable reply: time has passed since the write was taken.
    pub(crate) has_failed: bool,
    /// How often a member knew a newer version of the row.
    pub(crate) n_outdated: u8,
}

#[derive(Debug, Default)]
struct Waits {
    next_id: u64,
    forwards: BTreeMap<ForwardId, Forwarded>,
    /// By the member whose log, and the position in it, that an answer waits for; `None`: that any peer has it.
    positions: BTreeMap<(Option<MemberId>, u64, u64), (Millis, Answer)>,
    deadlines: BTreeMap<(Millis, u64), (Option<MemberId>, u64)>,
}

impl Way {
    /// A newer version met now was made at the same moment, or by a faster clock: the write may go after it. Once time
    /// has passed, it was made later, and stays.
    pub(crate) fn is_own_and_prompt(&self) -> bool {
        !self.is_forwarded && !self.has_failed
    }

    /// The time to apply the write with here; `None`: the newest.
    pub(crate) fn taken_before(&self) -> Option<u64> {
        if self.is_own_and_prompt() {
            None
        } else {
            self.taken
        }
    }
}

/// All waiting writes of a node.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Waits>);

impl Pending {
    pub(crate) fn len(&self) -> usize {
        let waits = self.0.lock();
        waits.forwards.len() + waits.positions.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= MAX_PENDING
    }

    pub(crate) fn add_forward(&self, forwarded: Forwarded) -> ForwardId {
        let mut waits = self.0.lock();
        waits.next_id += 1;
        let id = ForwardId(waits.next_id);
        waits.forwards.insert(id, forwarded);
        id
    }

    pub(crate) fn take_forward(&self, id: ForwardId) -> Option<Forwarded> {
        self.0.lock().forwards.remove(&id)
    }

    /// The forwards that a member has not answered.
    pub(crate) fn take_forwards_to(&self, member: MemberId) -> Vec<Forwarded> {
        let mut waits = self.0.lock();
        let to_member = waits
            .forwards
            .extract_if(.., |_, forwarded| forwarded.to == member);
        to_member.map(|(_, forwarded)| forwarded).collect()
    }

    /// Holds an answer until the log of `member` is applied here up to `seq` (`None`: until some peer has this
    /// member's log up to there), at most until `deadline`.
    pub(crate) fn add_wait(&self, member: Option<MemberId>, seq: u64, deadline: Millis, answer: Answer) {
        let mut waits = self.0.lock();
        waits.next_id += 1;
        let n = waits.next_id;
        waits.positions.insert((member, seq, n), (deadline, answer));
        waits.deadlines.insert((deadline, n), (member, seq));
    }

    /// The answers that waited for this position.
    pub(crate) fn reached(&self, member: Option<MemberId>, seq: u64) -> Vec<Answer> {
        let mut waits = self.0.lock();
        let mut ready = Vec::new();
        while let Some((&key, _)) = waits
            .positions
            .range((member, 0, 0)..=(member, seq, u64::MAX))
            .next()
        {
            if let Some((deadline, answer)) = waits.positions.remove(&key) {
                waits.deadlines.remove(&(deadline, key.2));
                ready.push(answer);
            }
        }
        ready
    }

    /// The answers that have waited long enough.
    pub(crate) fn overdue(&self, now: Millis) -> Vec<Answer> {
        let mut waits = self.0.lock();
        let mut ready = Vec::new();
        while let Some((&(deadline, n), &(member, seq))) = waits.deadlines.first_key_value()
            && deadline <= now
        {
            waits.deadlines.pop_first();
            if let Some((_, answer)) = waits.positions.remove(&(member, seq, n)) {
                ready.push(answer);
            }
        }
        ready
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        self.0.lock().deadlines.keys().next().map(|d| d.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(n: u64) -> Answer {
        Answer {
            ticket: Ticket(n),
            result: Ok(WriteDone::Ok),
            accepted: None,
        }
    }

    fn tickets(answers: Vec<Answer>) -> Vec<u64> {
        answers.into_iter().map(|a| a.ticket.0).collect()
    }

    #[test]
    fn an_answer_leaves_when_its_position_is_reached_or_its_time_is_over() {
        let pending = Pending::default();
        let member = Some(MemberId(1));
        pending.add_wait(None, 5, Millis(20), answer(1));
        pending.add_wait(None, 6, Millis(20), answer(2));
        pending.add_wait(member, 5, Millis(500), answer(3));
        assert_eq!(tickets(pending.reached(None, 5)), [1]);
        assert_eq!(tickets(pending.reached(member, 4)), [] as [u64; 0]);
        assert_eq!(tickets(pending.overdue(Millis(20))), [2]);
        assert_eq!(tickets(pending.reached(member, 9)), [3]);
        assert_eq!((pending.len(), pending.next_due()), (0, None));
    }
}
