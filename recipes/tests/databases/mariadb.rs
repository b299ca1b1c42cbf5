//! MariaDB.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_runtime::fence::{self, FenceError, MYSQL_TABLE};
use lock_tests::DatabaseServer;
use sqlx::{MySql, MySqlPool};

use crate::cases::{FenceFixture, every_case, tested_database};
use crate::waiting::{BlockingDatabase, every_waiting_case};

tested_database!(MySql, MYSQL_TABLE, Vec<u8>);
every_case!(crate::mariadb::new_database);
every_waiting_case!(crate::mariadb::new_database);

impl BlockingDatabase for MySql {
    /// An `INSERT` that does not end. The table of waiting transactions, `innodb_trx`, is not up to date if it is read often.
    const WAITING: &'static str = "SELECT count(*) FROM information_schema.processlist
        WHERE state = 'Update' AND info LIKE 'INSERT INTO lock_fence%' AND db = DATABASE()";
}

async fn new_database() -> (MySqlPool, Arc<DatabaseServer>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = DatabaseServer::mariadb();
    let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let main = MySqlPool::connect(&server.url("mysql")).await.expect("the server is up");
    sqlx::raw_sql(&format!("CREATE DATABASE {name}")).execute(&main).await.expect("a new name");
    main.close().await;
    (MySqlPool::connect(&server.url(&name)).await.expect("the server is up"), server)
}

/// This is why the fence comes first in a transaction.
#[tokio::test]
async fn a_read_before_the_fence_fixes_what_the_transaction_sees() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::<MySql>::with_account(pool).await;
    assert_eq!(database.balance_under_a_fence_after_a_read().await, 100, "an old state");
    assert_eq!(database.balance_under_a_fence().await, 130);
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_a_conflict() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::<MySql>::new(pool).await;
    let mut first = database.begin().await;
    fence::raise(&mut first, "account", 1).await.expect("the first");
    let mut second = database.begin().await;
    let limit = "SET innodb_lock_wait_timeout = 1";
    sqlx::query(limit).execute(&mut *second).await.expect("an option");
    let refused = fence::raise(&mut second, "account", 2).await.expect_err("the first is open");
    assert!(matches!(refused, FenceError::Conflict { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_connection_that_ends_is_an_error() {
    let (pool, _server) = new_database().await;
    let database = FenceFixture::<MySql>::new(pool.clone()).await;
    let mut transaction = database.begin().await;
    let id = "SELECT CONNECTION_ID()";
    let id: u64 = sqlx::query_scalar(id).fetch_one(&mut *transaction).await.expect("a row");
    fence::raise(&mut transaction, "account", 1).await.expect("the first");
    sqlx::query("KILL HARD CONNECTION ?").bind(id).execute(&pool).await.expect("a connection");
    let refused = fence::raise(&mut transaction, "account", 1).await.expect_err("no connection");
    assert!(matches!(refused, FenceError::Database { .. }), "{refused:?}");
    assert_eq!(database.recorded("account").await, None);
}
