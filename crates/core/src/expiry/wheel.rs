//! A coarse timing wheel. An entry that is not due yet when it comes up is put back by the caller, so that a beat costs
//! nothing here.

use crate::clock::Millis;

/// Width of a slot: how late an entry may come up.
pub const SLOT: Millis = Millis(250);
/// Slots in the wheel; entries further away than a turn come up early and are put back.
const N_SLOTS: u64 = 256;

/// Entries by the time at which they shall come up.
#[derive(Debug)]
pub struct Wheel<T> {
    slots: Vec<Vec<T>>,
    /// Number of the next slot to come up, counted from time zero.
    next: u64,
    len: usize,
}

impl<T> Wheel<T> {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Millis) -> Self {
        Wheel {
            slots: (0..N_SLOTS).map(|_| Vec::new()).collect(),
            next: now.0 / SLOT.0,
            len: 0,
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry that comes up at `due`, at the latest one slot after it.
    pub fn add(&mut self, due: Millis, entry: T) {
        let slot = (due.0 / SLOT.0 + 1).clamp(self.next, self.next + N_SLOTS - 1);
        if let Some(entries) = self.slots.get_mut((slot % N_SLOTS) as usize) {
            entries.push(entry);
            self.len += 1;
        }
    }

    /// Takes out entries that are due at `now`, at most `limit`; [`Wheel::next_due`] is not after `now` while some are left.
    pub fn advance(&mut self, now: Millis, limit: usize) -> Vec<T> {
        let mut due = Vec::new();
        let until = now.0 / SLOT.0;
        let mut turns = 0;
        while self.next <= until && turns < N_SLOTS {
            if let Some(entries) = self.slots.get_mut((self.next % N_SLOTS) as usize) {
                let n_left = entries.len().saturating_sub(limit - due.len());
                due.extend(entries.drain(n_left..));
                if n_left > 0 {
                    self.len -= due.len();
                    return due;
                }
            }
            self.next += 1;
            turns += 1;
        }
        self.next = self.next.max(until + 1);
        self.len -= due.len();
        due
    }

    /// The time at which the next slot comes up.
    pub fn next_due(&self) -> Millis {
        Millis(self.next * SLOT.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every entry comes up once, never before it is due unless it is more than a turn away, and at the latest a
        /// slot after it is due.
        #[test]
        fn entries_come_up_in_time(
            dues in proptest::collection::vec(0u64..100_000, 1..50), step in 1u64..5_000, limit in 1usize..5
        ) {
            let mut wheel = Wheel::new(Millis(0));
            for due in &dues {
                wheel.add(Millis(*due), *due);
            }
            let mut seen = 0;
            let mut now = 0;
            while !wheel.is_empty() {
                now += step;
                loop {
                    let up = wheel.advance(Millis(now), limit);
                    prop_assert!(up.len() <= limit);
                    for due in up {
                        seen += 1;
                        if due < (N_SLOTS - 1) * SLOT.0 {
                            prop_assert!(due <= now && now < due + 2 * SLOT.0 + step);
                        }
                    }
                    if wheel.next_due() > Millis(now) {
                        break;
                    }
                }
            }
            prop_assert_eq!(seen, dues.len());
        }
    }
}
