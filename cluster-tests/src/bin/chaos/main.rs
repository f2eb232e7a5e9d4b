//! Three real nodes under load, and what is done to them, with a checker that asks every node all the time. Started by
//! `scripts/chaos.sh`; the rules and the results are in `docs/reliability.md`.
//!
//! - `chaos [--quick] [--scenario NAME]... [--providers GRPC HTTP] [--namespaces NAME=A.B.C] [--without-gate]
//!   [--consumer NAME=PROGRAM...]... [--table FILE]`
//! - `chaos --figures`: no scenario, but the table of figures
//!
//! The last line says how many scenarios passed and what was found. The exit status is 0 if nothing was, 1 if something
//! was, 64 for arguments that are not understood.

mod checker;
mod consumers;
mod convergence;
mod figures;
mod ledger;
mod network;
mod providers;
mod report;
mod scenarios;
mod tally;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::Cluster;

use checker::Checker;
use consumers::Consumer;
use convergence::Convergence;
use ledger::{Ledger, Protocol, ServiceId};
use network::Namespaces;
use providers::{Provider, World, all_registered};
use scenarios::{SCENARIOS, Scenario, Stage};
use tally::{Fault, Outcome, Tally};

/// Number of nodes.
const N_NODES: u8 = 3;
/// One in so many providers more leaves in each scenario and comes back.
const LEAVERS: usize = 25;
/// Services of those that leave.
const LEAVING_SERVICES: usize = 4;
/// Instances of a service that stays as it is.
const PER_SERVICE: usize = 25;
/// Services that an official client is subscribed to.
const SUBSCRIPTIONS: usize = 10;
/// Official clients of each kind.
const CONSUMERS: usize = 2;
/// Time in which all providers must have registered at the start.
const LOADED: Duration = Duration::from_secs(120);

/// What the arguments say.
struct Options {
    is_quick: bool,
    has_gate: bool,
    takes_figures: bool,
    scenarios: Vec<Scenario>,
    n_grpc: usize,
    n_http: usize,
    namespaces: Option<Namespaces>,
    consumers: Vec<String>,
    table: Option<String>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Options {
            is_quick: false,
            has_gate: true,
            takes_figures: false,
            scenarios: Vec::new(),
            n_grpc: 2_000,
            n_http: 500,
            namespaces: None,
            consumers: Vec::new(),
            table: None,
        };
        let mut size = None;
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => options.is_quick = true,
                "--without-gate" => options.has_gate = false,
                "--figures" => options.takes_figures = true,
                "--scenario" => {
                    let name = value()?;
                    let found = SCENARIOS.into_iter().find(|scenario| scenario.name() == name);
                    options
                        .scenarios
                        .push(found.with_context(|| format!("no scenario is called {name}"))?);
                }
                "--providers" => size = Some((value()?.parse()?, value()?.parse()?)),
                "--namespaces" => options.namespaces = Some(Namespaces::read(&value()?, N_NODES)?),
                "--consumer" => options.consumers.push(value()?),
                "--table" => options.table = Some(value()?),
                _ => bail!("unknown argument {arg}"),
            }
        }
        let by_default = if options.is_quick { (80, 20) } else { (2_000, 500) };
        (options.n_grpc, options.n_http) = size.unwrap_or(by_default);
        ensure!(
            options.n_grpc > 0 && options.n_http > 0,
            "there must be providers of both protocols"
        );
        let can_run = |scenario: &Scenario| options.namespaces.is_some() || !scenario.needs_namespaces();
        if options.scenarios.is_empty() {
            options.scenarios = SCENARIOS.into_iter().filter(can_run).collect();
        }
        ensure!(
            options.scenarios.iter().all(can_run),
            "the network is cut in namespaces only"
        );
        Ok(options)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(64);
        }
    };
    if options.takes_figures {
        return match figures::table().await {
            Ok(table) => {
                println!("{table}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    match run(&options).await {
        Ok(outcomes) => {
            let table = report::table(&outcomes);
            println!("{table}");
            for outcome in &outcomes {
                for example in outcome.examples() {
                    println!("{}: {example}", outcome.name);
                }
            }
            let is_written = match &options.table {
                Some(path) => std::fs::write(path, table)
                    .inspect_err(|e| eprintln!("error: {path}: {e}"))
                    .is_ok(),
                None => true,
            };
            println!("{}", report::summary(&outcomes));
            ExitCode::from(u8::from(!is_written || !outcomes.iter().all(Outcome::is_good)))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            println!("chaos: 0 passed, 1 failed; the run could not go on");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for scenario in &options.scenarios {
        outcomes.extend(perform(options, *scenario).await?);
    }
    Ok(outcomes)
}

/// Runs one scenario on nodes of its own, so that each of them has a third of the load when it begins. Gives its outcome,
/// and before it that of the load if something was wrong already.
async fn perform(options: &Options, scenario: Scenario) -> Result<Vec<Outcome>> {
    let mut builder = Cluster::builder(N_NODES.into());
    if let Some(namespaces) = &options.namespaces {
        builder = builder
            .in_namespaces(namespaces.all())
            .flag("--cluster-secret", "of the chaos run");
    }
    if !options.has_gate {
        // The gate opens at its first look, whatever is loaded.
        builder = builder.flag("--gate-limit", "0s");
    }
    let cluster = builder.start().await;

    let (ledger, stable, leaving) = plan(options);
    let world = Arc::new(World::of(&cluster, ledger, Tally::new("load")));
    eprintln!("{}: {} providers", scenario.name(), stable.len() + leaving.len());
    let start = |planned: &[Planned], is_short_lived: bool| -> Vec<Provider> {
        let numbered = planned.iter().enumerate();
        let started = numbered.map(|(i, p)| {
            Provider::start(
                &world,
                p.row,
                p.protocol,
                i % usize::from(N_NODES),
                is_short_lived,
            )
        });
        started.collect()
    };
    let _providers = start(&stable, false);
    let leavers = start(&leaving, options.is_quick);
    // Those that were just started count themselves in at their first turn.
    tokio::time::sleep(Duration::from_millis(500)).await;
    all_registered(&world, LOADED).await?;

    let mut consumers = Vec::new();
    let services: Vec<ServiceId> = world.ledger.services().take(SUBSCRIPTIONS).collect();
    for line in &options.consumers {
        for _ in 0..CONSUMERS {
            consumers.push(Consumer::start(&world, line, &services).await?);
        }
    }
    let _checker = Checker::start(&world);
    let stage = Stage {
        cluster: &cluster,
        world: Arc::clone(&world),
        namespaces: options.namespaces.clone(),
        leavers,
        convergence: Convergence::start(&world),
        is_quick: options.is_quick,
    };
    let loaded = world.tally.next(scenario.name());
    stage.run(scenario).await?;
    for consumer in &mut consumers {
        if let Err(error) = consumer.check() {
            world.tally.fault(Fault::ShortListTold, || format!("{error:#}"));
        }
    }
    let outcome = world.tally.next("");
    Ok(match loaded.is_good() {
        true => vec![outcome],
        false => vec![loaded, outcome],
    })
}

/// A provider that is to be started.
struct Planned {
    row: ledger::RowId,
    protocol: Protocol,
}

/// The services and providers: those that stay, then those that leave and come back.
fn plan(options: &Options) -> (Ledger, Vec<Planned>, Vec<Planned>) {
    let mut ledger = Ledger::new(N_NODES.into());
    let n_stable = options.n_grpc + options.n_http;
    let n_services = n_stable.div_ceil(PER_SERVICE).max(SUBSCRIPTIONS);
    let mut spread = |stem: &str, n_services: usize, n_grpc: usize, n_http: usize| -> Vec<Planned> {
        let services: Vec<ServiceId> = (0..n_services)
            .map(|i| ledger.add_service(format!("{stem}-{i}")))
            .collect();
        let protocols = [(Protocol::Grpc, n_grpc), (Protocol::Http, n_http)];
        let protocols = protocols
            .into_iter()
            .flat_map(|(protocol, n)| std::iter::repeat_n(protocol, n));
        let planned = protocols.enumerate().map(|(i, protocol)| Planned {
            row: ledger.add_row(services[i % n_services], protocol),
            protocol,
        });
        planned.collect()
    };
    let stable = spread("stable", n_services, options.n_grpc, options.n_http);
    let some = |n: usize| n.div_ceil(LEAVERS).max(4);
    let leaving = spread(
        "leaving",
        LEAVING_SERVICES,
        some(options.n_grpc),
        some(options.n_http),
    );
    (ledger, stable, leaving)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Options> {
        Options::read(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() -> Result<()> {
        let options = read(&["--quick", "--scenario", "kill", "--providers", "30", "10"])?;
        assert_eq!((options.n_grpc, options.n_http), (30, 10));
        assert_eq!(options.scenarios, [Scenario::Kill]);
        assert_eq!(read(&["--quick"])?.n_grpc, 80);
        assert_eq!(read(&["--namespaces", "chaos=10.1.2"])?.scenarios, SCENARIOS);
        for wrong in [
            &["--scenario", "partition"][..],
            &["--scenario", "none"],
            &["--providers", "1"],
            &["--providers", "0", "1"],
            &["--fast"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        Ok(())
    }

    #[test]
    fn every_provider_is_in_one_service() -> Result<()> {
        let (ledger, stable, leaving) = plan(&read(&[])?);
        let rows: usize = ledger
            .services()
            .map(|service| ledger.rows_of(service).len())
            .sum();
        assert_eq!((stable.len(), leaving.len(), rows), (2_500, 100, 2_600));
        Ok(())
    }
}
