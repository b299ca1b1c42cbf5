//! Re-entrancy: the chain of holds that enclose the running code.
//!
//! The holds around a body are in a task-local chain. Acquiring a key that an enclosing hold
//! already has shares that hold. The chain of a branch of a body contains the holds that enclose
//! the branch, but not those of other branches, so two branches exclude each other. A spawned task
//! begins without a chain.

use std::sync::Arc;

use tokio::task;

use crate::clock::BootInstant;
use crate::engine::Engine;
use crate::engine::handoff::Hold;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::safeguard::Safeguard;
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
    outer: Option<Arc<Frame>>,
}

impl Frame {
    fn new(guard: &LockGuard, others: Box<[Hold]>, outer: Option<Arc<Self>>) -> Arc<Self> {
        let (engine, hold) = (Arc::clone(guard.engine()), guard.hold().clone());
        Arc::new(Self { engine, hold, others, task: Mutex::default(), outer })
    }

    /// The hold of this key.
    fn hold_of(&self, key: &str) -> Option<&Hold> {
        let mut holds = std::iter::once(&self.hold).chain(&self.others);
        holds.find(|hold| **hold.key() == *key)
    }

    fn task(&self) -> Option<task::Id> {
        *lock(&self.task)
    }

    /// The current task is about to poll the body.
    pub(crate) fn set_polling_task(&self) {
        *lock(&self.task) = task::try_id();
    }
}

/// The chain inside a body.
pub(crate) struct Scope {
    frame: Arc<Frame>,
    is_reentrant: bool,
}

impl Scope {
    /// The chain for a body under `guard`: the current one if the guard shares an enclosing hold.
    pub(crate) fn new(guard: &LockGuard) -> Self {
        let (outer, is_reentrant) = (ENCLOSING.try_with(Arc::clone).ok(), guard.is_reentrant());
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

    /// The frame of the body's own hold.
    pub(crate) fn own_frame(&self) -> Option<Arc<Frame>> {
        (!self.is_reentrant).then(|| Arc::clone(&self.frame))
    }

    /// Runs `body` inside the chain.
    pub(crate) fn enclose<F: Future>(self, body: F) -> impl Future<Output = F::Output> {
        ENCLOSING.scope(self.frame, body)
    }
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
    let task = task::try_id();
    let found = ENCLOSING.try_with(|innermost| {
        let mut frame = Some(innermost);
        while let Some(candidate) = frame {
            if candidate.task() == task
                && Arc::ptr_eq(&candidate.engine, engine)
                && let Some(hold) = candidate.hold_of(key)
            {
                return Some(hold.clone());
            }
            frame = candidate.outer.as_ref();
        }
        None
    });
    let Ok(Some(hold)) = found else { return Ok(None) };
    let granted_by = hold.lease().store();
    if !is_same(granted_by, store) {
        return Err(LockError::WrongFormat {
            key: key.to_owned(),
            expected: store.layout(),
            found: format!("{} that the enclosing body has locked", granted_by.layout()),
        });
    }
    if hold.join(mode) {
        return Ok(Some(LockGuard::new(Arc::clone(engine), hold, AcquiredBy::Reentry)));
    }
    if hold.is_valid(BootInstant::now()) && Safeguard::NestedWritersFail.is_on() {
        // Only the mode does not fit.
        return Err(LockError::WouldDeadlock { key: key.to_owned() });
    }
    // The hold has ended. If it was released, the running code is a future that was moved out of
    // the body. Such a future shares nothing.
    hold.loss().map_or(Ok(None), Err)
}
