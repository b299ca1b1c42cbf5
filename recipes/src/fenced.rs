//! A fence that is checked in the same transaction as the write.

use lock_runtime::fence::{self, FenceError};
use lock_runtime::{LockClient, LockError, distributed_lock};
use sqlx::{Sqlite, SqlitePool, Transaction};

/// Accounts in a database.
#[derive(Debug)]
pub struct FencedAccounts {
    locks: LockClient,
    database: SqlitePool,
}

/// Why an account was not changed.
#[derive(Debug, thiserror::Error)]
pub enum FencedError {
    /// The lock was not acquired, or not kept.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A later holder has used the account, or the fence cannot be checked.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The database refused a statement or the commit.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
}

/// Adds an amount to the balance of an account.
///
/// Cancel safe: if the future is dropped, the transaction is rolled back, unless the commit has been sent.
///
/// # Errors
///
/// The lock, the fence or the database fails.
#[distributed_lock(key = "account:<account>", guard = lock, client = accounts.locks)]
pub async fn deposit(
    accounts: &FencedAccounts,
    account: i64,
    amount: i64,
) -> Result<(), FencedError> {
    let token = lock.fencing_token().await?;
    let mut transaction = accounts.begin_fenced(account, token).await?;
    let sql = "UPDATE account SET balance = balance + ? WHERE id = ?";
    sqlx::query(sql).bind(amount).bind(account).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}

impl FencedAccounts {
    /// Creates the tables, and one account.
    ///
    /// # Errors
    ///
    /// The database cannot create them.
    pub async fn open(
        locks: LockClient,
        database: SqlitePool,
        account: i64,
        balance: i64,
    ) -> Result<Self, FencedError> {
        sqlx::query(fence::SQLITE_TABLE).execute(&database).await?;
        let table =
            "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT";
        sqlx::query(table).execute(&database).await?;
        let sql = "INSERT INTO account (id, balance) VALUES (?, ?)";
        sqlx::query(sql).bind(account).bind(balance).execute(&database).await?;
        Ok(Self { locks, database })
    }

    /// Begins a transaction for the holder with this token. It is refused if a later holder has used the account.
    ///
    /// Cancel safe: if the future is dropped, the transaction is rolled back.
    ///
    /// # Errors
    ///
    /// The fence or the database fails.
    pub async fn begin_fenced(
        &self,
        account: i64,
        token: u64,
    ) -> Result<Transaction<'static, Sqlite>, FencedError> {
        let mut transaction = self.database.begin().await?;
        fence::raise(&mut transaction, &format!("account:{account}"), token).await?;
        Ok(transaction)
    }

    /// The balance of an account.
    ///
    /// # Errors
    ///
    /// The account does not exist, or the database fails.
    pub async fn balance(&self, account: i64) -> Result<i64, FencedError> {
        let sql = "SELECT balance FROM account WHERE id = ?";
        Ok(sqlx::query_scalar(sql).bind(account).fetch_one(&self.database).await?)
    }
}
