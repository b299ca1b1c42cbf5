//! A transaction that commits only if the lock is still held then.

use lock_runtime::store::PostgresStore;
use lock_runtime::{LockClient, LockError, distributed_lock};
use sqlx::PgPool;

/// Accounts in a PostgreSQL database, which also has their locks.
#[derive(Debug)]
pub struct VerifiedAccounts {
    locks: LockClient,
    database: PgPool,
}

/// Why an account was not changed.
#[derive(Debug, thiserror::Error)]
pub enum VerifiedError {
    /// The lock was not acquired, or not kept.
    #[error(transparent)]
    Lock(#[from] LockError),
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
/// The lock or the database fails.
#[distributed_lock(key = "account:<account>", guard = lock, client = accounts.locks)]
pub async fn deposit_verified(
    accounts: &VerifiedAccounts,
    account: i64,
    amount: i64,
) -> Result<(), VerifiedError> {
    let balance = accounts.balance(account).await?;
    let mut transaction = accounts.database.begin().await?;
    let sql = "UPDATE account SET balance = $1 WHERE id = $2";
    sqlx::query(sql).bind(balance + amount).bind(account).execute(&mut *transaction).await?;
    lock.verify_in(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}

impl VerifiedAccounts {
    /// Creates the tables, and one account.
    ///
    /// # Errors
    ///
    /// The database cannot create them.
    pub async fn open(url: &str, account: i64, balance: i64) -> Result<Self, VerifiedError> {
        PostgresStore::new(url)?.migrate().await?;
        let locks = LockClient::connect(url).await?;
        let database = PgPool::connect(url).await?;
        let table = "CREATE TABLE account (id int8 PRIMARY KEY, balance int8 NOT NULL)";
        sqlx::query(table).execute(&database).await?;
        let sql = "INSERT INTO account (id, balance) VALUES ($1, $2)";
        sqlx::query(sql).bind(account).bind(balance).execute(&database).await?;
        Ok(Self { locks, database })
    }

    /// The balance of an account.
    ///
    /// # Errors
    ///
    /// The account does not exist, or the database fails.
    pub async fn balance(&self, account: i64) -> Result<i64, VerifiedError> {
        let sql = "SELECT balance FROM account WHERE id = $1";
        Ok(sqlx::query_scalar(sql).bind(account).fetch_one(&self.database).await?)
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &PgPool {
        &self.database
    }
}
