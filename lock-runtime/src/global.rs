//! The client of annotated functions that do not name one.

use once_cell::sync::OnceCell;

use crate::client::LockClient;
use crate::error::LockError;

static INSTALLED: OnceCell<LockClient> = OnceCell::new();

tokio::task_local! {
    /// Replaces the installed client in one task.
    static OVERRIDE: LockClient;
}

impl LockClient {
    /// Makes this the client of all annotated functions of the process that do not name one. Costs
    /// no round trip.
    ///
    /// An installed client is never dropped. Without a shutdown, locks that are still held when the
    /// process ends stay until their leases end. Therefore call `global()?.shutdown().await` at the
    /// end of `main`, also after an error.
    ///
    /// # Errors
    ///
    /// [`LockError::AlreadyInstalled`] if a client is installed already.
    pub fn install(self) -> Result<(), LockError> {
        INSTALLED.set(self).map_err(|_| LockError::AlreadyInstalled)
    }
}

/// Returns the client that annotated functions use here: the client of the enclosing
/// [`with_client`], or otherwise the [installed](LockClient::install) client. Costs no round trip.
///
/// # Errors
///
/// [`LockError::NotConfigured`] if neither exists.
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

/// Runs `future` with `client` instead of the installed client.
///
/// This is for tests: each test can use a client of its own. Tasks that the future spawns do not
/// inherit the client.
///
/// Cancel safe if `future` is.
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
