//! The acquires of a custom store that have not ended. A release waits for them: otherwise it could come first, and
//! the lock would be left behind.
//!
//! An acquire on the runtime of its caller may take very long, because that runtime may be blocked, or not be driven. A
//! release waits for it only briefly, and is repeated when the acquire has ended.

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
    /// Whether a release has not waited for them.
    was_released: bool,
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
        let ended = || watch::Sender::new(());
        let new = || PendingAcquires { count: 0, ended: ended(), was_released: false };
        all.entry(owner).or_insert_with(new).count += 1;
        AcquireInFlight { all: Arc::clone(self), owner }
    }

    /// Resolves when no acquire of this owner is in flight, or after this time. The acquires learn of the release then.
    pub(super) fn ended(
        self: &Arc<Self>,
        owner: OwnerId,
        limit: Option<Duration>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let ended = lock(&self.0).get(&owner).map(|acquires| acquires.ended.subscribe());
        let all = Arc::clone(self);
        async move {
            let Some(mut ended) = ended else { return };
            // Nothing is ever sent.
            let Some(limit) = limit else { return drop(ended.changed().await) };
            if timeout(limit, ended.changed()).await.is_err()
                && let Some(acquires) = lock(&all.0).get_mut(&owner)
            {
                acquires.was_released = true;
            }
        }
    }
}

impl AcquireInFlight {
    /// Whether the owner was released, and the release has not waited.
    pub(super) fn was_released(&self) -> bool {
        let was_released = lock(&self.all.0).get(&self.owner).is_some_and(|it| it.was_released);
        was_released && Safeguard::LateAcquiresAreReleased.is_on()
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
        assert!(!is_over(&ended).await && !second.was_released());
        drop(second);
        assert!(is_over(&ended).await);
        all.ended(one, None).await;
        assert_eq!(lock(&all.0).len(), 1, "nothing is left of it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquire_learns_of_a_release_that_has_not_waited() {
        let limit = Duration::from_secs(1);
        let (all, owner) =
            (Arc::new(AcquiresInFlight::default()), OwnerId::new().expect("randomness"));
        let (began, acquire) = (Instant::now(), all.begin(owner));
        all.ended(owner, Some(limit)).await;
        assert_eq!(began.elapsed().as_secs(), limit.as_secs());
        assert!(acquire.was_released());
        drop(acquire);
        assert!(!all.begin(owner).was_released(), "nothing is left of it");
    }

    async fn is_over(task: &JoinHandle<()>) -> bool {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        task.is_finished()
    }
}
