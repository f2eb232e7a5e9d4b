//! What an application does with the official Rust client (`nacos-sdk`), as scenarios. `clients/README.md` says what
//! each means, and what this program prints and asks for.
//!
//! - `rust-client SERVERS SCRATCH`: runs them; SERVERS are main addresses separated by commas, the folder is not used
//! - `rust-client SERVERS SCRATCH hold SERVICE...`: registers these until standard input ends or it is killed
//! - `rust-client SERVERS SCRATCH watch SERVICE...`: subscribes to these, and prints `listed SERVICE COUNT` whenever its
//!   listener is told a list, until standard input ends or it is killed

mod driver;
mod scenarios;
mod sdk;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use anyhow::{Result, anyhow};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use driver::PATIENCE;
use sdk::Nodes;

type Scenario = Pin<Box<dyn Future<Output = Result<()>>>>;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.as_slice() {
        [servers, _scratch] => LocalSet::new().run_until(run(servers)).await,
        [servers, _scratch, hold, services @ ..] if hold == "hold" => {
            scenarios::hold(servers, services).await.map(|()| true)
        }
        [servers, _scratch, verb, services @ ..] if verb == "watch" => {
            let local = LocalSet::new();
            local
                .run_until(scenarios::watch(servers, services))
                .await
                .map(|()| true)
        }
        _ => Err(anyhow!(
            "usage: rust-client SERVERS SCRATCH [hold|watch SERVICE...]"
        )),
    };
    let is_good = result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        false
    });
    // The client's own tasks need not be waited for.
    std::process::exit(i32::from(!is_good));
}

/// Runs all scenarios at once, and then the one that takes a node away. Says whether all passed.
async fn run(servers: &str) -> Result<bool> {
    println!("without no_beat_expiry: the connection is the beat");
    println!("without udp_push: pushes come over the connection");
    let nodes = Rc::new(Nodes::connect(servers).await?);
    let mut running = JoinSet::new();
    for (name, scenario) in scenarios::all(&nodes) {
        running.spawn_local(one(name, scenario));
    }
    let mut is_good = true;
    while let Some(passed) = running.join_next().await {
        is_good &= passed?;
    }
    is_good &= one("redo", Box::pin(scenarios::redo(nodes))).await;
    Ok(is_good)
}

/// Runs a scenario with a limit of time; says whether it passed.
async fn one(name: &str, scenario: Scenario) -> bool {
    let result = timeout(PATIENCE, scenario).await;
    match result.unwrap_or_else(|_| Err(anyhow!("not done within {PATIENCE:?}"))) {
        Ok(()) => {
            println!("ok {name}");
            true
        }
        Err(error) => {
            println!("FAILED {name}: {}", format!("{error:#}").replace('\n', " "));
            false
        }
    }
}
