//! What the key of a lock holds, as an operator sees it.

use std::fmt;
use std::time::Duration;

use crate::client_info::ClientInfo;
use crate::lock_mode::LockMode;
use crate::permits::Permits;

/// What the key of a lock holds in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The key, with the namespace. It may contain any characters.
    pub key: String,
    /// The layout of the value.
    pub layout: StoredLayout,
    /// The holders. Several for readers and permits.
    pub holders: Vec<StoredHolder>,
    /// Whether all holders and all their permits are there. Of more than 1,000 readers or permits, those are there
    /// whose leases end first.
    pub is_complete: bool,
    /// The number of processes that wait in the queue of the store. The other calls of a process wait in the
    /// process itself, and clients that poll are not in the queue. Zero in stores without queues.
    pub queued: u64,
}

impl LockState {
    /// A lock with these holders, all of which are known, and without a queue.
    #[doc(hidden)]
    #[must_use]
    pub fn new(key: impl Into<String>, layout: StoredLayout, holders: Vec<StoredHolder>) -> Self {
        Self { key: key.into(), layout, holders, is_complete: true, queued: 0 }
    }
}

/// How a lock is written in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredLayout {
    /// [`WireFormat::Token`](crate::wire_format::WireFormat::Token), of a client of this library.
    Token,
    /// [`WireFormat::Redisson`](crate::wire_format::WireFormat::Redisson).
    Redisson,
    /// [`WireFormat::Timestamp`](crate::wire_format::WireFormat::Timestamp).
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
    /// The owner in the key. Empty in a store that keeps no owner of a lock that [was released](Self::is_released).
    pub token: HolderToken,
    /// The client of the owner. Without any value for a client of another library.
    pub client: ClientInfo,
    /// The longest time for which the holder can have had the lock; see
    /// [`Holder::held_for`](crate::holder::Holder::held_for).
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

impl StoredHolder {
    /// A holder of which the owner and the rest of the lease are known.
    #[doc(hidden)]
    #[must_use]
    pub fn new(token: impl Into<String>, lease_left: Option<Duration>) -> Self {
        Self {
            token: HolderToken::new(token),
            client: ClientInfo::default(),
            held_for: None,
            lease_left,
            mode: None,
            permits: None,
            is_released: false,
        }
    }
}

/// The longest token that is known as a whole, in bytes.
pub const LONGEST_TOKEN: usize = 256;

/// The owner that a key of the store names. It identifies one acquisition.
///
/// Whoever has it, and may write the key, can release the lock. So it is not displayed, and its `Debug` shows the end
/// only, which is enough to distinguish holders in a log.
///
/// A token of another library may be longer than 256 bytes, or no UTF-8. It is then known in part only, and
/// `admin::LockAdmin::delete` refuses it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HolderToken(String);

impl HolderToken {
    #[doc(hidden)]
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The whole text, for `admin::LockAdmin::delete` and for the tools of the store.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for HolderToken {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// Shows the last four characters, or fewer of a short token.
impl fmt::Debug for HolderToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.chars().count();
        let end = self.0.chars().skip(count - (count / 4).min(4));
        write!(f, "HolderToken(…{})", end.collect::<String>().escape_debug())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_only_in_part() {
        let shown = |token: &str| format!("{:?}", HolderToken::new(token));
        assert_eq!(shown("kX3_8fRtq.AABrmE8eHkD2vXnq4mTjP5"), "HolderToken(…TjP5)");
        assert_eq!(shown("pin 1234"), "HolderToken(…34)");
        assert_eq!(shown("f00"), "HolderToken(…)");
        assert_eq!(shown("evil token\u{1b}[m"), "HolderToken(…\\u{1b}[m)");
        assert_eq!(shown(""), "HolderToken(…)");
    }
}
