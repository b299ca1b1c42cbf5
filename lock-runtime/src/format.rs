//! How a lock looks in Redis.

/// How a lock looks in Redis, and so with whose locks it is shared.
///
/// All who use a key have to use one format. A key that holds something else is
/// [`LockError::WrongFormat`](crate::LockError::WrongFormat), and is left alone. Inside one client
/// two formats of a key exclude each other like two locks of one format; a nested lock in another
/// format than the one around it is `WrongFormat`, too.
///
/// An annotated function says it by [`format`](macro@crate::distributed_lock#format).
///
/// A store in memory has no formats and takes any.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, WireFormat};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let url = "memory:";
/// // A service among those that use Redisson.
/// let client = LockClient::builder().url(url).format(WireFormat::Redisson).connect().await?;
/// client.lock("order:42").run(async { /* … */ }).await?;
///
/// // One key that is shared with services in Python.
/// let report = client.lock("report").format(WireFormat::Token);
/// report.run(async { /* … */ }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum WireFormat {
    /// A string with the owner's token, which expires with the lease: `SET key token NX PX lease`,
    /// and compare-and-delete. The default, and the fastest.
    ///
    /// The pattern of Redis's own documentation, and of most clients that keep a lock in one key:
    /// redis-py, node-redlock, redsync, bsm/redislock, rslock, lock4j and Spring among them. The key
    /// has to be spelt as they spell it, such as `lock4j:` and the name. Of their releases nobody here is
    /// told (Spring has a channel of its own), so one of theirs is noticed within a second.
    #[default]
    Token,
    /// A hash with the owner and its count, as of Redisson's plain `RLock`, with its messages: waiters
    /// there are woken by releases here, and the other way round.
    ///
    /// For `RLock` as it comes from `getLock`. Fair, fenced, read-write and multi locks have more
    /// keys, which are not kept up here; spin locks tell nobody of a release. A lock of this process is
    /// held once in Redis, however often it is taken again by the body that holds it.
    Redisson,
    /// A string with the time at which the lock expires, in milliseconds since 1970: the pattern of
    /// `SETNX` and `GETSET` from before Redis could do better. For moving a fleet off it, and for
    /// nothing else.
    ///
    /// Its weaknesses come with it. Others compare the time with their own clock: one that is ahead
    /// takes a lock before its lease is over, and one that is behind gives its own away too early. (What
    /// is done here goes by the server's clock.) One who is too late for an expired lock
    /// overwrites the new holder's time: here that is a lock that is lost, which is known at its next
    /// renewal, and with a fixed lease not before its release. None of the others tells
    /// anybody of a release, and many delete a lock without a look at whose it is. Times in seconds are
    /// refused as another format.
    Timestamp,
}

impl WireFormat {
    /// What a key of this format holds.
    pub(crate) fn value(self) -> &'static str {
        match self {
            Self::Token => "string",
            Self::Redisson => "hash",
            Self::Timestamp => "Unix time in ms",
        }
    }
}
