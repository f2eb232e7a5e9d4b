//! Polls that name a UDP port: who is granted pushes, and where they go.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::USER_AGENT;
use http::request::Parts;
use rollcall_core::ServiceKey;
use rollcall_node::action::Actions;
use rollcall_node::request::UdpTarget;
use smol_str::SmolStr;

use crate::executor::Executor;
use crate::http::api::Api;
use crate::transport::Transport;
use crate::udp::ip_text;

/// From which version on clients of a kind are pushed to.
#[derive(Clone, Copy, Debug)]
pub struct PushVersion {
    /// The kind, as the switch `pushVersion` names it.
    pub kind: &'static str,
    /// The field that shows it in v1 and v2, and the name under which a change is kept.
    pub field: &'static str,
    /// The field that shows it in v3.
    pub v3_field: &'static str,
    /// The version unless operators say otherwise.
    pub default: &'static str,
}

impl PushVersion {
    const fn new(
        kind: &'static str,
        field: &'static str,
        v3_field: &'static str,
        default: &'static str,
    ) -> Self {
        PushVersion {
            kind,
            field,
            v3_field,
            default,
        }
    }
}

const GO: PushVersion = PushVersion::new("go", "pushGoVersion", "pushVersionOfGo", "0.1.0");
const JAVA: PushVersion = PushVersion::new("java", "pushJavaVersion", "pushVersionOfJava", "0.1.0");
const PYTHON: PushVersion = PushVersion::new("python", "pushPythonVersion", "pushVersionOfPython", "0.4.3");
const C: PushVersion = PushVersion::new("c", "pushCVersion", "pushVersionOfC", "1.0.12");
const CSHARP: PushVersion = PushVersion::new("csharp", "pushCSharpVersion", "pushVersionOfCsharp", "0.9.0");

/// The kinds of clients that may be pushed to.
pub const PUSH_VERSIONS: [PushVersion; 5] = [GO, JAVA, PYTHON, C, CSHARP];

/// Clients that take pushes, by how their name starts (`spec/udp-push.md` §2).
const GRANTED: [(&str, PushVersion); 6] = [
    ("Nacos-Java-Client", JAVA),
    ("Nacos-DNS", PYTHON),
    ("Nacos-C-Client", C),
    ("vip-client4cpp", C),
    ("Nacos-Go-Client", GO),
    ("Nacos-CSharp-Client", CSHARP),
];
/// The header that names the client where there is no `User-Agent`.
const CLIENT_VERSION: &str = "Client-Version";

/// The parameter by which a poll asks for pushes: v2 takes `ip` and `port` where v1 has `clientIP` and `udpPort`.
pub fn port_name(api: Api) -> &'static str {
    match api {
        Api::V1 | Api::V3 => "udpPort",
        Api::V2 => "port",
    }
}

/// Subscribes the client of a list request to the pushes of a service, or lets its subscription live longer. `ip` and
/// `port` are what the request names as its receiver; nothing happens when it may not be pushed to.
pub fn polled(
    exec: &Executor,
    caller: &Caller,
    ip: Option<&str>,
    port: i64,
    service: &ServiceKey,
    clusters: &str,
) {
    let Some(port) = u16::try_from(port).ok().filter(|port| *port > 0) else {
        return;
    };
    let Some(udp) = exec
        .udp()
        .filter(|_| is_granted(&caller.agent, &|switch| exec.node().switch(switch)))
    else {
        return;
    };
    let subscribe = {
        let (exec, service, clusters) = (exec.clone(), service.clone(), clusters.to_owned());
        let agent = caller.agent.clone();
        move |ip: IpAddr| {
            let target = UdpTarget {
                ip: ip_text(ip),
                port,
            };
            let mut actions = Actions::default();
            exec.node()
                .udp_polled(&target, &service, &clusters, &agent, exec.now(), &mut actions);
            exec.run(actions);
        }
    };
    match ip {
        Some(host) => match host.parse() {
            Ok(ip) => subscribe(ip),
            Err(_) if udp.look_up(host, subscribe) => {}
            Err(_) => exec.metrics().udp_lookups_refused.increment(),
        },
        None => {
            if let Some(ip) = caller.ip {
                subscribe(ip);
            }
        }
    }
}

/// Who sent a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// How it names itself.
    agent: SmolStr,
    /// Address of its socket.
    ip: Option<IpAddr>,
}

impl Caller {
    /// The sender of the request that begins so.
    pub fn of(parts: &Parts) -> Self {
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let agent = header(USER_AGENT.as_str())
            .filter(|agent| !agent.is_empty())
            .or_else(|| header(CLIENT_VERSION));
        let transport = parts.extensions.get::<Arc<Transport>>();
        Caller {
            agent: SmolStr::new(agent.unwrap_or_default()),
            ip: transport.map(|transport| transport.remote().ip()),
        }
    }
}

/// True for a client that is pushed to; `set` has what operators set as the first version of a kind.
fn is_granted(agent: &str, set: &dyn Fn(&str) -> Option<SmolStr>) -> bool {
    let Some((_, first)) = GRANTED.iter().find(|(name, _)| agent.starts_with(name)) else {
        return false;
    };
    let Some(of_agent) = agent.split_once(":v").and_then(|(_, text)| version(text)) else {
        return false;
    };
    let first = set(first.field).map_or_else(|| version(first.default), |text| version(&text));
    first.is_some_and(|first| of_agent >= first)
}

/// The numbers of a version; parts that are missing or no number count as 0, but the first must be one.
fn version(version: &str) -> Option<[u32; 3]> {
    let mut numbers = version.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..end).and_then(|digits| digits.parse().ok())
    });
    let major: u32 = numbers.next().flatten()?;
    let mut next = || numbers.next().flatten().unwrap_or(0);
    Some([major, next(), next()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_granted_pushes_as_recorded() {
        for (agent, is_pushed) in [
            ("Nacos-Java-Client:v1.4.7", true),
            ("Nacos-Java-Client:v1.0.0", true),
            ("Nacos-Java-Client:v0.1.0", true),
            ("Nacos-Java-Client:v0.0.9", false),
            ("Nacos-Java-Client:v2.0.4", true),
            ("Nacos-Java-Client", false),
            ("Nacos-Java-Client:1.4.7", false),
            ("Nacos-Java-Client:vX", false),
            ("nacos-java-client:v1.4.7", false),
            ("Nacos-Go-Client:v1.1.4", true),
            ("Nacos-Go-Client:v0.1.0", true),
            ("Nacos-Go-Client:v0.0.9", false),
            ("Nacos-CPP-Client:v1.2.0", false),
            ("Nacos-C-Client:v1.0.12", true),
            ("Nacos-C-Client:v1.0.11", false),
            ("vip-client4cpp:v1.0.12", true),
            ("vip-client4cpp:v1.0.11", false),
            ("Nacos-Python-Client:v0.1.17", false),
            ("Nacos-CSharp-Client:v1.0.0", true),
            ("Nacos-CSharp-Client:v0.9.0", true),
            ("Nacos-CSharp-Client:v0.8.9", false),
            ("Nacos-DNS:v1.0.0", true),
            ("Nacos-DNS:v0.4.3", true),
            ("Nacos-DNS:v0.4.2", false),
            ("Nacos-SDK-Java:v1.4.7", false),
            ("Nacos-Php-Client:v1.0.0", false),
            ("unit-nginx:v1.0.0", false),
            ("Nacos-Server:v2.5.1", false),
            ("curl/8.5.0", false),
            ("", false),
        ] {
            assert_eq!(is_granted(agent, &|_| None), is_pushed, "{agent}");
        }
    }

    #[test]
    fn operators_say_from_which_version_on() {
        let set = |switch: &str| (switch == JAVA.field).then_some(SmolStr::new("1.4.0"));
        for (agent, is_pushed) in [
            ("Nacos-Java-Client:v1.3.9", false),
            ("Nacos-Java-Client:v1.4.0", true),
            ("Nacos-Go-Client:v0.1.0", true),
        ] {
            assert_eq!(is_granted(agent, &set), is_pushed, "{agent}");
        }
    }

    #[test]
    fn the_client_version_counts_where_there_is_no_user_agent() {
        let agent_of = |headers: &[(&str, &str)]| {
            let mut request = http::Request::builder();
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            Caller::of(&request.body(()).unwrap().into_parts().0)
                .agent
                .to_string()
        };
        assert_eq!(agent_of(&[("client-version", "a")]), "a");
        assert_eq!(agent_of(&[("user-agent", ""), ("client-version", "a")]), "a");
        assert_eq!(agent_of(&[("user-agent", "b"), ("client-version", "a")]), "b");
        assert_eq!(agent_of(&[]), "");
    }
}
