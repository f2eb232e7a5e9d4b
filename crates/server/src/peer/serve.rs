//! The peer port: HTTP/2 for links and probes, HTTP/1.1 for forwards, nothing else.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http::HeaderMap;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};
use tower::ServiceExt;
use tracing::info;

use super::pb::Envelope;
use super::pb::distro_server::{Distro, DistroServer};
use super::{MESSAGE_LIMIT, PROBE_LIMIT, STREAM_DEPTH, Shared, forward, inbound, probe};
use crate::net::{self, Answering, App, Port};
use crate::sockets::Listener;
use crate::transport::Transport;

/// Serves the peer port until shutdown.
pub(super) async fn run(shared: Arc<Shared>, listener: impl Listener) {
    info!(address = ?listener.local_addr().ok(), "peer port is open");
    let clock = shared.executor.clock().clone();
    let stop = shared.shutdown.clone();
    let port = Port::new(PeerPort(router(&shared)), clock, stop);
    net::serve(listener, port, TaskTracker::new()).await;
}

fn router(shared: &Arc<Shared>) -> Router {
    let distro = |limit| DistroServer::new(Members(shared.clone())).max_decoding_message_size(limit);
    let receive = |State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body| {
        forward::receive(shared, headers, body)
    };
    Router::new()
        .route(forward::PATH, post(receive))
        .with_state(shared.clone())
        .route_service("/rollcall.distro.v1.Distro/Link", distro(MESSAGE_LIMIT))
        .route_service("/rollcall.distro.v1.Distro/Probe", distro(PROBE_LIMIT))
}

/// What is served on the peer port.
#[derive(Clone)]
struct PeerPort(Router);

impl App for PeerPort {
    fn call(&self, transport: &Arc<Transport>, mut request: http::Request<Incoming>) -> Answering {
        request.extensions_mut().insert(Remote(transport.remote()));
        let router = self.0.clone();
        Box::pin(async move {
            let answer = router.oneshot(request.map(Body::new)).await;
            answer.unwrap_or_else(|never| match never {})
        })
    }

    fn ended(&self, _: &Transport) {} // Each stream notices by itself.
}

/// The other end of the connection, as an extension of each request.
#[derive(Clone, Copy)]
struct Remote(SocketAddr);

fn remote<T>(request: &Request<T>) -> Option<SocketAddr> {
    request.extensions().get::<Remote>().map(|remote| remote.0)
}

/// The gRPC service of the peer port.
struct Members(Arc<Shared>);

#[tonic::async_trait]
impl Distro for Members {
    type LinkStream = ReceiverStream<Result<Envelope, Status>>;

    async fn link(
        &self,
        request: Request<Streaming<Envelope>>,
    ) -> Result<Response<Self::LinkStream>, Status> {
        let Some(place) = self.0.inbound.begin() else {
            self.0.metrics.handshakes_refused.one();
            return Err(Status::resource_exhausted("too many unfinished handshakes"));
        };
        let remote = remote(&request);
        let (answers, outgoing) = mpsc::channel(STREAM_DEPTH);
        // The stream is served beside this call: the dialer sees its head before the handshake is over.
        tokio::spawn(inbound::accept(
            self.0.clone(),
            remote,
            request.into_inner(),
            answers,
            place,
        ));
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn probe(&self, request: Request<Envelope>) -> Result<Response<Envelope>, Status> {
        let remote = remote(&request);
        probe::answer(&self.0, remote, request.get_ref()).map(Response::new)
    }
}
