//! A lock library, as far as the benchmark uses it.

use std::time::Duration;

use anyhow::Result;

/// The lease of libraries that have no default.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// How long the peers that poll sleep between two tries, on average. Their defaults are 50 to 100 ms.
/// Chosen, not found by trying others.
pub(crate) const RETRY: Duration = Duration::from_millis(10);

/// A lock library with its connection.
pub(crate) trait Library: Clone + Send + Sync + 'static {
    /// A key that can be locked; used by one task at a time.
    type Lock: Send + Sync + 'static;
    /// A lock that is held.
    type Guard: Send + 'static;

    /// Whether it renews the locks that are held.
    const RENEWS: bool;

    /// The version, and the settings that matter, in words.
    fn settings(&self) -> (String, String);

    fn lock(&self, key: &str) -> Self::Lock;

    /// Waits for as long as it takes.
    fn acquire(lock: &Self::Lock) -> impl Future<Output = Result<Self::Guard>> + Send;

    fn release(guard: Self::Guard) -> impl Future<Output = Result<()>> + Send;
}
