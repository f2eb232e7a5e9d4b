//! Changes of the member list while the process runs: who joins, who leaves, and what becomes of what they held.
//!
//! A member leaves when nobody that this member listens to lists it any more. Its links end and its rows are treated as
//! those of a dead member. It finds out by itself: the others do not take its links any more. When all that answer say
//! so, it is *unlisted*: it serves the lists it has, takes no writes, and judges and drops nothing until it is listed
//! again. To the others it is another process then, so that what they hold of it stays as orphans until the clients,
//! which it has sent away, show up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rollcall_core::{MemberId, Now};
use smol_str::SmolStr;

use crate::effect::{Effect, Effects, Report};
use crate::engine::{Engine, Peer, Process};
use crate::faults::Fault;
use crate::members::{Death, Member, Turnover};

/// Processes of members that left which are remembered, for their return.
const MAX_FORMER: usize = 1_024;

/// A list that is refused: it lacks the member that shall take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the list lacks this member")]
pub struct LacksSelf;

impl Engine {
    /// Takes a member list, in any order. A member that is not ready when the list changes goes on loading.
    ///
    /// # Errors
    /// [`LacksSelf`]; nothing has changed then.
    pub fn set_members(&self, list: &[SmolStr], now: Now, effects: &mut Effects) -> Result<(), LacksSelf> {
        if !list.contains(&self.config.address) {
            return Err(LacksSelf);
        }
        self.members.lock().set_list(list);
        self.take_turnover(now, effects);
        // The others have to know at once, so that they see that lists differ.
        self.probe_all(now, effects);
        Ok(())
    }

    /// The member list, sorted, this member included.
    pub fn list(&self) -> Vec<SmolStr> {
        self.members.lock().list().to_vec()
    }

    /// True while whoever answers says that this member is not in its list.
    pub fn is_unlisted(&self) -> bool {
        self.is_unlisted.load(Ordering::Relaxed)
    }

    /// A member has answered to a hello that it does not know this one.
    pub(crate) fn disowned_by(&self, id: MemberId, now: Now, effects: &mut Effects) {
        if !self.members.lock().note_disowned(id) {
            return;
        }
        self.take_turnover(now, effects);
        if !self.is_unlisted() {
            // Others still know this member: to it, the one that does not is out of reach.
            self.begin_grace(id, Death::Unreachable, now, effects);
        }
    }

    /// Makes the links and the view what the member table says.
    pub(crate) fn take_turnover(&self, now: Now, effects: &mut Effects) {
        let (turnover, retired, was_unlisted, is_unlisted) = {
            let mut members = self.members.lock();
            let turnover = members.turn_over();
            let retired = self.exchange_peers(&turnover, now);
            let is_unlisted = members.is_unlisted();
            let was_unlisted = self.is_unlisted.swap(is_unlisted, Ordering::Relaxed);
            (turnover, retired, was_unlisted, is_unlisted)
        };
        for id in turnover.joined {
            effects.push(Effect::Joined(id));
            self.probe(id, now, effects);
        }
        for (member, peer) in turnover.left.iter().zip(retired) {
            self.retire(member, &peer, now, effects);
        }
        match (was_unlisted, is_unlisted) {
            (false, true) => {
                self.change_identity(effects);
                effects.push(Effect::Report(Report::Unlisted));
            }
            (true, false) => {
                effects.push(Effect::Report(Report::Listed));
                // Also when it was loading: only from now on the others let it, and what it has loaded is old.
                self.begin_anew(now, effects);
            }
            _ => {}
        }
        self.renew_view(now.mono);
        self.step_gate(now, effects);
    }

    /// Puts the peers who joined into the map and takes out those who left, whom it returns in order. Called with the
    /// member table locked, so that both always name the same members.
    fn exchange_peers(&self, turnover: &Turnover, now: Now) -> Vec<Arc<Peer>> {
        if turnover.joined.is_empty() && turnover.left.is_empty() {
            return Vec::new();
        }
        let mut peers = BTreeMap::clone(&self.peers());
        if peers.is_empty() {
            // Until now nobody asked for the log, and nobody else can have rows of this process.
            self.log.set_capacity(self.config.log_capacity);
            self.note_ready_once(now);
        }
        if !turnover.left.is_empty() {
            self.graces.note_end();
        }
        let retired = turnover.left.iter().filter_map(|member| peers.remove(&member.id));
        let retired = retired.collect();
        for id in &turnover.joined {
            let known = self.former.lock().get(id).copied();
            peers.insert(*id, Arc::new(Peer::new(*id, known)));
        }
        if peers.is_empty() {
            self.log.set_capacity(0);
        }
        *self.peers.write() = Arc::new(peers);
        retired
    }

    /// The others have gone on without this member: it serves nothing until it holds what they hold, as after a start.
    /// What it has of their connections is old, and would be orphans that nobody else has if one of them ended before it is
    /// followed again. Orphans, too, are theirs to tell: a client may have gone meanwhile.
    fn begin_anew(&self, now: Now, effects: &mut Effects) {
        self.close_gate(now.mono);
        self.forget_start();
        // All in one go: nobody is served here until it is done.
        self.turn_all_rows(now, effects);
        for origin in self.registry.digests().origins() {
            if origin != self.me {
                let mut fleet = self.registry.fleet_of(origin);
                let changes = &mut effects.changes;
                self.registry
                    .set_orphans(&mut fleet, true, usize::MAX, now, changes);
            }
            let n_dropped = self.drop_all_orphans(origin, now, effects);
            if n_dropped > 0
                && let Some(peer) = self.peer(origin)
            {
                // Also a link that was taken meanwhile: it goes on from where the rows were that are gone now.
                let mut inbound = peer.inbound.lock();
                inbound.distrust();
                inbound.is_incomplete = true;
            }
        }
        for member in self.members() {
            if let Some(death) = member.death {
                // Its rows come as orphans, once the others have found out too.
                self.note_lost(member.id, death, now.mono);
            }
        }
    }

    /// Ends the links with a member that left. Its rows stay for a grace, as its clients will come to other members.
    fn retire(&self, member: &Member, peer: &Peer, now: Now, effects: &mut Effects) {
        let known = peer.inbound.lock().retire();
        peer.outbound.lock().retire();
        if !self.is_past_gate() {
            // Its rows are orphans now, and may not all have come.
            self.load_all_again();
        }
        self.remember(member.id, known);
        self.begin_grace(member.id, Death::Unreachable, now, effects);
        if self.config.faults.has(Fault::NoLeaveGrace) {
            self.turn_all_rows(now, effects);
            self.drop_all_orphans(member.id, now, effects);
        }
        effects.push(Effect::Left(member.id));
    }

    fn drop_all_orphans(&self, origin: MemberId, now: Now, effects: &mut Effects) -> usize {
        let mut fleet = self.registry.fleet_of(origin);
        self.registry
            .drop_orphans(&mut fleet, usize::MAX, now, &mut effects.changes)
    }

    fn remember(&self, id: MemberId, known: Option<Process>) {
        let Some(known) = known else { return };
        let mut former = self.former.lock();
        if former.len() >= MAX_FORMER {
            let oldest = former.iter().min_by_key(|(_, process)| process.epoch);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                former.remove(&oldest);
            }
        }
        former.insert(id, known);
    }
}
