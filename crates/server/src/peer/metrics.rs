//! What the peer side counts. Read by the metrics page through [`Peers::metrics`](super::Peers::metrics).

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub(crate) fn one(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $field:ident = $name:literal,)*) => {
        /// Counters of the peer side.
        #[derive(Debug, Default)]
        pub struct PeerMetrics {
            $($(#[doc = $help])+ pub $field: Count,)*
        }

        impl PeerMetrics {
            /// Name, help text and value of every counter.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($name, concat!($($help),+).trim_ascii(), self.$field.value()),)*]
            }
        }
    };
}

counters! {
    /// Frames sent to other members.
    frames_sent = "rollcall_peer_frames_sent_total",
    /// Bytes of frames sent to other members.
    frame_bytes_sent = "rollcall_peer_frame_bytes_sent_total",
    /// Frames received from other members.
    frames_received = "rollcall_peer_frames_received_total",
    /// Bytes of frames received from other members.
    frame_bytes_received = "rollcall_peer_frame_bytes_received_total",
    /// Replies to frames sent to other members.
    replies_sent = "rollcall_peer_replies_sent_total",
    /// Bytes of replies sent to other members.
    reply_bytes_sent = "rollcall_peer_reply_bytes_sent_total",
    /// Replies received from other members.
    replies_received = "rollcall_peer_replies_received_total",
    /// Bytes of replies received from other members.
    reply_bytes_received = "rollcall_peer_reply_bytes_received_total",
    /// Links to other members that came up.
    links_opened = "rollcall_peer_links_opened_total",
    /// Links from other members that were accepted.
    links_accepted = "rollcall_peer_links_accepted_total",
    /// Handshakes and probes of others that this member refused.
    handshakes_refused = "rollcall_peer_handshakes_refused_total",
    /// Handshakes of this member that others refused or failed to prove.
    handshakes_failed = "rollcall_peer_handshakes_failed_total",
    /// Links ended because of a message that could not be read or applied.
    bad_messages = "rollcall_peer_bad_messages_total",
    /// Links ended because nothing could be written for too long.
    links_stalled = "rollcall_peer_links_stalled_total",
    /// Bytes of probes and of answers to probes sent to other members.
    probe_bytes_sent = "rollcall_peer_probe_bytes_sent_total",
    /// Probes answered by other members.
    probes_answered = "rollcall_peer_probes_answered_total",
    /// Probes without an answer in time.
    probes_missed = "rollcall_peer_probes_missed_total",
    /// Probes whose connection was refused.
    probes_refused = "rollcall_peer_probes_refused_total",
    /// Looks of other processes that advertise this member's address.
    namesakes = "rollcall_peer_namesakes_total",
    /// Writes sent to their owner.
    forwards_sent = "rollcall_peer_forwards_sent_total",
    /// Writes received from other members.
    forwards_received = "rollcall_peer_forwards_received_total",
    /// Writes sent to their owner without an answer.
    forwards_failed = "rollcall_peer_forwards_failed_total",
    /// Forwards of others that showed no session of this process.
    forwards_denied = "rollcall_peer_forwards_denied_total",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_with_its_help() {
        let metrics = PeerMetrics::default();
        metrics.forwards_sent.one();
        metrics.forwards_sent.add(2);
        let list = metrics.list();
        assert!(list.contains(&(
            "rollcall_peer_forwards_sent_total",
            "Writes sent to their owner.",
            3
        )));
        assert!(
            list.iter()
                .all(|(name, help, _)| name.ends_with("_total") && help.ends_with('.'))
        );
    }
}
