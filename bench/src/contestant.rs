//! The contestants.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The role of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A limit that no lock can exceed.
    Limit,
    /// This library.
    Ours,
    /// This library in another version.
    Baseline,
    /// Another lock library.
    Peer,
}

/// The program that a contestant is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// This program.
    Own,
    /// A build of this program from another commit. It takes part as `ours`.
    Baseline,
    /// The program in this directory of `peers/`.
    Peer(&'static str),
}

/// The paths of the programs that are not part of this one.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) peers: PathBuf,
    pub(crate) baseline: Option<PathBuf>,
}

/// The servers of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// One server.
    Plain,
    /// One server, with TLS.
    Tls,
    /// Three masters of a cluster, with a replica each.
    Cluster,
}

use ServerKind::{Cluster, Plain, Tls};

/// A store of this library, and its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreKind {
    /// One Redis server.
    Redis,
    /// Three Redis servers that vote.
    Quorum,
    /// One member of etcd.
    Etcd,
    /// Three members of etcd.
    EtcdCluster,
    /// One PostgreSQL server.
    Postgres,
}

use StoreKind::{Etcd, EtcdCluster, Postgres, Quorum, Redis};

/// What a contestant locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// One key.
    Single,
    /// This number of keys together.
    Keys(u32),
    /// One key, for readers and writers.
    ReadWrite,
    /// Permits of a semaphore.
    Permits,
}

/// The scope of the locks of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The tasks of one process.
    Process,
    /// All processes that use one server.
    Server,
}

/// Where a contestant takes part without being named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByDefault {
    Always,
    Never,
    /// In the workload with this name.
    OnlyIn(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) reach: Reach,
    /// Whether it can wait for a busy lock.
    pub(crate) waits: bool,
    pub(crate) program: Program,
    /// The servers with which it is measured, in the comparison of libraries for Redis.
    pub(crate) servers: &'static [ServerKind],
    /// The stores with which it is measured, in the comparison of stores.
    pub(crate) stores: &'static [StoreKind],
    pub(crate) by_default: ByDefault,
}

const RUST: Contestant = Contestant {
    name: "",
    role: Role::Peer,
    reach: Reach::Server,
    waits: true,
    program: Program::Own,
    servers: &[Plain],
    stores: &[],
    by_default: ByDefault::Always,
};

const fn peer(language: &'static str, name: &'static str) -> Contestant {
    Contestant { name, program: Program::Peer(language), ..RUST }
}

/// Of this library and its limit.
const ALL_SERVERS: &[ServerKind] = &[Plain, Tls, Cluster];

/// This library.
pub(crate) const OURS: Contestant = Contestant {
    name: "ours",
    role: Role::Ours,
    servers: ALL_SERVERS,
    stores: &[Redis, Quorum, Etcd, EtcdCluster, Postgres],
    ..RUST
};

pub(crate) const ALL: [Contestant; 23] = [
    Contestant {
        name: "raw",
        role: Role::Limit,
        waits: false,
        servers: ALL_SERVERS,
        stores: &[Redis],
        ..RUST
    },
    Contestant {
        name: "wire",
        role: Role::Limit,
        waits: false,
        by_default: ByDefault::OnlyIn("uncontended"),
        ..RUST
    },
    Contestant { name: "tokio-mutex", role: Role::Limit, reach: Reach::Process, ..RUST },
    Contestant { name: "ours-memory", role: Role::Ours, reach: Reach::Process, ..RUST },
    OURS,
    // With an exporter for Prometheus, which is read once a second.
    Contestant {
        name: "exported-memory",
        role: Role::Ours,
        reach: Reach::Process,
        by_default: ByDefault::Never,
        ..RUST
    },
    Contestant { name: "exported", role: Role::Ours, by_default: ByDefault::Never, ..RUST },
    Contestant {
        name: "baseline",
        role: Role::Baseline,
        program: Program::Baseline,
        servers: ALL_SERVERS,
        by_default: ByDefault::Never,
        ..RUST
    },
    // The commands of `raw`, over the cluster client of redis-rs.
    Contestant { name: "redis-rs-cluster", waits: false, servers: &[Cluster], ..RUST },
    Contestant { name: "rslock", stores: &[Redis, Quorum], ..RUST },
    Contestant { name: "async-redis-lock", stores: &[Redis], ..RUST },
    Contestant { name: "distkit", ..RUST },
    peer("java", "redisson"),
    peer("go", "redsync"),
    peer("go", "rueidislock"),
    Contestant { stores: &[Quorum], ..peer("node", "redlock") },
    peer("python", "redis-py"),
    // They wait in the same way as others of this list.
    Contestant { by_default: ByDefault::Never, ..peer("go", "bsm") },
    Contestant { by_default: ByDefault::OnlyIn("permits"), ..peer("node", "semaphore") },
    Contestant { servers: &[], stores: &[Etcd, EtcdCluster], ..peer("go", "etcd-mutex") },
    // The limit of this library's transactions.
    Contestant {
        role: Role::Limit,
        waits: false,
        servers: &[],
        stores: &[Etcd, EtcdCluster],
        ..peer("go", "etcd-txn")
    },
    Contestant { name: "advisory-lock", servers: &[], stores: &[Postgres], ..RUST },
    // The limit of locks that survive a crash of the server.
    Contestant {
        name: "lease-table",
        role: Role::Limit,
        waits: false,
        servers: &[],
        stores: &[Postgres],
        ..RUST
    },
];

impl Contestant {
    /// The contestant in the form that has locks of this kind; `None` if it has none.
    pub(crate) fn of_kind(&self, kind: LockKind) -> Option<Self> {
        let name = match (self.name, kind) {
            ("redisson", _) | ("semaphore", LockKind::Permits) | (_, LockKind::Single) => self.name,
            ("ours", LockKind::Keys(2)) => "ours-2-keys",
            ("ours", LockKind::Keys(3)) => "ours-3-keys",
            ("ours", LockKind::Keys(8)) => "ours-8-keys",
            ("ours", LockKind::ReadWrite) => "ours-read-write",
            ("ours", LockKind::Permits) => "ours-permits",
            _ => return None,
        };
        Some(Self { name, ..*self })
    }

    /// The command that starts the contestant.
    pub(crate) fn command(&self, programs: &Programs, url: &str) -> Result<Command> {
        let (program, words): (OsString, Vec<&str>) = match self.program {
            Program::Own => (std::env::current_exe()?.into(), vec!["contestant", self.name, url]),
            Program::Baseline => {
                let baseline = programs.baseline.as_ref();
                let baseline = baseline.context("--baseline names no program")?;
                (baseline.into(), vec!["contestant", "ours", url])
            }
            Program::Peer(language) => {
                let run = programs.peers.join("run");
                ensure!(run.exists(), "there is no `peers/run`");
                (run.into(), vec![language, self.name, url])
            }
        };
        let mut command = Command::new(program);
        command.args(words);
        Ok(command)
    }

    /// Whether a run goes on without this contestant if it does not start.
    pub(crate) fn may_be_absent(&self) -> bool {
        matches!(self.program, Program::Peer(_))
    }
}
