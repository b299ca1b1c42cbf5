use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::cleanup::CleanupReason;
use super::renewal;
use super::*;
use crate::clock::BootInstant;
use crate::engine::handoff::{Hold, Offer};
use crate::engine::lease::Terms;
use crate::engine::local_queue::Entered;
use crate::engine::testing::{UNREAD, hold_in, locked_in, permit};
use crate::error::LockError;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{LockStore, Place};
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::hold_reports::HoldReport;
use crate::store::memory::MemoryStore;

const TERM: Duration = Duration::from_secs(10);

const TERMS: Terms = Terms {
    term: TERM,
    renewed: true,
    max_hold: None,
    min_hold: Duration::ZERO,
    acknowledged_by: RequiredReplicas::NONE,
    linger: Duration::ZERO,
    site: &UNREAD,
};

/// The only place, and no replicas.
const HERE: (Place, RequiredReplicas) = (Place::ONLY, RequiredReplicas::NONE);

fn store() -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(MemoryStore::new()))
}

/// A background without threads: its test calls what the threads would call.
fn without_threads(queues: &Arc<LocalQueues>) -> Background {
    Background { shared: BackgroundState::new(Notifier::new(Arc::clone(queues)), Arc::default()) }
}

/// Processes all notices, as the notifier thread does.
async fn notify(background: &Background) {
    background.shared.notifier.close();
    background.shared.notifier.run().await;
}

/// A renewed lease of `key` in `store` that the background has.
fn watched(background: &Background, store: &Arc<FaultyStore>, key: &str) -> Arc<Lease> {
    let store = Arc::clone(store) as Arc<dyn LockStore>;
    let hold = hold_in(store, key, &TERMS, BootInstant::now());
    background.watch(hold.lease());
    Arc::clone(hold.lease())
}

#[tokio::test]
async fn a_cleanup_after_the_end_of_the_background_thread_gives_its_permit_back() {
    let queues = Arc::new(LocalQueues::default());
    let background = without_threads(&queues);
    background.shared.fail("the thread has ended".into());
    let permit = permit(&queues, "k");
    let Entered::Queued(mut waiter) = queues.enter(&Arc::from("k"), false) else { panic!("taken") };
    background.clean_up(Cleanup {
        locked: locked_in("k", store()),
        gone_by: BootInstant::now().after(TERM),
        kept_until: BootInstant::PAST,
        valid_until: BootInstant::PAST,
        leaves_gap: false,
        confirmed: BootInstant::PAST,
        reason: CleanupReason::Released,
        site: None,
        permit: Some(permit),
    });
    assert_eq!(background.releasing(), 0);
    notify(&background).await;
    let offer = Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(offer, Poll::Ready(Some(Offer::Permit(_)))), "{offer:?}");
}

#[tokio::test]
async fn a_renewal_that_finds_a_value_of_another_format_is_a_loss() {
    let (store, background) = (store(), without_threads(&Arc::default()));
    store.next_renewals([Fault::WrongFormat]);
    let handle = Arc::clone(&store) as Arc<dyn LockStore>;
    let hold = hold_in(handle, "k", &TERMS, BootInstant::now());
    background.watch(hold.lease());
    let leases = vec![Arc::clone(hold.lease())];
    renewal::renew(Arc::clone(&background.shared), HERE, leases).await;
    match hold.loss() {
        Some(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
        other => panic!("{other:?}"),
    }
    let open = (background.held_count(), background.releasing());
    assert_eq!(open, (0, 0), "no request is sent for the key");
    assert_eq!(background.lost(), 1);
}

/// The reason that is recorded if a renewal finds the key of this hold gone.
async fn reason_of_loss(background: &Background, hold: &Hold) -> LostReason {
    let leases = vec![Arc::clone(hold.lease())];
    // The store has never granted this lease.
    renewal::renew(Arc::clone(&background.shared), HERE, leases).await;
    match hold.loss() {
        Some(LockError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_loss_after_the_data_has_moved_is_that_of_the_failover() {
    let (store, background) = (store(), without_threads(&Arc::default()));
    let hold = |key: &str| {
        let store = Arc::clone(&store) as Arc<dyn LockStore>;
        let hold = hold_in(store, key, &TERMS, BootInstant::now());
        background.watch(hold.lease());
        hold
    };
    let (before, confirmed) = (hold("before"), hold("confirmed"));
    background.shared.verify_if_moved();
    assert!(background.shared.schedule.due(BootInstant::now()).renew.is_empty());

    background.shared.reported(HoldReport::Moved);
    background.shared.verify_if_moved();
    let due = background.shared.schedule.due(BootInstant::now()).renew;
    assert_eq!(due.len(), 2, "both are verified at once");
    assert_eq!(reason_of_loss(&background, &before).await, LostReason::Failover);

    let granted = BootInstant::now();
    background.shared.reported(HoldReport::Moved);
    background.shared.verify_if_moved();
    background.shared.schedule.due(BootInstant::now());
    let late = hold_in(Arc::clone(&store) as Arc<dyn LockStore>, "late", &TERMS, granted);
    background.watch(late.lease());
    let due = background.shared.schedule.due(BootInstant::now()).renew;
    assert!(due.iter().any(|due| Arc::ptr_eq(due, late.lease())), "its answer came too late");

    confirmed.lease().extended(BootInstant::now(), None);
    assert_eq!(reason_of_loss(&background, &confirmed).await, LostReason::Gone);
    assert_eq!(reason_of_loss(&background, &hold("after")).await, LostReason::Gone);
}

#[tokio::test]
async fn a_renewal_that_panics_is_repeated() {
    let (store, background) = (store(), without_threads(&Arc::default()));
    store.next_renewals([Fault::Panic]);
    let sent = BootInstant::now();
    let leases: Vec<Arc<Lease>> =
        (0..3).map(|n| watched(&background, &store, &format!("k{n}"))).collect();
    let due = background.shared.schedule.due(sent.after(TERM / 2)).renew;
    assert_eq!(due.len(), leases.len());
    let renew = renewal::renew(Arc::clone(&background.shared), HERE, due);
    assert!(tokio::spawn(renew).await.is_err_and(|error| error.is_panic()));
    let again = background.shared.schedule.due(BootInstant::now().after(TERM / 2)).renew;
    assert_eq!(again.len(), leases.len(), "before the deadline");
}

/// There are more leases at the blocked place than may be renewed at a time.
#[tokio::test]
async fn a_blocked_place_does_not_delay_the_renewals_of_other_places() {
    let (store, background) = (store(), without_threads(&Arc::default()));
    store.next_renewals([Fault::Hang; 16]);
    let stuck: Vec<Arc<Lease>> = (0..2000)
        .map(|n| {
            let key = format!("stuck{n}");
            store.set_place(&key, Place::numbered(1));
            watched(&background, &store, &key)
        })
        .collect();
    renewal::start(&background.shared, stuck);
    tokio::task::yield_now().await;
    let other = watched(&background, &store, "other");
    let deadline = other.deadline();
    let owner = other.locked().owner;
    let claim = crate::store::contract::Claim {
        resource: other.locked().resource(),
        owner,
        term: TERM,
        renewed: true,
        fresh: true,
        acknowledged_by: RequiredReplicas::NONE,
        queueing: crate::store::contract::Queueing::None,
        queued_before: crate::store::contract::Queueing::None,
    };
    let timeout = crate::timeout::RequestTimeout::of(TERM);
    let trace = crate::store::contract::SendTrace::default();
    store.try_acquire(claim, timeout, &trace).await.expect("free");
    renewal::start(&background.shared, vec![Arc::clone(&other)]);
    let renewed = async {
        while other.deadline() <= deadline {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(TERM / 10, renewed).await.is_ok());
}
