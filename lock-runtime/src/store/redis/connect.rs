//! Making a connection, and keeping the current one.
//!
//! A [`Connector`] has at most one established connection. Each attempt to connect is a task of its
//! own, so that a caller with a short timeout does not end the attempt that other callers wait for.
//! While the server is down, callers get the error of the latest attempt. The pauses between
//! attempts are up to them.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, PushKind, RedisError, Value};
use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Level;

use super::endpoint::Endpoint;
use super::in_flight::{InFlightLimit, PERMITS};
use super::socket::Socket;
use super::traffic::Traffic;
use super::{dialect, error, probe};
use crate::clock::BootInstant;
use crate::events;
use crate::store::contract::StoreError;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::user_code::contained;

/// How long one attempt to connect may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long callers get the error of a failed attempt instead of a new attempt.
const FAILURE_REUSED_FOR: Duration = Duration::from_millis(20);

/// The capacity of the queue in front of the socket's task: enough for all requests in flight, so
/// that none waits in it after its response timeout has begun.
const QUEUE: usize = 4 * PERMITS as usize;

/// Called with each message that the server sends without a request.
pub(super) type OnMessage = Arc<dyn Fn(&PushInfo) + Send + Sync>;

/// Makes the connections to one server, and keeps the current one.
pub(super) struct Connector {
    endpoint: Arc<Endpoint>,
    /// The runtime that serves the socket.
    home: runtime::Handle,
    on_message: Option<OnMessage>,
    state: Mutex<ConnectorState>,
    /// Notified when an attempt has ended or the connection was lost.
    changed: Notify,
    /// Upgradable for as long as `home` runs its tasks.
    home_alive: Weak<()>,
    /// The task on `home` that keeps `home_alive` upgradable.
    home_task: AbortHandle,
}

#[derive(Default)]
struct ConnectorState {
    current: Option<Established>,
    /// The number of attempts so far. Each attempt has a generation of its own, so that a late
    /// report about a failed attempt does not affect the next one.
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
pub(super) struct Established {
    pub(super) generation: u64,
    pub(super) commands: MultiplexedConnection,
    pub(super) socket: Arc<OpenSocket>,
}

/// An open socket and what its users share. It is closed when the last reference is dropped.
pub(super) struct OpenSocket {
    /// The task that serves the socket. It is aborted in `drop`, so that nothing more is sent.
    driver: AbortHandle,
    /// The task that renews credentials that end.
    stay_logged_in: Option<AbortHandle>,
    /// The permits for acquires.
    pub(super) acquires: InFlightLimit,
    /// The permits for the requests of lock holders.
    pub(super) holders: InFlightLimit,
    pub(super) traffic: Arc<Traffic>,
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
        self.driver.abort();
        if let Some(task) = &self.stay_logged_in {
            task.abort();
        }
    }
}

impl Connector {
    /// Connects when a connection is first asked for.
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        home: runtime::Handle,
        on_message: Option<OnMessage>,
    ) -> Self {
        let alive = Arc::new(());
        let home_alive = Arc::downgrade(&alive);
        let home_task = home.spawn(async move {
            std::future::pending::<()>().await;
            drop(alive);
        });
        let home_task = home_task.abort_handle();
        let (state, changed) = (Mutex::default(), Notify::new());
        Self { endpoint, home, on_message, state, changed, home_alive, home_task }
    }

    /// The server's address, without credentials.
    pub(super) fn address(&self) -> &str {
        self.endpoint.shown()
    }

    /// Whether the program supplies the credentials.
    pub(super) fn has_credentials_source(&self) -> bool {
        self.endpoint.login().has_source()
    }

    pub(super) fn home(&self) -> runtime::Id {
        self.home.id()
    }

    /// Whether the runtime that serves the socket still runs.
    pub(super) fn is_alive(&self) -> bool {
        self.home_alive.strong_count() > 0
    }

    /// The current connection, if there is one.
    pub(super) fn current(&self) -> Option<Established> {
        self.state().current.clone()
    }

    /// Resolves when an attempt to connect has ended or the connection was lost.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits for a connection. Starts an attempt if none is in progress.
    pub(super) async fn wait(
        self: &Arc<Self>,
        within: Duration,
    ) -> Result<Established, StoreError> {
        let end = Instant::now() + within;
        let started = BootInstant::now();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let attempt = {
                let mut state = self.state();
                if let Some(current) = &state.current {
                    return Ok(current.clone());
                }
                if let Some((at, error)) = &state.failure
                    && (*at >= started || BootInstant::now().since(*at) < FAILURE_REUSED_FOR)
                {
                    return Err(error.clone());
                }
                let is_first = !std::mem::replace(&mut state.connecting, true);
                state.generation += u64::from(is_first);
                is_first.then_some(state.generation)
            };
            if let Some(generation) = attempt {
                let connector = Arc::clone(self);
                let attempt = ConnectAttempt { connector, generation, outcome: None };
                // The state must be unlocked here: a runtime that has ended drops the attempt
                // inside `spawn`, and the attempt then locks the state.
                self.home.spawn(attempt.run());
            }
            if timeout_at(end, changed).await.is_err() {
                let (address, within) = (self.address(), within.as_millis());
                let cause = format!("no connection to {address} within {within} ms");
                return Err(StoreError::Refused(cause));
            }
        }
    }

    async fn connect(self: &Arc<Self>, generation: u64) -> Result<Established, StoreError> {
        let weak = Arc::downgrade(self);
        let on_message = self.on_message.clone();
        let config = AsyncConnectionConfig::new()
            // Timeouts are up to the callers.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    if let Some(connector) = weak.upgrade() {
                        connector.discard(generation);
                    }
                } else if let Some(on_message) = &on_message {
                    on_message(&push);
                }
                Ok::<(), ()>(())
            });
        let endpoint = &*self.endpoint;
        let mut login = log_in(endpoint, config.clone()).await;
        let is_rejected =
            matches!(&login, Err(StoreError::Denied(cause)) if error::is_login(cause));
        if is_rejected && self.has_credentials_source() {
            // The credentials may have just been replaced.
            login = log_in(endpoint, config).await;
        }
        let LoggedIn { commands, driver, traffic, valid_for } = login?;
        let stay_logged_in = valid_for.map(|valid_for| {
            let (login, server) = (Arc::clone(endpoint.login()), endpoint.shown().to_owned());
            let weak = Arc::downgrade(self);
            let discard = move || {
                if let Some(connector) = weak.upgrade() {
                    connector.discard(generation);
                }
            };
            let task = login.stay_logged_in(commands.clone(), valid_for, server, discard);
            tokio::spawn(task).abort_handle()
        });
        let (acquires, holders) = (InFlightLimit::new(), InFlightLimit::new());
        let socket = OpenSocket { driver, stay_logged_in, acquires, holders, traffic };
        let socket = Arc::new(socket);
        // Loads the scripts once per connection, so that requests can use their hashes. The first
        // poll puts the load ahead of all requests, so no request has to wait for the reply. For a
        // user without the permission to load scripts, requests fall back to the text.
        let mut loading = commands.clone();
        let mut load = Box::pin(async move {
            drop(dialect::load_all().query_async::<Value>(&mut loading).await);
        });
        if poll_fn(|cx| Poll::Ready(load.as_mut().poll(cx).is_pending())).await {
            drop(tokio::spawn(load));
        }
        Ok(Established { generation, commands, socket })
    }

    /// Drops the connection of this generation, if it is the current one. The next request makes a
    /// new connection.
    pub(super) fn discard(self: &Arc<Self>, generation: u64) {
        let mut state = self.state();
        state.lost = state.lost.max(generation);
        let lost = state.current.take_if(|current| current.generation == generation);
        drop(state);
        if let Some(lost) = lost {
            let (connector, address) = (Arc::clone(self), self.address().to_owned());
            // Both calls wake callers, which the background thread must not do. They therefore run
            // on the runtime that serves the connection.
            self.home.spawn(async move {
                contained(|| lost.socket.close());
                contained(|| connector.changed.notify_waiters());
            });
            events::emit(Level::DEBUG, move || {
                tracing::debug!(address, generation, "disconnected");
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectorState> {
        lock(&self.state)
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.home_task.abort();
    }
}

/// A connection that has logged in.
struct LoggedIn {
    commands: MultiplexedConnection,
    /// The task that serves the socket.
    driver: AbortHandle,
    traffic: Arc<Traffic>,
    /// For how long the credentials are valid.
    valid_for: Option<Duration>,
}

/// Makes one connection and logs in.
async fn log_in(
    endpoint: &Endpoint,
    config: AsyncConnectionConfig,
) -> Result<LoggedIn, StoreError> {
    let (login, valid_for) = endpoint.login().current().await?;
    let traffic = Arc::<Traffic>::default();
    let stream = Socket::connect(endpoint, Arc::clone(&traffic)).await?;
    match MultiplexedConnection::new_with_config(&login, stream, config).await {
        Ok((commands, driver)) => {
            let driver = tokio::spawn(driver).abort_handle();
            endpoint.worked();
            Ok(LoggedIn { commands, driver, traffic, valid_for })
        }
        Err(error) => Err(login_failed(endpoint, &traffic, &error).await),
    }
}

/// Explains why the server did not answer the login.
async fn login_failed(endpoint: &Endpoint, traffic: &Traffic, error: &RedisError) -> StoreError {
    // The server reports a problem with the client's certificate after the handshake.
    if let Some(problem) = traffic.problem() {
        return problem;
    }
    if let Some((host, port)) = endpoint.plain_tcp()
        && matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
        && !endpoint.has_worked()
        && probe::is_tls(host, port).await
    {
        let problem = format!("{} uses TLS; use `rediss://`", endpoint.shown());
        return StoreError::Config { option: "url", problem };
    }
    error::classify(error).error
}

/// One attempt to connect. Its outcome is published when it is dropped, so that an attempt that is
/// cut short ends as well.
struct ConnectAttempt {
    connector: Arc<Connector>,
    generation: u64,
    /// `None` if the attempt is cut short, because its runtime ends.
    outcome: Option<Result<Established, StoreError>>,
}

impl ConnectAttempt {
    async fn run(mut self) {
        let (connector, generation) = (&self.connector, self.generation);
        let address = connector.address();
        let outcome = match timeout(CONNECT_TIMEOUT, connector.connect(generation)).await {
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
        let address = connector.address();
        let mut state = connector.state();
        state.connecting = false;
        let failure = match outcome {
            Ok(established) if state.lost < established.generation => {
                state.current = Some(established);
                None
            }
            Ok(_) => {
                let cause = format!("{address} closed the connection immediately");
                Some(StoreError::Refused(cause))
            }
            Err(error) => Some(error),
        };
        let connected = failure.is_none();
        state.failure = failure.map(|error| (BootInstant::now(), error));
        drop(state);
        connector.changed.notify_waiters();
        // Logged last: a subscriber may block, or use a lock itself.
        if connected {
            let (address, generation) = (address.to_owned(), self.generation);
            events::emit(Level::DEBUG, move || {
                tracing::debug!(address, generation, "connected");
            });
        }
    }
}
