//! The modes of a read-write lock.

/// The mode of a read-write lock: any number of readers, or one writer.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, LockMode, distributed_lock, with_client};
///
/// /// A reader unless it is told to change something.
/// #[distributed_lock(key = "catalog", mode = if change { LockMode::Write } else { LockMode::Read })]
/// async fn catalog(change: bool) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// with_client(LockClient::memory(), catalog(true)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Excludes writers, and no other readers.
    Read,
    /// Excludes readers and other writers.
    Write,
}

impl LockMode {
    /// Returns a word for tables and logs, which is stable across versions.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::LockMode;
    ///
    /// assert_eq!((LockMode::Read.as_str(), LockMode::Write.as_str()), ("read", "write"));
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}
