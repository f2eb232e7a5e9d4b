//! The generations of the HTTP API: what differs between them beside paths and parameter names.

use http::Method;

/// A generation of the HTTP API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Api {
    /// `/v1`: bare answers, failures as text.
    #[default]
    V1,
    /// `/v2`: answers and failures in a result with a code.
    V2,
    /// `/v3`: as v2, sorted by who asks.
    V3,
}

/// How a request is refused that lacks a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lack {
    /// As most calls of v1 do.
    #[default]
    Param,
    /// As calls of v1 do whose parameters have a type.
    Parameter,
    /// As a form of v2 and v3.
    Form,
    /// As the arguments of calls of v2 that read.
    Argument,
}

impl Api {
    /// The generation that a path below the context path belongs to, also when there is no such path.
    pub fn of(path: &str) -> Self {
        if path.starts_with("/v2/") {
            Api::V2
        } else if path.starts_with("/v3/") {
            Api::V3
        } else {
            Api::V1
        }
    }

    /// Version that clients and tools of the generation are told: the one whose behaviour is kept.
    pub fn version(self) -> &'static str {
        match self {
            Api::V1 | Api::V2 => "2.5.1",
            Api::V3 => "3.0.3",
        }
    }

    /// How most calls with this method refuse a request that lacks a parameter.
    pub fn lack(self, method: &Method) -> Lack {
        match self {
            Api::V1 => Lack::Param,
            Api::V2 if [Method::GET, Method::HEAD, Method::PATCH].contains(method) => Lack::Argument,
            Api::V2 | Api::V3 => Lack::Form,
        }
    }

    /// The id by which the default namespace is listed.
    pub fn default_namespace(self) -> &'static str {
        match self {
            Api::V1 | Api::V2 => "",
            Api::V3 => "public",
        }
    }
}
