//! How long a caller will wait for a lock.

use std::time::Duration;

use crate::error::LockError;

/// The longest wait that can be asked for; beyond it, say [`Wait::Forever`].
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long to wait for a lock: the whole budget of a call, with the store's hiccups inside it.
///
/// # Examples
///
/// ```
/// use lock_runtime::Wait;
/// use std::time::Duration;
///
/// assert_eq!(Wait::from(Duration::from_secs(5)), Wait::For(Duration::from_secs(5)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// At most this long, up to 7 days. Zero: one try.
    For(Duration),
    /// Until the lock is there. The store being down is waited out as well.
    Forever,
}

impl Wait {
    pub(crate) fn bound(self) -> Option<Duration> {
        match self {
            Self::For(bound) => Some(bound),
            Self::Forever => None,
        }
    }

    pub(crate) fn is_once(self) -> bool {
        self.bound().is_some_and(|bound| bound.is_zero())
    }

    pub(crate) fn check(self) -> Result<Self, LockError> {
        match self {
            Self::For(bound) if bound > LONGEST_WAIT => Err(LockError::Config {
                option: "wait",
                problem: format!(
                    "{bound:?} is longer than {LONGEST_WAIT:?}; use `Wait::Forever` to wait \
                     without a bound"
                ),
            }),
            _ => Ok(self),
        }
    }
}

impl From<Duration> for Wait {
    fn from(bound: Duration) -> Self {
        Self::For(bound)
    }
}
