//! One connection that comes back.
//!
//! redis-rs's multiplexed connection neither reconnects nor gives up a socket that has gone silent,
//! and its connection manager makes callers wait for its own retries, so this is done here. A
//! connection is made when a request needs one, by a task of its own, so that callers with little
//! patience do not keep cutting short each other's attempts. It is thrown away as soon as the
//! socket closes, a request times out on a socket that has gone silent, or the server says that it
//! is the wrong one to talk to. While a server is down, requests fail at once with the latest
//! reason; pacing the retries is the callers' business.
//!
//! Only so many requests are under way on a connection at a time, because a server answers them one
//! after the other: the last of a hundred thousand would get its answer too late, although nothing
//! is wrong. The others wait for a permit, and their response timeout begins when they have it. It
//! begins again while other answers arrive, for as long as the caller will wait. An acquire does not
//! use the permits of those who hold locks, so that releases do not wait behind the acquires which
//! wait for them.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::runtime;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Level;

use super::decode::Unexpected;
use super::endpoint::Endpoint;
use super::format;
use super::reply;
use super::script::Script;
use super::stream::{Stream, Traffic};
use crate::clock::BootInstant;
use crate::events;
use crate::foreign::contained;
use crate::protection::Protection;
use crate::store::{Patience, StoreError, Trace};

/// How long one attempt to connect may take.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// For how long after a failed attempt the next one is spared.
const FAILURE_STANDS: Duration = Duration::from_millis(20);

/// How many requests of each [`Limit`] may be under way on a connection.
const PERMITS: u32 = 1024;

/// Requests that may queue up before the socket's task has taken them: as many as there can be, so
/// that none waits here after its response timeout has begun.
const QUEUE: usize = 4 * PERMITS as usize;

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
    /// The socket is served for as long as anybody has a copy of this.
    shared: Arc<Shared>,
}

/// What the users of one connection have in common.
struct Shared {
    /// The task that serves the socket. Ended with this, so that nothing more is sent.
    driver: AbortHandle,
    /// The permits of [`Limit::Acquires`]. Closed, like the others, when the connection is given up.
    acquires: Permits,
    /// Those of [`Limit::Holders`].
    holders: Permits,
    traffic: Arc<Traffic>,
}

/// How many more requests may be under way.
///
/// A permit is given back when its request's future is dropped. One that is alive and not polled
/// keeps its permit although it was answered long ago, and a task that waits for a permit may be the
/// very one that ought to poll it. So while somebody waits, permits lapse: those that were issued
/// before the last response timeout began are issued once more, and are not counted when they come
/// back.
struct Permits {
    semaphore: Semaphore,
    /// Goes on whenever somebody has waited for a response timeout.
    epoch: AtomicUsize,
    /// The last epoch whose permits have lapsed.
    lapsed: AtomicUsize,
    /// How many permits of the latest epochs are out.
    out: [AtomicU32; EPOCHS],
}

/// How many epochs are told apart. Those before the last but one have lapsed.
const EPOCHS: usize = 4;

impl Permits {
    fn new() -> Self {
        let (epoch, lapsed) = (AtomicUsize::new(1), AtomicUsize::new(0));
        let semaphore = Semaphore::new(PERMITS as usize);
        Self { semaphore, epoch, lapsed, out: Default::default() }
    }

    /// The epoch in which the permit was issued, if there is one.
    fn try_acquire(&self) -> Option<usize> {
        self.semaphore.try_acquire().ok().map(|permit| self.issue(permit))
    }

    /// `None` if they were closed first.
    async fn acquire(&self, response_timeout: Duration) -> Option<usize> {
        let mut acquiring = std::pin::pin!(self.semaphore.acquire());
        loop {
            let before = self.epoch.load(Ordering::Relaxed);
            match timeout(response_timeout, acquiring.as_mut()).await {
                Ok(permit) => return permit.ok().map(|permit| self.issue(permit)),
                Err(_) => self.go_on(before),
            }
        }
    }

    fn issue(&self, permit: SemaphorePermit<'_>) -> usize {
        permit.forget();
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.out(epoch).fetch_add(1, Ordering::Relaxed);
        epoch
    }

    fn out(&self, epoch: usize) -> &AtomicU32 {
        &self.out[epoch % EPOCHS]
    }

    /// Somebody has waited through `epoch` for a response timeout. What was issued before it has
    /// been answered since, or never will be.
    fn go_on(&self, epoch: usize) {
        let (on, relaxed) = (Protection::PermitsComeBack.is_on(), Ordering::Relaxed);
        if on && self.epoch.compare_exchange(epoch, epoch + 1, relaxed, relaxed).is_ok() {
            self.lapsed.store(epoch - 1, relaxed);
            let lapsed = self.out(epoch - 1).swap(0, relaxed);
            contained(|| self.semaphore.add_permits(lapsed as usize));
        }
    }

    /// A request of this epoch is not under way any more.
    fn give_back(&self, epoch: usize) {
        let relaxed = Ordering::Relaxed;
        if epoch <= self.lapsed.load(relaxed) {
            return;
        }
        let still_out = |out: u32| out.checked_sub(1);
        if self.out(epoch).fetch_update(relaxed, relaxed, still_out).is_ok() {
            contained(|| self.semaphore.add_permits(1));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What a request counts against while it is under way.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// The requests of those who want a lock.
    Acquires,
    /// The requests of those who have or had one, such as releases.
    Holders,
    /// Nothing: their number is limited by whoever sends them.
    None,
}

/// How a request is sent.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) limit: Limit,
    pub(super) patience: Patience,
    /// Told just before the request is sent.
    pub(super) trace: Option<&'a Trace>,
}

/// A request that may be sent. It is under way until this is dropped.
struct Permit {
    generation: u64,
    socket: MultiplexedConnection,
    shared: Arc<Shared>,
    limit: Limit,
    /// When it was issued.
    epoch: usize,
}

impl Connection {
    /// Without a wait; gives the connection back if there is no permit now.
    fn try_admit(self, limit: Limit) -> Result<Permit, Self> {
        let mut epoch = 0;
        if let Some(permits) = self.shared.permits(limit) {
            match permits.try_acquire() {
                Some(issued) => epoch = issued,
                None => return Err(self),
            }
        }
        Ok(self.permit(limit, epoch))
    }

    /// `None` if the connection is given up first.
    async fn admit(self, limit: Limit, response_timeout: Duration) -> Option<Permit> {
        let mut epoch = 0;
        if let Some(permits) = self.shared.permits(limit) {
            epoch = permits.acquire(response_timeout).await?;
        }
        Some(self.permit(limit, epoch))
    }

    fn permit(self, limit: Limit, epoch: usize) -> Permit {
        let Self { generation, socket, shared } = self;
        shared.traffic.begin();
        Permit { generation, socket, shared, limit, epoch }
    }
}

impl Shared {
    fn permits(&self, limit: Limit) -> Option<&Permits> {
        match limit {
            _ if !Protection::LimitedRequests.is_on() => None,
            Limit::Acquires => Some(&self.acquires),
            Limit::Holders => Some(&self.holders),
            Limit::None => None,
        }
    }

    /// Sends those who wait for a permit away.
    fn close(&self) {
        self.acquires.semaphore.close();
        self.holders.semaphore.close();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.traffic.end();
        if let Some(permits) = self.shared.permits(self.limit) {
            permits.give_back(self.epoch);
        }
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

    /// Sends one command, and says by `decode` what its reply means.
    pub(super) async fn send<T>(
        &self,
        command: &Cmd,
        call: Call<'_>,
        decode: impl FnOnce(Value) -> Result<T, Unexpected>,
    ) -> Result<T, StoreError> {
        // Mostly there is a connection, and a permit. Boxed, what it takes if not.
        let ready = self.current().map(|connection| connection.try_admit(call.limit));
        let (mut permit, patience) = match ready {
            Some(Ok(permit)) => (permit, call.patience),
            Some(Err(_)) | None => Box::pin(self.admitted(call)).await?,
        };
        if let Some(trace) = call.trace {
            trace.sent(permit.generation);
        }
        let (mut within, mut left) = (patience.answer.min(patience.total), patience.total);
        let answer = {
            let mut asked = std::pin::pin!(command.query_async(&mut permit.socket));
            loop {
                let mut answer = timeout(within, asked.as_mut()).await;
                left = left.saturating_sub(within);
                if answer.is_err() && self.is_silent(&permit.shared) {
                    // Answers may have arrived, and nobody has read them: this machine stood still, or
                    // the task that reads is in a queue with thousands of others.
                    let late = (self.inner.response_timeout / 10).min(left);
                    if !late.is_zero() {
                        answer = timeout(late, asked.as_mut()).await;
                        left = left.saturating_sub(late);
                    }
                }
                // A server answers in order, so while any answers arrive this one is to come.
                let is_to_come = !left.is_zero() && !self.is_silent(&permit.shared);
                if answer.is_ok() || !is_to_come || !Protection::PatienceWithAnswers.is_on() {
                    break answer;
                }
                within = patience.answer.min(left);
            }
        };
        match answer {
            Ok(Ok(reply)) => decode(reply).map_err(|Unexpected(kind)| {
                // Whatever it was the reply to: the next one may be another's as well.
                self.discard(permit.generation);
                let address = self.inner.endpoint.address();
                StoreError::Unknown(format!("{address} gave an unexpected reply: {kind}"))
            }),
            Ok(Err(error)) => Err(self.judge(permit.generation, &error)),
            Err(_) => {
                // A wait that was cut short says nothing about the socket.
                if within >= self.inner.response_timeout {
                    self.unanswered(permit.generation, &permit.shared);
                }
                let address = self.inner.endpoint.address();
                let waited = patience.total.saturating_sub(left).as_millis();
                Err(StoreError::Unknown(format!("no answer from {address} within {waited} ms")))
            }
        }
    }

    /// Runs a script by its hash, or by its text if the server does not know it any more. `args`
    /// adds the number of keys, the keys and the arguments.
    pub(super) async fn run<T>(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
        call: Call<'_>,
        decode: impl Fn(Value) -> Result<T, Unexpected>,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let mut command = script.by_hash();
        args(&mut command);
        match self.send(&command, call, &decode).await {
            Err(StoreError::Refused(cause))
                if cause.starts_with(reply::NO_SCRIPT) && Protection::ScriptByText.is_on() => {}
            reply => return reply,
        }
        command = script.by_text();
        args(&mut command);
        let total = call.patience.total.saturating_sub(started.elapsed());
        let call = Call { patience: Patience { total, ..call.patience }, ..call };
        // Boxed, because it is rarely needed.
        Box::pin(self.send(&command, call, decode)).await
    }

    /// Waits for a connection and for a permit, and returns it with the patience that is left.
    async fn admitted(&self, call: Call<'_>) -> Result<(Permit, Patience), StoreError> {
        let (started, Patience { answer, total }) = (Instant::now(), call.patience);
        let left = || total.saturating_sub(started.elapsed());
        loop {
            let connection = self.connection(answer.min(left())).await?;
            let admit = connection.admit(call.limit, self.inner.response_timeout);
            match timeout(left(), admit).await {
                Ok(Some(permit)) => return Ok((permit, Patience { answer, total: left() })),
                // The connection was given up meanwhile.
                Ok(None) => {}
                Err(_) => {
                    let (address, total) = (self.inner.endpoint.address(), total.as_millis());
                    return Err(StoreError::Refused(format!(
                        "{PERMITS} requests to {address} were under way for {total} ms, this one \
                         was not sent"
                    )));
                }
            }
        }
    }

    /// A request got no answer for a response timeout: gives its connection up, unless others did.
    ///
    /// Half a response timeout of silence is enough. A whole one would be too much: what arrived
    /// right behind the request may be the last that arrives on this connection at all.
    fn unanswered(&self, generation: u64, shared: &Shared) {
        if self.is_silent(shared) && Protection::SilenceIsNoticed.is_on() {
            self.discard(generation);
        }
    }

    fn is_silent(&self, shared: &Shared) -> bool {
        shared.traffic.silence() >= self.inner.response_timeout / 2
    }

    /// What an error means, for the connection too.
    pub(super) fn judge(&self, generation: u64, error: &RedisError) -> StoreError {
        let verdict = reply::judge(error);
        if verdict.discard {
            self.inner.discard(generation);
        }
        verdict.error
    }

    /// A request over this connection got no answer for a response timeout.
    pub(super) fn unanswered_on(&self, connection: &Connection) {
        self.unanswered(connection.generation, &connection.shared);
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
            Ok(Ok(connection)) => Ok(connection),
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
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let cause = "the runtime that served the connection is gone";
            Err(StoreError::Refused(cause.into()))
        });
        let address = inner.endpoint.address();
        let mut state = inner.state();
        state.connecting = false;
        let failure = match outcome {
            Ok(connection) if state.lost < connection.generation => {
                state.connection = Some(connection);
                None
            }
            Ok(_) => {
                let cause = format!("{address} closed the connection at once");
                Some(StoreError::Refused(cause))
            }
            Err(error) => Some(error),
        };
        let connected = failure.is_none();
        state.failure = failure.map(|error| (BootInstant::now(), error));
        drop(state);
        inner.changed.notify_waiters();
        // Not before: a subscriber may block, or use a lock itself.
        if connected {
            let (address, generation) = (address.to_owned(), self.generation);
            events::emit(Level::DEBUG, move || {
                tracing::debug!(address, generation, "connected");
            });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.life.abort();
    }
}

impl Inner {
    async fn connect(self: &Arc<Self>, generation: u64) -> Result<Connection, RedisError> {
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
        let traffic = Arc::<Traffic>::default();
        let stream = Stream::connect(info.addr(), Arc::clone(&traffic)).await?;
        let (socket, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
        let (driver, acquires, holders) =
            (tokio::spawn(driver).abort_handle(), Permits::new(), Permits::new());
        let shared = Arc::new(Shared { driver, acquires, holders, traffic });
        // Once a connection, so that no request has to. They are ahead of all requests once this was
        // polled, so nobody waits for them. A user who may not is served by text.
        let mut to_load = socket.clone();
        let mut load = Box::pin(async move {
            drop(format::load_all().query_async::<redis::Value>(&mut to_load).await);
        });
        if poll_fn(|cx| Poll::Ready(load.as_mut().poll(cx).is_pending())).await {
            drop(tokio::spawn(load));
        }
        Ok(Connection { generation, socket, shared })
    }

    fn discard(self: &Arc<Self>, generation: u64) {
        let mut state = self.state();
        state.lost = state.lost.max(generation);
        let lost = state.connection.take_if(|connection| connection.generation == generation);
        drop(state);
        if let Some(lost) = lost {
            let (inner, address) = (Arc::clone(self), self.endpoint.address().to_owned());
            // This may be the keeper's thread, and both wake callers: so where those are.
            self.home.spawn(async move {
                contained(|| lost.shared.close());
                contained(|| inner.changed.notify_waiters());
            });
            events::emit(Level::DEBUG, move || {
                tracing::debug!(address, generation, "disconnected");
            });
        }
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE_TIMEOUT: Duration = Duration::from_millis(20);

    fn all_of(permits: &Permits) -> Vec<usize> {
        std::iter::from_fn(|| permits.try_acquire()).collect()
    }

    #[tokio::test]
    async fn permits_that_do_not_come_back_are_issued_once_more() {
        let permits = Permits::new();
        let first = all_of(&permits);
        assert_eq!(first.len(), PERMITS as usize);
        // Several notice it, and they are issued once more, not once more for each.
        let wait = || permits.acquire(RESPONSE_TIMEOUT);
        let (one, two, three) = tokio::join!(wait(), wait(), wait());
        let mut second = all_of(&permits);
        second.extend([one, two, three].into_iter().flatten());
        assert_eq!(second.len(), PERMITS as usize);
        // The first ones come back after all.
        for epoch in first {
            permits.give_back(epoch);
        }
        assert_eq!(permits.try_acquire(), None, "there are no more than before");
        for epoch in second {
            permits.give_back(epoch);
        }
        assert_eq!(all_of(&permits).len(), PERMITS as usize);
    }

    #[tokio::test]
    async fn those_that_do_not_come_back_are_issued_once_more_although_others_do() {
        let permits = Permits::new();
        let mut stuck = all_of(&permits);
        let mut moving = vec![stuck.pop().expect("the last one")];
        let start = Instant::now();
        let mut most = 0;
        while most < 100 {
            // All that are in motion come back, and as many as there are go out again.
            moving.drain(..).for_each(|epoch| permits.give_back(epoch));
            moving.extend(permits.acquire(RESPONSE_TIMEOUT).await);
            moving.extend(all_of(&permits));
            // Somebody has to wait for the next one.
            let waiting = permits.acquire(RESPONSE_TIMEOUT);
            let soon = tokio::time::timeout(RESPONSE_TIMEOUT * 3, waiting).await;
            moving.extend(soon.ok().flatten());
            most = most.max(moving.len());
            assert!(start.elapsed() < RESPONSE_TIMEOUT * 100, "{most} at a time at the most");
        }
    }

    #[tokio::test]
    async fn permits_that_come_back_slowly_are_waited_for() {
        let permits = Permits::new();
        let mut out = all_of(&permits);
        let slowly = async {
            for _ in 0..10 {
                tokio::time::sleep(RESPONSE_TIMEOUT / 4).await;
                permits.give_back(out.pop().expect("many"));
            }
        };
        let enough = async {
            for _ in 0..10 {
                assert!(permits.acquire(RESPONSE_TIMEOUT).await.is_some());
            }
        };
        tokio::join!(enough, slowly);
        assert_eq!(permits.lapsed.load(Ordering::Relaxed), 0);
        assert_eq!(permits.try_acquire(), None);
    }

    #[tokio::test]
    async fn those_who_wait_for_permits_are_sent_away_when_they_are_closed() {
        let permits = Permits::new();
        assert_eq!(all_of(&permits).len(), PERMITS as usize);
        let closing = async { permits.semaphore.close() };
        let (acquired, ()) = tokio::join!(permits.acquire(RESPONSE_TIMEOUT), closing);
        assert_eq!(acquired, None);
    }
}
