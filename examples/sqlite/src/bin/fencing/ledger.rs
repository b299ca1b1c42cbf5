//! Accounts in SQLite that reject a write by a former lock holder.

use std::num::TryFromIntError;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row};

/// Every method blocks the thread.
pub(crate) struct Ledger(Mutex<Connection>);

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    /// Nothing was written. A retry must acquire the lock and read the account again.
    #[error(
        "stale writer: token {token} is lower than token {fence}, which account {account} has seen"
    )]
    StaleWriter { account: i64, token: i64, fence: i64 },
    #[error("account {0} does not exist")]
    NoAccount(i64),
    #[error("the fencing token does not fit into an SQLite integer: {0}")]
    Token(#[from] TryFromIntError),
    #[error("SQLite failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

impl Ledger {
    /// Opens a ledger in memory. A service would open a file.
    pub(crate) fn in_memory() -> Result<Self, LedgerError> {
        let db = Connection::open_in_memory()?;
        db.execute(
            "CREATE TABLE account (
                 id      INTEGER PRIMARY KEY,
                 balance INTEGER NOT NULL,
                 fence   INTEGER NOT NULL DEFAULT 0 -- the highest token seen so far
             ) STRICT",
            (),
        )?;
        Ok(Self(Mutex::new(db)))
    }

    pub(crate) fn open_account(&self, account: i64, balance: i64) -> Result<(), LedgerError> {
        let sql = "INSERT INTO account (id, balance) VALUES (?1, ?2)";
        self.with(|db| db.execute(sql, (account, balance)))?;
        Ok(())
    }

    /// Reads the balance ahead of a write that depends on it.
    ///
    /// Raises the fence, which rejects later writes by earlier holders. The balance is therefore
    /// still current when this holder writes. After a plain read, a late write could still change
    /// the balance, and this holder's write would undo that change.
    pub(crate) fn read_fenced(&self, account: i64, token: u64) -> Result<i64, LedgerError> {
        let token = i64::try_from(token)?;
        let sql = "UPDATE account SET fence = ?2 WHERE id = ?1 AND fence <= ?2 RETURNING balance";
        let balance = self.with(|db| db.query_row(sql, (account, token), first).optional())?;
        balance.map_or_else(|| Err(self.refusal(account, token)), Ok)
    }

    /// Sets the balance, unless a later holder has raised the fence. A single statement checks and
    /// writes, so the two are atomic.
    pub(crate) fn write_fenced(
        &self,
        account: i64,
        token: u64,
        balance: i64,
    ) -> Result<(), LedgerError> {
        let token = i64::try_from(token)?;
        let sql = "UPDATE account SET balance = ?3, fence = ?2 WHERE id = ?1 AND fence <= ?2";
        match self.with(|db| db.execute(sql, (account, token, balance)))? {
            0 => Err(self.refusal(account, token)),
            _ => Ok(()),
        }
    }

    /// Reads the balance without raising the fence.
    pub(crate) fn read(&self, account: i64) -> Result<i64, LedgerError> {
        let sql = "SELECT balance FROM account WHERE id = ?1";
        let balance = self.with(|db| db.query_row(sql, [account], first).optional())?;
        balance.ok_or(LedgerError::NoAccount(account))
    }

    /// Sets the balance without checking a token, like a table without a fence.
    pub(crate) fn write_unfenced(&self, account: i64, balance: i64) -> Result<(), LedgerError> {
        let sql = "UPDATE account SET balance = ?2 WHERE id = ?1";
        match self.with(|db| db.execute(sql, (account, balance)))? {
            0 => Err(LedgerError::NoAccount(account)),
            _ => Ok(()),
        }
    }

    /// The reason why a statement changed no row.
    fn refusal(&self, account: i64, token: i64) -> LedgerError {
        let sql = "SELECT fence FROM account WHERE id = ?1";
        match self.with(|db| db.query_row(sql, [account], first).optional()) {
            Ok(Some(fence)) => LedgerError::StaleWriter { account, token, fence },
            Ok(None) => LedgerError::NoAccount(account),
            Err(error) => error.into(),
        }
    }

    fn with<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        // Each use runs a single statement, so a panicked thread leaves no partial change.
        ask(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn first(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(0)
}
