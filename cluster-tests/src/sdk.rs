//! A client that behaves as official SDKs do when a server goes: it connects to the next one and registers and
//! subscribes again. Cheap enough to have hundreds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::model::{Instance, List, Service};
use crate::ports::GRPC_OFFSET;

/// Pause after a server that could not be used.
const RETRY: Duration = Duration::from_millis(100);
/// Silence after which the client asks whether its server lives, and how long it waits for the answer.
const HEALTH_CHECK: Duration = Duration::from_secs(3);

/// A reconnecting client.
#[derive(Debug)]
pub struct SdkClient {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<SocketAddr>,
    wanted: Mutex<Wanted>,
    lists: Mutex<BTreeMap<Service, List>>,
    current: watch::Sender<Option<Session>>,
    sessions: AtomicU64,
    shrinks: AtomicU64,
    last_end: Mutex<Option<String>>,
    pause: Duration,
}

#[derive(Debug, Default)]
struct Wanted {
    rows: BTreeMap<Service, Vec<Instance>>,
    subscriptions: BTreeSet<Service>,
}

#[derive(Clone, Debug)]
struct Session {
    number: u64,
    server: SocketAddr,
    client: Arc<Client>,
}

impl SdkClient {
    /// Connects to the server at position `first`, later to the next one whenever the current one goes, at once.
    pub async fn start(servers: Vec<SocketAddr>, first: usize) -> Self {
        Self::with_pause(servers, first, Duration::ZERO).await
    }

    /// As [`SdkClient::start`], with a pause between losing a server and connecting to the next one: official SDKs
    /// take up to some seconds until they have registered again.
    pub async fn with_pause(servers: Vec<SocketAddr>, first: usize, pause: Duration) -> Self {
        let shared = Arc::new(Shared {
            servers,
            wanted: Mutex::default(),
            lists: Mutex::default(),
            current: watch::channel(None).0,
            sessions: AtomicU64::new(0),
            shrinks: AtomicU64::new(0),
            last_end: Mutex::default(),
            pause,
        });
        let task = tokio::spawn(Arc::clone(&shared).run(first));
        let client = SdkClient { shared, task };
        client.session().await;
        client
    }

    /// Registers one instance, now and after each reconnect.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn register(&self, service: &Service, instance: &Instance) -> Result<()> {
        self.batch(service, std::slice::from_ref(instance)).await
    }

    /// Registers a list, now and after each reconnect; an empty list: nothing.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn batch(&self, service: &Service, instances: &[Instance]) -> Result<()> {
        self.shared
            .wanted
            .lock()
            .rows
            .insert(service.clone(), instances.to_vec());
        self.until_done(async |client| publish(client, service, instances).await)
            .await
    }

    /// Subscribes, now and after each reconnect; see [`SdkClient::latest`].
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn subscribe(&self, service: &Service) -> Result<()> {
        self.shared.wanted.lock().subscriptions.insert(service.clone());
        self.until_done(async |client| self.shared.follow(client, service).await)
            .await
    }

    /// The last list known of a subscribed service.
    pub fn latest(&self, service: &Service) -> Option<List> {
        self.shared.lists.lock().get(service).cloned()
    }

    /// The server of the current session, if there is one.
    pub fn server(&self) -> Option<SocketAddr> {
        self.shared
            .current
            .borrow()
            .as_ref()
            .map(|session| session.server)
    }

    /// How many times a server was connected to and everything registered there.
    pub fn sessions(&self) -> u64 {
        self.shared.sessions.load(Ordering::Relaxed)
    }

    /// How many lists of subscribed services lacked an address that the list before had.
    pub fn shrinks(&self) -> u64 {
        self.shared.shrinks.load(Ordering::Relaxed)
    }

    /// Why the last session ended, or was not made.
    pub fn last_end(&self) -> Option<String> {
        self.shared.last_end.lock().clone()
    }

    async fn session(&self) -> Option<Session> {
        let mut current = self.shared.current.subscribe();
        current
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|session| session.clone())
    }

    /// Does something on the current session; if that ends meanwhile, the next one has done it by the time it is there.
    async fn until_done(&self, action: impl AsyncFn(&Client) -> Result<()>) -> Result<()> {
        let Some(session) = self.session().await else {
            bail!("the client has ended")
        };
        let Err(error) = action(&session.client).await else {
            return Ok(());
        };
        let mut current = self.shared.current.subscribe();
        let is_later = |later: &Option<Session>| later.as_ref().is_some_and(|s| s.number > session.number);
        match timeout(Duration::from_secs(10), current.wait_for(is_later)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(error),
        }
    }
}

impl Drop for SdkClient {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.current.send_replace(None);
    }
}

/// The server that a `ConnectResetRequest` names by its main port, if any.
fn named(reset: &Value) -> Option<SocketAddr> {
    let ip = reset["serverIp"].as_str()?.parse().ok()?;
    let port: u16 = reset["serverPort"].as_str()?.parse().ok()?;
    Some(SocketAddr::new(ip, port.checked_add(GRPC_OFFSET)?))
}

impl Shared {
    async fn run(self: Arc<Self>, first: usize) {
        let mut at = first;
        loop {
            let server = self.servers[at % self.servers.len()];
            let (end, named) = match self.serve(server).await {
                Ok(named) => ("the server asked the client to move".to_owned(), named),
                Err(error) => (format!("{error:#}"), None),
            };
            *self.last_end.lock() = Some(format!("{server}: {end}"));
            if self.current.send_replace(None).is_some() {
                sleep(self.pause).await;
            }
            let named = named.and_then(|named| self.servers.iter().position(|server| *server == named));
            at = named.unwrap_or(at + 1);
            if at % self.servers.len() == first % self.servers.len() {
                sleep(RETRY).await;
            }
        }
    }

    /// One session, from connecting to its end: another server may be named then.
    async fn serve(&self, server: SocketAddr) -> Result<Option<SocketAddr>> {
        let client = Arc::new(Client::connect(server).await?);
        let (rows, subscriptions) = {
            let wanted = self.wanted.lock();
            (wanted.rows.clone(), wanted.subscriptions.clone())
        };
        for (service, instances) in &rows {
            publish(&client, service, instances).await?;
        }
        for service in &subscriptions {
            self.follow(&client, service).await?;
        }
        let number = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        self.current.send_replace(Some(Session {
            number,
            server,
            client: Arc::clone(&client),
        }));
        loop {
            match client.next_push(HEALTH_CHECK).await {
                Ok(push) if push.kind == "ConnectResetRequest" => return Ok(named(&push.json()?)),
                Ok(push) => {
                    if let Ok(list) = push.list() {
                        self.take_push(list);
                    }
                }
                Err(_) if client.is_closed() => bail!("the stream has ended"),
                Err(_) => {
                    let nothing = json!({});
                    let alive = client.send("HealthCheckRequest", &nothing);
                    timeout(HEALTH_CHECK, alive).await??.accepted()?;
                }
            }
        }
    }

    async fn follow(&self, client: &Client, service: &Service) -> Result<()> {
        let list = client.subscribe(service, "").await?;
        self.learn(service, list);
        Ok(())
    }

    fn take_push(&self, list: List) {
        let service = self
            .wanted
            .lock()
            .subscriptions
            .iter()
            .find(|s| list.is_of(s))
            .cloned();
        if let Some(service) = service {
            self.learn(&service, list);
        }
    }

    /// Keeps a list unless a newer one is known: an answer and a push may overtake each other, and SDKs go by
    /// `lastRefTime`, across servers too.
    fn learn(&self, service: &Service, list: List) {
        let mut lists = self.lists.lock();
        if lists
            .get(service)
            .is_none_or(|known| known.last_ref_time() <= list.last_ref_time())
        {
            lists.insert(service.clone(), list);
        }
    }
}

async fn publish(client: &Client, service: &Service, instances: &[Instance]) -> Result<()> {
    match instances {
        [one] => client.register(service, one).await,
        many => client.batch(service, many).await,
    }
}
