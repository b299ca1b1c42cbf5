//! Calls that take a lock of any kind, for tests that hold for all kinds.

use std::time::Duration;

use lock_runtime::{Leader, LockClient, LockError, LockGuard, LockSetGuard, LostReason};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::RedisServer;

/// A period that does not end during a test, unless it began just before its end.
const PERIOD: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The kinds of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestedKind {
    /// An exclusive lock, which waits by process.
    Plain,
    /// An exclusive lock, which waits by call.
    Fair,
    /// A reader of a read-write lock.
    Reader,
    /// A writer of a read-write lock.
    Writer,
    /// Both permits of two.
    Permits,
    /// The locks of the key and of [`TestedKind::BESIDE`].
    Set,
    /// The leader.
    Leader,
    /// A run that does not count for its period, because it fails.
    Run,
}

/// A lock of some kind that is held.
#[derive(Debug)]
pub enum TestedHold {
    /// A lock of one key.
    One(LockGuard),
    /// The locks of several keys.
    Set(LockSetGuard),
    /// A leader.
    Leader(Leader),
    /// A run, and the sender whose end ends it.
    Run(oneshot::Sender<()>, JoinHandle<RunResult>),
}

type RunResult = Result<Result<(), oneshot::error::RecvError>, LockError>;

impl TestedKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Fair,
        Self::Reader,
        Self::Writer,
        Self::Permits,
        Self::Set,
        Self::Leader,
        Self::Run,
    ];

    /// The second key of a set.
    pub const BESIDE: &str = "beside";

    /// The same lock for a single holder: a writer instead of a reader.
    #[must_use]
    pub fn exclusive(self) -> Self {
        if self == Self::Reader { Self::Writer } else { self }
    }

    /// What the key holds meanwhile, as errors name it.
    #[must_use]
    pub fn value(self) -> &'static str {
        match self {
            Self::Reader | Self::Writer => "read-write lock",
            Self::Permits => "semaphore",
            Self::Plain | Self::Fair | Self::Set | Self::Leader | Self::Run => "string",
        }
    }

    /// The name of the kind, which is a key as well.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Runs a body under the lock of `key`. A leader that has lost its leadership campaigns again, and its
    /// next body never ends.
    ///
    /// # Errors
    ///
    /// Those of the lock.
    pub async fn run<T>(
        self,
        client: LockClient,
        key: String,
        body: impl Future<Output = T>,
    ) -> Result<T, LockError> {
        match self {
            Self::Plain => client.lock(key).run(body).await,
            Self::Fair => client.lock(key).fair().run(body).await,
            Self::Reader => client.read_write(key).read().run(body).await,
            Self::Writer => client.read_write(key).write().run(body).await,
            Self::Permits => client.semaphore(key, 2).permits(2).run(body).await,
            Self::Set => client.lock_all([&*key, Self::BESIDE]).run(body).await,
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

    /// Acquires the lock of `key`. The result is `None` if it is busy for `wait`.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub async fn acquire(
        self,
        client: &LockClient,
        key: &str,
        wait: Duration,
    ) -> Result<Option<TestedHold>, LockError> {
        let one = |lock: lock_runtime::Lock| async move {
            lock.wait(wait).acquire().await.map(TestedHold::One)
        };
        let acquired = match self {
            Self::Plain => one(client.lock(key)).await,
            Self::Fair => one(client.lock(key).fair()).await,
            Self::Reader => one(client.read_write(key).read()).await,
            Self::Writer => one(client.read_write(key).write()).await,
            Self::Permits => one(client.semaphore(key, 2).permits(2)).await,
            Self::Set => {
                let set = client.lock_all([key, Self::BESIDE]).wait(wait);
                set.acquire().await.map(TestedHold::Set)
            }
            Self::Leader => match timeout(wait, client.leadership(key).campaign()).await {
                Ok(elected) => elected.map(TestedHold::Leader),
                Err(_) => return Ok(None),
            },
            Self::Run => start_run(client, key, wait).await,
        };
        match acquired {
            Ok(hold) => Ok(Some(hold)),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Starts a run, which ends with its hold.
async fn start_run(
    client: &LockClient,
    key: &str,
    wait: Duration,
) -> Result<TestedHold, LockError> {
    let (start, started) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let work = client.periodic(key, PERIOD).retry_failed().wait(wait);
    let body = async move {
        let _ = start.send(());
        ended.await
    };
    let run = tokio::spawn(async move { work.run_fallible(body).await });
    match started.await {
        Ok(()) => Ok(TestedHold::Run(end, run)),
        Err(_) => match run.await.expect("no panic") {
            Err(error) => Err(error),
            Ok(_) => panic!("the body has not run"),
        },
    }
}

impl TestedHold {
    /// Whether the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::One(guard) => guard.is_held(),
            Self::Set(guard) => guard.is_held(),
            Self::Leader(leader) => leader.is_leader(),
            Self::Run(_, run) => !run.is_finished(),
        }
    }

    /// Waits until the lock is lost, and returns the reason.
    pub async fn lost(self) -> LostReason {
        match self {
            Self::One(guard) => guard.lost().await,
            Self::Set(guard) => guard.lost().await,
            Self::Leader(leader) => leader.lost().await,
            // The end of the sender would end the run.
            Self::Run(_end, run) => match run.await.expect("no panic") {
                Err(LockError::Lost { reason, .. }) => reason,
                other => panic!("{other:?}"),
            },
        }
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// Those of the release, and the loss of the lock of a run.
    pub async fn release(self) -> Result<(), LockError> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Set(guard) => guard.release().await,
            Self::Leader(leader) => leader.resign().await,
            Self::Run(end, run) => {
                drop(end);
                run.await.expect("no panic").map(drop)
            }
        }
    }
}

/// The keys of a server other than those that outlive locks: the last tokens, the records of leaders and
/// those of runs.
#[must_use]
pub fn left_of_locks(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = server.keys();
    let lasting = ["lock_fence:{", "lock_leader:{", "lock_run:{"];
    keys.retain(|key| !lasting.iter().any(|prefix| key.starts_with(prefix)));
    keys
}
