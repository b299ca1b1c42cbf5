//! The clients of other languages, and what a test has to know of each.

use std::time::Duration;

use lock_runtime::WireFormat;

/// A lock library with its program.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) language: &'static str,
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) format: WireFormat,
    /// The key of its lock `k` on the server.
    pub(crate) key: &'static str,
    /// Whether it keeps a lock alive by itself.
    pub(crate) renews: bool,
    /// How long it lets pass between two tries, at the most; `None`: it is woken.
    pub(crate) polls: Option<Duration>,
    /// The command that the server carries out at each of its tries.
    pub(crate) tries: &'static str,
    /// Whether its release of a lock that is lost says so.
    pub(crate) tells_of_loss: bool,
}

pub(crate) const REDISSON: Client = Client {
    language: "java",
    name: "redisson",
    version: "4.7.0",
    format: WireFormat::Redisson,
    key: "k",
    renews: true,
    polls: None,
    tries: "subscribe",
    tells_of_loss: true,
};

pub(crate) const REDIS_PY: Client = Client {
    language: "python",
    name: "redis-py",
    version: "8.1.0",
    format: WireFormat::Token,
    key: "k",
    renews: false,
    polls: Some(Duration::from_millis(100)),
    tries: "set",
    tells_of_loss: true,
};

pub(crate) const REDLOCK: Client = Client {
    language: "node",
    name: "redlock",
    version: "5.0.0-beta.2",
    renews: true,
    polls: Some(Duration::from_millis(300)),
    tries: "exists",
    ..REDIS_PY
};

pub(crate) const SEMAPHORE: Client = Client {
    language: "node",
    name: "semaphore",
    version: "5.8.0",
    key: "mutex:k",
    renews: true,
    polls: Some(Duration::from_millis(10)),
    tells_of_loss: false,
    ..REDIS_PY
};

pub(crate) const REDSYNC: Client = Client {
    language: "go",
    name: "redsync",
    version: "4.18.1",
    polls: Some(Duration::from_millis(250)),
    ..REDIS_PY
};

pub(crate) const BSM: Client = Client { language: "go", name: "bsm", version: "0.9.4", ..REDIS_PY };

pub(crate) const RSLOCK: Client = Client {
    language: "rust",
    name: "rslock",
    version: "0.10.0",
    polls: Some(Duration::from_millis(200)),
    tells_of_loss: false,
    ..REDIS_PY
};

/// The steps of old, by hand.
pub(crate) const TIMESTAMP: Client =
    Client { name: "timestamp", format: WireFormat::Timestamp, tries: "setnx", ..REDIS_PY };

/// In the order of the documentation.
pub(crate) const ALL: [&Client; 8] =
    [&REDISSON, &REDIS_PY, &REDLOCK, &SEMAPHORE, &REDSYNC, &BSM, &RSLOCK, &TIMESTAMP];
