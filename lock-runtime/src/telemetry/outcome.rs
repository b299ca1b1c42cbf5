//! How calls end.

use crate::error::LockError;

/// How a call for a lock ended. Each call counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquisitionOutcome {
    /// The store granted the lock.
    Granted,
    /// Another call of this client passed the lock on, or shares its hold of a reader. The store was not
    /// asked for it.
    HandedOver,
    /// The lock was busy until the end of the wait.
    Busy,
    /// The store gave no answer.
    Unavailable,
    /// An enclosing body holds the lock.
    Reentrant,
    /// The future was dropped before there was a result.
    Cancelled,
    /// The lock of the enclosing body, which the call would have shared, was lost.
    Lost,
    /// The call would have waited for its own body.
    WouldDeadlock,
    /// The store rejected the credentials, or the user lacks a permission.
    Denied,
    /// The key holds something other than a lock of this kind.
    WrongFormat,
    /// The key is not valid.
    InvalidKey,
    /// An option is not valid.
    Config,
    /// The client was shut down.
    ShutDown,
}

impl AcquisitionOutcome {
    /// All outcomes.
    pub const ALL: [Self; 13] = [
        Self::Granted,
        Self::HandedOver,
        Self::Busy,
        Self::Unavailable,
        Self::Reentrant,
        Self::Cancelled,
        Self::Lost,
        Self::WouldDeadlock,
        Self::Denied,
        Self::WrongFormat,
        Self::InvalidKey,
        Self::Config,
        Self::ShutDown,
    ];

    /// The outcomes of calls whose duration is recorded. They come first in [`ALL`](Self::ALL).
    pub(crate) const TIMED: [Self; 4] =
        [Self::Granted, Self::HandedOver, Self::Busy, Self::Unavailable];

    /// Returns a word for metrics and alerts, which is stable across versions.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::telemetry::AcquisitionOutcome;
    ///
    /// assert_eq!(AcquisitionOutcome::HandedOver.as_str(), "handed_over");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::HandedOver => "handed_over",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::Reentrant => "reentrant",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
            Self::WouldDeadlock => "would_deadlock",
            Self::Denied => "denied",
            Self::WrongFormat => "wrong_format",
            Self::InvalidKey => "invalid_key",
            Self::Config => "config",
            Self::ShutDown => "shut_down",
        }
    }

    pub(crate) fn of(error: &LockError) -> Self {
        match error {
            LockError::Busy { .. } => Self::Busy,
            LockError::Unavailable { .. } => Self::Unavailable,
            LockError::Lost { .. } => Self::Lost,
            LockError::WouldDeadlock { .. } => Self::WouldDeadlock,
            LockError::Denied { .. } => Self::Denied,
            LockError::WrongFormat { .. } => Self::WrongFormat,
            LockError::InvalidKey { .. } => Self::InvalidKey,
            LockError::ShutDown => Self::ShutDown,
            // Also no client, and a second one.
            _ => Self::Config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_numbered_in_their_order() {
        for (number, outcome) in AcquisitionOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            let name = format!("{outcome:?}").to_lowercase();
            assert_eq!(outcome.as_str().replace('_', ""), name);
        }
        let (timed, _) = AcquisitionOutcome::ALL.split_at(AcquisitionOutcome::TIMED.len());
        assert_eq!(timed, AcquisitionOutcome::TIMED);
    }
}
