//! The members of the cluster as this node sees them.

use http::StatusCode;
use rollcall_core::Millis;
use rollcall_node::MemberStatus;

use crate::error::{Code, HttpFailure};
use crate::http::api::Api;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// Writes the members for which `is_meant` holds, sorted by address.
pub fn write_members(out: &mut Vec<u8>, app: &HttpApp, api: Api, is_meant: impl Fn(&MemberStatus) -> bool) {
    let now = app.exec().now();
    let mut members = app.exec().node().members(now);
    members.retain(|member| is_meant(member));
    json::list(out, &members, |out, member| {
        write_member(out, member, api, now.wall)
    });
}

/// Writes this member.
pub fn write_self(out: &mut Vec<u8>, app: &HttpApp, api: Api) {
    let now = app.exec().now();
    let members = app.exec().node().members(now);
    match members.iter().find(|member| member.is_self) {
        Some(member) => write_member(out, member, api, now.wall),
        None => out.extend_from_slice(b"null"),
    }
}

fn write_member(out: &mut Vec<u8>, member: &MemberStatus, api: Api, now: Millis) {
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
    json::string(out, api.version());
    out.extend_from_slice(b"},\"address\":");
    json::string(out, &member.address);
    out.extend_from_slice(
        b",\"failAccessCnt\":0,\"abilities\":{\"remoteAbility\":{\"supportRemoteConnection\":true,\
          \"grpcReportEnabled\":true},\"configAbility\":{\"supportRemoteMetrics\":false},\
          \"namingAbility\":{\"supportJraft\":false}},\"grpcReportEnabled\":true}",
    );
}

/// Why no call changes the member list.
const FIXED: &str = "the member list comes from the settings, a file or an address server, not over HTTP";

/// PUT of members: refused, as members come and go by the list that operators keep.
///
/// # Errors
/// Always.
pub fn refuse_update(_app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    Err(HttpFailure::invalid(FIXED))
}

/// DELETE of members, and the call by which one leaves: refused as recorded, with status 200.
///
/// # Errors
/// None.
pub fn refuse_leave(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let call = match params.api() {
        Api::V1 => "/v1/core/cluster/server/leave",
        Api::V2 | Api::V3 => "DELETE /v2/core/cluster/nodes",
    };
    let text = format!("{call} API not allow to use temporarily.");
    Ok(Reply::rest_failure(405, &text))
}

/// Where the member list comes from: refused, as that is a setting.
///
/// # Errors
/// 400 for a `type` that is missing, unknown, or another than that of the settings; in v1 with status 200, as recorded.
pub fn refuse_lookup(_app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let kind = params.get("type").ok_or_else(|| {
        HttpFailure::text(StatusCode::BAD_REQUEST, "required parameter 'type' is missing").with(Code::MISSING)
    })?;
    let text = match kind {
        "file" | "address-server" => FIXED.to_owned(),
        kind => format!("The addressing mode exists : {kind}, just support : [[file, address-server]]"),
    };
    match params.api() {
        Api::V1 => Ok(Reply::rest_failure(500, &text)),
        Api::V2 | Api::V3 => Err(HttpFailure::invalid(text)),
    }
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
            write_member(&mut out, &member, Api::V1, Millis(1_700_000_001_500));
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains(&format!("{{\"lastRefreshTime\":{time},")), "{text}");
        }
    }
}
