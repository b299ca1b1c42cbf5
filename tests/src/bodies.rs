//! The kinds of locks, for tests that are the same for each of them.

use std::time::Duration;

use lock_runtime::{LockClient, LockError};

/// A period that does not end during a test.
const PERIOD: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A kind of lock. Its name is also its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A plain lock that is acquired in the order of the calls.
    Fair,
    /// The reading side of a read-write lock.
    Reader,
    /// The writing side of a read-write lock.
    Writer,
    /// Both permits of a semaphore.
    Permits,
    /// Two keys.
    Set,
    /// A leadership.
    Leader,
    /// A run in a period, which may be repeated if it fails.
    Run,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Fair, Self::Reader, Self::Writer, Self::Permits, Self::Set, Self::Leader, Self::Run];

    /// The name of this kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Permits => "permits",
            Self::Set => "set",
            Self::Leader => "leader",
            Self::Run => "run",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Runs a body under a lock of this kind. A leader that has lost its leadership campaigns again, and
    /// its next body never ends.
    ///
    /// # Errors
    ///
    /// Those of the lock.
    pub async fn run<T>(
        self,
        client: LockClient,
        body: impl Future<Output = T>,
    ) -> Result<T, LockError> {
        self.run_on(self.name(), client, body).await
    }

    /// Runs a body under a lock that excludes a lock of this kind.
    ///
    /// # Errors
    ///
    /// Those of the lock.
    pub async fn run_rival<T>(
        self,
        client: LockClient,
        body: impl Future<Output = T>,
    ) -> Result<T, LockError> {
        let rival = if self == Self::Reader { Self::Writer } else { self };
        rival.run_on(self.name(), client, body).await
    }

    async fn run_on<T>(
        self,
        key: &str,
        client: LockClient,
        body: impl Future<Output = T>,
    ) -> Result<T, LockError> {
        match self {
            Self::Fair => client.lock(key).fair().run(body).await,
            Self::Reader => client.read_write(key).read().run(body).await,
            Self::Writer => client.read_write(key).write().run(body).await,
            Self::Permits => client.semaphore(key, 2).permits(2).run(body).await,
            Self::Set => client.lock_all([key, "another"]).run(body).await,
            Self::Leader => {
                let mut body = Some(body);
                let leads = |_term| {
                    let body = body.take();
                    async {
                        match body {
                            Some(body) => body.await,
                            None => std::future::pending().await,
                        }
                    }
                };
                client.leadership(key).run(leads).await
            }
            Self::Run => client.periodic(key, PERIOD).retry_failed().run(body).await,
        }
    }
}
