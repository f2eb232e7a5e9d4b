//! The one table that turns a refusal into what a client sees: HTTP status and text, gRPC codes and message.

use std::fmt;

use http::StatusCode;
use rollcall_core::Violation;
use rollcall_core::limits::InstanceFault;
use rollcall_node::MemberState;
use rollcall_node::error::NodeError;

use crate::http::api::Lack;

/// How a failure looks over HTTP. Of the generations of the API only the later ones show the code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpFailure {
    /// Status.
    pub status: StatusCode,
    /// Text, with the line break where the protocol has one.
    pub text: String,
    /// Form of the body.
    pub form: HttpForm,
    /// What the result of v2 and v3 says.
    pub code: Code,
}

/// A code of a result of v2 and v3, with the text that always stands beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// The number.
    pub number: u32,
    /// The text.
    pub message: &'static str,
}

/// The codes that are answered.
impl Code {
    /// A parameter is missing.
    pub const MISSING: Code = Code::new(10000, "parameter missing");
    /// A parameter is not as it must be.
    pub const INVALID: Code = Code::new(20002, "parameter validate error");
    /// What is asked for does not exist.
    pub const NOT_FOUND: Code = Code::new(20004, "resource not found");
    /// The weight is out of its range.
    pub const WEIGHT: Code = Code::new(21001, "weight error");
    /// The metadata cannot be read.
    pub const METADATA: Code = Code::new(21002, "instance metadata error");
    /// The instance of a beat is not known.
    pub const NO_INSTANCE: Code = Code::new(21003, "instance not found");
    /// The instance is not as it must be.
    pub const INSTANCE: Code = Code::new(21004, "instance error");
    /// The service does not exist.
    pub const SELECTOR: Code = Code::new(21006, "selector error");
    /// A service that shall be made is there.
    pub const SERVICE_EXISTS: Code = Code::new(21007, "service already exist");
    /// A service that shall be removed is not empty.
    pub const SERVICE_NOT_EMPTY: Code = Code::new(21009, "service delete failure");
    /// There is no such service.
    pub const NO_SERVICE: Code = Code::new(21008, "service not exist");
    /// The namespace is not as it must be, or is there already.
    pub const NAMESPACE: Code = Code::new(22000, "illegal namespace");
    /// The namespace is there already.
    pub const NAMESPACE_EXISTS: Code = Code::new(22002, "namespace already exist");
    /// The namespace does not exist.
    pub const NO_NAMESPACE: Code = Code::new(22001, "namespace not exist");
    /// The state asked for does not exist.
    pub const STATE: Code = Code::new(23000, "illegal state");
    /// Anything else.
    pub const SERVER: Code = Code::new(30000, "server error");

    const fn new(number: u32, message: &'static str) -> Self {
        Code { number, message }
    }
}

/// Form of an HTTP failure's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HttpForm {
    /// Plain text; a result in v2 and v3, with the text as data.
    Text,
    /// Plain text; a result in v2 and v3, with the text as message and no data.
    Message,
    /// Text without a content type; a result in v2 and v3, with the text as data.
    State,
    /// Text without a content type in every generation, as filters in front of the handlers answer.
    Bare,
    /// A JSON object with time, status, message and path.
    Page,
}

/// How a failure looks over gRPC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcFailure {
    /// True: in the response type of the request. False: as `ErrorResponse`.
    pub is_typed: bool,
    /// `resultCode`.
    pub result_code: i32,
    /// `errorCode`.
    pub error_code: i32,
    /// `message`.
    pub message: String,
}

impl HttpFailure {
    /// A failure in this form.
    pub fn new(form: HttpForm, status: StatusCode, text: impl Into<String>) -> Self {
        HttpFailure {
            status,
            text: text.into(),
            form,
            code: Code::SERVER,
        }
    }

    /// A failure in plain text.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self::new(HttpForm::Text, status, text)
    }

    /// A failure as a page.
    pub fn page(status: StatusCode, text: impl Into<String>) -> Self {
        Self::new(HttpForm::Page, status, text)
    }

    /// An argument that cannot be taken.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::text(StatusCode::BAD_REQUEST, text).with(Code::INVALID)
    }

    /// What an operator asks for does not exist.
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::text(StatusCode::NOT_FOUND, text)
    }

    /// The same with this code.
    pub fn with(self, code: Code) -> Self {
        HttpFailure { code, ..self }
    }

    /// A required parameter is absent or blank. `kind` is the name of its type.
    pub fn missing(lack: Lack, param: &str, kind: &str) -> Self {
        let text = match lack {
            Lack::Param => format!("Param '{param}' is required."),
            Lack::Parameter => format!("Parameter '{param}' is missing"),
            Lack::Form => format!("Required parameter '{param}' type {kind} is not present"),
            Lack::Argument => {
                format!(
                    "Required request parameter '{param}' for method parameter type {kind} is not present"
                )
            }
        };
        Self::text(StatusCode::BAD_REQUEST, text).with(Code::MISSING)
    }

    /// The node is in a state in which it refuses this. The missing blank is as recorded.
    fn not_serving(state: impl fmt::Display) -> Self {
        let text = format!("server is {state}now, please try again later!");
        Self::new(HttpForm::State, StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// A value that should be a number is none.
    pub fn no_number(value: &str) -> Self {
        Self::text(StatusCode::BAD_REQUEST, format!("For input string: \"{value}\""))
    }

    /// A value of a form of v2 and v3 is not of the type that it must have.
    pub fn unfit(param: &str, value: &str, kind: &str) -> Self {
        let text = format!("the value '{value}' of '{param}' is no {kind}");
        Self::new(HttpForm::Message, StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// Metadata that fit neither of their forms.
    pub fn no_metadata(text: &str) -> Self {
        let text = format!("metadata format incorrect:{text}");
        Self::text(StatusCode::BAD_REQUEST, text).with(Code::METADATA)
    }
}

impl GrpcFailure {
    /// An `ErrorResponse`.
    pub fn error(result_code: i32, error_code: i32, message: impl Into<String>) -> Self {
        GrpcFailure {
            is_typed: false,
            result_code,
            error_code,
            message: message.into(),
        }
    }

    /// The same in the response type of the request.
    pub fn typed(self) -> Self {
        GrpcFailure {
            is_typed: true,
            ..self
        }
    }

    /// A handler's refusal of an argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::error(400, 400, message)
    }

    /// The connection is not set up.
    pub fn unregistered() -> Self {
        Self::from(&NodeError::UnknownConnection)
    }

    /// The type of the request has no handler.
    pub fn no_handler() -> Self {
        Self::error(500, 302, "RequestHandler Not Found")
    }

    /// The type of the request is for members only.
    pub fn forbidden(type_name: &str) -> Self {
        Self::error(500, 502, format!(" invoke {type_name} from sdk is forbidden"))
    }

    /// The body cannot be read.
    pub fn undecodable() -> Self {
        Self::error(500, 502, "errCode: 101, errMsg: Nacos deserialize failed.  ")
    }

    /// The body is the JSON value `null`.
    pub fn null_body() -> Self {
        Self::error(500, 502, "Invalid request")
    }
}

impl From<&NodeError> for HttpFailure {
    fn from(error: &NodeError) -> Self {
        let text = error.to_string();
        match error {
            NodeError::Param(Violation::Blank { .. }) => Self::invalid(text),
            NodeError::Param(_) => Self::new(HttpForm::Bare, StatusCode::BAD_REQUEST, format!("{text}\r\n")),
            NodeError::Instance(InstanceFault::Weight) => {
                Self::text(StatusCode::BAD_REQUEST, text).with(Code::WEIGHT)
            }
            NodeError::Instance(_) | NodeError::ServiceNotFound { .. } => {
                Self::text(StatusCode::BAD_REQUEST, text).with(Code::INSTANCE)
            }
            NodeError::ServiceExists(_) => {
                Self::text(StatusCode::BAD_REQUEST, text).with(Code::SERVICE_EXISTS)
            }
            NodeError::NoService(_) => Self::text(StatusCode::BAD_REQUEST, text).with(Code::NO_SERVICE),
            NodeError::ServiceNotEmpty(_) => {
                Self::text(StatusCode::BAD_REQUEST, text).with(Code::SERVICE_NOT_EMPTY)
            }
            NodeError::Page(_) => Self::invalid(text),
            NodeError::ClusterEmpty { .. } | NodeError::InstanceNotFound => {
                Self::not_found(text).with(Code::NOT_FOUND)
            }
            NodeError::BadPattern(_) | NodeError::WrongKind { .. } => {
                Self::text(StatusCode::BAD_REQUEST, text)
            }
            NodeError::TooManyPatterns | NodeError::TooManyConnections => {
                Self::text(StatusCode::SERVICE_UNAVAILABLE, text)
            }
            NodeError::NotReady => Self::not_serving(MemberState::Starting),
            NodeError::Leaving => Self::not_serving(MemberState::Down),
            NodeError::Overridden(status) => Self::not_serving(status.name()),
            NodeError::Unlisted => Self::not_serving(MemberState::Isolated),
            NodeError::Overloaded => Self::not_serving("BUSY"),
            NodeError::OverLimit(_) | NodeError::Outdated { .. } => {
                Self::text(StatusCode::SERVICE_UNAVAILABLE, text)
            }
            NodeError::PersistentUnavailable => Self::text(StatusCode::NOT_IMPLEMENTED, text),
            NodeError::UnknownConnection | NodeError::NotNaming(_) => {
                Self::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

impl From<Violation> for HttpFailure {
    fn from(violation: Violation) -> Self {
        Self::from(&NodeError::Param(violation))
    }
}

impl From<&NodeError> for GrpcFailure {
    fn from(error: &NodeError) -> Self {
        let text = error.to_string();
        match error {
            NodeError::Param(Violation::Blank { .. }) => Self::error(500, 500, text),
            NodeError::Param(_) => GrpcFailure {
                is_typed: true,
                result_code: 500,
                error_code: 400,
                message: format!("Param check invalid:{text}"),
            },
            NodeError::Instance(_) => Self::error(400, 400, text),
            NodeError::UnknownConnection => Self::error(500, 301, text),
            NodeError::NotNaming(_) => Self::error(-401, -401, text),
            NodeError::ServiceNotFound { .. }
            | NodeError::ServiceExists(_)
            | NodeError::NoService(_)
            | NodeError::ServiceNotEmpty(_) => Self::error(400, 400, text),
            NodeError::ClusterEmpty { .. } | NodeError::InstanceNotFound => Self::error(404, 404, text),
            NodeError::BadPattern(_) | NodeError::WrongKind { .. } => Self::error(400, 400, text),
            NodeError::TooManyPatterns => Self::error(500, 50310, text).typed(),
            NodeError::TooManyConnections => Self::error(500, 503, text),
            NodeError::NotReady => Self::error(500, 300, "Server is starting,please try later."),
            NodeError::Leaving => Self::error(500, 300, "Server is down,please try later."),
            NodeError::Overridden(status) => {
                let text = format!(
                    "Server is {},please try later.",
                    status.name().to_ascii_lowercase()
                );
                Self::error(500, 300, text)
            }
            NodeError::Unlisted => Self::error(500, 300, "Server is isolated,please try another one."),
            NodeError::Overloaded => Self::error(500, 300, "Server is busy,please try another one."),
            NodeError::OverLimit(_) | NodeError::Outdated { .. } => Self::error(503, 503, text),
            NodeError::PersistentUnavailable | NodeError::Page(_) => Self::error(500, 500, text),
        }
    }
}

impl From<NodeError> for GrpcFailure {
    fn from(error: NodeError) -> Self {
        Self::from(&error)
    }
}

impl From<NodeError> for HttpFailure {
    fn from(error: NodeError) -> Self {
        Self::from(&error)
    }
}

impl From<Violation> for GrpcFailure {
    fn from(violation: Violation) -> Self {
        Self::from(&NodeError::Param(violation))
    }
}

/// The innermost cause of an error whose outer ones only say that something failed.
pub fn root_cause(error: &dyn std::error::Error) -> &dyn std::error::Error {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_rule_is_typed_over_grpc_and_bare_text_over_http() {
        let error = NodeError::Param(Violation::Port);
        let grpc = GrpcFailure::from(&error);
        assert_eq!(
            (grpc.is_typed, grpc.result_code, grpc.error_code),
            (true, 500, 400)
        );
        assert!(
            grpc.message
                .starts_with("Param check invalid:Param 'port' is illegal")
        );
        let http = HttpFailure::from(&error);
        assert_eq!((http.status.as_u16(), http.form), (400, HttpForm::Bare));
        assert!(http.text.ends_with("65535.\r\n"));
    }

    #[test]
    fn a_node_that_is_not_ready_tells_clients_to_come_back() {
        let grpc = GrpcFailure::from(&NodeError::NotReady);
        assert_eq!((grpc.is_typed, grpc.error_code), (false, 300));
        let http = HttpFailure::from(&NodeError::NotReady);
        assert_eq!(http.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(http.text, "server is STARTINGnow, please try again later!");
    }

    #[test]
    fn a_node_that_leaves_does_not_say_that_it_starts() {
        let grpc = GrpcFailure::from(&NodeError::Leaving);
        assert_eq!(grpc.error_code, 300);
        assert_eq!(grpc.message, "Server is down,please try later.");
        let http = HttpFailure::from(&NodeError::Leaving);
        assert_eq!(http.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(http.text, "server is DOWNnow, please try again later!");
    }

    #[test]
    fn an_unknown_connection_gets_the_code_on_which_clients_register_again() {
        assert_eq!(
            GrpcFailure::from(&NodeError::UnknownConnection),
            GrpcFailure::unregistered()
        );
        assert_eq!(GrpcFailure::unregistered().error_code, 301);
    }

    #[test]
    fn a_missing_parameter_reads_as_the_kind_of_call_has_it() {
        for (lack, text) in [
            (Lack::Param, "Param 'ip' is required."),
            (Lack::Parameter, "Parameter 'ip' is missing"),
            (Lack::Form, "Required parameter 'ip' type String is not present"),
            (
                Lack::Argument,
                "Required request parameter 'ip' for method parameter type String is not present",
            ),
        ] {
            let failure = HttpFailure::missing(lack, "ip", "String");
            assert_eq!((failure.text.as_str(), failure.code), (text, Code::MISSING));
        }
    }

    #[test]
    fn later_generations_get_a_code_for_each_reason() {
        for (error, number) in [
            (NodeError::Instance(InstanceFault::Weight), 21001),
            (NodeError::Instance(InstanceFault::BeatTimes), 21004),
            (NodeError::InstanceNotFound, 20004),
            (NodeError::Page(-1), 20002),
            (NodeError::NotReady, 30000),
        ] {
            assert_eq!(HttpFailure::from(&error).code.number, number, "{error}");
        }
        let node = HttpFailure::from(&NodeError::NotReady);
        assert_eq!(node.form, HttpForm::State);
    }

    #[test]
    fn missing_rows_are_not_found() {
        assert_eq!(
            HttpFailure::from(&NodeError::InstanceNotFound).status,
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            HttpFailure::from(&NodeError::PersistentUnavailable).status,
            StatusCode::NOT_IMPLEMENTED
        );
    }
}
