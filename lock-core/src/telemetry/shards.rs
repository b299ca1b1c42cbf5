//! The shards of measurements, and which one a thread uses.
//!
//! Threads that acquire the same lock would take the cache lines of shared counters from each other, and
//! an atomic addition costs several times as much as a plain one. So up to `EXCLUSIVE_SHARDS` threads
//! have a shard of their own. Further threads share the others.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of shards that belong to one thread at a time.
const EXCLUSIVE_SHARDS: usize = 16;
/// The number of shards.
pub const SHARDS: usize = EXCLUSIVE_SHARDS + 8;

/// The exclusive shards that belong to a thread, as bits.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

/// The shard of a thread.
struct ThreadShard {
    number: usize,
}

thread_local! {
    static THREAD_SHARD: ThreadShard = ThreadShard::claim();
}

impl ThreadShard {
    /// Claims a shard for this thread.
    fn claim() -> Self {
        static OTHERS: AtomicUsize = AtomicUsize::new(0);
        let claim = |claimed: u64| {
            (lowest_free(claimed) < EXCLUSIVE_SHARDS).then_some(claimed | (claimed + 1))
        };
        // The last thread with this shard has released it, so its additions are visible here.
        let number = match CLAIMED.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim) {
            Ok(claimed) => lowest_free(claimed),
            Err(_) => {
                let others = SHARDS - EXCLUSIVE_SHARDS;
                EXCLUSIVE_SHARDS + OTHERS.fetch_add(1, Ordering::Relaxed) % others
            }
        };
        Self { number }
    }
}

/// The lowest number whose bit is not set.
fn lowest_free(claimed: u64) -> usize {
    claimed.trailing_ones() as usize
}

impl Drop for ThreadShard {
    fn drop(&mut self) {
        if self.number < EXCLUSIVE_SHARDS {
            CLAIMED.fetch_and(!(1 << self.number), Ordering::Release);
        }
    }
}

/// The shard of this thread.
#[inline]
pub fn current() -> (usize, Adder) {
    // A thread that ends has no shard any more.
    let number = THREAD_SHARD.try_with(|shard| shard.number).unwrap_or(EXCLUSIVE_SHARDS);
    (number, if number < EXCLUSIVE_SHARDS { Adder::Exclusive } else { Adder::Shared })
}

/// Adds to counters, which wrap around.
#[derive(Debug, Clone, Copy)]
pub enum Adder {
    /// Only this thread writes them.
    Exclusive,
    /// Other threads may write them at the same time.
    Shared,
}

impl Adder {
    #[inline]
    pub fn add(self, counter: &AtomicU64, added: u64) {
        match self {
            Self::Exclusive => {
                let sum = counter.load(Ordering::Relaxed).wrapping_add(added);
                counter.store(sum, Ordering::Relaxed);
            }
            Self::Shared => {
                counter.fetch_add(added, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub fn increment(self, counter: &AtomicU64) {
        self.add(counter, 1);
    }

    #[inline]
    pub fn decrement(self, counter: &AtomicU64) {
        self.add(counter, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn no_addition_is_lost_among_more_threads_than_shards() {
        const THREADS: usize = 2 * SHARDS;
        const ADDITIONS: u64 = 200_000;
        let counters: [AtomicU64; SHARDS] = std::array::from_fn(|_| AtomicU64::new(0));
        let all_run = Barrier::new(THREADS);
        // Shards that the first threads gave back belong to later threads.
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let (number, adder) = current();
                        all_run.wait();
                        for _ in 0..ADDITIONS {
                            adder.increment(&counters[number]);
                        }
                    });
                }
            });
        }
        let sum: u64 = counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 3 * THREADS as u64 * ADDITIONS);
    }

    #[test]
    fn threads_at_the_same_time_have_different_exclusive_shards() {
        const THREADS: usize = EXCLUSIVE_SHARDS;
        let all_run = Barrier::new(THREADS);
        let numbers = std::thread::scope(|scope| {
            let threads: [_; THREADS] = std::array::from_fn(|_| {
                scope.spawn(|| {
                    let (number, _) = current();
                    all_run.wait();
                    number
                })
            });
            threads.map(|thread| thread.join().expect("no panic"))
        });
        let mut seen = HashSet::new();
        let mut exclusive = numbers.iter().filter(|number| **number < EXCLUSIVE_SHARDS);
        assert!(exclusive.all(|number| seen.insert(number)), "{numbers:?}");
    }

    #[test]
    fn counters_wrap_around() {
        for adder in [Adder::Exclusive, Adder::Shared] {
            let counter = AtomicU64::new(0);
            adder.decrement(&counter);
            assert_eq!(counter.load(Ordering::Relaxed), u64::MAX);
            adder.increment(&counter);
            assert_eq!(counter.load(Ordering::Relaxed), 0);
        }
    }
}
