//! Requests that begin in the task of their caller.
//!
//! To spawn a task that only sends a request, and then waits, would cost a change of tasks. With the one of the connection and the
//! one of the caller, that would be more changes in a row than tokio makes without waking another thread. So a request is
//! polled once where it begins, and becomes a task when there is something to do for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use crate::sync::{Mutex, lock};

type BoxedRequest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request that was polled once, and its waker.
struct StartedRequest {
    runtime: Handle,
    stage: Mutex<Stage>,
}

enum Stage {
    /// It is being polled by the task that has started it.
    Polled,
    /// The same, and was woken.
    Woken,
    /// It waits.
    Waiting(BoxedRequest),
    /// It is a task, or has ended.
    Gone,
}

/// Polls a request once. It becomes a task of this runtime, which is the current one, when it is woken.
pub(super) fn start(runtime: &Handle, mut request: BoxedRequest) {
    let started =
        Arc::new(StartedRequest { runtime: runtime.clone(), stage: Mutex::new(Stage::Polled) });
    let waker = Waker::from(Arc::clone(&started));
    let mut context = Context::from_waker(&waker);
    // As in a task of its own, a panic is not one of the caller. The request is only dropped then.
    let polled = catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(&mut context)));
    let is_pending = matches!(polled, Ok(Poll::Pending));
    let mut stage = lock(&started.stage);
    match *stage {
        _ if !is_pending => *stage = Stage::Gone,
        Stage::Polled => *stage = Stage::Waiting(request),
        Stage::Woken | Stage::Waiting(_) | Stage::Gone => {
            *stage = Stage::Gone;
            drop(stage);
            started.runtime.spawn(request);
        }
    }
}

impl Wake for StartedRequest {
    fn wake(self: Arc<Self>) {
        let request = {
            let mut stage = lock(&self.stage);
            match std::mem::replace(&mut *stage, Stage::Gone) {
                Stage::Waiting(request) => request,
                Stage::Polled | Stage::Woken => {
                    *stage = Stage::Woken;
                    return;
                }
                Stage::Gone => return,
            }
        };
        // Dropped if the runtime has ended.
        self.runtime.spawn(request);
    }
}
