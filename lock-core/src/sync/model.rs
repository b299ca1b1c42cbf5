//! Replacements for models: tokio's primitives with scheduling points, and a simulated clock.
//!
//! All tasks of a model run on one thread, and switch only at scheduling points. An operation on
//! one of tokio's primitives has none, so it is one step. The replacements add a scheduling point
//! before each operation.

use std::cell::Cell;

use shuttle::sync::atomic::{AtomicBool, Ordering};

/// A scheduling point.
fn schedule() {
    AtomicBool::new(false).load(Ordering::Relaxed);
}

thread_local! {
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// Begins a model, with no tasks and a new clock.
pub fn start() {
    RUNNING.set(0);
    time::start();
}

/// Starts a detached task.
pub fn spawn_task<F>(future: F)
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    RUNNING.set(RUNNING.get() + 1);
    drop(shuttle::future::spawn(async move {
        future.await;
        RUNNING.set(RUNNING.get() - 1);
    }));
}

/// The number of detached tasks that have not ended.
pub fn running() -> usize {
    RUNNING.get()
}

#[derive(Debug, Default)]
pub struct Notify(tokio::sync::Notify);

impl Notify {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        schedule();
        self.0.notified()
    }

    pub fn notify_one(&self) {
        schedule();
        self.0.notify_one();
    }

    pub fn notify_waiters(&self) {
        schedule();
        self.0.notify_waiters();
    }
}

pub mod oneshot {
    pub use tokio::sync::oneshot::Receiver;

    #[derive(Debug)]
    pub struct Sender<T>(tokio::sync::oneshot::Sender<T>);

    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (Sender(sender), receiver)
    }

    impl<T> Sender<T> {
        pub fn send(self, value: T) -> Result<(), T> {
            super::schedule();
            self.0.send(value)
        }
    }
}

/// The simulated clock. A model runs on one thread, so thread-locals are per model.
pub mod time {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::future::poll_fn;
    use std::ops::Add;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use crate::clock::BootInstant;

    thread_local! {
        static NOW: Cell<BootInstant> = const { Cell::new(START) };
        /// The sleepers, by the time of their wake-up. A number distinguishes those of one instant.
        static SLEEPERS: RefCell<BTreeMap<(BootInstant, u64), Waker>> = RefCell::default();
        static NUMBERS: Cell<u64> = const { Cell::new(0) };
        /// The task that advances the clock. Woken when a task begins to sleep.
        static CLOCK_TASK: RefCell<Option<Waker>> = RefCell::default();
    }

    /// Not zero: as a deadline, zero has passed.
    const START: BootInstant = BootInstant::from_nanos(1_000_000_000);

    pub fn nanos_since_boot() -> u64 {
        NOW.get().as_nanos()
    }

    /// Resets the clock for a new model.
    pub(super) fn start() {
        NOW.set(START);
        NUMBERS.set(0);
        SLEEPERS.take();
        CLOCK_TASK.take();
    }

    /// Advances the clock, and wakes the sleepers whose time is over.
    pub fn advance(by: Duration) {
        advance_to(NOW.get().after(by));
    }

    fn advance_to(now: BootInstant) {
        NOW.set(NOW.get().max(now));
        let later = SLEEPERS.with_borrow_mut(|sleepers| sleepers.split_off(&(now, u64::MAX)));
        for waker in SLEEPERS.replace(later).into_values() {
            waker.wake();
        }
    }

    /// Keeps advancing the clock to the next wake-up, each time after a random number of scheduling
    /// points.
    pub async fn run() {
        loop {
            poll_fn(|cx| {
                CLOCK_TASK.set(Some(cx.waker().clone()));
                match first_sleeper() {
                    Some(_) => Poll::Ready(()),
                    None => Poll::Pending,
                }
            })
            .await;
            for _ in 0..shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 1..10) {
                shuttle::future::yield_now().await;
            }
            if let Some(at) = first_sleeper() {
                advance_to(at);
            }
        }
    }

    fn first_sleeper() -> Option<BootInstant> {
        SLEEPERS.with_borrow(|sleepers| sleepers.first_key_value().map(|((at, _), _)| *at))
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Instant(BootInstant);

    impl Instant {
        pub fn now() -> Self {
            Self(NOW.get())
        }

        pub fn checked_add(self, by: Duration) -> Option<Self> {
            Some(self + by)
        }

        pub fn saturating_duration_since(self, earlier: Self) -> Duration {
            self.0.since(earlier.0)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, by: Duration) -> Self {
            Self(self.0.after(by))
        }
    }

    pub fn sleep(pause: Duration) -> Timer {
        Timer::until(Instant::now() + pause)
    }

    pub fn sleep_until(end: Instant) -> Timer {
        Timer::until(end)
    }

    /// The output of `future`, unless `end` comes first.
    pub async fn timeout_at<F: Future>(end: Instant, future: F) -> Result<F::Output, Elapsed> {
        let (mut future, mut sleep) = (pin!(future), Timer::until(end));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed)),
        })
        .await
    }

    #[derive(Debug)]
    pub struct Elapsed;

    #[derive(Debug)]
    pub struct Timer {
        end: BootInstant,
        number: u64,
    }

    impl Timer {
        fn until(end: Instant) -> Self {
            let number = NUMBERS.get();
            NUMBERS.set(number + 1);
            Self { end: end.0, number }
        }
    }

    impl Future for Timer {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if NOW.get() >= self.end {
                return Poll::Ready(());
            }
            let (at, waker) = ((self.end, self.number), cx.waker().clone());
            SLEEPERS.with_borrow_mut(|sleepers| sleepers.insert(at, waker));
            if let Some(clock_task) = CLOCK_TASK.take() {
                clock_task.wake();
            }
            Poll::Pending
        }
    }

    impl Drop for Timer {
        fn drop(&mut self) {
            SLEEPERS.with_borrow_mut(|sleepers| sleepers.remove(&(self.end, self.number)));
        }
    }
}
