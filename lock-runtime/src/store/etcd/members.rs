//! The members of a cluster, and requests to them.
//!
//! All requests go to one member, as long as it serves them. When it does not answer in time, cannot be reached or has no
//! leader, the next member takes its place. (A balancing channel would send every third request to a member that is down.)
//! Each member keeps its connection, which is opened when it is first needed.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::{EtcdAddress, invalid};
use super::auth::EtcdLogin;
use super::errors::{EtcdFailure, meaning};
use crate::error::LockError;
use crate::safeguard::Safeguard;

/// How long a member may take for an answer before another one is asked.
const PATIENCE: Duration = Duration::from_millis(700);

/// After this time without an answer, a member counts as silent if the caller gives up.
const SILENCE: Duration = Duration::from_millis(200);

/// The same as the patience, if there is no other member. The next request then uses another stream, but the same connection.
const LONG_PATIENCE: Duration = Duration::from_secs(2);

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection with open streams is checked in this interval. etcd accepts no more than one check in five seconds.
const CONNECTION_CHECK: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// A method of etcd's API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    path: &'static str,
    /// Whether a request whose outcome is unknown is sent again, to another member: the effect and the answer of the second
    /// one are the same.
    pub(super) repeats: bool,
    is_stream: bool,
}

impl Method {
    pub(super) const TXN: Self = Self::repeated("/etcdserverpb.KV/Txn");
    /// A transaction that is not sent again, because the second answer would differ, or because the first request may still
    /// have an effect after it.
    pub(super) const TXN_ONCE: Self = Self { repeats: false, ..Self::TXN };
    /// A lease whose number nobody learns ends by itself.
    pub(super) const LEASE_GRANT: Self = Self::repeated("/etcdserverpb.Lease/LeaseGrant");
    pub(super) const LEASE_REVOKE: Self = Self::repeated("/etcdserverpb.Lease/LeaseRevoke");
    pub(super) const LEASE_TIME: Self = Self::repeated("/etcdserverpb.Lease/LeaseTimeToLive");
    /// A stream of its own for each request: a stream answers in order, so an answer that hangs would delay later ones.
    pub(super) const KEEP_ALIVE: Self =
        Self { is_stream: true, ..Self::repeated("/etcdserverpb.Lease/LeaseKeepAlive") };
    pub(super) const AUTHENTICATE: Self = Self::repeated("/etcdserverpb.Auth/Authenticate");
    pub(super) const STATUS: Self = Self::repeated("/etcdserverpb.Maintenance/Status");
    pub(super) const ALARMS: Self = Self::repeated("/etcdserverpb.Maintenance/Alarm");

    const fn repeated(path: &'static str) -> Self {
        Self { path, repeats: true, is_stream: false }
    }
}

struct Member {
    endpoint: Endpoint,
    /// Its address, for messages.
    shown: String,
    channel: OnceLock<Channel>,
}

/// The members of a cluster.
pub(super) struct Members {
    all: Vec<Member>,
    /// The member that gets all requests.
    current: watch::Sender<usize>,
    login: Option<EtcdLogin>,
}

impl Members {
    pub(super) fn new(address: EtcdAddress, tls: &EtcdTls) -> Result<Self, LockError> {
        let EtcdAddress { members, login, tls: uses_tls } = address;
        let member = |shown: String| {
            let scheme = if uses_tls { "https" } else { "http" };
            let wrong = |_| invalid(&format!("the URL of etcd has an invalid member, {shown}"));
            let endpoint = Endpoint::from_shared(format!("{scheme}://{shown}")).map_err(wrong)?;
            let endpoint = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(CONNECTION_CHECK.0)
                .keep_alive_timeout(CONNECTION_CHECK.1);
            let endpoint = if uses_tls { tls.apply(endpoint)? } else { endpoint };
            Ok(Member { endpoint, shown, channel: OnceLock::new() })
        };
        let all = members.into_iter().map(member).collect::<Result<Vec<_>, LockError>>()?;
        // Clients spread over the members.
        let first = fastrand::usize(..all.len());
        let login = login.map(|(user, password)| EtcdLogin::new(user, password));
        Ok(Self { all, current: watch::Sender::new(first), login })
    }

    /// The addresses, for messages.
    pub(super) fn shown(&self) -> Vec<&str> {
        self.all.iter().map(|member| &*member.shown).collect()
    }

    /// The address of the member that gets all requests.
    pub(super) fn current_shown(&self) -> String {
        self.all[*self.current.borrow()].shown.clone()
    }

    pub(super) fn uses_tls(&self) -> bool {
        self.all.iter().any(|member| member.endpoint.uri().scheme_str() == Some("https"))
    }

    /// Tells when another member takes the place of the current one.
    pub(super) fn changes(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// The next member takes the place of this one, unless it has happened already.
    pub(super) fn leave(&self, number: usize) {
        self.current.send_if_modified(|current| {
            let leaves = *current == number && self.all.len() > 1;
            if leaves {
                *current = (*current + 1) % self.all.len();
            }
            leaves
        });
    }

    /// How long one member may take for an answer.
    fn patience(&self) -> Duration {
        if self.all.len() == 1 { LONG_PATIENCE } else { PATIENCE }
    }

    /// A member has not answered in time.
    fn is_silent(&self, number: usize) {
        if Safeguard::SilentMembersAreLeft.is_on() {
            self.leave(number);
        }
    }

    /// Sends a request to the current member, and to the next ones if it does not serve it.
    pub(super) async fn call<Q, A>(&self, method: Method, request: &Q) -> Result<A, EtcdFailure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let (mut may_have_run, mut logged_in) = (None, false);
        let mut tries = self.all.len() + 1;
        loop {
            tries -= 1;
            let number = *self.current.borrow();
            let shown = &self.all[number].shown;
            let mut unanswered = Unanswered { members: self, number, since: Instant::now() };
            let answered = timeout(self.patience(), self.once(number, method, request)).await;
            let failure = match answered {
                Ok(answered) => {
                    unanswered.since = Instant::now();
                    match answered {
                        Ok(answer) => return Ok(answer),
                        Err(failure) => failure,
                    }
                }
                Err(_) => {
                    drop(unanswered);
                    if tries == 0 || !method.repeats {
                        return Err(EtcdFailure::Unknown(format!("{shown} does not answer")));
                    }
                    may_have_run = Some(EtcdFailure::Unknown(format!("{shown} does not answer")));
                    continue;
                }
            };
            match failure {
                EtcdFailure::LoggedOut(_) if self.login.is_some() && !logged_in => {
                    logged_in = true;
                    tries += 1;
                }
                EtcdFailure::NotHere(cause) => {
                    self.leave(number);
                    if tries == 0 {
                        return Err(may_have_run.unwrap_or(EtcdFailure::NotHere(cause)));
                    }
                }
                EtcdFailure::Unknown(cause) => {
                    self.leave(number);
                    if tries == 0 || !method.repeats {
                        return Err(EtcdFailure::Unknown(cause));
                    }
                    may_have_run = Some(EtcdFailure::Unknown(cause));
                }
                // What an earlier try may have done is not known, whatever this one says.
                refused => return Err(may_have_run.unwrap_or(refused)),
            }
        }
    }

    /// Sends a request to one member.
    async fn once<Q, A>(&self, number: usize, method: Method, request: &Q) -> Result<A, EtcdFailure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let (request, token) = self.prepare(number, request.clone()).await?;
        let answered = self.send(number, method, request).await;
        answered.map_err(|status| self.failure(number, &status, token.as_ref()))
    }

    async fn send<Q, A>(
        &self,
        number: usize,
        method: Method,
        request: Request<Q>,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready(number).await?;
        let (path, codec) = (PathAndQuery::from_static(method.path), ProstCodec::<Q, A>::default());
        if !method.is_stream {
            return Ok(grpc.unary(request, path, codec).await?.into_inner());
        }
        let (metadata, extensions, message) = request.into_parts();
        let stream = Request::from_parts(metadata, extensions, tokio_stream::once(message));
        let mut answers = grpc.streaming(stream, path, codec).await?.into_inner();
        answers.message().await?.ok_or_else(|| Status::unavailable("the stream has ended"))
    }

    /// Opens a stream to the current member. Returns its number as well.
    pub(super) async fn open<Q, A>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(usize, Streaming<A>), EtcdFailure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let number = *self.current.borrow();
        let opened = async {
            let (request, token) = self.prepare(number, requests).await?;
            let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
            let opened = async {
                let mut grpc = self.ready(number).await?;
                let request =
                    request.map(|requests| requests.into_streaming_request().into_inner());
                Ok(grpc.streaming(request, path, codec).await?.into_inner())
            };
            opened.await.map_err(|status| self.failure(number, &status, token.as_ref()))
        };
        let silent = || EtcdFailure::Unknown(format!("{} does not answer", self.all[number].shown));
        let opened = timeout(self.patience(), opened).await;
        match opened.unwrap_or_else(|_| Err(silent())) {
            Ok(stream) => Ok((number, stream)),
            Err(failure) => {
                if matches!(failure, EtcdFailure::NotHere(_) | EtcdFailure::Unknown(_)) {
                    self.leave(number);
                }
                Err(failure)
            }
        }
    }

    /// The next request fetches a new token.
    pub(super) fn log_in_again(&self) {
        if let Some(login) = &self.login {
            login.forget(login.current().as_ref());
        }
    }

    /// Adds the metadata to a request.
    async fn prepare<T>(
        &self,
        number: usize,
        message: T,
    ) -> Result<(Request<T>, Option<MetadataValue<tonic::metadata::Ascii>>), EtcdFailure> {
        let mut request = Request::new(message);
        if Safeguard::MembersNeedALeader.is_on() {
            // A member that is cut off from the others refuses the request at once.
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        let token = match &self.login {
            Some(login) => Some(login.token(|request| self.authenticate(number, request)).await?),
            None => None,
        };
        if let Some(token) = &token {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok((request, token))
    }

    /// Logs in at a member.
    async fn authenticate(
        &self,
        number: usize,
        request: super::messages::AuthenticateRequest,
    ) -> Result<super::messages::AuthenticateResponse, EtcdFailure> {
        let sent = self.send(number, Method::AUTHENTICATE, Request::new(request));
        sent.await.map_err(|status| match self.failure(number, &status, None) {
            // Nothing but a token was asked for.
            EtcdFailure::Unknown(cause) => EtcdFailure::NotHere(cause),
            failure => failure,
        })
    }

    async fn ready(&self, number: usize) -> Result<Grpc<Channel>, Status> {
        let member = &self.all[number];
        let channel = member.channel.get_or_init(|| member.endpoint.connect_lazy());
        let mut grpc = Grpc::new(channel.clone());
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    fn failure(
        &self,
        number: usize,
        status: &Status,
        token: Option<&MetadataValue<tonic::metadata::Ascii>>,
    ) -> EtcdFailure {
        let failure = meaning(status, &self.all[number].shown);
        if let (EtcdFailure::LoggedOut(_), Some(login)) = (&failure, &self.login) {
            login.forget(token);
        }
        failure
    }
}

/// A request without an answer. If it is dropped after a while, because its caller does not wait any longer, its member
/// counts as silent.
struct Unanswered<'a> {
    members: &'a Members,
    number: usize,
    /// When it was sent, or answered.
    since: Instant,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.since.elapsed() >= SILENCE {
            self.members.is_silent(self.number);
        }
    }
}

/// The TLS settings of a store.
#[derive(Debug, Clone, Default)]
pub(super) struct EtcdTls {
    #[cfg(feature = "tls")]
    pub(super) options: Option<crate::tls::TlsOptions>,
}

impl EtcdTls {
    #[cfg(feature = "tls")]
    fn apply(&self, endpoint: Endpoint) -> Result<Endpoint, LockError> {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        let error = |problem: String| LockError::Config { option: "tls", problem };
        let read = |path: &std::path::Path| {
            std::fs::read(path)
                .map_err(|cause| error(format!("cannot read {}: {cause}", path.display())))
        };
        let options = self.options.clone().unwrap_or_default();
        if options.config.is_some() {
            return Err(error(
                "a rustls configuration cannot be used with etcd; name files".into(),
            ));
        }
        let mut config = ClientTlsConfig::new();
        config = match &options.ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
            None => config.with_native_roots(),
        };
        match (&options.certificate, &options.key) {
            (Some(certificate), Some(key)) => {
                config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            (None, None) => {}
            _ => {
                let problem = "a client certificate needs two files: the certificate and its key";
                return Err(error(problem.into()));
            }
        }
        if let Some(name) = &options.server_name {
            config = config.domain_name(name);
        }
        endpoint.tls_config(config).map_err(|cause| error(format!("invalid TLS options: {cause}")))
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "there are no settings")]
    fn apply(&self, _: Endpoint) -> Result<Endpoint, LockError> {
        Err(invalid(
            "this build has no TLS for `etcds://`; enable the feature `tls` of `lock-runtime`",
        ))
    }
}
