//! What a transaction of the program sees of a lock.

use std::fmt;

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

/// Runs the statements. Not public, so that only this library implements it.
pub trait Verifies: Send {
    /// What the transaction sees of the lock. It keeps others from taking over a lock that is held.
    fn verify(
        &mut self,
        key: &str,
        owner: &str,
    ) -> impl Future<Output = Result<SeenLock, VerifyFailure>> + Send;
}

/// A transaction in which a lock can be verified: one of `tokio_postgres` 0.7, or of sqlx 0.8 (feature `sqlx-postgres`).
///
/// It is implemented by this library only.
pub trait LockTransaction: Verifies {}
