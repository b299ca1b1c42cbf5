//! The acquires that have not ended. A release waits for them: otherwise it could come first, and
//! the lock would be left behind.
//!
//! An acquire on the runtime of its caller may take very long, because that runtime may be blocked, or not be driven. A
//! release waits for it only briefly. The one of the two that ends last sends another release.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::safeguard::Safeguard;
use crate::store::owner::OwnerId;
use crate::sync::{Mutex, lock};

/// The acquires that have not ended, by owner. An owner has one key.
#[derive(Debug, Default)]
pub(super) struct AcquiresInFlight(Mutex<HashMap<OwnerId, PendingAcquires>>);

#[derive(Debug)]
struct PendingAcquires {
    count: usize,
    /// Dropped when the last one ends.
    ended: watch::Sender<()>,
    /// Set when a release was answered that has not waited for them: for how long it keeps the key.
    released: Option<Duration>,
}

/// An acquire that has not ended.
#[derive(Debug)]
pub(super) struct AcquireInFlight {
    all: Arc<AcquiresInFlight>,
    owner: OwnerId,
}

impl AcquiresInFlight {
    pub(super) fn begin(self: &Arc<Self>, owner: OwnerId) -> AcquireInFlight {
        let mut all = lock(&self.0);
        let new = || PendingAcquires { count: 0, ended: watch::Sender::new(()), released: None };
        all.entry(owner).or_insert_with(new).count += 1;
        AcquireInFlight { all: Arc::clone(self), owner }
    }

    /// Resolves when no acquire of this owner is in flight, or after this time. Returns whether there is none.
    pub(super) fn ended(
        &self,
        owner: OwnerId,
        limit: Option<Duration>,
    ) -> impl Future<Output = bool> + Send + use<> {
        let ended = lock(&self.0).get(&owner).map(|acquires| acquires.ended.subscribe());
        async move {
            let Some(mut ended) = ended else { return true };
            // Nothing is ever sent.
            let ended = async { drop(ended.changed().await) };
            match limit {
                None => ended.await,
                Some(limit) => return timeout(limit, ended).await.is_ok(),
            }
            true
        }
    }

    /// Tells the acquires of this owner that are in flight that it was released. Returns whether there are any.
    pub(super) fn tell_released(&self, owner: OwnerId, keep: Duration) -> bool {
        let mut all = lock(&self.0);
        let Some(acquires) = all.get_mut(&owner) else { return false };
        acquires.released = Some(keep);
        true
    }
}

impl AcquireInFlight {
    /// For how long the key is kept, if the owner was released, and the release has not waited for this acquire.
    pub(super) fn released(&self) -> Option<Duration> {
        let released = lock(&self.all.0).get(&self.owner)?.released;
        released.filter(|_| Safeguard::LateAcquiresAreReleased.is_on())
    }
}

impl Drop for AcquireInFlight {
    fn drop(&mut self) {
        if let Entry::Occupied(mut acquires) = lock(&self.all.0).entry(self.owner) {
            acquires.get_mut().count -= 1;
            if acquires.get().count == 0 {
                acquires.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_release_waits_for_all_acquires_of_its_owner() {
        let all = Arc::new(AcquiresInFlight::default());
        let [one, other] = [(), ()].map(|()| OwnerId::new().expect("randomness"));
        let (first, second, _other) = (all.begin(one), all.begin(one), all.begin(other));
        let ended = tokio::spawn(all.ended(one, None));
        assert!(!is_over(&ended).await);
        drop(first);
        assert!(!is_over(&ended).await);
        drop(second);
        assert!(is_over(&ended).await);
        assert!(all.ended(one, None).await && !all.tell_released(one, Duration::ZERO));
        assert_eq!(lock(&all.0).len(), 1, "nothing is left of it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquire_learns_of_a_release_that_has_not_waited() {
        let limit = Duration::from_secs(1);
        let (all, owner) =
            (Arc::new(AcquiresInFlight::default()), OwnerId::new().expect("randomness"));
        let (began, acquire) = (Instant::now(), all.begin(owner));
        assert!(!all.ended(owner, Some(limit)).await);
        assert_eq!(began.elapsed().as_secs(), limit.as_secs());
        assert_eq!(acquire.released(), None, "the release has no answer");
        assert!(all.tell_released(owner, limit));
        assert_eq!(acquire.released(), Some(limit));
        drop(acquire);
        assert_eq!(all.begin(owner).released(), None, "nothing is left of it");
    }

    async fn is_over<T>(task: &JoinHandle<T>) -> bool {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        task.is_finished()
    }
}
