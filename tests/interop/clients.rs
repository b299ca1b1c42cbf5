//! The clients of other languages, and their properties that the tests depend on.

use std::time::Duration;

use lock_runtime::WireFormat;

/// A lock library and its peer program.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) language: &'static str,
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) wire_format: WireFormat,
    /// The key on the server of the lock that the library calls `k`.
    pub(crate) key: &'static str,
    /// Whether the library renews its locks by itself.
    pub(crate) renews: bool,
    /// The longest time between two attempts of a waiter; `None` if waiters are woken.
    pub(crate) polls: Option<Duration>,
    /// The command that the server executes once per attempt.
    pub(crate) tries: &'static str,
    /// Whether the release of a lost lock fails.
    pub(crate) reports_loss: bool,
}

pub(crate) const REDISSON: Client = Client {
    language: "java",
    name: "redisson",
    version: "4.7.0",
    wire_format: WireFormat::Redisson,
    key: "k",
    renews: true,
    polls: None,
    tries: "subscribe",
    reports_loss: true,
};

pub(crate) const REDIS_PY: Client = Client {
    language: "python",
    name: "redis-py",
    version: "8.1.0",
    wire_format: WireFormat::Token,
    key: "k",
    renews: false,
    polls: Some(Duration::from_millis(100)),
    tries: "set",
    reports_loss: true,
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
    reports_loss: false,
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
    reports_loss: false,
    ..REDIS_PY
};

/// The separate steps `SETNX`, `GET` and `GETSET`, without a library.
pub(crate) const TIMESTAMP: Client =
    Client { name: "timestamp", wire_format: WireFormat::Timestamp, tries: "setnx", ..REDIS_PY };

/// All clients, in the order of the documentation.
pub(crate) const ALL: [&Client; 8] =
    [&REDISSON, &REDIS_PY, &REDLOCK, &SEMAPHORE, &REDSYNC, &BSM, &RSLOCK, &TIMESTAMP];
