//! Leases in a table of PostgreSQL, as a careful user writes them: the least that a lock costs that survives a crash of the
//! server.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use tokio_postgres::NoTls;

use super::library::Library;
use super::sessions::{Session, Sessions};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS bench_leases \
                     (key text PRIMARY KEY, owner text NOT NULL, until timestamptz NOT NULL)";

const STATEMENTS: [&str; 2] = [
    "INSERT INTO bench_leases VALUES ($1, $2, clock_timestamp() + interval '30 s') \
     ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until \
     WHERE bench_leases.until < clock_timestamp()",
    "DELETE FROM bench_leases WHERE key = $1 AND owner = $2",
];

/// Distinguishes the owners of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub(super) struct LeaseTable(Sessions);

pub(super) struct LeaseKey {
    sessions: Sessions,
    key: String,
}

pub(super) struct LeaseGuard {
    sessions: Sessions,
    session: Session,
    key: String,
    owner: String,
}

impl Library for LeaseTable {
    type Lock = LeaseKey;
    type Guard = LeaseGuard;

    const RENEWS: bool = false;

    fn settings(&self) -> (String, String) {
        let settings = "tokio-postgres, INSERT … ON CONFLICT, then DELETE, prepared, lease 30 s, over a pool of sessions that \
                        grows to one per task; no lock library";
        ("0.7".to_owned(), settings.to_owned())
    }

    async fn connect(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLE).await?;
        Ok(Self(Sessions::new(url, STATEMENTS)?))
    }

    fn lock(&self, key: &str) -> LeaseKey {
        LeaseKey { sessions: self.0.clone(), key: key.to_owned() }
    }

    /// Makes one attempt: no key of the measurements is taken.
    async fn acquire(lock: &LeaseKey) -> Result<LeaseGuard> {
        let (sessions, key) = (lock.sessions.clone(), lock.key.clone());
        let owner = format!("{}/{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let session = sessions.take().await?;
        let written = session.client.execute(&session.acquire, &[&key, &owner]).await?;
        ensure!(written == 1, "another owner has the lock");
        Ok(LeaseGuard { sessions, session, key, owner })
    }

    async fn release(guard: LeaseGuard) -> Result<()> {
        let LeaseGuard { sessions, session, key, owner } = guard;
        let deleted = session.client.execute(&session.release, &[&key, &owner]).await?;
        ensure!(deleted == 1, "the lock was lost");
        sessions.give_back(session);
        Ok(())
    }
}
