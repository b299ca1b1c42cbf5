//! The client: configuration, connecting, installing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::turn::Limits;
use crate::engine::{Config, Engine};
use crate::error::LockError;
use crate::format::WireFormat;
use crate::global;
use crate::lock::{Lock, check_span};
use crate::runtime;
use crate::stats::ClientStats;
use crate::store::{LockStore, MemoryStore};
use crate::wait::Wait;

/// The lease of a lock that names none.
const DEFAULT_WATCHDOG: Duration = Duration::from_secs(30);
/// The wait of a lock that names none.
const DEFAULT_WAIT: Wait = Wait::For(Duration::from_secs(30));
/// The shortest lease that can be renewed in time on a busy machine.
const SHORTEST_WATCHDOG: Duration = Duration::from_millis(100);
/// The longest: how long everybody waits when a holder dies.
const LONGEST_WATCHDOG: Duration = Duration::from_secs(24 * 60 * 60);
/// How long [`LockClient::shutdown`] waits for bodies to finish.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// The longest namespace, in bytes.
const LONGEST_NAMESPACE: usize = 128;

/// A connection to a lock store, with everything that keeps its locks alive.
///
/// Made once per process and [installed](Self::install), or passed around: clones are cheap and
/// share everything. Each client has two background threads and, with Redis, three connections: one
/// for the requests that callers await, one for renewals and background releases, one for wake-ups.
///
/// Dropping the last clone releases what it can; [`shutdown`](Self::shutdown) waits for that.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let url = "memory:";
/// let client = LockClient::connect(url).await?; // such as "redis://127.0.0.1:6379"
/// client.lock("report").run(async { /* … */ }).await?;
/// client.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockClient {
    engine: Arc<Engine>,
}

impl LockClient {
    /// Connects to the store at `url`, with the default settings.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | a Redis server, 6.0 or newer |
    /// | `redis+unix:///path[?db=…&user=…&pass=…]` | the same, over a Unix socket |
    /// | `memory:` | this process's memory, for this client alone |
    /// | `memory:name` | the same, shared by all clients of this process that say this name |
    ///
    /// # Errors
    ///
    /// [`LockError::Config`] if the URL or a setting makes no sense or the server cannot keep locks
    /// (too old, a node of a cluster, a Sentinel), [`LockError::Unavailable`] if
    /// the server cannot be reached (a refused connection fails at once, a silent one after 5 s;
    /// neither is tried again), [`LockError::Denied`] if it refuses the
    /// credentials. None of them shows the URL's user-info.
    pub async fn connect(url: impl Into<String>) -> Result<Self, LockError> {
        Self::builder().url(url).connect().await
    }

    /// Starts from the default settings.
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::default()
    }

    /// A client with a store of its own in this process's memory: for tests, and for running
    /// without a server.
    #[must_use]
    pub fn memory() -> Self {
        let config = Config {
            namespace: String::new(),
            format: WireFormat::default(),
            watchdog: DEFAULT_WATCHDOG,
            max_hold: None,
            wait: DEFAULT_WAIT,
            response_timeout: response_timeout(DEFAULT_WATCHDOG),
            turn: Limits::default(),
        };
        Self { engine: Engine::start(config, MemoryStore::new()) }
    }

    /// Makes this the client of all annotated functions of the process that name none.
    ///
    /// An installed client is never dropped. So that no lock is left to its lease when the process
    /// ends, let `global()?.shutdown().await` be the last thing that `main` does, after an error too.
    ///
    /// # Errors
    ///
    /// [`LockError::AlreadyInstalled`] the second time.
    pub fn install(self) -> Result<(), LockError> {
        global::install(self)
    }

    /// A lock on `key`. What may be wrong with the key is told when it is acquired.
    pub fn lock(&self, key: impl Into<String>) -> Lock {
        Lock::new(Arc::clone(&self.engine), key.into())
    }

    /// Stops taking locks, waits up to 10 s for the bodies that run to finish and for the guards
    /// that are held to be released, ends those that were not, and waits up to 5 s for the last
    /// releases.
    ///
    /// From the first moment on, whoever waits for a lock or asks for one gets
    /// [`LockError::ShutDown`]. Call it from outside any locked body, which it would wait for.
    ///
    /// Cancel safe: dropped half-way, the client stays shut down and the releases go on.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`] if the store has not confirmed all releases by then. Those locks
    /// end with their leases.
    pub async fn shutdown(&self) -> Result<(), LockError> {
        runtime::checked()?;
        let started = tokio::time::Instant::now();
        match self.engine.shut_down(SHUTDOWN_GRACE).await {
            0 => Ok(()),
            open => Err(LockError::Unavailable {
                key: None,
                waited: started.elapsed(),
                cause: format!(
                    "{open} locks could not be released before the shutdown; they end with their \
                     leases"
                ),
            }),
        }
    }

    /// How much the client has on its hands at this moment. Costs no round trip.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let guard = client.lock("report").acquire().await?;
    /// assert_eq!(client.stats().held, 1);
    /// guard.release().await?;
    /// assert!(client.stats().is_idle());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.engine.stats()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.describe(&mut f.debug_struct("LockClient"))
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
///     .watchdog(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .connect()
///     .await?;
/// let guard = client.lock("order:1").acquire().await?;
/// assert_eq!(guard.key(), "shop:order:1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    url: Option<String>,
    namespace: String,
    format: WireFormat,
    watchdog: Duration,
    max_hold: Option<Duration>,
    wait: Wait,
    turn: Limits,
}

impl Default for LockClientBuilder {
    fn default() -> Self {
        Self {
            url: None,
            namespace: String::new(),
            format: WireFormat::default(),
            watchdog: DEFAULT_WATCHDOG,
            max_hold: None,
            wait: DEFAULT_WAIT,
            turn: Limits::default(),
        }
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for LockClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, namespace, format, watchdog, max_hold, wait, turn } = self;
        f.debug_struct("LockClientBuilder")
            .field("url", &url.as_ref().map(|_| "…"))
            .field("namespace", namespace)
            .field("format", format)
            .field("watchdog", watchdog)
            .field("max_hold", max_hold)
            .field("wait", wait)
            .field("turn", turn)
            .finish()
    }
}

impl LockClientBuilder {
    /// Where the store is; see [`LockClient::connect`] for the forms. Required.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Put before every key, with a `:` between: services that share a server do not then share
    /// locks by accident. Choose namespaces of which none continues another: `shop` with the key
    /// `eu:order:1` is the same as `shop:eu` with `order:1`. At most 128 bytes, without white space, controls and braces. None by
    /// default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// How locks that do not say otherwise look in Redis: whose they are to exclude.
    /// [`WireFormat::Token`] by default.
    pub fn format(mut self, format: WireFormat) -> Self {
        self.format = format;
        self
    }

    /// The lease of locks that name none, renewed each time a third of it has passed. It is also
    /// how long the others wait when a holder's process dies. From 100 ms to 24 h; 30 s by
    /// default.
    pub fn watchdog(mut self, lease: Duration) -> Self {
        self.watchdog = lease;
        self
    }

    /// After how long renewed locks that do not say otherwise are given up, from 10 ms to 7 days: a
    /// safety net against bodies that hang for ever. None by default.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// The wait of locks that name none: a [`Duration`] of up to 7 days, zero for one try, or
    /// [`Wait::Forever`]. 30 s by default.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = wait.into();
        self
    }

    /// How long this process passes a lock on among its own tasks while other processes wait for it:
    /// for so many holds, or for so long, whichever is over first. 32 holds and 50 ms by default.
    ///
    /// A lock that is passed on costs the store nothing. At the end of a turn the others have theirs,
    /// each before this process has the next; a process that learns that nobody else waits goes on, for a
    /// second at the most. Who waits is known of those that can hear of releases, and not of those that
    /// only try now and then. Zero of either has each holder free the key, and the next one acquire it anew.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// // Few holds at a time, for short waits elsewhere.
    /// let client = LockClient::builder()
    ///     .url("memory:")
    ///     .turn(4, Duration::from_millis(5))
    ///     .connect()
    ///     .await?;
    /// client.lock("report").run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn turn(mut self, holds: u32, time: Duration) -> Self {
        self.turn = Limits { holds, time };
        self
    }

    /// Checks the settings and connects.
    ///
    /// # Errors
    ///
    /// See [`LockClient::connect`].
    #[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))]
    pub async fn connect(self) -> Result<LockClient, LockError> {
        let Some(url) = self.url.as_deref() else {
            return Err(url_error("none was given; `memory:` needs no server"));
        };
        let config = self.config()?;
        runtime::checked()?;
        let url = url.trim();
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        match scheme {
            "memory" => {
                let store = match rest.trim_start_matches('/') {
                    "" => MemoryStore::new(),
                    name => MemoryStore::named(name),
                };
                start(config, store)
            }
            #[cfg(feature = "redis")]
            "redis" | "redis+unix" => {
                use crate::store::redis::RedisStore;
                let store = Arc::new(RedisStore::new(url, config.response_timeout)?);
                let client = start(config, Arc::clone(&store) as Arc<dyn LockStore>)?;
                store.connect().await?;
                Ok(client)
            }
            #[cfg(not(feature = "redis"))]
            "redis" | "redis+unix" => Err(url_error(
                "this build has no Redis store; switch on the feature `redis` of `lock-runtime`",
            )),
            "rediss" => Err(url_error("TLS (`rediss://`) is not supported yet; use `redis://`")),
            _ => Err(url_error(
                "it begins with none of `redis://`, `redis+unix://` and `memory:`; for a server write \
                 `redis://host:port`",
            )),
        }
    }

    fn config(&self) -> Result<Config, LockError> {
        if !(SHORTEST_WATCHDOG..=LONGEST_WATCHDOG).contains(&self.watchdog) {
            return Err(LockError::Config {
                option: "watchdog",
                problem: format!(
                    "{:?} is not from {SHORTEST_WATCHDOG:?} to {LONGEST_WATCHDOG:?}",
                    self.watchdog
                ),
            });
        }
        if let Some(max_hold) = self.max_hold {
            check_span("max_hold", max_hold)?;
        }
        let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '{' | '}');
        let problem = if self.namespace.len() > LONGEST_NAMESPACE {
            Some(format!("it has more than {LONGEST_NAMESPACE} bytes"))
        } else if self.namespace.ends_with(':') {
            Some("it ends with a `:`, and one is put behind it anyway".to_owned())
        } else {
            self.namespace.chars().find(|c| bad(*c)).map(|c| format!("it contains {c:?}"))
        };
        if let Some(problem) = problem {
            return Err(LockError::Config { option: "namespace", problem });
        }
        Ok(Config {
            namespace: self.namespace.clone(),
            format: self.format,
            watchdog: self.watchdog,
            max_hold: self.max_hold,
            wait: self.wait.check()?,
            response_timeout: response_timeout(self.watchdog),
            turn: self.turn,
        })
    }
}

fn start(config: Config, store: Arc<dyn LockStore>) -> Result<LockClient, LockError> {
    let engine = Engine::start(config, store);
    engine.is_kept(None)?;
    Ok(LockClient { engine })
}

fn url_error(problem: &str) -> LockError {
    LockError::Config { option: "url", problem: problem.to_owned() }
}

/// How long the store may take for an answer: a third of the lease, so that a renewal which gets
/// none leaves time for another.
fn response_timeout(watchdog: Duration) -> Duration {
    (watchdog / 3).clamp(Duration::from_millis(50), Duration::from_secs(2))
}
