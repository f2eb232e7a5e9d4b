//! Beats that wait to be relayed on one link.
//!
//! Nobody acknowledges them. So those that a link may have taken with it when it breaks are told once more on the next. A
//! beat counts from when it is told: the second time only puts off what becomes of a silent row, by moments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollcall_core::{MemberId, Millis, RowKey, ServiceKey};

use crate::message::{Frame, WireRow, WireService};

/// Rows that may wait, and as many that were told a moment ago.
const MAX_BEATS: usize = 100_000;
/// Rows from which on a frame takes no further service.
const MAX_ROWS: usize = 512;
/// How long beats are collected before they are told.
const BATCH: Millis = Millis(100);
/// For so long beats that were told may still be lost with the link.
const IN_DOUBT: Millis = Millis::secs(2);

/// The service of a row that beats, and its owner when it is another one than the peer.
type Target = (Option<MemberId>, ServiceKey);

/// The beats of one link. They wait for the next link when there is none.
#[derive(Debug, Default)]
pub(crate) struct BeatQueue {
    rows: BTreeMap<Target, BTreeSet<RowKey>>,
    n_rows: usize,
    /// When the first of them came.
    since: Option<Millis>,
    /// What was told a moment ago, and when.
    told: VecDeque<(Millis, Target, BTreeSet<RowKey>)>,
    n_told: usize,
}

impl BeatQueue {
    /// Rows that wait.
    pub(crate) fn len(&self) -> usize {
        self.n_rows
    }

    /// When there is something to tell.
    pub(crate) fn due(&self) -> Option<Millis> {
        self.since.map(|since| since + BATCH)
    }

    /// Adds the beat of a row. False when too many wait.
    pub(crate) fn add(&mut self, target: Target, row: RowKey, now: Millis) -> bool {
        if self.n_rows >= MAX_BEATS {
            return false;
        }
        self.since.get_or_insert(now);
        self.n_rows += usize::from(self.rows.entry(target).or_default().insert(row));
        true
    }

    /// The next beats of one owner, if it is time.
    pub(crate) fn next(&mut self, now: Millis) -> Option<Frame> {
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let owner = self.rows.first_key_value().and_then(|((owner, _), _)| *owner);
        let mut rows: Vec<(WireService, Vec<WireRow>)> = Vec::new();
        let mut n_rows = 0;
        while n_rows < MAX_ROWS
            && let Some(entry) = self.rows.first_entry()
            && entry.key().0 == owner
        {
            let (target, keys) = entry.remove_entry();
            n_rows += keys.len();
            rows.push(((&target.1).into(), keys.iter().map(Into::into).collect()));
            self.told.push_back((now, target, keys));
        }
        self.n_rows -= n_rows;
        self.n_told += n_rows;
        self.forget_told(now);
        if self.rows.is_empty() {
            self.since = None;
        }
        Some(match owner {
            Some(MemberId(owner)) => Frame::BeatsFor { owner, rows },
            None => Frame::Beats { rows },
        })
    }

    /// The link has ended: what it may have taken with it waits again.
    pub(crate) fn tell_again(&mut self, now: Millis) {
        self.forget_told(now);
        self.n_told = 0;
        for (_, target, keys) in std::mem::take(&mut self.told) {
            for row in keys {
                self.add(target.clone(), row, now);
            }
        }
    }

    /// Forgets what has arrived by now, and the oldest when there is too much.
    fn forget_told(&mut self, now: Millis) {
        let is_over = |told: &(Millis, Target, BTreeSet<RowKey>), n: usize| {
            now.since(told.0) > IN_DOUBT || n > MAX_BEATS
        };
        while self.told.front().is_some_and(|told| is_over(told, self.n_told))
            && let Some((.., keys)) = self.told.pop_front()
        {
            self.n_told -= keys.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::Instance;

    use super::*;

    fn target(name: &str) -> Target {
        (None, ServiceKey::new("public", "G", name))
    }

    fn row(port: u16) -> RowKey {
        Instance::at("10.1.0.1", port).row_key()
    }

    fn ports(frame: Option<Frame>) -> Vec<u16> {
        let Some(Frame::Beats { rows }) = frame else {
            return Vec::new();
        };
        rows.into_iter()
            .flat_map(|(_, rows)| rows)
            .map(|row| row.port)
            .collect()
    }

    #[test]
    fn what_a_link_may_have_lost_is_told_on_the_next_and_nothing_older() {
        let mut queue = BeatQueue::default();
        queue.add(target("s"), row(1), Millis(1_000));
        assert_eq!(ports(queue.next(Millis(1_050))), [], "others may follow");
        assert_eq!(ports(queue.next(Millis(1_100))), [1]);
        queue.add(target("s"), row(2), Millis(2_500));
        queue.add(target("t"), row(3), Millis(2_500));
        assert_eq!(ports(queue.next(Millis(2_600))), [2, 3]);
        queue.add(target("s"), row(4), Millis(3_200));
        queue.tell_again(Millis(3_200));
        assert_eq!(queue.len(), 3);
        assert_eq!(ports(queue.next(Millis(3_300))), [2, 4, 3]);
        queue.tell_again(Millis(9_000));
        assert_eq!((queue.len(), queue.due()), (0, None));
    }

    #[test]
    fn so_many_wait_at_most() {
        let mut queue = BeatQueue::default();
        for n in 0..MAX_BEATS {
            let name = format!("s{}", n / 10_000);
            assert!(queue.add(target(&name), row((n % 10_000) as u16), Millis(0)));
        }
        assert!(!queue.add(target("more"), row(1), Millis(0)));
        while queue.next(Millis(100)).is_some() {}
        assert!(queue.add(target("more"), row(1), Millis(100)));
        while queue.next(Millis(200)).is_some() {}
        queue.tell_again(Millis(200));
        assert_eq!(
            queue.len(),
            MAX_BEATS - 9_999,
            "a service of the oldest was forgotten"
        );
    }
}
