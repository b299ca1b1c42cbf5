//! The tokio runtime that a caller awaits its locks on.

use std::cell::Cell;
use std::panic::catch_unwind;
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task;

use crate::error::LockError;

thread_local! {
    /// The last runtime that was seen to have timers from this thread.
    static WITH_TIMERS: Cell<Option<Id>> = const { Cell::new(None) };
}

/// The runtime of the caller, or what is missing. Two thread-local readings, once it was checked.
pub(crate) fn here() -> Result<Handle, &'static str> {
    let Ok(runtime) = Handle::try_current() else { return Err("there is none here") };
    if WITH_TIMERS.get() != Some(runtime.id()) {
        if !has_timers() {
            return Err("it has no timers: build it with `enable_time()` or `enable_all()`");
        }
        WITH_TIMERS.set(Some(runtime.id()));
    }
    Ok(runtime)
}

/// The same as an error for the caller.
pub(crate) fn checked() -> Result<Handle, LockError> {
    here().map_err(|problem| LockError::Config {
        option: "runtime",
        problem: format!("locks are awaited inside a tokio runtime, and {problem}"),
    })
}

/// Who runs: to recognise somebody who waits for what it has itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Task(task::Id),
    /// Outside of any task: what a thread blocks on.
    Thread(ThreadId),
}

impl Caller {
    pub(crate) fn here() -> Self {
        task::try_id().map_or_else(|| Self::Thread(thread::current().id()), Self::Task)
    }
}

/// Tokio tells whether a runtime has timers only by a panic when the first one is made. It is made
/// here, once per runtime and thread, and not in the middle of a request. The panic hook has
/// printed tokio's own advice by then.
#[cfg(not(all(test, lock_shuttle)))]
fn has_timers() -> bool {
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

/// Models have a clock of their own.
#[cfg(all(test, lock_shuttle))]
fn has_timers() -> bool {
    let _ = (catch_unwind(|| ()), Duration::ZERO);
    true
}

#[cfg(test)]
#[cfg(not(lock_shuttle))]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_without_timers_is_told_from_one_with_them_and_from_none() {
        assert!(here().is_err_and(|problem| problem.contains("none here")));
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let without = builder.build().expect("a runtime");
        without.block_on(async {
            assert!(here().is_err_and(|problem| problem.contains("enable_time")));
        });
        let with = builder.enable_time().build().expect("a runtime");
        with.block_on(async { assert!(here().is_ok()) });
        without.block_on(async {
            assert!(here().is_err(), "what was seen of another runtime says nothing of this one");
        });
    }
}
