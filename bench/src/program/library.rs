//! The interface to a lock library.

use std::time::Duration;

use anyhow::{Result, bail};

/// The lease for libraries without a default.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The average time between two attempts of peers that poll. Their defaults are 50 to 100 ms. The
/// value is a choice, and not the result of tuning.
pub(crate) const RETRY: Duration = Duration::from_millis(10);

/// A lock library and its connection.
pub(crate) trait Library: Clone + Send + Sync + 'static {
    /// A key that can be locked. Used by one task at a time.
    type Lock: Send + Sync + 'static;
    /// A held lock.
    type Guard: Send + 'static;

    /// Whether the library renews held locks.
    const RENEWS: bool;

    /// The version and the relevant settings.
    fn settings(&self) -> (String, String);

    /// Another client, with connections of its own.
    fn connect(_url: &str) -> impl Future<Output = Result<Self>> + Send {
        async { bail!("unsupported: one client per process") }
    }

    fn lock(&self, key: &str) -> Self::Lock;

    /// Waits without a limit.
    fn acquire(lock: &Self::Lock) -> impl Future<Output = Result<Self::Guard>> + Send;

    fn release(guard: Self::Guard) -> impl Future<Output = Result<()>> + Send;
}
