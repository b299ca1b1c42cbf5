//! Locks in a Redis server.
//!
//! A lock is a key that names its owner and expires with the lease. Its layout is a `dialect`. By
//! default it is a string, the owner's token: the plain pattern of Redis's own documentation, which
//! clients in other languages share. `SET key token NX PX lease` takes the lock, and
//! compare-and-delete releases it
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The other dialects
//! are those of other clients.
//!
//! Requests that a caller awaits use a connection of the caller's runtime, one per runtime.
//! Renewals and background releases use another connection. Wake-ups arrive on a third one, which
//! also checks the keys of waiters. Waiters can therefore never delay a renewal. In a cluster, each
//! of these is a connection to each node (`route`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![allow(
    missing_debug_implementations,
    clippy::must_use_candidate,
    reason = "only lock-runtime uses it"
)]

mod admin;
mod client_id;
mod connections;
mod hash_slot;
mod listening;
mod locks;
mod presence;
mod scripts;
mod shared;
mod topology;
mod transport;
mod url;

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, cmd};
use tokio::time::timeout;

use self::admin::asker::RedisAsker;
use self::admin::deletion::HoldWithToken;
use self::connections::admission::RequestClass;
use self::connections::connect::CONNECT_TIMEOUT;
use self::connections::connection::RequestOptions;
use self::connections::replicas::KeyReplicas;
use self::connections::route::Route;
use self::connections::servers::Servers;
use self::connections::tracking::{Listening, on_change_of_held};
use self::listening::cluster_channels::ClusterChannels;
use self::listening::poller::Poller;
use self::listening::{cluster_subscriber, subscriber};
use self::locks::store::RedisStore;
use self::presence::Presence;
use self::scripts::{decode, dialects};
use self::shared::{OwnConnections, Shared};
use self::transport::server_info::{self, ServerInfo};
#[cfg(feature = "testing")]
pub use self::transport::test_network;
use self::url::UrlTarget;
pub use self::url::{is_redis, is_redlock};
use lock_core::client_info::ClientInfo;
use lock_core::clock::BootInstant;
use lock_core::error::LockError;
use lock_core::join::join_all;
use lock_core::key;
use lock_core::lock_state::{Deletion, LockState};
use lock_core::maybe_ready::MaybeReady;
use lock_core::questions::Answerer;
use lock_core::replicas::RequiredReplicas;
use lock_core::store::contract::{Asker, KeyInspector};
use lock_core::store::contract::{
    Backend, BackgroundRuntimes, Lane, Layout, LockStore, StoreAnswer, StoreError,
};
use lock_core::store::hold_reports::HoldReports;
use lock_core::store::key_holder::KeyHolder;
use lock_core::store::profile::StoreProfile;
use lock_core::store::scanning::{ScanPage, ScanPosition};
use lock_core::store::settings::Settings;
use lock_core::timeout::RequestTimeout;

/// A Redis server, and a handle to it for each dialect.
pub struct RedisBackend {
    shared: Arc<Shared>,
    /// The lease of locks that do not specify one.
    lease: Duration,
    /// The replicas that have to acknowledge locks that do not specify it.
    acknowledged_by: RequiredReplicas,
    /// What the client tells others about itself, if it does.
    told: Option<ClientInfo>,
    handles: [Arc<RedisStore>; Layout::ALL.len()],
}

impl RedisBackend {
    /// Checks the URL. Does not connect.
    pub fn new(url: &str, settings: &Settings) -> Result<Self, LockError> {
        Self::of(url::parse(url, settings)?, settings)
    }

    /// The servers of a quorum. Checks the URL, and does not connect.
    pub fn of_quorum(url: &str, settings: &Settings) -> Result<Vec<Self>, LockError> {
        let servers = url::parse_quorum(url, settings)?;
        servers.into_iter().map(|server| Self::of(UrlTarget::Server(server), settings)).collect()
    }

    /// The servers, without credentials.
    pub fn address(&self) -> &str {
        self.shared.address()
    }

    fn of(target: UrlTarget, settings: &Settings) -> Result<Self, LockError> {
        let servers = Servers::new(target, settings.quarantine.clone());
        let shared = Arc::new(Shared::new(servers, settings)?);
        let handle = |layout| Arc::new(RedisStore::new(Arc::clone(&shared), dialects::of(layout)));
        let handles = Layout::ALL.map(handle);
        let Settings { lease, acknowledged_by, .. } = *settings;
        Ok(Self { shared, lease, acknowledged_by, told: settings.told.clone(), handles })
    }

    /// Opens the client's own two connections and that of the current runtime, and checks the
    /// server, so that problems are reported at the start.
    async fn connect_and_check(&self) -> Result<(), LockError> {
        let started = BootInstant::now();
        let failed = |problem| match problem {
            StoreError::Denied(cause) => match server_info::permanent(&cause) {
                Some(problem) => LockError::config("url", problem),
                None => LockError::denied(cause),
            },
            error => error.without_key(BootInstant::now().since(started)),
        };
        let server = self.connect_all().await.map_err(failed)?;
        server.check(self.shared.servers.is_cluster())?;
        let by_topology = self.shared.servers.warning(self.lease);
        for warning in server.warnings(self.acknowledged_by).into_iter().chain(by_topology) {
            tracing::warn!(target: "lock_runtime::store::redis", address = self.shared.address(), "{warning}");
        }
        let shortage = self.shortage().await.map_err(failed)?;
        if let Some(problem) = shortage {
            let address = self.shared.address();
            tracing::warn!(target: "lock_runtime::store::redis", address, problem, "no lock is granted until there are more replicas");
        }
        self.begin_quarantines().await.map_err(failed)?;
        if let Some(questions) = self.shared.listen() {
            // Without the permission, or if it takes too long, the client cannot be asked yet.
            let _ = timeout(self.shared.response_timeout, questions.live()).await;
        }
        Ok(())
    }

    /// Begins the quarantines of servers that may have lost locks. Fails if the user lacks the
    /// permissions, or a server does not tell what is needed.
    async fn begin_quarantines(&self) -> Result<(), StoreError> {
        let servers = &self.shared.servers;
        if !servers.have_quarantines() {
            return Ok(());
        }
        let (route, within) = (self.shared.route(Lane::Caller)?, self.shared.response_timeout);
        let keys = servers.keys_of_all(key::QUARANTINES);
        let begun = keys.iter().map(|key| {
            timeout(within, async {
                let connection = route.server_of(key, within).await?.connection;
                let established = connection.established(within).await?;
                let quarantine = established.socket.quarantine.as_ref();
                match quarantine {
                    Some(quarantine) => {
                        quarantine.check(&connection, established.generation, within).await
                    }
                    None => Ok(()),
                }
            })
        });
        for begun in join_all(begun).await {
            // A server that is in quarantine, or does not answer now, is waited for by acquisitions.
            if let Ok(Err(error @ (StoreError::Denied(_) | StoreError::Config { .. }))) = begun {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Describes the problem if a server has fewer replicas than the client's locks require. In a
    /// cluster, asks all nodes.
    async fn shortage(&self) -> Result<Option<String>, StoreError> {
        if self.acknowledged_by.is_none() {
            return Ok(None);
        }
        let (route, acknowledgers) = (self.shared.route(Lane::Caller)?, &self.shared.acknowledgers);
        let keys = self.shared.servers.keys_of_all(key::ACKNOWLEDGEMENTS);
        let shortages = keys.iter().map(|key| {
            let required = KeyReplicas { key, replicas: self.acknowledged_by };
            acknowledgers.shortage(&route, required, CONNECT_TIMEOUT)
        });
        let mut problem = None;
        for shortage in join_all(shortages).await {
            match shortage {
                Ok(shortage) => problem = problem.or(shortage),
                // The other nodes of a cluster can be used.
                Err(StoreError::Refused(_) | StoreError::Unknown(_))
                    if self.shared.servers.is_cluster() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(problem)
    }

    /// Opens the connections, asks the server for its description, and checks that it runs scripts.
    /// Without them, a lock could be acquired but never released.
    async fn connect_all(&self) -> Result<ServerInfo, StoreError> {
        let own = self.shared.own()?;
        own.background.any(CONNECT_TIMEOUT).await?;
        own.wake_ups.any(CONNECT_TIMEOUT).await?;
        let server = self.shared.route(Lane::Caller)?.any(CONNECT_TIMEOUT).await?;
        let info = match server.send(&cmd("INFO"), &CHECK, decode::info).await {
            // A user without this permission can use locks all the same.
            Err(StoreError::Denied(cause) | StoreError::Refused(cause)) => {
                let address = self.shared.address();
                tracing::debug!(target: "lock_runtime::store::redis", address, %cause, "cannot check the version and the settings of the server");
                ServerInfo::default()
            }
            info => ServerInfo::parse(&info?),
        };
        let no_keys = |call: &mut Cmd| {
            call.arg(0);
        };
        // A server of a wrong kind is explained by its description.
        let probed = server.run(&dialects::PROBE, no_keys, &CHECK, decode::probed).await;
        match info.check(self.shared.servers.is_cluster()) {
            Err(_) => Ok(info),
            Ok(()) => probed.map(|()| info),
        }
    }

    /// Who the servers are, as far as the user may know it.
    async fn profile_now(&self) -> Result<StoreProfile, StoreError> {
        let within = self.shared.response_timeout;
        let server = self.shared.route(Lane::Caller)?.any(within).await?;
        let class = RequestClass::Unlimited;
        let options = RequestOptions::new(class, RequestTimeout::of(within));
        let info = match server.send(&cmd("INFO"), &options, decode::info).await {
            Err(StoreError::Denied(_)) => return Ok(StoreProfile::default()),
            info => ServerInfo::parse(&info?),
        };
        let profile = info.profile();
        // All masters, because each connection may lead to another one.
        let masters = self.shared.servers.masters();
        Ok(if masters.is_empty() { profile } else { StoreProfile { servers: masters, ..profile } })
    }
}

/// How the requests of the check are sent.
const CHECK: RequestOptions<'static> =
    RequestOptions::new(RequestClass::Unlimited, RequestTimeout::of(CONNECT_TIMEOUT));

impl Backend for RedisBackend {
    fn adopt(&self, runtimes: &BackgroundRuntimes, reports: HoldReports) {
        let shared = &self.shared;
        let within = shared.response_timeout;
        let on_message = subscriber::on_message(&shared.subscriptions, &shared.id);
        let home = &runtimes.wake_ups;
        let subscriptions = Arc::clone(&shared.subscriptions);
        let tracking = shared.tracking.as_ref();
        let of_holds = Listening {
            on_message: on_change_of_held(reports.clone()),
            tracking: tracking.map(|tracking| Arc::clone(&tracking.holds)),
        };
        let background = shared.servers.route(runtimes.renewals.clone(), within, Some(of_holds));
        let of_claims = Listening {
            on_message: Arc::clone(&on_message),
            tracking: tracking.map(|tracking| Arc::clone(&tracking.claims)),
        };
        let wake_ups = shared.servers.route(home.clone(), within, Some(of_claims));
        let cluster = match &shared.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(Arc::clone(cluster)),
        };
        if let Some(info) = self.told.clone() {
            let presence = Presence {
                route: background.clone(),
                id: shared.id.clone(),
                info,
                state: Arc::clone(&shared.presence),
                lease: self.lease,
                response_timeout: within,
            };
            runtimes.renewals.spawn(presence.run());
        }
        let own = OwnConnections { background, wake_ups: wake_ups.clone(), home: home.clone() };
        if shared.own.set(own).is_err() {
            return;
        }
        shared.servers.watch(runtimes, reports, self.lease);
        let client = shared.id.clone();
        let poller = Poller::new(wake_ups.clone(), Arc::clone(&subscriptions), within, client);
        home.spawn(poller.run());
        match (wake_ups, cluster) {
            (Route::One(connection), _) => {
                home.spawn(subscriber::run(connection, subscriptions, within));
            }
            (Route::Cluster(_), Some(cluster)) => {
                let (response_timeout, given_back) = (within, Arc::default());
                home.spawn(cluster_subscriber::run(ClusterChannels {
                    cluster,
                    subscriptions,
                    response_timeout,
                    on_message,
                    given_back,
                }));
            }
            (Route::Cluster(_), None) => {}
        }
    }

    #[cfg(feature = "testing")]
    fn runs_on_the_callers_runtime(&self) -> bool {
        test_network::current().is_some()
    }

    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        MaybeReady::pending(self.connect_and_check())
    }

    fn profile(&self) -> StoreAnswer<'_, StoreProfile> {
        MaybeReady::pending(self.profile_now())
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        MaybeReady::pending(self.shared.holder(key))
    }

    fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        self.shared.answer_with(answerer);
    }
    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        Ok(self)
    }
    fn has_questions(&self) -> bool {
        true
    }

    fn asker(&self, namespace: &str) -> Result<Box<dyn Asker>, StoreError> {
        Ok(Box::new(RedisAsker::new(&self.shared, namespace)?))
    }

    fn check_readiness(&self, layout: Layout) -> StoreAnswer<'_, ()> {
        MaybeReady::pending(self.shared.check_readiness(layout))
    }

    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        Ok(Arc::clone(&self.handles[layout.index()]) as Arc<dyn LockStore>)
    }
}
impl KeyInspector for RedisBackend {
    fn read_lock<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<LockState>> {
        MaybeReady::pending(self.shared.read_lock(key))
    }

    fn name_holders<'a>(&'a self, locks: &'a mut [LockState]) -> StoreAnswer<'a, ()> {
        MaybeReady::pending(self.shared.name_holders(locks))
    }

    fn delete<'a>(&'a self, key: &'a str, token: &'a str) -> StoreAnswer<'a, Deletion> {
        MaybeReady::pending(async move {
            match self.shared.hold_with(key, token).await? {
                HoldWithToken::Found(layout, mode) => {
                    self.handles[layout.index()].delete(key, token, mode).await
                }
                HoldWithToken::OfOthers => Ok(Deletion::Changed),
                HoldWithToken::Gone => Ok(Deletion::Gone),
            }
        })
    }

    fn scan<'a>(
        &'a self,
        position: ScanPosition,
        pattern: &'a str,
        limit: u32,
    ) -> StoreAnswer<'a, ScanPage> {
        MaybeReady::pending(self.shared.scan(position, pattern, limit))
    }
}
