//! What must be listed where: all instances of the load, since when and at which node each is alive, and which nodes
//! reach each other. The rules are in `docs/reliability.md`.

use std::net::Ipv4Addr;
use std::time::Duration;

use cluster_tests::{Instance, Service};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time after which what is acknowledged at one node must be listed at the others.
const SPREAD: Duration = Duration::from_secs(2);
/// Time after a cut has healed in which the nodes must have become equal.
pub(crate) const HEALED_WITHIN: Duration = Duration::from_secs(5);
/// How long instances of connections must stay beyond a cut: the default of `orphan_unreachable`.
const GRACE: Duration = Duration::from_secs(30);
/// How long an instance must stay healthy after a beat: 15 s, less what a beat may take to be relayed and judged.
const BEAT_LASTS: Duration = Duration::from_secs(13);
/// As [`BEAT_LASTS`], after a cut: the last beat may have come one interval before.
const BEAT_GRACE: Duration = Duration::from_secs(8);

/// First address of the instances.
const FIRST_ADDRESS: u32 = 0x0a80_0000;
/// Port of all instances.
const PORT: u16 = 8080;

/// How a provider speaks to the registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    /// By a connection, which is its sign of life.
    Grpc,
    /// By requests and beats.
    Http,
}

/// Position of an instance in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RowId(pub(crate) usize);

/// Position of a service in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServiceId(pub(crate) usize);

#[derive(Debug)]
struct Row {
    service: ServiceId,
    protocol: Protocol,
    life: Mutex<Life>,
}

#[derive(Clone, Debug, Default)]
struct Life {
    /// First acknowledgement since the provider came.
    since: Option<Instant>,
    /// For each node: over gRPC, since when the provider is connected and registered there; over HTTP, its last beat there.
    at: Vec<Option<Instant>>,
}

/// Which nodes reach each other.
#[derive(Clone, Debug)]
struct Network {
    /// Pairs of nodes that do not, in one direction at least, or did not until it healed.
    cuts: Vec<(usize, usize)>,
    /// When they were cut last.
    cut: Option<Instant>,
    /// When the nodes were equal last: beats that came since then may have been heard by few.
    equal: Option<Instant>,
    /// When they were healed.
    healed: Option<Instant>,
}

impl Network {
    /// All nodes reach each other, and have done so for as long as they may take to become equal.
    fn is_whole(&self, at: Instant) -> bool {
        let healed_for = self.healed.map(|healed| at.saturating_duration_since(healed));
        self.cut.is_none() || healed_for.is_some_and(|time| time > HEALED_WITHIN)
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts.contains(&(a, b)) || self.cuts.contains(&(b, a))
    }
}

/// All instances of the load.
#[derive(Debug)]
pub(crate) struct Ledger {
    n_nodes: usize,
    names: Vec<Service>,
    members: Vec<Vec<RowId>>,
    rows: Vec<Row>,
    network: Mutex<Network>,
}

impl Ledger {
    /// A ledger without instances, for so many nodes.
    pub(crate) fn new(n_nodes: usize) -> Self {
        Ledger {
            n_nodes,
            names: Vec::new(),
            members: Vec::new(),
            rows: Vec::new(),
            network: Mutex::new(Network {
                cuts: Vec::new(),
                cut: None,
                equal: None,
                healed: None,
            }),
        }
    }

    /// Adds a service.
    pub(crate) fn add_service(&mut self, name: String) -> ServiceId {
        self.names.push(Service::new(name));
        self.members.push(Vec::new());
        ServiceId(self.names.len() - 1)
    }

    /// Adds an instance, which is not registered yet.
    pub(crate) fn add_row(&mut self, service: ServiceId, protocol: Protocol) -> RowId {
        let id = RowId(self.rows.len());
        let at = vec![None; self.n_nodes];
        self.rows.push(Row {
            service,
            protocol,
            life: Mutex::new(Life { since: None, at }),
        });
        self.members[service.0].push(id);
        id
    }

    /// A service's name.
    pub(crate) fn name(&self, service: ServiceId) -> &Service {
        &self.names[service.0]
    }

    /// The service of an instance.
    pub(crate) fn service_of(&self, row: RowId) -> &Service {
        self.name(self.rows[row.0].service)
    }

    /// All services.
    pub(crate) fn services(&self) -> impl Iterator<Item = ServiceId> + use<> {
        (0..self.names.len()).map(ServiceId)
    }

    /// The instances of a service, those that have left included.
    pub(crate) fn rows_of(&self, service: ServiceId) -> &[RowId] {
        &self.members[service.0]
    }

    /// Number of nodes.
    pub(crate) fn n_nodes(&self) -> usize {
        self.n_nodes
    }

    // === What providers tell ===

    /// A node has acknowledged a registration or a beat.
    pub(crate) fn seen(&self, row: RowId, node: usize) {
        let row = &self.rows[row.0];
        let mut life = row.life.lock();
        let now = Instant::now();
        life.since.get_or_insert(now);
        if row.protocol == Protocol::Grpc {
            life.at.fill(None);
        }
        life.at[node] = Some(now);
    }

    /// The provider has lost its connection, and will come back.
    pub(crate) fn disconnected(&self, row: RowId) {
        self.rows[row.0].life.lock().at.fill(None);
    }

    /// The provider goes on purpose.
    pub(crate) fn left(&self, row: RowId) {
        let mut life = self.rows[row.0].life.lock();
        life.since = None;
        life.at.fill(None);
    }

    // === The network ===

    /// These pairs of nodes, and no others, do not reach each other from now on.
    pub(crate) fn cut(&self, cuts: &[(usize, usize)]) {
        let mut network = self.network.lock();
        let now = Instant::now();
        *network = Network {
            cuts: cuts.to_vec(),
            cut: Some(now),
            equal: if network.is_whole(now) {
                Some(now)
            } else {
                network.equal
            },
            healed: None,
        };
    }

    /// All nodes reach each other again from now on.
    pub(crate) fn heal(&self) {
        self.network.lock().healed = Some(Instant::now());
    }

    /// All nodes reach each other, and have done so for as long as they may take to become equal.
    pub(crate) fn is_whole(&self) -> bool {
        self.network.lock().is_whole(Instant::now())
    }

    /// Two nodes reach each other, and have done so for as long as they may take to become equal.
    pub(crate) fn are_connected(&self, a: usize, b: usize) -> bool {
        let network = self.network.lock();
        network.is_whole(Instant::now()) || !network.is_cut(a, b)
    }

    // === The rules ===

    /// The instances of a service that a node must list, healthy, when it is asked at this time.
    pub(crate) fn due(&self, service: ServiceId, node: usize, asked: Instant) -> Vec<RowId> {
        let network = self.network.lock().clone();
        let rows = self.rows_of(service).iter().copied();
        rows.filter(|row| self.rows[row.0].is_due(&network, node, asked))
            .collect()
    }

    /// The instances of a service that are registered, and not on their way out.
    pub(crate) fn living(&self, service: ServiceId) -> Vec<RowId> {
        let rows = self.rows_of(service).iter().copied();
        rows.filter(|row| self.rows[row.0].life.lock().since.is_some())
            .collect()
    }
}

impl Row {
    fn is_due(&self, network: &Network, node: usize, asked: Instant) -> bool {
        let life = self.life.lock();
        let Some(since) = life.since else { return false };
        let is_old = |at: Instant, age: Duration| asked.saturating_duration_since(at) > age;
        if !is_old(since, SPREAD) {
            // What a node has acknowledged itself it lists at once.
            return self.protocol == Protocol::Grpc && life.at[node].is_some_and(|at| at < asked);
        }
        let Some(cut) = network.cut.filter(|_| !network.is_whole(asked)) else {
            return true;
        };
        let is_alive_near = life.at.iter().enumerate().any(|(other, at)| {
            let known = match self.protocol {
                Protocol::Grpc => at.is_some_and(|at| is_old(at, SPREAD)),
                Protocol::Http => at.is_some_and(|at| !is_old(at, BEAT_LASTS)),
            };
            known && (other == node || !network.is_cut(node, other))
        });
        let is_in_grace = match self.protocol {
            Protocol::Grpc => !is_old(cut, GRACE),
            Protocol::Http => network.equal.is_some_and(|equal| !is_old(equal, BEAT_GRACE)),
        };
        is_alive_near || since < cut && self.is_steady(&life, cut) && is_in_grace
    }

    /// A provider over gRPC has not moved since; one over HTTP has no place to move from.
    fn is_steady(&self, life: &Life, since: Instant) -> bool {
        self.protocol == Protocol::Http || life.at.iter().flatten().any(|at| *at < since)
    }
}

impl RowId {
    /// The instance's address.
    pub(crate) fn ip(self) -> Ipv4Addr {
        let n = u32::try_from(self.0).unwrap_or(u32::MAX);
        Ipv4Addr::from(FIRST_ADDRESS.saturating_add(n))
    }

    /// The instance with this address.
    pub(crate) fn of(ip: &str) -> Option<Self> {
        let ip: Ipv4Addr = ip.parse().ok()?;
        let n = u32::from(ip).checked_sub(FIRST_ADDRESS)?;
        usize::try_from(n).ok().map(RowId)
    }

    /// The instance as it is registered.
    pub(crate) fn instance(self) -> Instance {
        Instance::at(&self.ip().to_string(), PORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A ledger of three nodes with a service of one instance.
    fn ledger_of(protocol: Protocol) -> (Ledger, ServiceId, RowId) {
        let mut ledger = Ledger::new(3);
        let service = ledger.add_service("orders".into());
        let row = ledger.add_row(service, protocol);
        (ledger, service, row)
    }

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    fn due_at(ledger: &Ledger, service: ServiceId) -> [bool; 3] {
        [0, 1, 2].map(|node| !ledger.due(service, node, Instant::now()).is_empty())
    }

    #[test]
    fn an_instance_is_known_by_its_address() {
        assert_eq!(RowId(70_000).ip().to_string(), "10.129.17.112");
        assert_eq!(RowId::of("10.129.17.112"), Some(RowId(70_000)));
        assert_eq!(RowId::of("10.0.0.1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_acknowledged_is_due_there_at_once_and_elsewhere_soon_until_it_leaves() {
        let (ledger, service, row) = ledger_of(Protocol::Grpc);
        assert_eq!(due_at(&ledger, service), [false; 3]);
        ledger.seen(row, 1);
        pass(Duration::from_millis(1)).await;
        assert_eq!(due_at(&ledger, service), [false, true, false]);
        pass(SPREAD).await;
        assert_eq!(due_at(&ledger, service), [true; 3]);
        ledger.disconnected(row);
        assert_eq!(due_at(&ledger, service), [true; 3]);
        ledger.left(row);
        assert_eq!(due_at(&ledger, service), [false; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_a_cut_a_connected_instance_is_due_for_the_grace_only_and_after_it_again() {
        let (ledger, service, row) = ledger_of(Protocol::Grpc);
        ledger.seen(row, 2);
        pass(60 * SECOND).await;
        ledger.cut(&[(0, 2), (1, 2)]);
        pass(GRACE).await;
        assert_eq!(due_at(&ledger, service), [true; 3]);
        pass(SECOND).await;
        assert_eq!(due_at(&ledger, service), [false, false, true]);
        ledger.heal();
        pass(SECOND).await;
        assert_eq!(due_at(&ledger, service), [false, false, true]);
        pass(HEALED_WITHIN).await;
        assert_eq!(due_at(&ledger, service), [true; 3]);
        assert!(ledger.is_whole());
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_moves_over_a_cut_is_due_at_its_new_side() {
        let (ledger, service, row) = ledger_of(Protocol::Grpc);
        ledger.seen(row, 2);
        pass(60 * SECOND).await;
        ledger.cut(&[(0, 2), (1, 2)]);
        pass(SECOND).await;
        ledger.disconnected(row);
        ledger.seen(row, 0);
        assert_eq!(due_at(&ledger, service), [false; 3]);
        pass(SPREAD + SECOND).await;
        assert_eq!(due_at(&ledger, service), [true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_beats_is_due_at_the_sides_that_it_beats_at() {
        let (ledger, service, row) = ledger_of(Protocol::Http);
        ledger.seen(row, 2);
        pass(60 * SECOND).await;
        ledger.cut(&[(0, 2), (1, 2)]);
        pass(BEAT_GRACE + SECOND).await;
        ledger.seen(row, 0);
        assert_eq!(due_at(&ledger, service), [true, true, false]);
        pass(BEAT_LASTS + SECOND).await;
        assert_eq!(due_at(&ledger, service), [false; 3]);
    }
}
