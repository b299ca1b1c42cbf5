//! The futures of those who have the pass of a key and wait for something: for the store, or for
//! somebody else's release.
//!
//! A caller may stop polling such a future without dropping it: one branch of a `select!` loop, an
//! item of a stream that nobody drives. Others of this process wait behind it, so somebody else
//! drives it then. Each is woken through a waker of its own, which notes that it could go on. While
//! others wait and its caller does not poll it by the second look ([`LOOK`](super::gate::LOOK)
//! apart), the notifier thread polls it once, on the runtime of its caller. What comes of that:
//!
//! * A lock is offered to those in the queue, or freed for the next who asks. The caller finds itself
//!   at its old place in the queue when it polls again; if nobody wants the lock any more, it finds
//!   the lock.
//! * Any other result is kept for the caller, and the pass goes on.
//! * If there is more to wait for, the same begins anew.
//!
//! So the work of a caller that is not polled goes on, only a little later each time; it never has
//! to be undone, and callers that are polled late, by a runtime that is blocked again and again,
//! cost each other nothing. A runtime that stands still altogether can be helped by nobody: its
//! timers and connections do not run. It is asked for a sign after a response timeout, and after
//! two what it has begun is dropped, which undoes it.
//!
//! Keeps the promise that a caller which is not polled keeps nothing from the others.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use super::gate::{Owner, Spot};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard};

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What such a future is for.
pub(super) trait Work: Send + Sync + 'static {
    type Outcome: Send;
    /// What one has whose turn has come anew.
    type Resumed: Send;
    /// What the caller gets.
    type Value;

    fn finish(&self, outcome: Self::Outcome) -> Self::Value;

    /// Nobody polls for the outcome: what others wait for goes to them.
    fn settle(&self, outcome: Self::Outcome, spot: &Spot) -> Settled<Self>;

    /// What is left of it once its future is to be dropped; `None` if that helps nobody.
    fn revoke(&self, spot: &Spot) -> Option<Settled<Self>>;

    /// What is begun when the turn has come anew.
    fn resume(&self, resumed: Self::Resumed) -> Boxed<Self::Outcome>;

    /// The caller has gone, and does not get it.
    fn abandon(&self, outcome: Self::Outcome);
}

/// What a caller finds when it polls again.
pub(super) enum Settled<W: Work + ?Sized> {
    Done(W::Outcome),
    /// It is back in the queue.
    Queued(Boxed<Result<W::Resumed, W::Outcome>>),
}

/// The future of a [`Work`], for its caller. Dropped, it is cancelled.
pub(crate) struct Driven<V>(Arc<dyn Drive<V>>);

trait Drive<V>: Send + Sync {
    /// Takes itself, to become the waker.
    fn poll(self: Arc<Self>, cx: &Context<'_>) -> Poll<V>;

    fn cancel(&self);
}

struct Shared<W: Work> {
    work: W,
    spot: Spot,
    runtime: Handle,
    inner: Mutex<Inner<W>>,
    /// See [`TOLD`].
    told: AtomicU32,
    /// How many patrols there were since the last sign of its runtime.
    patrols: AtomicU32,
}

/// It was woken and not polled since.
const TOLD: u32 = 1;
/// A look has seen that.
const SEEN: u32 = 2;

struct Inner<W: Work> {
    stage: Stage<W>,
    /// Of its caller.
    waker: Option<Waker>,
    /// The gates know that it has the pass and waits.
    watched: bool,
}

enum Stage<W: Work> {
    Running(Boxed<W::Outcome>),
    Queued(Boxed<Result<W::Resumed, W::Outcome>>),
    Done(W::Outcome),
    /// In the hands of one who polls it.
    Busy,
    /// Handed out, or cancelled.
    Gone,
}

impl<W: Work> From<Settled<W>> for Stage<W> {
    fn from(settled: Settled<W>) -> Self {
        match settled {
            Settled::Done(outcome) => Self::Done(outcome),
            Settled::Queued(queued) => Self::Queued(queued),
        }
    }
}

impl<V> Driven<V> {
    /// `running` has the pass of the key of `spot`, or comes to have it. On the caller's runtime.
    pub(super) fn new<W: Work<Value = V>>(
        work: W,
        spot: Spot,
        runtime: Handle,
        running: Boxed<W::Outcome>,
    ) -> Self {
        Self(Shared::new(work, spot, runtime, running))
    }
}

impl<V> Future for Driven<V> {
    type Output = V;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<V> {
        Arc::clone(&self.0).poll(cx)
    }
}

impl<V> Drop for Driven<V> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl<W: Work> Drive<W::Value> for Shared<W> {
    fn poll(self: Arc<Self>, cx: &Context<'_>) -> Poll<W::Value> {
        // Foreign code, so not with this locked, and neither is the drop of another.
        let waker = Some(cx.waker().clone());
        self.told.store(0, Ordering::Relaxed);
        self.patrols.store(0, Ordering::Relaxed);
        let (mut stage, _before) = {
            let mut inner = self.inner();
            let before = std::mem::replace(&mut inner.waker, waker);
            let stage = match &inner.stage {
                Stage::Running(_) | Stage::Queued(_) | Stage::Done(_) => {
                    std::mem::replace(&mut inner.stage, Stage::Busy)
                }
                // Whoever has it wakes us.
                Stage::Busy | Stage::Gone => return Poll::Pending,
            };
            (stage, before)
        };
        let own = Waker::from(Arc::clone(&self));
        let mut own = Context::from_waker(&own);
        loop {
            let (outcome, watch) = match &mut stage {
                Stage::Running(running) => (running.as_mut().poll(&mut own), true),
                Stage::Queued(queued) => match queued.as_mut().poll(&mut own) {
                    Poll::Ready(Ok(resumed)) => {
                        stage = Stage::Running(self.work.resume(resumed));
                        self.inner().watched = false;
                        continue;
                    }
                    Poll::Ready(Err(outcome)) => (Poll::Ready(outcome), false),
                    Poll::Pending => (Poll::Pending, false),
                },
                Stage::Done(_) => match std::mem::replace(&mut stage, Stage::Gone) {
                    Stage::Done(outcome) => (Poll::Ready(outcome), false),
                    _ => return Poll::Pending,
                },
                Stage::Busy | Stage::Gone => return Poll::Pending,
            };
            return match outcome {
                Poll::Ready(outcome) => {
                    drop(self.put_back(Stage::Gone, false));
                    drop(stage);
                    Poll::Ready(self.work.finish(outcome))
                }
                Poll::Pending => {
                    drop(self.put_back(stage, watch));
                    Poll::Pending
                }
            };
        }
    }

    fn cancel(&self) {
        let (stage, _waker) = {
            let mut inner = self.inner();
            (std::mem::replace(&mut inner.stage, Stage::Gone), inner.waker.take())
        };
        self.abandon(stage);
    }
}

impl<W: Work> Shared<W> {
    fn new(work: W, spot: Spot, runtime: Handle, running: Boxed<W::Outcome>) -> Arc<Self> {
        let stage = Stage::Running(running);
        Arc::new(Self {
            work,
            spot,
            runtime,
            inner: Mutex::new(Inner { stage, waker: None, watched: false }),
            told: AtomicU32::new(0),
            patrols: AtomicU32::new(0),
        })
    }

    /// Ends somebody's poll. Gives back what is to be dropped with nothing locked.
    #[must_use]
    fn put_back(
        self: &Arc<Self>,
        stage: Stage<W>,
        watch: bool,
    ) -> Option<(Stage<W>, Option<Waker>)> {
        let mut inner = self.inner();
        if matches!(inner.stage, Stage::Gone) {
            // Cancelled meanwhile, by a caller that is gone.
            return Some((stage, None));
        }
        let is_over = matches!(stage, Stage::Gone);
        inner.stage = stage;
        if watch && !std::mem::replace(&mut inner.watched, true) {
            // This stays locked, so that nobody else goes on with it and loses the pass before.
            self.spot.watch(Arc::clone(self) as Arc<dyn Owner>);
        }
        is_over.then(|| (Stage::Gone, inner.waker.take()))
    }

    /// Somebody who is not the caller takes its place for one step.
    fn take(&self) -> Option<Stage<W>> {
        let mut inner = self.inner();
        match &inner.stage {
            Stage::Running(_) | Stage::Done(_) => {
                Some(std::mem::replace(&mut inner.stage, Stage::Busy))
            }
            Stage::Queued(_) | Stage::Busy | Stage::Gone => None,
        }
    }

    /// Leaves what came of that to the caller.
    fn settled(self: &Arc<Self>, settled: Settled<W>) {
        let stage = Stage::from(settled);
        // The next who queues is to find that there is something to be had.
        let is_done = matches!(stage, Stage::Done(_));
        if is_done {
            self.told.store(TOLD, Ordering::Relaxed);
        }
        let waker = {
            let mut inner = self.inner();
            if matches!(inner.stage, Stage::Gone) {
                drop(inner);
                self.abandon(stage);
                return;
            }
            inner.stage = stage;
            inner.watched = is_done;
            if is_done {
                self.spot.watch(Arc::clone(self) as Arc<dyn Owner>);
            }
            inner.waker.take()
        };
        // It may have come meanwhile, and has a place to see to.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn abandon(&self, stage: Stage<W>) {
        match stage {
            Stage::Done(outcome) => self.work.abandon(outcome),
            stage => drop(stage),
        }
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn inner(&self) -> MutexGuard<'_, Inner<W>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> Wake for Shared<W> {
    fn wake(self: Arc<Self>) {
        self.told.fetch_max(TOLD, Ordering::Relaxed);
        let waker = self.inner().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
        self.spot.told();
    }
}

impl<W: Work> Owner for Shared<W> {
    fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed) >= TOLD
    }

    fn is_stalled(&self) -> bool {
        self.told.swap(SEEN, Ordering::Relaxed) == SEEN
    }

    fn patrolled(&self) -> u32 {
        self.patrols.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn ping(self: Arc<Self>) {
        let runtime = self.runtime.clone();
        drop(runtime.spawn(async move { self.patrols.store(0, Ordering::Relaxed) }));
    }

    fn help(self: Arc<Self>) {
        let Some(mut stage) = self.take() else { return };
        self.told.store(0, Ordering::Relaxed);
        let outcome = match &mut stage {
            Stage::Running(running) => {
                // Its timers, and the connection over which it asks, are those of its caller.
                let _entered = self.runtime.enter();
                let own = Waker::from(Arc::clone(&self));
                match running.as_mut().poll(&mut Context::from_waker(&own)) {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => {
                        drop(self.put_back(stage, false));
                        return;
                    }
                }
            }
            _ => match std::mem::replace(&mut stage, Stage::Gone) {
                Stage::Done(outcome) => outcome,
                _ => return,
            },
        };
        drop(stage);
        self.settled(self.work.settle(outcome, &self.spot));
    }

    fn revoke(self: Arc<Self>) {
        let Some(stage) = self.take() else { return };
        let settled = match stage {
            Stage::Done(outcome) => self.work.settle(outcome, &self.spot),
            stage => {
                // Its place first: what is dropped offers the pass.
                let Some(settled) = self.work.revoke(&self.spot) else {
                    drop(self.put_back(stage, false));
                    return;
                };
                drop(stage);
                settled
            }
        };
        self.settled(settled);
    }
}

impl<W: Work> std::fmt::Debug for Shared<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("spot", &self.spot).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(lock_shuttle))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::super::gate::{Entry, Gates, Pass, Ticket, Turn};
    use super::*;

    /// Work whose outcome is the pass itself.
    #[derive(Default)]
    struct Waiting {
        abandoned: Arc<AtomicUsize>,
    }

    impl Work for Waiting {
        type Outcome = Pass;
        type Resumed = Pass;
        type Value = Pass;

        fn finish(&self, outcome: Pass) -> Pass {
            outcome
        }

        fn settle(&self, outcome: Pass, spot: &Spot) -> Settled<Self> {
            match spot.step_aside() {
                Some(ticket) => Settled::Queued(Box::pin(turn(ticket))),
                None => Settled::Done(outcome),
            }
        }

        fn revoke(&self, spot: &Spot) -> Option<Settled<Self>> {
            spot.step_aside().map(|ticket| Settled::Queued(Box::pin(turn(ticket))))
        }

        fn resume(&self, resumed: Pass) -> Boxed<Pass> {
            Box::pin(std::future::ready(resumed))
        }

        fn abandon(&self, outcome: Pass) {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            drop(outcome);
        }
    }

    async fn turn(ticket: Ticket) -> Result<Pass, Pass> {
        match ticket.await {
            Some(Turn::Free(pass)) => Ok(pass),
            other => panic!("{other:?}"),
        }
    }

    /// One who has the pass, and waits for something to be sent.
    struct Caller {
        gates: Arc<Gates>,
        abandoned: Arc<AtomicUsize>,
        shared: Arc<Shared<Waiting>>,
        driven: Driven<Pass>,
        wake: oneshot::Sender<()>,
    }

    fn caller() -> Caller {
        let gates = Arc::new(Gates::default());
        let Entry::Open(pass) = gates.enter(&Arc::from("k"), false) else { panic!("free") };
        let (wake, woken) = oneshot::channel();
        let (work, spot) = (Waiting::default(), pass.spot());
        let abandoned = Arc::clone(&work.abandoned);
        let running = Box::pin(async move {
            woken.await.expect("sent");
            pass
        });
        let shared = Shared::new(work, spot, Handle::current(), running);
        let mut driven = Driven(Arc::clone(&shared) as _);
        assert!(poll(&mut driven).is_none());
        Caller { gates, abandoned, shared, driven, wake }
    }

    fn poll(driven: &mut Driven<Pass>) -> Option<Pass> {
        match Pin::new(driven).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(pass) => Some(pass),
            Poll::Pending => None,
        }
    }

    fn queue(gates: &Arc<Gates>) -> Ticket {
        let Entry::Queued(mut ticket) = gates.enter(&Arc::from("k"), false) else {
            panic!("taken")
        };
        assert!(has_turn(&mut ticket).is_none());
        ticket
    }

    fn has_turn(ticket: &mut Ticket) -> Option<Pass> {
        match Pin::new(ticket).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Turn::Free(pass))) => Some(pass),
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => None,
        }
    }

    fn look_twice(gates: &Gates) {
        gates.look().carry_out();
        gates.look().carry_out();
    }

    #[tokio::test]
    async fn what_it_waited_for_goes_to_who_waits_and_it_keeps_its_place() {
        let Caller { gates, mut driven, wake, .. } = caller();
        let (mut second, mut third) = (queue(&gates), queue(&gates));
        wake.send(()).expect("it waits");
        look_twice(&gates);
        let pass = has_turn(&mut second).expect("somebody went on for it");
        assert!(poll(&mut driven).is_none(), "it is late");
        assert!(has_turn(&mut third).is_none());
        drop(pass);
        assert!(has_turn(&mut third).is_none(), "it is before this one");
        drop(poll(&mut driven).expect("its turn"));
        drop(has_turn(&mut third).expect("its turn"));
        drop((driven, second, third));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn one_that_comes_in_time_is_left_alone() {
        let Caller { gates, mut driven, wake, .. } = caller();
        let mut second = queue(&gates);
        wake.send(()).expect("it waits");
        gates.look().carry_out();
        let pass = poll(&mut driven).expect("what it waited for");
        look_twice(&gates);
        assert!(has_turn(&mut second).is_none());
        drop(pass);
        assert!(has_turn(&mut second).is_some());
    }

    /// What nobody else is there to take.
    fn kept() -> Caller {
        let mut caller = caller();
        let second = queue(&caller.gates);
        let wake = std::mem::replace(&mut caller.wake, oneshot::channel().0);
        wake.send(()).expect("it waits");
        caller.gates.look().carry_out();
        let findings = caller.gates.look();
        drop(second);
        findings.carry_out();
        caller
    }

    #[tokio::test]
    async fn what_nobody_else_takes_is_kept_for_it() {
        let Caller { gates, mut driven, .. } = kept();
        assert_eq!(gates.keys(), 1);
        drop(poll(&mut driven).expect("what it waited for"));
        assert_eq!(gates.keys(), 0);
    }

    #[tokio::test]
    async fn what_is_kept_goes_to_who_comes_before_it_does() {
        let Caller { gates, mut driven, .. } = kept();
        let mut second = queue(&gates);
        look_twice(&gates);
        let pass = has_turn(&mut second).expect("it has not come");
        assert!(poll(&mut driven).is_none());
        drop(pass);
        drop(poll(&mut driven).expect("its turn"));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn what_is_kept_is_abandoned_with_it() {
        let Caller { gates, driven, abandoned, .. } = kept();
        drop(driven);
        assert_eq!((gates.keys(), abandoned.load(Ordering::Relaxed)), (0, 1));
    }

    #[tokio::test]
    async fn one_that_is_given_up_keeps_its_place() {
        let Caller { gates, shared, mut driven, wake, .. } = caller();
        let mut second = queue(&gates);
        shared.revoke();
        assert!(wake.is_closed(), "its future is dropped");
        let pass = has_turn(&mut second).expect("its pass");
        assert!(poll(&mut driven).is_none());
        drop(pass);
        drop(poll(&mut driven).expect("its turn"));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn one_behind_whom_nobody_waits_is_not_given_up() {
        let Caller { gates, shared, mut driven, wake, .. } = caller();
        shared.revoke();
        wake.send(()).expect("it waits still");
        drop(poll(&mut driven).expect("what it waited for"));
        assert_eq!(gates.keys(), 0);
    }

    #[tokio::test]
    async fn its_runtime_gives_a_sign() {
        let Caller { shared, driven: _driven, .. } = caller();
        assert_eq!((shared.patrolled(), shared.patrolled()), (1, 2));
        Arc::clone(&shared).ping();
        tokio::task::yield_now().await;
        assert_eq!(shared.patrolled(), 1);
    }
}
