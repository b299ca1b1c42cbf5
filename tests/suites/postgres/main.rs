//! Locks in PostgreSQL.

mod claims;
#[cfg(lock_controls)]
mod controls;
mod failover;
mod faults;
mod joined;
mod lookup;
mod pauses;
mod pooler;
mod store;
mod tls;
mod verify;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_runtime::LockClient;
use lock_runtime::store::{POSTGRES_SCHEMA, PostgresStore};
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
        session_of(&self.server.url(database)).await
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

    fn store(&self) -> PostgresStore {
        PostgresStore::new(&self.url()).expect("a valid URL")
    }

    async fn client(&self) -> LockClient {
        let client = LockClient::builder().url(self.url()).lease(LEASE).connect().await;
        client.expect("the server is up")
    }
}

async fn session_of(url: &str) -> tokio_postgres::Client {
    let (session, connection) = tokio_postgres::connect(url, NoTls).await.expect("it is up");
    tokio::spawn(connection);
    session
}
