//! The race of a renewal with the expiry of its key, in the memory store alone.
//!
//! One task renews the key at the instant of its expiry, and another one releases it. The model
//! asserts that afterwards the key no longer has its owner, whether the release has freed it or has
//! found it gone. This model has no control.

use super::*;

/// A key expires while it is renewed and released.
async fn race() {
    let (store, owner) = (MemoryStore::new(), new_owner());
    let granted = ready(store.try_acquire(claim(owner, TERM), NO_TIMEOUT, &SendTrace::default()));
    assert_eq!(granted, Ok(Acquired::Granted(Grant::of(TERM))));
    time::advance(TERM.saturating_sub(Duration::from_nanos(1)));
    let renewal = {
        let store = Arc::clone(&store);
        spawn(async move {
            let resource = Resource::exclusive("k");
            let acknowledged_by = RequiredReplicas::NONE;
            let renewal = [Renewal { resource, owner, term: TERM, acknowledged_by }];
            ready(store.renew(&renewal, Lane::Background));
        })
    };
    yield_randomly(3).await;
    time::advance(Duration::from_nanos(1));
    let released = ready(store.release(release(owner), Lane::Background));
    renewal.await.expect("not aborted");
    let left = ready(store.fence(Resource::exclusive("k"), owner, 0));
    assert_eq!(left, Ok(Fenced::Gone), "after the release: {released:?}");
}

#[test]
fn a_renewal_does_not_revive_an_expired_or_released_key() {
    explore(race);
}
