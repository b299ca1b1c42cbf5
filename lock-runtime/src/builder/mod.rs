//! The settings of a client.

mod defaults;
mod limits;
mod network;
mod quorum;
pub(crate) mod source;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::address_map::AddressMap;
use crate::client::LockClient;
use crate::clock;
use crate::connected::{ClientSettings, Connected};
use crate::credentials::CredentialsSource;
use crate::engine::fairness::limit::HandoffLimit;
use crate::engine::{Config, Engine};
use crate::error::LockError;
use crate::identity::Identity;
use crate::lock_order::OrderAction;
use crate::options::{Defaults, LockOptions};
use crate::release_mode::ReleaseMode;
use crate::replicas::{Replicas, RequiredReplicas};
use crate::runtime;
use crate::store::Settings;
use crate::store::contract::Backend;
#[cfg(feature = "store")]
use crate::store::contract::OpenStore;
use crate::store::memory::backend::MemoryBackend;
use crate::store::quarantine_terms::QuarantineTerms;
#[cfg(feature = "testing")]
use crate::telemetry::CallObserver;
use crate::telemetry::{ClientMetrics, SlowThresholds};
use crate::timeout::{Wait, response_timeout};
#[cfg(feature = "tls")]
use crate::tls::TlsOptions;
use crate::wire_format::WireFormat;

/// Deadlines must not stand still with tokio's clock, or leases would never end.
const PAUSED: &str = "tokio's time is paused here, but leases and renewals use the clock of the system: use \
                      `LockClient::testing()` (feature `testing`) in tests with paused time";

impl LockClient {
    /// Connects to the store at `url`, with the default settings.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | a Redis server, 6.0 or newer |
    /// | `rediss://…[?tls_ca=…&tls_cert=…&tls_key=…&tls_server_name=…]` | a Redis server, over TLS (feature `tls`) |
    /// | `redis+sentinel://[[user]:password@]host[:port],host[:port]/master-name[/database][?sentinel_user=…&sentinel_pass=…]` | the master that these sentinels name |
    /// | `rediss+sentinel://…` | the same, with TLS to the sentinels and to the master; the options are also those of `rediss://` |
    /// | `redis+cluster://[[user]:password@]host[:port],host[:port]` | the Redis Cluster of these nodes |
    /// | `rediss+cluster://…` | the same, over TLS; the options are those of `rediss://` |
    /// | `redis+redlock://[[user]:password@]host[:port],host[:port],host[:port][/database]` | a [quorum](LockClientBuilder::quorum) of these servers |
    /// | `rediss+redlock://…` | the same, over TLS; the options are those of `rediss://` |
    /// | `redis+unix:///path[?db=…&user=…&pass=…]` | a Redis server, over a Unix socket |
    /// | `valkey://`, `valkeys://`, `valkey+sentinel://`, `valkeys+sentinel://`, `valkey+cluster://`, `valkeys+cluster://`, `valkey+redlock://`, `valkeys+redlock://`, `valkey+unix://` | the same, for Valkey |
    /// | `etcd://[user:password@]host[:port][,host[:port]]` | the cluster of [etcd](https://etcd.io) with these members, 3.4 or newer (feature `etcd`): see `store::EtcdStore` |
    /// | `etcds://…` | the same, over TLS; the options are those of `rediss://` |
    /// | `postgres://[user[:password]@]host[:port][,host[:port]]/database` | a table in [PostgreSQL](https://www.postgresql.org) 12 or newer (feature `postgres`): see `store::PostgresStore` |
    /// | `memory:` | this process's memory, for this client alone |
    /// | `memory:name` | this process's memory, for all its clients that use this name |
    ///
    /// With Redis, opens three connections, one after the other, and then checks the server with
    /// two requests. With a cluster, these lead to one of its nodes, and the other connections are
    /// opened when they are first used. With a `quarantine`, it also asks each server whether one is
    /// necessary, all nodes of a cluster at once, which takes at most one response timeout. Finally, it
    /// subscribes to questions about the client ([`identity`](LockClientBuilder::identity)), with one request.
    /// The memory store costs nothing.
    ///
    /// Cancel safe: if the future is dropped, the threads and connections of the client end.
    ///
    /// # Errors
    ///
    /// * [`LockError::Config`]: the URL or a setting is invalid, the server cannot be used for
    ///   locks (too old, without scripts, a sentinel, a node of a cluster without
    ///   `redis+cluster://`), no sentinel knows the name of the master, a host of
    ///   `redis+cluster://` is not a node of the cluster, a certificate cannot be read or verified,
    ///   the server uses TLS and the URL does not, or the reverse, there is no tokio runtime with
    ///   timers here, or its time is paused.
    /// * [`LockError::Unavailable`]: the server cannot be reached, or the client's threads cannot
    ///   be started. A refused connection fails at once. A connection or a request without an
    ///   answer fails after 5 s. There are no retries.
    /// * [`LockError::Denied`]: the server rejects the credentials or the client certificate,
    ///   requires a client certificate, or the user may not run scripts, or lacks a permission that
    ///   `acknowledged_by` or `quarantine` needs.
    ///
    /// No error shows the URL's user and password.
    pub async fn connect(url: impl Into<String>) -> Result<Self, LockError> {
        Self::builder().url(url).connect().await
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::default()
    }

    /// Returns a client with a new store in this process's memory, for tests and for running
    /// without a server.
    #[must_use]
    pub fn memory() -> Self {
        let defaults = LockOptions::NONE.defaults(RequiredReplicas::NONE, None);
        if clock::is_paused() {
            tracing::warn!(problem = PAUSED, "a client was made while time is paused");
        }
        let settings = ClientSettings {
            namespace: String::new(),
            defaults,
            orders: None,
            told: Identity::default().info(),
            is_revocable: false,
        };
        let metrics = ClientMetrics::new("", Arc::default());
        start(MemoryBackend::new(), settings, metrics, HandoffLimit::default())
    }
}

/// The settings of a [`LockClient`].
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::builder()
///     .url("memory:")
///     .namespace("shop")
///     .lease(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .connect()
///     .await?;
/// let guard = client.lock("order:1").acquire().await?;
/// assert_eq!(guard.key(), "shop:order:1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    url: Option<String>,
    #[cfg(feature = "store")]
    store: Option<Arc<dyn OpenStore>>,
    quorum: Option<Vec<String>>,
    namespace: String,
    options: LockOptions,
    handoff_limit: HandoffLimit,
    max_keys: Option<usize>,
    quarantine: Option<Duration>,
    without_tracking: bool,
    credentials: Option<CredentialsSource>,
    address_map: Option<AddressMap>,
    identity: Identity,
    is_revocable: bool,
    slow: SlowThresholds,
    finds_orders: Option<bool>,
    unavailable_after: Option<Duration>,
    #[cfg(feature = "tls")]
    tls: Option<TlsOptions>,
}

/// Without the URL, which may contain a password.
impl fmt::Debug for LockClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LockClientBuilder");
        shown
            .field("url", &self.url.as_ref().map(|_| "…"))
            .field("quorum", &self.quorum.as_ref().map(Vec::len))
            .field("namespace", &self.namespace)
            .field("options", &self.options)
            .field("handoff_limit", &self.handoff_limit)
            .field("max_keys", &self.max_keys)
            .field("quarantine", &self.quarantine)
            .field("tracking", &!self.without_tracking)
            .field("credentials", &self.credentials)
            .field("address_map", &self.address_map)
            .field("identity", &self.identity)
            .field("revocable", &self.is_revocable)
            .field("slow", &self.slow)
            .field("finds_orders", &self.finds_orders)
            .field("unavailable_after", &self.unavailable_after);
        #[cfg(feature = "store")]
        shown.field("store", &self.store.as_deref().map(OpenStore::name));
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown.finish()
    }
}

impl LockClientBuilder {
    /// Sets the URL of the store; see [`LockClient::connect`]. Required.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Sets a prefix for every key, which a `:` separates from the key. Services that share a
    /// server then do not share locks by accident. No namespace should be the beginning of another
    /// one: the key `eu:order:1` in `shop` is the same as the key `order:1` in `shop:eu`.
    ///
    /// At most 128 bytes, without white space, control characters and braces, and without a `:` at
    /// the end. None by default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the layout in Redis of locks that do not specify one. The layout determines the clients
    /// that can share these locks. [`WireFormat::Token`] by default.
    pub fn wire_format(mut self, wire_format: WireFormat) -> Self {
        self.options.wire_format = Some(wire_format);
        self
    }

    /// Sets the lease of locks that do not specify one. These locks are renewed every third of the
    /// lease. If the process of a holder dies, other clients wait until its lease ends.
    ///
    /// The response timeout follows from the lease: the store may take a third of it for one
    /// answer, but at least 50 ms and at most 2 s.
    ///
    /// From 100 ms to 24 h; 30 s by default.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Sets the longest hold of renewed locks that do not specify one. A lock that is held for
    /// longer is lost. This is a safety net against bodies that hang.
    ///
    /// From 10 ms to 7 days; none by default.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Sets the timeout of acquisitions that do not specify one: a [`Duration`] of up to 7 days,
    /// where zero makes one attempt, or [`Wait::Forever`]. 30 s by default.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options.wait = Some(wait.into());
        self
    }

    /// Requires that replicas of the server acknowledge each grant and each renewal of locks that do
    /// not specify it: at least this number of replicas, or [`Replicas::All`]. See
    /// [`Lock::acknowledged_by`](crate::Lock::acknowledged_by). None by default.
    ///
    /// If the server has fewer replicas, the client logs a warning when it connects.
    pub fn acknowledged_by(mut self, replicas: impl Into<Replicas>) -> Self {
        self.options.acknowledged_by = Some(replicas.into());
        self
    }

    /// Sets whether calls wait for the release of their lock. [`ReleaseMode::Awaited`] by default;
    /// see [`Lock::release_mode`](crate::Lock::release_mode).
    pub fn release(mut self, release: ReleaseMode) -> Self {
        self.options.release = Some(release);
        self
    }

    /// How long a lock is kept after its release for the next call of the client, from 10 ms to 1 s
    /// and at most a third of the lease. Zero, the default, frees it at its release; see
    /// [`Lock::linger`](crate::Lock::linger).
    pub fn linger(mut self, linger: Duration) -> Self {
        self.options.linger = Some(linger);
        self
    }

    /// How long a server grants no locks after it may have lost some, from 10 ms to 7 days: after
    /// each restart, and after each failover. Without it, which is the default, such a server grants
    /// locks at once, although an earlier holder may not yet know that its lock is lost.
    ///
    /// Meanwhile, calls wait, and return [`LockError::Unavailable`] if their wait ends first. Held
    /// locks are renewed and released as usual. No lease and no `min_hold` may be longer; this is
    /// checked on the memory store as well, which has no quarantines. The quarantine should be the
    /// longest lease on the server, two seconds more, and the time for which an earlier master may
    /// grant locks during a failover. `min-replicas-to-write 1` with `min-replicas-max-lag` limits this
    /// time, and in a cluster, `cluster-node-timeout` does; with neither, it has no limit. All clients
    /// of a server have to use the quarantine; those in other languages do not know it.
    ///
    /// A quarantine begins when a client connects or acquires a lock. The server remembers when it
    /// began, so a client that connects later waits for the rest only. The first client that ever
    /// uses a server waits for all of it. Costs one round trip at the connect, and one for each
    /// connection that acquires locks, at most twice a second. An acquisition waits for it only if
    /// its connection has not done so for a second.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder()
    ///     .url("redis+sentinel://sentinel-1,sentinel-2,sentinel-3/locks")
    ///     .lease(Duration::from_secs(10))
    ///     .quarantine(Duration::from_secs(15))
    ///     .wait(Duration::from_secs(30))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn quarantine(mut self, quarantine: Duration) -> Self {
        self.quarantine = Some(quarantine);
        self
    }

    /// Sets whether the server is asked to report changes of keys (`CLIENT TRACKING`). It is by
    /// default. The memory store ignores it.
    ///
    /// The holder of a lock then learns at once that its key was deleted or taken by force, instead of
    /// at its next renewal, and a waiting call gets a lock at once that a client without messages has
    /// released, instead of within a second. Holds are watched from about a fifteenth of their lease
    /// on, and waiting calls after 50 ms. A server that refuses `CLIENT TRACKING` is used without it.
    pub fn tracking(mut self, tracking: bool) -> Self {
        self.without_tracking = !tracking;
        self
    }

    /// Checks the settings and connects.
    ///
    /// # Errors
    ///
    /// See [`LockClient::connect`].
    pub async fn connect(self) -> Result<LockClient, LockError> {
        let (client, store) = self.start(true)?;
        store.connect().await?;
        Ok(client)
    }

    /// Checks the settings, and returns a client that connects at its first call. For programs that start while
    /// their server may be down. Costs no round trip, and does not need a tokio runtime.
    ///
    /// The server is not checked: a server that cannot be used for locks, credentials that it rejects and missing
    /// permissions are errors of each call, and there are no warnings about its settings.
    /// [`LockClient::ready`] tells whether it can be used.
    ///
    /// # Errors
    ///
    /// * [`LockError::Config`]: the URL or a setting is invalid, the store is etcd, PostgreSQL or a custom one, a
    ///   certificate cannot be read, or tokio's time is paused here.
    /// * [`LockError::Unavailable`]: the client's threads cannot be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// // Nothing listens there.
    /// let client = LockClient::builder().url("redis://127.0.0.1:1").connect_lazy()?;
    /// let outcome = client.lock("report").wait(Duration::ZERO).acquire().await;
    /// assert!(matches!(outcome, Err(LockError::Unavailable { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_lazy(self) -> Result<LockClient, LockError> {
        #[cfg(feature = "store")]
        self.check_lazy()?;
        self.start(false).map(|(client, _)| client)
    }

    /// Checks the settings, and starts the client. Fails if a runtime `is_needed`, and there is none.
    fn start(mut self, is_needed: bool) -> Result<(LockClient, Arc<dyn Backend>), LockError> {
        let source = self.source()?;
        let defaults = self.checked()?;
        self.identity.check()?;
        if is_needed {
            runtime::checked()?;
        }
        if clock::is_paused() {
            return Err(LockError::config("runtime", PAUSED));
        }
        let mut settings = Settings::new(defaults.lease, response_timeout(defaults.lease));
        settings.acknowledged_by = defaults.acknowledged_by;
        settings.quarantine = defaults.quarantine.map(QuarantineTerms::new).map(Arc::new);
        settings.tracking = !self.without_tracking;
        settings.credentials.clone_from(&self.credentials);
        settings.address_map.clone_from(&self.address_map);
        settings.told = self.identity.info();
        settings.namespace.clone_from(&self.namespace);
        #[cfg(feature = "tls")]
        settings.tls.clone_from(&self.tls);
        let store = source.open(&settings)?;
        let metrics = ClientMetrics::new(&self.namespace, settings.requests).warning(self.slow);
        let settings = ClientSettings {
            namespace: self.namespace,
            defaults,
            orders: self.finds_orders.unwrap_or(false).then_some(OrderAction::Warn),
            told: settings.told,
            is_revocable: self.is_revocable,
        };
        let client = start(Arc::clone(&store), settings, metrics, self.handoff_limit);
        client.connected().engine.check_background(None)?;
        Ok((client, store))
    }
}

#[cfg(feature = "testing")]
impl LockClientBuilder {
    pub(crate) fn namespace_of_keys(&self) -> &str {
        &self.namespace
    }

    /// A client of this store, whose calls are observed.
    pub(crate) fn start_with(
        self,
        backend: Arc<dyn Backend>,
        observer: Option<Arc<dyn CallObserver>>,
    ) -> Result<LockClient, LockError> {
        let defaults = self.checked()?;
        self.identity.check()?;
        runtime::checked()?;
        let mut metrics = ClientMetrics::new(&self.namespace, Arc::default()).warning(self.slow);
        metrics.observer = observer;
        let settings = ClientSettings {
            namespace: self.namespace,
            defaults,
            orders: self.finds_orders.unwrap_or(true).then_some(OrderAction::Panic),
            told: self.identity.info(),
            is_revocable: self.is_revocable,
        };
        Ok(start(backend, settings, metrics, self.handoff_limit))
    }
}

fn start(
    backend: Arc<dyn Backend>,
    settings: ClientSettings,
    metrics: ClientMetrics,
    handoff_limit: HandoffLimit,
) -> LockClient {
    let response_timeout = response_timeout(settings.defaults.lease);
    let Defaults { wait, quarantine, unavailable_after, .. } = settings.defaults;
    let config = Config { response_timeout, wait, handoff_limit, quarantine, unavailable_after };
    let engine = Engine::start(config, &*backend, Arc::new(metrics));
    LockClient::new(Connected::new(engine, backend, settings))
}
