//! Connections of clients: what each subscribed, what it still has to answer, and whether it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rollcall_core::expiry::brake::Silence;
use rollcall_core::expiry::wheel::Wheel;
use rollcall_core::registry::change::ClientId;
use rollcall_core::{Millis, Now, ServiceKey};
use smol_str::SmolStr;

use crate::action::{Action, Actions};
use crate::config::NodeConfig;
use crate::loader::Places;
use crate::push::Pusher;
use crate::request::{ConnectionId, ConnectionInfo};

/// Between the questions to an idle client.
const DETECT_AGAIN: Millis = Millis(2_000);
/// Connections looked at in one call.
const LOOKS_AT_A_TIME: usize = 128;

/// What a client shall answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    Push(ServiceKey, Option<SmolStr>),
    Detect,
    Reset,
    /// A message about services of this pattern.
    Fuzzy(SmolStr),
}

/// A connection that is set up.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) client: ClientId,
    pub(crate) info: ConnectionInfo,
    state: Mutex<State>,
    opened: Millis,
    last_active: AtomicU64,
    /// It was heard regularly, is asked whether it lives, and has not been heard since.
    is_silent: AtomicBool,
    /// How many of the node's connections are so.
    n_silent: Arc<AtomicUsize>,
    asked_to_move: Mutex<Option<Millis>>,
}

#[derive(Debug)]
struct State {
    subscriptions: Vec<ServiceKey>,
    awaited: HashMap<u64, Awaited, FixedState>,
    is_closed: bool,
}

impl Connection {
    pub(crate) fn touch(&self, now: Millis) {
        self.last_active.fetch_max(now.0, Ordering::Relaxed);
        self.end_silence();
    }

    fn end_silence(&self) {
        if self.is_silent.load(Ordering::Relaxed) && self.is_silent.swap(false, Ordering::Relaxed) {
            self.n_silent.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes that it is asked whether it lives.
    fn note_silence(&self) {
        if self.is_regular() && !self.is_silent.swap(true, Ordering::Relaxed) {
            self.n_silent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It was heard again after it was opened: a silence is a change.
    fn is_regular(&self) -> bool {
        self.last_active.load(Ordering::Relaxed) > self.opened.0
    }

    /// Notes that the client is asked to go to another member.
    pub(crate) fn ask_to_move(&self, now: Millis) {
        *self.asked_to_move.lock() = Some(now);
    }

    /// When the client was last asked to go to another member, if it was.
    pub(crate) fn asked_to_move(&self) -> Option<Millis> {
        *self.asked_to_move.lock()
    }

    /// When the client came, or was last asked to go to another member, whatever was later.
    pub(crate) fn last_come_or_asked(&self) -> Millis {
        self.asked_to_move().unwrap_or_default().max(self.opened)
    }

    pub(crate) fn idle(&self, now: Millis) -> Millis {
        now.since(Millis(self.last_active.load(Ordering::Relaxed)))
    }

    /// Notes a subscription; false when the connection is closed.
    pub(crate) fn add_subscription(&self, service: &ServiceKey) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        if !state.subscriptions.contains(service) {
            state.subscriptions.push(service.clone());
        }
        true
    }

    /// The services it has ever subscribed to, in the order in which it did.
    pub(crate) fn subscriptions(&self) -> Vec<ServiceKey> {
        self.state.lock().subscriptions.clone()
    }

    /// Notes a message that the client shall answer; false when the connection is closed.
    pub(crate) fn expect(&self, request_id: u64, awaited: Awaited) -> bool {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.awaited.insert(request_id, awaited);
        }
        !state.is_closed
    }

    pub(crate) fn answered(&self, request_id: u64) -> Option<Awaited> {
        self.state.lock().awaited.remove(&request_id)
    }

    /// Closes it and returns what it subscribed.
    fn close(&self) -> Vec<ServiceKey> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.awaited.clear();
        std::mem::take(&mut state.subscriptions)
    }
}

/// A connection that shall be looked at again.
#[derive(Debug)]
struct Look {
    id: ConnectionId,
    /// It has been asked whether it lives.
    was_asked: bool,
    /// Its time is over, and it is not dropped yet because so many others are silent too.
    is_held: bool,
}

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Connections {
    table: DashMap<ConnectionId, Arc<Connection>, FixedState>,
    looks: Mutex<Wheel<Look>>,
    next_id: AtomicU64,
    detect_after: Millis,
    drop_after: Millis,
    seed: u64,
    n_sdk: AtomicUsize,
    n_silent: Arc<AtomicUsize>,
    n_held: AtomicUsize,
    places: Places,
}

impl Connections {
    pub(crate) fn new(config: &NodeConfig, now: Millis) -> Self {
        Connections {
            table: DashMap::with_hasher(FixedState::with_seed(config.seed)),
            looks: Mutex::new(Wheel::new(now)),
            next_id: AtomicU64::new(1),
            detect_after: config.detect_after,
            drop_after: config.drop_after,
            seed: config.seed,
            n_sdk: AtomicUsize::new(0),
            n_silent: Arc::default(),
            n_held: AtomicUsize::new(0),
            places: Places::new(config),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of connections that register or discover.
    pub(crate) fn n_naming(&self) -> usize {
        self.table
            .iter()
            .filter(|entry| entry.value().info.is_naming)
            .count()
    }

    /// The number of connections, and of those that may be asked to move.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.len(), self.n_sdk.load(Ordering::Relaxed))
    }

    /// How many are silent.
    pub(crate) fn silence(&self) -> Silence {
        Silence {
            n_known: self.len(),
            n_silent: self.n_silent.load(Ordering::Relaxed),
            n_held: self.n_held.load(Ordering::Relaxed),
        }
    }

    /// Takes a place for a connection that is about to be opened; false when there is none.
    pub(crate) fn take_place(&self, info: &ConnectionInfo) -> bool {
        self.places.take(&info.remote_ip)
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<Arc<Connection>> {
        self.table.get(&id).map(|entry| entry.value().clone())
    }

    /// All connections, by id.
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        let mut all: Vec<_> = self.table.iter().map(|entry| entry.value().clone()).collect();
        all.sort_unstable_by_key(|c| c.id);
        all
    }

    /// Opens a connection that has taken a place.
    pub(crate) fn open(&self, client: ClientId, info: ConnectionInfo, now: Now) -> ConnectionId {
        let id = ConnectionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let awaited = HashMap::with_hasher(FixedState::with_seed(self.seed));
        let state = Mutex::new(State {
            subscriptions: Vec::new(),
            awaited,
            is_closed: false,
        });
        self.n_sdk.fetch_add(usize::from(info.is_sdk), Ordering::Relaxed);
        let last_active = AtomicU64::new(now.mono.0);
        self.table.insert(
            id,
            Arc::new(Connection {
                id,
                client,
                info,
                state,
                opened: now.mono,
                last_active,
                is_silent: AtomicBool::new(false),
                n_silent: self.n_silent.clone(),
                asked_to_move: Mutex::new(None),
            }),
        );
        self.look_again(
            now.mono + self.detect_after,
            Look {
                id,
                was_asked: false,
                is_held: false,
            },
        );
        id
    }

    /// Takes a connection out and ends its subscriptions.
    pub(crate) fn close(&self, id: ConnectionId, pusher: &Pusher) -> Option<Arc<Connection>> {
        let (_, connection) = self.table.remove(&id)?;
        self.n_sdk
            .fetch_sub(usize::from(connection.info.is_sdk), Ordering::Relaxed);
        self.places.free(&connection.info.remote_ip);
        connection.end_silence();
        for service in connection.close() {
            pusher.forget(id, &service);
        }
        Some(connection)
    }

    pub(crate) fn next_look(&self) -> Option<Millis> {
        let looks = self.looks.lock();
        (!looks.is_empty()).then(|| looks.next_due())
    }

    fn look_again(&self, at: Millis, look: Look) {
        self.n_held
            .fetch_add(usize::from(look.is_held), Ordering::Relaxed);
        self.looks.lock().add(at, look);
    }

    /// Asks connections that have been idle for long, and returns those that have been idle for too long; looks at a
    /// hundred or so at most. With `is_suspect`, those that were heard regularly until now get the same time once more.
    pub(crate) fn look_for_idle(
        &self,
        pusher: &Pusher,
        is_suspect: bool,
        now: Now,
        actions: &mut Actions,
    ) -> Vec<ConnectionId> {
        let due = self.looks.lock().advance(now.mono, LOOKS_AT_A_TIME);
        let mut dead = Vec::new();
        for look in due {
            self.n_held
                .fetch_sub(usize::from(look.is_held), Ordering::Relaxed);
            let Look { id, was_asked, .. } = look;
            let Some(connection) = self.get(id) else { continue };
            let idle = connection.idle(now.mono);
            let is_over = was_asked && idle >= self.drop_after;
            let is_held =
                is_over && is_suspect && connection.is_regular() && idle < self.drop_after + self.drop_after;
            if idle < self.detect_after {
                let left = self.detect_after - idle;
                self.look_again(
                    now.mono + left,
                    Look {
                        id,
                        was_asked: false,
                        is_held,
                    },
                );
            } else if is_over && !is_held {
                dead.push(id);
            } else {
                connection.note_silence();
                let request_id = pusher.next_request_id();
                if connection.expect(request_id, Awaited::Detect) {
                    actions.push(Action::Detect {
                        connection: id,
                        request_id,
                    });
                }
                let left = match is_held {
                    true => DETECT_AGAIN,
                    false => self.drop_after.since(idle).max(Millis(1)),
                };
                let look = Look {
                    id,
                    was_asked: true,
                    is_held,
                };
                self.look_again(now.mono + left.min(DETECT_AGAIN), look);
            }
        }
        dead
    }
}
