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
//! The processes are asked once a second while somebody looks at the page, however many do, and never otherwise. See
//! [the page about it](https://github.com/lock-runtime/lock-runtime/blob/main/docs/dashboard.md).

#![forbid(unsafe_code)]

mod api;
mod asked;
mod assets;
mod clients;
mod contention;
mod digest;
mod history;
mod hub;
mod locks;
mod losses;
mod one_lock;
mod security;
mod view;

use std::time::Duration;

use axum::Router;
use lock_runtime::admin::LockAdmin;

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
}

impl Dashboard {
    /// A page that shows the locks of the clients that `admin` asks, and changes nothing.
    #[must_use]
    pub fn new(admin: LockAdmin) -> Self {
        Self { admin, allow_actions: false, refresh: REFRESH }
    }

    /// Sets whether the page can revoke locks. It cannot by default. Whoever reaches the page can then revoke the locks of
    /// clients that are [revocable](lock_runtime::LockClientBuilder::revocable).
    #[must_use]
    pub fn allow_actions(mut self, allow: bool) -> Self {
        self.allow_actions = allow;
        self
    }

    /// Sets how often the processes are asked while somebody looks at the page: from half a second to a minute, and every
    /// second by default.
    #[must_use]
    pub fn refresh(mut self, refresh: Duration) -> Self {
        self.refresh = refresh.clamp(REFRESHES.0, REFRESHES.1);
        self
    }

    /// The routes, for [`Router::nest`] under any path. They are to be behind the authentication of the service: the page
    /// shows keys and the names of hosts.
    pub fn router(self) -> Router {
        api::routes(self.admin, self.allow_actions, self.refresh)
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

/// Compiles the code of the page about the dashboard.
#[cfg(doctest)]
#[doc = include_str!("../../docs/dashboard.md")]
struct PageAboutTheDashboard;
