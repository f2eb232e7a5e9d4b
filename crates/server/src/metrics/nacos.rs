//! The names that dashboards and alert rules for Nacos read, as recorded of Nacos 2.5.1 (`spec/clients.md` §13). Only those
//! that have a true value here; `docs/metrics.md` lists the others.

use rollcall_core::registry::census::Census;
use rollcall_core::{Micros, Now};
use rollcall_node::{Family, NodeMetrics, Sample, Value};
use smol_str::{SmolStr, format_smolstr};

use crate::machine::MachineLoad;
use crate::metrics::ShellMetrics;

/// What the names are filled from.
pub(super) struct Sources<'a> {
    pub(super) node: &'a NodeMetrics,
    pub(super) shell: &'a ShellMetrics,
    pub(super) census: &'a Census,
    pub(super) load: MachineLoad,
    pub(super) now: Now,
}

/// All of them.
pub(super) fn families(from: &Sources<'_>) -> Vec<Family> {
    let mut families = vec![monitor(from)];
    let metric = |name| gauge(from.node.get(name).unwrap_or_default());
    let by_version = |v1, v2| vec![labelled("version", "v1", v1), labelled("version", "v2", v2)];
    families.push(Family {
        name: "nacos_naming_publisher",
        help: "Services published, summed over clients: v1 by beats, v2 over connections",
        samples: by_version(
            gauge(from.census.beat_publications as u64),
            gauge(from.census.connection_publications as u64),
        ),
    });
    families.push(Family {
        name: "nacos_naming_subscriber",
        help: "Subscriptions: v1 over UDP, v2 of connections",
        samples: by_version(
            metric("rollcall_udp_subscriptions"),
            metric("rollcall_subscriptions"),
        ),
    });
    let busiest = from.census.busiest.iter();
    families.push(Family {
        name: "service_change_count",
        help: "Changes of the lists of the services that change most",
        samples: busiest
            .map(|(service, n)| labelled("service", service.as_str(), gauge(*n)))
            .collect(),
    });
    families.extend(grpc_requests(from));
    families.extend(http_requests(from));
    for (name, help, value) in [
        (
            "system_cpu_usage",
            "Share of time in which the processors were busy",
            from.load.cpu,
        ),
        (
            "system_load_average_1m",
            "Tasks that ran or waited to run, averaged over a minute",
            from.load.load,
        ),
    ] {
        if value >= 0.0 {
            families.push(Family::single(name, help, Value::Gauge(value)));
        }
    }
    families
}

fn monitor(from: &Sources<'_>) -> Family {
    let metric = |name: &str| from.node.get(name).unwrap_or_default();
    let sum = |names: &[&str]| names.iter().map(|name| metric(name)).sum::<u64>();
    let failed = sum(&[
        "rollcall_pushes_failed",
        "rollcall_pushes_timed_out",
        "rollcall_udp_pushes_failed",
        "rollcall_udp_pushes_timed_out",
    ]);
    let acked = sum(&["rollcall_pushes_acked", "rollcall_udp_pushes_acked"]);
    let subscriptions = sum(&["rollcall_subscriptions", "rollcall_udp_subscriptions"]);
    let costs = from.node.recent_costs();
    let ms = |span: Micros| Value::Gauge((span.0 / 1000) as f64);
    let or_none = |span: Option<Micros>| span.map_or(Value::Gauge(-1.0), ms);
    let average = costs.sum.0.checked_div(costs.n_acked).map(Micros);
    let naming = [
        ("serviceCount", gauge(metric("rollcall_services"))),
        ("ipCount", gauge(metric("rollcall_instances"))),
        ("subscriberCount", gauge(subscriptions)),
        ("totalPush", gauge(acked + failed)),
        ("failedPush", gauge(failed)),
        ("emptyPush", gauge(metric("rollcall_pushes_empty"))),
        ("maxPushCost", or_none(costs.max)),
        ("avgPushCost", or_none(average)),
        ("totalPushCountForAvg", gauge(costs.n_acked)),
        ("totalPushCostForAvg", ms(costs.sum)),
        ("pushPendingTaskCount", gauge(metric("rollcall_pushes_waiting"))),
        ("longConnection", gauge(metric("rollcall_naming_connections"))),
    ];
    let core = [("longConnection", gauge(metric("rollcall_connections")))];
    let sample = |module: &'static str| {
        move |(name, value): (&'static str, Value)| Sample {
            labels: vec![("module", module.into()), ("name", name.into())],
            value,
        }
    };
    Family {
        name: "nacos_monitor",
        help: "Counts of naming and of connections",
        samples: naming
            .map(sample("naming"))
            .into_iter()
            .chain(core.map(sample("core")))
            .collect(),
    }
}

/// What a unary gRPC call was: type of the request, its module, and the error code of the answer, 0 for none.
pub(super) type GrpcCall = (&'static str, &'static str, i32);

fn grpc_requests(from: &Sources<'_>) -> [Family; 2] {
    let labels = |(class, module, code): GrpcCall| {
        vec![
            ("errorCode", format_smolstr!("{code}")),
            ("module", module.into()),
            ("requestClass", class.into()),
            ("success", if code == 0 { "true" } else { "false" }.into()),
            ("throwableClass", "None".into()),
        ]
    };
    let timed = from.shell.grpc_calls.list(from.now).into_iter();
    summary_and_max(
        ["grpc_server_requests_seconds", "grpc_server_requests_seconds_max"],
        [
            "Unary gRPC calls",
            "The longest unary gRPC call of the last minutes",
        ],
        timed.map(|(key, summary, max)| (labels(key), summary, max)),
    )
}

/// What an HTTP call was: path of its route, method, and status of the answer.
pub(super) type HttpCall = (&'static str, &'static str, u16);

fn http_requests(from: &Sources<'_>) -> [Family; 2] {
    let labels = |(path, method, status): HttpCall| {
        let outcome = match status / 100 {
            1 => "INFORMATIONAL",
            2 => "SUCCESS",
            3 => "REDIRECTION",
            4 => "CLIENT_ERROR",
            _ => "SERVER_ERROR",
        };
        vec![
            ("exception", "None".into()),
            ("method", method.into()),
            ("outcome", outcome.into()),
            ("status", format_smolstr!("{status}")),
            ("uri", path.into()),
        ]
    };
    let timed = from.shell.http_calls.list(from.now).into_iter();
    summary_and_max(
        ["http_server_requests_seconds", "http_server_requests_seconds_max"],
        ["HTTP calls", "The longest HTTP call of the last minutes"],
        timed.map(|(key, summary, max)| (labels(key), summary, max)),
    )
}

type Labels = Vec<(&'static str, SmolStr)>;

fn summary_and_max(
    [name, name_of_max]: [&'static str; 2],
    [help, help_of_max]: [&'static str; 2],
    timed: impl Iterator<Item = (Labels, Value, f64)>,
) -> [Family; 2] {
    let (mut summaries, mut longest) = (Vec::new(), Vec::new());
    for (labels, value, max) in timed {
        longest.push(Sample {
            labels: labels.clone(),
            value: Value::Gauge(max),
        });
        summaries.push(Sample { labels, value });
    }
    [
        Family {
            name,
            help,
            samples: summaries,
        },
        Family {
            name: name_of_max,
            help: help_of_max,
            samples: longest,
        },
    ]
}

fn gauge(value: u64) -> Value {
    Value::Gauge(value as f64)
}

fn labelled(label: &'static str, text: &str, value: Value) -> Sample {
    Sample {
        labels: vec![(label, text.into())],
        value,
    }
}
