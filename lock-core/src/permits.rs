//! The permits of a semaphore.

use crate::error::LockError;

/// The largest number of permits that one call can acquire.
pub const MOST_AT_ONCE: u32 = 1_000;

/// A number of the permits of a `Semaphore`, such as 2 of 10.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, Permits, distributed_lock, with_client};
///
/// /// Takes a share of the ten exports that may run at a time.
/// #[distributed_lock(key = "exports", permits = Permits::new(if large { 5 } else { 1 }, 10))]
/// async fn export(large: bool) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// with_client(LockClient::memory(), export(true)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permits {
    count: u32,
    limit: u32,
}

impl Permits {
    /// `count` of the `limit` permits. The count is from 1 to 1,000, and not above the limit; other values
    /// are a [`LockError::Config`] of the call.
    #[must_use]
    pub const fn new(count: u32, limit: u32) -> Self {
        Self { count, limit }
    }

    /// The number of permits.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The number of permits that all holders together have at most.
    #[must_use]
    pub const fn limit(self) -> u32 {
        self.limit
    }

    #[doc(hidden)]
    pub fn check(self) -> Result<Self, LockError> {
        let Self { count, limit } = self;
        let problem = if limit == 0 {
            "a semaphore needs a limit of at least 1".to_owned()
        } else if count == 0 {
            format!("0 of {limit} permits would exclude nobody; acquire at least 1")
        } else if count > limit {
            format!("{count} of {limit} permits can never be acquired; acquire at most {limit}")
        } else if count > MOST_AT_ONCE {
            format!("{count} permits are too many for one call; acquire at most {MOST_AT_ONCE}")
        } else {
            return Ok(self);
        };
        Err(LockError::config("permits", problem))
    }
}

/// One permit of this limit.
impl From<u32> for Permits {
    fn from(limit: u32) -> Self {
        Self::new(1, limit)
    }
}
