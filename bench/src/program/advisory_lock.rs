//! Advisory locks of PostgreSQL, as a careful user writes them: with a pool of sessions, because each lock that is held needs
//! a session of its own.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::library::Library;

#[derive(Clone)]
pub(super) struct AdvisoryLocks {
    config: Arc<Config>,
    /// The sessions that hold no lock.
    idle: Arc<Mutex<Vec<Session>>>,
}

/// A connection with its prepared statements.
struct Session {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

pub(super) struct AdvisoryKey {
    locks: AdvisoryLocks,
    number: i64,
}

pub(super) struct AdvisoryGuard {
    locks: AdvisoryLocks,
    session: Session,
    number: i64,
}

impl AdvisoryLocks {
    fn idle(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are dropped here.
        std::iter::from_fn(|| idle.pop()).find(|session| !session.client.is_closed())
    }

    async fn open(&self) -> Result<Session> {
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        let lock = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Session { client, lock, unlock })
    }
}

impl Library for AdvisoryLocks {
    type Lock = AdvisoryKey;
    type Guard = AdvisoryGuard;

    /// A lock is held until its session ends.
    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        let settings = "tokio-postgres, pg_advisory_lock, then pg_advisory_unlock, prepared, over a pool of sessions that grows \
                        to one per task; no lock library";
        ("0.7".to_owned(), settings.to_owned())
    }

    async fn connect(url: &str) -> Result<Self> {
        Ok(Self { config: Arc::new(url.parse()?), idle: Arc::default() })
    }

    fn lock(&self, key: &str) -> AdvisoryKey {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        AdvisoryKey { locks: self.clone(), number: hasher.finish().cast_signed() }
    }

    async fn acquire(key: &AdvisoryKey) -> Result<AdvisoryGuard> {
        let locks = key.locks.clone();
        let session = match locks.idle() {
            Some(session) => session,
            None => locks.open().await?,
        };
        // If this fails or is dropped, the session ends, and with it a lock that it may have got.
        session.client.execute(&session.lock, &[&key.number]).await?;
        Ok(AdvisoryGuard { locks, session, number: key.number })
    }

    async fn release(guard: AdvisoryGuard) -> Result<()> {
        let AdvisoryGuard { locks, session, number } = guard;
        let row = session.client.query_one(&session.unlock, &[&number]).await?;
        ensure!(row.get::<_, bool>(0), "the session did not hold the lock");
        locks.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(())
    }
}
