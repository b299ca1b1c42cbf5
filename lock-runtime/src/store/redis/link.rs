//! One connection that comes back.
//!
//! redis-rs's multiplexed connection neither reconnects nor gives up a socket that has gone silent,
//! and its connection manager makes callers wait for its own retries, so this is done here. A
//! connection is made when a request needs one, by a task of its own, so that callers with little
//! patience do not keep cutting short each other's attempts. It is thrown away as soon as the
//! socket closes, a request times out, or the server says that it is the wrong one to talk to.
//! While a server is down, requests fail at once with the latest reason; pacing the retries is the
//! callers' business.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, PushInfo, PushKind, RedisError};
use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::endpoint::Endpoint;
use super::format;
use super::reply;
use super::script::Script;
use super::stream::Stream;
use crate::clock::BootInstant;
use crate::protection::Protection;
use crate::store::StoreError;

/// How long one attempt to connect may take.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// For how long after a failed attempt the next one is spared.
const FAILURE_STANDS: Duration = Duration::from_millis(20);

/// Requests that may queue up before the socket's task has taken them.
const QUEUE: usize = 1024;

/// What is done with a message that the server sends by itself.
pub(super) type OnMessage = Arc<dyn Fn(&PushInfo) + Send + Sync>;

/// A handle to the connection; cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Arc<Endpoint>,
    /// Where the socket's task runs.
    home: runtime::Handle,
    /// How long a request may take before the socket is given up.
    response_timeout: Duration,
    on_message: Option<OnMessage>,
    /// How many requests are.
    under_way: Arc<AtomicUsize>,
    state: Mutex<State>,
    /// Told when an attempt has ended or a connection was lost.
    changed: Notify,
    /// Gone once `home` is.
    alive: Weak<()>,
    /// The task that holds on to `alive`.
    life: AbortHandle,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Counts the attempts that there were.
    generation: u64,
    /// The latest connection that was lost; it may be heard of before the connection itself.
    lost: u64,
    connecting: bool,
    /// Why the last attempt failed, and when.
    failure: Option<(BootInstant, StoreError)>,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub(super) generation: u64,
    pub(super) socket: MultiplexedConnection,
    /// What serves the socket; it goes on for as long as anybody has a copy of this.
    pub(super) driver: Arc<Driver>,
}

/// The task that serves a socket. Ended when dropped, so that nothing more is sent.
pub(super) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A request under way.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn new(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Link {
    /// A link whose socket is served on `home`. Connects when it is first used.
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        home: runtime::Handle,
        response_timeout: Duration,
        on_message: Option<OnMessage>,
    ) -> Self {
        // A task that holds this for as long as the runtime keeps its tasks.
        let life = Arc::new(());
        let alive = Arc::downgrade(&life);
        let life = home.spawn(async move {
            std::future::pending::<()>().await;
            drop(life);
        });
        let life = life.abort_handle();
        let inner = Inner {
            endpoint,
            home,
            response_timeout,
            on_message,
            under_way: Arc::default(),
            state: Mutex::default(),
            changed: Notify::new(),
            alive,
            life,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether the runtime that serves it is still there.
    pub(super) fn is_alive(&self) -> bool {
        self.inner.alive.strong_count() > 0
    }

    pub(super) fn home(&self) -> runtime::Id {
        self.inner.home.id()
    }

    /// Sends one command and waits up to `within` for its reply.
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        command: &Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let (connection, patience) = match self.current() {
            Some(connection) => (connection, within),
            None => {
                let connection = Box::pin(self.connect(within)).await?;
                (connection, within.saturating_sub(started.elapsed()))
            }
        };
        let Connection { generation, mut socket, driver: _served } = connection;
        let _under_way = UnderWay::new(&self.inner.under_way);
        let end = started + within;
        match timeout_at(end, command.query_async(&mut socket)).await {
            Ok(reply) => reply.map_err(|error| self.judge(generation, &error)),
            Err(_) => {
                // A wait that was cut short says nothing about the socket.
                if patience + Duration::from_millis(1) >= self.inner.response_timeout {
                    self.inner.discard(generation);
                }
                let address = self.inner.endpoint.address();
                let within = within.as_millis();
                Err(StoreError::Unknown(format!("no answer from {address} within {within} ms")))
            }
        }
    }

    /// Runs a script by its hash, or by its text if the server does not know it any more. `args`
    /// adds the number of keys, the keys and the arguments.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
        within: Duration,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let mut command = script.by_hash();
        args(&mut command);
        match self.send(&command, within).await {
            Err(StoreError::Refused(cause))
                if cause.starts_with(reply::NO_SCRIPT) && Protection::ScriptByText.is_on() => {}
            reply => return reply,
        }
        command = script.by_text();
        args(&mut command);
        // Boxed, because it is rarely needed.
        Box::pin(self.send(&command, within.saturating_sub(started.elapsed()))).await
    }

    /// What an error means, for the connection too.
    pub(super) fn judge(&self, generation: u64, error: &RedisError) -> StoreError {
        let verdict = reply::judge(error);
        if verdict.discard {
            self.inner.discard(generation);
        }
        verdict.error
    }

    /// Gives up a connection, if it is still the current one.
    pub(super) fn discard(&self, generation: u64) {
        self.inner.discard(generation);
    }

    /// Resolves when an attempt to connect has ended or the connection was lost.
    pub(super) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// The connection, made anew if there is none.
    pub(super) async fn connection(&self, within: Duration) -> Result<Connection, StoreError> {
        match self.current() {
            Some(connection) => Ok(connection),
            None => Box::pin(self.connect(within)).await,
        }
    }

    fn current(&self) -> Option<Connection> {
        self.inner.state().connection.clone()
    }

    async fn connect(&self, within: Duration) -> Result<Connection, StoreError> {
        let end = Instant::now() + within;
        let started = BootInstant::now();
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            let connect = {
                let mut state = self.inner.state();
                if let Some(connection) = &state.connection {
                    return Ok(connection.clone());
                }
                if let Some((at, error)) = &state.failure
                    && (*at >= started || BootInstant::now().since(*at) < FAILURE_STANDS)
                {
                    return Err(error.clone());
                }
                let connect = !std::mem::replace(&mut state.connecting, true);
                // Each attempt has its own, so that what is heard of a failed one says nothing of
                // the next.
                state.generation += u64::from(connect);
                connect.then_some(state.generation)
            };
            if let Some(generation) = connect {
                // With the state unlocked: a runtime that is gone drops the attempt right here.
                let attempt = Attempt { inner: Arc::clone(&self.inner), generation, outcome: None };
                self.inner.home.spawn(attempt.run());
            }
            if timeout_at(end, changed).await.is_err() {
                let address = self.inner.endpoint.address();
                let within = within.as_millis();
                let cause = format!("no connection to {address} within {within} ms");
                return Err(StoreError::Refused(cause));
            }
        }
    }
}

/// An attempt to connect; however it ends, it is not under way any more.
struct Attempt {
    inner: Arc<Inner>,
    generation: u64,
    /// `None` if it is cut short, which happens when its runtime ends.
    outcome: Option<Result<Connection, StoreError>>,
}

impl Attempt {
    async fn run(mut self) {
        let (inner, generation) = (&self.inner, self.generation);
        let address = inner.endpoint.address();
        let outcome = match timeout(CONNECT_PATIENCE, inner.connect(generation)).await {
            Ok(Ok((socket, driver))) => Ok(Connection { generation, socket, driver }),
            // Nothing was asked yet, so nothing can have been done.
            Ok(Err(error)) => Err(match reply::judge(&error).error {
                StoreError::Unknown(cause) | StoreError::Refused(cause) => {
                    StoreError::Refused(format!("cannot connect to {address}: {cause}"))
                }
                permanent => permanent,
            }),
            Err(_) => Err(StoreError::Refused(format!(
                "cannot connect to {address}: no answer in {CONNECT_PATIENCE:?}"
            ))),
        };
        self.outcome = Some(outcome);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let inner = &self.inner;
        let mut state = inner.state();
        state.connecting = false;
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let cause = "the runtime that served the connection is gone";
            Err(StoreError::Refused(cause.into()))
        });
        let address = inner.endpoint.address();
        let failure = match outcome {
            Ok(connection) if state.lost < connection.generation => {
                tracing::debug!(%address, generation = connection.generation, "connected");
                state.connection = Some(connection);
                None
            }
            Ok(_) => {
                let cause = format!("{address} closed the connection at once");
                Some(StoreError::Refused(cause))
            }
            Err(error) => Some(error),
        };
        state.failure = failure.map(|error| (BootInstant::now(), error));
        drop(state);
        inner.changed.notify_waiters();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.life.abort();
    }
}

impl Inner {
    async fn connect(
        self: &Arc<Self>,
        generation: u64,
    ) -> Result<(MultiplexedConnection, Arc<Driver>), RedisError> {
        let weak = Arc::downgrade(self);
        let on_message = self.on_message.clone();
        let config = AsyncConnectionConfig::new()
            // This file's business.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    if let Some(inner) = weak.upgrade() {
                        inner.discard(generation);
                    }
                } else if let Some(on_message) = &on_message {
                    on_message(&push);
                }
                Ok::<(), ()>(())
            });
        let info = self.endpoint.info();
        let stream = Stream::connect(info.addr(), Arc::clone(&self.under_way)).await?;
        let (mut socket, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
        let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
        // Once a connection, so that no request has to. A user who may not is served by text.
        let loaded = format::load_all().query_async::<redis::Value>(&mut socket).await;
        if let Err(error) = loaded
            && error.is_io_error()
        {
            return Err(error);
        }
        Ok((socket, driver))
    }

    fn discard(&self, generation: u64) {
        let mut state = self.state();
        state.lost = state.lost.max(generation);
        let current = state.connection.as_ref().map(|connection| connection.generation);
        if current == Some(generation) {
            state.connection = None;
            drop(state);
            tracing::debug!(address = %self.endpoint.address(), generation, "disconnected");
            self.changed.notify_waiters();
        }
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
