//! `/v1/core/cluster`: the members as this node sees them.

use rollcall_core::Millis;
use rollcall_node::MemberStatus;

use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::router::HttpApp;
use crate::http::v1::console::COMPATIBLE_VERSION;
use crate::json;

const HEAD: &[u8] = b"{\"code\":200,\"message\":null,\"data\":";

/// GET nodes: all members whose address starts with `keyword`, sorted by address.
pub fn nodes(app: &HttpApp, params: &Params) -> Reply {
    let keyword = params.get("keyword").unwrap_or_default();
    let now = app.exec().now();
    let mut out = HEAD.to_vec();
    out.push(b'[');
    let members = app.exec().node().members(now);
    for (at, member) in members
        .iter()
        .filter(|member| member.address.starts_with(keyword))
        .enumerate()
    {
        if at > 0 {
            out.push(b',');
        }
        write_member(&mut out, member, now.wall);
    }
    out.extend_from_slice(b"]}");
    Reply::json(out)
}

/// GET self: this member.
pub fn this(app: &HttpApp) -> Reply {
    let now = app.exec().now();
    let mut out = HEAD.to_vec();
    let members = app.exec().node().members(now);
    match members.iter().find(|member| member.is_self) {
        Some(member) => write_member(&mut out, member, now.wall),
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    Reply::json(out)
}

/// GET health: the process answers.
pub fn health() -> Reply {
    let mut out = HEAD.to_vec();
    out.extend_from_slice(b"\"UP\"}");
    Reply::json(out)
}

fn write_member(out: &mut Vec<u8>, member: &MemberStatus, now: Millis) {
    let (host, port) = member.address.rsplit_once(':').unwrap_or((&member.address, "0"));
    out.extend_from_slice(b"{\"ip\":");
    json::string(out, host.trim_start_matches('[').trim_end_matches(']'));
    out.extend_from_slice(b",\"port\":");
    json::unsigned(out, port.parse().unwrap_or(0));
    out.extend_from_slice(b",\"state\":");
    json::string(out, &member.state.to_string());
    out.extend_from_slice(b",\"extendInfo\":{\"lastRefreshTime\":");
    // A member that was never seen has no time.
    json::unsigned(out, member.last_seen.map_or(0, |age| now.since(age).0));
    out.extend_from_slice(b",\"readyToUpgrade\":true,\"version\":");
    json::string(out, COMPATIBLE_VERSION);
    out.extend_from_slice(b"},\"address\":");
    json::string(out, &member.address);
    out.extend_from_slice(
        b",\"failAccessCnt\":0,\"abilities\":{\"remoteAbility\":{\"supportRemoteConnection\":true,\
          \"grpcReportEnabled\":true},\"configAbility\":{\"supportRemoteMetrics\":false},\
          \"namingAbility\":{\"supportJraft\":false}},\"grpcReportEnabled\":true}",
    );
}

#[cfg(test)]
mod tests {
    use rollcall_node::MemberState;

    use super::*;

    #[test]
    fn the_time_of_the_last_answer_is_its_age_before_now() {
        for (age, time) in [(Some(Millis(1_500)), 1_700_000_000_000u64), (None, 0)] {
            let member = MemberStatus {
                address: "10.0.0.1:8848".into(),
                state: MemberState::Up,
                is_self: false,
                ready: true,
                epoch: 1,
                last_seen: age,
            };
            let mut out = Vec::new();
            write_member(&mut out, &member, Millis(1_700_000_001_500));
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains(&format!("{{\"lastRefreshTime\":{time},")), "{text}");
        }
    }
}
