//! What operators see: members, rows with their publishers, digests, owners, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollcall_core::registry::census::Census;
use rollcall_core::registry::row::Publisher;
use rollcall_core::{Instance, MemberId, Millis, Now, RowKey, ServiceKey};
use rollcall_distro::{MemberState, PeerStatus, Repair};
use smol_str::SmolStr;

use crate::metrics::{NodeMetrics, Value};
use crate::node::Node;
use crate::push::costs::PushWay;

/// Name, meaning and value of a gauge that each peer has.
type PeerGauge = (&'static str, &'static str, fn(&PeerStatus) -> u64);

/// A member as operators see it.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Advertised address.
    pub address: SmolStr,
    /// Its state.
    pub state: MemberState,
    /// It is this node.
    pub is_self: bool,
    /// It serves reads and owns services.
    pub ready: bool,
    /// Its epoch; 0 when it has not been heard of.
    pub epoch: u64,
    /// Time since its last answer to a probe; zero for this node, `None` for a member that never answered.
    pub last_seen: Option<Millis>,
}

/// What the rows of an origin amount to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginDigest {
    /// Who wrote them.
    pub id: MemberId,
    /// Its advertised address, or its id for one that is no member any more.
    pub address: SmolStr,
    /// One number over all its rows.
    pub root: u64,
}

/// A row as operators see it.
#[derive(Clone, Debug)]
pub struct RowStatus {
    /// Its key.
    pub row: RowKey,
    /// Who publishes it, newest first.
    pub publishers: Vec<PublisherStatus>,
    /// What readers see of it.
    pub instance: Arc<Instance>,
}

/// A publisher of a row as operators see it.
#[derive(Clone, Debug)]
pub struct PublisherStatus {
    /// `connection` or `beat`.
    pub kind: &'static str,
    /// Advertised address of the member that holds the connection or accepted the write.
    pub member: SmolStr,
    /// Its member is not alive.
    pub is_orphan: bool,
    /// Hybrid time of the registration.
    pub stamp: u64,
}

impl Node {
    /// The members of the list, sorted by address.
    pub fn members(&self, now: Now) -> Vec<MemberStatus> {
        let mut members: Vec<_> = self
            .engine
            .members()
            .iter()
            .filter(|m| m.is_listed)
            .map(|m| MemberStatus {
                address: m.address.clone(),
                state: m.state(),
                is_self: false,
                ready: m.is_serving(),
                epoch: m.said.as_ref().map_or(0, |s| s.epoch),
                last_seen: m.last_seen.map(|at| now.mono.since(at)),
            })
            .collect();
        members.push(MemberStatus {
            address: self.config.self_address.clone(),
            state: self.state(),
            is_self: true,
            ready: self.is_ready(),
            epoch: self.engine.epoch(),
            last_seen: Some(Millis(0)),
        });
        members.sort_by(|a, b| a.address.cmp(&b.address));
        members
    }

    /// The state of this node; `DOWN` while it leaves, `ISOLATION` while it is unlisted.
    pub fn state(&self) -> MemberState {
        if self.is_leaving() {
            MemberState::Down
        } else if self.is_unlisted() {
            MemberState::Isolated
        } else if self.is_ready() && self.engine.is_impaired() {
            MemberState::Suspicious
        } else if self.is_ready() {
            MemberState::Up
        } else {
            MemberState::Starting
        }
    }

    /// The rows of a service with their publishers, sorted.
    pub fn rows(&self, service: &ServiceKey) -> Vec<RowStatus> {
        let view = self.engine.view();
        let address = |id: MemberId| match view.address(id) {
            Some(address) => address.clone(),
            None => smol_str::format_smolstr!("{id:?}"),
        };
        let rows = self
            .registry
            .publications(service)
            .into_iter()
            .map(|(instance, publications)| {
                let publishers = publications.iter().map(|p| match p.publisher {
                    Publisher::Connection(client) => PublisherStatus {
                        kind: "connection",
                        member: address(client.origin),
                        is_orphan: p.is_orphan,
                        stamp: p.stamp.time,
                    },
                    Publisher::Beats => PublisherStatus {
                        kind: "beat",
                        member: address(p.stamp.member),
                        is_orphan: false,
                        stamp: p.stamp.time,
                    },
                });
                RowStatus {
                    row: instance.row_key(),
                    publishers: publishers.collect(),
                    instance,
                }
            });
        rows.collect()
    }

    /// How many clients and instances there are, and of how many this node takes care. Looks at every row.
    pub fn census(&self) -> Census {
        let view = self.engine.view();
        let owns = |service: &ServiceKey| view.owner(service) == Some(self.engine.me());
        self.registry.census(&owns)
    }

    /// What each origin's rows amount to here, sorted by address; equal on all nodes of a quiet cluster.
    pub fn digests(&self) -> Vec<OriginDigest> {
        let view = self.engine.view();
        let digests = self.registry.digests();
        let of = |id| OriginDigest {
            id,
            address: view
                .address(id)
                .cloned()
                .unwrap_or_else(|| smol_str::format_smolstr!("{id:?}")),
            root: digests.root(id),
        };
        let all = digests.origins().into_iter().map(of);
        let mut roots: Vec<_> = all.filter(|origin| origin.root != 0).collect();
        roots.sort_by(|a, b| a.address.cmp(&b.address));
        roots
    }

    /// What the rows of an origin amount to here in each bucket of services.
    pub fn bucket_digests(&self, origin: MemberId) -> Vec<u64> {
        self.registry.digests().all(origin)
    }

    /// What the rows of an origin in a bucket amount to here, by the service, namespace or switch they are about.
    pub fn bucket_subjects(&self, origin: MemberId, bucket: usize) -> BTreeMap<String, u64> {
        self.registry.bucket_subjects(bucket, origin)
    }

    /// What digests found to differ from other members and had mended, the newest last, each with the address of the
    /// member that said how it is.
    pub fn repairs(&self) -> Vec<(SmolStr, Repair)> {
        let view = self.engine.view();
        let from = |id| view.address(id).cloned().unwrap_or_default();
        let repairs = self.engine.repairs().into_iter();
        repairs.map(|repair| (from(repair.from), repair)).collect()
    }

    /// Advertised address of the owner of a service.
    pub fn owner(&self, service: &ServiceKey) -> Option<SmolStr> {
        let view = self.engine.view();
        view.owner(service).and_then(|id| view.address(id).cloned())
    }

    /// Counters, gauges and histograms.
    pub fn metrics(&self, now: Now) -> NodeMetrics {
        let mut m = NodeMetrics {
            recent_costs: self.counters.push_costs.recent(now),
            ..NodeMetrics::default()
        };
        let c = &self.counters;
        m.counter(
            "rollcall_pushes_sent",
            "Lists pushed to subscribers",
            &c.pushes_sent,
        );
        m.counter("rollcall_pushes_acked", "Pushes acknowledged", &c.pushes_acked);
        m.counter(
            "rollcall_pushes_failed",
            "Pushes refused by the client",
            &c.pushes_failed,
        );
        m.counter(
            "rollcall_pushes_timed_out",
            "Pushes without an acknowledgement",
            &c.pushes_timed_out,
        );
        m.counter(
            "rollcall_pushes_empty",
            "Pushes acknowledged, over gRPC or UDP, of a list without an instance",
            &c.pushes_empty,
        );
        for (name, help, counter) in [
            (
                "rollcall_udp_pushes_sent",
                "Lists pushed to 1.x clients over UDP",
                &c.udp_pushes_sent,
            ),
            (
                "rollcall_udp_pushes_repeated",
                "Pushes over UDP sent once more for want of an acknowledgement",
                &c.udp_pushes_repeated,
            ),
            (
                "rollcall_udp_pushes_acked",
                "Pushes over UDP acknowledged",
                &c.udp_pushes_acked,
            ),
            (
                "rollcall_udp_pushes_failed",
                "Pushes over UDP that could not be sent and are tried again",
                &c.udp_pushes_failed,
            ),
            (
                "rollcall_udp_pushes_timed_out",
                "Pushes over UDP given up without an acknowledgement",
                &c.udp_pushes_timed_out,
            ),
            (
                "rollcall_udp_subscriptions_refused",
                "Polls that got no subscription over UDP because there are too many",
                &c.udp_subscriptions_refused,
            ),
            (
                "rollcall_connections_refused",
                "Connections refused because there are too many",
                &c.connections_refused,
            ),
            (
                "rollcall_fuzzy_messages_sent",
                "Messages to clients that watch services by a pattern",
                &c.fuzzy_sent,
            ),
            (
                "rollcall_resets_sent",
                "Connections asked to move to another member, whatever for",
                &c.resets_sent,
            ),
            (
                "rollcall_resets_acked",
                "Connections that answered that they move",
                &c.resets_acked,
            ),
            (
                "rollcall_balance_moved",
                "Connections asked to move to even out the load",
                &c.balance_moved,
            ),
            (
                "rollcall_minority_moved",
                "Connections asked to move because this node is in a minority",
                &c.minority_moved,
            ),
        ] {
            m.counter(name, help, counter);
        }
        m.counter(
            "rollcall_forwards_sent",
            "Writes forwarded to another member",
            &c.forwards_sent,
        );
        m.counter(
            "rollcall_forwards_received",
            "Writes forwarded by another member",
            &c.forwards_received,
        );
        m.counter(
            "rollcall_forwards_failed",
            "Forwards without a usable reply",
            &c.forwards_failed,
        );
        m.counter(
            "rollcall_writes_over_limit",
            "Writes refused because too many wait",
            &c.writes_over_limit,
        );
        m.counter(
            "rollcall_connections_idle_closed",
            "Connections closed for silence",
            &c.connections_idle_closed,
        );
        m.counter(
            "rollcall_beat_rows_expired",
            "Instances removed for missing beats",
            &c.beat_rows_expired,
        );
        m.counter(
            "rollcall_expiry_brakes",
            "Times that so many fell silent at once that verdicts on them were held",
            &c.expiry_brakes,
        );
        let d = self.engine.counters();
        m.counter(
            "rollcall_digests_agreed",
            "Digests of members that agreed",
            &d.digests_agreed,
        );
        m.counter(
            "rollcall_digests_differed",
            "Digests of members that differed",
            &d.digests_differed,
        );
        m.counter(
            "rollcall_rows_repaired",
            "Rows brought or removed by repair",
            &d.rows_repaired,
        );
        m.counter(
            "rollcall_log_gaps",
            "Peers that fell out of the operation log",
            &d.log_gaps,
        );
        m.counter(
            "rollcall_beats_dropped",
            "Relayed beats dropped, the link being full",
            &d.beats_dropped,
        );
        m.counter(
            "rollcall_orphans_dropped",
            "Orphans dropped after their grace",
            &d.orphans_dropped,
        );
        m.counter(
            "rollcall_rows_relayed",
            "Rows of members out of reach that came through others",
            &d.rows_relayed,
        );
        let doubts = self.engine.detector_counts();
        for (name, help, value) in [
            (
                "rollcall_members_suspected",
                "Times a member answered neither this node nor those it asked",
                doubts.suspected,
            ),
            (
                "rollcall_suspicions_denied",
                "Times this node heard that it may be dead, and denied it",
                doubts.denied,
            ),
            (
                "rollcall_probes_asked",
                "Times others were asked to probe a member that did not answer",
                doubts.asked,
            ),
            (
                "rollcall_probes_helped",
                "Times one of those asked reached the member",
                doubts.reached,
            ),
        ] {
            m.counter(name, help, &AtomicU64::new(value));
        }
        m.counter(
            "rollcall_stalls",
            "Times this node stood still and had to catch up before it served again",
            &d.stalls,
        );
        m.gauge(
            "rollcall_gate_limit_reached",
            "1 when this node became ready without all members' data",
            d.gate_limit_reached.load(Ordering::Relaxed) as usize,
        );
        m.gauge(
            "rollcall_members",
            "Members in the list, this one included",
            self.member_list().len(),
        );
        m.gauge(
            "rollcall_member_lists_differ",
            "1 while some member that is reached has another list",
            usize::from(!self.engine.view().lists_agree()),
        );
        m.gauge(
            "rollcall_unlisted",
            "1 while no member that answers lists this one",
            usize::from(self.is_unlisted()),
        );
        m.gauge(
            "rollcall_strangers",
            "Nodes of this cluster that ask this one although no member lists them, in the last 10 s",
            self.engine.n_strangers(now.mono),
        );
        m.gauge(
            "rollcall_impaired",
            "1 while the disk hangs under operator data and other members own this node's services",
            usize::from(self.engine.is_impaired()),
        );
        m.gauge(
            "rollcall_ready",
            "1 when this node serves",
            usize::from(self.is_ready()),
        );
        m.gauge(
            "rollcall_connections",
            "Connections of clients",
            self.connections.len(),
        );
        m.gauge(
            "rollcall_naming_connections",
            "Connections of clients that register or discover",
            self.connections.n_naming(),
        );
        let (beats, connections) = (self.registry.beat_silence(), self.connections.silence());
        m.gauge(
            "rollcall_beats_silent",
            "Instances judged here that were heard regularly and are about to count as silent",
            beats.n_silent,
        );
        m.gauge(
            "rollcall_connections_silent",
            "Connections that were heard regularly and are asked whether they live",
            connections.n_silent,
        );
        m.gauge(
            "rollcall_verdicts_held",
            "Instances and connections whose time is over and that are kept because so many fell silent at once",
            beats.n_held + connections.n_held,
        );
        m.gauge(
            "rollcall_subscriptions",
            "Subscriptions of connections",
            self.pusher.n_subscriptions(),
        );
        let (n_targets, n_udp_subscriptions) = self.pusher.n_udp();
        m.gauge(
            "rollcall_udp_subscribers",
            "Addresses of 1.x clients that are pushed to over UDP",
            n_targets,
        );
        m.gauge(
            "rollcall_udp_subscriptions",
            "Subscriptions of 1.x clients over UDP",
            n_udp_subscriptions,
        );
        m.gauge(
            "rollcall_services",
            "Services listed",
            self.registry.catalog().len(),
        );
        m.gauge("rollcall_instances", "Instances held", self.registry.n_rows());
        m.gauge(
            "rollcall_lists_held",
            "Services without an instance whose last list readers still see",
            self.registry.n_held(),
        );
        m.gauge(
            "rollcall_orphans",
            "Instances held whose member is not alive, by publisher",
            self.registry.n_orphans(),
        );
        m.gauge(
            "rollcall_clients",
            "Publishing clients known, of all members",
            self.registry.n_clients(),
        );
        m.gauge(
            "rollcall_pushes_waiting",
            "Services waiting to be pushed",
            self.pusher.n_waiting(),
        );
        m.gauge(
            "rollcall_pushes_unacked",
            "Pushes not acknowledged yet",
            self.pusher.n_unacked(),
        );
        m.gauge(
            "rollcall_udp_pushes_unacked",
            "Pushes over UDP not acknowledged yet",
            self.pusher.n_udp_unacked(),
        );
        m.gauge(
            "rollcall_fuzzy_watches",
            "Watches of services by a pattern",
            self.fuzzy.len(),
        );
        m.gauge(
            "rollcall_resets_waiting",
            "Connections that are still to be asked to move",
            self.loader.n_waiting(),
        );
        m.gauge(
            "rollcall_balancing",
            "1 while this node sees uneven connections being evened out",
            usize::from(self.balance.is_running()),
        );
        m.gauge(
            "rollcall_in_minority",
            "1 while this node is cut off with the fewer members and sends its clients to the others",
            usize::from(self.is_in_minority()),
        );
        m.gauge(
            "rollcall_clients_moving",
            "Clients that were asked to move and have gone, whose instances are kept until they are registered elsewhere",
            self.movers.len(),
        );
        m.gauge(
            "rollcall_clients_closing",
            "Clients whose connections have ended, and whose instances are about to go",
            self.closing.len(),
        );
        m.gauge(
            "rollcall_writes_waiting",
            "Writes whose answer waits",
            self.pending.len(),
        );
        m.gauge(
            "rollcall_answer_bytes",
            "Bytes of encoded answers kept",
            self.registry.answer_bytes(),
        );
        self.add_latencies(&mut m);
        self.add_peers(&mut m);
        m
    }

    fn add_latencies(&self, m: &mut NodeMetrics) {
        let costs = PushWay::ALL.map(|way| (way.name(), self.counters.push_costs.counts(way)));
        let sent = costs.map(|(way, (sent, _))| (way.into(), Value::Histogram(sent)));
        m.labelled(
            "rollcall_push_sent_seconds",
            "Time from a change until the push that tells of it leaves",
            "way",
            sent,
        );
        let acked = costs.map(|(way, (_, acked))| (way.into(), Value::Histogram(acked)));
        m.labelled(
            "rollcall_push_acked_seconds",
            "Time from a change until the push that tells of it is acknowledged",
            "way",
            acked,
        );
    }

    fn add_peers(&self, m: &mut NodeMetrics) {
        let peers = self.engine.peer_statuses();
        let gauges: [PeerGauge; 7] = [
            (
                "rollcall_peer_link_up",
                "1 when the link to the member is up",
                |p| p.is_up.into(),
            ),
            (
                "rollcall_peer_followed",
                "1 when the link from the member is up",
                |p| p.is_followed.into(),
            ),
            (
                "rollcall_peer_log_behind",
                "Operations of this member that the other has not acknowledged",
                |p| p.n_behind,
            ),
            (
                "rollcall_peer_frames_waiting",
                "Frames that wait for the stream to the member",
                |p| p.n_frames as u64,
            ),
            (
                "rollcall_peer_questions_waiting",
                "Questions of the member that wait for their answer",
                |p| p.n_questions as u64,
            ),
            (
                "rollcall_peer_beats_waiting",
                "Beats that wait to be told to the member",
                |p| p.n_beats as u64,
            ),
            (
                "rollcall_peer_replies_waiting",
                "Replies that wait for the stream from the member",
                |p| p.n_replies as u64,
            ),
        ];
        for (name, help, pick) in gauges {
            let values = peers
                .iter()
                .map(|(address, status)| (address.clone(), Value::Gauge(pick(status) as f64)));
            m.labelled(name, help, "member", values);
        }
        let synced = peers
            .into_iter()
            .map(|(address, status)| (address, Value::Histogram(status.synced)));
        m.labelled(
            "rollcall_sync_seconds",
            "Time from a write of this member until the other has acknowledged that it is applied there",
            "member",
            synced,
        );
    }
}
