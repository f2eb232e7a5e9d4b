//! Loss of power of all nodes at once, and the copies on their disks.

use rollcall_distro::COPY_LIFE;

use super::invariants::BEATEN_AGAIN;
use super::oracle::{Home, State};
use super::world::{DiskCopy, Event, World};

/// What was written longer than this before the loss is in every copy: the period of the copies, and a slow disk.
const COPIED: u64 = 20_000;
/// The copies are this far apart.
pub(super) const COPY_PERIOD: u64 = 10_000;
/// The first and the last node are so far apart when the power is back.
const RESTARTS: u64 = 4_000;
/// Then all copies have been read, and the nodes have compared what is in them.
const COMPARED: u64 = 10_000;
/// A clock may have been set back by so much since the copy was written, by jumps and restarts.
const CLOCKS_WRONG: u64 = 400_000;
/// What was removed so recently may be in some copy: a node that stood still meanwhile has shown it for the grace of a
/// slow client after that.
const MAY_COME_BACK: u64 = 90_000;

impl World {
    pub(super) fn write_copy(&mut self, n: usize) {
        let life = self.slots[n].life;
        let now = self.clock(n);
        let Some(node) = &self.slots[n].node else { return };
        let copy = DiskCopy {
            begun: node.copy_time(now),
            begun_at: self.now,
            parts: node.copy_parts().collect(),
        };
        let disk = self.rng.u64(0..5_000);
        self.after(disk, Event::CopyWritten(n, life, copy));
    }

    pub(super) fn read_copy(&mut self, n: usize) {
        let life = self.slots[n].life;
        let disk = self.rng.u64(0..500);
        self.after(disk, Event::CopyRead(n, life));
    }

    pub(super) fn copy_read(&mut self, n: usize) {
        if let Some(copy) = self.slots[n].copy.clone() {
            let is_young = self.with(n, |node, now, _| node.open_copy(copy.begun, now));
            if is_young == Some(true) {
                self.report.copies_used += 1;
                for part in copy.parts {
                    self.with(n, |node, now, actions| node.take_copy(part, now, actions));
                }
            }
        }
        self.with(n, |node, now, actions| node.copy_taken(now, actions));
    }

    /// All nodes lose power, some clients with them. They come back one after the other.
    pub(super) fn blackout(&mut self) {
        if !self.is_quiet() {
            if self.is_busy() {
                self.after(1_000, Event::Blackout);
            }
            return;
        }
        self.report.blackouts += 1;
        let is_long = self.plan.has_long_blackout;
        let down = match is_long {
            true => COPY_LIFE.0 + CLOCKS_WRONG,
            false => self.rng.u64(500..15_000),
        };
        let has_copies = self.plan.copy_period > 0 && !is_long;
        // Some disks are lost, never all.
        let n_lost = self.rng.usize(0..self.wanted.len());
        let first_lost = self.rng.usize(0..self.wanted.len());
        for n in self.wanted.iter().cycle().skip(first_lost).take(n_lost) {
            self.slots[*n].copy = None;
        }
        for n in self.wanted.clone() {
            self.take_down(n);
            let at = down + self.rng.u64(0..RESTARTS);
            self.after(at, Event::Restart(n));
        }
        let copies = self.slots.iter().filter_map(|slot| slot.copy.as_ref());
        // Of a node that has started a moment ago there may be an old copy only.
        let newest_copy = copies.map(|copy| copy.begun_at).max().unwrap_or(0);
        let back = self.now + down;
        for promise in self.oracle.rows.values_mut() {
            let is_copied = promise.replicated_at.is_some_and(|at| at < newest_copy)
                && promise.home_since + COPIED < self.now;
            if !has_copies || !is_copied {
                promise.replicated_at = None;
                if !matches!(promise.home, Home::Connection(_)) {
                    promise.doubtful_until = back + RESTARTS + COMPARED + BEATEN_AGAIN;
                    // Beats keep an earlier version as well.
                    promise.is_contested |= has_copies;
                }
            }
            if let State::Dead { since, left, .. } = &mut promise.state
                && *since + MAY_COME_BACK > self.now
            {
                *since = back;
                *left &= !has_copies;
            }
        }
        self.clients_die(back, !has_copies);
    }
}
