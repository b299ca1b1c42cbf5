//! The client that annotated functions use when they name none.

use once_cell::sync::OnceCell;

use crate::client::LockClient;
use crate::error::LockError;

static INSTALLED: OnceCell<LockClient> = OnceCell::new();

tokio::task_local! {
    /// Stands in for the installed client in one task.
    static OVERRIDE: LockClient;
}

pub(crate) fn install(client: LockClient) -> Result<(), LockError> {
    INSTALLED.set(client).map_err(|_| LockError::AlreadyInstalled)
}

/// The client that annotated functions use here: that of the enclosing [`with_client`], else the
/// [installed](LockClient::install) one.
///
/// # Errors
///
/// [`LockError::NotConfigured`] if there is neither.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # fn main() -> Result<(), LockError> {
/// assert_eq!(lock_runtime::global().unwrap_err(), LockError::NotConfigured);
/// LockClient::memory().install()?;
/// let client = lock_runtime::global()?;
/// # Ok(())
/// # }
/// ```
pub fn global() -> Result<LockClient, LockError> {
    OVERRIDE
        .try_with(LockClient::clone)
        .ok()
        .or_else(|| INSTALLED.get().cloned())
        .ok_or(LockError::NotConfigured)
}

/// Runs `future` with `client` in the place of the installed one.
///
/// Meant for tests, each of which can then have a client of its own. Tasks that the future spawns
/// do not inherit it.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
///
/// #[distributed_lock(key = "report")]
/// async fn report() -> Result<u32, LockError> {
///     Ok(42)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// assert_eq!(with_client(LockClient::memory(), report()).await?, 42);
/// # Ok(())
/// # }
/// ```
pub async fn with_client<F: Future>(client: LockClient, future: F) -> F::Output {
    OVERRIDE.scope(client, future).await
}
