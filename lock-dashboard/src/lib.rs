//! A page that shows the locks of all processes live: which are held, and by whom, where calls wait, and which were
//! lost. The page is an [`axum::Router`] for a service of one's own, behind its authentication.
//!
//! ```no_run
//! use lock_dashboard::Dashboard;
//! use lock_runtime::LockClient;
//! use lock_runtime::admin::LockAdmin;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::connect("redis://127.0.0.1:6379").await?;
//! let dashboard = Dashboard::new(LockAdmin::new(&client)).router();
//! let service = axum::Router::new().nest("/locks", dashboard);
//! # Ok(())
//! # }
//! ```
//!
//! The processes are asked once a second while somebody looks at the page, however many do, and never otherwise.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod answers;
mod api;
mod asked;
mod assets;
mod clients;
mod contention;
mod digest;
mod history;
mod hub;
mod last_holders;
mod locks;
mod losses;
mod one_lock;
mod operator;
mod revocation;
mod security;
mod streams;
mod view;

use std::time::Duration;

use axum::Router;
use futures_util::FutureExt;
use futures_util::future::pending;
use lock_runtime::admin::LockAdmin;

pub use self::operator::Operator;
use self::security::AllowedHosts;
use self::streams::ShutdownSignal;

/// How often the processes are asked, unless it is set.
const REFRESH: Duration = Duration::from_secs(1);

/// The shortest and the longest time between two rounds of questions.
const REFRESHES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The settings of the page.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_dashboard::Dashboard;
/// use lock_runtime::LockClient;
/// use lock_runtime::admin::LockAdmin;
///
/// let admin = LockAdmin::new(&LockClient::memory());
/// let dashboard = Dashboard::new(admin).allow_actions(true).refresh(Duration::from_secs(2));
/// let service: axum::Router = axum::Router::new().nest("/locks", dashboard.router());
/// ```
#[derive(Debug, Clone)]
pub struct Dashboard {
    admin: LockAdmin,
    allow_actions: bool,
    refresh: Duration,
    allowed_hosts: AllowedHosts,
    shutdown: ShutdownSignal,
}

impl Dashboard {
    /// A page that shows the locks of the clients that `admin` asks, and changes nothing.
    #[must_use]
    pub fn new(admin: LockAdmin) -> Self {
        Self {
            admin,
            allow_actions: false,
            refresh: REFRESH,
            allowed_hosts: AllowedHosts::default(),
            shutdown: pending().boxed().shared(),
        }
    }

    /// Sets whether the page can revoke locks. It cannot by default. Whoever reaches the page can then revoke the locks
    /// of clients that are [revocable](lock_runtime::LockClientBuilder::revocable). Each request to do so is logged with its
    /// [`Operator`], also if it is refused.
    #[must_use]
    pub fn allow_actions(mut self, allow: bool) -> Self {
        self.allow_actions = allow;
        self
    }

    /// Sets how often the processes are asked while somebody looks at the page: from half a second to a minute, and
    /// every second by default.
    #[must_use]
    pub fn refresh(mut self, refresh: Duration) -> Self {
        self.refresh = refresh.clamp(REFRESHES.0, REFRESHES.1);
        self
    }

    /// Sets the hosts under which the page may be requested, each with or without a port. By default, there is no
    /// check.
    ///
    /// A page without authentication, such as one on loopback, needs this: any site can let its own name lead to
    /// `127.0.0.1`, and its scripts could then read the page in the browser of a user.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_dashboard::Dashboard;
    /// use lock_runtime::LockClient;
    /// use lock_runtime::admin::LockAdmin;
    ///
    /// let admin = LockAdmin::new(&LockClient::memory());
    /// let dashboard = Dashboard::new(admin).allowed_hosts(["localhost", "127.0.0.1", "[::1]"]);
    /// ```
    #[must_use]
    pub fn allowed_hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed_hosts = AllowedHosts::new(hosts.into_iter().map(Into::into));
        self
    }

    /// Sets a future that resolves when the service is to be shut down. The streams of events then end at once. Without
    /// it, a graceful shutdown waits for up to half a minute for them, unless the client of the page is shut down
    /// before.
    ///
    /// The future is polled only while somebody looks at the page, so it has to stay ready: one that waits for a
    /// [`watch`](tokio::sync::watch) channel does, and a [`Notify`](tokio::sync::Notify) may not.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_dashboard::Dashboard;
    /// use lock_runtime::LockClient;
    /// use lock_runtime::admin::LockAdmin;
    /// use tokio::sync::watch;
    ///
    /// let (shutdown, mut is_shutdown) = watch::channel(false);
    /// let admin = LockAdmin::new(&LockClient::memory());
    /// let dashboard = Dashboard::new(admin).shutdown(async move {
    ///     // It fails if the sender is gone, and then the service is as well.
    ///     let _ = is_shutdown.wait_for(|is_shutdown| *is_shutdown).await;
    /// });
    /// // On SIGTERM:
    /// shutdown.send_replace(true);
    /// ```
    #[must_use]
    pub fn shutdown(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.shutdown = signal.boxed().shared();
        self
    }

    /// The routes, for [`Router::nest`] under a path without parameters, or for [`Router::merge`] at `/`. They are to be
    /// behind the authentication of the service: the page shows keys and the names of hosts.
    pub fn router(self) -> Router {
        api::routes(self)
    }
}

/// The routes of a page with the default settings; see [`Dashboard`].
///
/// # Examples
///
/// ```
/// use lock_runtime::LockClient;
/// use lock_runtime::admin::LockAdmin;
///
/// let dashboard = lock_dashboard::router(LockAdmin::new(&LockClient::memory()));
/// let service: axum::Router = axum::Router::new().nest("/locks", dashboard);
/// ```
pub fn router(admin: LockAdmin) -> Router {
    Dashboard::new(admin).router()
}

/// Compiles the code of the readme.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
