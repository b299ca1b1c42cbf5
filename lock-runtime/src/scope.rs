//! Running a body under a guard.
//!
//! Before each poll of the body the lease's deadline is checked, so the body runs only while the
//! lock is provably held. The body's task is also woken when the lease is lost, by a timer of its own
//! when the deadline has passed; the body is then dropped where it stands. Whatever ends the body, its future is dropped *before* the lock is
//! released, so that nothing in it, no destructor either, runs after the release.
//!
//! A body also knows the holds around it, in a task-local chain: taking a key that an enclosing
//! hold already has shares that hold. Two branches of one body see the chain that both stand in,
//! and not each other's holds, so they exclude each other. A spawned task starts outside.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;

use tokio::task;

use crate::engine::Engine;
use crate::engine::lease::Hold;
use crate::error::LockError;
use crate::format::WireFormat;
use crate::guard::{Acquiring, LockGuard};
use crate::protection::Protection;

tokio::task_local! {
    /// The innermost hold around the code that is running.
    static ENCLOSING: Arc<Frame>;
}

/// One hold in the chain.
#[derive(Debug)]
struct Frame {
    engine: Arc<Engine>,
    hold: Hold,
    /// The task that polls the body just now; its future may move from one to another. What a body
    /// polls need not be part of that task: a `LocalSet` polls tasks that were spawned elsewhere.
    task: Mutex<Option<task::Id>>,
    outer: Option<Arc<Frame>>,
}

impl Frame {
    fn task(&self) -> Option<task::Id> {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn polled_by(&self, task: Option<task::Id>) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = task;
    }
}

/// Shares the hold of `key` that encloses the running code, if there is one.
///
/// If that one was lost, so is whatever would have shared it: the enclosing body is about to be
/// dropped, and must not begin something new. One in another format than is asked for excludes others
/// than it should.
pub(crate) fn enclosing(
    engine: &Arc<Engine>,
    key: &str,
    format: WireFormat,
) -> Result<Option<LockGuard>, LockError> {
    let task = task::try_id();
    let found = ENCLOSING.try_with(|innermost| {
        let mut frame = Some(innermost);
        while let Some(candidate) = frame {
            if candidate.task() == task
                && Arc::ptr_eq(&candidate.engine, engine)
                && candidate.hold.key() == key
            {
                return Some(candidate.hold.clone());
            }
            frame = candidate.outer.as_ref();
        }
        None
    });
    let Ok(Some(hold)) = found else { return Ok(None) };
    if hold.format() != format {
        return Err(LockError::WrongFormat {
            key: key.to_owned(),
            expected: format.value(),
            found: format!("{} that the body around this has locked", hold.format().value()),
        });
    }
    if hold.join() {
        return Ok(Some(LockGuard::new(Arc::clone(engine), hold, true)));
    }
    // It has ended. Released means that a body outlived its own scope, which only a future that
    // was moved out of it can do; it then starts from outside.
    hold.was_lost().map_or(Ok(None), Err)
}

/// What a body does when its lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLost {
    /// It is dropped where it stands.
    Abort,
    /// It runs on; it can ask its guard.
    Continue,
    /// It is dropped where it stands. If it has ended before the loss became known, its release asks
    /// the store, and what it returned is dropped if the lock had been lost by then.
    Report,
}

/// A place in the frame around a body, where the body finds its guard.
#[derive(Debug, Default)]
pub struct GuardSlot(OnceLock<LockGuard>);

impl GuardSlot {
    /// An empty place.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The guard, if the lock was taken.
    pub fn get(&self) -> Option<&LockGuard> {
        self.0.get()
    }

    /// The guard, of a body that runs under its lock; in any other it would wait for ever.
    pub async fn held(&self) -> &LockGuard {
        match self.get() {
            Some(guard) => guard,
            None => std::future::pending().await,
        }
    }
}

/// Runs the body in `slot` as soon as and while `hold` is held, then releases it.
///
/// The body's output is returned whatever becomes of the release, unless `on_lost` has a loss
/// reported that only the release finds. Empties the slot.
pub(crate) async fn run<F: Future>(
    hold: Acquiring,
    on_lost: OnLost,
    place: Option<&GuardSlot>,
    slot: Pin<&mut Option<F>>,
) -> Result<F::Output, LockError> {
    let guard = match (hold.await.map_err(|error| *error)?, place) {
        (guard, None) => Held::Here(guard),
        (guard, Some(place)) => Held::InFrame(place.0.get_or_init(|| guard)),
    };
    // Declared after the guard, so that it is dropped first wherever this future is dropped.
    let mut body = Body(slot);
    let outcome = {
        let hold = guard.hold();
        let Some(future) = body.0.as_mut().as_pin_mut() else { return Err(run_before()) };
        let frame = frame(&guard);
        let own = (!guard.is_reentrant()).then(|| Arc::clone(&frame));
        let mut body = pin!(ENCLOSING.scope(frame, future));
        // Boxed when the body first waits: it is large, and most futures are stored in others.
        let mut lost = None;
        poll_fn(|cx| {
            if let Some(frame) = &own {
                frame.polled_by(task::try_id());
            }
            if on_lost == OnLost::Continue || !Protection::CheckBeforePoll.is_on() {
                return body.as_mut().poll(cx).map(Ok);
            }
            if let Some(loss) = hold.loss() {
                return Poll::Ready(Err(loss));
            }
            if let Poll::Ready(output) = body.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            // Looked at only when the body waits, so that one which never does pays nothing.
            let told = lost.get_or_insert_with(|| Box::pin(hold.lost()));
            match told.as_mut().poll(cx) {
                Poll::Ready(reason) => {
                    // What was found passed may have been extended since, but not for this body.
                    Poll::Ready(Err(hold.loss().unwrap_or_else(|| hold.lost_to(reason))))
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    };
    drop(body);
    if outcome.is_ok() {
        match guard.close(on_lost != OnLost::Report).await {
            Ok(()) => {}
            Err(error) if on_lost == OnLost::Report && matches!(*error, LockError::Lost { .. }) => {
                return Err(*error);
            }
            // There is nothing left to release, and of the loss itself the watchdog has told.
            Err(error) if matches!(*error, LockError::Lost { .. }) => {
                tracing::debug!(key = guard.key(), %error, "the body is done, its lock was lost before");
            }
            Err(error) => {
                tracing::warn!(key = guard.key(), %error, "the body is done, its lock was not released");
            }
        }
    }
    outcome
}

/// Runs the body in `slot` without a lock. Empties the slot.
pub(crate) async fn run_unlocked<F: Future>(
    slot: Pin<&mut Option<F>>,
) -> Result<F::Output, LockError> {
    let mut body = Body(slot);
    match body.0.as_mut().as_pin_mut() {
        Some(body) => Ok(body.await),
        None => Err(run_before()),
    }
}

fn run_before() -> LockError {
    LockError::Config { option: "body", problem: "it was run before".into() }
}

/// The chain inside the body: the same as outside for one that shares an enclosing hold.
fn frame(guard: &LockGuard) -> Arc<Frame> {
    let outer = ENCLOSING.try_with(Arc::clone).ok();
    match outer {
        Some(outer) if guard.is_reentrant() => outer,
        outer => {
            let (engine, hold) = (Arc::clone(guard.engine()), guard.hold().clone());
            Arc::new(Frame { engine, hold, task: Mutex::default(), outer })
        }
    }
}

/// The guard of a running body.
enum Held<'a> {
    Here(LockGuard),
    /// Where the body finds it.
    InFrame(&'a LockGuard),
}

impl Deref for Held<'_> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::Here(guard) => guard,
            Self::InFrame(guard) => guard,
        }
    }
}

/// A body in the frame of its caller, dropped in place.
struct Body<'a, F>(Pin<&'a mut Option<F>>);

impl<F> Drop for Body<'_, F> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::clock::{self, BootInstant};
    use crate::engine::Config;
    use crate::engine::lease::Terms;
    use crate::engine::turn::Limits;
    use crate::error::LostReason;
    use crate::eventually::Eventually;
    use crate::format::WireFormat;
    use crate::store::{MemoryStore, Token};
    use crate::wait::Wait;

    const LEASE: Duration = Duration::from_millis(50);

    /// A hold that no watchdog knows of, so that nobody ever says that it is lost.
    fn unwatched() -> (LockGuard, Hold) {
        let config = Config {
            namespace: String::new(),
            format: WireFormat::default(),
            watchdog: LEASE,
            max_hold: None,
            wait: Wait::Forever,
            response_timeout: LEASE,
            turn: Limits::default(),
        };
        let engine = Engine::start(config, MemoryStore::new());
        let terms = Terms { term: LEASE, renewed: false, max_hold: None, min_hold: Duration::ZERO };
        let token = Token::random().expect("randomness");
        let hold = Hold::new("k".into(), token, &terms, BootInstant::now(), None, None, false);
        (LockGuard::new(engine, hold.clone(), false), hold)
    }

    async fn poll_for_ever(lease: Hold, late: &AtomicU32) {
        poll_fn(|cx| {
            let valid = lease.is_valid(BootInstant::now());
            late.fetch_add(u32::from(!valid), Ordering::Relaxed);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
        .await;
    }

    async fn run_for_ever(on_lost: OnLost) -> (Option<Result<(), LockError>>, u32) {
        let (guard, lease) = unwatched();
        let late = AtomicU32::new(0);
        let mut body = pin!(Some(poll_for_ever(lease, &late)));
        let hold = Eventually::ready(Ok(guard));
        let outcome = run(hold, on_lost, None, body.as_mut());
        let outcome = tokio::time::timeout(LEASE * 10, outcome).await.ok();
        (outcome, late.load(Ordering::Relaxed))
    }

    /// Nobody watches its lease, and it waits for nothing that comes.
    #[tokio::test]
    async fn the_deadline_stops_a_body_that_waits_without_anybody_elses_help() {
        for on_lost in [OnLost::Abort, OnLost::Report] {
            let (guard, _lease) = unwatched();
            let mut body = pin!(Some(std::future::pending::<()>()));
            let outcome = run(Eventually::ready(Ok(guard)), on_lost, None, body.as_mut());
            let outcome = tokio::time::timeout(LEASE * 10, outcome).await;
            let outcome = outcome.expect("at its deadline");
            assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
        }
    }

    /// The control of the test above.
    #[tokio::test]
    async fn without_the_look_at_the_lease_nothing_stops_a_body_that_waits() {
        let (guard, _lease) = unwatched();
        let mut body = pin!(Some(std::future::pending::<()>()));
        let outcome = run(Eventually::ready(Ok(guard)), OnLost::Continue, None, body.as_mut());
        assert!(tokio::time::timeout(LEASE * 10, outcome).await.is_err());
    }

    #[tokio::test]
    async fn the_deadline_stops_a_body_without_anybody_elses_help() {
        let (outcome, late) = run_for_ever(OnLost::Abort).await;
        match outcome {
            Some(Err(LockError::Lost { reason, .. })) => assert_eq!(reason, LostReason::LeaseOver),
            other => panic!("{other:?}"),
        }
        assert!(late <= 1, "it may pass between the check and the body's own: {late}");
    }

    /// A lease ends in the store while the machine sleeps, and the first thing that happens after that
    /// is a poll: no timer has told anybody yet. Returns how many there were.
    async fn sleep_in_a_body(on_lost: OnLost) -> (Option<Result<(), LockError>>, u32) {
        let (guard, _lease) = unwatched();
        let polls = AtomicU32::new(0);
        let body = poll_fn(|cx| {
            if polls.fetch_add(1, Ordering::Relaxed) == 0 {
                clock::sleep_through(LEASE * 2);
            }
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let mut body = pin!(Some(body));
        let outcome = run(Eventually::ready(Ok(guard)), on_lost, None, body.as_mut());
        let outcome = tokio::time::timeout(LEASE / 5, outcome).await.ok();
        (outcome, polls.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_machine_that_slept_past_the_deadline_polls_no_body_again() {
        let (outcome, polls) = sleep_in_a_body(OnLost::Abort).await;
        assert!(matches!(outcome, Some(Err(LockError::Lost { .. }))), "{outcome:?}");
        assert_eq!(polls, 1, "the one that it fell asleep in");
    }

    /// The control of the test above.
    #[tokio::test]
    async fn without_the_check_it_does() {
        let (outcome, polls) = sleep_in_a_body(OnLost::Continue).await;
        assert_eq!(outcome, None);
        assert!(polls > 1, "{polls}");
    }

    /// The control of the test of the deadline.
    #[tokio::test]
    async fn without_the_check_nothing_does() {
        let (outcome, late) = run_for_ever(OnLost::Continue).await;
        assert_eq!(outcome, None);
        assert!(late > 10, "{late}");
    }
}
