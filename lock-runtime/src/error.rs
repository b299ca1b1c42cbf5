//! What can go wrong with a lock, one variant per thing that a caller would handle differently.

use std::fmt;
use std::time::Duration;

/// Why a lock was not taken, or not kept.
///
/// Each variant answers one question: somebody else has the lock ([`Busy`](Self::Busy)), nobody
/// could tell ([`Unavailable`](Self::Unavailable)), it was taken and then lost
/// ([`Lost`](Self::Lost)), or the program or its configuration is wrong (all others). What
/// is busy is told from an answer of the store, never from its silence. No message shows a password or the user-info of a URL.
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
    /// The wait ran out while somebody else held the lock. Trying again later is the remedy.
    ///
    /// Told from the last answer of the store, to this call or to one of the same client that waits
    /// for the key as well, or from its last look at the keys that are waited for: at most a second
    /// and two response times old (a response time is a third of the client's watchdog lease, from
    /// 50 ms to 2 s), or a second for each ten thousand keys that the client waits for. While the first request of a client
    /// for a key is under way, others of it are told so for up to a quarter of a response time.
    #[error("lock {key:?} is busy: waited {}, {holder}", Seconds(*waited))]
    #[non_exhaustive]
    Busy {
        /// The key as the store knows it, namespace included.
        key: String,
        /// How long this call waited for it.
        waited: Duration,
        /// What was last known of the holder.
        holder: Holder,
    },

    /// The store did not answer, or refused to work, for as long as the caller would wait.
    ///
    /// From an acquisition: nothing is held, and what a request may have done unseen is being undone.
    /// From a fencing token or a nested call: the lock is still held. From a release: it goes on in
    /// the background.
    #[error("{}", UnavailableText { key, waited: *waited, cause })]
    #[non_exhaustive]
    Unavailable {
        /// The key that was asked for; `None` when connecting failed.
        key: Option<String>,
        /// How long this call tried.
        waited: Duration,
        /// The last thing that the store or the network said.
        cause: String,
    },

    /// The lock was held, and then was not any more.
    ///
    /// A body that `run` or the attribute ran was dropped at that moment. What it had begun may be
    /// done, done in part, or still on its way: find out before you try again, or make it idempotent.
    /// A fencing token refuses what arrives after a successor's writes; it makes no repetition safe.
    #[error("lock {key:?} was lost after {}: {reason}", Seconds(*held_for))]
    #[non_exhaustive]
    Lost {
        /// The key as the store knows it, namespace included.
        key: String,
        /// How it was lost.
        reason: LostReason,
        /// From the grant to the loss.
        held_for: Duration,
    },

    /// The key is empty, too long, or has a placeholder that rendered to nothing.
    #[error("invalid lock key {key:?}: {problem}")]
    #[non_exhaustive]
    InvalidKey {
        /// The key or its template; long ones are cut.
        key: String,
        /// What is wrong with it, naming the placeholder where there is one.
        problem: String,
    },

    /// A key exists in the store and is not what belongs there: no lock of this
    /// [format](crate::WireFormat), or no fencing token. It was not touched.
    ///
    /// [`Token`](crate::WireFormat::Token) keeps a `string`, [`Redisson`](crate::WireFormat::Redisson) a
    /// `hash`, and [`Timestamp`](crate::WireFormat::Timestamp) a `Unix time in ms`. Also of a nested lock
    /// in another format than the one around it.
    #[error(
        "the key {key:?} holds a {found}{}, and not a {expected}{}; it was left alone: use the format \
         of those whose lock it is, or another key or a namespace of its own; delete it only if nobody \
         uses it",
        as_of(found),
        as_of(expected)
    )]
    #[non_exhaustive]
    WrongFormat {
        /// The key as the store knows it, namespace included.
        key: String,
        /// What belongs there.
        expected: &'static str,
        /// What is there, as far as it can be told.
        found: String,
    },

    /// The store refused the credentials, or the user may not do what a lock needs.
    ///
    /// Not retried: only a change of configuration helps.
    #[error(
        "the store denied access: {cause}; check the user, the password and its permissions, of which \
         each `WireFormat` needs others"
    )]
    #[non_exhaustive]
    Denied {
        /// What the store said.
        cause: String,
    },

    /// No client is installed, and none was given.
    #[error(
        "no lock client is installed: call `LockClient::connect(url).await?.install()?` once at \
         start-up, or name one with `client = …` (spawned tasks do not inherit that of `with_client`)"
    )]
    NotConfigured,

    /// A second [`install`](crate::LockClient::install).
    #[error(
        "a lock client is already installed; install one per process, and use `client = …` or \
         `with_client` for others"
    )]
    AlreadyInstalled,

    /// A setting makes no sense, or the call was made where it cannot work.
    #[error("invalid configuration, `{option}`: {problem}")]
    #[non_exhaustive]
    Config {
        /// The setting.
        option: &'static str,
        /// What is wrong with it and what would be right.
        problem: String,
    },

    /// The client was shut down.
    #[error("the lock client is shut down")]
    ShutDown,
}

/// What was last known of the holder of a busy lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A task of this process, through the same client.
    ThisProcess,
    /// The very task that waits has acquired it, and would wait for itself: for instance because an
    /// item of a stream holds the lock while the stream is asked for its next item, which waits for
    /// it.
    ThisTask,
    /// Somebody else, whose lease ends after this time unless it is renewed; `None` if there was no
    /// time to find out.
    Elsewhere(Option<Duration>),
    /// A key that never expires: only its owner, or an operator, can free it.
    NoExpiry,
}

/// Whose locks are such values.
fn as_of(value: &str) -> &'static str {
    [
        ("string", ", as a lock of `WireFormat::Token` is"),
        ("hash", ", as a lock of `WireFormat::Redisson` is"),
        ("Unix time in ms", " (13 digits), as a lock of `WireFormat::Timestamp` is"),
    ]
    .into_iter()
    .find_map(|(kind, whose)| value.starts_with(kind).then_some(whose))
    .unwrap_or_default()
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess => f.write_str(
                "another task of this process has it, or is before this one in the queue",
            ),
            Self::ThisTask => f.write_str(
                "the task that waits has acquired it itself, so unless it has given the guard to \
                 another task it waits for itself",
            ),
            Self::Elsewhere(None) => f.write_str("it is held elsewhere"),
            Self::Elsewhere(Some(left)) => {
                write!(f, "it is held elsewhere and its lease has {} left", Seconds(*left))
            }
            Self::NoExpiry => f.write_str(
                "the holder's key has no expiry, so it is never freed by itself: if its owner is \
                 gone, delete the key by hand",
            ),
        }
    }
}

/// How a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The fixed lease ended.
    LeaseOver,
    /// The lease could not be renewed before it ended: the store was out of reach, or refused.
    RenewalFailed,
    /// The lock was held for as long as it may be, `max_hold`.
    MaxHold,
    /// The key was gone: deleted, evicted, or lost with the store's data.
    Gone,
    /// The key belonged to somebody else.
    Taken,
    /// The client was shut down while the lock was held.
    ShutDown,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseOver => "its fixed lease ended before the work did",
            Self::RenewalFailed => "it could not be renewed in time",
            Self::MaxHold => "it was held for as long as it may be",
            Self::Gone => "its key was gone from the store (deleted, evicted or wiped)",
            Self::Taken => "its key belongs to another holder",
            Self::ShutDown => "the lock client was shut down",
        })
    }
}

/// A duration as people say it: three digits are enough in a message.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0.as_millis()) {
            Ok(0) => f.write_str("less than 1 ms"),
            Ok(milliseconds) => write!(f, "{:?}", Duration::from_millis(milliseconds)),
            Err(_) => f.write_str("an age"),
        }
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
