//! Lock errors, for unit tests of how a program treats them.
//!
//! # Examples
//!
//! ```
//! use lock_runtime::{LockError, LostReason, testing::errors};
//!
//! fn status(error: &LockError) -> u16 {
//!     match error {
//!         LockError::Busy { .. } => 409,
//!         LockError::Unavailable { .. } => 503,
//!         _ => 500,
//!     }
//! }
//!
//! assert_eq!(status(&errors::busy("order:7")), 409);
//! assert_eq!(status(&errors::unavailable("order:7", "the server is down")), 503);
//! // Some of the work may have been done.
//! assert_eq!(status(&errors::lost("order:7", LostReason::RenewalFailed)), 500);
//! ```

use std::time::Duration;

use crate::error::{LockError, LostReason};
use crate::holder::{Holder, HolderKind};

/// The time that the errors name.
const TIME: Duration = Duration::from_secs(1);

/// [`LockError::Busy`], with another client as the holder.
#[must_use]
pub fn busy(key: impl Into<String>) -> LockError {
    let holder = Holder::new(HolderKind::Elsewhere);
    LockError::busy(key.into(), TIME, holder)
}

/// [`LockError::Unavailable`].
#[must_use]
pub fn unavailable(key: impl Into<String>, cause: impl Into<String>) -> LockError {
    LockError::unavailable(Some(key.into()), TIME, cause)
}

/// [`LockError::Lost`].
#[must_use]
pub fn lost(key: impl Into<String>, reason: LostReason) -> LockError {
    LockError::lost(key.into(), reason, TIME)
}

/// [`LockError::InvalidKey`].
#[must_use]
pub fn invalid_key(key: impl Into<String>, problem: impl Into<String>) -> LockError {
    LockError::invalid_key(key.into(), problem)
}

/// [`LockError::WrongFormat`], of a key that holds this kind of value instead of a lock.
#[must_use]
pub fn wrong_format(key: impl Into<String>, found: impl Into<String>) -> LockError {
    LockError::wrong_format(key.into(), "string", found.into())
}

/// [`LockError::WouldDeadlock`].
#[must_use]
pub fn would_deadlock(key: impl Into<String>) -> LockError {
    LockError::would_deadlock(key)
}

/// [`LockError::Denied`].
#[must_use]
pub fn denied(cause: impl Into<String>) -> LockError {
    LockError::denied(cause)
}

/// [`LockError::Config`].
#[must_use]
pub fn config(option: &'static str, problem: impl Into<String>) -> LockError {
    LockError::config(option, problem)
}
