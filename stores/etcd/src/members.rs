//! The members of a cluster, and requests to them.
//!
//! All requests go to one member, as long as it serves them. When it does not answer in time, cannot be reached or has no
//! leader, the next member takes its place: see `member_list.rs`. (A balancing channel would send every third request to a
//! member that is down.) Each member keeps a connection for each runtime, which is opened when it is first needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::{EtcdAddress, invalid};
use super::auth::EtcdLogin;
use super::batch::JoinedTxns;
use super::errors::{EtcdFailure, meaning};
use super::member_list::{CONNECT_TIMEOUT, Member, MemberList, usable};
use super::messages::{MemberListRequest, MemberListResponse};
use super::tls::EtcdTls;
use lock_core::error::LockError;
use lock_core::store::patience::answer_within;
use lock_core::store::per_runtime::PerRuntime;
use lock_core::sync::{Mutex, lock};

/// How long a member may take for an answer before another one is asked.
const PATIENCE: Duration = Duration::from_millis(700);

/// After this time without an answer, a member counts as silent if the caller gives up.
const SILENCE: Duration = Duration::from_millis(200);

/// The same as the patience, if there is no other member. The next request then uses another stream, but the same connection.
const LONG_PATIENCE: Duration = Duration::from_secs(2);

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
    pub(super) const MEMBER_LIST: Self = Self::repeated("/etcdserverpb.Cluster/MemberList");

    const fn repeated(path: &'static str) -> Self {
        Self { path, repeats: true, is_stream: false }
    }
}

/// The members of a cluster.
pub(super) struct Members {
    pub(super) known: Mutex<MemberList>,
    /// The number of the member that gets all requests. Changed only while `known` is locked.
    current: watch::Sender<usize>,
    login: Option<EtcdLogin>,
    tls: Option<EtcdTls>,
    /// The cluster of the members, as soon as one has told it.
    pub(super) cluster: Mutex<Option<u64>>,
    pub(super) joined: PerRuntime<Arc<JoinedTxns>>,
}

impl Members {
    pub(super) fn new(address: EtcdAddress, tls: Option<EtcdTls>) -> Result<Self, LockError> {
        let EtcdAddress { members, login, .. } = address;
        let member = |(number, shown): (usize, String)| {
            let endpoint = endpoint(&shown, tls.is_some())?;
            Ok(Member::new(number, endpoint, shown, false))
        };
        let named = members.into_iter().enumerate().map(member);
        let named = named.collect::<Result<Vec<_>, LockError>>()?;
        // Clients spread over the members.
        let current = watch::Sender::new(fastrand::usize(..named.len()));
        let login = login.map(|(user, password)| EtcdLogin::new(user, password));
        let (known, cluster) = (Mutex::new(MemberList::new(named)), Mutex::default());
        Ok(Self { known, current, login, tls, cluster, joined: PerRuntime::default() })
    }

    pub(super) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    pub(super) fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Tells when another member takes the place of the current one.
    pub(super) fn changes(&self) -> watch::Receiver<usize> {
        self.current.subscribe()
    }

    /// The member that gets all requests.
    pub(super) fn current(&self) -> Arc<Member> {
        let known = lock(&self.known);
        Arc::clone(known.get(*self.current.borrow()))
    }

    /// The next member takes the place of this one, unless it has happened already.
    pub(super) fn leave(&self, number: usize) {
        let mut known = lock(&self.known);
        self.current.send_if_modified(|current| {
            if *current != number {
                return false;
            }
            *current = known.next(number);
            *current != number
        });
    }

    /// How long one member may take for an answer.
    pub(super) fn patience(&self) -> Duration {
        if lock(&self.known).named().len() == 1 { LONG_PATIENCE } else { PATIENCE }
    }

    /// Asks the current member for all members of its cluster.
    pub(super) async fn learn(&self) -> Result<(), EtcdFailure> {
        let asked = self.current();
        self.check_cluster(&asked).await?;
        let request = self.once(&asked, Method::MEMBER_LIST, &MemberListRequest {});
        let silent = |_| Err(EtcdFailure::Unknown(format!("{} does not answer", asked.shown)));
        let list: MemberListResponse =
            timeout(self.patience(), request).await.unwrap_or_else(silent)?;
        let Some(header) = list.header else { return Ok(()) };
        asked.id.store(header.member_id, Ordering::Relaxed);
        let addresses = usable(&list.members, self.uses_tls());
        let make = |number, shown: &str| {
            let endpoint = endpoint(shown, self.uses_tls()).ok()?;
            Some(Member::new(number, endpoint, shown.to_owned(), true))
        };
        let mut known = lock(&self.known);
        let current = *self.current.borrow();
        known.update(current, &addresses, make);
        Ok(())
    }

    /// Whether members that the URL does not name may be used. Without TLS, anybody could get the password who listens at an
    /// announced address.
    pub(super) fn may_learn(&self) -> bool {
        self.login.is_none() || self.uses_tls()
    }

    /// Sends a request to the current member, and to the next ones if it does not serve it.
    pub(super) async fn call<Q, A>(&self, method: Method, request: &Q) -> Result<A, EtcdFailure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let (mut may_have_run, mut not_here, mut logged_in) = (None, None, false);
        let mut tries = lock(&self.known).len() + 1;
        loop {
            tries -= 1;
            let member = self.current();
            let (number, shown) = (member.number, &member.shown);
            let mut unanswered = Unanswered { members: self, number, since: Instant::now() };
            let answered = match self.check_cluster(&member).await {
                Ok(()) => answer_within(self.patience(), self.once(&member, method, request)).await,
                Err(failure) => Some(Err(failure)),
            };
            let failure = match answered {
                Some(answered) => {
                    unanswered.since = Instant::now();
                    match answered {
                        Ok(answer) => {
                            lock(&self.known).has_served();
                            return Ok(answer);
                        }
                        Err(failure) => failure,
                    }
                }
                None => {
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
                failure @ (EtcdFailure::NotHere(_) | EtcdFailure::Unusable(_)) => {
                    self.leave(number);
                    // The error is permanent only if it is that of all members.
                    let is_permanent = matches!(failure, EtcdFailure::Unusable(_));
                    let failure =
                        if is_permanent { not_here.take().unwrap_or(failure) } else { failure };
                    if tries == 0 {
                        return Err(may_have_run.unwrap_or(failure));
                    }
                    not_here =
                        Some(failure).filter(|failure| matches!(failure, EtcdFailure::NotHere(_)));
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
    async fn once<Q, A>(
        &self,
        member: &Member,
        method: Method,
        request: &Q,
    ) -> Result<A, EtcdFailure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let (request, token) = self.prepare(member, request.clone()).await?;
        let answered = self.send(member, method, request).await;
        answered.map_err(|status| self.failure(member, &status, token.as_ref()))
    }

    pub(super) async fn send<Q, A>(
        &self,
        member: &Member,
        method: Method,
        request: Request<Q>,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready(member).await?;
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
        let member = self.current();
        let number = member.number;
        let opened = async {
            let (request, token) = self.prepare(&member, requests).await?;
            let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
            let opened = async {
                let mut grpc = self.ready(&member).await?;
                let request =
                    request.map(|requests| requests.into_streaming_request().into_inner());
                Ok(grpc.streaming(request, path, codec).await?.into_inner())
            };
            opened.await.map_err(|status| self.failure(&member, &status, token.as_ref()))
        };
        let silent = || EtcdFailure::Unknown(format!("{} does not answer", member.shown));
        let opened = match self.check_cluster(&member).await {
            Ok(()) => timeout(self.patience(), opened).await.unwrap_or_else(|_| Err(silent())),
            Err(failure) => Err(failure),
        };
        match opened {
            Ok(stream) => Ok((number, stream)),
            Err(failure) => {
                if failure.is_of_member() {
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
    pub(super) async fn prepare<T>(
        &self,
        member: &Member,
        message: T,
    ) -> Result<(Request<T>, Option<MetadataValue<tonic::metadata::Ascii>>), EtcdFailure> {
        let mut request = Request::new(message);
        // A member that is cut off from the others refuses the request at once.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let token = match &self.login {
            Some(login) => Some(login.token(|request| self.authenticate(member, request)).await?),
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
        member: &Member,
        request: super::messages::AuthenticateRequest,
    ) -> Result<super::messages::AuthenticateResponse, EtcdFailure> {
        let sent = self.send(member, Method::AUTHENTICATE, Request::new(request));
        sent.await.map_err(|status| match self.failure(member, &status, None) {
            // Nothing but a token was asked for.
            EtcdFailure::Unknown(cause) => EtcdFailure::NotHere(cause),
            failure => failure,
        })
    }

    pub(super) fn failure(
        &self,
        member: &Member,
        status: &Status,
        token: Option<&MetadataValue<tonic::metadata::Ascii>>,
    ) -> EtcdFailure {
        let failure = meaning(status, &member.shown);
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
            self.members.leave(self.number);
        }
    }
}

fn endpoint(address: &str, uses_tls: bool) -> Result<Endpoint, LockError> {
    let wrong = |_| invalid(&format!("the URL of etcd has an invalid member, {address}"));
    // The connector makes the handshakes, so the scheme is not that of the requests.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(wrong)?;
    let endpoint = if uses_tls {
        let origin = Uri::try_from(format!("https://{address}"));
        endpoint.origin(origin.map_err(|_| invalid("the URL of etcd has an invalid member"))?)
    } else {
        endpoint
    };
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(CONNECTION_CHECK.0)
        .keep_alive_timeout(CONNECTION_CHECK.1))
}

impl Members {
    async fn ready(&self, member: &Member) -> Result<Grpc<Channel>, Status> {
        let channel = member.channel.here(|| match &self.tls {
            Some(tls) => tls.channel(&member.endpoint, &member.shown),
            None => member.endpoint.connect_lazy(),
        });
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "tls")]
    use lock_core::tls::TlsOptions;

    #[tokio::test]
    async fn a_client_with_a_password_learns_of_members_with_tls_only() {
        let may_learn = |url: &str| {
            let address = EtcdAddress::parse(url).expect("a URL");
            #[cfg(feature = "tls")]
            let tls = address.tls.then(|| EtcdTls::new(TlsOptions::new()).expect("options"));
            #[cfg(not(feature = "tls"))]
            let tls = None;
            Members::new(address, tls).expect("a URL").may_learn()
        };
        assert!(may_learn("etcd://a"));
        assert!(!may_learn("etcd://user:password@a"));
        #[cfg(feature = "tls")]
        assert!(may_learn("etcds://user:password@a"));
    }
}
