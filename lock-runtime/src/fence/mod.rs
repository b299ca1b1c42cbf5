//! A fence in a table of a database: it refuses the writes of a late lock holder.
//!
//! A lock cannot stop a write that is already on its way when the lock is lost. The database can: [`raise`] records the
//! [fencing token](crate::LockGuard::fencing_token) of the holder, inside the transaction that writes, and refuses a
//! token that is lower than the highest one on record. Until that transaction ends, the database makes other
//! transactions for the same resource wait, so the check cannot become outdated before the commit.
//!
//! The features `sqlx-postgres`, `sqlx-mysql` (also for MariaDB) and `sqlx-sqlite` select the databases, and `sqlx`
//! all of them. They use sqlx 0.8. The program creates the table in one of its migrations, with the statement in
//! `POSTGRES_TABLE`, `MYSQL_TABLE` or `SQLITE_TABLE`.
//!
//! # Examples
//!
//! ```
//! # #[cfg(not(all(feature = "macros", feature = "sqlx-sqlite")))]
//! # fn main() {}
//! # #[cfg(all(feature = "macros", feature = "sqlx-sqlite"))]
//! # mod with_sqlite {
//! use lock_runtime::{LockClient, LockError, distributed_lock, fence};
//! use sqlx::SqlitePool;
//!
//! #[derive(Debug, thiserror::Error)]
//! pub enum DepositError {
//!     #[error(transparent)]
//!     Lock(#[from] LockError),
//!     #[error(transparent)]
//!     Fence(#[from] fence::FenceError),
//!     #[error(transparent)]
//!     Database(#[from] sqlx::Error),
//! }
//!
//! #[distributed_lock(key = "account:<id>", guard = lock)]
//! async fn deposit(database: &SqlitePool, id: i64, amount: i64) -> Result<(), DepositError> {
//!     let token = lock.fencing_token().await?;
//!     let mut transaction = database.begin().await?;
//!     fence::raise(&mut transaction, lock.key(), token).await?;
//!     sqlx::query("UPDATE account SET balance = balance + ? WHERE id = ?")
//!         .bind(amount)
//!         .bind(id)
//!         .execute(&mut *transaction)
//!         .await?;
//!     Ok(transaction.commit().await?)
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # pub async fn main() -> Result<(), DepositError> {
//! #     let database = SqlitePool::connect("sqlite::memory:").await?;
//! #     sqlx::query(fence::SQLITE_TABLE).execute(&database).await?;
//! #     let table = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)";
//! #     sqlx::query(table).execute(&database).await?;
//! #     sqlx::query("INSERT INTO account VALUES (7, 100)").execute(&database).await?;
//! #     lock_runtime::with_client(LockClient::memory(), deposit(&database, 7, 50)).await?;
//! #     let sql = "SELECT balance FROM account";
//! #     let balance: i64 = sqlx::query_scalar(sql).fetch_one(&database).await?;
//! #     assert_eq!(balance, 150);
//! #     Ok(())
//! # }
//! # }
//! # #[cfg(all(feature = "macros", feature = "sqlx-sqlite"))]
//! # use with_sqlite::main;
//! ```
//!
//! # Order of the statements
//!
//! Raise the fence first in the transaction, before the reads on which its writes depend. Then no later holder can
//! write between these reads and the commit. In MySQL, and in the isolation levels `REPEATABLE READ` and
//! `SERIALIZABLE`, an earlier read would also fix what the whole transaction sees.
//!
//! In the level `READ COMMITTED` of PostgreSQL, which is its default, and in MySQL, [`raise`] waits for other
//! transactions for the same resource. In `REPEATABLE READ` and `SERIALIZABLE`, PostgreSQL refuses the one that has
//! waited with [`FenceError::Conflict`], and in `SERIALIZABLE`, the commit may fail for the same reason. In SQLite, a
//! transaction that is to write waits for all others, for at most the `busy_timeout`.
//!
//! # The table
//!
//! The table has one row for each resource, and compares resources byte by byte: `"a"`, `"A"` and `"a "` are three
//! resources. All statements have their data as bound parameters. A row may be deleted once no earlier holder can
//! still write, for example because its process has ended.

mod error;
#[cfg(feature = "sqlx-mysql")]
mod mysql;
#[cfg(feature = "sqlx-postgres")]
mod postgres;
#[cfg(feature = "sqlx-sqlite")]
mod sqlite;
mod table;

use sqlx::{Database, Transaction};

pub use self::error::FenceError;
use self::error::{check, failure, stored};
#[cfg(feature = "sqlx-mysql")]
pub use self::mysql::MYSQL_TABLE;
#[cfg(feature = "sqlx-postgres")]
pub use self::postgres::POSTGRES_TABLE;
#[cfg(feature = "sqlx-sqlite")]
pub use self::sqlite::SQLITE_TABLE;
use self::table::FenceTable;

/// A database whose table can be a fence: `sqlx::Postgres`, `sqlx::MySql` or `sqlx::Sqlite`, each with its feature.
///
/// This trait cannot be implemented outside this crate.
pub trait FenceDatabase: FenceTable {}

impl<DB: FenceTable> FenceDatabase for DB {}

/// Raises the fence of a resource to a token: records the token in the table `lock_fence`, or refuses it if a higher
/// one is on record. An equal token is accepted, so one holder may use its token in any number of transactions. Costs
/// one statement.
///
/// The resource is any name of what the lock protects, usually the key of the lock. It has 1 to 1,024 bytes, none of
/// which is zero. The token comes from [`LockGuard::fencing_token`](crate::LockGuard::fencing_token), or from
/// [`LockSetGuard::fencing_token`](crate::LockSetGuard::fencing_token) if several locks protect the resource.
///
/// The token counts from the commit on: after a rollback, the table has the token that it had before. After an error,
/// roll the transaction back, which sqlx does when it is dropped.
///
/// Not cancel safe: if the future is dropped, it is unknown whether the token was recorded. Roll the transaction back.
///
/// # Errors
///
/// * [`FenceError::Stale`]: a later holder has recorded a higher token.
/// * [`FenceError::Conflict`]: another transaction was in the way. The whole transaction can be repeated.
/// * [`FenceError::NoTable`]: the table does not exist.
/// * [`FenceError::InvalidResource`], [`FenceError::TokenTooHigh`]: nothing was sent to the database.
/// * [`FenceError::Database`]: another error of the database or of the connection.
pub async fn raise<DB: FenceDatabase>(
    transaction: &mut Transaction<'_, DB>,
    resource: &str,
    token: u64,
) -> Result<(), FenceError> {
    check(resource)?;
    let stored = stored(resource, token)?;
    let connection: &mut <DB as Database>::Connection = transaction;
    match DB::record(connection, resource, stored).await {
        Ok(recorded) if recorded > stored => Err(FenceError::Stale {
            resource: resource.to_owned(),
            token,
            recorded: recorded.unsigned_abs(),
        }),
        Ok(_) => Ok(()),
        Err(source) => {
            let kind = source.as_database_error().map(DB::failure_kind);
            Err(failure(kind, resource, token, source))
        }
    }
}
