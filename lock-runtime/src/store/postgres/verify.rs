//! Verifying a lock in a transaction of the program.

use std::fmt;

use super::statements::{IS_TAKEN, VERIFY};

/// A transaction in which a lock can be verified: one of `tokio_postgres` 0.7, or of sqlx 0.8 (feature `sqlx-postgres`).
///
/// It is implemented by this library only.
pub trait LockTransaction: sealed::Verifies {}

/// What a transaction has seen of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenLock {
    /// The owner has it, and nobody can take it over until the transaction ends.
    Held,
    /// Nobody has it.
    Gone,
    /// Another owner has it.
    Taken,
}

/// The statement has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyFailure(pub(crate) String);

impl fmt::Display for VerifyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) mod sealed {
    use super::{SeenLock, VerifyFailure};

    /// Runs the statements.
    pub trait Verifies: Send {
        fn verify(
            &mut self,
            key: &str,
            owner: &str,
        ) -> impl Future<Output = Result<SeenLock, VerifyFailure>> + Send;
    }
}

impl LockTransaction for tokio_postgres::Transaction<'_> {}

impl sealed::Verifies for tokio_postgres::Transaction<'_> {
    async fn verify(&mut self, key: &str, owner: &str) -> Result<SeenLock, VerifyFailure> {
        use tokio_postgres::types::Type;

        let failure = |error: tokio_postgres::Error| VerifyFailure(super::errors::text(&error));
        let key = key.as_bytes();
        let held = self.query_typed(VERIFY, &[(&key, Type::BYTEA), (&owner, Type::TEXT)]).await;
        let is_held = !held.map_err(failure)?.is_empty();
        if is_held {
            return Ok(SeenLock::Held);
        }
        let taken = self.query_typed(IS_TAKEN, &[(&key, Type::BYTEA)]).await;
        let is_gone = taken.map_err(failure)?.is_empty();
        Ok(if is_gone { SeenLock::Gone } else { SeenLock::Taken })
    }
}

#[cfg(feature = "sqlx-postgres")]
impl LockTransaction for sqlx::Transaction<'_, sqlx::Postgres> {}

#[cfg(feature = "sqlx-postgres")]
impl sealed::Verifies for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn verify(&mut self, key: &str, owner: &str) -> Result<SeenLock, VerifyFailure> {
        let failure = |error: sqlx::Error| VerifyFailure(error.to_string());
        let held = sqlx::query(VERIFY).bind(key.as_bytes()).bind(owner);
        let is_held = held.fetch_optional(&mut **self).await.map_err(failure)?.is_some();
        if is_held {
            return Ok(SeenLock::Held);
        }
        let taken = sqlx::query(IS_TAKEN).bind(key.as_bytes());
        let is_gone = taken.fetch_optional(&mut **self).await.map_err(failure)?.is_none();
        Ok(if is_gone { SeenLock::Gone } else { SeenLock::Taken })
    }
}
