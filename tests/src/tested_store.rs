//! The store that the target `stores` and its soak test use, whichever it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::LockClient;
use lock_runtime::store::POSTGRES_SCHEMA;
use tokio_postgres::NoTls;

use crate::support::Pair;
use crate::{DatabaseServer, EtcdCluster, Quorum, RedisServer, with_unusual_settings};

/// The variable that says which store is tested: one of [`TestedStore::NAMES`].
const NAME: &str = "LOCK_TESTS_STORE";

/// A running store with real servers, which end when this is dropped.
#[derive(Debug)]
pub enum TestedStore {
    /// One Redis server without persistence: alone, behind a sentinel and with TLS, or as a cluster.
    Redis(Box<RedisServer>),
    /// Redis servers that vote.
    Quorum(Quorum),
    /// The members of a cluster of etcd.
    Etcd(Box<EtcdCluster>),
    /// A database of a PostgreSQL server, with the table.
    Postgres(Box<DatabaseServer>, &'static str),
    /// The same, of a server that several tests share.
    SharedPostgres(Arc<DatabaseServer>, String),
}

impl TestedStore {
    /// The names of all stores. A quorum has three servers, and `etcd-cluster` has three members.
    pub const NAMES: [&str; 7] =
        ["redis", "sentinel", "cluster", "quorum", "etcd", "etcd-cluster", "postgres"];

    /// Starts the store that the variable `LOCK_TESTS_STORE` names.
    ///
    /// # Panics
    ///
    /// If the variable does not name a store, or if a server of the store is not installed.
    pub async fn start() -> Self {
        Self::of_variable(false).await
    }

    /// The same for a test that injects no faults.
    pub async fn start_shared() -> Self {
        Self::of_variable(true).await
    }

    async fn of_variable(shared: bool) -> Self {
        let name = std::env::var(NAME).unwrap_or_default();
        if name == "postgres" && shared {
            return Self::in_shared_postgres().await;
        }
        Self::named(&name).await.unwrap_or_else(|| {
            panic!("`{NAME}` is {name:?}, and not one of {:?}: run `scripts/stores`", Self::NAMES)
        })
    }

    /// Starts the store with this name.
    pub async fn named(name: &str) -> Option<Self> {
        Some(match name {
            "redis" => Self::Redis(Box::new(RedisServer::plain(&[]))),
            "sentinel" => Self::Redis(Box::new(RedisServer::start_with_sentinel(&[]))),
            "cluster" => Self::Redis(Box::new(RedisServer::start_cluster(&[], false))),
            "quorum" => Self::Quorum(Quorum::start(3)),
            "etcd" => Self::Etcd(Box::new(EtcdCluster::single())),
            "etcd-cluster" => Self::Etcd(Box::new(EtcdCluster::three())),
            "postgres" => {
                let server = DatabaseServer::postgres_alone(&[], &[]);
                run(&server.url("postgres"), POSTGRES_SCHEMA).await;
                Self::Postgres(Box::new(server), "postgres")
            }
            _ => return None,
        })
    }

    async fn in_shared_postgres() -> Self {
        static DATABASES: AtomicU32 = AtomicU32::new(0);
        let server = DatabaseServer::postgres();
        let name = format!("store_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        run(&server.url("postgres"), &format!("CREATE DATABASE {name}")).await;
        run(&server.url(&name), POSTGRES_SCHEMA).await;
        run(&server.url("postgres"), &with_unusual_settings(&name)).await;
        Self::SharedPostgres(server, name)
    }

    /// The URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Quorum(quorum) => quorum.url(),
            Self::Etcd(cluster) => cluster.url(),
            Self::Postgres(server, name) => server.url(name),
            Self::SharedPostgres(server, name) => server.url(name),
        }
    }

    /// Whether the store still has its locks after all its servers were killed.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Redis(_) | Self::Quorum(_) => false,
            Self::Etcd(_) | Self::Postgres(..) | Self::SharedPostgres(..) => true,
        }
    }

    /// Kills all servers with SIGKILL.
    ///
    /// # Panics
    ///
    /// If other tests use them.
    pub fn kill(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.kill(index)),
            Self::Etcd(cluster) => (0..cluster.len()).for_each(|number| cluster.kill(number)),
            Self::Postgres(server, _) => server.kill(),
            Self::SharedPostgres(..) => panic!("other tests use this server"),
        }
    }

    /// Starts all servers again, which were killed.
    ///
    /// # Panics
    ///
    /// If other tests use them.
    pub fn restart(&mut self) {
        match self {
            Self::Redis(server) => server.restart(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.restart(index)),
            Self::Etcd(cluster) => {
                // A member is up when a majority is.
                (0..cluster.len()).for_each(|number| cluster.begin_restart(number));
                let _ = cluster.leader();
            }
            Self::Postgres(server, _) => server.restart(),
            Self::SharedPostgres(..) => panic!("other tests use this server"),
        }
    }

    /// Suspends all servers with SIGSTOP.
    ///
    /// # Panics
    ///
    /// If other tests use them.
    pub fn freeze(&mut self) {
        match self {
            Self::Redis(server) => server.freeze(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.freeze(index)),
            Self::Etcd(cluster) => (0..cluster.len()).for_each(|number| cluster.freeze(number)),
            Self::Postgres(server, _) => server.freeze(),
            Self::SharedPostgres(..) => panic!("other tests use this server"),
        }
    }

    /// Resumes all servers with SIGCONT.
    ///
    /// # Panics
    ///
    /// If other tests use them.
    pub fn thaw(&mut self) {
        match self {
            Self::Redis(server) => server.thaw(),
            Self::Quorum(quorum) => (0..quorum.size()).for_each(|index| quorum.thaw(index)),
            Self::Etcd(cluster) => (0..cluster.len()).for_each(|number| cluster.thaw(number)),
            Self::Postgres(server, _) => server.thaw(),
            Self::SharedPostgres(..) => panic!("other tests use this server"),
        }
    }

    /// The number of claims in the queue of a lock; none in a store without queues. Blocks the thread.
    ///
    /// # Panics
    ///
    /// If the store cannot be asked.
    #[must_use]
    pub fn queued(&self, key: &str) -> usize {
        match self {
            Self::Redis(server) => return server.queued(key),
            Self::Quorum(_) | Self::Etcd(_) => return 0,
            Self::Postgres(..) | Self::SharedPostgres(..) => {}
        }
        let (url, key) = (self.url(), key.as_bytes());
        let ask = async {
            let (session, connection) =
                tokio_postgres::connect(&url, NoTls).await.expect("it is up");
            tokio::spawn(connection);
            let count = "SELECT count(*) FROM distributed_lock_claims WHERE key = $1 AND ticket IS NOT NULL";
            session.query_one(count, &[&key]).await.expect("the table").get::<_, i64>(0)
        };
        let asked = std::thread::scope(|scope| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            scope.spawn(|| runtime.expect("a runtime").block_on(ask)).join().expect("an answer")
        });
        usize::try_from(asked).expect("a count")
    }

    /// Whether so many claims stand in the queue of a lock, which are told when their turn comes. Blocks the thread.
    #[must_use]
    pub fn has_woken_claims(&self, key: &str, count: usize) -> bool {
        match self {
            Self::Redis(server) => server.has_woken_claims(key, count),
            _ => self.queued(key) == count,
        }
    }

    /// Deletes the key of a lock, as an operator might.
    pub async fn delete(&self, key: &str) {
        match self {
            Self::Redis(server) => server.tell(&["DEL", key]),
            Self::Quorum(quorum) => {
                (0..quorum.size()).for_each(|index| quorum.server(index).tell(&["DEL", key]));
            }
            Self::Etcd(cluster) => {
                let _ = cluster.control(&["del", key]);
            }
            Self::Postgres(..) | Self::SharedPostgres(..) => {
                let sql = format!("DELETE FROM distributed_locks WHERE key = '{key}'");
                run(&self.url(), &sql).await;
            }
        }
    }

    /// Overwrites the owner of a held lock with a text that is no token.
    pub async fn overwrite(&self, key: &str) {
        const OTHER: &str = "someone else";
        match self {
            Self::Redis(server) => server.tell(&["SET", key, OTHER]),
            Self::Quorum(quorum) => {
                (0..quorum.size())
                    .for_each(|index| quorum.server(index).tell(&["SET", key, OTHER]));
            }
            Self::Etcd(cluster) => {
                let _ = cluster.control(&["put", key, OTHER]);
            }
            Self::Postgres(..) | Self::SharedPostgres(..) => {
                let values = format!("owner = '{OTHER}', until = now() + interval '1 hour'");
                let sql = format!("UPDATE distributed_locks SET {values} WHERE key = '{key}'");
                run(&self.url(), &sql).await;
            }
        }
    }

    /// A client with this lease, whose calls wait for longer than any test takes.
    pub async fn client(&self, lease: Duration) -> LockClient {
        let builder = LockClient::builder().url(self.url()).lease(lease).wait(lease * 60);
        builder.connect().await.expect("the store is up")
    }

    /// Two clients with this lease, and the store. Its servers are not restarted, so calls may have long leases of their own,
    /// also with a quorum.
    pub async fn pair(self, lease: Duration) -> Pair {
        let client = async || {
            let builder = LockClient::builder().url(self.url()).lease(lease).wait(lease * 20);
            let builder = match &self {
                Self::Quorum(_) => builder.quarantine(lease * 60),
                _ => builder,
            };
            builder.connect().await.expect("the store is up")
        };
        let (one, two) = (client().await, client().await);
        Pair { one, two, server: None, store: Some(self) }
    }
}

/// Runs SQL in a database.
async fn run(url: &str, sql: &str) {
    let (session, connection) = tokio_postgres::connect(url, NoTls).await.expect("it is up");
    tokio::spawn(connection);
    session.batch_execute(sql).await.expect("valid SQL");
}
