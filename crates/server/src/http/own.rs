//! Paths that only Rollcall has: what this node knows, for operators and tests.

use std::collections::BTreeMap;

use rollcall_core::MemberId;
use serde_json::json;

use crate::agreement::{self, Digests, Hex, Origin};
use crate::error::HttpFailure;
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;
use crate::metrics;
use crate::service_info;

/// `/rollcall/state`: this node, its members and what each origin's rows amount to.
///
/// # Errors
/// None.
pub fn state(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    let node = app.exec().node();
    let members = node.members(app.exec().now());
    let this = members.iter().find(|member| member.is_self);
    let metrics = node.metrics(app.exec().now());
    let mut out = b"{\"address\":".to_vec();
    json::string(
        &mut out,
        this.map(|member| member.address.as_str()).unwrap_or_default(),
    );
    out.extend_from_slice(b",\"ready\":");
    json::boolean(&mut out, node.is_ready());
    out.extend_from_slice(b",\"minority\":");
    json::boolean(&mut out, node.is_in_minority());
    out.extend_from_slice(b",\"epoch\":");
    json::unsigned(&mut out, this.map_or(0, |member| member.epoch));
    out.extend_from_slice(b",\"members\":[");
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"address\":");
        json::string(&mut out, &member.address);
        out.extend_from_slice(b",\"state\":");
        json::string(&mut out, &member.state.to_string());
        out.extend_from_slice(b",\"ready\":");
        json::boolean(&mut out, member.ready);
        out.extend_from_slice(b",\"epoch\":");
        json::unsigned(&mut out, member.epoch);
        out.extend_from_slice(b",\"self\":");
        json::boolean(&mut out, member.is_self);
        let peers = app.exec().peers();
        if let Some(trouble) = peers.and_then(|peers| peers.trouble(&member.address)) {
            out.extend_from_slice(b",\"trouble\":");
            json::string(&mut out, &trouble);
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"],\"digests\":[");
    for (at, origin) in node.digests().iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.push(b'[');
        json::string(&mut out, &origin.address);
        out.extend_from_slice(format!(",\"{:016x}\"]", origin.root).as_bytes());
    }
    out.extend_from_slice(b"]");
    let members = [
        ("connections", "rollcall_connections"),
        ("services", "rollcall_services"),
        ("instances", "rollcall_instances"),
    ];
    metrics::write_members(&mut out, &metrics, &members);
    out.push(b'}');
    Ok(Reply::json(out))
}

/// `/rollcall/rows`: the rows of a service with all their publishers.
///
/// # Errors
/// 400 when no service is named.
pub fn rows(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let rows = app.exec().node().rows(checked.require_service()?);
    let mut out = vec![b'['];
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"ip\":");
        json::string(&mut out, &row.row.ip);
        out.extend_from_slice(b",\"port\":");
        json::unsigned(&mut out, u64::from(row.row.port));
        out.extend_from_slice(b",\"cluster\":");
        json::string(&mut out, &row.row.cluster);
        out.extend_from_slice(b",\"publishers\":[");
        for (at, publisher) in row.publishers.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"kind\":");
            json::string(&mut out, publisher.kind);
            out.extend_from_slice(b",\"member\":");
            json::string(&mut out, &publisher.member);
            out.extend_from_slice(b",\"orphan\":");
            json::boolean(&mut out, publisher.is_orphan);
            out.extend_from_slice(b",\"stamp\":");
            json::unsigned(&mut out, publisher.stamp);
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"healthy\":");
        json::boolean(&mut out, row.instance.healthy);
        out.extend_from_slice(b",\"enabled\":");
        json::boolean(&mut out, row.instance.enabled);
        out.extend_from_slice(b",\"weight\":");
        json::double(&mut out, row.instance.weight);
        out.extend_from_slice(b",\"metadata\":");
        service_info::metadata(&mut out, &row.instance.metadata);
        out.push(b'}');
    }
    out.push(b']');
    Ok(Reply::json(out))
}

/// `/rollcall/owner`: the member that accepts HTTP writes of a service now.
///
/// # Errors
/// 400 when no service is named.
pub fn owner(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let checked = app.check(params)?;
    let mut out = b"{\"owner\":".to_vec();
    match app.exec().node().owner(checked.require_service()?) {
        Some(owner) => json::string(&mut out, &owner),
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    Ok(Reply::json(out))
}

/// `/rollcall/digests`: what each origin's rows amount to here; with `origin`, that origin's buckets of services; with
/// `bucket` as well, the services of it. Members compare themselves by this.
///
/// # Errors
/// 400 for an origin or a bucket that is none.
pub fn digests(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let node = app.exec().node();
    let Some(origin) = params.get("origin") else {
        let all = node.digests().into_iter();
        let origins = all.map(|origin| Origin {
            id: Hex(origin.id.0),
            member: origin.address.into(),
            digest: Hex(origin.root),
        });
        return Ok(Reply::bare(&Digests {
            ready: node.is_ready(),
            origins: origins.collect(),
        }));
    };
    let origin = Hex::read(origin).ok_or_else(|| HttpFailure::invalid("origin is no hexadecimal number"))?;
    let origin = MemberId(origin.0);
    let buckets = node.bucket_digests(origin);
    let Some(bucket) = params.integer("bucket")? else {
        return Ok(Reply::bare(&buckets.into_iter().map(Hex).collect::<Vec<_>>()));
    };
    let bucket = usize::try_from(bucket).ok().filter(|at| *at < buckets.len());
    let bucket = bucket.ok_or_else(|| HttpFailure::invalid("bucket is not below 256"))?;
    let subjects = node.bucket_subjects(origin, bucket).into_iter();
    let subjects: BTreeMap<_, _> = subjects.map(|(subject, sum)| (subject, Hex(sum))).collect();
    Ok(Reply::bare(&subjects))
}

/// `/rollcall/repairs`: what differed from other members and was mended, and when; the newest last.
///
/// # Errors
/// None.
pub fn repairs(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    let repairs = app.exec().node().repairs().into_iter();
    let repairs = repairs.map(|(member, repair)| {
        json!({
            "at": repair.at.0,
            "member": member.as_str(),
            "subject": repair.subject,
            "taken": repair.n_taken,
            "removed": repair.n_removed,
        })
    });
    Ok(Reply::bare(&repairs.collect::<Vec<_>>()))
}

/// `/rollcall/agreement`: whether all members hold the same, asked of each on its main port; within a few seconds, also
/// when some are silent.
///
/// # Errors
/// 503 while another such question is being answered.
pub async fn agreement(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    let _permit = app.may_compare()?;
    let members = app.exec().node().members(app.exec().now()).into_iter();
    let members: Vec<String> = members.map(|member| member.address.into()).collect();
    let found = agreement::compare(&members, agreement::PATIENCE).await;
    Ok(Reply::bare(&found))
}
