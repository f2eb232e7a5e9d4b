//! `/rollcall/quarantine`: rows that nobody shall see, whatever their publishers do.

use rollcall_core::registry::records::{HiddenRows, Quarantine, RecordKey};
use rollcall_core::{Millis, ServiceKey};
use rollcall_node::Actions;
use serde::Serialize;

use crate::error::{Code, HttpFailure};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::namespace;
use crate::json;

/// Longest time that a quarantine may be given: a year.
const SECONDS_MAX: u64 = 365 * 24 * 3600;
/// Longest reason, in bytes.
const REASON_MAX: usize = 256;

/// GET: all rows that are hidden, with why.
///
/// # Errors
/// None.
pub fn list(app: &HttpApp, _params: &Params) -> Result<Reply, HttpFailure> {
    let found = app.exec().node().quarantines();
    let mut out = Vec::new();
    json::list(&mut out, &found, |out, (service, rows, why)| {
        let hidden = Hidden {
            namespace_id: service.namespace(),
            service_name: service.grouped_name(),
            ip: &rows.ip,
            port: rows.port,
            cluster_name: rows.cluster.as_deref(),
            until: why.until.map(|until| until.0),
            reason: &why.reason,
        };
        json::value(out, &hidden);
    });
    Ok(Reply::json(out))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hidden<'a> {
    namespace_id: &'a str,
    service_name: &'a str,
    ip: &'a str,
    port: u16,
    cluster_name: Option<&'a str>,
    /// Wall time in milliseconds; `null`: until it is lifted.
    until: Option<u64>,
    reason: &'a str,
}

/// POST: nobody sees the rows of a service with this `ip` and `port` (and `clusterName`, if one is
/// named) for `seconds`, or until it is lifted, whatever their publishers do. The service need not exist yet, its namespace
/// must.
///
/// # Errors
/// 400 for what is missing or refused, 404 for a namespace that does not exist.
pub fn set(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, rows) = hidden(app, params)?;
    let seconds = match params.get("seconds") {
        None => None,
        Some(text) => match text.parse::<u64>() {
            Ok(seconds) if (1..=SECONDS_MAX).contains(&seconds) => Some(seconds),
            _ => {
                let text =
                    format!("Param 'seconds' is illegal, it must be a number from 1 to {SECONDS_MAX}.");
                return Err(HttpFailure::invalid(text));
            }
        },
    };
    let reason = params.get("reason").unwrap_or_default();
    if reason.len() > REASON_MAX {
        let text = format!("Param 'reason' is illegal, it must not be longer than {REASON_MAX} bytes.");
        return Err(HttpFailure::invalid(text));
    }
    namespace::check_exists(app, service.namespace())?;
    let exec = app.exec();
    let now = exec.now();
    let why = Quarantine {
        until: seconds.map(|seconds| now.wall + Millis::secs(seconds)),
        reason: reason.into(),
    };
    let mut actions = Actions::default();
    let result = exec.node().quarantine(&service, rows, why, now, &mut actions);
    exec.run(actions);
    result?;
    Ok(Reply::done(params.api()))
}

/// DELETE: lifts what the same parameters set.
///
/// # Errors
/// 400 for what is missing or refused, 404 when these rows are not hidden.
pub fn lift(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let (service, rows) = hidden(app, params)?;
    let exec = app.exec();
    let (ip, port, name) = (rows.ip.clone(), rows.port, service.grouped_name().to_owned());
    let key = RecordKey::Quarantine(service, rows);
    if exec.node().registry().record(&key).is_none() {
        let text = format!("{ip}:{port} of service {name} is not in quarantine");
        return Err(HttpFailure::not_found(text).with(Code::NOT_FOUND));
    }
    let mut actions = Actions::default();
    let result = exec.node().set_record(&key, None, exec.now(), &mut actions);
    exec.run(actions);
    result?;
    Ok(Reply::done(params.api()))
}

fn hidden(app: &HttpApp, params: &Params) -> Result<(ServiceKey, HiddenRows), HttpFailure> {
    let checked = app.check(params)?;
    let rows = HiddenRows {
        ip: params.required("ip")?.into(),
        port: checked.require_port()?,
        cluster: params.get("clusterName").map(Into::into),
    };
    Ok((checked.require_service()?.clone(), rows))
}
