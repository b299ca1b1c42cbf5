//! How long the machine stood still: tests that require something to be quick do not count that time.
//!
//! A thread sleeps for a few milliseconds again and again, and notes by how much each sleep was too long. The machine was busy
//! with something else meanwhile, as it was for all other threads of the test, or it was suspended. What a test waits for needs
//! several threads and processes one after the other, each of which may be kept waiting like that.

use std::collections::VecDeque;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread sleeps, and how much longer that takes on a quiet machine, at most.
const NAP: Duration = Duration::from_millis(5);
const USUAL: Duration = Duration::from_millis(2);

/// The number of stalls that are remembered.
const MOST: usize = 100_000;

#[derive(Debug)]
struct Stalls {
    /// When each stall has ended, and how long it was.
    ended: VecDeque<(Instant, Duration)>,
    /// When the thread fell asleep.
    asleep_since: Instant,
}

static STALLS: LazyLock<Mutex<Stalls>> = LazyLock::new(|| {
    std::thread::spawn(measure);
    Mutex::new(Stalls { ended: VecDeque::new(), asleep_since: Instant::now() })
});

/// Begins to measure.
pub(crate) fn watch() {
    LazyLock::force(&STALLS);
}

fn measure() {
    let mut began = Instant::now();
    loop {
        std::thread::sleep(NAP);
        let now = Instant::now();
        let stall = (now - began).saturating_sub(NAP);
        began = now;
        let mut stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
        stalls.asleep_since = now;
        if stall > USUAL {
            if stalls.ended.len() == MOST {
                stalls.ended.pop_front();
            }
            stalls.ended.push_back((now, stall));
        }
    }
}

/// The time since then in which the machine did not stand still. What was before the first server of this process counts as if it
/// had not.
#[must_use]
pub fn running_time(since: impl Into<Instant>) -> Duration {
    let since = since.into();
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let current = (now - stalls.asleep_since).saturating_sub(NAP + USUAL);
    let recent = stalls.ended.iter().rev().take_while(|(ended, _)| *ended > since);
    // A stall may have begun before.
    let ended: Duration = recent.map(|(ended, stall)| (*stall).min(*ended - since)).sum();
    (now - since).saturating_sub(ended + current.min(now - since))
}
