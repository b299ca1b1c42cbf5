//! A connection that reconnects.
//!
//! A [`Connection`] connects when a request needs it, and discards its socket when the socket closes,
//! when a request times out while nothing else arrives, or when the server reports that it is the wrong
//! one to use. While a server is down, requests fail immediately with the latest error. The pauses
//! between retries are up to the callers.
//!
//! The number of requests in flight is limited, because a server answers them one after the other:
//! with a hundred thousand in flight, the last answer would arrive too late although nothing is
//! wrong. Further requests wait for a permit, and their response timeout begins when they have it.
//! The timeout begins again while other answers arrive, up to the request's total timeout. Acquires
//! and the requests of lock holders have separate permits, so that releases do not wait behind the
//! acquires that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime;
use tokio::time::{Instant, timeout};

use super::admission::{InFlight, RequestClass};
use super::connect::{Connector, Established, OpenSocket};
use super::in_flight::PERMITS;
use super::measured::Measured;
use super::quarantine::{MarkedServer, Quarantine};
use super::tracking::Listening;
use crate::scripts::decode::{self, MarkerReply, Unexpected};
use crate::topology::Topology;
use crate::transport::error::{self, Classified};
use crate::transport::outgoing::{self, Outgoing};
use lock_core::clock::BootInstant;
use lock_core::store::contract::{SendTrace, StoreError};
use lock_core::timeout::RequestTimeout;

/// How long a server has at least for the answer over a connection that was idle, unless the response timeout is short.
const BRIEF: Duration = Duration::from_millis(250);

/// A handle to the connection; cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection {
    connector: Arc<Connector>,
    /// How long a request may go unanswered before a silent socket is discarded.
    response_timeout: Duration,
    /// Whether each request is preceded by `ASKING`.
    pub(crate) asking: bool,
}

/// How a request is sent.
#[derive(Clone, Copy)]
pub(crate) struct RequestOptions<'a> {
    pub(crate) class: RequestClass,
    pub(crate) timeout: RequestTimeout,
    /// Written just before the request is sent.
    pub(crate) trace: Option<&'a SendTrace>,
    pub(crate) measured: Option<Measured<'a>>,
}

impl<'a> RequestOptions<'a> {
    /// For a request that is neither traced nor measured.
    pub(crate) const fn new(class: RequestClass, timeout: RequestTimeout) -> Self {
        Self { class, timeout, trace: None, measured: None }
    }

    pub(crate) fn traced(self, trace: &'a SendTrace) -> Self {
        Self { trace: Some(trace), ..self }
    }
}

impl Connection {
    /// A connection whose socket is served on `home`. Connects when it is first used.
    pub(crate) fn new(
        topology: Arc<Topology>,
        home: runtime::Handle,
        response_timeout: Duration,
        listening: Option<Listening>,
    ) -> Self {
        let connector = Arc::new(Connector::new(topology, home, listening));
        Self { connector, response_timeout, asking: false }
    }

    /// The same connection. Each of its requests is served although its slot is only being moved to this node.
    pub(crate) fn asking(&self) -> Self {
        Self { asking: true, ..self.clone() }
    }

    /// Another connection to the same server, which is served on the same runtime.
    pub(crate) fn sibling(&self) -> Self {
        Self { connector: Arc::new(self.connector.sibling()), asking: false, ..self.clone() }
    }

    /// Whether the connection is never used again.
    pub(crate) fn is_obsolete(&self) -> bool {
        !self.is_alive() || self.connector.is_obsolete()
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Starts a task on the runtime that serves the socket.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.connector.spawn(task);
    }

    /// Whether the runtime that serves the socket still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.connector.is_alive()
    }

    pub(crate) fn home(&self) -> runtime::Id {
        self.connector.home()
    }

    /// Sends one command, and decodes its reply with `decode`.
    pub(crate) fn send<T>(
        &self,
        command: &Cmd,
        options: &RequestOptions<'_>,
        decode: impl FnOnce(&Value) -> Result<T, Unexpected>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let outgoing = self.outgoing(command, options.class);
        self.exchange(outgoing, (options, BootInstant::now()), decode)
    }

    pub(crate) fn outgoing<'c>(&self, command: &'c Cmd, class: RequestClass) -> Outgoing<'c> {
        match class {
            _ if self.asking => Outgoing::Asking(command),
            RequestClass::Tracked => Outgoing::Tracked(command),
            _ => Outgoing::Command(command),
        }
    }

    /// Sends several commands at once, and decodes each reply with `decode`.
    pub(crate) async fn send_all<T>(
        &self,
        commands: &Pipeline,
        options: &RequestOptions<'_>,
        decode: impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let is_tracked = matches!(options.class, RequestClass::Tracked);
        let tracked = is_tracked.then(|| outgoing::tracked(commands));
        let (commands, step) = tracked.as_ref().map_or((commands, 1), |tracked| (tracked, 2));
        let (trace, must_discard) = (SendTrace::default(), AtomicBool::new(false));
        let options = RequestOptions { trace: options.trace.or(Some(&trace)), ..*options };
        let decode_one = |reply: &Value| match reply {
            Value::ServerError(error) => {
                let classified = self.classified(&error.clone().into());
                must_discard.fetch_or(classified.discard, Ordering::Relaxed);
                Ok(Err(classified.error))
            }
            reply => decode(reply).map(Ok),
        };
        let decode_all = |replies: &Value| match replies {
            Value::Array(replies) if replies.len() == commands.len() => {
                replies.iter().skip(step - 1).step_by(step).map(decode_one).collect()
            }
            other => Err(Unexpected::new(other)),
        };
        let outgoing = Outgoing::Commands(commands);
        let answers = self.exchange(outgoing, (&options, BootInstant::PAST), decode_all).await;
        let sent = options.trace.and_then(SendTrace::connection);
        if let (true, Some(generation)) = (must_discard.load(Ordering::Relaxed), sent) {
            self.connector.discard(generation.get());
        }
        answers
    }

    /// A request with a trace is measured from its sending, and another one from `began`.
    pub(crate) async fn exchange<T>(
        &self,
        outgoing: Outgoing<'_>,
        (options, mut began): (&RequestOptions<'_>, BootInstant),
        decode: impl FnOnce(&Value) -> Result<T, Unexpected>,
    ) -> Result<T, StoreError> {
        // A connection and a permit are usually available. The other case is boxed, to keep this future small.
        let (request, mut limits) = if let Some(request) = self.try_admit(options.class) {
            (request, options.timeout)
        } else {
            let admitted = Box::pin(self.admitted(*options)).await?;
            began = BootInstant::now();
            admitted
        };
        if let (RequestClass::Acquires, Some(quarantine)) =
            (options.class, &request.socket.quarantine)
            && !quarantine.is_over(self, request.generation)
        {
            let checked = self.check_quarantine(quarantine, &request, (limits, options.measured));
            limits = Box::pin(checked).await?;
        }
        // A router may have forgotten the connection. Some time is then left for another one.
        let traffic = &request.socket.traffic;
        let was_idle = matches!(options.class, RequestClass::Acquires)
            && traffic.silence() >= self.response_timeout
            && traffic.in_flight() <= 1;
        if let Some(trace) = options.trace {
            trace.sent(request.generation);
        }
        began = options.trace.and_then(SendTrace::sent_at).unwrap_or(began);
        // Without the limits, to keep this future small.
        let RequestTimeout { answer: mut longest, total: mut left } = limits;
        if was_idle {
            longest = longest.min(self.brief());
        }
        // A timeout that was cut short says nothing about the server.
        let (mut waited, mut is_cut_short) = (0_u32, false);
        let answer = {
            let mut query = request.socket.commands.send(outgoing);
            loop {
                let within = longest.min(left);
                left = left.saturating_sub(within);
                waited = waited.saturating_add(short_milliseconds(within));
                is_cut_short |=
                    within < if was_idle { self.brief() } else { self.response_timeout };
                let mut answer = query.within(within).await;
                if answer.is_some() {
                    break answer;
                }
                if self.is_silent(&request.socket) {
                    // Answers may have arrived without being read yet: the machine was suspended,
                    // or the task that reads the socket is queued behind thousands of others.
                    let grace = (self.response_timeout / 10).min(left);
                    if !grace.is_zero() {
                        left = left.saturating_sub(grace);
                        waited = waited.saturating_add(short_milliseconds(grace));
                        answer = query.within(grace).await;
                    }
                }
                // The server answers in order, so while other answers arrive, this one is still to come.
                let may_arrive = !left.is_zero() && !self.is_silent(&request.socket);
                if answer.is_some() || !may_arrive {
                    break answer;
                }
            }
        };
        let is_alone = request.socket.traffic.in_flight() <= 1;
        let tells = answer.is_some() || !is_cut_short && (!was_idle || is_alone);
        let answer = match answer {
            Some(Ok(_)) if !self.connector.is_current(&request.socket) => {
                let address = request.socket.server.shown();
                let cause = format!("{address} answered, but another server has the keys now");
                Err(StoreError::Unknown(cause))
            }
            Some(Ok(reply)) => decode(&reply).map_err(|Unexpected(kind)| {
                // The replies may be out of step with the requests, so later ones cannot be trusted.
                self.connector.discard(request.generation);
                let address = request.socket.server.shown();
                StoreError::Unknown(format!("unexpected reply from {address}: {kind}"))
            }),
            Some(Err(error)) => Err(self.classify(request.generation, &error)),
            None => {
                if tells {
                    self.unanswered(request.generation, &request.socket);
                }
                let address = request.socket.server.shown();
                Err(StoreError::Unknown(format!("no answer from {address} within {waited} ms")))
            }
        };
        if let Some(measured) = options.measured {
            measured.ended(began, &answer, tells);
        }
        answer
    }

    /// How long an attempt waits for the answer over a connection that was idle.
    fn brief(&self) -> Duration {
        (self.response_timeout / 2).max(BRIEF).min(self.response_timeout * 3 / 5)
    }

    /// Fails while the server is in quarantine. Returns the remaining timeout.
    async fn check_quarantine(
        &self,
        quarantine: &Arc<Quarantine>,
        request: &InFlight,
        (RequestTimeout { answer, total }, measured): (RequestTimeout, Option<Measured<'_>>),
    ) -> Result<RequestTimeout, StoreError> {
        let (began, started) = (BootInstant::now(), Instant::now());
        let checked = quarantine.check(self, request.generation, answer.min(total)).await;
        if let (Some(measured), Err(_)) = (measured, &checked) {
            measured.ended(began, &checked, false);
        }
        checked?;
        Ok(RequestTimeout { answer, total: total.saturating_sub(started.elapsed()) })
    }

    /// A request that may be sent at once, if there is a connection and a permit.
    fn try_admit(&self, class: RequestClass) -> Option<InFlight> {
        InFlight::try_admit(self.connector.current()?, class)
    }

    /// Waits for a connection and for a permit. Returns the remaining timeout as well.
    async fn admitted(
        &self,
        options: RequestOptions<'_>,
    ) -> Result<(InFlight, RequestTimeout), StoreError> {
        let began = BootInstant::now();
        let admitted = self.admit(&options).await;
        if let (Some(measured), Err(_)) = (options.measured, &admitted) {
            // With a connection, the limit of requests in flight has refused it.
            measured.ended(began, &admitted, self.connector.current().is_none());
        }
        admitted
    }

    async fn admit(
        &self,
        options: &RequestOptions<'_>,
    ) -> Result<(InFlight, RequestTimeout), StoreError> {
        let (started, RequestTimeout { answer, total }) = (Instant::now(), options.timeout);
        let left = || total.saturating_sub(started.elapsed());
        loop {
            let connection = self.established(answer.min(left())).await?;
            let admit = InFlight::admit(connection, options.class, self.response_timeout);
            match timeout(left(), admit).await {
                Ok(Some(request)) => {
                    return Ok((request, RequestTimeout { answer, total: left() }));
                }
                // The connection was discarded.
                Ok(None) => {}
                Err(_) => {
                    let (address, total) = (self.connector.address(), total.as_millis());
                    return Err(StoreError::Refused(format!(
                        "{PERMITS} other requests to {address} were in flight for {total} ms, so \
                         this request was not sent"
                    )));
                }
            }
        }
    }

    /// A request got no answer for a response timeout: discards the connection if it is silent.
    ///
    /// Half a response timeout of silence is enough. Requiring a whole one would be too strict: the
    /// last data that this connection ever delivers may have arrived just after the request was
    /// sent.
    fn unanswered(&self, generation: u64, socket: &OpenSocket) {
        if self.is_silent(socket) {
            self.connector.discard(generation);
        }
    }

    fn is_silent(&self, socket: &OpenSocket) -> bool {
        socket.traffic.silence() >= self.response_timeout / 2
    }

    /// Classifies an error, and discards the connection if it has become unusable.
    pub(crate) fn classify(&self, generation: u64, error: &RedisError) -> StoreError {
        let Classified { error, discard } = self.classified(error);
        if discard {
            self.connector.discard(generation);
        }
        error
    }

    fn classified(&self, error: &RedisError) -> Classified {
        let Classified { error, discard } = error::classify(error);
        let error = match error {
            // The next connection logs in with new credentials.
            StoreError::Denied(cause)
                if error::is_login(&cause) && self.connector.has_credentials_source() =>
            {
                StoreError::Refused(cause)
            }
            error => error,
        };
        Classified { error, discard }
    }

    /// Whether the connection of this generation is the current one.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        self.connector.current().is_some_and(|current| current.generation == generation)
    }

    /// Discards the connection of this generation, if it is the current one.
    pub(crate) fn discard(&self, generation: u64) {
        self.connector.discard(generation);
    }

    /// A request over this connection got no answer for a response timeout.
    pub(crate) fn unanswered_on(&self, connection: &Established) {
        self.unanswered(connection.generation, &connection.socket);
    }

    /// Resolves when an attempt to connect has ended or the connection was lost.
    pub(crate) async fn changed(&self) {
        self.connector.changed().await;
    }

    /// The current connection, or a new one.
    pub(crate) async fn established(&self, within: Duration) -> Result<Established, StoreError> {
        match self.connector.current() {
            Some(connection) => Ok(connection),
            None => Box::pin(self.connector.wait(within)).await,
        }
    }
}

impl MarkedServer for Connection {
    fn address(&self) -> String {
        let current = self.connector.current();
        let current = current.as_ref().map(|connection| connection.socket.server.shown());
        current.unwrap_or_else(|| self.connector.address()).to_owned()
    }

    fn quarantine_markers(&self) -> Vec<String> {
        self.connector.quarantine_markers()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.connector.spawn(task);
    }

    async fn send_about_marker(
        &self,
        commands: &Pipeline,
        trace: &SendTrace,
    ) -> Result<Vec<Result<MarkerReply, StoreError>>, StoreError> {
        let timeout = RequestTimeout::of(self.response_timeout);
        let class = RequestClass::Unlimited;
        let options = RequestOptions::new(class, timeout).traced(trace);
        self.send_all(commands, &options, decode::marker).await
    }
}

/// In 32 bits, to keep the future of a request small.
fn short_milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
