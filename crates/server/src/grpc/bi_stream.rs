//! The stream of a connection: set-up and acknowledgements come up, pushes go down.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use futures_util::Stream;
use rollcall_node::PushWay;
use rollcall_node::action::Actions;
use tokio::sync::mpsc;
use tonic::{Response, Status, Streaming};
use tracing::{debug, info};

use crate::connections::{Handle, Progress};
use crate::executor::Executor;
use crate::grpc::handler::setup;
use crate::grpc::lenient::{self, Int, Text, object};
use crate::grpc::outgoing::Outgoing;
use crate::grpc::payload;
use crate::load::Want;
use crate::pb::{Payload, bi_request_stream_server};
use crate::transport::{Established, Generation, Transport};

/// Serves streams.
#[derive(Clone)]
pub struct BiStream {
    exec: Executor,
    queue_length: usize,
}

/// The messages that go down one stream, written when the transport can take one.
pub struct Down {
    exec: Executor,
    transport: Arc<Transport>,
    queue: mpsc::Receiver<Outgoing>,
    progress: Progress,
}

/// What comes up one stream.
struct Up {
    exec: Executor,
    transport: Arc<Transport>,
    queue: mpsc::Sender<Outgoing>,
    progress: Progress,
}

object! {
    /// An acknowledgement. Judged by `resultCode`: some clients say `success: false` when all is well.
    Ack<'a> {
        /// Id of what it acknowledges.
        request_id ("requestId"): Text<'a> = Text(None),
        /// 200 for yes.
        result_code ("resultCode"): Int = Int(200),
    }
}

impl BiStream {
    /// A service over the node behind `exec`; at most `queue_length` messages wait for each connection.
    pub fn new(exec: Executor, queue_length: usize) -> Self {
        BiStream {
            exec,
            queue_length: queue_length.max(1),
        }
    }
}

#[tonic::async_trait]
impl bi_request_stream_server::BiRequestStream for BiStream {
    type requestBiStreamStream = Down;

    async fn request_bi_stream(
        &self,
        request: tonic::Request<Streaming<Payload>>,
    ) -> Result<Response<Down>, Status> {
        let Some(transport) = request.extensions().get::<Arc<Transport>>().cloned() else {
            return Err(Status::internal("the connection of the stream is not known"));
        };
        let (sender, receiver) = mpsc::channel(self.queue_length);
        let progress = Progress::default();
        let up = Up {
            exec: self.exec.clone(),
            transport: transport.clone(),
            queue: sender,
            progress: progress.clone(),
        };
        tokio::spawn(up.run(request.into_inner()));
        Ok(Response::new(Down {
            exec: self.exec.clone(),
            transport,
            queue: receiver,
            progress,
        }))
    }
}

impl Stream for Down {
    type Item = Result<Payload, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.exec.connections().passed_on(&this.progress);
        let message = ready!(this.queue.poll_recv(context));
        let (exec, now) = (&this.exec, this.exec.now());
        this.progress.note(now.mono);
        if let Some(Outgoing::Push(push)) = &message {
            exec.node().push_sent(PushWay::Grpc, push.changed, now);
        }
        let payload = message.and_then(|message| message.into_payload(&this.transport));
        if let Some(payload) = &payload {
            exec.taken(&this.progress, payload::body(payload).len(), now);
        }
        Poll::Ready(payload.map(Ok))
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        self.exec.connections().passed_on(&self.progress);
    }
}

impl Up {
    async fn run(self, mut messages: Streaming<Payload>) {
        loop {
            match messages.message().await {
                Ok(Some(message)) => self.take(&message),
                Ok(None) => break,
                Err(status) => {
                    debug!(connection = %self.transport.text_id(), %status, "stream broke off");
                    break;
                }
            }
        }
        self.transport.stream_without_setup();
        // The client has closed its half: this half ends too, the connection lives on until its transport ends.
        let _ = self.queue.send(Outgoing::End).await;
    }

    fn take(&self, message: &Payload) {
        let type_name = payload::type_name(message);
        match type_name {
            "ConnectionSetupRequest" => self.set_up(message),
            "NotifySubscriberResponse"
            | "ClientDetectionResponse"
            | "ConnectResetResponse"
            | "NamingFuzzyWatchSyncResponse"
            | "NamingFuzzyWatchChangeNotifyResponse"
            | "ErrorResponse"
            | "SetupAckResponse" => self.acknowledged(type_name, payload::body(message)),
            _ => {
                debug!(connection = %self.transport.text_id(), type_name, "message on the stream is not known")
            }
        }
        // Whatever the first message was: calls that wait for the set-up need not wait longer.
        self.transport.stream_without_setup();
    }

    fn set_up(&self, message: &Payload) {
        let client_ip = message
            .metadata
            .as_ref()
            .map(|metadata| metadata.client_ip.as_str())
            .unwrap_or_default();
        let Ok(setup) = setup::read(&self.transport, client_ip, payload::body(message)) else {
            debug!(connection = %self.transport.text_id(), "set-up request is not readable");
            return;
        };
        match self.transport.established() {
            Some(established) => self.attach_again(established),
            None => {
                if !self.establish(setup.info) {
                    return;
                }
            }
        }
        if setup.wants_ack {
            let _ = self.queue.try_send(Outgoing::SetupAck);
        }
    }

    /// Makes the transport a connection. False: refused, the stream ends.
    fn establish(&self, info: rollcall_node::request::ConnectionInfo) -> bool {
        let generation = Generation::of_client(&info.client_version);
        let mut actions = Actions::default();
        let opened = self.exec.admit(Want::Connect).and_then(|()| {
            self.exec
                .node()
                .open_connection(info, self.exec.now(), &mut actions)
        });
        let is_open = match opened {
            Ok(id) => {
                let handle = Handle {
                    transport: self.transport.clone(),
                    queue: self.queue.clone(),
                    progress: self.progress.clone(),
                };
                self.exec.connections().insert(id, handle);
                let is_alive = self.transport.establish(Established { id, generation });
                if !is_alive {
                    self.exec.connections().remove(id);
                    self.exec
                        .node()
                        .close_connection(id, self.exec.now(), &mut actions);
                }
                is_alive
            }
            Err(error) => {
                info!(connection = %self.transport.text_id(), %error, "connection refused");
                false
            }
        };
        self.exec.run(actions);
        if !is_open {
            let _ = self.queue.try_send(Outgoing::End);
        }
        is_open
    }

    /// A set-up on a connection that is set up changes nothing, unless its stream is gone: then this one replaces it.
    fn attach_again(&self, established: Established) {
        if !self.exec.connections().has_stream(established.id) {
            let handle = Handle {
                transport: self.transport.clone(),
                queue: self.queue.clone(),
                progress: self.progress.clone(),
            };
            self.exec.connections().insert(established.id, handle);
        }
    }

    fn acknowledged(&self, type_name: &str, body: &[u8]) {
        let Some(established) = self.transport.established() else {
            return;
        };
        let Ok(ack) = lenient::parse::<Ack<'_>>(body) else {
            debug!(connection = %self.transport.text_id(), type_name, "acknowledgement is not readable");
            return;
        };
        let is_ok = ack.result_code.0 == 200 && type_name != "ErrorResponse";
        match ack.request_id.as_str().parse() {
            Ok(request_id) => {
                let mut actions = Actions::default();
                self.exec
                    .node()
                    .push_acked(established.id, request_id, is_ok, self.exec.now(), &mut actions);
                self.exec.run(actions);
            }
            // The acknowledgement of a set-up has no id; it is a sign of life all the same.
            Err(_) => {
                let _ = self.exec.node().touch(established.id, self.exec.now());
            }
        }
    }
}
