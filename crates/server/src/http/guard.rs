//! `/rollcall/emptyPushGuard`: for how long readers go on to see the last list of a service whose instances have all
//! fallen silent.

use rollcall_core::Millis;
use rollcall_core::registry::guard::{GUARD_MAX, Guarded};
use rollcall_node::Actions;
use serde::Serialize;

use crate::error::{Code, HttpFailure};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::http::shared::namespace;

/// Longest time that may be set, in seconds.
const SECONDS_MAX: u64 = GUARD_MAX.0 / 1_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Set<'a> {
    namespace_id: &'a str,
    /// `null`: for all services of the namespace that have none of their own.
    service_name: Option<&'a str>,
    seconds: u64,
}

impl<'a> Set<'a> {
    fn of(guarded: &'a Guarded, time: Millis) -> Self {
        let (namespace_id, service_name) = match guarded {
            Guarded::Namespace(namespace) => (namespace.as_str(), None),
            Guarded::Service(service) => (service.namespace(), Some(service.grouped_name())),
        };
        Set {
            namespace_id,
            service_name,
            seconds: time.0 / 1_000,
        }
    }
}

/// What holds for one service.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OfService<'a> {
    /// What is set that counts for it, if anything is.
    guard: Option<Set<'a>>,
    /// How long its last list is still shown, in milliseconds; `null` while it is not held.
    held_for: Option<u64>,
}

/// GET: all that is set; with `serviceName`, what counts for that service, and whether its list is held now.
///
/// # Errors
/// 400 for a name that is none.
pub fn get(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let exec = app.exec();
    let registry = exec.node().registry();
    if !params.has("serviceName") {
        let guards = registry.guards();
        let all: Vec<_> = guards
            .iter()
            .map(|(guarded, time)| Set::of(guarded, *time))
            .collect();
        return Ok(Reply::bare(&all));
    }
    let checked = app.check(params)?;
    let service = checked.require_service()?;
    let guard = registry.guard_of(service);
    let until = registry.held_until(service);
    Ok(Reply::bare(&OfService {
        guard: guard.as_ref().map(|(guarded, time)| Set::of(guarded, *time)),
        held_for: until.map(|until| until.since(exec.now().mono).0),
    }))
}

/// PUT: sets `seconds`, from 0 to 60, for a service, or without `serviceName` for a namespace. 0 for a service is for one
/// that shall not be guarded in a namespace that is. The service need not exist yet, its namespace must.
///
/// # Errors
/// 400 for what is missing or refused, 404 for a namespace that does not exist.
pub fn set(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let guarded = guarded(app, params)?;
    let seconds = params.required("seconds")?.parse::<u64>();
    let seconds = seconds.ok().filter(|seconds| *seconds <= SECONDS_MAX);
    let seconds = seconds.ok_or_else(|| {
        let text = format!("Param 'seconds' is illegal, it must be a number from 0 to {SECONDS_MAX}.");
        HttpFailure::invalid(text)
    })?;
    namespace::check_exists(app, params.namespace())?;
    change(app, params, &guarded, Some(Millis::secs(seconds)))
}

/// DELETE: ends what the same parameters set.
///
/// # Errors
/// 400 for what is missing or refused, 404 when nothing is set.
pub fn end(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let guarded = guarded(app, params)?;
    if app
        .exec()
        .node()
        .registry()
        .record(&guarded.record_key())
        .is_none()
    {
        let text = match &guarded {
            Guarded::Namespace(id) => format!("no guard is set for namespace {id}"),
            Guarded::Service(service) => {
                let (id, name) = (service.namespace(), service.grouped_name());
                format!("no guard of its own is set for service {name} of namespace {id}")
            }
        };
        return Err(HttpFailure::not_found(text).with(Code::NOT_FOUND));
    }
    change(app, params, &guarded, None)
}

fn change(
    app: &HttpApp,
    params: &Params,
    guarded: &Guarded,
    time: Option<Millis>,
) -> Result<Reply, HttpFailure> {
    let exec = app.exec();
    let mut actions = Actions::default();
    let result = exec.node().set_guard(guarded, time, exec.now(), &mut actions);
    exec.run(actions);
    result?;
    Ok(Reply::done(params.api()))
}

fn guarded(app: &HttpApp, params: &Params) -> Result<Guarded, HttpFailure> {
    let checked = app.check(params)?;
    match params.has("serviceName") {
        true => Ok(Guarded::Service(checked.require_service()?.clone())),
        false if params.has("groupName") => {
            // Half a name must not be taken for a whole namespace.
            Err(HttpFailure::invalid(
                "Param 'serviceName' is required beside 'groupName'.",
            ))
        }
        false => Ok(Guarded::Namespace(params.namespace().into())),
    }
}
