//! One row as every node holds it, printed whenever that changes: for tracing a seed.
//!
//! `ROLLCALL_SIM_ROW="svc-3 10.1.0.7:8000"` names it.

use rollcall_core::registry::row::{Publication, Publisher};
use rollcall_core::{MemberId, Now};
use rollcall_node::Node;

use super::world::World;

/// The row that is watched, and what was printed of each node.
#[derive(Debug)]
pub(super) struct Watch {
    service: String,
    address: String,
    printed: Vec<(String, String)>,
}

impl Watch {
    /// What the environment asks for, if it does.
    pub(super) fn from_env() -> Option<Self> {
        let asked = std::env::var("ROLLCALL_SIM_ROW").ok()?;
        let (service, address) = asked.split_once(' ')?;
        Some(Watch {
            service: service.into(),
            address: address.into(),
            printed: Vec::new(),
        })
    }
}

impl World {
    /// Prints what has changed since the last look.
    pub(super) fn look(&mut self) {
        let Some(mut watch) = self.watch.take() else {
            return;
        };
        watch.printed.resize(self.slots.len(), Default::default());
        for n in 0..self.slots.len() {
            let (state, row) = self.state_and_row(n, &watch);
            let printed = &mut watch.printed[n];
            if printed.0 != state {
                println!("  {} node {n} {state}", self.now);
                printed.0 = state;
            }
            if printed.1 != row {
                println!("  {} node {n} holds {row}", self.now);
                printed.1 = row;
            }
        }
        self.watch = Some(watch);
    }

    fn state_and_row(&self, n: usize, watch: &Watch) -> (String, String) {
        let list = &self.slots[n].list;
        let Some(node) = &self.slots[n].node else {
            return ("is down".into(), String::new());
        };
        let pause = if self.is_paused(n) { ", stands still" } else { "" };
        let members = node.members(self.clock(n));
        let others = members.iter().filter(|m| !m.is_self);
        let others: Vec<_> = others
            .map(|m| {
                let at = self.addresses.iter().position(|a| *a == m.address);
                format!(
                    "{:?}={:?}{}",
                    at.unwrap_or(usize::MAX),
                    m.state,
                    if m.ready { "" } else { "-" }
                )
            })
            .collect();
        let state = format!(
            "is {:?}{pause}, lists {list:?}: {}",
            node.state(),
            others.join(" ")
        );
        (state, self.row(node, watch))
    }

    fn row(&self, node: &Node, watch: &Watch) -> String {
        let service = (0..super::clients::N_SERVICES)
            .map(super::clients::service)
            .find(|service| service.name() == watch.service);
        let Some(service) = service else {
            return "no such service".into();
        };
        let is_meant = |p: &Publication| format!("{}:{}", p.instance.ip, p.instance.port) == watch.address;
        let member = |id: MemberId| self.addresses.iter().position(|a| MemberId::of(a) == id);
        let publications = node.registry().publications_in(&service).into_iter();
        let told: Vec<_> = publications
            .filter(is_meant)
            .map(|p| {
                let publisher = match p.publisher {
                    Publisher::Connection(client) => {
                        format!("{:?}/{:x}", member(client.origin), client.plain_number())
                    }
                    Publisher::Beats => format!("beats by {:?}", member(p.stamp.member)),
                };
                format!(
                    "{publisher} weight {} at {:x}{}{}",
                    p.instance.weight,
                    p.stamp.time,
                    if p.is_orphan { " orphan" } else { "" },
                    if p.is_superseded { " superseded" } else { "" },
                )
            })
            .collect();
        let view = node.query(&service, Now::default()).ok();
        let shown = view.and_then(|answer| {
            let shown = answer
                .view
                .instances()
                .find(|i| format!("{}:{}", i.ip, i.port) == watch.address);
            shown.map(|i| (i.weight, i.healthy))
        });
        format!("{told:?}, shows {shown:?}")
    }
}
