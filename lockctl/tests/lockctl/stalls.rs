//! The time for which this machine lets nobody run, as opposed to the time that a program takes.
//!
//! A process cannot keep a promise about time while the machine does not run it. [`StallMonitor`] finds these times with
//! threads that ask for nothing but to be woken regularly: whenever one of them is late, the machine is stalled. What a
//! test asserts is then the time for which the machine was responsive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_tests::boot_nanos;

/// The number of threads, more than a small machine has cores.
const THREADS: usize = 4;

/// How often each of them is woken.
const PERIOD: Duration = Duration::from_nanos(PROMPT);

/// By how much a thread may be late on a machine that is not stalled, in nanoseconds.
const PROMPT: u64 = 2_000_000;

/// Watches the machine until it is dropped.
pub(crate) struct StallMonitor {
    threads: Vec<Arc<WatchingThread>>,
    ends: Arc<AtomicBool>,
}

#[derive(Default)]
struct WatchingThread {
    /// When it is to be woken next.
    due: AtomicU64,
    /// When it was due too long before it was woken, and when it was woken.
    stalls: Mutex<Vec<(u64, u64)>>,
}

impl StallMonitor {
    pub(crate) fn start() -> Self {
        let ends = Arc::<AtomicBool>::default();
        let start = |_| {
            let (thread, ends) = (Arc::<WatchingThread>::default(), Arc::clone(&ends));
            thread.set_due();
            let watching = Arc::clone(&thread);
            std::thread::spawn(move || watching.watch(&ends));
            thread
        };
        Self { threads: (0..THREADS).map(start).collect(), ends }
    }

    /// The time between these two, in nanoseconds since the start of the machine, without its stalls.
    pub(crate) fn responsive(&self, from: u64, to: u64) -> Duration {
        let mut stalls: Vec<(u64, u64)> = self.threads.iter().flat_map(|it| it.stalls()).collect();
        stalls.sort_unstable();
        let (mut responsive, mut at) = (0, from);
        for (start, end) in stalls {
            responsive += start.min(to).saturating_sub(at);
            at = at.max(end);
        }
        Duration::from_nanos(responsive + to.saturating_sub(at))
    }
}

impl WatchingThread {
    fn watch(&self, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            std::thread::sleep(PERIOD);
            self.woken();
        }
    }

    fn set_due(&self) {
        self.due.store(boot_nanos() + PROMPT, Ordering::Relaxed);
    }

    fn woken(&self) {
        let (due, now) = (self.due.load(Ordering::Relaxed), boot_nanos());
        if now > due + PROMPT {
            self.stalls.lock().unwrap_or_else(PoisonError::into_inner).push((due, now));
        }
        self.set_due();
    }

    /// All stalls so far, also one that has not ended.
    fn stalls(&self) -> Vec<(u64, u64)> {
        let mut stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (due, now) = (self.due.load(Ordering::Relaxed), boot_nanos());
        stalls.extend((now > due + PROMPT).then_some((due, now)));
        stalls
    }
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

#[test]
fn stalls_are_no_responsive_time() {
    let thread = |stalls: &[(u64, u64)]| {
        let (due, stalls) = (AtomicU64::new(u64::MAX - PROMPT), Mutex::new(stalls.to_vec()));
        Arc::new(WatchingThread { due, stalls })
    };
    let threads = vec![thread(&[(10, 20), (50, 60)]), thread(&[(15, 30), (55, 58), (90, 200)])];
    let monitor = StallMonitor { threads, ends: Arc::default() };
    let responsive = |from, to| monitor.responsive(from, to).as_nanos();
    assert_eq!(responsive(0, 100), 10 + 20 + 30);
    assert_eq!([responsive(12, 18), responsive(25, 55), responsive(95, 99)], [0, 20, 0]);
    assert_eq!(responsive(60, 60), 0);
}
