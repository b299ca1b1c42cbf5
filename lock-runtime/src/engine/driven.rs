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
//!   at its old place in the queue when it polls again.
//! * Any other result is kept for the caller, and the pass goes on.
//! * If there is more to wait for, the same begins anew.
//!
//! A caller that has lost a lock in this way is given twice the time before it loses another, and so
//! on, up to a quarter of the lease. So callers whose runtime is blocked again and again, but not for
//! ever, do not keep the lock from each other. It is given that time once, not for each step, and
//! after [`MOST_STEPS`] steps another caller takes over.
//!
//! A runtime that is blocked altogether cannot be helped: its timers and connections do not run. It
//! is asked for a sign of life after one response timeout. After two, what its callers have begun is
//! dropped, which undoes it.
//!
//! Keeps the promise that a caller which is not polled keeps nothing from the others.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::gate::{LOOK, Owner, Spot};
use crate::foreign::contained;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

    /// Its caller does not come for the outcome: what others may want goes to them. The pass is part
    /// of the outcome, or has gone on.
    fn settle(&self, outcome: Self::Outcome, spot: &Spot) -> Settled<Self>;

    /// What is left of it once its future is dropped; `None` if that is to go on.
    fn revoke(&self, spot: &Spot) -> Option<Settled<Self>>;

    /// For how long what it waits for can be kept for it, when its caller is late.
    fn patience(&self) -> Duration;

    fn failed(&self, cause: &str) -> Self::Outcome;

    /// What is begun when its turn has come anew, and the number of that turn.
    fn resume(&self, resumed: Self::Resumed) -> (u64, Boxed<Self::Outcome>);

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
    runtime: Handle,
    inner: Mutex<Inner<W>>,
    /// It was woken and not polled since.
    told: AtomicBool,
    /// How many looks have seen that since its caller has polled it.
    looks: AtomicU32,
    /// How many steps others have taken since then.
    steps: AtomicU32,
    /// How often it has lost a lock because its caller did not come.
    losses: AtomicU32,
    /// How many patrols there were since the last sign of its runtime.
    patrols: AtomicU32,
}

/// How often the time is doubled that a caller has which does not come. Longer than runtimes are
/// blocked by what is not stuck.
const MOST_DOUBLED: u32 = 7;

/// After so many steps in the place of a caller who does not come, somebody who is there goes on.
const MOST_STEPS: u32 = 8;

struct Inner<W: Work> {
    stage: Stage<W>,
    /// Its turn.
    spot: Spot,
    /// Of its caller.
    waker: Option<Waker>,
    /// The gates know that it has the pass and waits.
    watched: bool,
    /// Its caller has come while somebody else was polling.
    came: bool,
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
        for counter in [&self.patrols, &self.looks, &self.steps] {
            counter.store(0, Ordering::Relaxed);
        }
        let (stage, _before) = {
            let mut inner = self.inner();
            let before = std::mem::replace(&mut inner.waker, waker);
            inner.came = matches!(inner.stage, Stage::Busy);
            (self.take(&mut inner), before)
        };
        // Whoever else has it will wake us.
        let Some(mut stage) = stage else { return Poll::Pending };
        let own = Waker::from(Arc::clone(&self));
        let mut own = Context::from_waker(&own);
        loop {
            let polled = match &mut stage {
                Stage::Running(running) => running.as_mut().poll(&mut own),
                Stage::Queued(queued) => match queued.as_mut().poll(&mut own) {
                    Poll::Ready(Ok(resumed)) => {
                        let (turn, running) = self.work.resume(resumed);
                        let mut inner = self.inner();
                        (inner.spot, inner.watched) = (inner.spot.in_turn(turn), false);
                        drop(inner);
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
            let mut inner = self.inner();
            (std::mem::replace(&mut inner.stage, Stage::Gone), inner.waker.take())
        };
        self.abandon(stage);
    }
}

impl<W: Work> Shared<W> {
    fn new(work: W, spot: Spot, runtime: Handle, running: Boxed<W::Outcome>) -> Arc<Self> {
        let (stage, waker) = (Stage::Running(running), None);
        Arc::new(Self {
            work,
            runtime,
            inner: Mutex::new(Inner { stage, spot, waker, watched: false, came: false }),
            told: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            patrols: AtomicU32::new(0),
        })
    }

    /// Begins a poll, unless somebody else is at it, or it is over.
    fn take(&self, inner: &mut Inner<W>) -> Option<Stage<W>> {
        if let Stage::Busy | Stage::Gone = inner.stage {
            return None;
        }
        self.told.store(false, Ordering::Relaxed);
        Some(std::mem::replace(&mut inner.stage, Stage::Busy))
    }

    /// Ends a poll. Gives `stage` back if the caller is gone, to be dropped with nothing locked.
    #[must_use]
    fn put_back(self: &Arc<Self>, stage: Stage<W>) -> Option<Stage<W>> {
        let mut inner = self.inner();
        if let Stage::Gone = inner.stage {
            return Some(stage);
        }
        let is_waiting = matches!(stage, Stage::Running(_));
        inner.stage = stage;
        if is_waiting && !std::mem::replace(&mut inner.watched, true) {
            // This stays locked, so that nobody else goes on with it and loses the pass before.
            inner.spot.watch(Arc::clone(self) as Arc<dyn Owner>);
        }
        None
    }

    /// Ends a poll that was not its caller's, who may have come meanwhile, or does not know yet that
    /// there is something else to wait for.
    fn leave(self: &Arc<Self>, stage: Stage<W>) {
        let is_settled = !matches!(stage, Stage::Running(_));
        if let Some(stage) = self.put_back(stage) {
            self.abandon(stage);
        }
        let waker = {
            let mut inner = self.inner();
            let came = std::mem::take(&mut inner.came);
            if came || is_settled { inner.waker.take() } else { None }
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

    /// Takes the caller's place, if it waits.
    fn stand_in(&self) -> Option<(Boxed<W::Outcome>, Spot)> {
        let mut inner = self.inner();
        if !matches!(inner.stage, Stage::Running(_)) {
            return None;
        }
        let spot = inner.spot.clone();
        match self.take(&mut inner) {
            Some(Stage::Running(running)) => Some((running, spot)),
            _ => None,
        }
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn inner(&self) -> MutexGuard<'_, Inner<W>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> Wake for Shared<W> {
    fn wake(self: Arc<Self>) {
        self.told.store(true, Ordering::Relaxed);
        let waker = {
            let mut inner = self.inner();
            if inner.watched {
                inner.spot.told();
            }
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<W: Work> Owner for Shared<W> {
    fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    fn is_stalled(&self, hurry: bool) -> bool {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        // The second look, and later each time: its runtime may only be slow.
        let most = if hurry { 0 } else { MOST_DOUBLED };
        let losses = self.losses.load(Ordering::Relaxed).min(most);
        let longest = self.work.patience().as_millis() / LOOK.as_millis();
        looks >= 2 && (looks >= 2 << losses || u128::from(looks) >= longest)
    }

    fn patrolled(&self) -> u32 {
        self.patrols.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn ping(self: Arc<Self>) {
        let runtime = self.runtime.clone();
        drop(runtime.spawn(async move { self.patrols.store(0, Ordering::Relaxed) }));
    }

    fn help(self: Arc<Self>) {
        let Some((mut running, spot)) = self.stand_in() else { return };
        let polled = {
            // Its timers, and the connection over which it asks, are those of its caller.
            let _entered = self.runtime.enter();
            let own = Waker::from(Arc::clone(&self));
            // However many others are helped in one go.
            let step = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx)));
            let step = std::pin::pin!(unconstrained(step));
            let poll = || step.poll(&mut Context::from_waker(&own));
            catch_unwind(AssertUnwindSafe(poll))
        };
        match polled {
            Ok(Poll::Ready(Poll::Ready(outcome))) => {
                drop(running);
                let settled = self.work.settle(outcome, &spot);
                if let Settled::Queued(_) = settled {
                    self.losses.fetch_add(1, Ordering::Relaxed);
                }
                self.settled(settled);
            }
            Ok(_) => {
                self.leave(Stage::Running(running));
                if self.steps.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_STEPS {
                    self.revoke();
                }
            }
            Err(panic) => {
                // What was thrown may itself panic when it is dropped.
                std::mem::forget(panic);
                contained(|| drop(running));
                let failed = self.work.failed("it was begun on a runtime that has ended");
                self.settled(Settled::Done(failed));
            }
        }
    }

    fn revoke(self: Arc<Self>) {
        let Some((running, spot)) = self.stand_in() else { return };
        // Its place first: what is dropped offers the pass.
        match self.work.revoke(&spot) {
            Some(settled) => {
                contained(|| drop(running));
                self.settled(settled);
            }
            None => self.leave(Stage::Running(running)),
        }
    }
}

impl<W: Work> std::fmt::Debug for Shared<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("told", &self.told).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(lock_shuttle))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::super::gate::{Aside, Entry, Gates, Pass, Ticket, Turn};
    use super::*;

    /// Work whose outcome is the pass itself.
    #[derive(Default)]
    struct Waiting {
        abandoned: Arc<AtomicUsize>,
    }

    impl Work for Waiting {
        type Outcome = Option<Pass>;
        type Resumed = Turn;
        type Value = Option<Pass>;

        fn finish(&self, outcome: Option<Pass>) -> Option<Pass> {
            outcome
        }

        fn settle(&self, outcome: Option<Pass>, spot: &Spot) -> Settled<Self> {
            let settled = self.revoke(spot);
            drop(outcome);
            settled.unwrap_or(Settled::Done(None))
        }

        fn revoke(&self, spot: &Spot) -> Option<Settled<Self>> {
            match spot.step_aside() {
                Aside::Queued(ticket) => {
                    Some(Settled::Queued(Box::pin(async { ticket.await.ok_or(None) })))
                }
                Aside::Closed => Some(Settled::Done(None)),
                Aside::Gone => None,
            }
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn failed(&self, _: &str) -> Option<Pass> {
            None
        }

        fn resume(&self, turn: Turn) -> (u64, Boxed<Option<Pass>>) {
            let number = turn.number();
            (number, Box::pin(async { Some(pass_of(turn)) }))
        }

        fn abandon(&self, outcome: Option<Pass>) {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            drop(outcome);
        }
    }

    fn pass_of(turn: Turn) -> Pass {
        match turn {
            Turn::Free(pass) => pass,
            Turn::Held(_) => panic!("there is no lock"),
        }
    }

    type Driven = super::Driven<Option<Pass>>;

    /// One who has the pass, and waits for something to be sent.
    struct Caller {
        gates: Arc<Gates>,
        abandoned: Arc<AtomicUsize>,
        shared: Arc<Shared<Waiting>>,
        driven: Driven,
        wake: oneshot::Sender<()>,
    }

    fn caller() -> Caller {
        let (wake, woken) = oneshot::channel();
        let mut caller = with(wake, |pass| {
            Box::pin(async move {
                woken.await.expect("sent");
                Some(pass)
            })
        });
        assert!(poll(&mut caller.driven).is_pending());
        caller
    }

    fn with(
        wake: oneshot::Sender<()>,
        running: impl FnOnce(Pass) -> Boxed<Option<Pass>>,
    ) -> Caller {
        let gates = Arc::new(Gates::default());
        let Entry::Open(pass) = gates.enter(&Arc::from("k"), false) else { panic!("free") };
        let (work, spot) = (Waiting::default(), pass.spot(0));
        let abandoned = Arc::clone(&work.abandoned);
        let shared = Shared::new(work, spot, Handle::current(), running(pass));
        let driven = super::Driven(Arc::clone(&shared) as _);
        Caller { gates, abandoned, shared, driven, wake }
    }

    fn poll(driven: &mut Driven) -> Poll<Option<Pass>> {
        Pin::new(driven).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn comes(driven: &mut Driven) -> Pass {
        match poll(driven) {
            Poll::Ready(Some(pass)) => pass,
            other => panic!("{other:?}"),
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
            Poll::Ready(turn) => turn.map(pass_of),
            Poll::Pending => None,
        }
    }

    fn look(gates: &Gates, times: usize) {
        for _ in 0..times {
            gates.look().carry_out();
        }
    }

    #[tokio::test]
    async fn what_it_waited_for_goes_to_who_waits_and_it_keeps_its_place() {
        let Caller { gates, mut driven, wake, .. } = caller();
        let (mut second, mut third) = (queue(&gates), queue(&gates));
        wake.send(()).expect("it waits");
        look(&gates, 2);
        let pass = has_turn(&mut second).expect("somebody went on for it");
        assert!(poll(&mut driven).is_pending(), "it is late");
        assert!(has_turn(&mut third).is_none());
        drop(pass);
        assert!(has_turn(&mut third).is_none(), "it is before this one");
        drop(comes(&mut driven));
        drop(has_turn(&mut third).expect("its turn"));
        drop((driven, second, third));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn one_that_comes_in_time_is_left_alone() {
        let Caller { gates, mut driven, wake, .. } = caller();
        let mut second = queue(&gates);
        wake.send(()).expect("it waits");
        look(&gates, 1);
        let pass = comes(&mut driven);
        look(&gates, 2);
        assert!(has_turn(&mut second).is_none());
        drop(pass);
        assert!(has_turn(&mut second).is_some());
    }

    #[tokio::test]
    async fn one_that_was_not_woken_is_left_alone() {
        let (wake, _woken) = oneshot::channel();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let Caller { gates, mut driven, .. } = with(wake, |pass| {
            Box::pin(poll_fn(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = &pass;
                Poll::Pending
            }))
        });
        assert!(poll(&mut driven).is_pending());
        let _second = queue(&gates);
        look(&gates, 4);
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    }

    /// The one who waited has left while somebody went on for the caller.
    fn unwanted() -> Caller {
        let mut caller = caller();
        let second = queue(&caller.gates);
        let wake = std::mem::replace(&mut caller.wake, oneshot::channel().0);
        wake.send(()).expect("it waits");
        look(&caller.gates, 1);
        let findings = caller.gates.look();
        drop(second);
        findings.carry_out();
        caller
    }

    #[tokio::test]
    async fn what_nobody_else_wants_comes_to_it_after_all() {
        let Caller { gates, mut driven, .. } = unwanted();
        drop(comes(&mut driven));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn what_it_does_not_come_for_goes_to_who_asks_before_it_does() {
        let Caller { gates, mut driven, .. } = unwanted();
        let Entry::Offered(turn, _) = gates.enter(&Arc::from("k"), true) else { panic!("offered") };
        assert!(poll(&mut driven).is_pending());
        drop(turn);
        drop(comes(&mut driven));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn nothing_is_left_of_one_that_is_cancelled_after_that() {
        let Caller { gates, driven, abandoned, .. } = unwanted();
        drop(driven);
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
        assert_eq!(abandoned.load(Ordering::Relaxed), 0, "there was no outcome");
    }

    #[tokio::test]
    async fn at_a_shutdown_it_does_not_queue_again() {
        let Caller { gates, mut driven, wake, .. } = caller();
        gates.close();
        wake.send(()).expect("it waits");
        look(&gates, 2);
        assert!(matches!(poll(&mut driven), Poll::Ready(None)));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn an_outcome_that_its_caller_does_not_come_for_is_abandoned_with_it() {
        let Caller { gates, driven, wake, abandoned, .. } = caller();
        gates.close();
        wake.send(()).expect("it waits");
        look(&gates, 2);
        drop(driven);
        assert_eq!(abandoned.load(Ordering::Relaxed), 1);
    }

    /// Otherwise callers of a runtime that is blocked for longer would keep it from each other.
    #[tokio::test]
    async fn each_time_it_loses_something_it_has_twice_the_time() {
        let Caller { gates, shared, mut driven, wake: _wake, .. } = caller();
        let mut looks = Vec::new();
        for losses in [0, 1, 2, MOST_DOUBLED] {
            shared.losses.store(losses, Ordering::Relaxed);
            assert!(poll(&mut driven).is_pending());
            looks.push((1..1000).find(|_| shared.is_stalled(false)).expect("at some look"));
            assert!(shared.is_stalled(false), "it has had its time");
            assert!(poll(&mut driven).is_pending());
            assert!(!shared.is_stalled(true) && shared.is_stalled(true), "at a shutdown");
        }
        // What it waits for can be kept for a second.
        assert_eq!(looks, [2, 4, 8, 100]);
        assert_eq!(gates.keys(), 1);
        let helped = unwanted();
        assert_eq!(helped.shared.losses.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn one_that_is_given_up_keeps_its_place() {
        let Caller { gates, shared, mut driven, wake, .. } = caller();
        let mut second = queue(&gates);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(Pin::new(&mut driven).poll(&mut Context::from_waker(&waker)).is_pending());
        shared.revoke();
        assert!(wake.is_closed(), "its future is dropped");
        assert!(woken.0.load(Ordering::Relaxed), "it has to wait for something else");
        let pass = has_turn(&mut second).expect("its pass");
        assert!(poll(&mut driven).is_pending());
        drop(pass);
        drop(comes(&mut driven));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[tokio::test]
    async fn one_whose_pass_has_gone_is_not_given_up() {
        let (wake, woken) = oneshot::channel();
        let Caller { gates, shared, mut driven, wake, .. } = with(wake, |pass| {
            drop(pass);
            Box::pin(async move {
                woken.await.expect("sent");
                None
            })
        });
        assert!(poll(&mut driven).is_pending());
        assert_eq!(gates.keys(), 0);
        shared.revoke();
        wake.send(()).expect("it waits still");
        assert!(matches!(poll(&mut driven), Poll::Ready(None)));
    }

    #[tokio::test]
    async fn at_a_shutdown_one_is_given_up_as_ever() {
        let Caller { gates, shared, mut driven, wake, .. } = caller();
        gates.close();
        shared.revoke();
        assert!(wake.is_closed(), "its future is dropped");
        assert_eq!(gates.keys(), 0);
        assert!(matches!(poll(&mut driven), Poll::Ready(None)));
    }

    /// It would go on for ever, and those who are there would wait behind it.
    #[tokio::test]
    async fn after_a_few_steps_it_is_left_to_somebody_who_is_there() {
        let (wake, _woken) = oneshot::channel();
        let Caller { gates, mut driven, .. } = with(wake, |pass| {
            Box::pin(poll_fn(move |cx| {
                let _ = &pass;
                cx.waker().wake_by_ref();
                Poll::Pending
            }))
        });
        assert!(poll(&mut driven).is_pending());
        let mut second = queue(&gates);
        look(&gates, 2 + MOST_STEPS as usize);
        assert!(has_turn(&mut second).is_some());
    }

    #[tokio::test]
    async fn its_runtime_gives_a_sign() {
        let Caller { shared, mut driven, wake: _wake, .. } = caller();
        assert_eq!((shared.patrolled(), shared.patrolled()), (1, 2));
        Arc::clone(&shared).ping();
        tokio::task::yield_now().await;
        assert_eq!(shared.patrolled(), 1);
        assert!(poll(&mut driven).is_pending());
        assert_eq!(shared.patrolled(), 1, "it was polled");
    }

    /// Notes that it was woken.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// It comes in the middle of somebody else's poll, right after what wakes it.
    #[tokio::test]
    async fn a_caller_that_comes_while_somebody_goes_on_for_it_is_woken_afterwards() {
        let slot: Arc<std::sync::Mutex<Option<Driven>>> = Arc::default();
        let woken = Arc::new(Woken::default());
        let (its_slot, its_waker) = (Arc::clone(&slot), Waker::from(Arc::clone(&woken)));
        let (wake, _woken) = oneshot::channel();
        let Caller { gates, driven, shared, .. } = with(wake, |pass| {
            Box::pin(poll_fn(move |cx| {
                let _ = &pass;
                cx.waker().wake_by_ref();
                if let Some(driven) = &mut *its_slot.lock().expect("no panic") {
                    let polled = Pin::new(driven).poll(&mut Context::from_waker(&its_waker));
                    assert!(polled.is_pending());
                }
                Poll::Pending
            }))
        });
        *slot.lock().expect("no panic") = Some(driven);
        let _second = queue(&gates);
        shared.help();
        assert!(woken.0.load(Ordering::Relaxed), "it would wait for ever");
        drop(slot.lock().expect("no panic").take());
    }

    /// As a timer does when it is polled after the end of its runtime.
    #[tokio::test]
    async fn a_panic_is_told_to_the_caller() {
        let (wake, _woken) = oneshot::channel();
        let Caller { gates, mut driven, shared, .. } = with(wake, |pass| {
            let mut polls = 0;
            Box::pin(poll_fn(move |_| {
                let _ = &pass;
                polls += 1;
                assert!(polls < 2, "as planned");
                Poll::Pending
            }))
        });
        assert!(poll(&mut driven).is_pending());
        shared.help();
        assert!(matches!(poll(&mut driven), Poll::Ready(None)));
        assert_eq!(gates.keys(), 0);
    }
}
