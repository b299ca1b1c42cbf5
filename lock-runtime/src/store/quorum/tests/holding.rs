//! Renewing and releasing locks of a quorum, fencing tokens and wake-ups.

use super::*;
use crate::store::announcements::{Announced, Announcement};

/// A lock that the first stores have granted, so many of them.
async fn held(votes: &Votes, by: &[usize]) -> OwnerId {
    let others: Vec<_> = (0..votes.memory.len()).filter(|store| !by.contains(store)).collect();
    votes.next_claims(&others, Fault::Refuse);
    let owner = owner();
    assert!(is_granted(&votes.claim(owner).await));
    owner
}

#[tokio::test]
async fn a_lock_is_renewed_by_a_majority_and_never_given_to_a_store_that_lost_it() {
    let votes = Votes::of(3);
    let owner = held(&votes, &[0, 1, 2]).await;
    let lost = votes.memory[1].release(release(owner), Lane::Caller).await;
    assert_eq!(lost, Ok(Released::Freed { woken: 0 }));
    assert_eq!(votes.renew(owner).await, Ok(Renewed::Extended));
    assert_eq!(votes.held_by(owner).await, [true, false, true]);
}

#[tokio::test]
async fn a_lock_that_a_majority_no_longer_has_is_lost_and_its_votes_expire() {
    let votes = Votes::of(3);
    let owner = held(&votes, &[0, 1]).await;
    let _ = votes.memory[1].release(release(owner), Lane::Caller).await;
    let began = Instant::now();
    assert_eq!(votes.renew(owner).await, Ok(Renewed::Gone), "renewed by one of three servers");
    // The body of the lost lock may still run until its deadline.
    while began.elapsed() < LEASE * 9 / 10 {
        let held = votes.held_by(owner).await;
        let is_early = began.elapsed() < LEASE * 9 / 10;
        assert!(!is_early || held == [true, false, false], "freed before the deadline: {held:?}");
        sleep(LEASE / 20).await;
    }
    votes.assert_freed(owner).await;
    let owner = held(&votes, &[0, 1]).await;
    let _ = votes.memory[1].release(release(owner), Lane::Caller).await;
    for store in [1, 2] {
        assert!(is_granted(&claim(&*votes.memory[store], self::owner(), LEASE).await));
    }
    assert_eq!(votes.renew(owner).await, Ok(Renewed::Taken));
}

#[tokio::test]
async fn a_renewal_without_a_majority_is_unknown() {
    let votes = Votes::of(3);
    let owner = held(&votes, &[0, 1, 2]).await;
    for store in [0, 1] {
        votes.faulty[store].next_renewals([Fault::LoseReply]);
    }
    assert!(matches!(votes.renew(owner).await, Err(StoreError::Unknown(_))));
    assert_eq!(votes.renew(owner).await, Ok(Renewed::Extended));
}

#[tokio::test]
async fn a_store_that_hangs_delays_neither_renewals_nor_releases_and_is_freed_later() {
    let votes = Votes::of(3);
    let owner = held(&votes, &[0, 1, 2]).await;
    votes.faulty[0].next_renewals([Fault::Hang]);
    votes.faulty[0].next_releases([Fault::Hang]);
    let began = Instant::now();
    assert_eq!(votes.renew(owner).await, Ok(Renewed::Extended));
    assert_eq!(votes.release(owner).await, Ok(Released::Freed { woken: 0 }));
    assert!(began.elapsed() < server_timeout(LEASE), "after {:?}", began.elapsed());
    votes.assert_freed(owner).await;
}

#[tokio::test]
async fn a_release_without_a_majority_of_answers_is_unknown() {
    let votes = Votes::of(3);
    let owner = held(&votes, &[0, 1, 2]).await;
    for store in [0, 1] {
        votes.faulty[store].next_releases([Fault::LoseReply]);
    }
    assert!(matches!(votes.release(owner).await, Err(StoreError::Unknown(_))));
    // The answers to the second attempt only reflect the first one.
    assert_eq!(votes.release(owner).await, Ok(Released::Gone));
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_key_at_all_stores() {
    let votes = Votes::of(3);
    let owner = held(&votes, &[0, 1, 2]).await;
    let keep = Release { keep: LEASE, ..release(owner) };
    let kept = votes.locks().release(keep, Lane::Caller).await;
    assert_eq!(kept, Ok(Released::Freed { woken: 0 }));
    assert!(matches!(votes.claim(self::owner()).await, Ok(Acquired::Busy(_))));
}

/// One store has a clock that is ahead, or an older token. The next holder has a majority without it.
#[tokio::test]
async fn a_token_is_above_those_of_holders_with_another_majority() {
    let votes = Votes::of(3);
    let ahead = held(&votes, &[0, 1]).await;
    let far = votes.token(ahead).await + 1_000_000_000;
    let raised = votes.memory[0].fence(Resource::exclusive("k"), ahead, far).await;
    assert_eq!(raised, Ok(Fenced::With(far)));
    let first = votes.token(ahead).await;
    assert!(first > far, "the highest token of the majority");
    assert_eq!(votes.release(ahead).await, Ok(Released::Freed { woken: 0 }));
    let second = votes.token(held(&votes, &[1, 2]).await).await;
    assert!(second > first, "a token went back: {second} after {first}");
}

#[tokio::test]
async fn only_the_owner_gets_a_token() {
    let votes = Votes::of(3);
    let (other, resource) = (owner(), Resource::exclusive("k"));
    assert_eq!(votes.locks().fence(resource, other, 0).await, Ok(Fenced::Gone));
    let _owner = held(&votes, &[0, 1, 2]).await;
    assert_eq!(votes.locks().fence(resource, other, 0).await, Ok(Fenced::Taken));
}

#[tokio::test]
async fn the_announcement_of_a_majority_counts() {
    let votes = MemoryVotes::new();
    let (locks, owner) = (votes.locks(), owner());
    assert!(is_granted(&claim(&*locks, owner, LEASE).await));
    let announcement = Announcement { key: "k", owner, text: "leader", keep: LEASE };
    assert_eq!(locks.announce(announcement).await, Ok(Announced::Done));
    let announced = locks.announced("k").await.expect("answers");
    assert!(announced.is_some_and(|(text, _)| text == "leader"));
    let release_at = async |store: usize| {
        let store = votes.stores[store].handle(Layout::Vote);
        let released = store.release(release(owner), Lane::Caller).await;
        assert_eq!(released, Ok(Released::Freed { woken: 0 }));
    };
    release_at(0).await;
    release_at(1).await;
    // The next holder has the lock of a majority.
    let next = self::owner();
    assert!(is_granted(&claim(&*locks, next, LEASE).await));
    assert_eq!(
        locks.announced("k").await.map(|it| it.map(|(text, _)| text)),
        Ok(Some("leader".into()))
    );
    let successor = Announcement { key: "k", owner: next, text: "successor", keep: LEASE };
    assert_eq!(locks.announce(successor).await, Ok(Announced::Done));
    let announced = locks.announced("k").await.expect("answers");
    assert!(announced.is_some_and(|(text, _)| text == "successor"));
    assert_eq!(locks.release(release(next), Lane::Caller).await, Ok(Released::Freed { woken: 0 }));
    release_at(2).await;
    assert_eq!(locks.announced("k").await, Ok(None));
    assert_eq!(locks.announce(announcement).await, Ok(Announced::Gone));
}

/// A quorum of stores without faults.
struct MemoryVotes {
    stores: Vec<Arc<MemoryBackend>>,
    quorum: QuorumBackend,
}

impl MemoryVotes {
    fn new() -> Self {
        let stores: Vec<_> = (0..3).map(|_| MemoryBackend::new()).collect();
        let members =
            stores.iter().map(|store| (Arc::clone(store) as Arc<dyn Backend>, String::new()));
        let quorum = QuorumBackend::new(members.collect(), server_timeout(LEASE));
        let (renewals, wake_ups) = (Handle::current(), Handle::current());
        quorum.adopt(&BackgroundRuntimes { renewals, wake_ups }, HoldReports::new(|_| {}));
        Self { stores, quorum }
    }

    fn locks(&self) -> Arc<dyn LockStore> {
        self.quorum.handle(Layout::TOKEN)
    }
}

#[tokio::test]
async fn the_messages_about_a_release_wake_those_who_wait_when_a_majority_is_free() {
    let votes = MemoryVotes::new();
    let (locks, holder) = (votes.locks(), owner());
    assert!(is_granted(&claim(&*locks, holder, LEASE).await));
    let waiting = locks.subscribe(Resource::exclusive("k"), owner(), LEASE);
    waiting.live().await;
    let free = async |store: usize| {
        let freed =
            votes.stores[store].handle(Layout::Vote).release(release(holder), Lane::Caller).await;
        assert_eq!(freed, Ok(Released::Freed { woken: 0 }));
        tokio::time::timeout(Duration::from_millis(50), waiting.woken()).await.is_ok()
    };
    assert!(!free(0).await, "woken while two of three stores have the lock");
    assert!(free(1).await, "a majority is free");
    // Just afterwards, one more wake-up would follow.
    sleep(Duration::from_millis(50)).await;
    assert!(!free(2).await, "woken again by the last store");
    assert_eq!(waiting.releases(), 1);
}

#[tokio::test]
async fn votes_of_a_minority_that_are_undone_wake_nobody() {
    let votes = MemoryVotes::new();
    let (locks, holder) = (votes.locks(), owner());
    for store in &votes.stores[..2] {
        assert!(is_granted(&claim(&*store.handle(Layout::Vote), holder, LEASE).await));
    }
    let waiting = locks.subscribe(Resource::exclusive("k"), owner(), LEASE);
    waiting.live().await;
    for _ in 0..3 {
        assert!(!is_granted(&claim(&*locks, owner(), LEASE).await));
    }
    let woken = tokio::time::timeout(Duration::from_millis(50), waiting.woken()).await;
    assert!(woken.is_err(), "woken by an attempt that has failed");
}
