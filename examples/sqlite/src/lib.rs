//! A custom store: locks in a SQLite database, for the processes of one machine.
//!
//! A row is a key, the token of its owner, and the end of its lease by the clock of the machine, which must not be set while locks
//! are held. SQLite announces no change, so waiting calls make an attempt ten times a second.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use lock_runtime::LockError;
use lock_runtime::store::runner::{
    AsyncBackend, AsyncClient, AsyncRequests, RunsOn, StoredLease, StoredLeases, WakeUps,
    WatchedKeys,
};
use lock_runtime::store::{
    Acquired, Answer, Backend, Capabilities, Claim, Grant, Lane, Layout, Left, LockStore,
    OpenStore, OwnerId, Release, Released, Renewal, Renewed, RequestTimeout, Resource, SendTrace,
    Settings, StoreAnswer, StoreError, Subscription,
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS locks \
    (key TEXT PRIMARY KEY, owner TEXT NOT NULL, until INTEGER NOT NULL) WITHOUT ROWID";

/// Locks in the database with this path.
#[derive(Debug, Clone)]
pub struct SqliteStore(pub PathBuf);

impl OpenStore for SqliteStore {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        // Requests to SQLite block, so they run on the thread of the client.
        let requests = AsyncRequests::new(settings, RunsOn::Thread)?;
        let (path, patience) = (self.0.clone(), settings.response_timeout / 2);
        let client = Arc::new(SqliteClient { path, patience, connection: Mutex::default() });
        let locks = SqliteLocks { client: Arc::clone(&client), requests: Arc::clone(&requests) };
        Ok(AsyncBackend::new(client, requests, Arc::new(locks)))
    }
}

struct SqliteClient {
    path: PathBuf,
    /// How long a request waits for those of other processes.
    patience: Duration,
    connection: Mutex<Option<Connection>>,
}

/// The end of a lease in ms since 1970.
fn after(term: Duration) -> i64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + term;
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The owner of a key, and the rest of its lease. `None` if it has ended.
fn read(row: &Row<'_>) -> rusqlite::Result<(String, Option<Duration>)> {
    let left = row.get::<_, i64>("until")? - after(Duration::ZERO);
    let left = u64::try_from(left).ok().filter(|left| *left > 0);
    Ok((row.get("owner")?, left.map(Duration::from_millis)))
}

/// The owner of a key that is taken.
fn holder(of: &Transaction<'_>, key: &str) -> rusqlite::Result<Option<(String, Duration)>> {
    let found = of.query_row("SELECT * FROM locks WHERE key = ?", [key], read).optional()?;
    Ok(found.and_then(|(owner, left)| Some((owner, left?))))
}

impl SqliteClient {
    /// Runs a request as one transaction. If another process has the database for too long, nothing was done.
    fn transact<T>(
        &self,
        request: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let refused = |error: rusqlite::Error| StoreError::Refused(error.to_string());
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = match &mut *connection {
            Some(connection) => connection,
            none => {
                let opened = Connection::open(&self.path).map_err(refused)?;
                opened.busy_timeout(self.patience).map_err(refused)?;
                opened.execute(SCHEMA, []).map_err(refused)?;
                none.insert(opened)
            }
        };
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begun.map_err(refused)?;
        let outcome = request(&transaction).map_err(refused)?;
        transaction.commit().map_err(|error| StoreError::Unknown(error.to_string()))?;
        Ok(outcome)
    }

    fn acquire(&self, key: &str, token: &str, term: Duration) -> Result<Acquired, StoreError> {
        self.transact(|table| {
            let mut end = after(term);
            match holder(table, key)? {
                Some((owner, left)) if owner == token => end = end.max(after(left)),
                Some((_, left)) => return Ok(Acquired::Busy(Left::Time(left))),
                None => {}
            }
            table.execute("REPLACE INTO locks VALUES (?, ?, ?)", params![key, token, end])?;
            Ok(Acquired::Granted(Grant::of(term)))
        })
    }

    fn renew(&self, key: &str, token: &str, term: Duration) -> Result<Renewed, StoreError> {
        self.transact(|table| match holder(table, key)? {
            Some((owner, _)) if owner == token => {
                let extend = "UPDATE locks SET until = max(until, ?) WHERE key = ?";
                table.execute(extend, params![after(term), key])?;
                Ok(Renewed::Extended)
            }
            Some(_) => Ok(Renewed::Taken),
            None => Ok(Renewed::Gone),
        })
    }

    fn release(&self, key: &str, token: &str) -> Result<Released, StoreError> {
        self.transact(|table| match holder(table, key)? {
            Some((owner, _)) if owner == token => {
                table.execute("DELETE FROM locks WHERE key = ?", [key])?;
                Ok(Released::Freed { woken: 1 })
            }
            Some(_) => Ok(Released::Taken),
            None => Ok(Released::Gone),
        })
    }
}

struct SqliteLocks {
    client: Arc<SqliteClient>,
    requests: Arc<AsyncRequests>,
}

impl LockStore for SqliteLocks {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        let (key, term) = (claim.resource.key.to_owned(), claim.term);
        let token = self.requests.token(claim.owner);
        let late = (Arc::clone(&self.client), key.clone(), token.clone());
        let client = Arc::clone(&self.client);
        let acquire = async move { client.acquire(&key, &token, term) };
        self.requests.runner.acquire(&claim, (timeout, trace), acquire, move |_| {
            let released = late.0.release(&late.1, &late.2);
            async move { released }
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> Answer<'a, Vec<Result<Renewed, StoreError>>> {
        let lease = |one: &Renewal<'_>| {
            (one.resource.key.to_owned(), self.requests.token(one.owner), one.term)
        };
        let (client, leases) =
            (Arc::clone(&self.client), batch.iter().map(lease).collect::<Vec<_>>());
        self.requests.runner.renew(batch.len(), async move {
            leases.iter().map(|(key, token, term)| client.renew(key, token, *term)).collect()
        })
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        let (key, token) = (release.resource.key.to_owned(), self.requests.token(release.owner));
        let (client, end) = (Arc::clone(&self.client), (release.owner, release.keep));
        Answer::pending(self.requests.runner.release(end, lane, move || {
            let released = client.release(&key, &token);
            async move { released }
        }))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.requests.subscribe(resource.key, owner)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            keeps_after_release: false,
            counts_waiters: false,
            acknowledges: false,
            ..Capabilities::ALL
        }
    }

    fn layout(&self) -> &'static str {
        Layout::TOKEN.value()
    }
}

impl AsyncClient for SqliteClient {
    const SHOWN: &'static str = "the store `SQLite`";

    async fn connect(self: &Arc<Self>, _: WakeUps) -> Result<(), StoreError> {
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.transact(|_| Ok(()))
    }
}

impl WatchedKeys for SqliteClient {}

impl StoredLeases for SqliteClient {
    async fn inspect(&self, key: &str) -> Result<Option<StoredLease>, StoreError> {
        let found = self.transact(|table| holder(table, key))?;
        Ok(found.map(|(owner, left)| StoredLease::new(key, owner, Some(left))))
    }
}
