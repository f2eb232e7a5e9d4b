//! Changes of the member list while the nodes run, as operators make them: one file after the other.

use smol_str::SmolStr;

use super::world::{Event, World};

/// Time after the last edit in which the nodes find each other and take their clients over.
const SETTLE: u64 = 12_000;

/// For so long at least every node remembers that a row which beat was removed, by the fastest clock.
const REMEMBERED: u64 = 115_000;

impl World {
    /// A node joins, leaves, or takes another's place, and all lists follow within some time of each other.
    pub(super) fn change_list(&mut self) {
        if !self.is_quiet() {
            if self.is_busy() {
                self.after(1_000, Event::ChangeList);
            }
            return;
        }
        self.list_changes_left -= 1;
        let spare: Vec<usize> = (0..self.slots.len())
            .filter(|n| !self.wanted.contains(n))
            .collect();
        let joins = !spare.is_empty() && self.rng.u32(0..3) != 0;
        let leaves = self.wanted.len() > 2 && (!joins || self.rng.u32(0..3) == 0);
        let joining = joins.then(|| spare[self.rng.usize(0..spare.len())]);
        let leaving = leaves.then(|| self.wanted[self.rng.usize(0..self.wanted.len())]);
        let everyone: Vec<usize> = self.wanted.iter().copied().chain(joining).collect();
        self.wanted.retain(|n| Some(*n) != leaving);
        self.wanted.extend(joining);
        self.wanted.sort_unstable();
        let spread = match self.rng.u32(0..3) {
            0 => 1,
            1 => 3_000,
            _ => 25_000,
        };
        for &n in &everyone {
            let at = self.rng.u64(0..spread);
            let list = self.wanted.clone();
            self.after(at, Event::SaveList(n, list));
        }
        self.list_busy_until = self.now + spread + SETTLE;
        if let Some(n) = joining {
            self.report.joined += 1;
            let has_lone_writes = std::mem::take(&mut self.slots[n].has_lone_writes);
            let is_outdated = self.slots[n].left_at + REMEMBERED < self.list_busy_until;
            if self.slots[n].node.is_some() && (is_outdated || has_lone_writes) {
                self.outdated_until = self.list_busy_until;
            }
            if self.slots[n].node.is_none() {
                self.slots[n].list = self.wanted.clone();
                let at = self.rng.u64(0..spread + 3_000);
                self.after(at, Event::Restart(n));
            }
        }
        if let Some(n) = leaving {
            self.report.left += 1;
            self.slots[n].left_at = self.now;
            // It ends before the lists change, some time after, or goes on beside the cluster.
            let life = self.slots[n].life;
            match self.rng.u32(0..4) {
                0 => self.after(0, Event::Stop(n, life)),
                1 | 2 => {
                    let at = spread + self.rng.u64(0..SETTLE);
                    self.after(at, Event::Stop(n, life));
                }
                _ => {}
            }
            self.oracle.node_left(n);
        }
        if self.disturbances_left > 0 && self.rng.u32(0..4) != 0 {
            self.disturbances_left -= 1;
            // Half of the time it is the one whose place changes.
            let changing = leaving.or(joining).filter(|_| self.rng.bool());
            let n = changing.unwrap_or_else(|| everyone[self.rng.usize(0..everyone.len())]);
            let at = self.rng.u64(0..spread + 3_000);
            self.after(at, Event::Disturb(n));
        }
        if self.list_changes_left > 0 {
            let next = spread + SETTLE + self.rng.u64(0..10_000);
            self.after(next, Event::ChangeList);
        }
    }

    /// A node dies or stands still while lists differ, unless nobody else could have what it holds.
    pub(super) fn disturb(&mut self, n: usize) {
        let serves = |m: &usize| *m != n && !self.is_paused(*m) && self.oracle.ready_at.contains_key(m);
        if self.slots[n].node.is_none() || self.is_paused(n) || !self.wanted.iter().any(serves) {
            return;
        }
        self.report.disturbed += 1;
        self.note_disturbance();
        let away = self.strike(n);
        self.list_busy_until = self.list_busy_until.max(self.now + away + SETTLE);
    }

    pub(super) fn note_disturbance(&mut self) {
        if self.report.disturbed > 0 {
            self.disturbed_at = self.now;
        }
    }

    pub(super) fn save_list(&mut self, n: usize, list: Vec<usize>) {
        self.note_disturbance();
        let addresses: Vec<SmolStr> = list.iter().map(|m| SmolStr::new(&self.addresses[*m])).collect();
        let mut dropped = std::mem::replace(&mut self.slots[n].list, list);
        dropped.retain(|m| *m != n && !self.slots[n].list.contains(m));
        for m in &dropped {
            self.slots[*m].dropped_at = self.now;
            self.oracle.lost_unheard(*m, self.now);
        }
        // A list without the node itself is refused, and the node goes on with the one it has.
        let _ = self.with(n, |node, now, actions| node.set_members(&addresses, now, actions));
    }
}
