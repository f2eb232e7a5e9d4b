//! What the engine wants done. The engine itself does none of it.

use rollcall_core::MemberId;
use rollcall_core::registry::change::Changes;

use crate::members::Death;
use crate::message::Probe;

/// One effect asked of the node around the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Frames wait on the outbound link to a member.
    LinkReady(MemberId),
    /// Replies wait on the inbound link from a member.
    RepliesReady(MemberId),
    /// The outbound link must be set up anew: this member's epoch has changed.
    Redial(MemberId),
    /// A member has come to the list: dial it, and take its links.
    Joined(MemberId),
    /// A member has left the list: end the links with it, and send what it was to answer elsewhere.
    Left(MemberId),
    /// Ask a member for its state.
    Probe(MemberId, Probe),
    /// A member has applied this member's log up to a position.
    Acked(MemberId, u64),
    /// This member has applied another's log up to a position.
    Applied(MemberId, u64),
    /// Something is due before the time that the last tick named.
    Wake,
    /// Write a copy of all rows to disk.
    WriteCopy,
    /// Hand the copy on disk in, if there is one that will do.
    ReadCopy,
    /// Something that operators want to read in the log.
    Report(Report),
}

/// What happened to this member or to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// This member became ready; `complete` is false when the limit of the gate let it through.
    Ready {
        /// Every live member's data is in.
        complete: bool,
    },
    /// The limit of the gate is reached, and this member waits on: it would serve nothing beside members that serve, or those
    /// that answer do not take it for one of theirs.
    Barred,
    /// This member stood still for so long that it has to catch up before it serves again.
    CatchingUp,
    /// Another member counts as dead.
    MemberDead(MemberId, Death),
    /// Another member that counted as dead answers again, to this member or to others.
    MemberBack(MemberId),
    /// Another member answers others and not this one.
    MemberCut(MemberId),
    /// The disk of this member takes writes far too slowly, or does so no more.
    Impaired(bool),
    /// Whoever answers says that this member is not in its list.
    Unlisted,
    /// This member, which was unlisted, is listed again.
    Listed,
    /// Connections have been uneven for long: those of members with more than the mean go to the others, slowly.
    EveningOut,
    /// That has come to its end: they are even enough, or a member has come or gone.
    EveningOutEnds,
    /// This member is cut off with the fewer members, and sends its clients to the others.
    InMinority {
        /// Other members that it reaches.
        n_reached: usize,
        /// Members that do not answer it.
        n_cut_off: usize,
    },
    /// This member, which was in a minority, is no more.
    MinorityOver,
}

/// The effects of one call.
#[derive(Debug, Default)]
pub struct Effects {
    /// Services whose visible list changed.
    pub changes: Changes,
    /// Everything else, in order.
    pub list: Vec<Effect>,
}

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        if self.list.last() != Some(&effect) {
            self.list.push(effect);
        }
    }
}
