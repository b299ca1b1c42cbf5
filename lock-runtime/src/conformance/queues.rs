//! Claims that wait in queues of the store.

use std::time::Instant;

use super::fixture::{CheckedLocks, CheckedStore, LONG, PATIENCE, new_key, owner};
use crate::clock::BootInstant;
use crate::permits::Permits;
use crate::store::contract::{
    Acquired, Claim, Extension, Lane, Layout, Mode, Queued, Queueing, Release, Released, Resource,
};
use crate::store::owner::OwnerId;
use crate::store::queueing::transfer_term;
use crate::store::subscriptions::Subscription;

const ROUNDS: usize = 10;

/// The kinds of locks, each in a mode in which one owner excludes all others.
fn kinds() -> [(Layout, Mode); 3] {
    let permits = Mode::Permits(Permits::new(2, 3));
    [
        (Layout::TOKEN, Mode::Exclusive),
        (Layout::ReadWrite, Mode::Write),
        (Layout::Semaphore, permits),
    ]
}

/// An owner that waits in a queue.
struct Claimant {
    owner: OwnerId,
    subscription: Subscription,
    ahead: usize,
}

impl Claimant {
    async fn enter(locks: &CheckedLocks, resource: Resource<'_>) -> Self {
        let owner = owner();
        let subscription = locks.locks.subscribe(resource, owner, LONG);
        let live = tokio::time::timeout(PATIENCE, subscription.live()).await;
        live.expect("a subscription is live at some time");
        let sent = BootInstant::now();
        let queueing = Queueing::Woken;
        let claim = Claim { resource, queueing, ..Claim::exclusive(resource.key, owner, LONG) };
        match locks.claim(claim).await {
            Acquired::Queued(queued @ Queued { ahead, .. }) => {
                subscription.queued(queued, sent);
                Self { owner, subscription, ahead }
            }
            other => panic!("a claim that waits for a resource is {other:?}"),
        }
    }

    /// Waits for the message that the resource was given to it.
    async fn is_told(&self) {
        let told = async {
            while self.subscription.take_transfer().is_none() {
                self.subscription.woken().await;
            }
        };
        let told = tokio::time::timeout(PATIENCE, told).await;
        told.expect("a claim is told that the resource was given to it");
    }
}

/// A release gives a resource to the claim that came first, and tells it so. Checks nothing if the store has no queues.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn claims_are_served_in_their_order(one: CheckedStore, two: CheckedStore) {
    for (layout, mode) in kinds() {
        let (one, two) = (one.connect_to(layout).await, two.connect_to(layout).await);
        let (Some(one), Some(two)) = (one, two) else { continue };
        if one.locks.has(Extension::Queues) {
            for _ in rounds() {
                if serves_in_order(&one, &two, mode).await {
                    break;
                }
            }
        }
    }
}

/// A claim that leaves the queue is passed over. Checks nothing if the store has no queues.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_claim_that_leaves_is_passed_over(store: CheckedStore) {
    for (layout, mode) in kinds() {
        let Some(locks) = store.connect_to(layout).await else { continue };
        if locks.locks.has(Extension::Queues) {
            for _ in rounds() {
                if passes_over(&locks, mode).await {
                    break;
                }
            }
        }
    }
}

/// The numbers of attempts at a check that may come too late for a lease that a claim was given.
fn rounds() -> impl Iterator<Item = usize> {
    (0..ROUNDS).chain(std::iter::from_fn(|| {
        panic!("claims that are given a resource lose it within {:?}", transfer_term(LONG) / 2)
    }))
}

/// Whether the lease that a claim was given at this time lasts until now.
fn lasts(since: Instant) -> bool {
    since.elapsed() < transfer_term(LONG) / 2
}

async fn serves_in_order(one: &CheckedLocks, two: &CheckedLocks, mode: Mode) -> bool {
    let (key, holder) = (new_key(), owner());
    let resource = Resource { key: &key, mode };
    assert!(one.takes(resource, holder).await, "a free lock was not granted");
    let first = Claimant::enter(one, resource).await;
    let second = Claimant::enter(two, resource).await;
    assert_eq!([first.ahead, second.ahead], [0, 1], "the claims that come first");
    assert!(!two.takes(resource, owner()).await, "a lock with a holder");
    let began = Instant::now();
    one.frees(resource, holder).await;
    let is_first = one.takes(resource, first.owner).await;
    if !lasts(began) {
        return false;
    }
    assert!(is_first, "the first claim was not served");
    assert!(!two.takes(resource, second.owner).await, "the second claim was served as well");
    first.is_told().await;
    let began = Instant::now();
    one.frees(resource, first.owner).await;
    let passes_by = one.takes(resource, owner()).await;
    let is_second = two.takes(resource, second.owner).await;
    if !lasts(began) {
        return false;
    }
    assert!(!passes_by, "somebody who has not waited came before the claim in the queue");
    assert!(is_second, "the second claim was not served");
    second.is_told().await;
    two.frees(resource, second.owner).await;
    assert!(one.takes(resource, holder).await, "a lock for which nobody waits is not free");
    one.frees(resource, holder).await;
    true
}

async fn passes_over(locks: &CheckedLocks, mode: Mode) -> bool {
    let (key, holder) = (new_key(), owner());
    let resource = Resource { key: &key, mode };
    assert!(locks.takes(resource, holder).await, "a free lock was not granted");
    let leaving = Claimant::enter(locks, resource).await;
    let staying = Claimant::enter(locks, resource).await;
    let release =
        Release { resource, queued: Some(LONG), ..Release::exclusive(&key, leaving.owner) };
    let left = locks.locks.release(release, Lane::Caller).await;
    assert!(matches!(left, Ok(Released::Taken | Released::Gone)), "a claim has left: {left:?}");
    let began = Instant::now();
    locks.frees(resource, holder).await;
    let is_next = locks.takes(resource, staying.owner).await;
    let has_left = !locks.takes(resource, leaving.owner).await;
    if !lasts(began) {
        return false;
    }
    assert!(is_next, "the claim that has stayed was not served");
    assert!(has_left, "two owners");
    locks.frees(resource, staying.owner).await;
    assert!(locks.takes(resource, holder).await, "a claim that has left came once more");
    locks.frees(resource, holder).await;
    true
}
