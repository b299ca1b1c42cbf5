//! The runtime on which the requests of callers run.
//!
//! A request that runs on the runtime of its caller saves two changes of threads. Connections belong to a runtime, so the first runtime
//! with callers has connections of its own. The requests of callers on other runtimes run on the thread of the store:
//! otherwise, a program with many runtimes would open as many connections.

use std::cell::Cell;

use tokio::runtime::{Handle, Id};

use crate::runtime;
use crate::store::home::{Home, has_io};
use crate::sync::{Mutex, lock};

/// The first runtime with callers; another one when that has ended.
#[derive(Default)]
pub(super) struct CallerRuntime(Mutex<Option<Home>>);

thread_local! {
    /// The last runtime that had no I/O when this thread checked.
    static WITHOUT_IO: Cell<Option<Id>> = const { Cell::new(None) };
}

impl CallerRuntime {
    /// The current runtime, if it runs requests.
    pub(super) fn here(&self) -> Option<Handle> {
        let here = runtime::here().ok()?;
        let is_here = |first: &Home| first.runtime().id() == here.id();
        if let Some(first) = lock(&self.0).as_ref().filter(|first| first.is_alive()) {
            return is_here(first).then_some(here);
        }
        if WITHOUT_IO.get() == Some(here.id()) {
            return None;
        }
        // Tokio panics if there is none, which the panic hook of the program reports.
        if cfg!(panic = "abort") || !has_io() {
            WITHOUT_IO.set(Some(here.id()));
            return None;
        }
        let mut first = lock(&self.0);
        if !first.as_ref().is_some_and(Home::is_alive) {
            // Not alive if the runtime has ended, and is entered nevertheless.
            *first = Some(Home::new(here.clone())).filter(Home::is_alive);
        }
        first.as_ref().is_some_and(is_here).then_some(here)
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    #[test]
    fn the_first_runtime_runs_requests_until_it_ends() {
        let callers = CallerRuntime::default();
        let here = |runtime: &Runtime| {
            let _entered = runtime.enter();
            callers.here().map(|here| here.id())
        };
        let (one, other) = (runtime(), runtime());
        assert_eq!(here(&one), Some(one.handle().id()));
        assert_eq!(here(&other), None);
        assert_eq!(callers.here().map(|here| here.id()), None, "outside of a runtime");
        drop(one);
        assert_eq!(here(&other), Some(other.handle().id()));
    }

    #[test]
    fn a_runtime_without_io_runs_none() {
        let callers = CallerRuntime::default();
        let limited = Builder::new_current_thread().enable_time().build().expect("a runtime");
        for _ in 0..2 {
            let _entered = limited.enter();
            assert!(callers.here().is_none());
        }
        let full = runtime();
        let _entered = full.enter();
        assert!(callers.here().is_some(), "it takes no place");
    }

    #[test]
    fn a_runtime_that_has_ended_runs_none() {
        let callers = CallerRuntime::default();
        let ended = runtime();
        let handle = ended.handle().clone();
        drop(ended);
        let _entered = handle.enter();
        assert!(callers.here().is_none());
    }
}
