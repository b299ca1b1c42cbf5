//! Verifying a lock in a transaction of the program.

use super::errors;
use super::seen::{LockTransaction, SeenLock, Verifies, VerifyFailure};
use super::statements::{IS_TAKEN, VERIFY};
use super::switches::guarded;

impl LockTransaction for tokio_postgres::Transaction<'_> {}

impl Verifies for tokio_postgres::Transaction<'_> {
    async fn verify(&mut self, key: &str, owner: &str) -> Result<SeenLock, VerifyFailure> {
        use tokio_postgres::types::Type;

        let failure = |error: tokio_postgres::Error| VerifyFailure(errors::text(&error));
        let key = key.as_bytes();
        let held =
            self.query_typed(guarded(VERIFY), &[(&key, Type::BYTEA), (&owner, Type::TEXT)]).await;
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
impl Verifies for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn verify(&mut self, key: &str, owner: &str) -> Result<SeenLock, VerifyFailure> {
        let failure = |error: sqlx::Error| VerifyFailure(error.to_string());
        let held = sqlx::query(guarded(VERIFY)).persistent(false).bind(key.as_bytes()).bind(owner);
        let is_held = held.fetch_optional(&mut **self).await.map_err(failure)?.is_some();
        if is_held {
            return Ok(SeenLock::Held);
        }
        let taken = sqlx::query(IS_TAKEN).persistent(false).bind(key.as_bytes());
        let is_gone = taken.fetch_optional(&mut **self).await.map_err(failure)?.is_none();
        Ok(if is_gone { SeenLock::Gone } else { SeenLock::Taken })
    }
}
