//! Three servers, their clients, an observer that never stops asking, and faults one after the other.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use rollcall_core::Millis;
use rollcall_server::clock::Clock;
use rollcall_server::config::Config;
use rollcall_server::log_levels::LogLevels;
use rollcall_server::wiring::{Process, Sockets};
use serde_json::Value;
use tokio::time::sleep;
use turmoil::Sim;

use crate::clients::{self, SERVICE, http};
use crate::network::{SimListener, SimNetwork};

const MAIN: u16 = 8848;
const N_CLIENTS: u16 = 6;
const WALL_START: Millis = Millis(1_700_000_000_000);
/// Until then the cluster starts and clients register.
const CALM: Duration = Duration::from_secs(10);
/// Length of a fault; below the grace of a dead member's rows and above what it takes to be found dead.
const FAULT: Duration = Duration::from_secs(9);
/// From the end of a fault to the next.
const REST: Duration = Duration::from_secs(20);
const N_FAULTS: u32 = 4;
/// A registration has reached every member that can be reached by then.
const SPREAD: Duration = Duration::from_secs(2);
/// After the last fault all members hold the same.
const HEALED: Duration = Duration::from_secs(5);

pub(crate) fn ip(at: usize) -> IpAddr {
    Ipv4Addr::new(192, 168, 0, 11 + at as u8).into()
}

pub(crate) fn main_port(at: usize) -> SocketAddr {
    SocketAddr::new(ip(at), MAIN)
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Lists that a ready member answered with.
    pub(crate) lists: u64,
    /// Questions that were refused or not answered.
    pub(crate) unanswered: u64,
    /// Writes that a member took from another one.
    pub(crate) forwarded: u64,
    pub(crate) crashes: u64,
    /// Links that swallowed everything.
    pub(crate) cuts: u64,
    /// Links that refused everything.
    pub(crate) refusals: u64,
    pub(crate) one_way_cuts: u64,
    /// gRPC clients that registered again.
    pub(crate) reconnects: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.lists += other.lists;
        self.unanswered += other.unanswered;
        self.forwarded += other.forwarded;
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        self.refusals += other.refusals;
        self.one_way_cuts += other.one_way_cuts;
        self.reconnects += other.reconnects;
    }
}

/// What clients and the observer share.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<State>>);

struct State {
    rng: fastrand::Rng,
    /// When each instance was acknowledged for the first time, by its port.
    registered: BTreeMap<u16, Duration>,
    counts: Counts,
    broken: Option<String>,
}

impl Shared {
    pub(crate) fn pick(&self, below: usize) -> usize {
        self.0.lock().rng.usize(0..below)
    }

    pub(crate) fn note_registered(&self, port: u16) {
        self.0
            .lock()
            .registered
            .entry(port)
            .or_insert_with(turmoil::elapsed);
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.0.lock().counts);
    }

    /// The first thing that went wrong ends the run.
    pub(crate) fn broken(&self, what: String) {
        let at = turmoil::elapsed().as_millis();
        self.0.lock().broken.get_or_insert(format!("at {at} ms: {what}"));
    }

    /// Instances that every list must have by now.
    fn expected(&self) -> Vec<u16> {
        let by = turmoil::elapsed().saturating_sub(SPREAD);
        let state = self.0.lock();
        let listed = state.registered.iter().filter(|(_, at)| **at <= by);
        listed.map(|(port, _)| *port).collect()
    }
}

fn config(at: usize) -> Config {
    let members: Vec<String> = (0..3).map(|n| main_port(n).to_string()).collect();
    let flags = [
        ("bind", "0.0.0.0".to_owned()),
        ("port", MAIN.to_string()),
        ("advertise", main_port(at).to_string()),
        ("members", members.join(",")),
        ("cluster_secret", "secret".to_owned()),
        ("data_dir", "none".to_owned()),
    ];
    let environment = flags.map(|(key, value)| (format!("ROLLCALL_{}", key.to_uppercase()), value));
    Config::load(&Default::default(), environment).expect("settings that work")
}

async fn serve(at: usize, shared: Shared) -> turmoil::Result {
    let config = config(at);
    let sockets = Sockets {
        main: SimListener::bind(config.port).await?,
        grpc: SimListener::bind(config.grpc_port).await?,
        peer: Some(SimListener::bind(config.peer_port).await?),
        udp: None,
        network: Arc::new(SimNetwork),
    };
    // Clocks differ, and go on over a crash: virtual time begins anew with each life of a host.
    let elapsed = turmoil::sim_elapsed().unwrap_or_default().as_millis() as u64;
    let wall = WALL_START + Millis(elapsed + 1_000 * at as u64);
    let levels = LogLevels::new("info", |_| Ok(()));
    let process = Process::start(
        &config,
        None,
        Clock::start_at(wall),
        sockets,
        None,
        Vec::new(),
        levels,
    )
    .await?;
    loop {
        sleep(Duration::from_secs(1)).await;
        let peers = process.exec.peers().expect("a cluster").metrics().list();
        let received = peers
            .iter()
            .find(|(name, ..)| *name == "rollcall_peer_forwards_received_total");
        let received = received.map_or(0, |(_, _, value)| *value);
        shared.count(|counts| counts.forwarded = counts.forwarded.max(received));
    }
}

/// Asks every member again and again: whoever answers must list everybody.
async fn observe(shared: Shared) {
    let path = format!("/nacos/v1/ns/instance/list?serviceName={SERVICE}");
    loop {
        for at in 0..3 {
            let expected = shared.expected();
            match http(main_port(at), Method::GET, &path).await {
                Ok((StatusCode::OK, body)) => {
                    shared.count(|counts| counts.lists += 1);
                    let listed = ports(&body);
                    let missing: Vec<_> = expected.iter().filter(|port| !listed.contains(port)).collect();
                    if !missing.is_empty() {
                        shared.broken(format!("member {at} lists {listed:?}, without {missing:?}"));
                    }
                }
                _ => shared.count(|counts| counts.unanswered += 1),
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn ports(body: &[u8]) -> Vec<u16> {
    let list: Value = serde_json::from_slice(body).unwrap_or_default();
    let hosts = list["hosts"].as_array().cloned().unwrap_or_default();
    hosts
        .iter()
        .filter_map(|host| u16::try_from(host["port"].as_u64()?).ok())
        .collect()
}

/// After the last fault every member answers with the same digests.
async fn agree(shared: Shared) {
    let mut last = Vec::new();
    let begun = turmoil::elapsed();
    while turmoil::elapsed() < begun + HEALED {
        last.clear();
        for at in 0..3 {
            let answer = http(main_port(at), Method::GET, "/rollcall/digests").await;
            last.push(answer.map(|(_, body)| String::from_utf8_lossy(&body).into_owned()));
        }
        let is_ready = |answer: &Result<String, String>| {
            answer.as_ref().is_ok_and(|body| body.contains("\"ready\":true"))
        };
        if last.iter().all(is_ready) && last.windows(2).all(|pair| pair[0] == pair[1]) {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    shared.broken(format!("members do not agree after {HEALED:?}: {last:?}"));
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash(usize),
    /// Everything between one member and the others is held back, and comes late.
    Cut(usize),
    /// Everything between two members is refused and lost.
    Refusal(usize, usize),
    OneWay(usize, usize),
}

impl Fault {
    fn pick(rng: &mut fastrand::Rng) -> Self {
        let one = rng.usize(0..3);
        let other = (one + rng.usize(1..3)) % 3;
        match rng.u8(0..4) {
            0 => Fault::Crash(one),
            1 => Fault::Cut(one),
            2 => Fault::Refusal(one, other),
            _ => Fault::OneWay(one, other),
        }
    }

    fn begin(self, sim: &mut Sim<'_>, counts: &mut Counts) {
        match self {
            Fault::Crash(one) => {
                sim.crash(ip(one));
                counts.crashes += 1;
            }
            Fault::Cut(one) => {
                others(one).for_each(|other| sim.hold(ip(one), ip(other)));
                counts.cuts += 1;
            }
            Fault::Refusal(one, other) => {
                sim.partition(ip(one), ip(other));
                counts.refusals += 1;
            }
            Fault::OneWay(one, other) => {
                sim.partition_oneway(ip(one), ip(other));
                counts.one_way_cuts += 1;
            }
        }
    }

    fn end(self, sim: &mut Sim<'_>) {
        match self {
            Fault::Crash(one) => sim.bounce(ip(one)),
            Fault::Cut(one) => others(one).for_each(|other| sim.release(ip(one), ip(other))),
            Fault::Refusal(one, other) => sim.repair(ip(one), ip(other)),
            Fault::OneWay(one, other) => sim.repair_oneway(ip(one), ip(other)),
        }
    }
}

fn others(one: usize) -> impl Iterator<Item = usize> {
    (0..3).filter(move |other| *other != one)
}

/// One run. The first thing that went wrong is the error.
pub(crate) fn run(seed: u64) -> Result<Counts, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let shared = Shared(Arc::new(Mutex::new(State {
        rng: rng.fork(),
        registered: BTreeMap::new(),
        counts: Counts::default(),
        broken: None,
    })));
    let end = CALM + (FAULT + REST) * N_FAULTS;
    let mut sim = turmoil::Builder::new()
        .rng_seed(rng.u64(..))
        .simulation_duration(end + REST)
        .tick_duration(Duration::from_millis(2))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(8))
        .tcp_capacity(4096)
        .build();
    for at in 0..3 {
        let shared = shared.clone();
        sim.host(ip(at), move || serve(at, shared.clone()));
    }
    let applications = shared.clone();
    sim.client("applications", async move {
        sleep(CALM / 2).await;
        for port in 1..=N_CLIENTS {
            tokio::spawn(clients::beating(applications.clone(), port));
            tokio::spawn(clients::connected(applications.clone(), 1000 + port));
        }
        tokio::spawn(observe(applications.clone()));
        sleep(end - CALM / 2 - HEALED).await;
        agree(applications).await;
        Ok(())
    });
    let mut next = CALM;
    let mut current: Option<Fault> = None;
    while !sim.step().map_err(|error| error.to_string())? {
        if let Some(broken) = shared.0.lock().broken.take() {
            return Err(format!("{broken} (the last fault: {current:?})"));
        }
        if sim.elapsed() < next || next >= end {
            continue;
        }
        match current.take() {
            Some(fault) => {
                tracing::info!(at = ?sim.elapsed(), ?fault, "ends");
                fault.end(&mut sim);
                next += REST;
            }
            None => {
                let fault = Fault::pick(&mut rng);
                tracing::info!(at = ?sim.elapsed(), ?fault, "begins");
                fault.begin(&mut sim, &mut shared.0.lock().counts);
                current = Some(fault);
                next += FAULT;
            }
        }
    }
    let mut state = shared.0.lock();
    match state.broken.take() {
        Some(broken) => Err(broken),
        None => Ok(state.counts),
    }
}
