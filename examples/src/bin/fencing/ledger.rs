//! Accounts in SQLite, which refuse a writer whose lock has gone to somebody else.

use std::num::TryFromIntError;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row};

/// Every method blocks the thread.
pub(crate) struct Ledger(Mutex<Connection>);

/// Why the ledger did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    /// Nothing was written. Whoever tries again has to take the lock and read the account anew.
    #[error(
        "stale writer: account {account} belongs to token {fence} now, and token {token} is lower"
    )]
    StaleWriter { account: i64, token: i64, fence: i64 },
    #[error("there is no account {0}")]
    NoAccount(i64),
    #[error("the fencing token does not fit into SQLite: {0}")]
    Token(#[from] TryFromIntError),
    #[error("the ledger failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

impl Ledger {
    /// A ledger that is gone with the process; a service opens a file.
    pub(crate) fn in_memory() -> Result<Self, LedgerError> {
        let db = Connection::open_in_memory()?;
        db.execute(
            "CREATE TABLE account (
                 id      INTEGER PRIMARY KEY,
                 balance INTEGER NOT NULL,
                 fence   INTEGER NOT NULL DEFAULT 0 -- the highest token that was seen
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

    /// The balance, for somebody who will write what follows from it.
    ///
    /// Raises the fence: a write by an earlier holder that arrives from now on is refused, so what
    /// was read is still true when this holder writes. A plain read would leave room for such a
    /// write in between, which this holder's own would then undo.
    pub(crate) fn read_fenced(&self, account: i64, token: u64) -> Result<i64, LedgerError> {
        let token = i64::try_from(token)?;
        let sql = "UPDATE account SET fence = ?2 WHERE id = ?1 AND fence <= ?2 RETURNING balance";
        let balance = self.with(|db| db.query_row(sql, (account, token), first).optional())?;
        balance.map_or_else(|| Err(self.refusal(account, token)), Ok)
    }

    /// Sets the balance, unless a later holder has been here. One statement checks and writes, so
    /// nothing comes in between.
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

    /// The balance, for somebody who only wants to know.
    pub(crate) fn read(&self, account: i64) -> Result<i64, LedgerError> {
        let sql = "SELECT balance FROM account WHERE id = ?1";
        let balance = self.with(|db| db.query_row(sql, [account], first).optional())?;
        balance.ok_or(LedgerError::NoAccount(account))
    }

    /// What a table without a fence does: it believes everybody.
    pub(crate) fn write_unfenced(&self, account: i64, balance: i64) -> Result<(), LedgerError> {
        let sql = "UPDATE account SET balance = ?2 WHERE id = ?1";
        match self.with(|db| db.execute(sql, (account, balance)))? {
            0 => Err(LedgerError::NoAccount(account)),
            _ => Ok(()),
        }
    }

    /// Why no row was changed.
    fn refusal(&self, account: i64, token: i64) -> LedgerError {
        let sql = "SELECT fence FROM account WHERE id = ?1";
        match self.with(|db| db.query_row(sql, [account], first).optional()) {
            Ok(Some(fence)) => LedgerError::StaleWriter { account, token, fence },
            Ok(None) => LedgerError::NoAccount(account),
            Err(error) => error.into(),
        }
    }

    fn with<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        // Each use is one statement: a thread that panicked has left nothing half done.
        ask(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn first(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(0)
}
