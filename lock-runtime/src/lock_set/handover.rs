//! The task of a call that acquires several locks, and the hand-over of the locks to the caller.
//!
//! A call that collects several locks holds some of them while it waits for others, so it must make
//! progress also while its caller does not poll, as in a branch of a `select!` loop. It therefore runs
//! in a task.
//!
//! * If the caller does not take the locks within a pause, the task frees them. The call begins anew
//!   when the caller polls again. The pause doubles each time.
//! * If the caller drops its future, the call is dropped as well, at once, and not when its task next
//!   runs.
//! * If the runtime of the task does not run, the locks are lost after a lease, because they are
//!   provisional. While a request is in flight, the call is dropped if other calls of this process want
//!   one of the keys, as other calls on such runtimes are.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, TryLockError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;

use super::acquire::{Overseer, Provisional, SetCall};
use crate::engine::{KeyStatus, PermitHolder};
use crate::error::{Holder, LockError};
use crate::guard::LockGuard;
use crate::runtime::Caller;
use crate::safeguard::Safeguard;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, Notify, lock, time};
use crate::user_code::contained;

/// How long the locks are kept for a caller that does not poll, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
/// The largest number of doublings of this pause.
const MAX_DOUBLINGS: u32 = 10;

type Collecting = Pin<Box<dyn Future<Output = SetOutcome> + Send>>;
type SetOutcome = Result<Provisional, Box<LockError>>;

/// A call, and the state that its caller and its task share.
struct SetWork {
    call: Arc<SetCall>,
    runtime: Handle,
    /// The acquisition in progress.
    collecting: Mutex<Option<Collecting>>,
    outcome: Mutex<Option<SetOutcome>>,
    /// Notified when there is an outcome, or when there is neither an outcome nor an acquisition.
    changed: Notify,
    /// Notified when the caller has taken an outcome, or is gone.
    taken: Notify,
    /// Whether the caller is gone.
    is_cancelled: AtomicBool,
    /// How often the locks were freed because the caller did not take them.
    withdrawals: AtomicU32,
    /// The number of patrols since the last sign of life of the runtime.
    patrols: AtomicU32,
}

/// The caller of a call. The call is dropped together with it.
struct SetCaller(Arc<SetWork>);

impl Drop for SetCaller {
    fn drop(&mut self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        self.0.give_up();
        self.0.taken.notify_one();
    }
}

/// Acquires the locks of `call` in a task on this runtime.
///
/// Cancel safe: the call is dropped, which frees what it has.
pub(super) async fn take_in_task(
    runtime: &Handle,
    call: Arc<SetCall>,
) -> Result<Vec<LockGuard>, Box<LockError>> {
    let work = SetCaller(Arc::new(SetWork {
        call: Arc::clone(&call),
        runtime: runtime.clone(),
        collecting: Mutex::new(None),
        outcome: Mutex::new(None),
        changed: Notify::new(),
        taken: Notify::new(),
        is_cancelled: AtomicBool::new(false),
        withdrawals: AtomicU32::new(0),
        patrols: AtomicU32::new(0),
    }));
    loop {
        work.0.start();
        work.0.changed.notified().await;
        let outcome = lock(&work.0.outcome).take();
        if outcome.is_some() {
            work.0.taken.notify_one();
        }
        match outcome {
            Some(Ok(provisional)) => {
                if let Some(guards) = call.claim(provisional) {
                    return Ok(guards);
                }
            }
            Some(Err(error)) => return Err(Box::new(explained(&call, *error))),
            None => {}
        }
    }
}

/// The error of a call whose own caller may be the holder.
fn explained(call: &SetCall, mut error: LockError) -> LockError {
    if let LockError::Busy { key, holder: holder @ Holder::ThisProcess, .. } = &mut error
        && call.engine().key_status(key) == KeyStatus::HeldHere(Caller::here())
    {
        *holder = Holder::ThisTask;
    }
    error
}

impl SetWork {
    /// Begins the acquisition, unless it is in progress or there is an outcome.
    fn start(self: &Arc<Self>) {
        if lock(&self.outcome).is_some() {
            self.changed.notify_one();
            return;
        }
        let mut collecting = lock(&self.collecting);
        if collecting.is_some() {
            return;
        }
        let overseer: Overseer = Some(Arc::clone(self) as Arc<dyn PermitHolder>);
        let call = Arc::clone(&self.call);
        *collecting = Some(Box::pin(async move { call.acquire(overseer).await }));
        drop(collecting);
        self.patrols.store(0, Ordering::Relaxed);
        let mut task = SetTask { work: Arc::clone(self), is_complete: false };
        drop(self.runtime.spawn(async move {
            task.work.run().await;
            task.complete();
        }));
    }

    async fn run(&self) {
        let Some(outcome) = poll_fn(|cx| self.poll(cx)).await else { return };
        let is_error = outcome.is_err();
        *lock(&self.outcome) = Some(outcome);
        if self.is_cancelled.load(Ordering::Acquire) {
            return self.give_up();
        }
        self.changed.notify_one();
        if is_error || !Safeguard::UnpolledCallsDoNotBlock.is_on() {
            return;
        }
        let doublings = self.withdrawals.fetch_add(1, Ordering::Relaxed).min(MAX_DOUBLINGS);
        let longest = (self.call.term() / 4).max(FIRST_PAUSE);
        let pause = (FIRST_PAUSE * 2_u32.pow(doublings)).min(longest);
        tokio::select! {
            // The order does not matter: no branch takes anything from the other one.
            biased;
            () = self.taken.notified() => return,
            () = time::sleep(pause) => {}
        }
        let unclaimed = lock(&self.outcome).take();
        drop(unclaimed);
    }

    /// Polls the acquisition; `None` if there is none any more.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<SetOutcome>> {
        let mut collecting = lock(&self.collecting);
        let Some(running) = collecting.as_mut() else { return Poll::Ready(None) };
        let polled = running.as_mut().poll(cx);
        let is_over = polled.is_ready() || self.is_cancelled.load(Ordering::Acquire);
        let over = if is_over { collecting.take() } else { None };
        drop(collecting);
        drop(over);
        match polled {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if is_over => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Drops the acquisition, or its outcome. If it is being polled, its task drops it after the poll.
    fn give_up(&self) {
        let collecting = match self.collecting.try_lock() {
            Ok(mut collecting) => collecting.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        let outcome = lock(&self.outcome).take();
        contained(|| drop(collecting));
        contained(|| drop(outcome));
    }
}

/// The task of a call. Its end is told to the caller, also if its runtime has ended.
struct SetTask {
    work: Arc<SetWork>,
    /// Whether the task has not been dropped before.
    is_complete: bool,
}

impl SetTask {
    fn complete(&mut self) {
        self.is_complete = true;
    }
}

impl Drop for SetTask {
    fn drop(&mut self) {
        let work = &self.work;
        if self.is_complete {
            return work.changed.notify_one();
        }
        let collecting = lock(&work.collecting).take();
        if collecting.is_some() && !work.is_cancelled.load(Ordering::Acquire) {
            let cause = "the runtime of the call has ended".to_owned();
            let (key, waited) = (work.call.key(), work.call.timeout().elapsed());
            *lock(&work.outcome) =
                Some(Err(Box::new(LockError::Unavailable { key, waited, cause })));
        }
        contained(|| drop(collecting));
        work.changed.notify_one();
    }
}

/// For the time in which the call has permits and no locks.
impl PermitHolder for SetWork {
    fn is_ready(&self) -> bool {
        false
    }

    fn is_stalled(&self, _: bool) -> bool {
        false
    }

    fn patrol(&self) -> u32 {
        self.patrols.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn ping(self: Arc<Self>) {
        let runtime = self.runtime.clone();
        drop(runtime.spawn(async move { self.patrols.store(0, Ordering::Relaxed) }));
    }

    fn help(self: Arc<Self>) {}

    fn revoke(self: Arc<Self>) {
        self.give_up();
        // If its runtime runs again, the caller begins anew.
        self.changed.notify_one();
    }
}

impl fmt::Debug for SetWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetWork").field("patrols", &self.patrols).finish_non_exhaustive()
    }
}
