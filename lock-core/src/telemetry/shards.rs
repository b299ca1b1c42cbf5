//! The shards of measurements, and which one a thread uses.
//!
//! Threads that acquire the same lock would take the cache lines of shared counters from each other. So each
//! thread has a shard, and shares it only with threads that began [`SHARDS`] threads earlier or later.

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
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn threads_that_begin_together_have_different_shards() {
        let shard_of_a_thread = || std::thread::spawn(current).join().expect("no panic");
        // Other tests begin threads as well, so a thread that begins last may have the shard of the first.
        let differ = (0..100).filter(|_| shard_of_a_thread() != shard_of_a_thread()).count();
        assert!(differ > 50, "{differ}");
        let used: HashSet<_> = (0..100 * SHARDS).map(|_| shard_of_a_thread()).collect();
        assert_eq!(used.len(), SHARDS);
    }
}
