//! Accounts in an SQLite file, which several processes may share.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};

/// How long a statement waits for another process.
const BUSY: Duration = Duration::from_secs(10);

/// Every method blocks the thread.
pub(crate) struct Accounts(Mutex<Connection>);

/// Why an operation failed. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountsError {
    #[error("a later holder of the locks has used an account since")]
    Stale,
    #[error("the fencing token does not fit into an SQLite integer: {0}")]
    Token(#[from] std::num::TryFromIntError),
    #[error("SQLite failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

impl Accounts {
    /// Opens the file, and creates `count` accounts with this balance if it is new.
    pub(crate) fn open(file: &Path, count: u32, balance: i64) -> Result<Self, AccountsError> {
        let mut db = Connection::open(file)?;
        db.busy_timeout(BUSY)?;
        // Takes the write lock at the beginning, so that two processes do not both create accounts.
        let create = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        create.execute(
            "CREATE TABLE IF NOT EXISTS account (
                 id      INTEGER PRIMARY KEY,
                 balance INTEGER NOT NULL,
                 fence   INTEGER NOT NULL DEFAULT 0 -- the highest token seen so far
             ) STRICT",
            (),
        )?;
        for id in 0..count {
            let sql = "INSERT OR IGNORE INTO account (id, balance) VALUES (?1, ?2)";
            create.execute(sql, (id, balance))?;
        }
        create.commit()?;
        Ok(Self(Mutex::new(db)))
    }

    /// Reads the balances of two accounts, and raises their fences, so that earlier holders of their
    /// locks can no longer write them.
    pub(crate) fn read(&self, accounts: [u32; 2], token: u64) -> Result<[i64; 2], AccountsError> {
        let token = i64::try_from(token)?;
        self.atomically(|db| {
            let [one, other] = accounts.map(|account| {
                let sql = "UPDATE account SET fence = ?2 WHERE id = ?1 AND fence <= ?2
                           RETURNING balance";
                db.query_row(sql, params![account, token], |row| row.get(0))
            });
            Ok([one.map_err(stale)?, other.map_err(stale)?])
        })
    }

    /// Writes the balances of two accounts, unless a later holder has read one of them.
    pub(crate) fn write(&self, balances: [(u32, i64); 2], token: u64) -> Result<(), AccountsError> {
        let token = i64::try_from(token)?;
        self.atomically(|db| {
            for (account, balance) in balances {
                let sql = "UPDATE account SET balance = ?3 WHERE id = ?1 AND fence = ?2";
                if db.execute(sql, params![account, token, balance])? == 0 {
                    return Err(AccountsError::Stale);
                }
            }
            Ok(())
        })
    }

    /// The sum of all balances.
    pub(crate) fn sum(&self) -> Result<i64, AccountsError> {
        self.atomically(|db| {
            Ok(db.query_row("SELECT sum(balance) FROM account", (), |row| row.get(0))?)
        })
    }

    /// Runs statements in one transaction, which is rolled back if they fail.
    fn atomically<T>(
        &self,
        statements: impl FnOnce(&Connection) -> Result<T, AccountsError>,
    ) -> Result<T, AccountsError> {
        let mut db = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let value = statements(&transaction)?;
        transaction.commit()?;
        Ok(value)
    }
}

/// No row has a fence that is low enough.
fn stale(error: rusqlite::Error) -> AccountsError {
    match error {
        rusqlite::Error::QueryReturnedNoRows => AccountsError::Stale,
        error => error.into(),
    }
}
