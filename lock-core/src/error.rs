//! Lock errors, with one variant for each case that callers handle differently.

use std::fmt;
use std::time::Duration;

use crate::holder::Holder;
use crate::seconds::Seconds;

/// Why a lock was not acquired, or not kept.
///
/// The lock has another holder ([`Busy`](Self::Busy)), the store gave no answer
/// ([`Unavailable`](Self::Unavailable)), the lock was acquired and then lost
/// ([`Lost`](Self::Lost)), the client was shut down ([`ShutDown`](Self::ShutDown)), or the program
/// or its configuration is wrong (all other variants). `Busy` follows from an answer of the store,
/// and never from a missing one, with one brief exception that its documentation states. No message
/// shows a password or the user name in a URL.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let _held = client.lock("report").acquire().await?;
/// match client.lock("report").wait(Duration::from_millis(20)).acquire().await {
///     Err(LockError::Busy { key, .. }) => assert_eq!(key, "report"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The wait ended while the lock had another holder. Try again later. Or there was a run in this
    /// period ([`HolderKind::NextPeriod`](crate::holder::HolderKind::NextPeriod)).
    ///
    /// Either the client holds the lock itself, or the store has answered that another owner holds
    /// it: to this call, to another call of the client for the key, or to the client's last check
    /// of its waiters' keys. That answer is at most one second and two response timeouts old (a
    /// response timeout is a third of the client's lease, from 50 ms to 2 s). With 64 or more
    /// processes before it in the queue, it may be half a second older. With more than ten thousand
    /// keys to wait for, it may be one second old for each ten thousand keys.
    ///
    /// If another client holds the lock, the store is then asked who that is. This takes at most as long as the
    /// wait, but at least 250 ms, and at most one response timeout. For `try_acquire`, it is not asked.
    ///
    /// There is one brief exception. While the client's first request for a key is in flight, or a
    /// request that releases the client's own lock or renews it for the next call, other calls for
    /// the key get `Busy` if their wait ends within a quarter of a response timeout, or within half of one after a wait of
    /// zero. After that, they get [`Unavailable`](Self::Unavailable).
    #[error("lock {key:?} is busy: waited {}; {holder}", Seconds(*waited))]
    #[non_exhaustive]
    Busy {
        /// The key in the store, including the namespace.
        key: String,
        /// How long this call waited for it.
        waited: Duration,
        /// The last known state of the holder.
        holder: Holder,
    },

    /// The store did not answer, rejected all requests, or granted no locks because of a
    /// quarantine (`LockClientBuilder::quarantine`), for the whole wait.
    ///
    /// When an acquisition fails with this error, nothing is held, and the effects of unanswered
    /// requests are undone in the background. When a request for a fencing token or a nested call
    /// fails, the enclosing lock is still held. When a release fails, it continues in the
    /// background.
    #[error("{}", UnavailableText { key, waited: *waited, cause })]
    #[non_exhaustive]
    Unavailable {
        /// The key of the call, including the namespace; `None` for calls without a key, such as
        /// `connect`.
        key: Option<String>,
        /// The time since the call began.
        waited: Duration,
        /// The last error of the store, the network or the client.
        cause: String,
    },

    /// The lock was acquired, and then lost.
    ///
    /// The body of `Lock::run` or of an annotated function was dropped when the loss
    /// was noticed. Its last operations may be complete, partly complete, or still in flight: check
    /// their outcome before you retry, or make them idempotent. With a fencing token, a resource
    /// can reject writes that arrive after those of a later holder. A fencing token does not make a
    /// repetition safe.
    #[error("lock {key:?} was lost after {}: {reason}", Seconds(*held_for))]
    #[non_exhaustive]
    Lost {
        /// The key in the store, including the namespace.
        key: String,
        /// Why the lock was lost.
        reason: LostReason,
        /// The time from the request that acquired the lock, or from the hand-off, until the loss
        /// was noticed.
        held_for: Duration,
    },

    /// The key is empty, longer than 1,024 bytes, or reserved, or the value of a placeholder is
    /// empty or cannot be formatted.
    #[error("invalid lock key {key:?}: {problem}")]
    #[non_exhaustive]
    InvalidKey {
        /// The key or its template, truncated if it is long.
        key: String,
        /// The problem, with the name of the placeholder if there is one.
        problem: String,
    },

    /// A key in the store holds something other than a lock of this [format](crate::wire_format::WireFormat), or
    /// other than the fencing token, or the record of a leader or of a run, that belongs there. The key was
    /// not changed.
    ///
    /// A lock is a `string` in [`Token`](crate::wire_format::WireFormat::Token), a `hash` in
    /// [`Redisson`](crate::wire_format::WireFormat::Redisson) and a `Unix time in ms` in
    /// [`Timestamp`](crate::wire_format::WireFormat::Timestamp). A lock of another kind is named, such as a
    /// `read-write lock`, a `semaphore` or a `Redisson read-write lock`. A nested lock in another format than
    /// the enclosing lock fails with this error as well.
    #[error(
        "the key {key:?} holds a {found}{} instead of a {expected}{}, and was not changed; use \
         the wire format of the other clients, another key, or a separate namespace; delete the \
         key only if no client uses it",
        as_of(found),
        as_of(expected)
    )]
    #[non_exhaustive]
    WrongFormat {
        /// The key in the store, including the namespace.
        key: String,
        /// The kind of value that the key should hold.
        expected: &'static str,
        /// The kind of value that the key holds, as far as it is known.
        found: String,
    },

    /// The body of a reader has called a writer of the same
    /// read-write lock (`ReadWriteLock`), which would wait for that reader; or the body of a holder
    /// of permits (`Semaphore`) has called for more of them. Nothing was requested.
    #[error(
        "lock {key:?}: the call would wait for its own enclosing body; release the lock of that body \
         first, upgrade it if it is a reader (`try_upgrade`), or acquire all permits at once"
    )]
    #[non_exhaustive]
    WouldDeadlock {
        /// The key in the store, including the namespace.
        key: String,
    },

    /// The store rejected the credentials or the client certificate, it requires a client
    /// certificate, or the user lacks a permission that locks need.
    ///
    /// Calls do not retry after this error, because only a change of the configuration helps.
    #[error(
        "the store denied access: {cause}; check the user, its password or client certificate, and \
         its permissions, which differ for each `WireFormat`"
    )]
    #[non_exhaustive]
    Denied {
        /// The error of the store.
        cause: String,
    },

    /// No client is installed, and the call does not name one.
    #[error(
        "no lock client is installed: call `LockClient::connect(url).await?.install()?` once at \
         start-up, or set the option `client = …` (spawned tasks do not inherit the client of \
         `with_client`)"
    )]
    NotConfigured,

    /// `LockClient::install` was called a second time.
    #[error(
        "a lock client is already installed; install one client per process, and use \
         `client = …` or `with_client` for other clients"
    )]
    AlreadyInstalled,

    /// A setting is invalid, or the call was made where it cannot work.
    #[error("invalid configuration (`{option}`): {problem}")]
    #[non_exhaustive]
    Config {
        /// The name of the setting.
        option: &'static str,
        /// The problem, and in most cases the valid values.
        problem: String,
    },

    /// The client was shut down.
    #[error("the lock client is shut down")]
    ShutDown,
}

impl LockError {
    /// Whether the same call may succeed later, without a change to the program or its
    /// configuration. True for [`Busy`](Self::Busy), [`Unavailable`](Self::Unavailable) and
    /// [`Lost`](Self::Lost).
    ///
    /// Of these, only `Lost` means that the body may have run, completely or in part.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let lock = LockClient::memory().lock("report").wait(Duration::ZERO);
    /// let _held = lock.acquire().await?;
    /// assert!(lock.acquire().await.is_err_and(|busy| busy.is_transient()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Unavailable { .. } | Self::Lost { .. } => true,
            Self::InvalidKey { .. }
            | Self::WrongFormat { .. }
            | Self::WouldDeadlock { .. }
            | Self::Denied { .. }
            | Self::NotConfigured
            | Self::AlreadyInstalled
            | Self::Config { .. }
            | Self::ShutDown => false,
        }
    }
}

/// The variants, each with its fields in their order.
impl LockError {
    #[doc(hidden)]
    pub fn busy(key: impl Into<String>, waited: Duration, holder: Holder) -> Self {
        Self::Busy { key: key.into(), waited, holder }
    }

    #[doc(hidden)]
    pub fn unavailable(key: Option<String>, waited: Duration, cause: impl Into<String>) -> Self {
        Self::Unavailable { key, waited, cause: cause.into() }
    }

    #[doc(hidden)]
    pub fn lost(key: impl Into<String>, reason: LostReason, held_for: Duration) -> Self {
        Self::Lost { key: key.into(), reason, held_for }
    }

    #[doc(hidden)]
    pub fn invalid_key(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidKey { key: key.into(), problem: problem.into() }
    }

    #[doc(hidden)]
    pub fn wrong_format(
        key: impl Into<String>,
        expected: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self::WrongFormat { key: key.into(), expected, found: found.into() }
    }

    #[doc(hidden)]
    pub fn would_deadlock(key: impl Into<String>) -> Self {
        Self::WouldDeadlock { key: key.into() }
    }

    #[doc(hidden)]
    pub fn denied(cause: impl Into<String>) -> Self {
        Self::Denied { cause: cause.into() }
    }

    #[doc(hidden)]
    pub fn config(option: &'static str, problem: impl Into<String>) -> Self {
        Self::Config { option, problem: problem.into() }
    }
}

/// The wire format whose locks are values of this kind, for the message.
fn as_of(value: &str) -> &'static str {
    [
        ("string", " (as in `WireFormat::Token`)"),
        ("hash", " (as in `WireFormat::Redisson`)"),
        ("Unix time in ms", " (13 digits, as in `WireFormat::Timestamp`)"),
    ]
    .into_iter()
    .find_map(|(kind, format)| value.starts_with(kind).then_some(format))
    .unwrap_or_default()
}

/// Why a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The fixed lease ended.
    LeaseOver,
    /// The lease was not renewed before it ended: the store gave no answer, or rejected the
    /// renewal, or the client's background thread has ended.
    RenewalFailed,
    /// The lock was held for `max_hold`.
    MaxHold,
    /// The key no longer existed: it was deleted or evicted, or the store had lost its data.
    Gone,
    /// The key had another owner.
    Taken,
    /// Another server took over the keys of the store, or the server has restarted, and did not have this lock: the key no
    /// longer existed there, or had another owner.
    Failover,
    /// The client was shut down while the lock was held.
    ShutDown,
    /// An operator has asked the holder to give the lock up, and its client is
    /// revocable (`LockClientBuilder::revocable`).
    Revoked,
}

impl LostReason {
    /// All reasons, in the order of their declaration.
    #[doc(hidden)]
    pub const ALL: [Self; 8] = [
        Self::LeaseOver,
        Self::RenewalFailed,
        Self::MaxHold,
        Self::Gone,
        Self::Taken,
        Self::Failover,
        Self::ShutDown,
        Self::Revoked,
    ];

    /// Returns a word for logs, metrics and alerts, which is stable across versions. It is the
    /// field `reason` of the log events about lost locks.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(lock_runtime::LostReason::RenewalFailed.as_str(), "renewal_failed");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseOver => "lease_over",
            Self::RenewalFailed => "renewal_failed",
            Self::MaxHold => "max_hold",
            Self::Gone => "gone",
            Self::Taken => "taken",
            Self::Failover => "failover",
            Self::ShutDown => "shut_down",
            Self::Revoked => "revoked",
        }
    }

    /// Whether the key is known to be free, or to have another owner.
    #[doc(hidden)]
    pub fn is_over_in_store(self) -> bool {
        matches!(self, Self::Gone | Self::Taken | Self::Failover)
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseOver => "its fixed lease ended before it was released",
            Self::RenewalFailed => "it could not be renewed in time",
            Self::MaxHold => "its `max_hold` has passed",
            Self::Gone => "its key no longer exists in the store (deleted, evicted or lost)",
            Self::Taken => "its key has another owner",
            Self::Failover => "the server did not have it after a failover or a restart",
            Self::ShutDown => "the lock client was shut down",
            Self::Revoked => "it was revoked by an operator",
        })
    }
}

struct UnavailableText<'a> {
    key: &'a Option<String>,
    waited: Duration,
    cause: &'a str,
}

impl fmt::Display for UnavailableText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            Some(key) => write!(f, "lock {key:?} is unavailable: ")?,
            None => f.write_str("the lock store is unavailable: ")?,
        }
        write!(f, "tried for {}; {}", Seconds(self.waited), self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_reasons_are_their_names() {
        let names = LostReason::ALL.map(|reason| format!("{reason:?}").to_lowercase());
        assert_eq!(names, LostReason::ALL.map(|reason| reason.as_str().replace('_', "")));
    }
}
