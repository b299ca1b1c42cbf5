//! The fence in PostgreSQL.

use sqlx::error::DatabaseError;
use sqlx::{PgConnection, Postgres};

use super::table::{FailureKind, FenceTable};

/// Creates the table of fences in PostgreSQL, if it does not exist.
pub const POSTGRES_TABLE: &str = r#"CREATE TABLE IF NOT EXISTS lock_fence (
    resource TEXT COLLATE "C" PRIMARY KEY,
    token    BIGINT NOT NULL -- the highest fencing token so far
)"#;

/// Locks the row until the end of the transaction, whether it is inserted, changed or stays the same.
const RECORD: &str = "INSERT INTO lock_fence AS fence (resource, token) VALUES ($1, $2)
    ON CONFLICT (resource) DO UPDATE SET token = greatest(fence.token, excluded.token)
    RETURNING token";

impl FenceTable for Postgres {
    async fn record(
        connection: &mut PgConnection,
        resource: &str,
        token: i64,
    ) -> sqlx::Result<i64> {
        sqlx::query_scalar(RECORD).bind(resource).bind(token).fetch_one(connection).await
    }

    fn failure_kind(error: &dyn DatabaseError) -> FailureKind {
        match error.code().as_deref() {
            // serialization_failure, deadlock_detected, lock_not_available
            Some("40001" | "40P01" | "55P03") => FailureKind::Conflict,
            // undefined_table
            Some("42P01") => FailureKind::NoTable,
            _ => FailureKind::Other,
        }
    }
}
