//! The one table that turns a refusal into what a client sees: HTTP status and text, gRPC codes and message.

use http::StatusCode;
use rollcall_core::Violation;
use rollcall_node::MemberState;
use rollcall_node::error::NodeError;

/// How a failure looks over HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpFailure {
    /// Status.
    pub status: StatusCode,
    /// Text, with the line break where the protocol has one.
    pub text: String,
    /// Form of the body.
    pub form: HttpForm,
}

/// Form of an HTTP failure's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HttpForm {
    /// Plain text.
    Text,
    /// Text without a content type, as filters in front of the handlers answer.
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
    /// A failure in plain text.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        HttpFailure {
            status,
            text: text.into(),
            form: HttpForm::Text,
        }
    }

    /// A failure as a page.
    pub fn page(status: StatusCode, text: impl Into<String>) -> Self {
        HttpFailure {
            status,
            text: text.into(),
            form: HttpForm::Page,
        }
    }

    /// A required parameter is absent or blank.
    pub fn missing(param: &str) -> Self {
        Self::text(StatusCode::BAD_REQUEST, format!("Param '{param}' is required."))
    }

    /// The node is in a state in which it refuses this. The missing blank is as recorded.
    fn not_serving(state: MemberState) -> Self {
        HttpFailure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            text: format!("server is {state}now, please try again later!"),
            form: HttpForm::Bare,
        }
    }

    /// A value that should be a number is none.
    pub fn no_number(value: &str) -> Self {
        Self::text(StatusCode::BAD_REQUEST, format!("For input string: \"{value}\""))
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
            NodeError::Param(Violation::Blank { .. }) => Self::text(StatusCode::BAD_REQUEST, text),
            NodeError::Param(_) => {
                let text = format!("{text}\r\n");
                HttpFailure {
                    status: StatusCode::BAD_REQUEST,
                    text,
                    form: HttpForm::Bare,
                }
            }
            NodeError::Instance(_)
            | NodeError::ServiceNotFound { .. }
            | NodeError::ServiceExists(_)
            | NodeError::NoService(_)
            | NodeError::ServiceNotEmpty(_)
            | NodeError::Page(_) => Self::text(StatusCode::BAD_REQUEST, text),
            NodeError::ClusterEmpty { .. } | NodeError::InstanceNotFound => {
                Self::text(StatusCode::NOT_FOUND, text)
            }
            NodeError::BadPattern(_) => Self::text(StatusCode::BAD_REQUEST, text),
            NodeError::TooManyPatterns | NodeError::TooManyConnections => {
                Self::text(StatusCode::SERVICE_UNAVAILABLE, text)
            }
            NodeError::NotReady => Self::not_serving(MemberState::Starting),
            NodeError::Leaving => Self::not_serving(MemberState::Down),
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
            NodeError::BadPattern(_) => Self::error(400, 400, text),
            NodeError::TooManyPatterns => Self::error(500, 50310, text).typed(),
            NodeError::TooManyConnections => Self::error(500, 503, text),
            NodeError::NotReady => Self::error(500, 300, "Server is starting,please try later."),
            NodeError::Leaving => Self::error(500, 300, "Server is down,please try later."),
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
