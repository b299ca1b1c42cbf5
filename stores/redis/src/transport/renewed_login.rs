//! Logging an open connection in again, before its credentials end.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, cmd};
use tokio::time::{sleep, timeout};
use tracing::Level;

use super::error;
use super::login::Login;
use super::pipelined::PipelinedSocket;
use lock_core::backoff::{between, jittered};
use lock_core::events;
use lock_core::store::contract::StoreError;

/// How long the server may take to accept credentials on an open connection.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest time between two logins of a connection, however short the credentials last.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);

/// The pause after a failed attempt to log in again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Logs an open connection to `server` in again, each time before its credentials end. Runs until the
/// connection is closed, or until new credentials have no end. Calls `discard` if the connection does not
/// answer.
pub(crate) async fn stay_logged_in(
    login: Arc<Login>,
    (connection, server): (PipelinedSocket, String),
    mut valid_for: Duration,
    discard: impl Fn(),
) {
    loop {
        // The processes of a service do not ask for credentials all at once.
        let pause = between(valid_for / 10 * 7, valid_for / 10 * 8);
        sleep(pause.max(SHORTEST_INTERVAL)).await;
        let mut has_failed = false;
        let renewed = loop {
            let error = match log_in_again(&login, &connection).await {
                LoginOutcome::Accepted(valid_for) => break valid_for,
                LoginOutcome::Closed => return,
                LoginOutcome::Unanswered => return discard(),
                LoginOutcome::Failed(error) => error,
            };
            if !std::mem::replace(&mut has_failed, true) {
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

/// Logs an open connection in with new credentials.
async fn log_in_again(login: &Login, connection: &PipelinedSocket) -> LoginOutcome {
    let (settings, valid_for) = match login.current().await {
        Ok(current) => current,
        Err(error) => return LoginOutcome::Failed(error),
    };
    let mut auth = cmd("AUTH");
    auth.arg(settings.username()).arg(settings.password());
    match timeout(LOGIN_TIMEOUT, connection.query::<()>(&auth)).await {
        Ok(Ok(())) => LoginOutcome::Accepted(valid_for),
        Ok(Err(error)) if error.kind() == ErrorKind::Io => LoginOutcome::Closed,
        Ok(Err(error)) => LoginOutcome::Failed(error::classify(&error).error),
        Err(_) => LoginOutcome::Unanswered,
    }
}
