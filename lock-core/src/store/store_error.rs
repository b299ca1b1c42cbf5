//! Why a store gave no definite answer.

use std::time::Duration;

use crate::error::LockError;

/// Why a store has not done what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// The request had no effect, and another attempt may succeed. For example, the server is
    /// loading its data or out of memory, or the connection was refused.
    Refused(String),
    /// The request may have taken effect, or may still do so: there was no answer, or the
    /// connection broke.
    Unknown(String),
    /// The request had no effect, and another attempt would not succeed either.
    Denied(String),
    /// The request had no effect, and none will have until this option or the program is changed.
    Config {
        /// The name of the option.
        option: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The key holds something other than such a lock.
    WrongFormat {
        /// The key.
        key: String,
        /// The kind of value that was expected.
        expected: &'static str,
        /// The kind of value that was found.
        found: String,
    },
}

impl StoreError {
    /// The error of a call that needs what the store does not have. `shown` is [what it is called](super::contract::LockStore::shown).
    pub fn lacking(shown: &str, option: &'static str, what: &str) -> Self {
        Self::Config { option, problem: format!("{shown} has no {what}") }
    }

    /// Whether the request may have taken effect.
    #[doc(hidden)]
    pub fn may_have_run(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

impl StoreError {
    /// The error of a call about `key` that got this answer.
    #[doc(hidden)]
    pub fn about(self, key: &str) -> LockError {
        self.into_error(Some(key.to_owned()), Duration::ZERO)
    }

    /// The error of a call about no key that got this answer after `waited`.
    #[doc(hidden)]
    pub fn without_key(self, waited: Duration) -> LockError {
        self.into_error(None, waited)
    }

    /// The error of a call about `key`, if it is about one, that got this answer after `waited`.
    #[doc(hidden)]
    pub fn of_call(self, key: Option<&str>, waited: Duration) -> LockError {
        self.into_error(key.map(ToOwned::to_owned), waited)
    }

    fn into_error(self, key: Option<String>, waited: Duration) -> LockError {
        match self {
            Self::Refused(cause) | Self::Unknown(cause) => {
                LockError::unavailable(key, waited, cause)
            }
            Self::Denied(cause) => LockError::denied(cause),
            Self::Config { option, problem } => LockError::config(option, problem),
            Self::WrongFormat { key, expected, found } => {
                LockError::wrong_format(key, expected, found)
            }
        }
    }
}

/// An error of a library, followed by its causes. None of them contains a password.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries repeat the text of the cause.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// The error of a call about no key.
impl From<StoreError> for LockError {
    fn from(error: StoreError) -> Self {
        error.without_key(Duration::ZERO)
    }
}

impl std::error::Error for StoreError {}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(cause)
            | Self::Unknown(cause)
            | Self::Denied(cause)
            | Self::Config { problem: cause, .. } => f.write_str(cause),
            Self::WrongFormat { key, expected, found } => {
                write!(f, "the key {key:?} holds a {found} instead of a {expected}")
            }
        }
    }
}
