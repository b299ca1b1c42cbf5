//! Re-entrancy: the chain of holds that enclose the running code.
//!
//! The holds around a body are in a task-local chain. Acquiring a key that an enclosing hold
//! already has shares that hold. The chain of a branch of a body contains the holds that enclose
//! the branch, but not those of other branches, so two branches exclude each other. A spawned task
//! begins without a chain.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::task;

use crate::branches::{BranchQueue, Branches};
use crate::clock::BootInstant;
use crate::engine::Engine;
use crate::engine::handoff::Hold;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::key;
use crate::store::contract::{LockStore, Mode, is_same};
use crate::sync::{Mutex, lock};
use crate::telemetry::AcquiredBy;

tokio::task_local! {
    /// The innermost body around the running code.
    static ENCLOSING: Arc<Frame>;
}

/// The holds of one body.
#[derive(Debug)]
pub(crate) struct Frame {
    engine: Arc<Engine>,
    hold: Hold,
    /// The other holds of a body that has several.
    others: Box<[Hold]>,
    /// The task that is polling the body. The body's future may move between tasks. A task that the
    /// body polls, such as one in a `LocalSet`, is not part of the body.
    task: Mutex<Option<task::Id>>,
    /// The branches of the body that exclude each other.
    branches: Branches,
    /// The number of bodies inside that share the hold and wait. One that is polled is around the running code.
    waiting: AtomicUsize,
    /// Whether branches beside each other were reported.
    is_reported: AtomicBool,
    outer: Option<Arc<Frame>>,
}

impl Frame {
    fn new(guard: &LockGuard, others: Box<[Hold]>, outer: Option<Arc<Self>>) -> Arc<Self> {
        let (engine, hold) = (Arc::clone(guard.engine()), guard.hold().clone());
        let (task, branches) = (Mutex::default(), Branches::default());
        let (waiting, is_reported) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { engine, hold, others, task, branches, waiting, is_reported, outer })
    }

    fn holds(&self) -> impl Iterator<Item = &Hold> {
        std::iter::once(&self.hold).chain(&self.others)
    }

    /// The hold of this key.
    fn hold_of(&self, key: &str) -> Option<&Hold> {
        self.holds().find(|hold| **hold.key() == *key)
    }

    fn task(&self) -> Option<task::Id> {
        *lock(&self.task)
    }

    /// Another body inside is about to share the hold. Reports once that they do not exclude each other if one is beside it.
    fn report_branches(&self) {
        let are_beside = self.waiting.load(Ordering::Relaxed) > 0 && self.others.is_empty();
        if are_beside && !self.is_reported.swap(true, Ordering::Relaxed) {
            let key = &**self.hold.key();
            tracing::debug!(
                key,
                "branches of one body share its lock and run beside each other; `Lock::exclusive_within` excludes them"
            );
        }
    }
}

/// A body inside its chain.
struct ScopedBody<F> {
    body: F,
    is_reentrant: bool,
    /// Whether it shares the hold, and waits.
    waits: bool,
}

impl<F> ScopedBody<F> {
    fn set_waits(&mut self, waits: bool) {
        let waited = std::mem::replace(&mut self.waits, waits);
        // The chain is also there while this is dropped.
        let _ = ENCLOSING.try_with(|frame| match (waited, waits) {
            (false, true) => frame.waiting.fetch_add(1, Ordering::Relaxed),
            (true, false) => frame.waiting.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        });
    }
}

impl<F: Future + Unpin> Future for ScopedBody<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if !this.is_reentrant {
            let _ = ENCLOSING.try_with(|frame| *lock(&frame.task) = task::try_id());
            return Pin::new(&mut this.body).poll(cx);
        }
        this.set_waits(false);
        let polled = Pin::new(&mut this.body).poll(cx);
        this.set_waits(polled.is_pending());
        polled
    }
}

impl<F> Drop for ScopedBody<F> {
    fn drop(&mut self) {
        if self.waits {
            self.set_waits(false);
        }
    }
}

/// The chain inside a body.
pub(crate) struct Scope {
    frame: Arc<Frame>,
    is_reentrant: bool,
}

impl Scope {
    /// The chain for a body under `guard`: the current one if the guard shares an enclosing hold, unless the body is a branch
    /// that has its turn, whose own branches have turns of their own.
    pub(crate) fn new(guard: &LockGuard) -> Self {
        let is_reentrant = guard.is_reentrant() && !guard.is_in_turn();
        let outer = ENCLOSING.try_with(Arc::clone).ok();
        let frame = match outer {
            Some(outer) if is_reentrant => outer,
            outer => Frame::new(guard, Box::default(), outer),
        };
        Self { frame, is_reentrant }
    }

    /// The chain for a body under several guards: the current one if all of them share enclosing
    /// holds. `None` without a guard.
    pub(crate) fn of_several(guards: &[LockGuard]) -> Option<Self> {
        let mut own = guards.iter().filter(|guard| !guard.is_reentrant());
        let outer = ENCLOSING.try_with(Arc::clone).ok();
        let Some(first) = own.next() else {
            let shared = outer.map(|frame| Self { frame, is_reentrant: true });
            return shared.or_else(|| guards.first().map(Self::new));
        };
        let others = own.map(|guard| guard.hold().clone()).collect();
        Some(Self { frame: Frame::new(first, others, outer), is_reentrant: false })
    }

    /// Runs `body` inside the chain.
    pub(crate) fn enclose<F: Future + Unpin>(self, body: F) -> impl Future<Output = F::Output> {
        let Self { frame, is_reentrant } = self;
        ENCLOSING.scope(frame, ScopedBody { body, is_reentrant, waits: false })
    }
}

/// The keys of the locks that enclose the running code, from the innermost one outwards: without the namespaces of
/// their clients.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let lock = LockClient::memory().lock("order:7");
/// let inside = lock.run(async { lock_runtime::held_keys() }).await?;
/// assert_eq!((inside, lock_runtime::held_keys()), (vec!["order:7".to_owned()], vec![]));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn held_keys() -> Vec<String> {
    let mut keys = Vec::new();
    #[cfg(feature = "testing")]
    let _ = PRETENDED.try_with(|pretended| keys.extend(pretended.iter().cloned()));
    let now = BootInstant::now();
    for_each_enclosing(|frame| {
        let namespace = frame.engine.metrics().namespace();
        for hold in frame.holds().filter(|hold| hold.is_valid(now)) {
            keys.push(key::without_namespace(namespace, hold.key()).to_owned());
        }
    });
    keys
}

/// Panics unless the running code is inside a body that holds the lock, or any lock.
#[doc(hidden)]
#[track_caller]
pub fn assert_held(key: Option<&str>) {
    let held = held_keys();
    match key {
        None => assert!(!held.is_empty(), "no lock is held here"),
        Some(key) => assert!(
            held.iter().any(|held| held == key),
            "the lock {key:?} is not held here; held are {held:?}"
        ),
    }
}

/// Calls `visit` for each body around the running code of this task, from the innermost one outwards.
fn for_each_enclosing(mut visit: impl FnMut(&Frame)) {
    let task = task::try_id();
    // Outside of a body there is none.
    let _ = ENCLOSING.try_with(|innermost| {
        let mut frame = Some(innermost);
        while let Some(enclosing) = frame {
            if enclosing.task() == task {
                visit(enclosing);
            }
            frame = enclosing.outer.as_ref();
        }
    });
}

/// The holds of a client's bodies around the running code, from the innermost one outwards.
pub(crate) fn enclosing_holds(engine: &Arc<Engine>) -> Vec<Hold> {
    let mut holds = Vec::new();
    for_each_enclosing(|frame| {
        if Arc::ptr_eq(&frame.engine, engine) {
            holds.extend(frame.holds().cloned());
        }
    });
    holds
}

#[cfg(feature = "testing")]
tokio::task_local! {
    static PRETENDED: Vec<String>;
}

/// Runs `future` as if a body around it held these locks, for [`assert_locked!`](crate::assert_locked) and
/// [`held_keys`]: to test a function that must be called under a lock. Nothing is locked.
///
/// # Examples
///
/// ```
/// use lock_runtime::{assert_locked, testing::pretend_locked};
///
/// async fn ship(order: u32) {
///     assert_locked!(&format!("order:{order}"));
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// pretend_locked(["order:7"], ship(7)).await;
/// # }
/// ```
#[cfg(feature = "testing")]
pub async fn pretend_locked<K: Into<String>, F: Future>(
    keys: impl IntoIterator<Item = K>,
    future: F,
) -> F::Output {
    PRETENDED.scope(keys.into_iter().map(Into::into).collect(), future).await
}

/// The innermost body around the running code that holds `key`, and its hold.
fn innermost(engine: &Arc<Engine>, key: &str) -> Option<(Arc<Frame>, Hold)> {
    let task = task::try_id();
    let found = ENCLOSING.try_with(|innermost| {
        let mut frame = Some(innermost);
        while let Some(candidate) = frame {
            if candidate.task() == task
                && Arc::ptr_eq(&candidate.engine, engine)
                && let Some(hold) = candidate.hold_of(key)
            {
                return Some((Arc::clone(candidate), hold.clone()));
            }
            frame = candidate.outer.as_ref();
        }
        None
    });
    found.ok().flatten()
}

/// The branches of the body that holds `key`, if there is one.
pub(crate) fn branches(engine: &Arc<Engine>, key: &str) -> Option<BranchQueue> {
    innermost(engine, key).map(|(frame, hold)| frame.branches.of(hold.key()))
}

/// Shares the hold of `key` that encloses the running code, if there is one.
///
/// If that hold was lost, this call fails with the loss: the enclosing body is about to be dropped,
/// and must not begin anything new. A hold in another layout than that of `store` is an error,
/// because it excludes other clients than the caller expects. A writer cannot share the hold of a
/// reader, nor a call for permits a hold of fewer.
pub(crate) fn enclosing(
    engine: &Arc<Engine>,
    key: &str,
    (store, mode): (&Arc<dyn LockStore>, Mode),
) -> Result<Option<LockGuard>, LockError> {
    let Some((frame, hold)) = innermost(engine, key) else { return Ok(None) };
    frame.report_branches();
    let granted_by = hold.lease().store();
    if !is_same(granted_by, store) {
        return Err(LockError::wrong_format(
            key.to_owned(),
            store.layout(),
            format!("{} that the enclosing body has locked", granted_by.layout()),
        ));
    }
    if hold.join(mode) {
        return Ok(Some(LockGuard::new(Arc::clone(engine), hold, AcquiredBy::Reentry)));
    }
    if hold.is_valid(BootInstant::now()) {
        // Only the mode does not fit.
        return Err(LockError::would_deadlock(key));
    }
    // The hold has ended. If it was released, the running code is a future that was moved out of
    // the body. Such a future shares nothing.
    hold.loss().map_or(Ok(None), Err)
}
