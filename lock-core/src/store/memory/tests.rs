use super::backend::MemoryBackend;
use super::*;
use crate::client_info::ClientInfo;
use crate::replicas::RequiredReplicas;
use crate::store::contract::Backend;

const LEASE: Duration = Duration::from_secs(10);

const GRANTED: Acquired = Acquired::Granted(Grant { term: LEASE, fence: None, is_transfer: false });

impl Keys {
    /// Without claims that wait.
    fn take(&mut self, claim: Claim<'_>, now: BootInstant) -> Acquired {
        self.try_acquire(claim, now, |_| None).0
    }

    /// Without claims that wait.
    fn free(&mut self, one: &Release<'_>, now: BootInstant) -> Released {
        self.release(one, now, |_| None).0
    }
}

fn owner() -> OwnerId {
    OwnerId::new().expect("randomness")
}

fn claim(key: &str, owner: OwnerId) -> Claim<'_> {
    Claim {
        resource: Resource::exclusive(key),
        owner,
        term: LEASE,
        renewed: true,
        fresh: true,
        acknowledged_by: RequiredReplicas::NONE,
        queueing: Queueing::None,
        queued_before: Queueing::None,
    }
}

fn renewal(owner: OwnerId, term: Duration) -> Renewal<'static> {
    let acknowledged_by = RequiredReplicas::NONE;
    Renewal { resource: Resource::exclusive("k"), owner, term, acknowledged_by }
}

fn release(owner: OwnerId, keep: Duration) -> Release<'static> {
    let resource = Resource::exclusive("k");
    Release { resource, owner, keep, queued: Some(LEASE), leaves_gap: false }
}

#[test]
fn a_key_has_one_owner_until_its_lease_ends() {
    let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
    assert_eq!(keys.take(claim("k", one), start), GRANTED);
    let later = start.after(LEASE / 2);
    assert_eq!(keys.take(claim("k", two), later), Acquired::Busy(Left::Time(LEASE / 2)));
    assert_eq!(keys.take(claim("k", two), start.after(LEASE)), GRANTED);
}

#[test]
fn the_holder_of_a_key_is_this_process_since_its_acquisition() {
    let (backend, one) = (MemoryBackend::new(), owner());
    let holder = || backend.holder("k").known().expect("known at once").expect("it answers");
    assert_eq!(holder(), None);
    backend.handles[0].keys().take(claim("k", one), BootInstant::now());
    let found = holder().expect("held");
    assert_eq!(found.began, Some(one.began()));
    let ClientInfo { process, started, .. } = found.client;
    assert_eq!((process, started), (Some(std::process::id()), None), "not started just now");
}

#[test]
fn a_set_is_granted_as_a_whole_and_passes_over_no_claim_that_waits() {
    let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
    let set = |owner| SetClaim { keys: &["a", "k"], owner, term: LEASE };
    keys.take(claim("k", one), start);
    assert_eq!(keys.try_acquire_all(&set(two), start), SetAcquired::Busy(1));
    assert_eq!(keys.take(claim("a", one), start), GRANTED, "it was not taken");
    let (expired, waiting) = (start.after(LEASE), owner());
    keys.queues.enter("k", waiting, LEASE);
    assert_eq!(keys.try_acquire_all(&set(two), expired), SetAcquired::Busy(1), "a claim waits");
    keys.queues.leave("k", waiting);
    assert_eq!(keys.try_acquire_all(&set(two), expired), SetAcquired::Granted);
    assert_eq!(keys.try_acquire_all(&set(two), expired), SetAcquired::Granted, "once more");
    assert_eq!(keys.try_acquire_all(&set(one), expired), SetAcquired::Busy(0));
}

#[test]
fn a_repeated_claim_of_the_owner_is_granted_again() {
    let (mut keys, start, one) = (Keys::new(), BootInstant::now(), owner());
    keys.take(claim("k", one), start);
    let again = start.after(LEASE / 2);
    assert_eq!(keys.take(claim("k", one), again), GRANTED);
    assert!(keys.live("k", start.after(LEASE)).is_some(), "the lease counts from the second claim");
}

#[test]
fn a_repeated_claim_does_not_shorten_an_extended_lease() {
    let (mut keys, start, one) = (Keys::new(), BootInstant::now(), owner());
    keys.take(claim("k", one), start);
    let longer = renewal(one, LEASE * 3);
    assert_eq!(keys.renew(&longer, start), Renewed::Extended);
    assert_eq!(keys.take(claim("k", one), start), GRANTED);
    assert!(keys.live("k", start.after(LEASE * 2)).is_some());
}

#[test]
fn only_the_owner_renews_and_releases() {
    let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
    keys.take(claim("k", one), start);
    let foreign = renewal(two, LEASE);
    assert_eq!(keys.renew(&foreign, start), Renewed::Taken);
    assert_eq!(keys.free(&release(two, Duration::ZERO), start), Released::Taken);
    assert_eq!(keys.free(&release(one, Duration::ZERO), start), Released::Freed { woken: 0 });
    let stale = renewal(one, LEASE);
    assert_eq!(keys.renew(&stale, start), Renewed::Gone);
    assert_eq!(keys.free(&release(one, Duration::ZERO), start), Released::Gone);
}

#[test]
fn a_key_that_is_kept_after_its_release_expires() {
    let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
    keys.take(claim("k", one), start);
    assert_eq!(keys.free(&release(one, LEASE / 2), start), Released::Freed { woken: 0 });
    assert_eq!(keys.take(claim("k", two), start), Acquired::Busy(Left::Time(LEASE / 2)));
    let late = renewal(one, LEASE);
    assert_eq!(keys.renew(&late, start), Renewed::Taken, "the key is not extended");
    let later = start.after(LEASE / 2);
    assert_eq!(keys.take(claim("k", two), later), GRANTED);
}

#[test]
fn fencing_tokens_rise_even_if_the_wall_clock_goes_back() {
    let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
    keys.take(claim("k", one), start);
    assert_eq!(keys.fence(Resource::exclusive("k"), one, start, 1000), Fenced::With(1000));
    assert_eq!(keys.fence(Resource::exclusive("k"), one, start, 1000), Fenced::With(1001));
    assert_eq!(keys.fence(Resource::exclusive("k"), one, start, 10), Fenced::With(1002));
    assert_eq!(keys.fence(Resource::exclusive("k"), one, start, 2000), Fenced::With(2000));
    assert_eq!(keys.fence(Resource::exclusive("k"), two, start, 3000), Fenced::Taken);
    assert_eq!(keys.fence(Resource::exclusive("k"), one, start.after(LEASE), 3000), Fenced::Gone);
}

#[test]
fn abandoned_keys_do_not_accumulate() {
    let (mut keys, start, one) = (Keys::new(), BootInstant::now(), owner());
    for n in 0..10 * FIRST_PURGE {
        let now = start.after(LEASE * u32::try_from(n).expect("small"));
        keys.take(claim(&n.to_string(), one), now);
    }
    assert!(keys.entries.len() <= FIRST_PURGE, "{}", keys.entries.len());
}

#[test]
fn stores_with_the_same_name_are_one_store() {
    let one = MemoryBackend::named("same");
    assert!(Arc::ptr_eq(&one, &MemoryBackend::named("same")));
    assert!(!Arc::ptr_eq(&one, &MemoryBackend::named("other")));
    assert!(!Arc::ptr_eq(&MemoryBackend::new(), &MemoryBackend::new()));
}

/// A claim that waits, with its subscription.
async fn waiting(store: &MemoryStore) -> (OwnerId, Subscription) {
    let owner = owner();
    let subscription = store.subscribe(Resource::exclusive("k"), owner, LEASE);
    let claim = Claim { fresh: false, queueing: Queueing::Woken, ..claim("k", owner) };
    let (timeout, trace) = (RequestTimeout::of(LEASE), SendTrace::default());
    match store.try_acquire(claim, timeout, &trace).await {
        Ok(Acquired::Queued(queued)) => subscription.queued(queued, BootInstant::now()),
        other => panic!("{other:?}"),
    }
    (owner, subscription)
}

#[tokio::test]
async fn a_release_gives_the_key_to_the_first_claim_that_still_waits() {
    let (store, holder) = (MemoryStore::new(), owner());
    store.keys().take(claim("k", holder), BootInstant::now());
    let (_, gone) = waiting(&store).await;
    let (next, subscription) = waiting(&store).await;
    let (last, later) = waiting(&store).await;
    drop(gone);
    assert_eq!(store.count_waiters(Resource::exclusive("k"), Lane::Caller).await, Ok(3));
    let freed = store.release_now(&release(holder, Duration::ZERO));
    assert_eq!(freed, Released::Freed { woken: 1 });
    subscription.woken().await;
    assert!(subscription.take_transfer().is_some() && later.take_transfer().is_none());
    assert_eq!(store.release_now(&release(last, Duration::ZERO)), Released::Taken);
    assert_eq!(
        store.count_waiters(Resource::exclusive("k"), Lane::Caller).await,
        Ok(0),
        "it has left"
    );
    let freed = store.release_now(&release(next, Duration::ZERO));
    assert_eq!(freed, Released::Freed { woken: 0 });
}

#[tokio::test]
async fn nobody_takes_an_expired_key_before_the_first_claim() {
    let (store, holder) = (MemoryStore::new(), owner());
    store.keys().take(claim("k", holder), BootInstant::now());
    let (first, subscription) = waiting(&store).await;
    let expired = BootInstant::now().after(LEASE);
    let other = claim("k", owner());
    let waits = |owner| store.shared.subscriptions.listener("k", owner);
    let (busy, message) = store.keys().try_acquire(other, expired, waits);
    assert!(matches!(busy, Acquired::Busy(_)), "{busy:?}");
    send(message);
    assert!(subscription.take_transfer().is_some());
    assert_eq!(store.keys().take(claim("k", first), expired), GRANTED);
}

#[tokio::test]
async fn a_key_that_stays_for_its_min_hold_wakes_the_first_claim() {
    let (store, holder) = (MemoryStore::new(), owner());
    store.keys().take(claim("k", holder), BootInstant::now());
    let (_, subscription) = waiting(&store).await;
    store.release_now(&release(holder, LEASE / 2));
    subscription.woken().await;
    assert!(subscription.take_transfer().is_none() && subscription.take_pause().is_some());
}
