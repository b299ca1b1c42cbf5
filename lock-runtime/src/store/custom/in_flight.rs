//! The acquires of a custom store that have not ended. A release waits for them: otherwise it could come first, and
//! the lock would be left behind.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

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
    /// The last one has ended by then.
    until: Instant,
}

/// An acquire that has not ended.
#[derive(Debug)]
pub(super) struct AcquireInFlight {
    all: Arc<AcquiresInFlight>,
    owner: OwnerId,
    until: Instant,
}

impl AcquiresInFlight {
    /// An acquire of this owner that lasts for at most this time.
    pub(super) fn begin(self: &Arc<Self>, owner: OwnerId, lasts: Duration) -> AcquireInFlight {
        let until = Instant::now() + lasts;
        let mut all = lock(&self.0);
        let new = || PendingAcquires { count: 0, ended: watch::Sender::new(()), until };
        let acquires = all.entry(owner).or_insert_with(new);
        (acquires.count, acquires.until) = (acquires.count + 1, acquires.until.max(until));
        AcquireInFlight { all: Arc::clone(self), owner, until }
    }

    /// Resolves when no acquire of this owner is in flight.
    pub(super) fn ended(&self, owner: OwnerId) -> impl Future<Output = ()> + Send + use<> {
        let pending = lock(&self.0).get(&owner).map(|it| (it.ended.subscribe(), it.until));
        async move {
            if let Some((mut ended, until)) = pending {
                // Nothing is ever sent. A runtime that is not driven ends no acquire.
                let _ = timeout_at(until, ended.changed()).await;
            }
        }
    }
}

impl AcquireInFlight {
    /// Whether its time is over, so that a release may have come before it.
    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.until
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

    use super::*;

    const LASTS: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_release_waits_for_all_acquires_of_its_owner() {
        let all = Arc::new(AcquiresInFlight::default());
        let [one, other] = [(), ()].map(|()| OwnerId::new().expect("randomness"));
        let [first, second, _other] = [one, one, other].map(|owner| all.begin(owner, LASTS));
        let ended = tokio::spawn(all.ended(one));
        assert!(!is_over(&ended).await);
        drop(first);
        assert!(!is_over(&ended).await);
        drop(second);
        assert!(is_over(&ended).await);
        all.ended(one).await;
        assert_eq!(lock(&all.0).len(), 1, "nothing is left of it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_does_not_wait_for_a_runtime_that_is_not_driven() {
        let (all, owner) =
            (Arc::new(AcquiresInFlight::default()), OwnerId::new().expect("randomness"));
        let (began, unpolled) = (Instant::now(), all.begin(owner, LASTS));
        assert!(!unpolled.is_late());
        all.ended(owner).await;
        assert_eq!(began.elapsed().as_secs(), LASTS.as_secs());
        assert!(unpolled.is_late(), "it is not sent any more");
    }

    async fn is_over(task: &JoinHandle<()>) -> bool {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        task.is_finished()
    }
}
