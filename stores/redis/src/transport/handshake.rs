//! One connection to one server, up to the end of the login.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisError};
use tokio::task::AbortHandle;

use super::endpoint::Endpoint;
use super::socket::Socket;
use super::traffic::Traffic;
use super::{error, probe};
use lock_core::store::contract::StoreError;

/// A connection that has logged in.
pub(crate) struct LoggedIn {
    pub(crate) commands: MultiplexedConnection,
    pub(crate) driver: Driver,
    pub(crate) traffic: Arc<Traffic>,
    /// For how long the credentials are valid.
    pub(crate) valid_for: Option<Duration>,
}

/// The task that serves a socket. It is aborted in `drop`, so that nothing more is sent.
pub(crate) struct Driver(AbortHandle);

impl Driver {
    /// Ends the task early. Requests in flight then fail.
    pub(crate) fn handle(&self) -> AbortHandle {
        self.0.clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes one connection and logs in. The current runtime serves the socket.
pub(crate) async fn log_in(
    endpoint: &Endpoint,
    config: &AsyncConnectionConfig,
) -> Result<LoggedIn, StoreError> {
    let login = log_in_once(endpoint, config.clone()).await;
    let is_rejected = matches!(&login, Err(StoreError::Denied(cause)) if error::is_login(cause));
    if is_rejected && endpoint.login().has_source() {
        // The credentials may have just been replaced.
        return log_in_once(endpoint, config.clone()).await;
    }
    login
}

async fn log_in_once(
    endpoint: &Endpoint,
    config: AsyncConnectionConfig,
) -> Result<LoggedIn, StoreError> {
    let (login, valid_for) = endpoint.login().current().await?;
    let traffic = Arc::<Traffic>::default();
    let stream = Socket::connect(endpoint, Arc::clone(&traffic)).await?;
    match MultiplexedConnection::new_with_config(&login, stream, config).await {
        Ok((mut commands, driver)) => {
            endpoint.worked();
            let driver = Driver(tokio::spawn(driver).abort_handle());
            introduce(&mut commands, endpoint.connection_name()).await;
            Ok(LoggedIn { commands, driver, traffic, valid_for })
        }
        Err(error) => Err(login_failed(endpoint, &traffic, &error).await),
    }
}

/// Tells the server who has the connection, for `CLIENT LIST` and the like. The server may not have the
/// commands, and the user may not run them.
async fn introduce(commands: &mut MultiplexedConnection, name: &str) {
    let mut introduction = Pipeline::with_capacity(3);
    introduction.cmd("CLIENT").arg("SETNAME").arg(name);
    for (name, value) in
        [("LIB-NAME", env!("CARGO_PKG_NAME")), ("LIB-VER", env!("CARGO_PKG_VERSION"))]
    {
        introduction.cmd("CLIENT").arg("SETINFO").arg(name).arg(value);
    }
    // The next request finds a connection that is broken.
    let _ = commands.send_packed_commands(&introduction, 0, introduction.len()).await;
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
        let problem = format!(
            "{} uses TLS; begin the URL with `rediss` instead of `redis`",
            endpoint.shown()
        );
        return StoreError::Config { option: "url", problem };
    }
    error::classify(error).error
}
