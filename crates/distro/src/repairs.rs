//! What digests found and had mended, for operators: the newest mendings, a bounded number of them.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rollcall_core::{MemberId, Millis, Now};

/// Mendings that are remembered.
const MAX_REPAIRS: usize = 256;

/// Rows of one service, namespace or switch that differed from another member's and were mended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repair {
    /// Wall time, in milliseconds since the Unix epoch.
    pub at: Millis,
    /// The member that said how it is.
    pub from: MemberId,
    /// What the rows are about.
    pub subject: String,
    /// Rows brought in or replaced.
    pub n_taken: u64,
    /// Rows removed because the member does not have them.
    pub n_removed: u64,
}

/// The newest mendings, in order.
#[derive(Debug, Default)]
pub(crate) struct Repairs(Mutex<VecDeque<Repair>>);

impl Repairs {
    /// Notes one row. Rows of one subject mended in a row are one entry.
    pub(crate) fn note(&self, from: MemberId, subject: String, is_removal: bool, now: Now) {
        let mut repairs = self.0.lock();
        let is_same = repairs
            .back()
            .is_some_and(|last| last.from == from && last.subject == subject && last.at == now.wall);
        if !is_same {
            if repairs.len() == MAX_REPAIRS {
                repairs.pop_front();
            }
            repairs.push_back(Repair {
                at: now.wall,
                from,
                subject,
                n_taken: 0,
                n_removed: 0,
            });
        }
        if let Some(last) = repairs.back_mut() {
            let count = match is_removal {
                true => &mut last.n_removed,
                false => &mut last.n_taken,
            };
            *count += 1;
        }
    }

    pub(crate) fn all(&self) -> Vec<Repair> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall: u64) -> Now {
        Now::at(Millis(0), Millis(wall))
    }

    #[test]
    fn rows_of_one_subject_are_one_entry_and_the_oldest_entries_go() {
        let repairs = Repairs::default();
        let from = MemberId(1);
        repairs.note(from, "a".into(), false, at(1));
        repairs.note(from, "a".into(), true, at(1));
        repairs.note(from, "a".into(), true, at(1));
        let all = repairs.all();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].n_taken, all[0].n_removed), (1, 2));

        for n in 0..300 {
            repairs.note(from, format!("s{n}"), false, at(2));
        }
        let all = repairs.all();
        assert_eq!(all.len(), MAX_REPAIRS);
        assert_eq!(all.last().map(|repair| repair.subject.as_str()), Some("s299"));
    }
}
