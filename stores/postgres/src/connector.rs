//! Opening connections: to the first host that can be used.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::SslMode;
#[cfg(not(feature = "tls"))]
pub(super) use tokio_postgres::tls::NoTlsStream as DatabaseStream;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, SimpleQueryMessage, SimpleQueryRow, Socket,
};

use super::errors;
use super::primary::{ConnectionEpoch, PrimaryServer, TIMELINE, Timeline};
use super::process::{PROCESS, told_process};
use super::session_name::{self, ANONYMOUS};
use super::statements::SESSION;
#[cfg(feature = "tls")]
pub(super) use super::tls::SecureStream as DatabaseStream;
use super::url::{DatabaseUrl, TlsMode, UrlTls, invalid};
use lock_core::client_info::ClientInfo;
use lock_core::error::LockError;
use lock_core::store::store_error::StoreError;

/// A new connection.
pub(super) struct OpenedConnection {
    pub(super) client: Client,
    /// Reads and writes while it is polled.
    pub(super) connection: Connection<Socket, DatabaseStream>,
    pub(super) epoch: ConnectionEpoch,
    /// Whether it leads to the server itself, and not to a pooler.
    pub(super) is_direct: bool,
}

/// What a server tells a new connection.
struct ToldServer {
    timeline: Option<Timeline>,
    /// The process that executes statements.
    process: Option<i32>,
}

/// The time after which the next host is tried as well, if one neither accepts nor refuses.
const NEXT_HOST: Duration = Duration::from_millis(250);

/// How to connect to a database. Cheap to clone.
#[derive(Clone)]
pub(super) struct DatabaseConnector {
    hosts: Arc<[Config]>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<lock_core::store::tls::Tls>>,
    /// The one that accepts writes.
    pub(super) primary: Arc<PrimaryServer>,
    /// What connections to the server itself are called, unless the URL says that. `None` for a client that tells nothing
    /// about itself.
    session_name: Option<Arc<str>>,
}

impl DatabaseConnector {
    /// Without options about TLS that are not in the URL.
    pub(super) fn new(url: &str) -> Result<Self, LockError> {
        let url = DatabaseUrl::parse(url)?;
        #[cfg(feature = "tls")]
        return Self::with_tls(url, None);
        #[cfg(not(feature = "tls"))]
        Self::without_tls(url)
    }

    /// With options of the program.
    #[cfg(feature = "tls")]
    pub(super) fn with_options(
        url: &str,
        options: lock_core::tls::TlsOptions,
    ) -> Result<Self, LockError> {
        Self::with_tls(DatabaseUrl::parse(url)?, Some(options))
    }

    #[cfg(not(feature = "tls"))]
    fn without_tls(mut url: DatabaseUrl) -> Result<Self, LockError> {
        let UrlTls { mode, authority, certificate, key, server_name } = &url.tls;
        let has_options = [authority, certificate, key, server_name].iter().any(|it| it.is_some());
        match mode {
            None | Some(TlsMode::Disable | TlsMode::Prefer) if !has_options => {}
            _ => return Err(invalid(errors::NO_TLS)),
        }
        url.set_mode(SslMode::Disable);
        Ok(Self { hosts: url.hosts.into(), primary: Arc::default(), session_name: None })
    }

    #[cfg(feature = "tls")]
    fn with_tls(
        mut url: DatabaseUrl,
        options: Option<lock_core::tls::TlsOptions>,
    ) -> Result<Self, LockError> {
        use lock_core::store::tls::{Tls, Verification};

        let UrlTls { mode, authority, certificate, key, server_name } =
            std::mem::take(&mut url.tls);
        let is_system = authority.as_deref() == Some("system");
        let is_in_url =
            [&authority, &certificate, &key, &server_name].iter().any(|it| it.is_some());
        if is_in_url && options.as_ref().is_some_and(|options| !options.is_default()) {
            return Err(invalid(
                "TLS options are given both in the URL and with `tls`; choose one",
            ));
        }
        let is_verified = is_in_url || options.is_some();
        let mut tls = options.unwrap_or_default();
        if is_in_url {
            // That of the operating system, as in libpq.
            tls.ca = authority.filter(|file| file != "system").map(Into::into);
            tls.certificate = certificate.map(Into::into);
            tls.key = key.map(Into::into);
            tls.server_name = server_name;
        }
        let has_authority = tls.ca.is_some();
        let (mode, verification) = match mode {
            // A socket in the file system, or an address without a name.
            None if !is_verified && url.hosts.iter().all(|host| !has_name(host)) => {
                (SslMode::Disable, Verification::Nothing)
            }
            None if is_verified => (SslMode::Require, Verification::Full),
            Some(TlsMode::Disable | TlsMode::Prefer) if is_verified => {
                return Err(invalid("TLS options need `sslmode=verify-full` or `verify-ca`"));
            }
            Some(TlsMode::Require | TlsMode::VerifyAuthority) if is_system => {
                return Err(invalid(
                    "`sslrootcert=system` needs `sslmode=verify-full`, because anyone can get a certificate of these authorities",
                ));
            }
            Some(TlsMode::Disable) => (SslMode::Disable, Verification::Nothing),
            None | Some(TlsMode::Prefer) => (SslMode::Prefer, Verification::Nothing),
            // As libpq does.
            Some(TlsMode::Require) if has_authority => (SslMode::Require, Verification::Authority),
            Some(TlsMode::Require) => (SslMode::Require, Verification::Nothing),
            Some(TlsMode::VerifyAuthority) => (SslMode::Require, Verification::Authority),
            Some(TlsMode::VerifyFull) => (SslMode::Require, Verification::Full),
        };
        url.set_mode(mode);
        let tls = match mode {
            SslMode::Disable => None,
            _ => Some(Arc::new(Tls::new(tls)?.verify(verification))),
        };
        let (primary, session_name) = (Arc::default(), None);
        Ok(Self { hosts: url.hosts.into(), tls, primary, session_name })
    }

    /// The same for a client whose connections are called after it, unless the URL says what they are called.
    pub(super) fn of_client(&self, client: Option<&ClientInfo>) -> Self {
        let is_named = self.hosts.iter().any(|host| host.get_application_name().is_some());
        let session_name = client.filter(|_| !is_named).map(session_name::of_client);
        Self { session_name: session_name.map(Into::into), ..self.clone() }
    }

    /// What a connection to the server itself is told before its first statement is prepared. A pooler would have to tell it
    /// again with each transaction, and somebody else would have the session next.
    pub(super) fn session_settings(&self) -> String {
        match &self.session_name {
            Some(name) => format!("{SESSION}; SET application_name = '{name}'"),
            None => SESSION.to_owned(),
        }
    }

    /// Connects to one of the hosts. They are tried in their order, and several at the same time if one hangs.
    ///
    /// Has to be called on the runtime to which the connection will belong.
    pub(super) async fn connect(&self) -> Result<OpenedConnection, StoreError> {
        let (mut attempts, mut hosts) = (JoinSet::new(), self.hosts.iter());
        let mut failure = None;
        loop {
            let next = hosts.next();
            if let Some(host) = next {
                let (connector, host) = (self.clone(), host.clone());
                attempts.spawn(async move { connector.connect_to(&host).await });
            }
            let pause = async {
                if hosts.len() == 0 {
                    std::future::pending::<()>().await;
                }
                sleep(NEXT_HOST).await;
            };
            tokio::select! {
                ended = attempts.join_next() => match ended {
                    Some(Ok(Ok(opened))) => return Ok(opened),
                    // An error that the program can do something about says more than others.
                    Some(Ok(Err(error))) => {
                        failure = Some(match (failure.take(), error) {
                            (Some(StoreError::Refused(one)), StoreError::Refused(other)) => {
                                StoreError::Refused(format!("{one}; {other}"))
                            }
                            (Some(first @ (StoreError::Config { .. } | StoreError::Denied(_))), _) => first,
                            (_, error) => error,
                        });
                    }
                    // It has panicked.
                    Some(Err(error)) => failure = Some(StoreError::Refused(error.to_string())),
                    None => {
                        let none = || StoreError::Refused("no host can be reached".to_owned());
                        return Err(failure.unwrap_or_else(none));
                    }
                },
                () = pause => {}
            }
        }
    }

    async fn connect_to(&self, host: &Config) -> Result<OpenedConnection, StoreError> {
        let within = host.get_connect_timeout().copied().unwrap_or(Duration::MAX);
        #[cfg(feature = "tls")]
        let (tls, has_certificate) = match &self.tls {
            Some(tls) => {
                let config = tls.config().await?;
                let has_certificate = config.client_auth_cert_resolver.has_certs();
                (super::tls::Handshakes::new(Arc::clone(tls), config), has_certificate)
            }
            None => (super::tls::Handshakes::none(), false),
        };
        #[cfg(not(feature = "tls"))]
        let (tls, has_certificate) = (tokio_postgres::NoTls, false);
        let server = || shown(host);
        let mut named = host.clone();
        if host.get_application_name().is_none() {
            named.application_name(ANONYMOUS);
        }
        let opening = async {
            let (client, mut connection) = named.connect(tls).await?;
            let told = ask_server(&client, &mut connection).await?;
            Ok((client, connection, told))
        };
        match timeout(within, opening).await {
            Ok(Ok((client, connection, told))) => {
                let epoch = self.primary.admit(told.timeline, &server())?;
                let process = told_process(&client.cancel_token()).await;
                let is_direct = process.is_some() && process == told.process;
                Ok(OpenedConnection { client, connection, epoch, is_direct })
            }
            Ok(Err(error)) => Err(errors::of_connection(&error, &server(), has_certificate)),
            Err(_) => Err(StoreError::Refused(format!("no answer of {} in {within:?}", server()))),
        }
    }
}

/// Asks a server who it is. It need not tell.
async fn ask_server(
    client: &Client,
    connection: &mut Connection<Socket, DatabaseStream>,
) -> Result<ToldServer, Error> {
    let mut asking = pin!(async { tokio::try_join!(ask(client, TIMELINE), ask(client, PROCESS)) });
    let (timeline, process) = loop {
        tokio::select! {
            answers = &mut asking => break answers?,
            message = next_message(connection) => match message {
                Some(Ok(_)) => {}
                // The connection was closed. The server may have said why before.
                Some(Err(error)) => {
                    let said = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await;
                    return Err(match said {
                        Poll::Ready(Err(said)) => said,
                        _ => error,
                    });
                }
                None => break asking.await?,
            }
        }
    };
    let of_timeline = |row: &SimpleQueryRow| Timeline::parse(row.get(0)?, row.get(1)?);
    Ok(ToldServer {
        timeline: timeline.as_ref().and_then(of_timeline),
        process: process.and_then(|row| row.get(0)?.parse().ok()),
    })
}

/// The row of an answer. `None` if the server refuses to tell.
async fn ask(client: &Client, statement: &str) -> Result<Option<SimpleQueryRow>, Error> {
    match client.simple_query(statement).await {
        Ok(answer) => Ok(answer.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })),
        Err(error) if error.as_db_error().is_some() && !errors::is_last(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads and writes until the server has sent something that is no answer.
pub(super) async fn next_message(
    connection: &mut Connection<Socket, DatabaseStream>,
) -> Option<Result<AsyncMessage, Error>> {
    poll_fn(|cx| connection.poll_message(cx)).await
}

#[cfg(feature = "tls")]
fn has_name(host: &Config) -> bool {
    matches!(host.get_hosts(), [tokio_postgres::config::Host::Tcp(_)])
}

/// A host and its port, for messages.
fn shown(config: &Config) -> String {
    use tokio_postgres::config::Host;

    let port = config.get_ports().first().copied().unwrap_or(5432);
    match (config.get_hosts().first(), config.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => format!("{name}:{port}"),
        #[cfg(unix)]
        (Some(Host::Unix(path)), _) => path.display().to_string(),
        (None, Some(address)) => format!("{address}:{port}"),
        (None, None) => String::new(),
    }
}

/// Without user and password.
impl fmt::Debug for DatabaseConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(shown).collect();
        let database = self.hosts.first().and_then(Config::get_dbname);
        f.debug_struct("DatabaseConnector")
            .field("hosts", &hosts)
            .field("database", &database)
            .finish_non_exhaustive()
    }
}
