//! The fence in MySQL and MariaDB.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{MySql, MySqlConnection};

use super::table::{FailureKind, FenceTable};

/// Creates the table of fences in MySQL or MariaDB, if it does not exist. Other engines than InnoDB have no
/// transactions, and other types of text ignore case or trailing blanks.
pub const MYSQL_TABLE: &str = "CREATE TABLE IF NOT EXISTS lock_fence (
    resource VARBINARY(1024) NOT NULL PRIMARY KEY,
    token    BIGINT NOT NULL -- the highest fencing token so far
) ENGINE = InnoDB";

/// Locks the row until the end of the transaction, whether it is inserted, changed or stays the same. MySQL has no
/// `RETURNING`, and the number of changed rows does not tell an equal token from a stale one. `LAST_INSERT_ID` with an
/// argument makes its value a part of the reply to this very statement.
const RECORD: &str = "INSERT INTO lock_fence (resource, token) VALUES (?, ?)
    ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, ?))";

impl FenceTable for MySql {
    async fn record(
        connection: &mut MySqlConnection,
        resource: &str,
        token: i64,
    ) -> sqlx::Result<i64> {
        let statement = sqlx::query(RECORD).bind(resource.as_bytes()).bind(token).bind(token);
        let recorded = statement.execute(connection).await?.last_insert_id();
        // The reply has 0 if the row was inserted, because the table has no `AUTO_INCREMENT`. Otherwise, the number is
        // one that the table has, so it fits.
        Ok(i64::try_from(recorded).unwrap_or(i64::MAX).max(token))
    }

    fn failure_kind(error: &dyn DatabaseError) -> FailureKind {
        match error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
            // ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK, and MariaDB's ER_CHECKREAD
            Some(1205 | 1213 | 1020) => FailureKind::Conflict,
            // ER_NO_SUCH_TABLE
            Some(1146) => FailureKind::NoTable,
            _ => FailureKind::Other,
        }
    }
}
