//! What members say in probes: their own state, and in format 3 also what they have heard of others.
//!
//! A probe of format 2 ([`FullProbe`]) always carries the member list. One of format 3 ([`Brief`]) carries its hash and
//! the list itself only for a receiver that does not know it, and a bounded number of [`News`], so that its size does not
//! grow with the cluster.

use bincode::{Decode, Encode};
use xxhash_rust::xxh3::Xxh3;

/// A question, or its answer. An answer has the format of its question.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// As members of format 2 ask and answer.
    Full(FullProbe),
    /// As members of format 3 ask and answer.
    Brief(Box<Brief>),
}

impl Probe {
    /// Advertised address of the sender.
    pub fn member(&self) -> &str {
        match self {
            Probe::Full(full) => &full.member,
            Probe::Brief(brief) => &brief.member,
        }
    }

    /// What the sender says of itself.
    pub fn state(&self) -> State {
        match self {
            Probe::Full(full) => full.state(),
            Probe::Brief(brief) => brief.state,
        }
    }

    /// Names of the cluster and of the rule of ownership.
    pub(crate) fn names(&self) -> (&str, &str) {
        match self {
            Probe::Full(full) => (&full.cluster, &full.mapper),
            Probe::Brief(brief) => (&brief.cluster, &brief.mapper),
        }
    }
}

/// A member's state in format 2.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct FullProbe {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the ownership rule.
    pub mapper: String,
    /// Advertised address of the sender.
    pub member: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its boot number.
    pub boot: u64,
    /// It serves reads and owns services.
    pub ready: bool,
    /// It is about to stop and owns nothing any more.
    pub leaving: bool,
    /// Rows it holds, of any origin.
    pub rows: u64,
    /// Connections of clients that it holds.
    pub connections: u32,
    /// Those of them that may be asked to move to another member.
    pub sdk_connections: u32,
    /// How many times this process has told its state: what it told earlier may arrive later.
    pub count: u64,
    /// Its member list, sorted: whom it lists is followed by those that list it, and beats are handled with more care
    /// while lists differ.
    pub members: Vec<String>,
}

impl FullProbe {
    /// What it says of its sender.
    pub(crate) fn state(&self) -> State {
        State {
            epoch: self.epoch,
            boot: self.boot,
            incarnation: 0,
            ready: self.ready,
            leaving: self.leaving,
            impaired: false,
            rows: self.rows,
            connections: self.connections,
            sdk_connections: self.sdk_connections,
            count: self.count,
            list: hash_of(&self.members),
        }
    }
}

/// What a member says of itself; others pass it on.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct State {
    /// Its epoch.
    pub epoch: u64,
    /// Its boot number.
    pub boot: u64,
    /// How often this process has denied that it is dead: a suspicion of a lower incarnation is out of date.
    pub incarnation: u32,
    /// It serves reads and owns services.
    pub ready: bool,
    /// It is about to stop and owns nothing any more.
    pub leaving: bool,
    /// It works, and something that its writes need does not: others shall own its services while they can.
    pub impaired: bool,
    /// Rows it holds, of any origin.
    pub rows: u64,
    /// Connections of clients that it holds.
    pub connections: u32,
    /// Those of them that may be asked to move to another member.
    pub sdk_connections: u32,
    /// How many times this process has told its state: what it told earlier may arrive later.
    pub count: u64,
    /// Hash of its member list.
    pub list: u64,
}

impl State {
    /// Differs in what others act upon, and not only in numbers for people.
    pub(crate) fn differs(&self, other: &State) -> bool {
        let acted_upon = |s: &State| (s.boot, s.incarnation, s.ready, s.leaving, s.impaired, s.list);
        acted_upon(self) != acted_upon(other)
    }

    /// Differs in the numbers.
    pub(crate) fn counts_differ(&self, other: &State) -> bool {
        let counts = |s: &State| (s.rows, s.connections, s.sdk_connections);
        counts(self) != counts(other)
    }
}

/// A question or an answer of format 3.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Brief {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the ownership rule.
    pub mapper: String,
    /// Advertised address of the sender.
    pub member: String,
    /// What it says of itself.
    pub state: State,
    /// What its clock shows, as wall time in milliseconds: members go with the fastest clock.
    pub time: u64,
    /// Hash of the receiver's member list that the sender knows; 0 for none.
    pub knows: u64,
    /// The sender's member list, sorted, for a receiver that does not know it.
    pub members: Option<Vec<String>>,
    /// Members that the sender does not reach, and the receiver shall probe for it.
    pub ask: Vec<u64>,
    /// What became of members that the receiver has asked for.
    pub found: Vec<Found>,
    /// What the sender has heard of others.
    pub news: Vec<News>,
}

/// A member that was probed for another one. One that gave no answer is not told of.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Found {
    /// The member.
    pub member: u64,
    /// What it answered; `None`: its address refused the connection.
    pub state: Option<State>,
}

/// What a member thinks of another one.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct News {
    /// The other one.
    pub member: u64,
    /// Whether it lives.
    pub word: Word,
    /// What it said of itself last.
    pub state: State,
}

/// Whether a member lives, as another one sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Word {
    /// It lives.
    Alive,
    /// It may be dead: neither the sender nor those it asked got an answer.
    Suspect,
    /// Its address refuses connections.
    Gone,
    /// It has not answered for too long.
    Unreachable,
}

/// The hash of a sorted member list; never 0.
pub(crate) fn hash_of<T: AsRef<str>>(list: &[T]) -> u64 {
    let mut hash = Xxh3::new();
    for address in list {
        hash.update(address.as_ref().as_bytes());
        hash.update(&[0]);
    }
    hash.digest().max(1)
}
