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
