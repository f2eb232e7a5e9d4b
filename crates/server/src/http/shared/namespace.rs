//! Namespaces: the default one, those that operators made, and those that hold a service.

use std::io;

use http::StatusCode;
use rollcall_core::limits;
use rollcall_core::registry::records::{NamespaceSettings, Record, RecordKey};
use rollcall_node::NamespaceStatus;
use rollcall_node::action::Actions;
use rollcall_node::settings::DEFAULT_NAMESPACE;
use serde::Serialize;
use smol_str::SmolStr;

use crate::error::{Code, HttpFailure};
use crate::http::api::{Api, Lack};
use crate::http::app::HttpApp;
use crate::http::params::Params;
use crate::http::reply::Reply;

/// A namespace as consoles see it.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    namespace: String,
    namespace_show_name: String,
    namespace_desc: Option<String>,
    quota: u32,
    config_count: u32,
    r#type: u8,
}

impl Namespace {
    fn of(status: &NamespaceStatus, api: Api) -> Self {
        let is_default = status.id == DEFAULT_NAMESPACE;
        let (id, desc) = if is_default {
            (api.default_namespace(), "Default Namespace")
        } else {
            let desc = status.settings.as_ref().map(|said| said.description.as_str());
            (status.id.as_str(), desc.unwrap_or_default())
        };
        let name = status.settings.as_ref().filter(|_| !is_default);
        Namespace {
            namespace: id.to_owned(),
            namespace_show_name: name.map_or(status.id.as_str(), |said| &said.name).to_owned(),
            namespace_desc: (!desc.is_empty()).then(|| desc.to_owned()),
            quota: 200,
            config_count: 0,
            r#type: match api {
                _ if is_default => 0,
                Api::V1 | Api::V2 => 2,
                Api::V3 => 1,
            },
        }
    }
}

/// All namespaces, the default one first.
pub fn all(app: &HttpApp, api: Api) -> Vec<Namespace> {
    let all = app.exec().node().namespaces();
    all.iter().map(|status| Namespace::of(status, api)).collect()
}

/// The namespace that is listed with this id.
pub fn find(app: &HttpApp, api: Api, id: &str) -> Option<Namespace> {
    all(app, api)
        .into_iter()
        .find(|namespace| namespace.namespace == id)
}

/// True when an id is taken.
pub fn exists(app: &HttpApp, id: &str) -> bool {
    app.exec()
        .node()
        .namespaces()
        .iter()
        .any(|status| status.id == id)
}

/// The text that refuses an unknown namespace.
pub fn unknown(id: &str) -> String {
    format!("namespaceId [ {id} ] not exist")
}

/// Refuses what is said of a namespace that is neither made nor holds a service.
///
/// # Errors
/// 404.
pub fn check_exists(app: &HttpApp, id: &str) -> Result<(), HttpFailure> {
    if exists(app, id) { Ok(()) } else { Err(no_such(id)) }
}

fn no_such(id: &str) -> HttpFailure {
    HttpFailure::not_found(unknown(id)).with(Code::NO_NAMESPACE)
}

/// Makes or changes a namespace; the default one stays as it is.
///
/// # Errors
/// When the node takes no writes.
pub fn set(app: &HttpApp, id: &str, name: &str, description: &str) -> Result<(), HttpFailure> {
    let (name, description) = (SmolStr::new(name), SmolStr::new(description));
    let settings = NamespaceSettings { name, description };
    record(app, id, Some(Record::Namespace(settings.into())))
}

/// Removes what operators said of a namespace; its services stay.
///
/// # Errors
/// When the node takes no writes.
pub fn unset(app: &HttpApp, id: &str) -> Result<(), HttpFailure> {
    record(app, id, None)
}

fn record(app: &HttpApp, id: &str, record: Option<Record>) -> Result<(), HttpFailure> {
    let exec = app.exec();
    let key = RecordKey::Namespace(id.into());
    // A removal is remembered for long, so one of what is not there must leave no trace.
    if id == DEFAULT_NAMESPACE || (record.is_none() && exec.node().registry().record(&key).is_none()) {
        return Ok(());
    }
    let mut actions = Actions::default();
    exec.node().set_record(&key, record, exec.now(), &mut actions)?;
    exec.run(actions);
    Ok(())
}

/// The id asked for, or a new one when it is blank.
///
/// # Errors
/// 500 when the system has no random bytes.
pub fn id_or_new(id: Option<&str>) -> Result<SmolStr, HttpFailure> {
    match id {
        Some(id) => Ok(id.into()),
        None => new_id().map_err(|error| {
            HttpFailure::text(StatusCode::INTERNAL_SERVER_ERROR, format!("caused: {error};"))
        }),
    }
}

/// A random UUID.
fn new_id() -> io::Result<SmolStr> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    let mut id = String::with_capacity(36);
    for (at, digit) in hex.chars().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            id.push('-');
        }
        id.push(digit);
    }
    Ok(id.into())
}

/// GET list.
///
/// # Errors
/// None.
pub fn list(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    Ok(Reply::value(params.api(), &all(app, params.api())))
}

/// GET: the one with the id `namespaceId`.
///
/// # Errors
/// 400 when none is given, 404 for an unknown one.
pub fn get(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let id = params.get("namespaceId").unwrap_or_default();
    if !params.has("namespaceId") {
        return Err(HttpFailure::missing(params.lack(), "namespaceId", "String"));
    }
    match find(app, params.api(), id) {
        Some(namespace) => Ok(Reply::value(params.api(), &namespace)),
        None => Err(no_such(id)),
    }
}

fn form_lacks(name: &str) -> HttpFailure {
    let text = format!("required parameter '{name}' is missing");
    HttpFailure::text(StatusCode::BAD_REQUEST, text).with(Code::MISSING)
}

/// Checks id, name and description; v2 with the texts of the filters, v3 with its own.
fn check(api: Api, id: &str, name: &str, desc: &str) -> Result<(), HttpFailure> {
    let (id_check, name_check) = (limits::check_namespace(id), limits::check_namespace_name(name));
    if api == Api::V3 {
        let refuse = |text: String| Err(HttpFailure::invalid(text).with(Code::NAMESPACE));
        if id_check.is_err() {
            return refuse(format!("namespaceId [{id}] mismatch the pattern"));
        }
        if name_check.is_err() {
            return refuse(format!("namespaceName [{name}] contains illegal char"));
        }
    }
    id_check?;
    name_check?;
    Ok(limits::check_namespace_desc(desc)?)
}

/// POST: makes a namespace with the id `namespaceId`, a new one when that is blank.
///
/// # Errors
/// 400 for what is missing or refused, and for an id that is taken.
pub fn create(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    create_with(app, params, "namespaceId", true)
}

/// The same with the id in another parameter, which may have to be there.
///
/// # Errors
/// As [`create`].
pub fn create_with(
    app: &HttpApp,
    params: &Params,
    id_name: &str,
    is_required: bool,
) -> Result<Reply, HttpFailure> {
    let api = params.api();
    let given = |name: &str| params.get(name).unwrap_or_default();
    let (id, name, desc) = (given(id_name), given("namespaceName"), given("namespaceDesc"));
    check(api, id, name, desc)?;
    if is_required && !params.has(id_name) {
        return Err(form_lacks(id_name));
    }
    if name.is_empty() {
        return Err(form_lacks("namespaceName"));
    }
    let id = id_or_new(params.get(id_name))?;
    if exists(app, &id) {
        return Err(match api {
            Api::V1 | Api::V2 => {
                let text = format!("the namespaceId is existed, namespaceId: {id}");
                HttpFailure::invalid(text).with(Code::NAMESPACE)
            }
            Api::V3 => {
                let default = if id == DEFAULT_NAMESPACE {
                    "is default namespace id and "
                } else {
                    ""
                };
                let text = format!("namespaceId [{id}] {default}already exist.");
                HttpFailure::invalid(text).with(Code::NAMESPACE_EXISTS)
            }
        });
    }
    set(app, &id, name, desc)?;
    Ok(Reply::value(api, &true))
}

/// PUT: changes name and description; an unknown namespace is no failure.
///
/// # Errors
/// 400 for what is missing or refused.
pub fn update(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let given = |name: &str| params.get(name).unwrap_or_default();
    let (id, name, desc) = (
        given("namespaceId"),
        given("namespaceName"),
        given("namespaceDesc"),
    );
    check(params.api(), id, name, desc)?;
    if !params.has("namespaceId") {
        return Err(form_lacks("namespaceId"));
    }
    if name.is_empty() {
        return Err(form_lacks("namespaceName"));
    }
    if exists(app, id) {
        set(app, id, name, desc)?;
    }
    Ok(Reply::value(params.api(), &true))
}

/// DELETE: an unknown namespace is no failure.
///
/// # Errors
/// 400 when none is named.
pub fn remove(app: &HttpApp, params: &Params) -> Result<Reply, HttpFailure> {
    let lack = match params.api() {
        Api::V1 | Api::V2 => Lack::Argument,
        Api::V3 => params.lack(),
    };
    let id = params
        .get("namespaceId")
        .ok_or_else(|| HttpFailure::missing(lack, "namespaceId", "String"))?;
    unset(app, id)?;
    Ok(Reply::value(params.api(), &true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_id_is_a_random_uuid() {
        let id = new_id().unwrap();
        let dashes: Vec<_> = id.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((id.len(), dashes), (36, vec![8, 13, 18, 23]));
        assert_eq!(id.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&id.as_bytes()[19]));
        assert_ne!(new_id().unwrap(), id);
        assert!(limits::check_namespace(&id).is_ok());
    }

    #[test]
    fn a_namespace_shows_what_operators_said() {
        let said = NamespaceSettings {
            name: "dev one".into(),
            description: "".into(),
        };
        let status = |id: &str, settings| NamespaceStatus {
            id: id.into(),
            settings,
            n_services: 0,
        };
        let made = Namespace::of(&status("dev-1", Some(said.into())), Api::V2);
        assert_eq!(
            (
                made.namespace_show_name.as_str(),
                made.namespace_desc,
                made.r#type
            ),
            ("dev one", None, 2)
        );
        let default = Namespace::of(&status("public", None), Api::V2);
        assert_eq!((default.namespace.as_str(), default.r#type), ("", 0));
        assert_eq!(default.namespace_desc.as_deref(), Some("Default Namespace"));
    }
}
