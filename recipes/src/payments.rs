//! Commit before release: the transaction ends while its lock is held.

use lock_runtime::{LockClient, LockError, distributed_lock};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::sync::watch;

/// A desk that pays orders.
#[derive(Debug)]
pub struct PaymentDesk {
    locks: LockClient,
    database: SqlitePool,
    /// How often an order was looked up.
    lookups: watch::Sender<u32>,
}

/// Why an order was not paid.
#[derive(Debug, thiserror::Error)]
pub enum PaymentError {
    /// It was paid before.
    #[error("order {0} is already paid")]
    AlreadyPaid(i64),
    /// The lock was not acquired, or not kept.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The database refused a statement or the commit.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
}

/// Pays an order. The commit is a part of the body, so it happens under the lock.
///
/// Cancel safe: if the future is dropped, the transaction is rolled back, unless the commit has been sent.
///
/// # Errors
///
/// The order is already paid, or the lock or the database fails.
#[distributed_lock(key = "order:<order>", client = desk.locks)]
pub async fn pay(desk: &PaymentDesk, order: i64) -> Result<(), PaymentError> {
    let transaction = desk.begin_payment(order).await?;
    transaction.commit().await?;
    Ok(())
}

/// Wrong, for comparison: returns the transaction, so the lock is free before its commit.
///
/// Cancel safe: if the future is dropped, the transaction is rolled back.
///
/// # Errors
///
/// The order is already paid, or the lock or the database fails.
#[distributed_lock(key = "order:<order>", client = desk.locks)]
pub async fn pay_without_commit(
    desk: &PaymentDesk,
    order: i64,
) -> Result<Transaction<'static, Sqlite>, PaymentError> {
    desk.begin_payment(order).await
}

impl PaymentDesk {
    /// Opens a desk, and creates its table.
    ///
    /// # Errors
    ///
    /// The database cannot create the table.
    pub async fn open(locks: LockClient, database: SqlitePool) -> Result<Self, PaymentError> {
        // A unique index on the order would also refuse the second payment. Not every rule is an index.
        let sql =
            "CREATE TABLE payment (id INTEGER PRIMARY KEY, paid_order INTEGER NOT NULL) STRICT";
        sqlx::query(sql).execute(&database).await?;
        Ok(Self { locks, database, lookups: watch::Sender::new(0) })
    }

    /// Looks an order up, and begins a transaction that pays it.
    async fn begin_payment(
        &self,
        order: i64,
    ) -> Result<Transaction<'static, Sqlite>, PaymentError> {
        let payments = self.payments(order).await?;
        self.lookups.send_modify(|count| *count += 1);
        if payments > 0 {
            return Err(PaymentError::AlreadyPaid(order));
        }
        let mut transaction = self.database.begin().await?;
        let sql = "INSERT INTO payment (paid_order) VALUES (?)";
        sqlx::query(sql).bind(order).execute(&mut *transaction).await?;
        Ok(transaction)
    }

    /// The number of committed payments of an order.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub async fn payments(&self, order: i64) -> Result<u32, PaymentError> {
        let sql = "SELECT count(*) FROM payment WHERE paid_order = ?";
        Ok(sqlx::query_scalar(sql).bind(order).fetch_one(&self.database).await?)
    }

    /// A customer clicks twice on a page that pays as it should. Returns the outcome of each click.
    pub async fn click_twice(&self, order: i64) -> [Result<(), PaymentError>; 2] {
        let (one, other) = tokio::join!(pay(self, order), pay(self, order));
        [one, other]
    }

    /// A customer clicks twice on a page that commits when the lock is free again.
    ///
    /// # Errors
    ///
    /// The lock or the database fails.
    pub async fn click_twice_on_the_wrong_page(&self, order: i64) -> Result<(), PaymentError> {
        let before = *self.lookups.borrow();
        let click = async || {
            let transaction = pay_without_commit(self, order).await?;
            // The lock is free. The next call may look the order up before this commit.
            let mut lookups = self.lookups.subscribe();
            // It fails only without a sender, which is in `self`.
            let _ = lookups.wait_for(|count| *count >= before + 2).await;
            transaction.commit().await?;
            Ok::<_, PaymentError>(())
        };
        tokio::try_join!(click(), click())?;
        Ok(())
    }
}
