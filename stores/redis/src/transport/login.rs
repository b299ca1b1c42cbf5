//! Logging in: with the credentials of the URL, or with those that the program supplies.
//!
//! The program's function is user code, which may block or panic. It therefore runs on a thread of
//! its own, and never on the thread of the renewals, whose connection needs credentials as well.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisConnectionInfo, cmd};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::Level;

use super::error;
use lock_core::backoff::{between, jittered};
use lock_core::credentials::{Credentials, CredentialsSource, Obtained};
use lock_core::events;
use lock_core::store::contract::StoreError;
use lock_core::sync::{Mutex, lock};

/// How long the program may take to supply credentials: less than an attempt to connect may take.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the server may take to accept credentials on an open connection.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest time between two logins of a connection, however short the credentials last.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);

/// The pause after a failed attempt to log in again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How connections log in.
pub(crate) struct Login {
    /// Everything but credentials of the program.
    settings: RedisConnectionInfo,
    source: Option<Source>,
}

/// The program's function and the thread that calls it.
struct Source {
    function: CredentialsSource,
    /// The requests to the thread; `None` until the first one.
    requests: Mutex<Option<mpsc::UnboundedSender<oneshot::Sender<Obtained>>>>,
}

impl Login {
    pub(crate) fn new(settings: RedisConnectionInfo, source: Option<CredentialsSource>) -> Self {
        let source = source.map(|function| Source { function, requests: Mutex::default() });
        Self { settings, source }
    }

    /// Whether the program supplies the credentials.
    pub(crate) fn has_source(&self) -> bool {
        self.source.is_some()
    }

    #[cfg(test)]
    pub(crate) fn settings(&self) -> &RedisConnectionInfo {
        &self.settings
    }

    /// The current settings for a new connection, and for how long its credentials are valid.
    pub(crate) async fn current(
        &self,
    ) -> Result<(RedisConnectionInfo, Option<Duration>), StoreError> {
        let Some(source) = &self.source else { return Ok((self.settings.clone(), None)) };
        let Credentials { user, password, valid_for } = source.obtain().await?;
        let mut settings = self.settings.clone().set_password(password);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        Ok((settings, valid_for))
    }

    /// Logs an open connection in again, each time before its credentials end. Runs until the
    /// connection is closed, or until new credentials have no end. Calls `discard` if the
    /// connection does not answer.
    pub(crate) async fn stay_logged_in(
        self: Arc<Self>,
        mut connection: MultiplexedConnection,
        mut valid_for: Duration,
        server: String,
        discard: impl Fn(),
    ) {
        let Some(source) = &self.source else { return };
        loop {
            // The processes of a service do not ask for credentials all at once.
            let pause = between(valid_for / 10 * 7, valid_for / 10 * 8);
            sleep(pause.max(SHORTEST_INTERVAL)).await;
            let mut failures = 0_u32;
            let renewed = loop {
                let error = match source.log_in_again(&mut connection).await {
                    LoginOutcome::Accepted(valid_for) => break valid_for,
                    LoginOutcome::Closed => return,
                    LoginOutcome::Unanswered => return discard(),
                    LoginOutcome::Failed(error) => error,
                };
                failures = failures.saturating_add(1);
                if failures == 1 {
                    let server = server.clone();
                    events::emit(Level::WARN, move || {
                        tracing::warn!(
                            target: "lock_runtime::store::redis",
                            server,
                            %error,
                            "cannot renew the credentials of a connection; retrying"
                        );
                    });
                }
                sleep(jittered((valid_for / 20).clamp(SHORTEST_PAUSE, LONGEST_PAUSE))).await;
            };
            let Some(renewed) = renewed else { return };
            valid_for = renewed;
        }
    }
}

/// The outcome of an attempt to log an open connection in again.
enum LoginOutcome {
    /// For how long the new credentials are valid, if they end.
    Accepted(Option<Duration>),
    Failed(StoreError),
    /// The connection is closed.
    Closed,
    /// The server does not answer.
    Unanswered,
}

impl Source {
    /// Obtains credentials from the program.
    async fn obtain(&self) -> Result<Credentials, StoreError> {
        let failed = |cause: &str| {
            StoreError::Refused(format!("the program supplied no credentials: {cause}"))
        };
        let (reply, answer) = oneshot::channel();
        self.request(reply).map_err(|error| failed(&error.to_string()))?;
        match timeout(SOURCE_TIMEOUT, answer).await {
            Ok(Ok(Ok(credentials))) => Ok(credentials),
            Ok(Ok(Err(error))) => Err(failed(&error)),
            Ok(Err(_)) => Err(failed("its function panicked")),
            Err(_) => Err(failed(&format!("its function took longer than {SOURCE_TIMEOUT:?}"))),
        }
    }

    /// Sends a request to the thread. Starts the thread if it does not run.
    fn request(&self, reply: oneshot::Sender<Obtained>) -> std::io::Result<()> {
        let mut requests = lock(&self.requests);
        let reply = match &*requests {
            Some(sender) => match sender.send(reply) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(reply)) => reply,
            },
            None => reply,
        };
        let sender = start(self.function.clone())?;
        let _ = sender.send(reply);
        *requests = Some(sender);
        Ok(())
    }

    /// Logs an open connection in with new credentials.
    async fn log_in_again(&self, connection: &mut MultiplexedConnection) -> LoginOutcome {
        let Credentials { user, password, valid_for } = match self.obtain().await {
            Ok(credentials) => credentials,
            Err(error) => return LoginOutcome::Failed(error),
        };
        let mut auth = cmd("AUTH");
        if let Some(user) = user {
            auth.arg(user);
        }
        auth.arg(password);
        match timeout(LOGIN_TIMEOUT, auth.query_async::<()>(connection)).await {
            Ok(Ok(())) => LoginOutcome::Accepted(valid_for),
            Ok(Err(error)) if error.kind() == ErrorKind::Io => LoginOutcome::Closed,
            Ok(Err(error)) => LoginOutcome::Failed(error::classify(&error).error),
            Err(_) => LoginOutcome::Unanswered,
        }
    }
}

/// Starts the thread that calls the program's function. It ends when the sender is dropped.
fn start(
    function: CredentialsSource,
) -> std::io::Result<mpsc::UnboundedSender<oneshot::Sender<Obtained>>> {
    let (sender, mut requests) = mpsc::unbounded_channel::<oneshot::Sender<Obtained>>();
    std::thread::Builder::new().name("lock-credentials".into()).spawn(move || {
        // Built here, because a runtime must not be dropped inside another one. Without it, all
        // requests end without an answer.
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            while let Some(reply) = requests.recv().await {
                // A panic drops `reply`.
                tokio::spawn(answer(function.clone(), reply));
            }
        });
    })?;
    Ok(sender)
}

/// Answers a request, unless its sender gives up first.
async fn answer(function: CredentialsSource, mut reply: oneshot::Sender<Obtained>) {
    if reply.is_closed() {
        return;
    }
    let obtained = tokio::select! {
        obtained = function.obtain() => obtained,
        () = reply.closed() => return,
    };
    let _ = reply.send(obtained);
}
