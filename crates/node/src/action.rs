//! What a node wants done by the shell around it. Every effect is one of these; the node itself does none.

use std::sync::Arc;

use rollcall_core::expiry::brake::Silence;
use rollcall_core::registry::change::RowOp;
use rollcall_core::{MemberId, Micros, Millis, ServiceKey, ServiceView};
use rollcall_distro::Report;
use rollcall_distro::message::{Forward, Probe};
use smol_str::SmolStr;

use crate::error::NodeError;
use crate::fuzzy::FuzzyMessage;
use crate::request::{ConnectionId, UdpTarget, WriteDone};

/// Given by the shell to a write, comes back with its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Given by the node to a forward, comes back with its reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ForwardId(pub u64);

/// The current list of one service for one subscriber.
#[derive(Clone, Debug)]
pub struct Push {
    /// The subscriber.
    pub connection: ConnectionId,
    /// Id that the acknowledgement repeats.
    pub request_id: u64,
    /// The service.
    pub service: ServiceKey,
    /// The clusters text as subscribed; `None` when the subscription had no such field.
    pub clusters: Option<SmolStr>,
    /// The list; to be filtered by `clusters`, enabled instances only.
    pub view: Arc<ServiceView>,
    /// `lastRefTime` of the message: rises strictly with every changed list of the service.
    pub last_ref_time: Millis,
    /// When the first of the changes was made that it tells of; `None` when it tells of none. For
    /// [`Node::push_sent`](crate::Node::push_sent).
    pub changed: Option<Micros>,
    /// How long clients may use the list before they ask again.
    pub cache: Millis,
}

/// The current list of one service for a 1.x client.
#[derive(Clone, Debug)]
pub struct UdpPush {
    /// Where to send it.
    pub target: UdpTarget,
    /// What the acknowledgement repeats; the same when the push is sent once more, and then the bytes are the same.
    pub stamp: u64,
    /// The service.
    pub service: ServiceKey,
    /// The clusters text as polled.
    pub clusters: SmolStr,
    /// The list; to be filtered by `clusters`, enabled instances only.
    pub view: Arc<ServiceView>,
    /// `lastRefTime` of the list.
    pub last_ref_time: Millis,
    /// As in [`Push`]; `None` as well when it is sent once more.
    pub changed: Option<Micros>,
    /// How long clients may use the list before they ask again.
    pub cache: Millis,
}

/// What is judged by its silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silenced {
    /// Instances that beat.
    Beats,
    /// Connections of clients.
    Connections,
}

/// One effect asked of the shell.
#[derive(Debug)]
pub enum Action {
    /// Send a list to a subscriber, report by `push_sent` when the stream takes it, and its acknowledgement by
    /// `push_acked`.
    Push(Push),
    /// Send a list by UDP and report by `push_sent` and `udp_acked`, or by `udp_failed` when it could not be sent.
    PushUdp(UdpPush),
    /// Ask an idle client whether it lives (`ClientDetectionRequest`) and report the answer by `push_acked`.
    Detect {
        /// The idle connection.
        connection: ConnectionId,
        /// Id that the answer repeats.
        request_id: u64,
    },
    /// Ask a client to move (`ConnectResetRequest`); the connection stays until the client closes it.
    Reset {
        /// The connection.
        connection: ConnectionId,
        /// Id that the answer repeats.
        request_id: u64,
        /// Advertised address `host:port` of the member to move to, if any.
        to: Option<SmolStr>,
    },
    /// Tell a client about services that match its pattern and report its answer by `push_acked`.
    Fuzzy {
        /// The connection.
        connection: ConnectionId,
        /// Id that the answer repeats.
        request_id: u64,
        /// What to tell.
        message: Box<FuzzyMessage>,
    },
    /// Close the stream and the transport of a connection; the node has already forgotten it.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
    /// A write or a forwarded write is done.
    Answer {
        /// The ticket it was handed in with.
        ticket: Ticket,
        /// The result.
        result: Result<WriteDone, NodeError>,
        /// For a forwarded write: where its change stands in the log of the member that accepted it.
        accepted: Option<Accepted>,
    },
    /// Another member has come to the list: dial it, and again whenever the link breaks.
    Joined {
        /// The member, one of [`Node::peers`](crate::Node::peers) now.
        member: MemberId,
    },
    /// A member has left the list: end the links with it. Forwards to it have been sent elsewhere.
    Left {
        /// The member.
        member: MemberId,
    },
    /// Frames wait for a member: drain `poll_link` when its link can take more.
    LinkReady {
        /// The member at the other end.
        member: MemberId,
    },
    /// Replies wait for a member on its inbound link: drain `poll_replies`.
    RepliesReady {
        /// The member at the other end.
        member: MemberId,
    },
    /// Drop the outbound link to a member and dial it again: what it believes of this node is out of date.
    Redial {
        /// The member.
        member: MemberId,
    },
    /// Send a write to its owner and report by `forward_replied` or `forward_failed`.
    Forward {
        /// Comes back with the reply.
        id: ForwardId,
        /// The member to send it to.
        to: MemberId,
        /// The write.
        forward: Forward,
    },
    /// Probe a member and report by `probe_done`, within [`crate::config::NodeConfig::probe_timeout`].
    Probe {
        /// The member to ask.
        to: MemberId,
        /// The question.
        probe: Probe,
    },
    /// Keep on disk what operators changed, in order; it is given back by [`crate::Node::restore`] at the next start.
    Store(Vec<RowOp>),
    /// Verdicts on the silent are held from now on, or are passed again: for the log.
    Brake {
        /// What is silent.
        what: Silenced,
        /// How many are.
        silence: Silence,
        /// Verdicts are held.
        holds: bool,
    },
    /// Write a copy of all ephemeral instances to disk, in the background, and report by
    /// [`copy_written`](crate::Node::copy_written). Not asked for again before that.
    WriteCopy,
    /// Hand in the copy on disk by [`take_copy`](crate::Node::take_copy), and report by
    /// [`copy_taken`](crate::Node::copy_taken), also when there is none that will do. The node waits for it.
    ReadCopy,
    /// Tell operators, in the log.
    Report(Report),
    /// Something is due at once: call `tick` soon, without waiting for the next deadline.
    Wake,
}

/// Where an accepted change stands: the answer to a forward tells it, so that the forwarder can wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The member that accepted the write.
    pub origin: MemberId,
    /// Its epoch.
    pub epoch: u64,
    /// The sequence number that holds the change.
    pub seq: u64,
}

/// The actions that one call asks for, in order.
#[derive(Debug, Default)]
pub struct Actions(pub Vec<Action>);

impl Actions {
    /// Adds one action.
    pub fn push(&mut self, action: Action) {
        self.0.push(action);
    }

    /// Asks for a tick, once.
    pub fn wake(&mut self) {
        if !matches!(self.0.last(), Some(Action::Wake)) {
            self.0.push(Action::Wake);
        }
    }
}
