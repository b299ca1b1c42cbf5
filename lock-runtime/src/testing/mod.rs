//! Tests of programs that use locks: a client on tokio's clock, scripted outcomes, locks of other processes, and a
//! record of what was locked. Feature `testing`.
//!
//! With `#[tokio::test(start_paused = true)]`, leases end, waits pass and `max_hold` acts as in production, and the
//! test takes milliseconds:
//!
//! ```
//! use lock_runtime::{LockClient, LockError, LostReason, distributed_lock, with_client};
//! use std::time::Duration;
//! use tokio::time::sleep;
//!
//! #[distributed_lock(key = "import:<id>", lease = "5s")]
//! async fn import(id: u32, work: Duration) -> Result<(), LockError> {
//!     sleep(work).await;
//!     Ok(())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
//! let locks = LockClient::testing();
//! let lost = with_client(locks.client(), import(7, Duration::from_secs(20))).await;
//! assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::LeaseOver, .. })));
//!
//! locks.when("import:<id>").busy();
//! let busy = with_client(locks.client(), import(8, Duration::ZERO)).await;
//! assert!(matches!(busy, Err(LockError::Busy { .. })));
//! # });
//! ```

// A lock of somebody else stays when its handle is dropped.
#![allow(clippy::must_use_candidate)]

pub mod errors;
mod other;
mod pattern;
mod record;
mod script;
mod store;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub use self::other::OtherHolder;
pub use self::record::{Taken, TakenEnd};
use self::script::CallScript;
pub use self::script::{OutcomeChoice, ScriptedOutcome};
use self::store::TestBackend;
use crate::builder::LockClientBuilder;
use crate::client::LockClient;
use crate::clock;
use crate::error::LockError;
use crate::key;
pub use crate::reentrancy::pretend_locked;

impl LockClient {
    /// Returns a client for tests, with the default settings. Its locks are in memory, and its time is that of
    /// tokio, which a test may have paused. See the module [`testing`](crate::testing).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    #[must_use]
    pub fn testing() -> TestLocks {
        match Self::builder().testing() {
            Ok(locks) => locks,
            Err(error) => panic!("`LockClient::testing` needs a tokio runtime: {error}"),
        }
    }
}

impl LockClientBuilder {
    /// Returns a client for tests with these settings, without its URL. See the module
    /// [`testing`](crate::testing).
    ///
    /// # Errors
    ///
    /// [`LockError::Config`]: a setting is invalid, or there is no tokio runtime with timers here.
    pub fn testing(self) -> Result<TestLocks, LockError> {
        clock::follow_tokio();
        let backend = TestBackend::new();
        let script = CallScript::new(&backend, self.namespace_of_keys());
        let client = self.start_with(Arc::clone(&backend) as _, Some(Arc::clone(&script) as _))?;
        script.started(client.connected().defaults.lease);
        Ok(TestLocks { inner: Arc::new(TestState { client, backend, script }) })
    }
}

/// The lease of a lock that somebody else holds.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A client for tests, and what its tests need besides. Clones share everything.
///
/// When the last clone is dropped, it panics if an outcome with [`times`](ScriptedOutcome::times) was met less often,
/// and if locks were taken in both orders, unless the thread is panicking already.
#[derive(Clone)]
pub struct TestLocks {
    inner: Arc<TestState>,
}

struct TestState {
    client: LockClient,
    backend: Arc<TestBackend>,
    script: Arc<CallScript>,
}

impl TestLocks {
    /// The client, to install it, or to pass it to [`with_client`](crate::with_client).
    #[must_use]
    pub fn client(&self) -> LockClient {
        self.inner.client.clone()
    }

    /// Scripts what happens to calls for these locks: a key without the namespace, in which `*` stands for any
    /// text, or a template, such as `order:<id>`. The test fails at its end if no call was for one of them, unless the outcome is
    /// [optional](ScriptedOutcome::optional).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let locks = LockClient::testing();
    /// locks.when("order:*").unavailable("the server is down").times(1);
    /// let first = locks.lock("order:7").wait(std::time::Duration::ZERO).acquire().await;
    /// assert!(matches!(first, Err(LockError::Unavailable { .. })));
    /// locks.lock("order:7").acquire().await.expect("the second call");
    /// # }
    /// ```
    pub fn when(&self, locks: &str) -> OutcomeChoice<'_> {
        OutcomeChoice::new(&self.inner.script, locks)
    }

    /// Lets somebody else hold this exclusive lock until the test releases it, or for one day of tokio's time.
    ///
    /// # Panics
    ///
    /// If the lock is held, or the key is invalid.
    #[track_caller]
    pub fn elsewhere(&self, key: &str) -> OtherHolder {
        self.elsewhere_for(key, DAY)
    }

    /// The same with this lease, as if the other process had been killed: nobody renews it, unless the test does.
    ///
    /// # Panics
    ///
    /// As for [`elsewhere`](Self::elsewhere).
    #[track_caller]
    pub fn elsewhere_for(&self, key: &str, lease: Duration) -> OtherHolder {
        let holder = OtherHolder::new(Arc::clone(&self.inner.backend), self.full(key));
        assert!(holder.acquire(lease), "the lock {key:?} is held");
        holder
    }

    /// Gives an exclusive lock to somebody else by force. Its holder notices at its next renewal, and loses the lock as
    /// [`Taken`](crate::LostReason::Taken).
    ///
    /// # Panics
    ///
    /// If the key is invalid.
    #[track_caller]
    pub fn steal(&self, key: &str) -> OtherHolder {
        let full = self.full(key);
        self.inner.backend.delete(Some(&full));
        self.elsewhere(key)
    }

    /// Deletes all locks from the store, as a server does that restarts without its data. Their holders notice
    /// at their next renewals, and lose them as [`Gone`](crate::LostReason::Gone).
    pub fn wipe(&self) {
        self.inner.backend.delete(None);
    }

    /// What was locked so far, in the order of the grants. Nested calls that share a hold count once.
    #[must_use]
    pub fn taken(&self) -> Vec<Taken> {
        self.inner.script.record().taken()
    }

    /// Asserts that the lock was taken. `key` has no namespace.
    ///
    /// # Panics
    ///
    /// If it was not.
    #[track_caller]
    pub fn assert_taken(&self, key: &str) {
        let (taken, full) = (self.taken(), self.full(key));
        let taken: Vec<&str> = taken.iter().map(|taken| &*taken.key).collect();
        assert!(taken.contains(&&*full), "{full:?} was not taken; taken were {taken:?}");
    }

    /// Asserts that these locks were taken in this order. Others may have been taken in between.
    ///
    /// # Panics
    ///
    /// If they were not.
    #[track_caller]
    pub fn assert_taken_in_order(&self, keys: &[&str]) {
        let taken = self.taken();
        let taken: Vec<&str> = taken.iter().map(|taken| &*taken.key).collect();
        let (mut names, mut after) = (taken.iter(), String::new());
        for key in keys {
            let full = self.full(key);
            let is_taken = names.any(|name| **name == full);
            assert!(
                is_taken,
                "{full:?} was not taken{after}; taken were, in this order, {taken:?}"
            );
            after = format!(" after {full:?}");
        }
    }

    /// The key in the store.
    #[track_caller]
    fn full(&self, key: &str) -> String {
        match key::full(&self.inner.client.connected().namespace, key) {
            Ok(key) => key.into_owned(),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Deref for TestLocks {
    type Target = LockClient;

    fn deref(&self) -> &LockClient {
        &self.inner.client
    }
}

impl Drop for TestState {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            if let Some(orders) = &self.client.connected().orders {
                orders.verify();
            }
            self.script.verify();
        }
    }
}

impl fmt::Debug for TestLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("TestLocks");
        shown.field("client", &self.inner.client).field("taken", &self.taken()).finish()
    }
}
