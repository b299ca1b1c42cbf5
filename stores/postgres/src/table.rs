//! The table: whether it can be used, and how it is created.

use tokio_postgres::{Client, Row};

use super::connector::{DatabaseConnector, OpenedConnection};
use super::errors;
use super::pool::ConnectionPool;
use super::statements::CHECK;
use lock_core::store::store_error::StoreError;

/// The SQL that creates it.
pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// The oldest server.
const OLDEST_SERVER: i32 = 120_000;

/// What its comment says: the name of the library, and the version of the table. The next version gets a step here that
/// changes tables of this one.
const NAME: &str = "lock-runtime";
const VERSION: u32 = 1;

/// What the SQL creates if a table of this version lacks it.
const CREATED: [&str; 3] = [
    "the sequence distributed_lock_fences",
    "the table distributed_lock_claims",
    "the table distributed_lock_records",
];

/// A table of locks.
#[derive(Debug, PartialEq, Eq)]
enum TableState {
    Missing,
    /// It has the version that this program needs.
    Current,
    /// It has another one, or was made by somebody else.
    Other(String),
    /// It has this version, but not these parts.
    Incomplete(String),
}

/// Fails unless locks can be acquired now.
pub(super) async fn check(pool: &ConnectionPool) -> Result<(), StoreError> {
    let rows = pool.query(CHECK, &[]).await?;
    let row = rows.first().ok_or_else(|| StoreError::Unknown("no answer".to_owned()))?;
    check_server(row)?;
    match table(row) {
        TableState::Current => Ok(()),
        TableState::Missing => Err(errors::config(
            "the database has no table `distributed_locks`; run `lockctl migrate`, or the SQL of the documentation"
                .to_owned(),
        )),
        TableState::Other(comment) => Err(errors::config(other(&comment))),
        TableState::Incomplete(missing) => Err(errors::config(incomplete(&missing))),
    }
}

/// Creates the table, unless it is there. Returns whether it was created.
pub(super) async fn migrate(connector: &DatabaseConnector) -> Result<bool, StoreError> {
    let OpenedConnection { client, connection, .. } = connector.connect().await?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let is_new = match state(&client).await? {
        TableState::Missing => true,
        // The SQL makes a sequence that is missing.
        TableState::Current | TableState::Incomplete(_) => false,
        TableState::Other(comment) => return Err(errors::config(other(&comment))),
    };
    client.batch_execute(SCHEMA).await.map_err(|error| errors::of_request(&error))?;
    match state(&client).await? {
        TableState::Incomplete(missing) => Err(errors::config(incomplete(&missing))),
        _ => Ok(is_new),
    }
}

/// The state of the table, at a server that can be used.
async fn state(client: &Client) -> Result<TableState, StoreError> {
    let rows = client.query_typed(CHECK, &[]).await.map_err(|error| errors::of_request(&error))?;
    let row = rows.first().ok_or_else(|| StoreError::Unknown("no answer".to_owned()))?;
    check_server(row)?;
    Ok(table(row))
}

fn check_server(row: &Row) -> Result<(), StoreError> {
    let (version, is_standby, is_read_only): (i32, bool, bool) =
        (row.get(0), row.get(1), row.get(2));
    if version < OLDEST_SERVER {
        return Err(errors::config(format!(
            "the server has version {}; PostgreSQL 12 or newer is needed",
            version / 10_000
        )));
    }
    if is_standby {
        return Err(errors::config(
            "the server is a read-only standby; name the primary server, or all servers of the database".to_owned(),
        ));
    }
    if is_read_only {
        return Err(errors::config(
            "`default_transaction_read_only` is on for this user or database; set it off: `ALTER ROLE ... SET \
             default_transaction_read_only = off`"
                .to_owned(),
        ));
    }
    Ok(())
}

fn table(row: &Row) -> TableState {
    let (exists, comment, missing): (bool, String, String) = (row.get(3), row.get(4), row.get(5));
    match version(&comment) {
        _ if !exists => TableState::Missing,
        Some(VERSION) if missing.is_empty() => TableState::Current,
        Some(VERSION) => TableState::Incomplete(missing),
        _ => TableState::Other(comment),
    }
}

fn version(comment: &str) -> Option<u32> {
    comment.strip_prefix(NAME)?.strip_prefix(' ')?.parse().ok()
}

/// What is wrong with a table of this version without these parts.
fn incomplete(missing: &str) -> String {
    let is_created = |part: &str| CREATED.contains(&part) || part.starts_with("the function ");
    let advice = if missing.split(", ").all(is_created) {
        "run `lockctl migrate`"
    } else {
        "compare it with the SQL of the documentation"
    };
    format!(
        "the table `distributed_locks` has the version {VERSION} of `lock-runtime`, but lacks {missing}; {advice}"
    )
}

/// What is wrong with a table of another version.
fn other(comment: &str) -> String {
    match version(comment) {
        Some(found) if found > VERSION => format!(
            "the table `distributed_locks` has the version {found}, and this program knows {VERSION}; use a newer program"
        ),
        _ => format!(
            "the table `distributed_locks` has the comment {comment:?} and not the version {VERSION} of `lock-runtime`; \
             rename it if it belongs to somebody else, and run `lockctl migrate`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sql_creates_the_version_that_is_needed() {
        assert!(
            SCHEMA.contains(&format!("COMMENT ON TABLE distributed_locks IS '{NAME} {VERSION}'"))
        );
        assert_eq!(version("lock-runtime 1"), Some(VERSION));
    }

    #[test]
    fn other_versions_are_explained() {
        assert!(other("lock-runtime 2").contains("use a newer program"));
        for foreign in ["", "lock-runtime", "lock-runtimes 1", "lock-runtime x"] {
            assert_eq!(version(foreign), None, "{foreign}");
            assert!(other(foreign).contains("rename it"), "{foreign}");
        }
    }
}
