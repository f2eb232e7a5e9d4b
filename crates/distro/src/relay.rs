//! Members that live and cannot be reached from here: their rows come through a third member that reaches both.
//!
//! The detector names the third member, the *relay*. It is asked with each of its digests, that is once a second: it
//! answers with bucket digests when it follows the same process of the absent member and holds other rows of it. From
//! there on the usual questions for ids and rows follow. Beats for rows that the absent member owns go through the relay
//! too, or it would judge by silence.

use std::sync::atomic::Ordering;

use rollcall_core::{MemberId, Millis, Now, RowKey, ServiceKey};

use crate::detector::BRIEF;
use crate::effect::Effects;
use crate::engine::{Engine, Peer, Process};
use crate::message::{Reply, WireRow, WireService};

impl Engine {
    /// The member that reaches `id`, which lives and is not reached from here.
    pub(crate) fn relay_of(&self, id: MemberId) -> Option<MemberId> {
        match self.is_any_cut.load(Ordering::Relaxed) {
            true => self.members.lock().peer(id).and_then(|m| m.relay()),
            false => None, // Asked for each beat.
        }
    }

    /// True when that member speaks a format in which one tells rows of another.
    pub(crate) fn hears_of_others(&self, id: MemberId) -> bool {
        self.members.lock().format(id) >= BRIEF
    }

    /// What to ask `relay` for: how the rows of those stand that only it reaches.
    pub(crate) fn relays_through(&self, relay: MemberId, now: Now, effects: &mut Effects) -> Vec<Reply> {
        let absent: Vec<_> = {
            let members = self.members.lock();
            let is_absent = members.peers().iter().filter(|m| m.relay() == Some(relay));
            is_absent.filter_map(|m| Some((m.id, m.said?))).collect()
        };
        let mut questions = Vec::new();
        for (id, said) in absent {
            let Some(peer) = self.peer(id) else { continue };
            let process = Process {
                epoch: said.epoch,
                boot: said.boot,
            };
            let mut inbound = peer.inbound.lock();
            if now.mono.since(inbound.heard()) <= self.recent() {
                continue; // Its own link may still work.
            }
            if inbound.follows_later_than(process) {
                continue; // What is said of it is older than what it said itself.
            }
            self.take_process(&peer, &mut inbound, process, now, effects);
            questions.push(Reply::Relay {
                origin: id.0,
                boot: process.boot,
                root: self.registry.digests().root(id),
            });
        }
        questions
    }

    /// True when this member can speak for the rows of that process of another one, and they differ from `root`.
    pub(crate) fn can_correct(&self, origin: MemberId, boot: u64, root: u64, now: Now) -> bool {
        let Some(peer) = self.peer(origin) else {
            return false;
        };
        let followed = *peer.followed.lock();
        let is_known =
            followed.boot == boot && self.has_agreed(&peer, now) && !self.graces.is_turning(origin);
        is_known && self.registry.digests().root(origin) != root
    }

    /// What is held of a member was what it has, by its own digest, a moment ago.
    fn has_agreed(&self, peer: &Peer, now: Now) -> bool {
        let agreed = peer.agreed.load(Ordering::Relaxed);
        agreed > 0 && now.mono.since(Millis(agreed)) <= self.recent()
    }

    /// A relay speaks by what it has compared within this time, to one that has heard nothing for longer: so it never
    /// tells what is older than what the other knows.
    fn recent(&self) -> Millis {
        Millis(2 * self.config.verify_interval.0)
    }

    /// Beats that a member cannot tell their owner itself.
    pub(crate) fn pass_on_beats(&self, owner: MemberId, rows: Vec<(WireService, Vec<WireRow>)>, now: Now) {
        for (service, keys) in rows {
            let service = ServiceKey::from(&service);
            for key in keys {
                self.queue_beat(owner, None, &service, RowKey::from(key), now);
            }
        }
    }
}
