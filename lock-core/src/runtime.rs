//! The tokio runtime on which a caller awaits locks.

use std::cell::Cell;
use std::panic::catch_unwind;
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task;

use crate::error::LockError;

thread_local! {
    /// The last runtime that had timers when this thread checked.
    static WITH_TIMERS: Cell<Option<Id>> = const { Cell::new(None) };
}

/// The current runtime, or the problem with it. After the first check, costs two reads of
/// thread-locals.
pub fn here() -> Result<Handle, &'static str> {
    let Ok(runtime) = Handle::try_current() else { return Err("the current thread has none") };
    if WITH_TIMERS.get() != Some(runtime.id()) {
        if !has_timers() {
            return Err(
                "the current one has no timers; build it with `enable_time()` or `enable_all()`",
            );
        }
        WITH_TIMERS.set(Some(runtime.id()));
    }
    Ok(runtime)
}

/// The current runtime, or an error for the caller.
pub fn checked() -> Result<Handle, LockError> {
    here().map_err(|problem| {
        LockError::config(
            "runtime",
            format!("locks must be awaited inside a tokio runtime, but {problem}"),
        )
    })
}

/// The running task or thread. It is used to detect a caller that waits for a lock that it holds
/// itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Task(task::Id),
    /// Outside of any task, as in `block_on`.
    Thread(ThreadId),
}

impl Caller {
    pub fn here() -> Self {
        task::try_id().map_or_else(|| Self::Thread(thread::current().id()), Self::Task)
    }
}

/// Tokio reports a runtime without timers only by a panic when a timer is created. This function
/// therefore creates a timer, so that the panic does not happen in the middle of a request. The
/// panic hook prints tokio's own advice.
#[cfg(not(lock_shuttle))]
fn has_timers() -> bool {
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

/// Models simulate time.
#[cfg(lock_shuttle)]
fn has_timers() -> bool {
    let _ = (catch_unwind(|| ()), Duration::ZERO);
    true
}

#[cfg(test)]
#[cfg(not(lock_shuttle))]
mod tests {
    use super::*;

    #[test]
    fn runtimes_with_and_without_timers_and_no_runtime_are_distinguished() {
        assert!(here().is_err_and(|problem| problem.contains("has none")));
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let without = builder.build().expect("a runtime");
        without.block_on(async {
            assert!(here().is_err_and(|problem| problem.contains("enable_time")));
        });
        let with = builder.enable_time().build().expect("a runtime");
        with.block_on(async { assert!(here().is_ok()) });
        without.block_on(async {
            assert!(here().is_err(), "the result for another runtime is not reused");
        });
    }
}
