//! Shares of a capacity: read-write locks and semaphores.

use tokio::time::Instant;

use super::fixture::{CheckedLocks, CheckedStore, LONG, PATIENCE, SHORT, new_key, owner};
use crate::permits::Permits;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{
    Claim, Lane, Layout, Mode, ModeChange, ModeChanged, Release, Released, Renewal, Renewed,
    Resource,
};
use crate::store::owner::OwnerId;

/// The locks of two clients in this layout, if the store has some.
async fn both(one: &CheckedStore, two: &CheckedStore, layout: Layout) -> Option<[CheckedLocks; 2]> {
    Some([one.connect_to(layout).await?, two.connect_to(layout).await?])
}

/// Readers share a lock, and a writer has it alone. Checks nothing if the store has no read-write locks.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn readers_share_and_writers_do_not(one: CheckedStore, two: CheckedStore) {
    let Some([one, two]) = both(&one, &two, Layout::ReadWrite).await else { return };
    let (key, readers, writer) = (new_key(), [owner(), owner()], owner());
    let [read, write] = [Mode::Read, Mode::Write].map(|mode| Resource { key: &key, mode });
    assert!(one.takes(read, readers[0]).await, "a free lock was not granted to a reader");
    assert!(two.takes(read, readers[1]).await, "two readers exclude each other");
    assert!(one.takes(read, readers[0]).await, "the second request of a reader is not granted");
    assert!(!two.takes(write, writer).await, "a writer and two readers");
    one.frees(read, readers[0]).await;
    assert!(!two.takes(write, writer).await, "a writer and a reader");
    two.frees(read, readers[1]).await;
    assert!(two.takes(write, writer).await, "a free lock was not granted to a writer");
    assert!(!one.takes(read, readers[0]).await, "a reader and a writer");
    assert!(!one.takes(write, readers[0]).await, "two writers");
    two.frees(write, writer).await;
    assert!(one.takes(read, readers[0]).await, "the lock of a writer that released it is not free");
    one.frees(read, readers[0]).await;
}

/// The holders of a semaphore never have more permits than its limit. Checks nothing if the store has no semaphores.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn permits_are_counted(one: CheckedStore, two: CheckedStore) {
    let Some([one, two]) = both(&one, &two, Layout::Semaphore).await else { return };
    let (key, [first, second, third]) = (new_key(), [owner(), owner(), owner()]);
    let permits = |count| Resource { key: &key, mode: Mode::Permits(Permits::new(count, 3)) };
    assert!(one.takes(permits(2), first).await, "two of three permits");
    assert!(!two.takes(permits(2), second).await, "four of three permits");
    assert!(two.takes(permits(1), second).await, "three of three permits");
    assert!(one.takes(permits(2), first).await, "the second request of a holder is not granted");
    assert!(!one.takes(permits(1), third).await, "four of three permits");
    two.frees(permits(1), second).await;
    assert!(one.takes(permits(1), third).await, "a permit that was released is not free");
    one.frees(permits(2), first).await;
    assert!(two.takes(permits(2), second).await, "two permits that were released are not free");
    two.frees(permits(2), second).await;
    one.frees(permits(1), third).await;
}

/// The shares of an owner are renewed and released by it only, and end with its lease.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn shares_belong_to_their_owner(store: CheckedStore) {
    let reader = (Layout::ReadWrite, Mode::Read, Mode::Write);
    let some = |count| Mode::Permits(Permits::new(count, 3));
    for (layout, own, rest) in [reader, (Layout::Semaphore, some(1), some(3))] {
        let Some(locks) = store.connect_to(layout).await else { continue };
        let (key, first, second) = (new_key(), owner(), owner());
        let [own, rest] = [own, rest].map(|mode| Resource { key: &key, mode });
        assert!(locks.takes(own, first).await, "a free lock was not granted");
        assert_eq!(renew(&locks, own, first).await, Renewed::Extended);
        assert_ne!(
            renew(&locks, own, second).await,
            Renewed::Extended,
            "a renewal by another owner"
        );
        let release = Release { resource: own, ..Release::exclusive(&key, second) };
        let released = locks.locks.release(release, Lane::Caller).await;
        assert!(
            matches!(released, Ok(Released::Gone | Released::Taken)),
            "a release by somebody else: {released:?}"
        );
        assert!(!locks.takes(rest, second).await, "another owner has released a share");
        locks.frees(own, first).await;
        assert_ne!(renew(&locks, own, first).await, Renewed::Extended, "a share that was released");
        let claim = Claim { resource: own, ..Claim::exclusive(&key, first, SHORT) };
        assert!(locks.claim(claim).await.is_grant(), "a free lock was not granted");
        let began = Instant::now();
        while !locks.takes(rest, second).await {
            assert!(began.elapsed() < PATIENCE, "a share outlives its lease of {SHORT:?}");
            tokio::time::sleep(SHORT / 20).await;
        }
        locks.frees(rest, second).await;
    }
}

/// The only reader can become a writer, and a writer a reader. Checks nothing if the store has no read-write locks.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_hold_changes_its_mode(store: CheckedStore) {
    let Some(locks) = store.connect_to(Layout::ReadWrite).await else { return };
    let (key, first, second) = (new_key(), owner(), owner());
    let [read, write] = [Mode::Read, Mode::Write].map(|mode| Resource { key: &key, mode });
    let change = async |owner, to| {
        let change = ModeChange { key: &key, owner, to, acknowledged_by: RequiredReplicas::NONE };
        locks.locks.change_mode(change).await.expect("an answer")
    };
    assert_eq!(change(first, Mode::Write).await, ModeChanged::Gone, "nobody has the lock");
    assert!(locks.takes(read, first).await, "a free lock was not granted");
    assert_eq!(change(first, Mode::Write).await, ModeChanged::Done, "the only reader");
    assert!(!locks.takes(read, second).await, "a reader and a writer that was a reader");
    assert_eq!(change(first, Mode::Read).await, ModeChanged::Done, "a writer");
    assert!(locks.takes(read, second).await, "two readers, one of which was a writer");
    assert_eq!(change(first, Mode::Write).await, ModeChanged::Busy, "one of two readers");
    assert!(!locks.takes(write, owner()).await, "a writer and two readers");
    locks.frees(read, second).await;
    locks.frees(read, first).await;
}

async fn renew(locks: &CheckedLocks, resource: Resource<'_>, owner: OwnerId) -> Renewed {
    let batch = [Renewal { resource, ..Renewal::exclusive(resource.key, owner, LONG) }];
    let mut renewed = locks.locks.renew(&batch, Lane::Background).await;
    assert_eq!(renewed.len(), 1, "one lease has one answer");
    renewed.remove(0).expect("an answer")
}
