//! Errors of fences, and the limits of resources and tokens.

use super::table::FailureKind;

/// The longest resource, in bytes: as long as the longest key of a lock.
const LONGEST_RESOURCE: usize = 1024;

/// Why a fence was not raised. Roll the transaction back after each of these errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has recorded a higher token. The lock of this caller was lost, even if the caller has not noticed
    /// it yet. Acquire the lock again, and repeat the work from its first read.
    #[error(
        "token {token} for {resource:?} is stale: a later lock holder has recorded {recorded}; roll back, and acquire \
         the lock again"
    )]
    #[non_exhaustive]
    Stale {
        /// The resource.
        resource: String,
        /// The token of the caller.
        token: u64,
        /// The highest token on record.
        recorded: u64,
    },

    /// Another transaction was in the way: a serialization failure, a deadlock, or a wait for a lock of the database
    /// that took too long. Repeat the whole transaction while the lock is held.
    #[error(
        "token {token} for {resource:?} was not recorded, because another transaction was in the way; roll back, and \
         repeat the transaction: {source}"
    )]
    #[non_exhaustive]
    Conflict {
        /// The resource.
        resource: String,
        /// The token of the caller.
        token: u64,
        /// The error of the database.
        source: sqlx::Error,
    },

    /// The table does not exist in the database, or not in the schema of the connection.
    #[error(
        "the table `lock_fence` does not exist; create it in a migration, with the statement in `lock_runtime::fence`: \
         {source}"
    )]
    #[non_exhaustive]
    NoTable {
        /// The error of the database.
        source: sqlx::Error,
    },

    /// The resource is empty, longer than 1,024 bytes, or contains a zero byte.
    #[error("invalid resource {resource:?}: {problem}")]
    #[non_exhaustive]
    InvalidResource {
        /// The resource, truncated if it is long.
        resource: String,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// The token is higher than 2⁶³ − 1, so it does not fit in the table. Tokens of this library are never that high.
    #[error(
        "token {token} for {resource:?} is higher than {}, the highest that the table can have; use the token of a guard",
        i64::MAX
    )]
    #[non_exhaustive]
    TokenTooHigh {
        /// The resource.
        resource: String,
        /// The token of the caller.
        token: u64,
    },

    /// Another error of the database or of the connection.
    #[error("token {token} for {resource:?} was not recorded: {source}")]
    #[non_exhaustive]
    Database {
        /// The resource.
        resource: String,
        /// The token of the caller.
        token: u64,
        /// The error.
        source: sqlx::Error,
    },
}

/// Refuses a resource that a table could not have, or that it could have cut off.
pub(super) fn check(resource: &str) -> Result<(), FenceError> {
    let problem = match resource.len() {
        0 => "it is empty",
        length if length > LONGEST_RESOURCE => "it is longer than 1024 bytes",
        // PostgreSQL cannot store it as text.
        _ if resource.contains('\0') => "it contains a zero byte",
        _ => return Ok(()),
    };
    let resource = resource.chars().take(60).collect();
    Err(FenceError::InvalidResource { resource, problem })
}

/// The token as the table has it.
pub(super) fn stored(resource: &str, token: u64) -> Result<i64, FenceError> {
    i64::try_from(token)
        .map_err(|_| FenceError::TokenTooHigh { resource: resource.to_owned(), token })
}

/// The error of a statement that has failed; `kind` is `None` if no database has answered.
pub(super) fn failure(
    kind: Option<FailureKind>,
    resource: &str,
    token: u64,
    source: sqlx::Error,
) -> FenceError {
    let resource = resource.to_owned();
    match kind {
        Some(FailureKind::Conflict) => FenceError::Conflict { resource, token, source },
        Some(FailureKind::NoTable) => FenceError::NoTable { source },
        Some(FailureKind::Other) | None => FenceError::Database { resource, token, source },
    }
}
