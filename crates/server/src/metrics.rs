//! What is counted, and how it is shown. The node and the peer side keep their own numbers; they are read when asked.

mod nacos;
#[cfg(test)]
mod tests;
pub mod text;
pub mod timers;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use rollcall_core::registry::census::Census;
use rollcall_node::{Family, NodeMetrics, Value};

use crate::executor::Executor;
use crate::json;
use crate::load::Load;
use crate::machine::MachineLoad;
use crate::metrics::nacos::{GrpcCall, HttpCall};
use crate::metrics::timers::Timers;
use crate::udp::Udp;

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of the shell.
#[derive(Debug, Default)]
pub struct ShellMetrics {
    /// Connections closed because their queue of outgoing messages was full.
    pub queue_overflows: Counter,
    /// Unary gRPC calls.
    pub grpc_requests: Counter,
    /// Unary gRPC calls that were refused.
    pub grpc_failures: Counter,
    /// Pushes over UDP put off because the queue of the socket was full.
    pub udp_overflows: Counter,
    /// Pushes over UDP that no datagram can hold.
    pub udp_too_large: Counter,
    /// Datagrams that are no acknowledgement.
    pub udp_bad_acks: Counter,
    /// Polls whose host name was not looked up because too many were.
    pub udp_lookups_refused: Counter,
    /// Unary gRPC calls, timed.
    pub grpc_calls: Timers<GrpcCall>,
    /// HTTP calls, timed.
    pub http_calls: Timers<HttpCall>,
    /// Member lists taken while the process runs.
    pub member_list_changes: Counter,
    /// Looks at the member list that found none that will do.
    pub member_list_failures: Counter,
    /// The last look at the member list found none that will do.
    pub member_list_is_stale: AtomicBool,
    /// HTTP answers by class of status, from 1xx to 5xx.
    http_responses: [Counter; 5],
}

impl ShellMetrics {
    /// Counts an HTTP answer.
    pub fn count_response(&self, status: StatusCode) {
        if let Some(counter) = self
            .http_responses
            .get(usize::from(status.as_u16() / 100).wrapping_sub(1))
        {
            counter.increment();
        }
    }

    fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
        let [_, ok, redirect, client, server] = &self.http_responses;
        vec![
            (
                "rollcall_queue_overflows",
                "Connections closed because their client did not read",
                self.queue_overflows.value(),
            ),
            (
                "rollcall_grpc_requests",
                "Unary gRPC calls",
                self.grpc_requests.value(),
            ),
            (
                "rollcall_grpc_failures",
                "Unary gRPC calls that were refused",
                self.grpc_failures.value(),
            ),
            (
                "rollcall_udp_overflows",
                "Pushes over UDP put off because the queue of the socket was full",
                self.udp_overflows.value(),
            ),
            (
                "rollcall_udp_too_large",
                "Pushes over UDP not sent because no datagram holds the list",
                self.udp_too_large.value(),
            ),
            (
                "rollcall_member_list_changes",
                "Member lists taken while the process runs",
                self.member_list_changes.value(),
            ),
            (
                "rollcall_member_list_failures",
                "Looks at the member list that found none that will do",
                self.member_list_failures.value(),
            ),
            (
                "rollcall_udp_bad_acks",
                "Datagrams that are no acknowledgement",
                self.udp_bad_acks.value(),
            ),
            (
                "rollcall_udp_lookups_refused",
                "Polls whose host name was not looked up because too many were",
                self.udp_lookups_refused.value(),
            ),
            (
                "rollcall_http_responses_2xx",
                "HTTP answers with a status of 2xx",
                ok.value(),
            ),
            (
                "rollcall_http_responses_3xx",
                "HTTP answers with a status of 3xx",
                redirect.value(),
            ),
            (
                "rollcall_http_responses_4xx",
                "HTTP answers with a status of 4xx",
                client.value(),
            ),
            (
                "rollcall_http_responses_5xx",
                "HTTP answers with a status of 5xx",
                server.value(),
            ),
        ]
    }
}

/// Writes metrics of the node as further members of a JSON object: `,"name":value` each.
pub fn write_members(out: &mut Vec<u8>, metrics: &NodeMetrics, members: &[(&str, &str)]) {
    for (name, metric) in members {
        json::member(out, name);
        json::unsigned(out, metrics.get(metric).unwrap_or_default());
    }
}

/// All metrics at one moment. `census` is taken by the caller, because it looks at every row.
pub fn gather(exec: &Executor, census: &Census, load: MachineLoad) -> Vec<Family> {
    let now = exec.now();
    let node = exec.node().metrics(now);
    let mut families = node.families().to_vec();
    let counter = |(name, help, value): (&'static str, &'static str, u64)| {
        let name = name.strip_suffix("_total").unwrap_or(name);
        Family::single(name, help.trim_end_matches('.'), Value::Counter(value))
    };
    families.extend(exec.metrics().list().into_iter().map(counter));
    let peers = exec.peers().map(|peers| peers.metrics().list());
    families.extend(peers.unwrap_or_default().into_iter().map(counter));
    let mut gauge = |name, help, value: u64| {
        families.push(Family::single(name, help, Value::Gauge(value as f64)));
    };
    if let Some(store) = exec.store() {
        gauge(
            "rollcall_store_waiting",
            "Rows and records that wait for the disk",
            store.n_waiting(),
        );
    }
    gauge(
        "rollcall_member_list_stale",
        "1 while the member list cannot be used as its file or address server has it",
        u64::from(exec.metrics().member_list_is_stale.load(Ordering::Relaxed)),
    );
    gauge(
        "rollcall_own_address_unreached",
        "1 while the advertised address does not lead to this process, as far as it can tell",
        u64::from(exec.peers().is_some_and(|peers| peers.own_trouble().is_some())),
    );
    gauge(
        "rollcall_newcomers",
        "Connections that have not asked anything yet",
        exec.n_newcomers() as u64,
    );
    gauge(
        "rollcall_task_wait_microseconds",
        "Last measured wait of a task that is ready until it runs",
        exec.load().map_or(0, |load| load.wait().0),
    );
    gauge(
        "rollcall_streams",
        "Connections known to the shell",
        exec.connections().len() as u64,
    );
    gauge(
        "rollcall_messages_unread_bytes",
        "Bytes of messages that streams have taken and their clients not yet read",
        exec.connections().n_unread() as u64,
    );
    gauge(
        "rollcall_answers_unread_bytes",
        "Bytes of answers whose clients have not read them yet; what several answers share counts several times",
        exec.held_answers().n_bytes() as u64,
    );
    let (n_waiting, n_most) = exec.connections().n_waiting();
    gauge(
        "rollcall_messages_waiting",
        "Messages that wait for the streams of all connections",
        n_waiting as u64,
    );
    gauge(
        "rollcall_messages_waiting_most",
        "Messages that wait for the stream of the connection that has most of them",
        n_most as u64,
    );
    gauge(
        "rollcall_udp_pushes_waiting",
        "Pushes over UDP that wait for the socket",
        exec.udp().map_or(0, Udp::n_waiting) as u64,
    );
    if let Some(copy) = exec.copy() {
        let since = copy.written_at().map(|at| now.wall.since(at).0 / 1000);
        if let Some(age) = since {
            gauge(
                "rollcall_copy_age_seconds",
                "Age of the last copy of ephemeral instances that this process wrote",
                age,
            );
        }
        gauge(
            "rollcall_copy_bytes",
            "Size of the last copy of ephemeral instances that this process wrote",
            copy.size(),
        );
        gauge(
            "rollcall_copy_failing",
            "1 while copies of ephemeral instances cannot be written, or one takes longer than 30 s",
            u64::from(copy.is_failing(now.mono)),
        );
        families.push(counter((
            "rollcall_copy_failures",
            "Copies of ephemeral instances that could not be written",
            copy.n_failures(),
        )));
    }
    families.push(counter((
        "rollcall_busy_refused",
        "Connections and requests turned away because the process was too far behind",
        exec.load().map_or(0, Load::n_refused),
    )));
    families.push(counter((
        "rollcall_log_lines_lost",
        "Lines of the log that were not written, since whoever reads it is too slow",
        exec.n_lost_lines() as u64,
    )));
    if let Some(store) = exec.store() {
        families.push(counter((
            "rollcall_store_failures",
            "Writes to the disk that failed and are tried again",
            store.n_failures(),
        )));
    }
    families.extend(nacos::families(&nacos::Sources {
        node: &node,
        shell: exec.metrics(),
        census,
        load,
        now,
    }));
    families
}
