//! Type names and bodies of envelopes.

use bytes::Bytes;
use rollcall_node::switches::Access;

use crate::error::GrpcFailure;
use crate::grpc::any::Any;
use crate::json;
use crate::pb::{Metadata, Payload};

/// What the type name of a unary request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Is this a server, and under which id does it know the connection?
    ServerCheck,
    /// Is the connection set up?
    HealthCheck,
    /// Registers or removes one instance.
    Instance,
    /// Registers a list of instances.
    BatchInstance,
    /// Registers or removes a persistent instance.
    PersistentInstance,
    /// Asks for a list.
    ServiceQuery,
    /// Asks for names.
    ServiceList,
    /// Starts or ends a subscription.
    Subscribe,
    /// Starts or ends a watch of services by a pattern.
    FuzzyWatch,
    /// For members only; refused whoever asks, since members have a port and a protocol of their own.
    Cluster,
    /// No handler: unknown, a response, a push, or of a module that is not served here.
    Unknown,
}

impl Call {
    /// What a type name means in a unary request.
    pub fn of(type_name: &str) -> Self {
        match type_name {
            "InstanceRequest" => Call::Instance,
            "ServiceQueryRequest" => Call::ServiceQuery,
            "SubscribeServiceRequest" => Call::Subscribe,
            "HealthCheckRequest" => Call::HealthCheck,
            "BatchInstanceRequest" => Call::BatchInstance,
            "ServiceListRequest" => Call::ServiceList,
            "ServerCheckRequest" => Call::ServerCheck,
            "NamingFuzzyWatchRequest" => Call::FuzzyWatch,
            "PersistentInstanceRequest" => Call::PersistentInstance,
            "ServerLoaderInfoRequest"
            | "ServerReloadRequest"
            | "DistroDataRequest"
            | "MemberReportRequest"
            | "ConfigChangeClusterSyncRequest" => Call::Cluster,
            _ => Call::Unknown,
        }
    }

    /// Type name in metrics: the same for all types that are not served.
    pub fn name(self) -> &'static str {
        match self {
            Call::ServerCheck => "ServerCheckRequest",
            Call::HealthCheck => "HealthCheckRequest",
            Call::Instance => "InstanceRequest",
            Call::BatchInstance => "BatchInstanceRequest",
            Call::PersistentInstance => "PersistentInstanceRequest",
            Call::ServiceQuery => "ServiceQueryRequest",
            Call::ServiceList => "ServiceListRequest",
            Call::Subscribe => "SubscribeServiceRequest",
            Call::FuzzyWatch => "NamingFuzzyWatchRequest",
            Call::Cluster | Call::Unknown => "Unknown",
        }
    }

    /// Module in metrics, as recorded.
    pub fn module(self) -> &'static str {
        match self {
            Call::HealthCheck => "internal",
            Call::ServerCheck | Call::Cluster | Call::Unknown => "unknown",
            _ => "naming",
        }
    }

    /// What the client wants of the node; `None` for a sign of life and for what is refused anyway.
    pub fn access(self) -> Option<Access> {
        match self {
            Call::ServerCheck => Some(Access::Connect),
            Call::ServiceQuery | Call::ServiceList | Call::Subscribe | Call::FuzzyWatch => Some(Access::Read),
            Call::Instance | Call::BatchInstance | Call::PersistentInstance => Some(Access::Write),
            Call::HealthCheck | Call::Cluster | Call::Unknown => None,
        }
    }

    /// Type name of the answer, also of a typed failure.
    pub fn answer_type(self) -> &'static str {
        match self {
            Call::ServerCheck => "ServerCheckResponse",
            Call::HealthCheck => "HealthCheckResponse",
            Call::Instance | Call::PersistentInstance => "InstanceResponse",
            Call::BatchInstance => "BatchInstanceResponse",
            Call::ServiceQuery => "QueryServiceResponse",
            Call::ServiceList => "ServiceListResponse",
            Call::FuzzyWatch => "NamingFuzzyWatchResponse",
            Call::Subscribe => "SubscribeServiceResponse",
            Call::Cluster | Call::Unknown => ERROR_TYPE,
        }
    }
}

const ERROR_TYPE: &str = "ErrorResponse";

/// Start of every answer that succeeded.
pub const OK_HEAD: &[u8] = b"{\"resultCode\":200,\"errorCode\":0";
/// End of every answer that succeeded.
pub const OK_TAIL: &[u8] = b",\"success\":true}";

/// An envelope without headers.
pub fn envelope(type_name: &str, client_ip: String, body: impl Into<Bytes>) -> Payload {
    Payload {
        metadata: Some(Metadata {
            r#type: type_name.to_owned(),
            client_ip,
            ..Metadata::default()
        }),
        body: Some(Any {
            type_url: String::new(),
            value: body.into(),
        }),
    }
}

/// The answer to `call` that says no.
pub fn failure(call: Call, failure: &GrpcFailure) -> Payload {
    let type_name = if failure.is_typed {
        call.answer_type()
    } else {
        ERROR_TYPE
    };
    let mut body = Vec::with_capacity(96 + failure.message.len());
    body.extend_from_slice(b"{\"resultCode\":");
    json::integer(&mut body, failure.result_code);
    body.extend_from_slice(b",\"errorCode\":");
    json::integer(&mut body, failure.error_code);
    body.extend_from_slice(b",\"message\":");
    json::string(&mut body, &failure.message);
    body.extend_from_slice(b",\"success\":false}");
    envelope(type_name, String::new(), body)
}

/// The type name in an envelope; empty when there is none.
pub fn type_name(payload: &Payload) -> &str {
    payload
        .metadata
        .as_ref()
        .map(|metadata| metadata.r#type.as_str())
        .unwrap_or_default()
}

/// The body in an envelope; empty when there is none.
pub fn body(payload: &Payload) -> &[u8] {
    payload.body.as_ref().map(|body| &*body.value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_types_and_unknown_ones_are_told_apart() {
        assert_eq!(Call::of("DistroDataRequest"), Call::Cluster);
        for unknown in [
            "",
            "ConfigQueryRequest",
            "HealthCheckResponse",
            "ConnectionSetupRequest",
            "PushAckRequest",
        ] {
            assert_eq!(Call::of(unknown), Call::Unknown, "{unknown}");
        }
    }

    #[test]
    fn a_typed_failure_has_the_type_of_the_answer() {
        let typed = GrpcFailure {
            is_typed: true,
            result_code: 500,
            error_code: 400,
            message: "m\"".into(),
        };
        let payload = failure(Call::ServiceQuery, &typed);
        assert_eq!(type_name(&payload), "QueryServiceResponse");
        assert_eq!(
            body(&payload),
            br#"{"resultCode":500,"errorCode":400,"message":"m\"","success":false}"#
        );
        let payload = failure(Call::ServiceQuery, &GrpcFailure::no_handler());
        assert_eq!(type_name(&payload), "ErrorResponse");
    }
}
