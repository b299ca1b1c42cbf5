//! Verifying a lock inside a transaction of the program, in the database that has the lock.

use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::guard::LockGuard;
use lock_postgres::seen::{LockTransaction, SeenLock};

impl LockGuard {
    /// Verifies in a transaction of the program that the lock is held, and keeps it so until the transaction ends. What the
    /// transaction writes is committed only while the lock is held: there is no window between lock and data, however
    /// long the process pauses.
    ///
    /// For locks in PostgreSQL, and a transaction in the same database, whose user needs the permissions `SELECT` and `UPDATE`
    /// for the table of locks. Call it after the last statement, or at any time
    /// before. It locks the row of the lock: until the transaction ends, nobody else gets the lock, even if its lease ends,
    /// and a release waits. The lock is then not handed off to the next call of this process either. Renewals go on. If the
    /// verification fails, roll the transaction back. To drop it also does that, but sqlx does so only when the connection is
    /// used again or returns to its pool.
    ///
    /// Costs one statement of the transaction, and a second one if the lock is not held. Use the isolation level
    /// `READ COMMITTED`, the default. In a higher one, the transaction sees the lock as it was when its first statement began:
    /// it cannot verify a lock that was acquired since, or whose lease would have ended without a renewal since. That is
    /// [`LockError::Unavailable`], whether the lock is held or lost. Use the outermost transaction: to roll a savepoint back also
    /// undoes the verification.
    ///
    /// Cancel safe for the lock. The transaction has to be rolled back then.
    ///
    /// # Errors
    ///
    /// * [`LockError::Lost`]: the lock is no longer held.
    ///   In higher isolation levels, only if the client knows it already.
    /// * [`LockError::Unavailable`]: the statement has failed, or the transaction cannot see the lock as it is now.
    /// * [`LockError::Config`]: the lock is not in PostgreSQL.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(database: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_runtime::LockClient;
    ///
    /// let client = LockClient::connect("postgres://app@localhost/shop").await?;
    /// let guard = client.lock("account:7").acquire().await?;
    /// let mut transaction = database.transaction().await?;
    /// transaction.execute("UPDATE account SET balance = balance + 5 WHERE id = 7", &[]).await?;
    /// guard.verify_in(&mut transaction).await?;
    /// transaction.commit().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify_in<T: LockTransaction>(
        &self,
        transaction: &mut T,
    ) -> Result<(), LockError> {
        let locked = self.hold().lease().locked();
        let Some(owner) = locked.store.name_in_transactions(locked.owner) else {
            let problem = "the lock is not in PostgreSQL, so no transaction can verify it";
            return Err(LockError::config("url", problem));
        };
        if let Some(lost) = self.hold().loss() {
            return Err(lost);
        }
        // Before the statement, because this future may be dropped.
        self.hold().is_verified();
        let began = BootInstant::now();
        let reason = match transaction.verify(&locked.key, &owner).await {
            Ok(SeenLock::Held) => return Ok(()),
            Ok(SeenLock::Gone) => LostReason::Gone,
            Ok(SeenLock::Taken) => LostReason::Taken,
            Err(failure) => {
                return Err(LockError::unavailable(
                    Some(locked.key.to_string()),
                    BootInstant::now().since(began),
                    failure.to_string(),
                ));
            }
        };
        Err(self.hold().lease().lost_to(reason))
    }
}
