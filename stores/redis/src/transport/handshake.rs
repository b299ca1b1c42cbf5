//! One connection to one server, up to the end of the login.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value, cmd};

use super::endpoint::Endpoint;
use super::outgoing::Outgoing;
use super::pipelined::{OnMessage, PipelinedSocket};
use super::socket::Socket;
use super::traffic::Traffic;
use super::{error, probe};
use lock_core::store::contract::StoreError;

/// A connection that has logged in.
pub(crate) struct LoggedIn {
    pub(crate) commands: PipelinedSocket,
    pub(crate) guard: SocketGuard,
    pub(crate) traffic: Arc<Traffic>,
    /// For how long the credentials are valid.
    pub(crate) valid_for: Option<Duration>,
}

/// Closes a socket when it is dropped.
pub(crate) struct SocketGuard(PipelinedSocket);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Makes one connection and logs in. The current runtime serves the socket.
pub(crate) async fn log_in(
    endpoint: &Endpoint,
    on_message: Option<OnMessage>,
) -> Result<LoggedIn, StoreError> {
    let login = log_in_once(endpoint, on_message.clone()).await;
    let is_rejected = matches!(&login, Err(StoreError::Denied(cause)) if error::is_login(cause));
    if is_rejected && endpoint.login().has_source() {
        // The credentials may have just been replaced.
        return log_in_once(endpoint, on_message).await;
    }
    login
}

async fn log_in_once(
    endpoint: &Endpoint,
    on_message: Option<OnMessage>,
) -> Result<LoggedIn, StoreError> {
    let (login, valid_for) = endpoint.login().current().await?;
    let traffic = Arc::<Traffic>::default();
    let socket = Socket::connect(endpoint, Arc::clone(&traffic)).await?;
    let (commands, driver) = PipelinedSocket::new(socket, on_message);
    let guard = SocketGuard(commands.clone());
    // Sent before the driver reads: a server that refuses connections says so at once.
    let authenticated = authenticate(&commands, &login);
    tokio::spawn(driver);
    match authenticated.await {
        Ok(()) => {
            endpoint.worked();
            introduce(&commands, endpoint.connection_name()).await;
            Ok(LoggedIn { commands, guard, traffic, valid_for })
        }
        Err(error) => Err(login_failed(endpoint, &traffic, &error).await),
    }
}

/// Logs in with these credentials, and selects the database.
fn authenticate(
    commands: &PipelinedSocket,
    login: &RedisConnectionInfo,
) -> impl Future<Output = RedisResult<()>> {
    let mut hello = cmd("HELLO");
    hello.arg("3");
    if let Some(password) = login.password() {
        hello.arg("AUTH").arg(login.username().unwrap_or("default")).arg(password);
    }
    let mut requests = Pipeline::with_capacity(2);
    requests.add_command(hello);
    if login.db() != 0 {
        requests.cmd("SELECT").arg(login.db());
    }
    let answer = commands.send(Outgoing::Commands(&requests));
    async {
        let Value::Array(replies) = answer.await? else { return Ok(()) };
        replies.into_iter().try_for_each(|reply| match reply {
            Value::ServerError(error) => Err(error.into()),
            _ => Ok(()),
        })
    }
}

/// Tells the server who has the connection, for `CLIENT LIST` and the like. The server may not have the
/// commands, and the user may not run them.
async fn introduce(commands: &PipelinedSocket, name: &str) {
    let mut introduction = Pipeline::with_capacity(3);
    introduction.cmd("CLIENT").arg("SETNAME").arg(name);
    for (name, value) in
        [("LIB-NAME", env!("CARGO_PKG_NAME")), ("LIB-VER", env!("CARGO_PKG_VERSION"))]
    {
        introduction.cmd("CLIENT").arg("SETINFO").arg(name).arg(value);
    }
    // The next request finds a connection that is broken.
    let _ = commands.send(Outgoing::Commands(&introduction)).await;
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
