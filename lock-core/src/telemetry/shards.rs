//! The shards of measurements, and which one a thread uses.
//!
//! Threads that acquire the same lock would take the cache lines of shared counters from each other. So threads are
//! numbered at their first measurement, and only those whose numbers differ by a multiple of [`SHARDS`] share a shard.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of shards.
pub const SHARDS: usize = 16;

/// The shard of this thread.
#[inline]
pub fn current() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A thread that ends may have no number any more.
    SHARD.try_with(|shard| *shard).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn one_thread_after_the_other_has_each_of_the_shards() {
        let shard_of_a_thread = || std::thread::spawn(current).join().expect("no panic");
        // Other tests begin threads as well, so a thread that begins last may have the shard of the first.
        let differ = (0..100).filter(|_| shard_of_a_thread() != shard_of_a_thread()).count();
        assert!(differ > 50, "{differ}");
        let used: HashSet<_> = (0..100 * SHARDS).map(|_| shard_of_a_thread()).collect();
        assert_eq!(used.len(), SHARDS);
    }
}
