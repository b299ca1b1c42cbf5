//! The layouts of locks in Redis.

/// The layout of a lock in Redis, which determines the clients that can share it.
///
/// All clients that use a key must use the same format. If a key holds something else, the call
/// returns [`LockError::WrongFormat`](crate::error::LockError::WrongFormat) and does not change the key.
/// Inside one client, locks on one key exclude each other even in different formats. A nested lock
/// in another format than the enclosing lock returns `WrongFormat` as well.
///
/// For annotated functions, see the option
/// `wire_format`.
///
/// The memory store has no layouts and accepts all formats.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, WireFormat};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let url = "memory:";
/// // This service shares locks with services that use Redisson.
/// let client = LockClient::builder().url(url).wire_format(WireFormat::Redisson).connect().await?;
/// client.lock("order:42").run(async { /* … */ }).await?;
///
/// // It shares one key with services in Python.
/// let report = client.lock("report").wire_format(WireFormat::Token);
/// report.run(async { /* … */ }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum WireFormat {
    /// A string with the owner id, which expires with the lease. It is acquired by
    /// `SET key owner NX PX lease`, and released by compare-and-delete. This is the default and the
    /// fastest format.
    ///
    /// Redis's own documentation describes this pattern, and most clients that keep a lock in one
    /// key use it, such as redis-py, node-redlock, redsync, bsm/redislock, rslock, lock4j and
    /// Spring. The key must include the prefix of the other client, such as `lock4j:`. These
    /// clients do not publish their releases on the channel of this library (Spring has a channel
    /// of its own), so waiters of this library notice their releases within a second.
    #[default]
    Token,
    /// A hash with the owner and its hold count, as in Redisson's plain `RLock`, with the same
    /// messages: a release by either client wakes the waiters of both.
    ///
    /// It is compatible with the `RLock` that `getLock` returns, and with `getMultiLock`, which
    /// acquires several such locks. Fair and fenced locks have further keys, which this format does
    /// not maintain, so they are different locks. A read-write lock of the same name is not safe
    /// together with this format. Spin locks do not publish their releases. The hold count of this
    /// client's locks is always 1, also for nested locks.
    Redisson,
    /// A string with the time at which the lock expires, in milliseconds since 1970, as in the old
    /// pattern of `SETNX` and `GETSET`. Use it only to migrate services away from this pattern.
    ///
    /// The pattern has weaknesses that this client cannot repair:
    ///
    /// * Other clients compare the time with their own clocks. A client whose clock is ahead takes
    ///   a lock before its lease is over. A client whose clock is behind loses its own locks too
    ///   early. This client uses the server's clock.
    /// * A client that is too late for an expired lock overwrites the time of the new holder. If
    ///   the new holder uses this client, its lock is then lost. The next renewal notices the loss,
    ///   or the release if the lease is fixed.
    /// * Other clients do not publish their releases, and many delete a lock without checking its
    ///   owner.
    /// * A renewal is a write, which a server that is out of memory refuses. Held locks are then
    ///   lost, unlike those of the other formats.
    ///
    /// A time in seconds counts as another format.
    Timestamp,
}

impl WireFormat {
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::Token, Self::Redisson, Self::Timestamp];

    /// The position in [`ALL`](Self::ALL).
    #[doc(hidden)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The kind of value that a key in this format holds.
    #[doc(hidden)]
    pub fn value(self) -> &'static str {
        match self {
            Self::Token => "string",
            Self::Redisson => "hash",
            Self::Timestamp => "Unix time in ms",
        }
    }
}
