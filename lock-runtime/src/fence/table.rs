//! What a database does for a fence. The trait is public, but its path is not, so only this crate implements it.

use sqlx::Database;
use sqlx::error::DatabaseError;

/// What an error of a database means for a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Another transaction was in the way.
    Conflict,
    /// The table does not exist.
    NoTable,
    /// Everything else.
    Other,
}

/// The statements of one database.
pub trait FenceTable: Database {
    /// Records a token unless the one on record is higher, in one statement. Returns the token that is then on record.
    fn record(
        connection: &mut Self::Connection,
        resource: &str,
        token: i64,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// What an error of [`record`](Self::record) means.
    fn failure_kind(error: &dyn DatabaseError) -> FailureKind;
}
