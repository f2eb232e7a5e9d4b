//! Settings of a node, already checked by the shell. Times are spans.

use std::sync::Arc;

use rollcall_core::Millis;
use rollcall_core::ownership::{Mapper, ModuloMapper};
use rollcall_distro::Faults;
use smol_str::SmolStr;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This node's advertised address; one of `members`.
    pub self_address: SmolStr,
    /// All configured members, this one included, in any order.
    pub members: Vec<SmolStr>,
    /// Seed of everything random in the node, hash maps included.
    pub seed: u64,
    /// Idle time of a connection after which it is asked whether it lives. Default 10 s.
    pub detect_after: Millis,
    /// Idle time after which it is dropped. Default 14 s.
    pub drop_after: Millis,
    /// When more than this share of all that was heard regularly falls silent at one moment, in percent, its instances and
    /// connections are given their time once more; 0 never. Default 30.
    pub expiry_brake: usize,
    /// Time to wait for the acknowledgement of a push. Default 5 s.
    pub push_timeout: Millis,
    /// Longest time that changes of one service are merged before they are pushed. Default 500 ms.
    pub push_window_max: Millis,
    /// A fixed merge window instead of the adaptive one, when set.
    pub push_delay: Option<Millis>,
    /// Most subscriptions of 1.x clients over UDP. Default 65,536.
    pub udp_subscriptions: usize,
    /// Most connections of clients; 0 for no limit. Default 0.
    pub connection_limit: usize,
    /// Most connections from one address of a socket; 0 for no limit. Default 0.
    pub connection_limit_per_ip: usize,
    /// Share of its connections, in percent, that a member sends to others in a minute at most to even out; 0 for none.
    /// Default 10.
    pub balance_per_minute: u32,
    /// How long connections are uneven before a member begins. Default 60 s.
    pub balance_after: Millis,
    /// How long no member has started, gone or left a list before that. Default 2 min.
    pub balance_calm: Millis,
    /// How long a client that came or was asked stays where it is. Default 5 min.
    pub balance_rest: Millis,
    /// Longest wait for all live members' data at start. Default 20 s.
    pub gate_limit: Millis,
    /// How long rows of a member that is gone stay. Default 15 s.
    pub orphan_gone: Millis,
    /// How long rows of a member that is unreachable stay. Default 30 s.
    pub orphan_unreachable: Millis,
    /// How much longer rows stay whose client registers again only every half minute.
    pub orphan_slow_extra: Millis,
    /// Period of the copy of ephemeral instances on disk; 0 for none. Default 0.
    pub copy_period: Millis,
    /// Period of the probes. Default 1 s.
    pub probe_interval: Millis,
    /// How long the shell waits for a probe's answer. Default 900 ms.
    pub probe_timeout: Millis,
    /// Periods of probes without an answer to anyone after which a member is dead. Default 3.
    pub probe_misses: u32,
    /// The newest format version to speak with other members; another than the default in tests only.
    pub newest_format: u8,
    /// Rows of a dead member, or of closed connections, that are gone through in one tick, about; another number than the default in tests only.
    pub rows_at_a_time: usize,
    /// Period of the digests to each member. Default 1 s.
    pub verify_interval: Millis,
    /// Operations kept for members that fall behind. Default 65,536.
    pub log_capacity: usize,
    /// Time a removal is remembered. Default 2 min.
    pub tombstone_life: Millis,
    /// Time a removal of operator data is remembered. Default 7 days.
    pub operator_tombstone_life: Millis,
    /// Longest wait of an HTTP write for a second member. Default 20 ms.
    pub replicate_wait: Millis,
    /// How long an empty service stays listed. Default 60 s.
    pub empty_service_life: Millis,
    /// How long an override outlives its row. Default 24 h.
    pub override_life: Millis,
    /// Largest sum of metadata lengths. Default 1024.
    pub metadata_limit: usize,
    /// Name of the cluster; members with another are refused. Default `rollcall`.
    pub cluster_name: String,
    /// Which member owns a service; members with another rule are refused. Default `modulo`.
    pub mapper: Arc<dyn Mapper>,
    /// Bytes of encoded answers that may be kept beside the data. Default 64 MiB.
    pub answer_budget: usize,
    /// Planted faults; none outside simulations.
    pub faults: Faults,
    /// Interval told to HTTP clients unless their metadata says otherwise. Default 5 s.
    pub beat_interval: Millis,
}

impl NodeConfig {
    /// A node at `self_address` in a cluster of `members`, everything else by default.
    pub fn new(self_address: &str, members: &[&str], seed: u64) -> Self {
        NodeConfig {
            self_address: SmolStr::new(self_address),
            members: members.iter().map(SmolStr::new).collect(),
            seed,
            detect_after: Millis::secs(10),
            drop_after: Millis::secs(14),
            expiry_brake: 30,
            push_timeout: Millis::secs(5),
            push_window_max: Millis(500),
            push_delay: None,
            udp_subscriptions: 65_536,
            connection_limit: 0,
            connection_limit_per_ip: 0,
            balance_per_minute: 10,
            balance_after: Millis::secs(60),
            balance_calm: Millis::secs(120),
            balance_rest: Millis::secs(300),
            gate_limit: Millis::secs(20),
            orphan_gone: Millis::secs(15),
            orphan_unreachable: Millis::secs(30),
            orphan_slow_extra: Millis::secs(25),
            copy_period: Millis(0),
            probe_interval: Millis::secs(1),
            probe_timeout: Millis(900),
            probe_misses: 3,
            newest_format: rollcall_distro::codec::FORMAT,
            rows_at_a_time: rollcall_distro::ROWS_AT_A_TIME,
            verify_interval: Millis::secs(1),
            log_capacity: 65_536,
            tombstone_life: Millis::secs(120),
            operator_tombstone_life: Millis::secs(7 * 24 * 3600),
            replicate_wait: Millis(20),
            empty_service_life: Millis::secs(60),
            override_life: Millis::secs(24 * 3600),
            metadata_limit: rollcall_core::limits::MAX_METADATA,
            cluster_name: "rollcall".to_owned(),
            mapper: Arc::new(ModuloMapper),
            answer_budget: 64 << 20,
            faults: Faults::default(),
            beat_interval: rollcall_core::model::instance::DEFAULT_BEAT_INTERVAL,
        }
    }
}
