//! One file per type of request. Each reads its body, asks the node and writes the answer.

pub mod batch_instance;
pub mod fuzzy_watch;
pub mod health_check;
pub mod instance;
pub mod persistent_instance;
pub mod server_check;
pub mod service_list;
pub mod service_query;
pub mod setup;
pub mod subscribe;
pub mod wire_instance;

use std::borrow::Cow;

use bytes::Bytes;
use rollcall_core::model::service_key::{DEFAULT_NAMESPACE, GROUP_SEPARATOR};
use rollcall_core::{ServiceKey, Violation, limits};
use rollcall_node::action::Actions;

use crate::error::GrpcFailure;
use crate::executor::Executor;
use crate::grpc::lenient::Text;
use crate::transport::Established;

/// What every handler works with.
pub struct Context<'a> {
    /// The node and its effects.
    pub exec: &'a Executor,
    /// The connection that asks.
    pub connection: Established,
    /// Largest sum of metadata lengths.
    pub metadata_limit: usize,
}

/// The body of an answer, or what the client is told instead.
pub type Answer = Result<Bytes, GrpcFailure>;

impl Context<'_> {
    /// Calls the node and carries out what it asks for.
    pub fn with_node<T>(
        &self,
        call: impl FnOnce(&rollcall_node::Node, rollcall_core::Now, &mut Actions) -> T,
    ) -> T {
        let mut actions = Actions::default();
        let result = call(self.exec.node(), self.exec.now(), &mut actions);
        self.exec.run(actions);
        result
    }
}

/// Namespace, name and group of a request, as sent.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// `namespace`; blank stands for the default one.
    pub namespace: &'a Text<'a>,
    /// `serviceName`.
    pub service: &'a Text<'a>,
    /// `groupName`.
    pub group: &'a Text<'a>,
}

impl<'a> Names<'a> {
    /// The plain name: a client may send the grouped form, as long as its group is the one it names.
    pub fn plain_name(&self) -> &'a str {
        let name = self.service.as_str();
        let group = self.group.as_str();
        if group.is_empty() {
            return name;
        }
        name.strip_prefix(group)
            .and_then(|rest| rest.strip_prefix(GROUP_SEPARATOR))
            .filter(|plain| !plain.is_empty())
            .unwrap_or(name)
    }

    /// Checks the form of all three, blank ones pass.
    pub fn check(&self) -> Result<(), Violation> {
        limits::check_namespace(self.namespace.as_str())?;
        limits::check_service_name(self.plain_name())?;
        limits::check_group(self.group.as_str())
    }

    /// The service, when nothing that identifies it is blank.
    pub fn service(&self) -> Option<ServiceKey> {
        let (group, name) = (self.group.as_str(), self.plain_name());
        let is_named = !group.trim().is_empty() && !name.trim().is_empty();
        is_named.then(|| ServiceKey::new(self.namespace.as_str(), group, name))
    }

    /// The service; a blank name or group is refused.
    pub fn require_service(&self) -> Result<ServiceKey, Violation> {
        self.service().ok_or(if self.plain_name().trim().is_empty() {
            Violation::Blank { param: "serviceName" }
        } else {
            Violation::Blank { param: "groupName" }
        })
    }
}

/// The namespace of a request, the default one when blank.
fn namespace_or_default<'a>(namespace: &'a Text<'_>) -> &'a str {
    let namespace = namespace.as_str();
    if namespace.trim().is_empty() {
        DEFAULT_NAMESPACE
    } else {
        namespace
    }
}

/// A text as it was sent, or nothing.
fn sent<'a>(text: &'a Text<'_>) -> Option<&'a str> {
    text.0.as_ref().map(Cow::as_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text<'_> {
        Text(Some(Cow::Borrowed(text)))
    }

    #[test]
    fn the_grouped_form_is_taken_when_its_group_is_the_named_one() {
        let (namespace, group) = (Text(None), text("G1"));
        let grouped = text("G1@@svc");
        let names = Names {
            namespace: &namespace,
            service: &grouped,
            group: &group,
        };
        assert_eq!(names.check(), Ok(()));
        assert_eq!(
            names.require_service(),
            Ok(ServiceKey::new("public", "G1", "svc"))
        );

        let other = text("G2@@svc");
        assert!(
            Names {
                service: &other,
                ..names
            }
            .check()
            .is_err()
        );
    }

    #[test]
    fn a_blank_name_or_group_is_refused_by_name() {
        let (namespace, group, blank) = (text(""), text("G1"), Text(None));
        let names = Names {
            namespace: &namespace,
            service: &blank,
            group: &group,
        };
        assert_eq!(
            names.require_service(),
            Err(Violation::Blank { param: "serviceName" })
        );
        let service = text("svc");
        let names = Names {
            namespace: &namespace,
            service: &service,
            group: &blank,
        };
        assert_eq!(
            names.require_service(),
            Err(Violation::Blank { param: "groupName" })
        );
        assert_eq!(names.service(), None);
    }
}
