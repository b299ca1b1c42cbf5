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
//!
//! Each start of the call has a task of its own, and a number. A task that finds another number, or
//! another stage than it expects, ends.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

use super::acquire::{Overseer, Provisional, SetCall};
use crate::engine::{KeyStatus, PermitHolder};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::holder::HolderKind;
use crate::runtime::Caller;
use crate::safeguard::Safeguard;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, Notify, lock, time};
use crate::user_code::contained;

/// How long the locks are kept for a caller that does not poll, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
/// The largest number of doublings of this pause.
const MAX_DOUBLINGS: u32 = 10;

type Collecting = Pin<Box<dyn Future<Output = SetOutcome> + Send>>;
type SetOutcome = Result<Provisional, Box<LockError>>;

/// A call, and the state that its caller and its tasks share.
struct SetWork {
    call: Arc<SetCall>,
    runtime: Handle,
    /// Nothing is polled, dropped or woken while this is locked.
    progress: Mutex<SetProgress>,
    /// Notified when the caller has to look at the stage.
    changed: Notify,
    /// Notified when the task of an outcome has to look at the stage.
    taken: Notify,
    /// The number of patrols since the last sign of life of the runtime.
    patrols: AtomicU32,
}

struct SetProgress {
    stage: SetStage,
    /// The number of the last start.
    start: u64,
    /// How often the locks were freed because the caller did not take them.
    withdrawals: u32,
}

enum SetStage {
    /// The caller starts the call when it polls.
    Idle,
    /// The task waits for its next poll.
    Running(Collecting, Option<Waker>),
    /// The task polls.
    Polling,
    Done(SetOutcome),
    /// The caller is gone.
    Gone,
}

/// The caller of a call. The call is dropped together with it.
struct SetCaller(Arc<SetWork>);

impl Drop for SetCaller {
    fn drop(&mut self) {
        self.0.leave(SetStage::Gone);
    }
}

/// Acquires the locks of `call` in a task on this runtime.
///
/// Cancel safe: the call is dropped, which frees what it has.
pub(super) async fn take_in_task(
    runtime: &Handle,
    call: Arc<SetCall>,
) -> Result<Vec<LockGuard>, Box<LockError>> {
    let progress = SetProgress { stage: SetStage::Idle, start: 0, withdrawals: 0 };
    let work = SetCaller(Arc::new(SetWork {
        call: Arc::clone(&call),
        runtime: runtime.clone(),
        progress: Mutex::new(progress),
        changed: Notify::new(),
        taken: Notify::new(),
        patrols: AtomicU32::new(0),
    }));
    loop {
        match work.0.start_or_take() {
            None => work.0.changed.notified().await,
            Some(Ok(provisional)) => {
                if let Some(guards) = call.claim(provisional) {
                    return Ok(guards);
                }
            }
            Some(Err(error)) => return Err(Box::new(explained(&call, *error))),
        }
    }
}

/// The error of a call whose own caller may be the holder.
fn explained(call: &SetCall, mut error: LockError) -> LockError {
    if let LockError::Busy { key, holder, .. } = &mut error
        && holder.kind == HolderKind::ThisProcess
        && call.engine().key_status(key) == KeyStatus::HeldHere(Caller::here())
    {
        holder.kind = HolderKind::ThisTask;
    }
    error
}

impl SetWork {
    /// Takes the outcome, if there is one. Otherwise, starts the call, unless it is in progress.
    fn start_or_take(self: &Arc<Self>) -> Option<SetOutcome> {
        let mut progress = lock(&self.progress);
        match std::mem::replace(&mut progress.stage, SetStage::Idle) {
            SetStage::Done(outcome) => {
                drop(progress);
                self.taken.notify_one();
                return Some(outcome);
            }
            SetStage::Idle => {}
            other => {
                progress.stage = other;
                return None;
            }
        }
        let overseer: Overseer = Some(Arc::clone(self) as Arc<dyn PermitHolder>);
        let call = Arc::clone(&self.call);
        progress.stage =
            SetStage::Running(Box::pin(async move { call.acquire(overseer).await }), None);
        progress.start += 1;
        let start = progress.start;
        drop(progress);
        self.patrols.store(0, Ordering::Relaxed);
        let mut task = SetTask { work: Arc::clone(self), start, is_complete: false };
        drop(self.runtime.spawn(async move {
            task.work.run(start).await;
            task.complete();
        }));
        None
    }

    async fn run(&self, start: u64) {
        if poll_fn(|cx| self.poll(start, cx)).await {
            self.keep_outcome(start).await;
        }
    }

    /// Polls the acquisition. Returns true when there is an outcome, and false if the task has to end.
    fn poll(&self, start: u64, cx: &mut Context<'_>) -> Poll<bool> {
        let mut collecting = {
            let mut progress = lock(&self.progress);
            if progress.start != start {
                return Poll::Ready(false);
            }
            match std::mem::replace(&mut progress.stage, SetStage::Polling) {
                SetStage::Running(collecting, _) => collecting,
                other => {
                    progress.stage = other;
                    return Poll::Ready(false);
                }
            }
        };
        let polled = collecting.as_mut().poll(cx);
        let waker = cx.waker().clone();
        // Dropped after the unlock.
        let unwanted;
        let result = {
            let mut progress = lock(&self.progress);
            if progress.start != start || !matches!(progress.stage, SetStage::Polling) {
                // The call was dropped meanwhile.
                unwanted = (Some(collecting), polled);
                Poll::Ready(false)
            } else if let Poll::Ready(outcome) = polled {
                progress.stage = SetStage::Done(outcome);
                unwanted = (Some(collecting), Poll::Pending);
                Poll::Ready(true)
            } else {
                progress.stage = SetStage::Running(collecting, Some(waker));
                unwanted = (None, Poll::Pending);
                Poll::Pending
            }
        };
        drop(unwanted);
        result
    }

    /// Keeps the outcome for the caller. Frees the locks if the caller does not take them in time.
    async fn keep_outcome(&self, start: u64) {
        self.changed.notify_one();
        let pause = {
            let mut progress = lock(&self.progress);
            progress.withdrawals += 1;
            let longest = (self.call.term() / 4).max(FIRST_PAUSE);
            (FIRST_PAUSE * 2_u32.pow((progress.withdrawals - 1).min(MAX_DOUBLINGS))).min(longest)
        };
        if !Safeguard::UnpolledCallsDoNotBlock.is_on() {
            return;
        }
        let mut pause = std::pin::pin!(time::sleep(pause));
        loop {
            let is_here = {
                let progress = lock(&self.progress);
                progress.start == start && matches!(progress.stage, SetStage::Done(Ok(_)))
            };
            if !is_here {
                return;
            }
            tokio::select! {
                // The order does not matter: no branch takes anything from the other one.
                biased;
                () = self.taken.notified() => {}
                () = &mut pause => break,
            }
        }
        self.withdraw(start);
    }

    /// Frees the locks of an outcome that the caller has not taken.
    fn withdraw(&self, start: u64) {
        let unclaimed = {
            let mut progress = lock(&self.progress);
            if progress.start != start || !matches!(progress.stage, SetStage::Done(Ok(_))) {
                return;
            }
            std::mem::replace(&mut progress.stage, SetStage::Idle)
        };
        drop(unclaimed);
        self.changed.notify_one();
    }

    /// Drops the acquisition or its outcome. An acquisition that is being polled is dropped after the
    /// poll.
    fn leave(&self, stage: SetStage) {
        let before = {
            let mut progress = lock(&self.progress);
            if matches!(progress.stage, SetStage::Gone) {
                return;
            }
            std::mem::replace(&mut progress.stage, stage)
        };
        match before {
            SetStage::Running(collecting, waker) => {
                contained(|| drop(collecting));
                // Its task ends.
                contained(|| {
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                });
            }
            other => contained(|| drop(other)),
        }
        self.taken.notify_one();
    }
}

/// One start of a call. Its end is told to the caller, also if the runtime has ended.
struct SetTask {
    work: Arc<SetWork>,
    start: u64,
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
        if self.is_complete {
            return;
        }
        let is_panic = std::thread::panicking();
        let cause = if is_panic { "the call has panicked" } else { "the runtime has ended" };
        let (key, waited) = (self.work.call.key(), self.work.call.timeout().elapsed());
        let error = LockError::unavailable(key, waited, cause);
        let before = {
            let mut progress = lock(&self.work.progress);
            let is_running = matches!(progress.stage, SetStage::Running(..) | SetStage::Polling);
            if progress.start != self.start || !is_running {
                return;
            }
            std::mem::replace(&mut progress.stage, SetStage::Done(Err(Box::new(error))))
        };
        contained(|| drop(before));
        self.work.changed.notify_one();
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
        // If its runtime runs again, the caller begins anew.
        self.leave(SetStage::Idle);
        self.changed.notify_one();
    }
}

impl fmt::Debug for SetWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetWork").field("patrols", &self.patrols).finish_non_exhaustive()
    }
}
