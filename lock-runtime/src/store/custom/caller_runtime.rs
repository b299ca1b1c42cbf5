//! The runtime on which the requests of callers run.
//!
//! A request that runs on the runtime of its caller saves two changes of threads. Connections belong to a runtime, so the first runtime
//! with callers has connections of its own. The requests of callers on other runtimes run on the thread of the store:
//! otherwise, a program with many runtimes would open as many connections.

use tokio::runtime::Handle;

use crate::runtime;
use crate::store::home::{Home, has_io};
use crate::sync::{Mutex, lock};

/// The first runtime with callers; another one when that has ended.
#[derive(Default)]
pub(super) struct CallerRuntime(Mutex<Option<FirstRuntime>>);

struct FirstRuntime {
    home: Home,
    has_io: bool,
}

impl CallerRuntime {
    /// The current runtime, if it runs requests.
    pub(super) fn here(&self) -> Option<Handle> {
        let here = runtime::here().ok()?;
        let mut first = lock(&self.0);
        let known = first.as_ref().filter(|first| first.home.is_alive());
        let is_usable = match known {
            Some(first) => first.has_io && first.home.runtime().id() == here.id(),
            None => {
                let has_io = has_io();
                *first = Some(FirstRuntime { home: Home::new(here.clone()), has_io });
                has_io
            }
        };
        is_usable.then_some(here)
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
    }
}
