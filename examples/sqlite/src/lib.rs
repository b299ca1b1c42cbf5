//! A custom store: locks in a SQLite database, for the processes of one machine.
//!
//! A row is a key, the token of its owner, and the end of its lease by the clock of the machine, which must not be set while locks
//! are held (a time service that slews it is fine). SQLite announces no change, so waiting calls make an attempt ten times a second.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use lock_runtime::LockError;
use lock_runtime::store::runner::{
    AsyncBackend, AsyncClient, LeaseRequest, Owned, RunsOn, StoredLease, WakeUps,
};
use lock_runtime::store::{
    Acquired, Backend, Extension, Extensions, Grant, Left, OpenStore, Released, Renewed, Settings,
    StoreError,
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
        let (path, patience) = (self.0.clone(), settings.response_timeout / 2);
        let client = |_| Arc::new(SqliteClient { path, patience, connection: Mutex::default() });
        Ok(AsyncBackend::open(self.name(), settings, RunsOn::Thread, client)?)
    }
}

struct SqliteClient {
    path: PathBuf,
    /// How long a request waits for those of other processes.
    patience: Duration,
    connection: Mutex<Option<Connection>>,
}

/// The time in µs since 1970.
fn now() -> i64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// The end of a lease that begins now.
fn end(term: Duration) -> i64 {
    now().saturating_add(i64::try_from(term.as_micros()).unwrap_or(i64::MAX)).saturating_add(1)
}

/// The owner of a key that is taken, and the rest of its lease.
fn holder(of: &Transaction<'_>, key: &str) -> rusqlite::Result<Option<(String, Duration)>> {
    let sql = "SELECT owner, until - ?2 FROM locks WHERE key = ?1 AND until > ?2";
    let holder = |row: &Row<'_>| Ok((row.get(0)?, Duration::from_micros(row.get(1)?)));
    of.query_row(sql, params![key, now()], holder).optional()
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
}

impl AsyncClient for SqliteClient {
    async fn connect(self: &Arc<Self>, _: WakeUps) -> Result<(), StoreError> {
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.transact(|_| Ok(()))
    }

    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        let (Owned { key, owner, .. }, term) = (&request.owned, request.term);
        self.transact(|table| {
            if let Some((_, left)) = holder(table, key)?.filter(|(other, _)| other != owner) {
                return Ok(Acquired::Busy(Left::Time(left)));
            }
            let take = "INSERT INTO locks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET until = \
                        iif(owner = excluded.owner, max(until, excluded.until), excluded.until), owner = excluded.owner";
            table.execute(take, params![key, owner, end(term)])?;
            Ok(Acquired::Granted(Grant::of(term)))
        })
    }

    /// Renews all of them in one transaction.
    async fn renew(&self, leases: &[(Owned, Duration)]) -> Vec<Result<Renewed, StoreError>> {
        let renewed = self.transact(|table| {
            let renew = |(Owned { key, owner, .. }, term): &(Owned, Duration)| {
                let extend = "UPDATE locks SET until = max(until, ?) WHERE key = ?";
                Ok(match holder(table, key)? {
                    Some((other, _)) if other == *owner => {
                        table.execute(extend, params![end(*term), key])?;
                        Renewed::Extended
                    }
                    Some(_) => Renewed::Taken,
                    None => Renewed::Gone,
                })
            };
            leases.iter().map(renew).collect::<rusqlite::Result<Vec<_>>>()
        });
        match renewed {
            Ok(renewed) => renewed.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); leases.len()],
        }
    }

    async fn release(&self, owned: &Owned, _: Duration) -> Result<Released, StoreError> {
        self.transact(|table| match holder(table, &owned.key)? {
            Some((by, _)) if by == owned.owner => {
                table.execute("DELETE FROM locks WHERE key = ?", [&owned.key])?;
                // Others may wait.
                Ok(Released::Freed { woken: 1 })
            }
            Some(_) => Ok(Released::Taken),
            None => Ok(Released::Gone),
        })
    }

    /// A database in a file has no replicas.
    fn extensions(&self) -> Extensions {
        Extensions::of(&[Extension::Acknowledgements])
    }

    async fn inspect(&self, key: &str) -> Result<Vec<StoredLease>, StoreError> {
        let found = self.transact(|table| holder(table, key))?;
        let lease = found.map(|(owner, left)| StoredLease::new(key, owner, Some(left)));
        Ok(lease.into_iter().collect())
    }
}
