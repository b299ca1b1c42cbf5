//! Advisory locks of PostgreSQL, as a careful user writes them: with a pool of sessions, because each lock that is held needs
//! a session of its own.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use anyhow::{Result, ensure};

use super::library::Library;
use super::sessions::{Session, Sessions};

const STATEMENTS: [&str; 2] = ["SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"];

#[derive(Clone)]
pub(super) struct AdvisoryLocks(Sessions);

pub(super) struct AdvisoryKey {
    sessions: Sessions,
    number: i64,
}

pub(super) struct AdvisoryGuard {
    sessions: Sessions,
    session: Session,
    number: i64,
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
        Ok(Self(Sessions::new(url, STATEMENTS)?))
    }

    fn lock(&self, key: &str) -> AdvisoryKey {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        AdvisoryKey { sessions: self.0.clone(), number: hasher.finish().cast_signed() }
    }

    async fn acquire(key: &AdvisoryKey) -> Result<AdvisoryGuard> {
        let sessions = key.sessions.clone();
        let session = sessions.take().await?;
        // If this fails or is dropped, the session ends, and with it a lock that it may have got.
        session.client.execute(&session.acquire, &[&key.number]).await?;
        Ok(AdvisoryGuard { sessions, session, number: key.number })
    }

    async fn release(guard: AdvisoryGuard) -> Result<()> {
        let AdvisoryGuard { sessions, session, number } = guard;
        let row = session.client.query_one(&session.release, &[&number]).await?;
        ensure!(row.get::<_, bool>(0), "the session did not hold the lock");
        sessions.give_back(session);
        Ok(())
    }
}
