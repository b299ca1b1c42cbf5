//! Locks in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::store::{POSTGRES_SCHEMA, PostgresStore};
use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
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
