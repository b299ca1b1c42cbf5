//! The acquires of a custom store that have not ended. A release waits for them: otherwise it could come first, and
//! the lock would be left behind.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use tokio::sync::watch;

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
        let new = || PendingAcquires { count: 0, ended: watch::Sender::new(()) };
        all.entry(owner).or_insert_with(new).count += 1;
        AcquireInFlight { all: Arc::clone(self), owner }
    }

    /// Resolves when no acquire of this owner is in flight.
    pub(super) fn ended(&self, owner: OwnerId) -> impl Future<Output = ()> + Send + use<> {
        let ended = lock(&self.0).get(&owner).map(|acquires| acquires.ended.subscribe());
        async move {
            if let Some(mut ended) = ended {
                // Nothing is ever sent.
                let _ = ended.changed().await;
            }
        }
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

    #[tokio::test]
    async fn a_release_waits_for_all_acquires_of_its_owner() {
        let all = Arc::new(AcquiresInFlight::default());
        let [one, other] = [(), ()].map(|()| OwnerId::new().expect("randomness"));
        let (first, second, _other) = (all.begin(one), all.begin(one), all.begin(other));
        let ended = tokio::spawn(all.ended(one));
        assert!(!is_over(&ended).await);
        drop(first);
        assert!(!is_over(&ended).await);
        drop(second);
        assert!(is_over(&ended).await);
        all.ended(one).await;
        assert_eq!(lock(&all.0).len(), 1, "nothing is left of it");
    }

    async fn is_over(task: &JoinHandle<()>) -> bool {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        task.is_finished()
    }
}
