//! The servers of the stores.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lock_runtime::store::POSTGRES_SCHEMA;
use lock_tests::{DatabaseServer, EtcdCluster, EtcdOptions, Quorum, RedisServer};
use tokio_postgres::NoTls;

use crate::contestant::StoreKind;

/// The running servers of one store. They end when this is dropped.
pub(super) enum StoreServers {
    Redis(Box<RedisServer>),
    Quorum(Quorum),
    /// The members, and the one that was killed.
    Etcd(Box<EtcdCluster>, Option<usize>),
    Postgres(Box<DatabaseServer>),
}

impl StoreKind {
    /// The heading of its rows.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Redis => "`redis`: 1 server",
            Self::Quorum => "`quorum`: 3 servers",
            Self::Etcd => "`etcd`: 1 member",
            Self::EtcdCluster => "`etcd`: 3 members",
            Self::Postgres => "`postgres`: 1 server",
        }
    }

    /// What happens to its servers in a failover.
    pub(super) fn fault(self) -> &'static str {
        match self {
            Self::Redis | Self::Etcd | Self::Postgres => "the server is killed and started again",
            Self::Quorum => "one of three servers is killed",
            Self::EtcdCluster => "the leader is killed",
        }
    }
}

impl StoreServers {
    /// Starts the servers of a store.
    ///
    /// # Panics
    ///
    /// If a server is not installed. The message says how to install it.
    pub(super) fn start(store: StoreKind) -> Result<Self> {
        Ok(match store {
            StoreKind::Redis => Self::Redis(Box::new(RedisServer::plain(&[]))),
            StoreKind::Quorum => Self::Quorum(Quorum::start(3)),
            StoreKind::Postgres => {
                let server = DatabaseServer::postgres_alone(&["fsync=on"], &[]);
                execute(&server, POSTGRES_SCHEMA)?;
                Self::Postgres(Box::new(server))
            }
            StoreKind::Etcd => Self::Etcd(Box::new(etcd(1)), None),
            StoreKind::EtcdCluster => Self::Etcd(Box::new(etcd(3)), None),
        })
    }

    /// The URL for the contestants.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.plain_url(),
            Self::Quorum(quorum) => quorum.url(),
            Self::Etcd(members, _) => members.url(),
            Self::Postgres(server) => server.url("postgres"),
        }
    }

    /// The name and the version of the servers, and the settings that matter.
    pub(super) fn about(&self) -> Result<String> {
        let redis = |server: &RedisServer| -> Result<String> {
            let info: String = server.command(&["INFO", "server"]);
            let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
            Ok(version.context("no version")?.to_owned())
        };
        Ok(match self {
            Self::Redis(server) => format!("redis-server {}, without persistence", redis(server)?),
            Self::Quorum(quorum) => {
                format!("redis-server {}, without persistence", redis(quorum.server(0))?)
            }
            Self::Etcd(members, _) => format!("etcd {}, with `fsync`", members.version()),
            Self::Postgres(server) => {
                let version = query(server, "SHOW server_version")?;
                let number = version.split(' ').next().unwrap_or(&version);
                format!("PostgreSQL {number}, with `fsync` and `synchronous_commit` on")
            }
        })
    }

    /// Kills a server: the only one, the leader, or any of those that vote. The only server is started again at once. Returns
    /// how long no server has answered, if that was so.
    pub(super) fn fail(&mut self) -> Option<Duration> {
        let killed = Instant::now();
        match self {
            Self::Redis(server) => {
                server.kill();
                server.restart();
            }
            Self::Quorum(quorum) => {
                quorum.kill(0);
                return None;
            }
            Self::Etcd(members, killed) => {
                let leader = members.leader();
                members.kill(leader);
                if members.len() > 1 {
                    *killed = Some(leader);
                    return None;
                }
                members.restart(leader);
            }
            Self::Postgres(server) => {
                server.kill();
                server.restart();
            }
        }
        Some(killed.elapsed())
    }

    /// Starts the server that [`fail`](Self::fail) has killed, unless it runs already.
    pub(super) fn recover(&mut self) {
        match self {
            Self::Redis(_) | Self::Postgres(_) => {}
            Self::Etcd(members, killed) => {
                if let Some(killed) = killed.take() {
                    members.restart(killed);
                }
            }
            // As if it had been away for longer than any lease.
            Self::Quorum(quorum) => quorum.restart_unnoticed(0),
        }
    }
}

/// Members with the default settings.
fn etcd(members: usize) -> EtcdCluster {
    let options = EtcdOptions { default_times: true, on_disk: true, ..EtcdOptions::default() };
    EtcdCluster::start(members, &options)
}

/// Runs a future that needs tokio.
fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

async fn session(server: &DatabaseServer) -> Result<tokio_postgres::Client> {
    let (session, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await?;
    tokio::spawn(connection);
    Ok(session)
}

fn execute(server: &DatabaseServer, statements: &str) -> Result<()> {
    block_on(async { Ok(session(server).await?.batch_execute(statements).await?) })
}

/// The only value of a query.
fn query(server: &DatabaseServer, statement: &str) -> Result<String> {
    block_on(async { Ok(session(server).await?.query_one(statement, &[]).await?.get(0)) })
}
