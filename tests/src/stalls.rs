//! How long the machine stood still: tests that require something to be quick do not count that time.
//!
//! Threads ask for nothing but to be woken regularly. Whenever one of them is late, the machine is busy with something else, or
//! suspended, and so are the threads and the processes of the test, of which one often waits for another. An assertion against
//! an event that happens in real time, such as the end of a lease, has to measure real time.

use std::collections::VecDeque;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::timeout;

/// How often each thread is woken, and how late that may be on a machine that does not stand still.
const PERIOD: Duration = Duration::from_millis(5);
const PROMPT: Duration = Duration::from_millis(2);

/// The number of stalls of a thread that are remembered.
const MOST: usize = 100_000;

/// What one of the threads has noted.
#[derive(Debug)]
struct WatchingThread {
    /// When it is to be woken next.
    due: Instant,
    /// When it was due too long before it was woken, and when it was woken.
    stalls: VecDeque<(Instant, Instant)>,
}

static THREADS: LazyLock<[Mutex<WatchingThread>; 2]> = LazyLock::new(|| {
    let new = |index| {
        std::thread::spawn(move || watch_with(index));
        Mutex::new(WatchingThread { due: Instant::now() + PERIOD, stalls: VecDeque::new() })
    };
    [new(0), new(1)]
});

/// Begins to watch the machine.
pub(crate) fn watch() {
    LazyLock::force(&THREADS);
}

fn watch_with(index: usize) {
    loop {
        std::thread::sleep(PERIOD);
        let mut thread = THREADS[index].lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now > thread.due + PROMPT {
            if thread.stalls.len() == MOST {
                thread.stalls.pop_front();
            }
            let due = thread.due;
            thread.stalls.push_back((due, now));
        }
        thread.due = now + PERIOD;
    }
}

/// The time since then in which the machine did not stand still, and at least a third of all time, so that limits end on every
/// machine. What was before the first server of this process counts as if the machine had not stood still.
#[must_use]
pub fn running_time(since: impl Into<Instant>) -> Duration {
    running_time_between(since, Instant::now())
}

/// The same between two times; nothing if `end` is the earlier one.
#[must_use]
pub fn running_time_between(since: impl Into<Instant>, end: impl Into<Instant>) -> Duration {
    let (since, end) = (since.into(), end.into());
    let mut stalls = Vec::new();
    for thread in &*THREADS {
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // One that has not ended.
        stalls.extend((now > thread.due + PROMPT).then_some((thread.due, now)));
        stalls.extend(thread.stalls.iter().rev().take_while(|(_, end)| *end > since));
    }
    stalls.sort_unstable();
    let (mut running, mut at) = (Duration::ZERO, since);
    for (start, stalled_until) in stalls {
        running += start.min(end).saturating_duration_since(at);
        at = at.max(stalled_until);
    }
    let all = end.saturating_duration_since(since);
    (running + end.saturating_duration_since(at)).max(all / 3)
}

/// What a future did not complete within.
#[derive(Debug)]
pub struct TooLate(#[allow(dead_code)] Duration);

/// The output of a future that has to complete within `limit`, in which the machine does not stand still.
///
/// # Errors
///
/// If it does not. The future is dropped then.
pub fn within<F: IntoFuture>(
    limit: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, TooLate>> {
    let (began, mut future) = (Instant::now(), Box::pin(future.into_future()));
    async move {
        loop {
            let left = limit.saturating_sub(running_time(began));
            if let Ok(output) = timeout(left, &mut future).await {
                return Ok(output);
            }
            if running_time(began) >= limit {
                return Err(TooLate(limit));
            }
        }
    }
}
