//! The fence in SQLite.

use sqlx::error::DatabaseError;
use sqlx::{Sqlite, SqliteConnection};

use super::table::{FailureKind, FenceTable};

/// Creates the table of fences in SQLite, if it does not exist.
pub const SQLITE_TABLE: &str = "CREATE TABLE IF NOT EXISTS lock_fence (
    resource TEXT NOT NULL PRIMARY KEY COLLATE BINARY,
    token    INTEGER NOT NULL -- the highest fencing token so far
) STRICT";

/// Makes the transaction one that writes, of which SQLite has one at a time.
const RECORD: &str = "INSERT INTO lock_fence (resource, token) VALUES (?1, ?2)
    ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token)
    RETURNING token";

impl FenceTable for Sqlite {
    async fn record(
        connection: &mut SqliteConnection,
        resource: &str,
        token: i64,
    ) -> sqlx::Result<i64> {
        sqlx::query_scalar(RECORD).bind(resource).bind(token).fetch_one(connection).await
    }

    fn failure_kind(error: &dyn DatabaseError) -> FailureKind {
        let code = error.code().and_then(|code| code.parse::<u32>().ok());
        // The low byte is the kind of the error, the others tell more about it.
        match code.map(|code| code & 0xff) {
            // SQLITE_BUSY, SQLITE_LOCKED
            Some(5 | 6) => FailureKind::Conflict,
            // SQLITE_ERROR has no code of its own for this.
            Some(1) if error.message().contains("no such table") => FailureKind::NoTable,
            _ => FailureKind::Other,
        }
    }
}
