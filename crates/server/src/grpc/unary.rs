//! Calls with one answer: finds out who asks and for what, and hands over to the handler.
//!
//! Order of the checks, as recorded: ready, port of members, known type, connection set up, readable body. A status
//! that operators set refuses newcomers and what clients ask for, but no sign of life: whoever is here stays. So does a
//! process that is too far behind, which takes removals as well.

use std::sync::Arc;

use tonic::{Response, Status};

use crate::error::GrpcFailure;
use crate::executor::Executor;
use crate::grpc::handler::{
    Context, batch_instance, fuzzy_watch, health_check, instance, persistent_instance, server_check,
    service_list, service_query, subscribe,
};
use crate::grpc::payload::{self, Call, envelope};
use crate::load::Want;
use crate::pb::{Payload, request_server};
use crate::transport::{Established, Transport};

/// Serves unary calls.
#[derive(Clone)]
pub struct Unary {
    exec: Executor,
    metadata_limit: usize,
}

impl Unary {
    /// A service over the node behind `exec`.
    pub fn new(exec: Executor, metadata_limit: usize) -> Self {
        Unary { exec, metadata_limit }
    }

    /// Answers a request that came over `transport`.
    pub async fn answer_to(&self, transport: &Transport, payload: &Payload) -> Payload {
        let call = Call::of(payload::type_name(payload));
        let (metrics, began) = (self.exec.metrics(), self.exec.now());
        metrics.grpc_requests.increment();
        let answer = self.answer(transport, call, payload).await;
        let error_code = answer.as_ref().err().map_or(0, |failure| failure.error_code);
        let key = (call.name(), call.module(), error_code);
        metrics.grpc_calls.record(key, began, self.exec.now());
        answer.unwrap_or_else(|failure| {
            metrics.grpc_failures.increment();
            payload::failure(call, &failure)
        })
    }

    async fn answer(
        &self,
        transport: &Transport,
        call: Call,
        payload: &Payload,
    ) -> Result<Payload, GrpcFailure> {
        let node = self.exec.node();
        // A node that leaves or is unlisted sends newcomers away, and goes on to serve the clients that it still has.
        let keeps = || node.serves_reads(self.exec.now()) && transport.established().is_some();
        // One that has to catch up after it stood still gives no lists, but must not lose its clients by that: they would
        // close their connections, which takes their instances away until they are registered elsewhere.
        let is_alive = || call == Call::HealthCheck && transport.established().is_some();
        let is_served = node.is_ready() || keeps() || is_alive();
        if !is_served {
            return Err(node.not_serving().into());
        }
        if let Some(access) = call.access() {
            node.check_status(access)?;
        }
        if call == Call::ServerCheck && transport.established().is_none() {
            self.exec.admit(Want::Connect)?;
        }
        match call {
            Call::Cluster => return Err(GrpcFailure::forbidden(payload::type_name(payload))),
            Call::Unknown => return Err(GrpcFailure::no_handler()),
            Call::ServerCheck => {
                return Ok(envelope(
                    call.answer_type(),
                    String::new(),
                    server_check::answer(transport),
                ));
            }
            _ => {}
        }
        let connection = transport
            .wait_established()
            .await
            .ok_or_else(GrpcFailure::unregistered)?;
        self.exec.node().touch(connection.id, self.exec.now())?;
        let body = self.dispatch(connection, call, payload::body(payload))?;
        Ok(envelope(call.answer_type(), String::new(), body))
    }

    fn dispatch(&self, connection: Established, call: Call, body: &[u8]) -> super::handler::Answer {
        let context = Context {
            exec: &self.exec,
            connection,
            metadata_limit: self.metadata_limit,
        };
        if matches!(
            call,
            Call::BatchInstance | Call::ServiceQuery | Call::ServiceList | Call::FuzzyWatch
        ) {
            context.exec.admit(Want::Work)?;
        }
        match call {
            Call::Instance => instance::handle(&context, body),
            Call::ServiceQuery => service_query::handle(&context, body),
            Call::Subscribe => subscribe::handle(&context, body),
            Call::FuzzyWatch => fuzzy_watch::handle(&context, body),
            Call::HealthCheck => health_check::handle(body),
            Call::BatchInstance => batch_instance::handle(&context, body),
            Call::ServiceList => service_list::handle(&context, body),
            Call::PersistentInstance => persistent_instance::handle(&context, body),
            Call::ServerCheck | Call::Cluster | Call::Unknown => Err(GrpcFailure::no_handler()),
        }
    }
}

#[tonic::async_trait]
impl request_server::Request for Unary {
    async fn request(&self, request: tonic::Request<Payload>) -> Result<Response<Payload>, Status> {
        let Some(transport) = request.extensions().get::<Arc<Transport>>().cloned() else {
            return Err(Status::internal("the connection of the call is not known"));
        };
        let payload = request.into_inner();
        Ok(Response::new(self.answer_to(&transport, &payload).await))
    }
}

#[cfg(test)]
mod tests {
    use rollcall_core::Millis;
    use rollcall_node::action::Actions;
    use rollcall_node::request::ConnectionInfo;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::app::tests::app;
    use crate::load::Load;
    use crate::transport::Generation;

    fn transport() -> Transport {
        let remote = std::net::SocketAddr::from(([127, 0, 0, 1], 4000));
        Transport::new(remote, remote, Millis(17))
    }

    #[tokio::test]
    async fn a_process_that_is_far_behind_turns_newcomers_away_and_takes_removals_and_signs_of_life() {
        let app = app();
        let exec = app.exec().clone();
        let unary = Unary::new(exec.clone(), 1024);
        let ask = async |transport: &Transport, type_name: &str, body: Value| {
            let body = serde_json::to_vec(&body).unwrap();
            let answer = unary
                .answer_to(transport, &envelope(type_name, String::new(), body))
                .await;
            let body: Value = serde_json::from_slice(payload::body(&answer)).unwrap();
            body["errorCode"].as_i64().unwrap_or_default()
        };
        let (here, newcomer) = (transport(), transport());
        let info = ConnectionInfo {
            is_naming: true,
            ..ConnectionInfo::default()
        };
        let opened = exec
            .node()
            .open_connection(info, exec.now(), &mut Actions::default());
        let generation = Generation::Two;
        assert!(here.establish(Established {
            id: opened.unwrap(),
            generation
        }));
        let instance = |operation: &str| {
            let instance = json!({"ip": "10.0.0.1", "port": 80});
            json!({"namespace": "public", "serviceName": "s", "groupName": "g", "type": operation, "instance": instance})
        };
        let service = |subscribe: bool| json!({"namespace": "public", "serviceName": "s", "groupName": "g", "subscribe": subscribe});
        assert_eq!(
            ask(&here, "InstanceRequest", instance("registerInstance")).await,
            0
        );

        exec.set_load(Load::behind());
        assert_eq!(ask(&newcomer, "ServerCheckRequest", json!({})).await, 300);
        for (type_name, body, code) in [
            ("ServerCheckRequest", json!({}), 0),
            ("HealthCheckRequest", json!({}), 0),
            ("InstanceRequest", instance("registerInstance"), 300),
            ("ServiceQueryRequest", service(false), 300),
            ("SubscribeServiceRequest", service(true), 300),
            ("SubscribeServiceRequest", service(false), 0),
            ("InstanceRequest", instance("deregisterInstance"), 0),
        ] {
            assert_eq!(
                ask(&here, type_name, body.clone()).await,
                code,
                "{type_name} {body}"
            );
        }
    }
}
