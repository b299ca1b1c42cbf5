//! A fence in SQLite. The suite `databases` tests PostgreSQL and MariaDB.

mod cases;

use std::time::Duration;

use lock_runtime::fence::{self, FenceError, SQLITE_TABLE};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool};
use tempfile::TempDir;

use crate::cases::{FenceFixture, assert_stale, every_case, tested_database};

tested_database!(Sqlite, SQLITE_TABLE, String);
every_case!(crate::new_database);

async fn new_database() -> (SqlitePool, TempDir) {
    new_database_with(Duration::from_secs(60)).await
}

/// A file whose transactions wait this long for others.
async fn new_database_with(busy_timeout: Duration) -> (SqlitePool, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("fence.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(busy_timeout);
    let pool = SqlitePoolOptions::new().connect_with(options).await.expect("a new file");
    (pool, directory)
}

#[tokio::test]
async fn an_earlier_holder_waits_for_the_commit_of_a_later_one_and_is_refused() {
    let (pool, _directory) = new_database().await;
    let database = FenceFixture::new(pool.clone()).await;
    let mut later = database.begin().await;
    fence::raise(&mut later, "account", 2).await.expect("the first");
    let earlier = tokio::spawn(async move { FenceFixture(pool).raise("account", 1).await });
    tokio::task::yield_now().await;
    assert!(!earlier.is_finished());
    later.commit().await.expect("the only writer");
    assert_stale(earlier.await.expect("no panic"), ("account", 1, 2));
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_a_conflict() {
    let (pool, _directory) = new_database_with(Duration::ZERO).await;
    let database = FenceFixture::new(pool).await;
    let mut first = database.begin().await;
    fence::raise(&mut first, "account", 1).await.expect("the first");
    let refused = database.raise("account", 2).await.expect_err("the file has another writer");
    assert!(matches!(refused, FenceError::Conflict { .. }), "{refused:?}");
    let expected = "token 2 for \"account\" was not recorded, because another transaction was in the way; roll back, and \
                    repeat the transaction: ";
    assert!(refused.to_string().starts_with(expected), "{refused}");
    first.commit().await.expect("the only writer");
    database.raise("account", 2).await.expect("the file has no other writer");
}

/// This is why the fence comes first in a transaction.
#[tokio::test]
async fn a_read_before_the_fence_may_cause_a_conflict() {
    let (pool, _directory) = new_database().await;
    let database = FenceFixture::<Sqlite>::with_account(pool).await;
    let mut reader = database.begin().await;
    let sql = "SELECT balance FROM account";
    let before: i64 = sqlx::query_scalar(sql).fetch_one(&mut *reader).await.expect("a row");
    assert_eq!(before, 100);
    database.raise("account", 1).await.expect("readers do not stop a writer");
    let refused = fence::raise(&mut reader, "account", 2).await.expect_err("an old snapshot");
    assert!(matches!(refused, FenceError::Conflict { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_future_that_moves_between_threads_may_raise_a_fence() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let (pool, _directory) = new_database().await;
    let database = FenceFixture::new(pool).await;
    let mut transaction = database.begin().await;
    assert_send(fence::raise(&mut transaction, "account", 1)).await.expect("the first");
}
