//! Whether the advertised address leads to this process: asked through the network, by the same probe as other members
//! send.
//!
//! Whoever answers at the address is the member, for all others dial it there. So of two processes with one address the
//! one that is not reached there gives way, and it looks before it says a word to anyone else: two that speak as one
//! member would take each other's links and rows away. An address that nobody answers at proves nothing, as a network
//! may not lead a process to itself; it is told to operators, and whether the node serves depends on its members alone.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use super::Shared;
use super::probe::{Failure, exchange};

/// Subject of [`Peer::trouble`](super::Peer).
pub(super) const OWN: &str = "own address";
/// Time between two looks while the node does not serve, and while it does.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Looks in a row that must find another process before a node that serves gives way. Names may lead elsewhere for a
/// moment.
const LOOKS_WHILE_SERVING: u32 = 3;

/// The advertised address belongs to somebody else, so this process cannot be that member.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressTaken {
    /// Another process of this cluster goes by the address, and is reached there.
    #[error(
        "advertise: another process, {}, answers as {address} at its peer address {target}; no two may advertise the same \
         address, and this one is not reached there",
        if *.is_ready { "which serves" } else { "which does not serve yet" }
    )]
    OtherProcess {
        /// The advertised address.
        address: SmolStr,
        /// Where it was asked, `host:port`.
        target: SmolStr,
        /// The other one serves.
        is_ready: bool,
    },
    /// The address leads to another member.
    #[error(
        "advertise: member {found} answers at {target}, the peer address of the advertised address {address}; advertise an \
         address that leads to this process"
    )]
    OtherMember {
        /// The advertised address.
        address: SmolStr,
        /// Where it was asked, `host:port`.
        target: SmolStr,
        /// The advertised address of the member that answers.
        found: SmolStr,
    },
}

/// What a look found.
enum Found {
    /// This process.
    Own,
    Other(AddressTaken),
    /// Nobody who could be this member: why.
    Nobody(Failure),
}

/// Looks for the first time, before anyone is dialed.
///
/// # Errors
/// [`AddressTaken`].
pub(super) async fn first_look(shared: &Shared) -> Result<(), AddressTaken> {
    match look(shared).await {
        Found::Other(taken) => Err(taken),
        found => {
            note(shared, found);
            Ok(())
        }
    }
}

/// Looks again and again until shutdown, or until this process has to give way.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut n_others = 0; // Looks in a row that found another process.
    loop {
        let is_ready = shared.node.is_ready();
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            () = sleep(if is_ready { PAUSES.1 } else { PAUSES.0 }) => {}
        }
        let found = look(&shared).await;
        n_others = match &found {
            Found::Other(AddressTaken::OtherProcess { .. }) => n_others + 1,
            _ => 0,
        };
        match found {
            Found::Other(taken) if must_give_way(shared.node.is_ready(), n_others) => {
                let _ = shared.taken.set(taken);
                return;
            }
            found => note(&shared, found),
        }
    }
}

/// Whether this process ends when somebody else is at the address, which was another process of the same member in the last
/// `n_others` looks. A node that serves gives way to such a process only: as long as none speaks in its name, its clients
/// see nothing of a wrong address.
fn must_give_way(is_ready: bool, n_others: u32) -> bool {
    !is_ready || n_others >= LOOKS_WHILE_SERVING
}

/// Asks who is at the address, over a connection of its own: the address may lead elsewhere than before.
async fn look(shared: &Shared) -> Found {
    let own = &shared.own;
    let boots = || shared.node.link_hello().boot;
    let asked = boots();
    let probe = shared.node.own_probe(shared.now());
    let answer = timeout(shared.limits.probe, exchange(shared, own, &probe)).await;
    *own.probe_client.lock() = None;
    let (address, target) = (own.address.clone(), own.target.clone());
    match answer.unwrap_or(Err(Failure::Late)) {
        // It changes when the member is listed again.
        Ok(said) if [asked, boots()].contains(&said.state().boot) => Found::Own,
        Ok(said) => Found::Other(AddressTaken::OtherProcess {
            address,
            target,
            is_ready: said.state().ready,
        }),
        Err(Failure::OtherMember(found)) => Found::Other(AddressTaken::OtherMember {
            address,
            target,
            found: found.into(),
        }),
        Err(failure) => Found::Nobody(failure),
    }
}

/// Tells operators what was found, once.
fn note(shared: &Shared, found: Found) {
    let own = &shared.own;
    let is_new = |text: &str| own.trouble.is_new(OWN, text, shared.now().mono);
    match found {
        Found::Own => {
            if own.trouble.last(OWN).is_some() {
                info!(address = %own.address, "the advertised address leads to this process now");
            }
            own.trouble.clear(OWN);
        }
        Found::Other(taken) => {
            let text = taken.to_string();
            if is_new(&text) {
                error!("{text}");
            }
        }
        Found::Nobody(failure) => {
            let text = format!(
                "the advertised address does not lead to this process: {failure} (asked at {})",
                own.target
            );
            match is_new(&text) {
                true => {
                    warn!(address = %own.address, "{text}; if other members do not reach it either, correct `advertise`")
                }
                false => debug!(address = %own.address, "{text}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_serves_gives_way_to_another_process_that_is_found_again_and_again() {
        assert!(must_give_way(false, 0), "to another member");
        assert!(must_give_way(false, 1));
        assert!(!must_give_way(true, 0), "never to another member");
        assert!(!must_give_way(true, LOOKS_WHILE_SERVING - 1));
        assert!(must_give_way(true, LOOKS_WHILE_SERVING));
    }
}
