//! Limits how many requests are in flight on a connection.
//!
//! A permit is returned when the future of its request is dropped. A future that is alive but not
//! polled keeps its permit although its answer arrived long ago, and the task that waits for a
//! permit may be the very task that ought to poll that future. Permits therefore expire while tasks
//! wait: those issued before the last response timeout began are issued once more, and are not
//! counted when they are returned.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use lock_core::user_code::contained;

/// How many requests of each class may be in flight on a connection.
pub(crate) const PERMITS: u32 = 1024;

/// The permits for one class of requests.
pub(crate) struct InFlightLimit {
    pub(crate) semaphore: Semaphore,
    /// Advances when a task has waited for a whole response timeout.
    epoch: AtomicUsize,
    /// The last epoch whose permits have expired.
    expired: AtomicUsize,
    /// The number of permits of each of the latest epochs that are in use.
    in_use: [AtomicU32; EPOCHS],
}

/// How many epochs are distinguished. All but the last two have expired.
const EPOCHS: usize = 4;

impl InFlightLimit {
    pub(crate) fn new() -> Self {
        let (epoch, expired) = (AtomicUsize::new(1), AtomicUsize::new(0));
        let semaphore = Semaphore::new(PERMITS as usize);
        Self { semaphore, epoch, expired, in_use: Default::default() }
    }

    /// Takes a permit if one is available. Returns the epoch in which it was issued.
    pub(crate) fn try_acquire(&self) -> Option<usize> {
        self.semaphore.try_acquire().ok().map(|permit| self.issue(permit))
    }

    /// Waits for a permit. `None` if the limit is closed first.
    pub(crate) async fn acquire(&self, response_timeout: Duration) -> Option<usize> {
        let mut acquiring = std::pin::pin!(self.semaphore.acquire());
        loop {
            let before = self.epoch.load(Ordering::Relaxed);
            match timeout(response_timeout, acquiring.as_mut()).await {
                Ok(permit) => return permit.ok().map(|permit| self.issue(permit)),
                Err(_) => self.expire_before(before),
            }
        }
    }

    fn issue(&self, permit: SemaphorePermit<'_>) -> usize {
        permit.forget();
        let epoch = self.epoch.load(Ordering::Relaxed);
        self.in_use(epoch).fetch_add(1, Ordering::Relaxed);
        epoch
    }

    fn in_use(&self, epoch: usize) -> &AtomicU32 {
        &self.in_use[epoch % EPOCHS]
    }

    /// A task has waited for a response timeout that began in `epoch`. Requests of earlier epochs
    /// have been answered since, or never will be.
    fn expire_before(&self, epoch: usize) {
        let relaxed = Ordering::Relaxed;
        if self.epoch.compare_exchange(epoch, epoch + 1, relaxed, relaxed).is_ok() {
            self.expired.store(epoch - 1, relaxed);
            let expired = self.in_use(epoch - 1).swap(0, relaxed);
            contained(|| self.semaphore.add_permits(expired as usize));
        }
    }

    /// Returns a permit that was issued in `epoch`.
    pub(crate) fn give_back(&self, epoch: usize) {
        let relaxed = Ordering::Relaxed;
        if epoch <= self.expired.load(relaxed) {
            return;
        }
        let one_less = |in_use: u32| in_use.checked_sub(1);
        if self.in_use(epoch).fetch_update(relaxed, relaxed, one_less).is_ok() {
            contained(|| self.semaphore.add_permits(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const RESPONSE_TIMEOUT: Duration = Duration::from_millis(20);

    fn all_of(permits: &InFlightLimit) -> Vec<usize> {
        std::iter::from_fn(|| permits.try_acquire()).collect()
    }

    #[tokio::test]
    async fn permits_that_are_not_returned_are_issued_once_more() {
        let permits = InFlightLimit::new();
        let first = all_of(&permits);
        assert_eq!(first.len(), PERMITS as usize);
        // Three tasks wait for a response timeout, and the permits expire only once.
        let wait = || permits.acquire(RESPONSE_TIMEOUT);
        let (one, two, three) = tokio::join!(wait(), wait(), wait());
        let mut second = all_of(&permits);
        second.extend([one, two, three].into_iter().flatten());
        assert_eq!(second.len(), PERMITS as usize);
        // An expired permit that is returned does not count.
        for epoch in first {
            permits.give_back(epoch);
        }
        assert_eq!(permits.try_acquire(), None, "there are no more than before");
        for epoch in second {
            permits.give_back(epoch);
        }
        assert_eq!(all_of(&permits).len(), PERMITS as usize);
    }

    #[tokio::test]
    async fn stuck_permits_are_issued_once_more_while_others_are_returned() {
        let permits = InFlightLimit::new();
        let mut stuck = all_of(&permits);
        let mut moving = vec![stuck.pop().expect("the last one")];
        let start = Instant::now();
        let mut most = 0;
        while most < 100 {
            moving.drain(..).for_each(|epoch| permits.give_back(epoch));
            moving.extend(permits.acquire(RESPONSE_TIMEOUT).await);
            moving.extend(all_of(&permits));
            // Permits expire only while a task waits.
            let waiting = permits.acquire(RESPONSE_TIMEOUT);
            let soon = tokio::time::timeout(RESPONSE_TIMEOUT * 3, waiting).await;
            moving.extend(soon.ok().flatten());
            most = most.max(moving.len());
            assert!(start.elapsed() < RESPONSE_TIMEOUT * 100, "{most} at a time at the most");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_that_are_returned_slowly_do_not_expire() {
        let permits = InFlightLimit::new();
        let mut issued = all_of(&permits);
        let slowly = async {
            for _ in 0..10 {
                tokio::time::sleep(RESPONSE_TIMEOUT / 4).await;
                permits.give_back(issued.pop().expect("many"));
            }
        };
        let enough = async {
            for _ in 0..10 {
                assert!(permits.acquire(RESPONSE_TIMEOUT).await.is_some());
            }
        };
        tokio::join!(enough, slowly);
        assert_eq!(permits.expired.load(Ordering::Relaxed), 0);
        assert_eq!(permits.try_acquire(), None);
    }

    #[tokio::test]
    async fn closing_the_limit_ends_waits_for_permits() {
        let permits = InFlightLimit::new();
        assert_eq!(all_of(&permits).len(), PERMITS as usize);
        let closing = async { permits.semaphore.close() };
        let (acquired, ()) = tokio::join!(permits.acquire(RESPONSE_TIMEOUT), closing);
        assert_eq!(acquired, None);
    }
}
