//! What the key of a lock holds, as an operator sees it.

use std::time::Duration;

use crate::client_info::ClientInfo;
use crate::lock_mode::LockMode;
use crate::permits::Permits;

/// What the key of a lock holds in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The key, with the namespace.
    pub key: String,
    /// The layout of the value.
    pub layout: StoredLayout,
    /// The holders. Several for readers and permits; the first 1,000.
    pub holders: Vec<StoredHolder>,
    /// The number of processes that wait in the queue of the store. The other calls of a process wait in the
    /// process itself, and clients that poll are not in the queue.
    pub queued: u64,
}

/// How a lock is written in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredLayout {
    /// [`WireFormat::Token`](crate::WireFormat::Token), of a client of this library.
    Token,
    /// [`WireFormat::Redisson`](crate::WireFormat::Redisson).
    Redisson,
    /// [`WireFormat::Timestamp`](crate::WireFormat::Timestamp).
    Timestamp,
    /// A read-write lock.
    ReadWrite,
    /// A semaphore.
    Semaphore,
    /// A string that no client of this library has written. It may be the token of another library, or no lock.
    OtherToken,
}

impl StoredLayout {
    /// Returns a word for tables and logs, which is stable across versions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Redisson => "redisson",
            Self::Timestamp => "timestamp",
            Self::ReadWrite => "read_write",
            Self::Semaphore => "semaphore",
            Self::OtherToken => "other_token",
        }
    }
}

/// A holder of a lock, as its key tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredHolder {
    /// The owner in the key. It identifies one acquisition.
    pub token: String,
    /// The client of the owner. Without any value for a client of another library.
    pub client: ClientInfo,
    /// The longest time for which the holder can have had the lock; see
    /// [`Holder::held_for`](crate::Holder::held_for).
    pub held_for: Option<Duration>,
    /// The rest of its lease; `None` for a key that never expires.
    pub lease_left: Option<Duration>,
    /// The mode of a read-write lock.
    pub mode: Option<LockMode>,
    /// The permits of a semaphore.
    pub permits: Option<Permits>,
    /// Whether the lock was released, and its key stays taken for its `min_hold`.
    pub is_released: bool,
}

/// What has become of a request to delete a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deletion {
    /// The holder has the lock no longer, and the next call may have it.
    Deleted,
    /// The key has other holders. It was not changed.
    Changed,
    /// The key does not exist.
    Gone,
}
