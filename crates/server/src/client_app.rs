//! What clients are served: gRPC and HTTP, on the port for both or on the port for gRPC only.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use rollcall_node::action::Actions;
use tower::Service;

use crate::executor::Executor;
use crate::grpc::bi_stream::BiStream;
use crate::grpc::unary::Unary;
use crate::http::app::HttpApp;
use crate::net::{Answering, App};
use crate::pb::bi_request_stream_server::BiRequestStreamServer;
use crate::pb::request_server::RequestServer;
use crate::transport::Transport;
use crate::unread::Lasting;

const UNARY_PATH: &str = "/Request/request";
const STREAM_PATH: &str = "/BiRequestStream/requestBiStream";

/// The services for clients. A clone costs a few reference counts.
#[derive(Clone)]
pub struct ClientApp {
    exec: Executor,
    unary: RequestServer<Unary>,
    streams: BiRequestStreamServer<BiStream>,
    http: HttpApp,
}

/// Limits of what clients may send and leave waiting.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Largest message or body, in bytes.
    pub message: usize,
    /// Messages waiting for one connection.
    pub queue_length: usize,
    /// Largest sum of metadata lengths.
    pub metadata: usize,
}

impl ClientApp {
    /// Both gRPC services, and `http` for everything else.
    pub fn new(exec: Executor, limits: ClientLimits, http: HttpApp) -> Self {
        let unary = Unary::new(exec.clone(), limits.metadata);
        let streams = BiStream::new(exec.clone(), limits.queue_length);
        ClientApp {
            exec,
            unary: RequestServer::new(unary)
                .max_decoding_message_size(limits.message)
                .max_encoding_message_size(usize::MAX),
            streams: BiRequestStreamServer::new(streams)
                .max_decoding_message_size(limits.message)
                .max_encoding_message_size(usize::MAX),
            http,
        }
    }
}

impl App for ClientApp {
    fn call(&self, transport: &Arc<Transport>, mut request: Request<Incoming>) -> Answering {
        match request.uri().path() {
            UNARY_PATH => {
                request.extensions_mut().insert(transport.clone());
                let answering = self.unary.clone().call(request);
                Box::pin(async move { grpc(answering.await) })
            }
            STREAM_PATH => {
                transport.stream_opens();
                request.extensions_mut().insert(transport.clone());
                let answering = self.streams.clone().call(request);
                Box::pin(async move {
                    let mut response = grpc(answering.await);
                    response.extensions_mut().insert(Lasting);
                    response
                })
            }
            _ => {
                request.extensions_mut().insert(transport.clone());
                let http = self.http.clone();
                Box::pin(async move { http.answer(request).await })
            }
        }
    }

    fn ended(&self, transport: &Transport) {
        if let Some(id) = transport.end() {
            self.exec.connections().remove(id);
            if self.exec.node().is_leaving() {
                return; // Its client was sent away and registers elsewhere; its instances stay until then.
            }
            let mut actions = Actions::default();
            self.exec
                .node()
                .close_connection(id, self.exec.now(), &mut actions);
            self.exec.run(actions);
        }
    }
}

fn grpc(result: Result<Response<tonic::body::Body>, std::convert::Infallible>) -> Response<Body> {
    match result {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}
