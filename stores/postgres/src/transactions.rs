//! Verifying a lock in a transaction of the program.

use super::errors;
use super::seen::{LockTransaction, SeenLock, Verifies, VerifyFailure};
use super::statements::{IS_TAKEN, VERIFY};
use super::switches::guarded;

/// Why a lock was not found by a transaction that sees what was there when it began.
const OLD_SNAPSHOT: &str = "\
the lock is lost, or was acquired or renewed after the transaction has taken its snapshot; use the isolation level \
READ COMMITTED, or verify the lock with the first statement";

/// The code of an error that a change since the snapshot has caused.
const CHANGED: &str = "40001";

/// What a transaction has found that has not found the hold.
fn not_held(is_taken: bool, is_fresh: bool) -> Result<SeenLock, VerifyFailure> {
    match is_taken {
        _ if !is_fresh => Err(VerifyFailure(OLD_SNAPSHOT.to_owned())),
        true => Ok(SeenLock::Taken),
        false => Ok(SeenLock::Gone),
    }
}

impl LockTransaction for tokio_postgres::Transaction<'_> {}

impl Verifies for tokio_postgres::Transaction<'_> {
    async fn verify(&mut self, key: &str, owner: &str) -> Result<SeenLock, VerifyFailure> {
        use tokio_postgres::types::Type;

        let failure = |error: tokio_postgres::Error| match error.code() {
            Some(code) if code.code() == CHANGED => VerifyFailure(OLD_SNAPSHOT.to_owned()),
            _ => VerifyFailure(errors::text(&error)),
        };
        let key = key.as_bytes();
        let held =
            self.query_typed(guarded(VERIFY), &[(&key, Type::BYTEA), (&owner, Type::TEXT)]).await;
        let is_held = !held.map_err(failure)?.is_empty();
        if is_held {
            return Ok(SeenLock::Held);
        }
        let seen = self.query_typed(IS_TAKEN, &[(&key, Type::BYTEA)]).await.map_err(failure)?;
        let row = seen.first().ok_or_else(|| VerifyFailure("no answer".to_owned()))?;
        not_held(row.get(0), row.get(1))
    }
}

#[cfg(feature = "sqlx-postgres")]
impl LockTransaction for sqlx::Transaction<'_, sqlx::Postgres> {}

#[cfg(feature = "sqlx-postgres")]
impl Verifies for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn verify(&mut self, key: &str, owner: &str) -> Result<SeenLock, VerifyFailure> {
        let failure = |error: sqlx::Error| match error.as_database_error() {
            Some(answer) if answer.code().as_deref() == Some(CHANGED) => {
                VerifyFailure(OLD_SNAPSHOT.to_owned())
            }
            _ => VerifyFailure(error.to_string()),
        };
        let held = sqlx::query(guarded(VERIFY)).persistent(false).bind(key.as_bytes()).bind(owner);
        let is_held = held.fetch_optional(&mut **self).await.map_err(failure)?.is_some();
        if is_held {
            return Ok(SeenLock::Held);
        }
        let seen = sqlx::query_as(IS_TAKEN).persistent(false).bind(key.as_bytes());
        let (is_taken, is_fresh) = seen.fetch_one(&mut **self).await.map_err(failure)?;
        not_held(is_taken, is_fresh)
    }
}
