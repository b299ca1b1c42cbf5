//! Requests that begin in the task of their caller.
//!
//! Tokio runs only a few tasks in a row that wake each other before it wakes another worker thread. The task of the connection,
//! that of the request and that of the caller exceed this if each request is spawned at once. So a request is polled once by its
//! caller, which usually sends it, and is spawned when it is woken.

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
    stage: Mutex<RequestStage>,
}

enum RequestStage {
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
    let started = Arc::new(StartedRequest {
        runtime: runtime.clone(),
        stage: Mutex::new(RequestStage::Polled),
    });
    let waker = Waker::from(Arc::clone(&started));
    let mut context = Context::from_waker(&waker);
    // As in a task of its own, a panic is not one of the caller. The request is only dropped then.
    let polled = catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(&mut context)));
    let is_pending = matches!(polled, Ok(Poll::Pending));
    let mut stage = lock(&started.stage);
    match *stage {
        _ if !is_pending => *stage = RequestStage::Gone,
        RequestStage::Polled => *stage = RequestStage::Waiting(request),
        RequestStage::Woken | RequestStage::Waiting(_) | RequestStage::Gone => {
            *stage = RequestStage::Gone;
            drop(stage);
            started.runtime.spawn(request);
        }
    }
}

impl Wake for StartedRequest {
    fn wake(self: Arc<Self>) {
        let request = {
            let mut stage = lock(&self.stage);
            match std::mem::replace(&mut *stage, RequestStage::Gone) {
                RequestStage::Waiting(request) => request,
                RequestStage::Polled | RequestStage::Woken => {
                    *stage = RequestStage::Woken;
                    return;
                }
                RequestStage::Gone => return,
            }
        };
        // Dropped if the runtime has ended.
        self.runtime.spawn(request);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::{sleep, timeout};

    use super::*;

    /// A request that waits for this, and then says that it has ended.
    fn request(wait: impl Future<Output = ()> + Send + 'static) -> (BoxedRequest, Arc<AtomicBool>) {
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let request = async move {
            wait.await;
            ended.store(true, Ordering::Relaxed);
        };
        (Box::pin(request), has_ended)
    }

    async fn ends(has_ended: &AtomicBool) -> bool {
        for _ in 0..20 {
            yield_now().await;
        }
        has_ended.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_request_is_polled_at_once_and_goes_on_by_itself() {
        let (here, (send, receive)) = (Handle::current(), oneshot::channel::<()>());
        let (waiting, has_ended) = request(async { drop(receive.await) });
        start(&here, waiting);
        assert!(!ends(&has_ended).await);
        send.send(()).expect("it waits");
        assert!(ends(&has_ended).await);

        let (ready, has_ended) = request(std::future::ready(()));
        start(&here, ready);
        assert!(has_ended.load(Ordering::Relaxed), "without another task");

        let (woken, has_ended) = request(yield_now());
        start(&here, woken);
        assert!(ends(&has_ended).await, "it was woken while it was polled");

        let (late, has_ended) = request(sleep(Duration::from_millis(1)));
        start(&here, late);
        while !ends(&has_ended).await {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_request_that_panics_is_dropped() {
        let (dropped, told) = oneshot::channel::<()>();
        start(
            &Handle::current(),
            Box::pin(async move {
                let _dropped = dropped;
                panic!("as expected");
            }),
        );
        assert!(told.await.is_err());
    }

    #[test]
    fn a_request_is_dropped_with_its_runtime() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime().expect("a runtime");
        let (dropped, told) = oneshot::channel::<()>();
        let entered = runtime.enter();
        start(
            runtime.handle(),
            Box::pin(async move {
                let _dropped = dropped;
                // As all requests, it has a limit.
                let _ = timeout(Duration::from_secs(60), std::future::pending::<()>()).await;
            }),
        );
        drop(entered);
        drop(runtime);
        assert!(told.blocking_recv().is_err());
    }
}
