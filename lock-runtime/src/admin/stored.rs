//! What the store knows about locks, without asking clients.

use std::time::SystemTime;

use super::{Deletion, LockAdmin, LockScan, LockState};
use crate::clock::unix_time;
use crate::error::LockError;
use crate::holder::{Holder, HolderKind};
use crate::key::LockKey;

impl LockAdmin {
    /// Who has a lock, as the store knows it: also a process that has died, or a client of another library,
    /// which does not say who it is. `None` if nobody has it. For readers and permits, one of the holders;
    /// [`inspect`](Self::inspect) returns all.
    ///
    /// Costs at most two round trips, in etcd three.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered.
    /// * [`LockError::Denied`]: the user may not read the key.
    /// * [`LockError::Config`]: there is no tokio runtime with timers.
    /// * [`LockError::InvalidKey`] and [`LockError::ShutDown`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let admin = LockAdmin::new(&client);
    /// assert_eq!(admin.holder("report").await?, None);
    /// let _guard = client.lock("report").acquire().await?;
    /// let holder = admin.holder("report").await?.expect("held");
    /// assert!(holder.client.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holder(&self, key: impl Into<LockKey>) -> Result<Option<Holder>, LockError> {
        let key = self.full(key.into())?;
        let Some(found) = self.connected.holder(&key).await? else { return Ok(None) };
        // The memory store does not tell its clients apart, which are all in this process.
        let may_be_own = found.client.id.is_none() && found.client.process.is_some();
        let is_here = || !self.connected.engine.held_locks(Some(&key)).is_empty();
        let is_own = found.is_own || (may_be_own && is_here());
        let kind = if is_own { HolderKind::ThisProcess } else { HolderKind::Elsewhere };
        let mut holder = Holder::new(kind);
        found.tell(&mut holder, SystemTime::UNIX_EPOCH + unix_time());
        Ok(Some(holder))
    }

    /// What the key of a lock holds, in any layout: its holders with their tokens, and how many processes wait. `None`
    /// if the key does not exist, or holds something that cannot be a lock.
    ///
    /// Costs one round trip, in etcd two, and one more for every hundred clients among the holders. Needs a server.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered.
    /// * [`LockError::Denied`]: the user may not read the key.
    /// * [`LockError::Config`]: the store has no keys that could be read, or there is no tokio runtime with timers.
    /// * [`LockError::InvalidKey`] and [`LockError::ShutDown`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
    /// if let Some(lock) = LockAdmin::new(&client).inspect("report").await? {
    ///     for holder in lock.holders {
    ///         println!("{} has it for another {:?}", holder.client, holder.lease_left);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, key: impl Into<LockKey>) -> Result<Option<LockState>, LockError> {
        let key = self.full(key.into())?;
        self.connected.inspect(&key).await
    }

    /// Deletes the hold with this token, if it still has the lock: frees the key, and gives it to the next process
    /// that waits. For holders that cannot be stopped in another way, such as those of clients that do not renew.
    ///
    /// A holder that still runs continues until it notices: at once if its client tracks the key, otherwise at its
    /// next renewal. So two bodies may run at the same time. [`revoke`](Self::revoke) is safe.
    ///
    /// Costs at most two round trips. Needs a server.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered. The hold may have been deleted.
    /// * [`LockError::Denied`]: the user may not read the key, or not release locks of its layout.
    /// * [`LockError::Config`]: the token is known [in part](super::HolderToken) only, or is not among the first 1,000
    ///   readers or permits of the key; the store has no keys that could be deleted; or there is no tokio runtime with
    ///   timers.
    /// * [`LockError::InvalidKey`] and [`LockError::ShutDown`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
    /// let admin = LockAdmin::new(&client);
    /// let stuck = admin.inspect("report").await?;
    /// // A live holder that is revoked stops before others get the lock.
    /// let revocation = admin.revoke("report").await?;
    /// if revocation.revoked == 0
    ///     && let Some(holder) = stuck.as_ref().and_then(|lock| lock.holders.first())
    /// {
    ///     // Deletes exactly what was read before.
    ///     admin.delete("report", &holder.token).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delete(
        &self,
        key: impl Into<LockKey>,
        token: impl AsRef<str>,
    ) -> Result<Deletion, LockError> {
        let key = self.full(key.into())?;
        self.connected.delete(&key, token.as_ref()).await
    }

    /// Reads all locks from the store, also those of processes that do not answer, and of other libraries. `pattern`
    /// is a glob (`*`, `?`, `[…]`) for keys without the namespace. Costs no round trip before its first step.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
    /// let mut scan = LockAdmin::new(&client).scan("order:*");
    /// while let Some(locks) = scan.next().await? {
    ///     for lock in locks {
    ///         println!("{} has {} holders", lock.key, lock.holders.len());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn scan(&self, pattern: &str) -> LockScan {
        LockScan::new(&self.connected, pattern)
    }
}
