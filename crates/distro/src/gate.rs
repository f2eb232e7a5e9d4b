//! The start gate: when a member that has just started holds enough to serve reads (`design.md` §3, Ready).
//!
//! Ready means that every live member's data is in, or that a cold cluster has agreed that there is none. When members
//! stay silent, a limit lets the node through with what it has. It does not when that would be nothing while a member
//! serves, nor when those that answer do not take this node for one of theirs.

use rollcall_core::{MemberId, Millis};

use crate::message::ColdStart;

/// What a starting member knows of one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerProgress {
    /// The peer.
    pub id: MemberId,
    /// How it looks from here.
    pub contact: Contact,
    /// Its own rows are complete here, and it has agreed to this member's epoch.
    pub is_loaded: bool,
    /// What it has of a copy on disk, if it has told: those of former formats do not.
    pub cold: Option<ColdStart>,
}

/// How a peer looks to a starting member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contact {
    /// Not heard of, or silent.
    Unknown,
    /// Its address refuses connections: there is no process, so nothing to wait for.
    Refused,
    /// It answers nobody who answers this member. Beside one that serves there is nothing to wait for either: what the
    /// member had is among the orphans that are loaded from there.
    Lost,
    /// It answers and is itself loading.
    Loading,
    /// It answers and serves.
    Ready,
    /// It answers that it belongs to another cluster, or goes by other rules.
    Differs,
    /// It answers that it does not list this member, so that what it has does not come.
    Disowns,
}

/// What the gate says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Wait.
    Closed,
    /// Wait, and load the versioned rows of all writers from this ready member.
    LoadAllFrom(MemberId),
    /// Everything is in.
    Open,
    /// The limit is reached; something may be missing.
    OpenByLimit,
}

/// Judges the progress of a start. `all_loaded`: the versioned rows of all writers are in. A limit of 0 lets everyone
/// through at once.
pub fn judge(peers: &[PeerProgress], all_loaded: bool, waited: Millis, limit: Millis) -> Verdict {
    let verdict = judge_progress(peers, all_loaded);
    match verdict {
        Verdict::Open => verdict,
        _ if waited < limit => verdict,
        Verdict::Closed if limit > Millis(0) && is_stranger(peers) => verdict,
        Verdict::LoadAllFrom(_) if limit > Millis(0) => verdict,
        _ => Verdict::OpenByLimit,
    }
}

/// At least as many of those that answer differ from this member, or do not list it, as agree with it, itself included.
fn is_stranger(peers: &[PeerProgress]) -> bool {
    let count = |is_so: fn(Contact) -> bool| peers.iter().filter(|p| is_so(p.contact)).count();
    let n_agree = count(|contact| matches!(contact, Contact::Loading | Contact::Ready));
    count(|contact| matches!(contact, Contact::Differs | Contact::Disowns)) > n_agree
}

fn judge_progress(peers: &[PeerProgress], all_loaded: bool) -> Verdict {
    let reachable = || {
        peers
            .iter()
            .filter(|p| matches!(p.contact, Contact::Loading | Contact::Ready))
    };
    if let Some(source) = reachable().find(|p| p.contact == Contact::Ready)
        && !all_loaded
    {
        return Verdict::LoadAllFrom(source.id);
    }
    let has_ready = reachable().any(|p| p.contact == Contact::Ready);
    let is_known = peers.iter().all(|p| match p.contact {
        Contact::Unknown | Contact::Differs | Contact::Disowns => false,
        Contact::Lost => has_ready,
        Contact::Refused | Contact::Loading | Contact::Ready => true,
    });
    let n_members = peers.len() + 1;
    let is_quorum = reachable().count() + 1 > n_members / 2;
    let is_loaded = reachable().all(|p| p.is_loaded);
    if is_known && is_loaded && (has_ready || is_quorum) {
        Verdict::Open
    } else {
        Verdict::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Millis = Millis(20_000);

    fn peer(id: u64, contact: Contact, is_loaded: bool) -> PeerProgress {
        PeerProgress {
            id: MemberId(id),
            contact,
            is_loaded,
            cold: None,
        }
    }

    fn at(peers: &[PeerProgress], all_loaded: bool, waited: u64) -> Verdict {
        judge(peers, all_loaded, Millis(waited), LIMIT)
    }

    #[test]
    fn a_single_member_is_ready_at_once() {
        assert_eq!(at(&[], false, 0), Verdict::Open);
    }

    #[test]
    fn a_restarted_member_waits_for_every_live_member_and_for_the_versioned_rows() {
        let mut peers = [peer(1, Contact::Ready, true), peer(2, Contact::Ready, false)];
        assert_eq!(at(&peers, false, 0), Verdict::LoadAllFrom(MemberId(1)));
        assert_eq!(at(&peers, true, 0), Verdict::Closed);
        peers[1].is_loaded = true;
        assert_eq!(at(&peers, true, 0), Verdict::Open);
        peers[1] = peer(2, Contact::Refused, false);
        assert_eq!(at(&peers, true, 0), Verdict::Open);
    }

    #[test]
    fn a_silent_member_holds_the_gate_until_the_limit() {
        let peers = [peer(1, Contact::Ready, true), peer(2, Contact::Unknown, false)];
        assert_eq!(at(&peers, true, 19_999), Verdict::Closed);
        assert_eq!(at(&peers, true, 20_000), Verdict::OpenByLimit);
    }

    #[test]
    fn a_member_that_is_out_of_reach_of_all_holds_nobody_up_beside_one_that_serves() {
        let peers = [peer(1, Contact::Ready, true), peer(2, Contact::Lost, false)];
        assert_eq!(at(&peers, false, 4_000), Verdict::LoadAllFrom(MemberId(1)));
        assert_eq!(at(&peers, true, 4_000), Verdict::Open);
        let cold = [peer(1, Contact::Loading, true), peer(2, Contact::Lost, false)];
        assert_eq!(
            at(&cold, false, 19_999),
            Verdict::Closed,
            "it may hold what nobody here has"
        );
    }

    #[test]
    fn a_member_that_serves_is_not_passed_by_with_nothing() {
        let peers = [peer(1, Contact::Ready, false), peer(2, Contact::Unknown, false)];
        assert_eq!(at(&peers, false, 19_999), Verdict::LoadAllFrom(MemberId(1)));
        assert_eq!(at(&peers, false, 1_000_000), Verdict::LoadAllFrom(MemberId(1)));
        assert_eq!(at(&peers, true, 20_000), Verdict::OpenByLimit);
        assert_eq!(judge(&peers, false, Millis(0), Millis(0)), Verdict::OpenByLimit);
    }

    #[test]
    fn a_stranger_to_those_that_answer_never_serves_and_one_stranger_bars_nobody() {
        let two = [peer(1, Contact::Differs, false), peer(2, Contact::Differs, false)];
        assert_eq!(at(&two, false, 0), Verdict::Closed);
        assert_eq!(at(&two, false, 1_000_000), Verdict::Closed);
        let of_two = [peer(1, Contact::Differs, false), peer(2, Contact::Refused, false)];
        assert_eq!(
            at(&of_two, false, 1_000_000),
            Verdict::Closed,
            "either may be wrong, and the other one may serve"
        );
        let one = [peer(1, Contact::Loading, true), peer(2, Contact::Differs, false)];
        assert_eq!(at(&one, false, 19_999), Verdict::Closed);
        assert_eq!(at(&one, false, 20_000), Verdict::OpenByLimit);
    }

    #[test]
    fn members_that_do_not_list_this_one_count_like_those_that_differ() {
        let one = [peer(1, Contact::Ready, true), peer(2, Contact::Disowns, false)];
        assert_eq!(at(&one, true, 19_999), Verdict::Closed);
        assert_eq!(at(&one, true, 20_000), Verdict::OpenByLimit, "one bars nobody");
        let two = [peer(1, Contact::Disowns, false), peer(2, Contact::Differs, false)];
        assert_eq!(at(&two, true, 1_000_000), Verdict::Closed);
    }

    #[test]
    fn a_cold_cluster_needs_a_majority_to_agree() {
        let alone = [peer(1, Contact::Refused, false), peer(2, Contact::Refused, false)];
        assert_eq!(at(&alone, false, 0), Verdict::Closed);
        assert_eq!(at(&alone, false, 20_000), Verdict::OpenByLimit);
        let two = [peer(1, Contact::Loading, true), peer(2, Contact::Refused, false)];
        assert_eq!(at(&two, false, 0), Verdict::Open);
    }
}
