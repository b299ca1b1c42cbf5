//! Who holds a busy lock.

use std::fmt;
use std::time::Duration;

use crate::client_info::ClientInfo;
use crate::seconds::Seconds;

/// What was last known about the holder of a busy lock.
///
/// # Examples
///
/// ```
/// use lock_runtime::{HolderKind, LockClient, LockError};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let (one, two) = ("memory:holder", "memory:holder");
/// let (one, two) = (LockClient::connect(one).await?, LockClient::connect(two).await?);
/// let _held = one.lock("report").acquire().await?;
/// let busy = two.lock("report").wait(Duration::from_millis(20)).acquire().await;
/// let Err(LockError::Busy { holder, .. }) = busy else { panic!("{busy:?}") };
/// assert_eq!(holder.kind, HolderKind::Elsewhere);
/// let client = holder.client.expect("it says who it is");
/// assert_eq!(client.process, Some(std::process::id()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Where the holder is.
    pub kind: HolderKind,
    /// The rest of the holder's lease, which ends then unless it is renewed, or the rest of the
    /// [period](HolderKind::NextPeriod). `None` if it is not known, and for
    /// [`NoExpiry`](HolderKind::NoExpiry).
    pub lease_left: Option<Duration>,
    /// The longest time for which the holder can have had the lock: since the call began to acquire it. The
    /// call may have waited in the queue of the store first, and other calls of its process may have had the
    /// lock before it. By the clocks of both clients, so it is off by their difference. `None` if it is not
    /// known, or if the other clock is ahead.
    pub held_for: Option<Duration>,
    /// The client that holds the lock. `None` if it was not asked for: for locks of this client, for a wait of
    /// zero, and if the store did not answer that question in time. For permits and readers, one of the
    /// holders.
    pub client: Option<Box<ClientInfo>>,
}

/// Where the holder of a busy lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderKind {
    /// Another task of this process holds the lock through the same client, or is ahead in the
    /// queue.
    ThisProcess,
    /// The waiting task has the lock itself, by another call. If that is a future beside this one, as with `join!`, it ends as
    /// usual. But a task that waits while it keeps the guard waits for itself: for example, an item of a stream holds the lock
    /// while the task polls the stream for the next item, which needs the same lock. It may have permits of the semaphore
    /// for which it waits; other holders may still release theirs.
    ThisTask,
    /// The holder uses another client, in this process or in another one, or the key stays taken
    /// for the `min_hold` of a lock that was released. For a semaphore, one or more other holders.
    Elsewhere,
    /// The key never expires. Only its owner or an operator can free it.
    NoExpiry,
    /// There was a run in this period. The lock itself may be free. See `Periodic`.
    NextPeriod,
}

impl Holder {
    #[doc(hidden)]
    pub fn new(kind: HolderKind) -> Self {
        Self { kind, lease_left: None, held_for: None, client: None }
    }

    /// A holder with this rest of its lease or its period, if it is known.
    #[doc(hidden)]
    pub fn with_left(kind: HolderKind, left: impl Into<Option<Duration>>) -> Self {
        Self { lease_left: left.into(), ..Self::new(kind) }
    }

    /// Whether another client has the lock, so that the store may know which one.
    #[doc(hidden)]
    pub fn is_another_client(&self) -> bool {
        matches!(self.kind, HolderKind::Elsewhere | HolderKind::NoExpiry)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            HolderKind::ThisProcess => {
                f.write_str("another task of this process holds the lock, or is ahead in the queue")
            }
            HolderKind::ThisTask => f.write_str(
                "another call of the same task holds the lock; a task that waits while it keeps that \
                 call's guard waits in vain",
            ),
            HolderKind::Elsewhere => {
                self.write_client(f)?;
                self.lease_left
                    .map_or(Ok(()), |left| {
                        write!(f, ", and its lease ends in {} unless it is renewed", Seconds(left))
                    })
            }
            HolderKind::NoExpiry => {
                self.write_client(f)?;
                f.write_str(
                    "; the key has no expiry and stays until its owner deletes it; if the owner no \
                     longer runs, delete the key by hand",
                )
            }
            HolderKind::NextPeriod => {
                let left = Seconds(self.lease_left.unwrap_or_default());
                write!(f, "there was a run in this period, which ends in {left}")
            }
        }
    }
}

impl Holder {
    fn write_client(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(client) = &self.client else {
            return f.write_str("another client holds the lock");
        };
        write!(f, "held by {client}")?;
        self.held_for.map_or(Ok(()), |held_for| write!(f, " for up to {}", Seconds(held_for)))
    }
}
