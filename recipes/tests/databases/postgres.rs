//! PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_runtime::fence::{self, FenceError, POSTGRES_TABLE};
use lock_tests::DatabaseServer;
use sqlx::{PgPool, Postgres};

use crate::cases::{FenceFixture, every_case, tested_database};
use crate::waiting::{BlockingDatabase, every_waiting_case, until_waiting};

tested_database!(Postgres, POSTGRES_TABLE, String);
every_case!(crate::postgres::new_database);
every_waiting_case!(crate::postgres::new_database);

impl BlockingDatabase for Postgres {
    const WAITING: &'static str = "SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()";
}

async fn new_database() -> (PgPool, Arc<DatabaseServer>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = DatabaseServer::postgres();
    let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let main = PgPool::connect(&server.url("postgres")).await.expect("the server is up");
    sqlx::raw_sql(&format!("CREATE DATABASE {name}")).execute(&main).await.expect("a new name");
    main.close().await;
    (PgPool::connect(&server.url(&name)).await.expect("the server is up"), server)
}

/// In this level, a transaction cannot see what was committed after its first statement.
#[tokio::test]
async fn repeatable_read_refuses_the_transaction_that_has_waited() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::new(pool.clone()).await;
    let mut first = database.begin().await;
    fence::raise(&mut first, "account", 1).await.expect("the first");
    let second = tokio::spawn(async move {
        let level = "BEGIN ISOLATION LEVEL REPEATABLE READ";
        let mut second = pool.begin_with(level).await.expect("the server is up");
        fence::raise(&mut second, "account", 2).await
    });
    until_waiting(&database).await;
    first.commit().await.expect("the server is up");
    let refused = second.await.expect("no panic").expect_err("a serialization failure");
    assert!(matches!(refused, FenceError::Conflict { .. }), "{refused:?}");
    database.raise("account", 2).await.expect("a new transaction");
}

#[tokio::test]
async fn a_read_before_the_fence_does_not_fix_what_later_reads_see() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::<Postgres>::with_account(pool).await;
    assert_eq!(database.balance_under_a_fence_after_a_read().await, 130);
    assert_eq!(database.balance_under_a_fence().await, 130);
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_a_conflict() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::<Postgres>::new(pool).await;
    let mut first = database.begin().await;
    fence::raise(&mut first, "account", 1).await.expect("the first");
    let mut second = database.begin().await;
    let limit = "SET LOCAL lock_timeout = '10ms'";
    sqlx::query(limit).execute(&mut *second).await.expect("an option");
    let refused = fence::raise(&mut second, "account", 2).await.expect_err("the first is open");
    assert!(matches!(refused, FenceError::Conflict { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_connection_that_ends_is_an_error() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::<Postgres>::new(pool.clone()).await;
    let mut transaction = database.begin().await;
    let id = "SELECT pg_backend_pid()";
    let id: i32 = sqlx::query_scalar(id).fetch_one(&mut *transaction).await.expect("a row");
    fence::raise(&mut transaction, "account", 1).await.expect("the first");
    let end = "SELECT pg_terminate_backend($1, 60000)";
    let has_ended: bool = sqlx::query_scalar(end).bind(id).fetch_one(&pool).await.expect("a row");
    assert!(has_ended);
    let refused = fence::raise(&mut transaction, "account", 1).await.expect_err("no connection");
    assert!(matches!(refused, FenceError::Database { .. }), "{refused:?}");
    assert_eq!(database.recorded("account").await, None);
}
