//! Renewing and releasing locks of a quorum, fencing tokens and wake-ups.

use super::*;
use lock_core::store::announcements::{Announced, Announcement};

/// A lock that these stores have granted.
async fn held(quorum: &FaultyQuorum, by: &[usize]) -> OwnerId {
    let others: Vec<_> = (0..quorum.memory.len()).filter(|store| !by.contains(store)).collect();
    quorum.next_claims(&others, Fault::Refuse);
    let owner = owner();
    assert!(is_granted(&quorum.claim(owner).await));
    owner
}

/// A store loses the lock.
async fn lose(quorum: &FaultyQuorum, store: usize, owner: OwnerId) {
    let lost = quorum.memory[store].release(release(owner), Lane::Caller).await;
    assert_eq!(lost, Ok(Released::Freed { woken: 0 }));
}

#[tokio::test]
async fn a_lock_that_a_majority_renews_gets_the_vote_back_of_a_store_that_lost_it() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    for store in [1, 0, 2] {
        lose(&quorum, store, owner).await;
        quorum.assert_restored(owner).await;
    }
    assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
    quorum.assert_freed(owner).await;
}

/// The claim of the call, and the first one that is to restore the vote, have no answer.
#[tokio::test]
async fn a_claim_without_an_answer_keeps_no_vote_from_being_restored() {
    for fault in [Fault::Hang, Fault::LoseReply, Fault::Refuse] {
        let quorum = FaultyQuorum::of(3);
        quorum.next_claims(&[2], fault);
        let owner = self::owner();
        assert!(is_granted(&quorum.claim(owner).await));
        sleep(server_timeout(LEASE) * 3 / 2).await;
        let _ = quorum.memory[2].release(release(owner), Lane::Caller).await;
        quorum.next_claims(&[2], fault);
        quorum.assert_restored(owner).await;
        assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
        sleep(server_timeout(LEASE)).await;
        quorum.assert_freed(owner).await;
    }
}

/// It would be a majority of votes that did not exist at the same time.
#[tokio::test]
async fn a_vote_that_is_restored_does_not_count_in_the_same_renewal() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1]).await;
    lose(&quorum, 1, owner).await;
    assert_eq!(quorum.renew(owner).await, Ok(Renewed::Gone));
    // The others have answered.
    sleep(server_timeout(LEASE)).await;
    assert!(!quorum.held_by(owner).await[1], "restored although a majority has lost it");
}

#[tokio::test]
async fn a_claim_for_a_lost_vote_that_is_late_leaves_nothing_after_the_release() {
    let pause = server_timeout(LEASE) / 4;
    for (fault, is_reconnected) in [
        (Fault::Slow(pause), true),
        (Fault::SentAgain(pause), false),
        (Fault::SentLate(pause), false),
        (Fault::HangAfter, false),
        (Fault::LoseReply, false),
    ] {
        let quorum = FaultyQuorum::of(3);
        let owner = held(&quorum, &[0, 1, 2]).await;
        lose(&quorum, 1, owner).await;
        if is_reconnected {
            quorum.faulty[1].reconnect();
        }
        quorum.next_claims(&[1], fault);
        assert_eq!(quorum.renew(owner).await, Ok(Renewed::Extended));
        assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
        sleep(server_timeout(LEASE)).await;
        quorum.assert_freed(owner).await;
    }
}

#[tokio::test]
async fn a_lock_that_a_majority_no_longer_has_is_lost_and_its_votes_expire() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1]).await;
    let _ = quorum.memory[1].release(release(owner), Lane::Caller).await;
    let began = Instant::now();
    assert_eq!(quorum.renew(owner).await, Ok(Renewed::Gone), "renewed by one of three servers");
    // The body of the lost lock may still run until its deadline.
    while began.elapsed() < LEASE * 9 / 10 {
        let held = quorum.held_by(owner).await;
        let is_early = began.elapsed() < LEASE * 9 / 10;
        assert!(!is_early || held == [true, false, false], "freed before the deadline: {held:?}");
        sleep(LEASE / 20).await;
    }
    quorum.assert_freed(owner).await;
    let owner = held(&quorum, &[0, 1]).await;
    let _ = quorum.memory[1].release(release(owner), Lane::Caller).await;
    for store in [1, 2] {
        assert!(is_granted(&claim(&*quorum.memory[store], self::owner(), LEASE).await));
    }
    assert_eq!(quorum.renew(owner).await, Ok(Renewed::Taken));
}

#[tokio::test]
async fn a_renewal_without_a_majority_is_unknown() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    for store in [0, 1] {
        quorum.faulty[store].next_renewals([Fault::LoseReply]);
    }
    let renewed = quorum.renew(owner).await;
    let is_unknown = matches!(renewed, Err(StoreError::Unknown(_)));
    assert!(is_unknown, "renewed by one answer of three: {renewed:?}");
    assert_eq!(quorum.renew(owner).await, Ok(Renewed::Extended));
}

#[tokio::test]
async fn a_store_that_hangs_delays_neither_renewals_nor_releases_and_is_freed_later() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    quorum.faulty[0].next_renewals([Fault::Hang]);
    quorum.faulty[0].next_releases([Fault::Hang]);
    let began = Instant::now();
    assert_eq!(quorum.renew(owner).await, Ok(Renewed::Extended));
    assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
    assert!(began.elapsed() < server_timeout(LEASE), "after {:?}", began.elapsed());
    quorum.assert_freed(owner).await;
}

#[tokio::test]
async fn a_release_without_a_majority_of_answers_is_unknown() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    for store in [0, 1] {
        quorum.faulty[store].next_releases([Fault::LoseReply]);
    }
    let released = quorum.release(owner).await;
    let is_unknown = matches!(released, Err(StoreError::Unknown(_)));
    assert!(is_unknown, "released by one answer of three: {released:?}");
    // The answers to the second attempt only reflect the first one.
    assert_eq!(quorum.release(owner).await, Ok(Released::Gone));
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_key_at_all_stores() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    let keep = Release { keep: LEASE, ..release(owner) };
    let kept = quorum.locks().release(keep, Lane::Caller).await;
    assert_eq!(kept, Ok(Released::Freed { woken: 0 }));
    assert!(matches!(quorum.claim(self::owner()).await, Ok(Acquired::Busy(_))));
}

/// One store has a clock that is ahead, or an older token. The next holder has a majority without it.
#[tokio::test]
async fn a_token_is_above_those_of_holders_with_another_majority() {
    let quorum = FaultyQuorum::of(3);
    let ahead = held(&quorum, &[0, 1]).await;
    let far = quorum.token(ahead).await + 1_000_000_000;
    let raised = quorum.memory[0].fence(Resource::exclusive("k"), ahead, far).await;
    assert_eq!(raised, Ok(Fenced::With(far)));
    let first = quorum.token(ahead).await;
    assert!(first > far, "the highest token of the majority");
    assert_eq!(quorum.release(ahead).await, Ok(Released::Freed { woken: 0 }));
    let second = quorum.token(held(&quorum, &[1, 2]).await).await;
    assert!(second > first, "a token went back: {second} after {first}");
}

/// The first majority contains the store whose clock is ahead.
#[tokio::test]
async fn a_clock_that_is_ahead_at_one_store_does_not_prevent_tokens() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    let token = quorum.token(owner).await;
    let (limit, far) = (token + 1_000_000_000, token + 2_000_000_000);
    let raised = quorum.memory[0].fence(Resource::exclusive("k"), owner, far).await;
    assert_eq!(raised, Ok(Fenced::With(far)));
    for store in [1, 2] {
        quorum.faulty[store].refuse_fences_above(limit);
    }
    let fenced = quorum.locks().fence(Resource::exclusive("k"), owner, 0).await;
    let Ok(Fenced::With(next)) = fenced else { panic!("no token by two clocks: {fenced:?}") };
    assert!(next > token && next < limit, "{next} after {token}");
}

#[tokio::test]
async fn a_token_that_most_stores_refuse_is_refused() {
    let quorum = FaultyQuorum::of(3);
    let owner = held(&quorum, &[0, 1, 2]).await;
    for store in [0, 1] {
        quorum.faulty[store].refuse_fences_above(0);
    }
    match quorum.locks().fence(Resource::exclusive("k"), owner, 1).await {
        Ok(Fenced::Refused(cause)) => {
            let words = ["fewer than 2 of the 3 servers", "store 0: ahead", "store 1: ahead"];
            assert!(words.iter().all(|word| cause.contains(word)), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    // A store without an answer may issue a token later.
    quorum.faulty[1].refuse_fences_above(u64::MAX);
    quorum.faulty[1].next_fences([Fault::LoseReply, Fault::None]);
    let fenced = quorum.locks().fence(Resource::exclusive("k"), owner, 1).await;
    assert!(matches!(fenced, Err(StoreError::Unknown(_))), "{fenced:?}");
    quorum.token(owner).await;
}

#[tokio::test]
async fn only_the_owner_gets_a_token() {
    let quorum = FaultyQuorum::of(3);
    let (other, resource) = (owner(), Resource::exclusive("k"));
    assert_eq!(quorum.locks().fence(resource, other, 0).await, Ok(Fenced::Gone));
    let _owner = held(&quorum, &[0, 1, 2]).await;
    assert_eq!(quorum.locks().fence(resource, other, 0).await, Ok(Fenced::Taken));
}

#[tokio::test]
async fn the_announcement_of_a_majority_counts() {
    let quorum = MemoryQuorum::new();
    let (locks, owner) = (quorum.locks(), owner());
    assert!(is_granted(&claim(&*locks, owner, LEASE).await));
    let announcement = Announcement { key: "k", owner, text: "leader", keep: LEASE };
    assert_eq!(locks.announce(announcement).await, Ok(Announced::Done));
    let announced = locks.announced("k").await.expect("answers");
    assert!(announced.is_some_and(|(text, _)| text == "leader"));
    let release_at = async |store: usize| {
        let store = quorum.stores[store].locks(Layout::Vote);
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
    // One store still has the lock.
    assert!(is_granted(&claim(&*quorum.stores[0].locks(Layout::Vote), owner, LEASE).await));
    assert_eq!(
        locks.announce(announcement).await,
        Ok(Announced::Gone),
        "announced at one of three servers"
    );
}

/// A quorum of stores without faults.
struct MemoryQuorum {
    stores: Vec<Arc<MemoryBackend>>,
    backend: QuorumBackend,
}

impl MemoryQuorum {
    fn new() -> Self {
        let stores: Vec<_> = (0..3).map(|_| MemoryBackend::new()).collect();
        let members =
            stores.iter().map(|store| (Arc::clone(store) as Arc<dyn Backend>, String::new()));
        let backend =
            QuorumBackend::new(members.collect(), server_timeout(LEASE)).expect("they have votes");
        let (renewals, wake_ups) = (Handle::current(), Handle::current());
        backend.adopt(&BackgroundRuntimes { renewals, wake_ups }, HoldReports::new(|_| {}));
        Self { stores, backend }
    }

    fn locks(&self) -> Arc<dyn LockStore> {
        plain_locks(&self.backend)
    }
}

#[tokio::test]
async fn the_messages_about_a_release_wake_those_who_wait_when_a_majority_is_free() {
    let quorum = MemoryQuorum::new();
    let (locks, holder) = (quorum.locks(), owner());
    assert!(is_granted(&claim(&*locks, holder, LEASE).await));
    let waiting = locks.subscribe(Resource::exclusive("k"), owner(), LEASE);
    waiting.live().await;
    let free = async |store: usize| {
        let freed =
            quorum.stores[store].locks(Layout::Vote).release(release(holder), Lane::Caller).await;
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
    let quorum = MemoryQuorum::new();
    let (locks, holder) = (quorum.locks(), owner());
    for store in &quorum.stores[..2] {
        assert!(is_granted(&claim(&*store.locks(Layout::Vote), holder, LEASE).await));
    }
    let waiting = locks.subscribe(Resource::exclusive("k"), owner(), LEASE);
    waiting.live().await;
    for _ in 0..3 {
        assert!(!is_granted(&claim(&*locks, owner(), LEASE).await));
    }
    let woken = tokio::time::timeout(Duration::from_millis(50), waiting.woken()).await;
    assert!(woken.is_err(), "woken by an attempt that has failed");
}
