//! An HTTP v1 client, and the node's own pages.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::Value;

use crate::client::names_of;
use crate::model::{Instance, List, Service};

/// Parameters of a request.
pub type Params = Vec<(String, String)>;

/// Path of instances.
pub const INSTANCE: &str = "/nacos/v1/ns/instance";

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Content type.
    pub content_type: Option<String>,
    /// `Retry-After`: in how many seconds to come again.
    pub retry_after: Option<String>,
    /// Body.
    pub text: String,
}

impl Reply {
    /// Checks the status.
    ///
    /// # Errors
    /// It is another.
    pub fn with_status(self, status: u16) -> Result<Self> {
        ensure!(self.status == status, "wanted status {status}, got {self:?}");
        Ok(self)
    }

    /// Checks for status 200 and the text `ok`.
    ///
    /// # Errors
    /// It is another answer.
    pub fn ok(self) -> Result<()> {
        ensure!(
            self.status == 200 && self.text == "ok",
            "wanted 200 ok, got {self:?}"
        );
        Ok(())
    }

    /// Checks for status 200 and reads the body.
    ///
    /// # Errors
    /// It is another answer.
    pub fn json(self) -> Result<Value> {
        let reply = self.with_status(200)?;
        serde_json::from_str(&reply.text).with_context(|| format!("no JSON in {reply:?}"))
    }

    /// Checks for a status and a text within the body.
    ///
    /// # Errors
    /// It is another answer.
    pub fn refused(self, status: u16, text: &str) -> Result<()> {
        let reply = self.with_status(status)?;
        ensure!(reply.text.contains(text), "wanted {text:?} in {reply:?}");
        Ok(())
    }
}

/// Answer to a beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BeatReply {
    /// 10200 for a known instance, 20404 for an unknown one.
    pub code: i64,
    /// Interval in milliseconds that the client is asked to keep.
    pub interval: u64,
}

/// What `/rollcall/state` says.
#[derive(Clone, Debug)]
pub struct State {
    /// The node's advertised address.
    pub address: String,
    /// It serves.
    pub ready: bool,
    /// It is cut off with the fewer members.
    pub minority: bool,
    /// Its epoch.
    pub epoch: u64,
    /// Members as this node sees them.
    pub members: Vec<Member>,
    /// Digest of each member's rows, in hexadecimal.
    pub digests: Vec<(String, String)>,
    /// Number of connections.
    pub connections: u64,
    /// Number of services.
    pub services: u64,
    /// Number of rows.
    pub instances: u64,
}

/// A member in [`State`].
#[derive(Clone, Debug)]
pub struct Member {
    /// Advertised address.
    pub address: String,
    /// `STARTING`, `UP`, `SUSPICIOUS`, `DOWN`.
    pub state: String,
    /// It serves.
    pub ready: bool,
    /// What goes wrong on the way to it.
    pub trouble: Option<String>,
}

/// A row in `/rollcall/rows`.
#[derive(Clone, Debug)]
pub struct Row {
    /// The form `ip:port`.
    pub address: String,
    /// Cluster.
    pub cluster: String,
    /// Who publishes it.
    pub publishers: Vec<Publisher>,
}

/// A publisher of a [`Row`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher {
    /// `connection` or `beat`.
    pub kind: String,
    /// Member that accepted it.
    pub member: String,
    /// That member is not there.
    pub is_orphan: bool,
}

/// An HTTP client of one node.
#[derive(Clone, Debug)]
pub struct Http {
    base: String,
    client: reqwest::Client,
}

impl Http {
    /// A client of the node whose main port is at this address.
    ///
    /// # Panics
    /// The client library cannot be set up.
    pub fn new(address: SocketAddr) -> Self {
        let built = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build();
        match built {
            Ok(client) => Http {
                base: format!("http://{address}"),
                client,
            },
            Err(error) => panic!("no HTTP client: {error}"),
        }
    }

    /// Scheme, host and port.
    pub fn base(&self) -> &str {
        &self.base
    }

    // === Any request ===

    /// A request with parameters in the query.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn query(&self, method: Method, path: &str, params: &Params) -> Result<Reply> {
        self.send(self.request(method, path).query(params)).await
    }

    /// A request with parameters in a form body.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn form(&self, method: Method, path: &str, params: &Params) -> Result<Reply> {
        self.send(self.request(method, path).form(params)).await
    }

    /// A request to be completed by the caller; see [`Http::send`].
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Result<Reply> {
        let response = request.send().await?;
        let header = |name: &str| {
            let value = response.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        Ok(Reply {
            status: response.status().as_u16(),
            content_type: header("content-type"),
            retry_after: header("retry-after"),
            text: response.text().await?,
        })
    }

    async fn get(&self, path: &str, params: &Params) -> Result<Reply> {
        self.query(Method::GET, path, params).await
    }

    // === Instances ===

    /// Registers.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn register(&self, service: &Service, instance: &Instance) -> Result<Reply> {
        self.query(Method::POST, INSTANCE, &joined(service, instance.to_params()))
            .await
    }

    /// Removes the row.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn deregister(&self, service: &Service, instance: &Instance) -> Result<Reply> {
        self.query(Method::DELETE, INSTANCE, &joined(service, instance.row_params()))
            .await
    }

    /// Sets the operator's weight, enabled and metadata.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn update(&self, service: &Service, instance: &Instance) -> Result<Reply> {
        self.query(Method::PUT, INSTANCE, &joined(service, instance.to_params()))
            .await
    }

    /// A light beat: parameters only.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn light_beat(&self, service: &Service, instance: &Instance) -> Result<BeatReply> {
        self.beat_with(&joined(service, instance.row_params())).await
    }

    /// A full beat: the instance as JSON besides.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn full_beat(&self, service: &Service, instance: &Instance) -> Result<BeatReply> {
        let mut params = joined(service, instance.row_params());
        params.push(("beat".into(), instance.to_beat(service).to_string()));
        self.beat_with(&params).await
    }

    /// A beat with any parameters.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn beat_with(&self, params: &Params) -> Result<BeatReply> {
        let path = format!("{INSTANCE}/beat");
        let body = self.query(Method::PUT, &path, params).await?.json()?;
        let code = body["code"]
            .as_i64()
            .with_context(|| format!("no code in {body}"))?;
        let interval = body["clientBeatInterval"]
            .as_u64()
            .with_context(|| format!("no interval in {body}"))?;
        Ok(BeatReply { code, interval })
    }

    /// The list of a service.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn list(&self, service: &Service) -> Result<List> {
        self.list_with(service, &[]).await
    }

    /// The list of a service with more parameters.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn list_with(&self, service: &Service, more: &[(&str, &str)]) -> Result<List> {
        let list = List::from_json(self.list_reply(service, more).await?.json()?)?;
        ensure!(
            list.json["name"] == service.grouped(),
            "another service: {}",
            list.json["name"]
        );
        Ok(list)
    }

    /// The list of a service, whatever the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn list_reply(&self, service: &Service, more: &[(&str, &str)]) -> Result<Reply> {
        let more = more.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        self.get(&format!("{INSTANCE}/list"), &joined(service, more))
            .await
    }

    /// One instance.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn detail(&self, service: &Service, instance: &Instance) -> Result<Reply> {
        self.get(INSTANCE, &joined(service, instance.row_params())).await
    }

    /// A page of service names of a group: number of all names, names of the page.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn services(
        &self,
        namespace: &str,
        group: &str,
        page: i64,
        size: i64,
    ) -> Result<(u64, Vec<String>)> {
        let params = vec![
            ("namespaceId".into(), namespace.into()),
            ("groupName".into(), group.into()),
            ("pageNo".into(), page.to_string()),
            ("pageSize".into(), size.to_string()),
        ];
        names_of(
            &self.get("/nacos/v1/ns/service/list", &params).await?.json()?,
            "doms",
        )
    }

    // === The node ===

    /// Whether readiness is green.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn is_ready(&self) -> Result<bool> {
        Ok(self
            .get("/nacos/v1/console/health/readiness", &vec![])
            .await?
            .status
            == 200)
    }

    /// Whether liveness is green.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn is_live(&self) -> Result<bool> {
        Ok(self
            .get("/nacos/v1/console/health/liveness", &vec![])
            .await?
            .status
            == 200)
    }

    /// `/nacos/v1/core/cluster/nodes`: address and state of each member.
    ///
    /// # Errors
    /// It is not answered as in the protocol.
    pub async fn cluster_nodes(&self) -> Result<Vec<(String, String)>> {
        let body = self.get("/nacos/v1/core/cluster/nodes", &vec![]).await?.json()?;
        let list = body["data"]
            .as_array()
            .with_context(|| format!("no data in {body}"))?;
        list.iter()
            .map(|m| Ok((text(m, "address")?, text(m, "state")?)))
            .collect()
    }

    /// `/rollcall/state`.
    ///
    /// # Errors
    /// It is not answered as agreed.
    pub async fn state(&self) -> Result<State> {
        let body = self.get("/rollcall/state", &vec![]).await?.json()?;
        let number = |key: &str| {
            body[key]
                .as_u64()
                .with_context(|| format!("no number {key} in {body}"))
        };
        let list = |key: &str| {
            body[key]
                .as_array()
                .with_context(|| format!("no list {key} in {body}"))
        };
        let member = |m: &Value| -> Result<Member> {
            Ok(Member {
                address: text(m, "address")?,
                state: text(m, "state")?,
                ready: m["ready"] == true,
                trouble: m["trouble"].as_str().map(String::from),
            })
        };
        let digest = |d: &Value| -> Result<(String, String)> {
            let part = |i: usize| {
                d[i].as_str()
                    .map(String::from)
                    .with_context(|| format!("bad digest {d}"))
            };
            Ok((part(0)?, part(1)?))
        };
        Ok(State {
            address: text(&body, "address")?,
            ready: body["ready"] == true,
            minority: body["minority"] == true,
            epoch: number("epoch")?,
            members: list("members")?.iter().map(member).collect::<Result<_>>()?,
            digests: list("digests")?.iter().map(digest).collect::<Result<_>>()?,
            connections: number("connections")?,
            services: number("services")?,
            instances: number("instances")?,
        })
    }

    /// `/rollcall/rows`: rows of a service with their publishers.
    ///
    /// # Errors
    /// It is not answered as agreed.
    pub async fn rows(&self, service: &Service) -> Result<Vec<Row>> {
        let body = self.get("/rollcall/rows", &service.to_params()).await?.json()?;
        let list = body.as_array().with_context(|| format!("no list: {body}"))?;
        let publisher = |p: &Value| -> Result<Publisher> {
            Ok(Publisher {
                kind: text(p, "kind")?,
                member: text(p, "member")?,
                is_orphan: p["orphan"] == true,
            })
        };
        let row = |r: &Value| -> Result<Row> {
            let publishers = r["publishers"]
                .as_array()
                .with_context(|| format!("no publishers in {r}"))?;
            Ok(Row {
                address: format!("{}:{}", text(r, "ip")?, r["port"]),
                cluster: text(r, "cluster")?,
                publishers: publishers.iter().map(publisher).collect::<Result<_>>()?,
            })
        };
        list.iter().map(row).collect()
    }

    /// `/rollcall/owner`: the member that accepts HTTP writes of a service.
    ///
    /// # Errors
    /// It is not answered as agreed.
    pub async fn owner(&self, service: &Service) -> Result<String> {
        text(
            &self.get("/rollcall/owner", &service.to_params()).await?.json()?,
            "owner",
        )
    }

    /// The sum of a metric over its labels.
    ///
    /// # Errors
    /// There is no such metric.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let page = self
            .get("/nacos/actuator/prometheus", &vec![])
            .await?
            .with_status(200)?
            .text;
        let values: Vec<f64> = page
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with([' ', '{']))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse().ok())
            .collect();
        ensure!(!values.is_empty(), "no metric {name}");
        Ok(values.iter().sum())
    }
}

/// The parameters of a service and more.
pub fn joined(service: &Service, more: Params) -> Params {
    let mut params = service.to_params();
    params.extend(more);
    params
}

fn text(value: &Value, key: &str) -> Result<String> {
    value[key]
        .as_str()
        .map(String::from)
        .with_context(|| format!("no text {key} in {value}"))
}
