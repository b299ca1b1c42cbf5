//! Futures of permit holders that wait for the store, or for a release by another process.
//!
//! A caller may stop polling such a future without dropping it, for example in a branch of a
//! `select!` loop, or in an item of a stream that is not polled. Other callers of this process wait
//! for its permit, so the notifier thread then polls the future instead. Each future has its own
//! waker, which records that the future is ready. If other callers wait, and the caller has not
//! polled the future by the second check ([`CHECK_INTERVAL`] apart), the notifier thread polls the
//! future once, inside the caller's runtime:
//!
//! * If the result is a lock, the lock is offered to the waiters, or freed for the next caller. The
//!   original caller is back at its place in the queue when it polls again.
//! * Any other result is kept for the caller, and the permit goes to the next waiter.
//! * If the future has to wait again, the notifier thread continues to check it.
//!
//! Each time a caller loses a lock in this way, the time until it may lose the next one doubles, up
//! to a quarter of the lease. Callers on a runtime that is blocked again and again, but not
//! forever, therefore do not keep the lock from each other. The time is granted once, not per step,
//! and after [`MAX_STEPS`] steps another caller takes over.
//!
//! If a runtime is blocked forever, its timers and connections do not run, so polling its futures
//! is of no use. The runtime is pinged after one response timeout. After two response timeouts
//! without a sign of life, the futures of its callers are dropped, which undoes their requests.
//!
//! Keeps the promise that a caller that is not polled blocks no other caller.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::handoff::QueuePosition;
use super::local_queue::{CHECK_INTERVAL, PermitHolder};
use crate::maybe_ready::{Drive, Driven};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::user_code::contained;

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The purpose of a driven future: an acquisition or a release.
pub(super) trait Work: Send + Sync + 'static {
    type Outcome: Send;
    /// The result of a requeued caller's wait.
    type Resumed: Send;
    /// The value for the caller.
    type Value;

    fn finish(&self, outcome: Self::Outcome) -> Self::Value;

    /// Settles an outcome that the caller does not take: a lock goes to the waiters. The permit is
    /// part of the outcome, or has a new holder.
    fn settle(&self, outcome: Self::Outcome, position: &QueuePosition) -> Settled<Self>;

    /// The state that remains after the future is dropped; `None` if the future has to continue.
    fn revoke(&self, position: &QueuePosition) -> Option<Settled<Self>>;

    /// The longest time for which an outcome can be kept for a caller that is late.
    fn longest_delay(&self) -> Duration;

    fn failed(&self, cause: &str) -> Self::Outcome;

    /// Continues the call of a requeued caller. Returns the number of its grant as well.
    fn resume(&self, resumed: Self::Resumed) -> (u64, Boxed<Self::Outcome>);

    /// Undoes an outcome whose caller has dropped the future.
    fn abandon(&self, outcome: Self::Outcome);
}

/// The state that a caller finds when it polls again.
pub(super) enum Settled<W: Work + ?Sized> {
    Done(W::Outcome),
    /// The caller is back in the queue.
    Queued(Boxed<Result<W::Resumed, W::Outcome>>),
}

/// A future, and the state that its caller and the notifier thread share.
pub(super) struct SharedWork<W: Work> {
    work: W,
    runtime: Handle,
    progress: Mutex<Progress<W>>,
    /// Whether the future was woken and has not been polled since.
    ready: AtomicBool,
    /// The number of checks that found the future ready since the caller last polled.
    checks: AtomicU32,
    /// The number of polls by the notifier thread since the caller last polled.
    steps: AtomicU32,
    /// The number of times that the caller has lost a lock.
    losses: AtomicU32,
    /// The number of patrols since the last sign of life of the runtime.
    patrols: AtomicU32,
}

/// The largest number of doublings of a late caller's time. The resulting time is longer than a
/// runtime is blocked that is not stuck.
const MAX_DOUBLINGS: u32 = 7;

/// After this many polls by the notifier thread, another caller takes over.
const MAX_STEPS: u32 = 8;

struct Progress<W: Work> {
    stage: Stage<W>,
    /// The current grant of the permit.
    position: QueuePosition,
    /// The grants of the other permits of work that has several.
    others: Box<[QueuePosition]>,
    /// The waker of the caller.
    waker: Option<Waker>,
    /// Whether the future is registered as the holder of the permit.
    registered: bool,
    /// Whether the caller has polled while the notifier thread was polling.
    caller_came: bool,
}

enum Stage<W: Work> {
    Running(Boxed<W::Outcome>),
    Queued(Boxed<Result<W::Resumed, W::Outcome>>),
    Done(W::Outcome),
    /// Being polled.
    Busy,
    /// Taken by the caller, or cancelled.
    Gone,
}

impl<W: Work> Drive<W::Value> for SharedWork<W> {
    fn poll(self: Arc<Self>, cx: &Context<'_>) -> Poll<W::Value> {
        // Cloning and dropping wakers calls user code, so no lock is held here.
        let waker = Some(cx.waker().clone());
        for counter in [&self.patrols, &self.checks, &self.steps] {
            counter.store(0, Ordering::Relaxed);
        }
        let (stage, _before) = {
            let mut progress = self.progress();
            let before = std::mem::replace(&mut progress.waker, waker);
            progress.caller_came = matches!(progress.stage, Stage::Busy);
            (self.take(&mut progress), before)
        };
        // The notifier thread is polling, and will wake the caller.
        let Some(mut stage) = stage else { return Poll::Pending };
        let own = Waker::from(Arc::clone(&self));
        let mut own = Context::from_waker(&own);
        loop {
            let polled = match &mut stage {
                Stage::Running(running) => running.as_mut().poll(&mut own),
                Stage::Queued(queued) => match queued.as_mut().poll(&mut own) {
                    Poll::Ready(Ok(resumed)) => {
                        let (grant, running) = self.work.resume(resumed);
                        let mut progress = self.progress();
                        (progress.position, progress.registered) =
                            (progress.position.in_grant(grant), false);
                        drop(progress);
                        stage = Stage::Running(running);
                        continue;
                    }
                    Poll::Ready(Err(outcome)) => Poll::Ready(outcome),
                    Poll::Pending => Poll::Pending,
                },
                _ => Poll::Pending,
            };
            let outcome = match (polled, stage) {
                (Poll::Ready(outcome), _) | (Poll::Pending, Stage::Done(outcome)) => outcome,
                (Poll::Pending, stage) => {
                    drop(self.put_back(stage));
                    return Poll::Pending;
                }
            };
            drop(self.put_back(Stage::Gone));
            return Poll::Ready(self.work.finish(outcome));
        }
    }

    fn cancel(&self) {
        let (stage, _waker) = {
            let mut progress = self.progress();
            (std::mem::replace(&mut progress.stage, Stage::Gone), progress.waker.take())
        };
        self.abandon(stage);
    }
}

impl<W: Work> SharedWork<W> {
    /// The caller's handle to `running`, which has the permit of `position`, or is about to get it.
    /// Call it on the caller's runtime.
    pub(super) fn driven(
        work: W,
        position: QueuePosition,
        runtime: Handle,
        running: Boxed<W::Outcome>,
    ) -> Driven<W::Value> {
        Driven::new(Self::new(work, (position, Box::default()), runtime, running))
    }

    /// The same for work that has several permits, and does not return to their queues.
    pub(super) fn driven_with(
        work: W,
        positions: (QueuePosition, Box<[QueuePosition]>),
        runtime: Handle,
        running: Boxed<W::Outcome>,
    ) -> Driven<W::Value> {
        Driven::new(Self::new(work, positions, runtime, running))
    }

    fn new(
        work: W,
        (position, others): (QueuePosition, Box<[QueuePosition]>),
        runtime: Handle,
        running: Boxed<W::Outcome>,
    ) -> Arc<Self> {
        let (stage, waker) = (Stage::Running(running), None);
        Arc::new(Self {
            work,
            runtime,
            progress: Mutex::new(Progress {
                stage,
                position,
                others,
                waker,
                registered: false,
                caller_came: false,
            }),
            ready: AtomicBool::new(false),
            checks: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            patrols: AtomicU32::new(0),
        })
    }

    /// Begins a poll, unless another one is in progress, or the work is over.
    fn take(&self, progress: &mut Progress<W>) -> Option<Stage<W>> {
        if let Stage::Busy | Stage::Gone = progress.stage {
            return None;
        }
        self.ready.store(false, Ordering::Relaxed);
        Some(std::mem::replace(&mut progress.stage, Stage::Busy))
    }

    /// Ends a poll. Returns `stage` if the caller is gone, to be dropped with nothing locked.
    #[must_use]
    fn put_back(self: &Arc<Self>, stage: Stage<W>) -> Option<Stage<W>> {
        let mut progress = self.progress();
        if let Stage::Gone = progress.stage {
            return Some(stage);
        }
        let is_waiting = matches!(stage, Stage::Running(_));
        progress.stage = stage;
        if is_waiting && !std::mem::replace(&mut progress.registered, true) {
            // `progress` stays locked, so that no other poll gives the permit away before the
            // registration.
            for position in std::iter::once(&progress.position).chain(&progress.others) {
                position.register(Arc::clone(self) as Arc<dyn PermitHolder>);
            }
        }
        None
    }

    /// Ends a poll by the notifier thread. Wakes the caller if it has polled meanwhile, or if it no
    /// longer waits for this future.
    fn leave(self: &Arc<Self>, stage: Stage<W>) {
        let is_settled = !matches!(stage, Stage::Running(_));
        if let Some(stage) = self.put_back(stage) {
            self.abandon(stage);
        }
        let waker = {
            let mut progress = self.progress();
            let caller_came = std::mem::take(&mut progress.caller_came);
            if caller_came || is_settled { progress.waker.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn settled(self: &Arc<Self>, settled: Settled<W>) {
        self.leave(match settled {
            Settled::Done(outcome) => Stage::Done(outcome),
            Settled::Queued(queued) => Stage::Queued(queued),
        });
    }

    fn abandon(&self, stage: Stage<W>) {
        match stage {
            Stage::Done(outcome) => self.work.abandon(outcome),
            stage => drop(stage),
        }
    }

    /// Begins a poll in place of the caller, if the future waits.
    fn take_over(&self) -> Option<(Boxed<W::Outcome>, QueuePosition)> {
        let mut progress = self.progress();
        if !matches!(progress.stage, Stage::Running(_)) {
            return None;
        }
        let position = progress.position.clone();
        match self.take(&mut progress) {
            Some(Stage::Running(running)) => Some((running, position)),
            _ => None,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress<W>> {
        lock(&self.progress)
    }
}

impl<W: Work> Wake for SharedWork<W> {
    fn wake(self: Arc<Self>) {
        self.ready.store(true, Ordering::Relaxed);
        let waker = {
            let mut progress = self.progress();
            if progress.registered {
                for position in std::iter::once(&progress.position).chain(&progress.others) {
                    position.holder_is_ready();
                }
            }
            progress.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<W: Work> PermitHolder for SharedWork<W> {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn is_stalled(&self, hurry: bool) -> bool {
        let checks = self.checks.fetch_add(1, Ordering::Relaxed) + 1;
        // The second check at first. Later after each loss, because the runtime may only be slow.
        let most = if hurry { 0 } else { MAX_DOUBLINGS };
        let losses = self.losses.load(Ordering::Relaxed).min(most);
        let longest = self.work.longest_delay().as_millis() / CHECK_INTERVAL.as_millis();
        checks >= 2 && (checks >= 2 << losses || u128::from(checks) >= longest)
    }

    fn patrol(&self) -> u32 {
        self.patrols.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn ping(self: Arc<Self>) {
        let runtime = self.runtime.clone();
        drop(runtime.spawn(async move { self.patrols.store(0, Ordering::Relaxed) }));
    }

    fn help(self: Arc<Self>) {
        let Some((mut running, position)) = self.take_over() else { return };
        let polled = {
            // The timers and the connection of the future belong to the caller's runtime.
            let _entered = self.runtime.enter();
            let own = Waker::from(Arc::clone(&self));
            // Without tokio's limit on the work of one task, because this is not a task.
            let step = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx)));
            let step = std::pin::pin!(unconstrained(step));
            let poll = || step.poll(&mut Context::from_waker(&own));
            catch_unwind(AssertUnwindSafe(poll))
        };
        match polled {
            Ok(Poll::Ready(Poll::Ready(outcome))) => {
                drop(running);
                let settled = self.work.settle(outcome, &position);
                if let Settled::Queued(_) = settled {
                    self.losses.fetch_add(1, Ordering::Relaxed);
                }
                self.settled(settled);
            }
            Ok(_) => {
                self.leave(Stage::Running(running));
                if self.steps.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_STEPS {
                    self.revoke();
                }
            }
            Err(panic) => {
                // The payload may itself panic when it is dropped.
                std::mem::forget(panic);
                contained(|| drop(running));
                let failed = self.work.failed("the runtime of the call has ended");
                self.settled(Settled::Done(failed));
            }
        }
    }

    fn revoke(self: Arc<Self>) {
        let Some((running, position)) = self.take_over() else { return };
        // The caller is requeued first, because dropping the future offers the permit.
        match self.work.revoke(&position) {
            Some(settled) => {
                contained(|| drop(running));
                self.settled(settled);
            }
            None => self.leave(Stage::Running(running)),
        }
    }
}

impl<W: Work> std::fmt::Debug for SharedWork<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("ready", &self.ready).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(lock_shuttle)))]
mod tests;
