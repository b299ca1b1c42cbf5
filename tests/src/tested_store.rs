//! The store that the target `stores` and its soak test use, whichever it is.

use std::time::Duration;

use lock_runtime::LockClient;

use crate::support::Pair;
use crate::{Quorum, RedisServer};

/// The variable that says which store is tested: one of [`TestedStore::NAMES`].
const NAME: &str = "LOCK_TESTS_STORE";

/// A running store with real servers, which end when this is dropped.
#[derive(Debug)]
pub enum TestedStore {
    /// One Redis server without persistence.
    Redis(Box<RedisServer>),
    /// Three Redis servers that vote.
    Quorum(Quorum),
}

impl TestedStore {
    /// The names of all stores.
    pub const NAMES: [&str; 2] = ["redis", "quorum"];

    /// Starts the store that the variable `LOCK_TESTS_STORE` names.
    ///
    /// # Panics
    ///
    /// If the variable is not set, or if a server of the store is not installed.
    pub async fn start() -> Self {
        let name = std::env::var(NAME).unwrap_or_default();
        Self::named(&name).await.unwrap_or_else(|| {
            panic!("`{NAME}` is {name:?}, and not one of {:?}: run `scripts/stores`", Self::NAMES)
        })
    }

    /// Starts the store with this name.
    #[expect(clippy::unused_async, reason = "other stores need requests")]
    pub async fn named(name: &str) -> Option<Self> {
        Some(match name {
            "redis" => Self::Redis(Box::new(RedisServer::plain(&[]))),
            "quorum" => Self::Quorum(Quorum::start(3)),
            _ => return None,
        })
    }

    /// The URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.plain_url(),
            Self::Quorum(quorum) => quorum.url(),
        }
    }

    /// Whether the store still has its locks after all its servers were killed.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Redis(_) | Self::Quorum(_) => false,
        }
    }

    /// Kills all servers with SIGKILL.
    pub fn kill(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.kill(index)),
        }
    }

    /// Starts all servers again, which were killed.
    pub fn restart(&mut self) {
        match self {
            Self::Redis(server) => server.restart(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.restart(index)),
        }
    }

    /// Suspends all servers with SIGSTOP.
    pub fn freeze(&self) {
        match self {
            Self::Redis(server) => server.freeze(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.freeze(index)),
        }
    }

    /// Resumes all servers with SIGCONT.
    pub fn thaw(&self) {
        match self {
            Self::Redis(server) => server.thaw(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.thaw(index)),
        }
    }

    /// A client with this lease, whose calls wait for longer than any test takes.
    pub async fn client(&self, lease: Duration) -> LockClient {
        let builder = LockClient::builder().url(self.url()).lease(lease).wait(lease * 60);
        builder.connect().await.expect("the store is up")
    }

    /// Two clients with this lease, and the store. Its servers are not restarted, so calls may have long leases of their own,
    /// also with a quorum.
    pub async fn pair(self, lease: Duration) -> Pair {
        let client = async || {
            let builder = LockClient::builder().url(self.url()).lease(lease).wait(lease * 20);
            let builder = match &self {
                Self::Quorum(_) => builder.quarantine(lease * 60),
                Self::Redis(_) => builder,
            };
            builder.connect().await.expect("the store is up")
        };
        let (one, two) = (client().await, client().await);
        Pair { one, two, server: None, store: Some(self) }
    }
}
