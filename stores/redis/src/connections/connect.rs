//! Making a connection, and keeping the current one.
//!
//! A [`Connector`] has at most one established connection. Each attempt to connect is a task of its
//! own, so that a caller with a short timeout does not end the attempt that other callers wait for.
//! While the server is down, callers get the error of the latest attempt. The pauses between
//! attempts are up to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Level;

use super::in_flight::InFlightLimit;
use super::quarantine::Quarantine;
use super::tracking::Listening;
use crate::scripts::dialects;
use crate::topology::{NewSocket, Opened, Topology};
use crate::transport::endpoint::Endpoint;
use crate::transport::handshake::{LoggedIn, SocketGuard};
use crate::transport::outgoing::Outgoing;
use crate::transport::pipelined::PipelinedSocket;
use crate::transport::renewed_login::stay_logged_in;
use crate::transport::traffic::Traffic;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::store::contract::StoreError;
use lock_core::store::home::Home;
use lock_core::sync::{Mutex, MutexGuard, lock};
use lock_core::user_code::contained;

/// The number of the next socket of the process.
static SOCKETS: AtomicU64 = AtomicU64::new(1);

/// How long one attempt to connect may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long callers get the error of a failed attempt instead of a new attempt.
const FAILURE_REUSED_FOR: Duration = Duration::from_millis(20);

/// Makes the connections to the server that has the keys, and keeps the current one.
pub(crate) struct Connector {
    topology: Arc<Topology>,
    /// The runtime that serves the socket.
    home: Home,
    listening: Option<Listening>,
    state: Mutex<ConnectorState>,
    /// Notified when an attempt has ended or the connection was lost.
    changed: Notify,
}

#[derive(Default)]
struct ConnectorState {
    current: Option<Established>,
    /// The number of the last socket. Each has a generation of its own, so that a late report about one
    /// does not affect the next one.
    generation: u64,
    /// The latest generation that was lost. The loss may be reported before the attempt has
    /// returned the connection.
    lost: u64,
    connecting: bool,
    /// The time and the error of the last attempt, if it failed.
    failure: Option<(BootInstant, StoreError)>,
}

/// One established connection.
#[derive(Clone)]
pub(crate) struct Established {
    pub(crate) generation: u64,
    pub(crate) socket: Arc<OpenSocket>,
}

/// An open socket and what its users share. It is closed when the last reference is dropped.
pub(crate) struct OpenSocket {
    pub(crate) server: Arc<Endpoint>,
    /// The number of the server in its topology.
    number: u64,
    pub(crate) commands: PipelinedSocket,
    _guard: SocketGuard,
    /// The task that renews credentials that end.
    stay_logged_in: Option<AbortHandle>,
    /// The task that discards the connection when another server has the keys.
    replaced: AbortHandle,
    /// The permits for acquires.
    pub(crate) acquires: InFlightLimit,
    /// The permits for the requests of lock holders.
    pub(crate) holders: InFlightLimit,
    pub(crate) traffic: Arc<Traffic>,
    /// `None` if the client has no quarantines.
    pub(crate) quarantine: Option<Arc<Quarantine>>,
}

impl OpenSocket {
    /// Ends all waits for a permit, because the connection is discarded.
    fn close(&self) {
        self.acquires.semaphore.close();
        self.holders.semaphore.close();
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.replaced.abort();
        if let Some(task) = &self.stay_logged_in {
            task.abort();
        }
    }
}

impl Connector {
    /// Connects when a connection is first asked for.
    pub(crate) fn new(
        topology: Arc<Topology>,
        home: runtime::Handle,
        listening: Option<Listening>,
    ) -> Self {
        let generation = topology.first_generation();
        let state = Mutex::new(ConnectorState { generation, ..ConnectorState::default() });
        let changed = Notify::new();
        Self { topology, home: Home::new(home), listening, state, changed }
    }

    /// A connector to the same server, on the same runtime.
    pub(crate) fn sibling(&self) -> Self {
        Self::new(Arc::clone(&self.topology), self.home.runtime().clone(), None)
    }

    /// Whether the server never has keys again.
    pub(crate) fn is_obsolete(&self) -> bool {
        self.topology.is_obsolete()
    }

    /// Starts a task on the runtime that serves the socket.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.home.runtime().spawn(task);
    }

    /// The server, without credentials.
    pub(crate) fn address(&self) -> &str {
        self.topology.shown()
    }

    /// The keys that say since when the server grants locks. None for a node of a cluster without
    /// slots.
    pub(crate) fn quarantine_markers(&self) -> Vec<String> {
        self.topology.quarantine_markers()
    }

    /// Whether the program supplies the credentials.
    pub(crate) fn has_credentials_source(&self) -> bool {
        self.topology.has_credentials_source()
    }

    pub(crate) fn home(&self) -> runtime::Id {
        self.home.runtime().id()
    }

    /// Whether the runtime that serves the socket still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.home.is_alive()
    }

    /// The current connection, if there is one, and if its server still has the keys.
    pub(crate) fn current(self: &Arc<Self>) -> Option<Established> {
        let current = self.state().current.clone()?;
        if self.is_current(&current.socket) {
            return Some(current);
        }
        self.discard(current.generation);
        None
    }

    /// Whether the server of a connection still has the keys.
    pub(crate) fn is_current(&self, socket: &OpenSocket) -> bool {
        self.topology.is_current(socket.number)
    }

    /// Resolves when an attempt to connect has ended or the connection was lost.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits for a connection. Starts an attempt if none is in progress.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        within: Duration,
    ) -> Result<Established, StoreError> {
        let end = Instant::now() + within;
        let started = BootInstant::now();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(current) = self.current() {
                return Ok(current);
            }
            let is_first = {
                let mut state = self.state();
                if let Some(current) = &state.current {
                    if self.is_current(&current.socket) {
                        return Ok(current.clone());
                    }
                    // The next round discards it.
                    continue;
                }
                if let Some((at, error)) = &state.failure
                    && (*at >= started || BootInstant::now().since(*at) < FAILURE_REUSED_FOR)
                {
                    return Err(error.clone());
                }
                !std::mem::replace(&mut state.connecting, true)
            };
            if is_first {
                let attempt = ConnectAttempt { connector: Arc::clone(self), outcome: None };
                // The state must be unlocked here: a runtime that has ended drops the attempt
                // inside `spawn`, and the attempt then locks the state.
                self.home.runtime().spawn(attempt.run());
            }
            if timeout_at(end, changed).await.is_err() {
                let (address, within) = (self.address(), within.as_millis());
                let cause = format!("no connection to {address} within {within} ms");
                return Err(StoreError::Refused(cause));
            }
        }
    }

    /// A socket whose loss and whose messages are reported to this connector.
    fn new_socket(self: &Arc<Self>) -> NewSocket {
        let generation = {
            let mut state = self.state();
            // The lower half is unique in the process: runtimes have connectors of their own to the same server.
            let number = SOCKETS.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
            state.generation = self.topology.first_generation() | number;
            state.generation
        };
        let on_message = self.listening.as_ref().map(|it| Arc::clone(&it.on_message));
        NewSocket { generation, on_message }
    }

    async fn connect(self: &Arc<Self>) -> Result<Established, StoreError> {
        let opened = self.topology.open(&|| self.new_socket()).await?;
        let Opened { server, number, generation, login } = opened;
        let LoggedIn { commands, guard, traffic, valid_for } = login;
        let weak = Arc::downgrade(self);
        commands.report_end(Box::new(move || {
            if let Some(connector) = weak.upgrade() {
                connector.discard(generation);
            }
        }));
        let stay_logged_in = valid_for.map(|valid_for| {
            let (login, shown) = (Arc::clone(server.login()), server.shown().to_owned());
            let weak = Arc::downgrade(self);
            let discard = move || {
                if let Some(connector) = weak.upgrade() {
                    connector.discard(generation);
                }
            };
            let task = stay_logged_in(login, (commands.clone(), shown), valid_for, discard);
            tokio::spawn(task).abort_handle()
        });
        let (connector, topology) = (Arc::downgrade(self), Arc::clone(&self.topology));
        let task = discard_if_replaced(connector, topology, (number, generation), commands.clone());
        let replaced = tokio::spawn(task).abort_handle();
        let (acquires, holders) = (InFlightLimit::new(), InFlightLimit::new());
        let socket = Arc::new(OpenSocket {
            server,
            number,
            commands: commands.clone(),
            _guard: guard,
            stay_logged_in,
            replaced,
            acquires,
            holders,
            traffic,
            quarantine: self.topology.quarantine().map(Quarantine::new).map(Arc::new),
        });
        // Loads the scripts once per connection, so that requests can use their hashes. No request waits
        // for the reply. For a user without the permission to load scripts, requests fall back to the text.
        let scripts = dialects::load_all(self.topology.is_node());
        drop(commands.send(Outgoing::Commands(&scripts)));
        if let Some(listening) = &self.listening {
            listening.begin(&commands).await;
        }
        Ok(Established { generation, socket })
    }

    /// Drops the connection of this generation, if it is the current one. The next request makes a
    /// new connection.
    pub(crate) fn discard(self: &Arc<Self>, generation: u64) {
        let mut state = self.state();
        state.lost = state.lost.max(generation);
        let lost = state.current.take_if(|current| current.generation == generation);
        drop(state);
        if let Some(lost) = lost {
            self.topology.connection_lost();
            let connector = Arc::clone(self);
            let address = lost.socket.server.shown().to_owned();
            // Both calls wake callers, which the background thread must not do. They therefore run
            // on the runtime that serves the connection.
            self.home.runtime().spawn(async move {
                contained(|| lost.socket.close());
                contained(|| connector.changed.notify_waiters());
                contained(|| connector.listening.iter().for_each(Listening::ended));
            });
            events::emit(Level::DEBUG, move || {
                tracing::debug!(target: "lock_runtime::store::redis", address, generation, "disconnected");
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectorState> {
        lock(&self.state)
    }
}

/// Discards the connection of this generation when the server with this number no longer has the
/// keys. Its requests in flight fail, so that no answer of that server counts.
async fn discard_if_replaced(
    connector: Weak<Connector>,
    topology: Arc<Topology>,
    (number, generation): (u64, u64),
    commands: PipelinedSocket,
) {
    topology.replaced(number).await;
    if let Some(connector) = connector.upgrade() {
        connector.discard(generation);
    }
    commands.close();
}

/// One attempt to connect. Its outcome is published when it is dropped, so that an attempt that is
/// cut short ends as well.
struct ConnectAttempt {
    connector: Arc<Connector>,
    /// `None` if the attempt is cut short, because its runtime ends.
    outcome: Option<Result<Established, StoreError>>,
}

impl ConnectAttempt {
    async fn run(mut self) {
        let connector = &self.connector;
        let address = connector.address();
        let outcome = match timeout(CONNECT_TIMEOUT, connector.connect()).await {
            Ok(Ok(established)) => Ok(established),
            // No request was sent yet, so none can have run.
            Ok(Err(error)) => Err(match error {
                StoreError::Unknown(cause) | StoreError::Refused(cause) => {
                    StoreError::Refused(format!("cannot connect to {address}: {cause}"))
                }
                permanent => permanent,
            }),
            Err(_) => Err(StoreError::Refused(format!(
                "cannot connect to {address}: no answer within {CONNECT_TIMEOUT:?}"
            ))),
        };
        self.outcome = Some(outcome);
    }
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        let connector = &self.connector;
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let cause = "the runtime that served the connection has ended";
            Err(StoreError::Refused(cause.into()))
        });
        let mut state = connector.state();
        state.connecting = false;
        let connected = match outcome {
            Ok(established) if state.lost < established.generation => {
                let server = Arc::clone(&established.socket.server);
                let generation = established.generation;
                state.current = Some(established);
                Ok((server, generation))
            }
            Ok(established) => {
                let address = established.socket.server.shown();
                let cause = format!("{address} closed the connection immediately");
                Err(StoreError::Refused(cause))
            }
            Err(error) => Err(error),
        };
        let failure = connected.as_ref().err().cloned();
        state.failure = failure.map(|error| (BootInstant::now(), error));
        drop(state);
        connector.changed.notify_waiters();
        // Logged last: a subscriber may block, or use a lock itself.
        if let Ok((server, generation)) = connected {
            let address = server.shown().to_owned();
            events::emit(Level::DEBUG, move || {
                tracing::debug!(target: "lock_runtime::store::redis", address, generation, "connected");
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::{self, UrlTarget};
    use lock_core::store::settings::Settings;

    #[tokio::test]
    async fn callers_get_the_error_of_a_failed_attempt_for_a_moment() {
        // Nothing listens on this port.
        let target = url::parse("redis://127.0.0.1:1", &Settings::default());
        let Ok(UrlTarget::Server(server)) = target else { panic!("a server") };
        let topology = Arc::new(Topology::of_server(server, None));
        let connector = Arc::new(Connector::new(topology, runtime::Handle::current(), None));
        loop {
            let (failed, earlier) = (BootInstant::now(), StoreError::Refused("earlier".into()));
            connector.state().failure = Some((failed, earlier.clone()));
            let error = connector.wait(CONNECT_TIMEOUT).await.err();
            // The machine may have been busy for longer than the moment.
            if BootInstant::now().since(failed) < FAILURE_REUSED_FOR {
                assert_eq!(error, Some(earlier));
                break;
            }
        }
    }
}
