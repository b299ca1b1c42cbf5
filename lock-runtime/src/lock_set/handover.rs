//! Handing locks over from the task that acquires them to the caller.
//!
//! A call that collects several locks holds some of them while it waits for others, so it must make
//! progress also while its caller does not poll, as in a branch of a `select!` loop. It therefore runs
//! in a task. If the caller does not take the locks within a pause, the task frees them, and begins
//! anew when the caller polls again. The pause doubles each time.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::acquire::SetCall;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::safeguard::Safeguard;
use crate::sync::{Mutex, Notify, lock, time};

/// How long the locks are kept for a caller that is not polled, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(40);

type AcquiredSet = Result<Vec<LockGuard>, Box<LockError>>;

/// Locks that wait for their caller.
struct Handover {
    acquired: Mutex<Option<AcquiredSet>>,
    /// Notified when there is a result.
    is_ready: Notify,
    /// Notified when the caller has come too late.
    is_wanted: Notify,
}

/// The task of a call. It ends when this is dropped.
struct Acquirer(JoinHandle<()>);

impl Drop for Acquirer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Acquires the locks of `call` in a task on the caller's runtime.
///
/// Cancel safe: the task ends, and frees what it has.
pub(super) async fn take_in_task(runtime: &Handle, call: Arc<SetCall>) -> AcquiredSet {
    let (acquired, is_ready, is_wanted) = (Mutex::new(None), Notify::new(), Notify::new());
    let handover = Arc::new(Handover { acquired, is_ready, is_wanted });
    let waited = call.timeout;
    let work = acquire_for(Arc::clone(&handover), call);
    let mut task = Acquirer(runtime.spawn(work));
    loop {
        tokio::select! {
            // The order does not matter: the result is in one place.
            biased;
            () = handover.is_ready.notified() => {
                let acquired = lock(&handover.acquired).take();
                match acquired {
                    Some(acquired) => return acquired,
                    None => handover.is_wanted.notify_one(),
                }
            }
            _ = &mut task.0 => {
                let acquired = lock(&handover.acquired).take();
                return acquired.unwrap_or_else(|| {
                    let cause = "the runtime of the call has ended".to_owned();
                    let waited = waited.elapsed();
                    Err(Box::new(LockError::Unavailable { key: None, waited, cause }))
                });
            }
        }
    }
}

async fn acquire_for(handover: Arc<Handover>, call: Arc<SetCall>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let acquired = call.acquire().await;
        let is_final = acquired.is_err();
        *lock(&handover.acquired) = Some(acquired);
        handover.is_ready.notify_one();
        if is_final {
            return;
        }
        time::sleep(pause).await;
        if !Safeguard::UnpolledCallsDoNotBlock.is_on() {
            return std::future::pending().await;
        }
        let unclaimed = lock(&handover.acquired).take();
        if unclaimed.is_none() {
            return;
        }
        drop(unclaimed);
        pause = (pause * 2).min(call.request.terms.term / 4).max(FIRST_PAUSE);
        handover.is_wanted.notified().await;
    }
}
