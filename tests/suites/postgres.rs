//! Locks in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::store::{POSTGRES_SCHEMA, PostgresStore};
use lock_runtime::{LockClient, LockError, LostReason, distributed_lock, with_client};
use lock_tests::DatabaseServer;
use lock_tests::support::LEASE;
use tokio_postgres::NoTls;

/// A database with the table.
struct Database {
    server: Arc<DatabaseServer>,
    name: String,
}

impl Database {
    /// A database without the table.
    async fn empty() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = DatabaseServer::postgres();
        let name = format!("locks_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let database = Self { server, name };
        database.run_in("postgres", &format!("CREATE DATABASE {}", database.name)).await;
        database
    }

    async fn new() -> Self {
        let database = Self::empty().await;
        database.run(POSTGRES_SCHEMA).await;
        database
    }

    fn url(&self) -> String {
        self.server.url(&self.name)
    }

    async fn session(&self, database: &str) -> tokio_postgres::Client {
        let (session, connection) =
            tokio_postgres::connect(&self.server.url(database), NoTls).await.expect("it is up");
        tokio::spawn(connection);
        session
    }

    async fn run_in(&self, database: &str, sql: &str) {
        self.session(database).await.batch_execute(sql).await.expect("valid SQL");
    }

    async fn run(&self, sql: &str) {
        self.run_in(&self.name, sql).await;
    }

    async fn count(&self) -> i64 {
        let session = self.session(&self.name).await;
        let row = session.query_one("SELECT count(*) FROM distributed_locks", &[]).await;
        row.expect("the table").get(0)
    }

    async fn client(&self) -> LockClient {
        let client = LockClient::builder().url(self.url()).lease(LEASE).connect().await;
        client.expect("the server is up")
    }
}

mod conformance {
    use super::{Database, PostgresStore};

    lock_runtime::store_conformance!(
        let database = Database::new().await;
        PostgresStore::new(&database.url()).expect("a valid URL")
    );
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u32, time: Duration) -> Result<u32, LockError> {
    tokio::time::sleep(time).await;
    Ok(id)
}

#[tokio::test]
async fn an_annotated_function_is_renewed_and_leaves_no_row() {
    let database = Database::new().await;
    let client = database.client().await;
    assert_eq!(with_client(client.clone(), pay(7, LEASE * 3)).await, Ok(7));
    client.shutdown().await.expect("released");
    assert_eq!(database.count().await, 0);
}

#[tokio::test]
async fn a_waiting_call_is_notified() {
    let database = Database::new().await;
    let (one, two) = (database.client().await, database.client().await);
    let guard = one.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(two.lock("k").wait(LEASE * 60).acquire());
    let session = database.session(&database.name).await;
    let wanted = "SELECT FROM distributed_locks WHERE wanted";
    while session.query(wanted, &[]).await.expect("the table").is_empty() {
        tokio::time::sleep(LEASE / 100).await;
    }
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("notified").release().await.expect("held");
}

/// A table that a transaction of the program writes to.
const ACCOUNT: &str =
    "CREATE TABLE account (balance int8 NOT NULL); INSERT INTO account VALUES (0)";
const DEPOSIT: &str = "UPDATE account SET balance = balance + 1";

async fn balance(database: &Database) -> i64 {
    let session = database.session(&database.name).await;
    session.query_one("SELECT balance FROM account", &[]).await.expect("the table").get(0)
}

#[tokio::test]
async fn nobody_gets_a_verified_lock_before_the_transaction_ends() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let (one, two) = (database.client().await, database.client().await);
    // Nothing renews it.
    let guard = one.lock("k").lease(LEASE / 2).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let mut transaction = session.transaction().await.expect("it is up");
    transaction.execute(DEPOSIT, &[]).await.expect("the table");
    guard.verify_in(&mut transaction).await.expect("held");
    assert_eq!(guard.lost().await, LostReason::LeaseOver);
    tokio::time::sleep(LEASE).await;
    let busy = two.lock("k").wait(LEASE / 4).acquire().await.map(drop);
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    transaction.commit().await.expect("it is up");
    two.lock("k").wait(LEASE * 60).acquire().await.expect("free").release().await.expect("held");
    assert_eq!(balance(&database).await, 1);
}

/// The control: without the verification, the lease ends under the open transaction.
#[tokio::test]
async fn somebody_gets_a_lock_that_the_transaction_has_not_verified() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let (one, two) = (database.client().await, database.client().await);
    let guard = one.lock("k").lease(LEASE / 2).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let transaction = session.transaction().await.expect("it is up");
    transaction.execute(DEPOSIT, &[]).await.expect("the table");
    assert_eq!(guard.lost().await, LostReason::LeaseOver);
    let other = two.lock("k").wait(LEASE * 60).acquire().await.expect("free");
    transaction.commit().await.expect("a stale commit");
    assert!(other.is_held());
}

#[tokio::test]
async fn a_lost_lock_is_not_verified() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let client = database.client().await;
    let mut session = database.session(&database.name).await;
    for (sql, reason) in [
        ("DELETE FROM distributed_locks", LostReason::Gone),
        ("UPDATE distributed_locks SET owner = 'other'", LostReason::Taken),
    ] {
        let guard = client.lock("k").acquire().await.expect("free");
        let mut transaction = session.transaction().await.expect("it is up");
        transaction.execute(DEPOSIT, &[]).await.expect("the table");
        database.run(sql).await;
        match guard.verify_in(&mut transaction).await {
            Err(LockError::Lost { reason: found, .. }) => assert_eq!(found, reason),
            other => panic!("{other:?}"),
        }
        drop(transaction);
        database.run("DELETE FROM distributed_locks").await;
    }
    assert_eq!(balance(&database).await, 0);
    let elsewhere = LockClient::memory();
    let guard = elsewhere.lock("k").acquire().await.expect("free");
    let mut transaction = session.transaction().await.expect("it is up");
    let refused = guard.verify_in(&mut transaction).await;
    assert!(matches!(refused, Err(LockError::Config { option: "url", .. })), "{refused:?}");
}

#[tokio::test]
async fn a_lock_is_renewed_while_a_transaction_has_verified_it() {
    let database = Database::new().await;
    let client = database.client().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let mut transaction = session.transaction().await.expect("it is up");
    guard.verify_in(&mut transaction).await.expect("held");
    tokio::time::sleep(LEASE * 3).await;
    assert!(guard.is_held());
    transaction.commit().await.expect("it is up");
    guard.release().await.expect("held");
    assert_eq!(database.count().await, 0);
}

#[tokio::test]
async fn a_database_that_is_not_ready_is_an_error_that_says_what_to_do() {
    let database = Database::empty().await;
    let problem = async || match LockClient::connect(database.url()).await.map(drop) {
        Err(LockError::Config { option: "url", problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    assert!(problem().await.contains("has no table `distributed_locks`"));
    database.run("CREATE TABLE distributed_locks (key text)").await;
    assert!(problem().await.contains("has the version \"\""));
    database.run("DROP TABLE distributed_locks").await;
    database.run(POSTGRES_SCHEMA).await;
    // It can be run again.
    database.run(POSTGRES_SCHEMA).await;
    let client = database.client().await;
    database.run("DROP TABLE distributed_locks").await;
    match client.lock("k").acquire().await.map(drop) {
        Err(LockError::Config { problem, .. }) => assert!(problem.contains("missing"), "{problem}"),
        other => panic!("{other:?}"),
    }
    let none = LockClient::connect(database.server.url("no_such_database")).await.map(drop);
    assert!(matches!(none, Err(LockError::Config { .. })), "{none:?}");
    let closed = LockClient::connect("postgres://test:secret@127.0.0.1:1/test").await.map(drop);
    match closed {
        Err(LockError::Unavailable { cause, .. }) => assert!(!cause.contains("secret"), "{cause}"),
        other => panic!("{other:?}"),
    }
    let invalid = LockClient::connect("postgres://test:secret@host:port/test").await.map(drop);
    assert!(!format!("{invalid:?}").contains("secret"), "{invalid:?}");
}

#[tokio::test]
async fn tokens_outlive_the_rows() {
    let database = Database::new().await;
    let client = database.client().await;
    let mut last = 0;
    for _ in 0..3 {
        let guard = client.lock("k").acquire().await.expect("free");
        let token = guard.fencing_token().await.expect("held");
        assert!(token > last, "{token} after {last}");
        last = token;
        guard.release().await.expect("held");
        database.run("TRUNCATE distributed_locks RESTART IDENTITY").await;
    }
}
