//! The recipes do what `docs/recipes.md` says, and without them, the damage is done.

mod at_most;
mod blocking;
mod fenced;
mod job;
mod payments;
mod two_locks;

use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use tempfile::TempDir;

/// How long a test may wait for something that happens at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An empty database, and the folder that has its file.
async fn new_database() -> (SqlitePool, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("test.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(PATIENCE);
    (SqlitePool::connect_with(options).await.expect("a new file"), directory)
}
