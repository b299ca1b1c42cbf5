//! Acquiring locks of a quorum.

use super::*;
use lock_core::store::contract::Left;

#[tokio::test]
async fn a_lock_is_granted_by_a_majority_and_excludes_others() {
    for stores in [3, 5] {
        let quorum = FaultyQuorum::of(stores);
        let (one, other) = (owner(), owner());
        assert!(is_granted(&quorum.claim(one).await));
        assert!(matches!(quorum.claim(other).await, Ok(Acquired::Busy(Left::Time(_)))));
        assert_eq!(quorum.release(other).await, Ok(Released::Taken));
        assert_eq!(quorum.release(one).await, Ok(Released::Freed { woken: 0 }));
        assert!(is_granted(&quorum.claim(other).await));
    }
}

#[tokio::test]
async fn a_minority_that_does_not_answer_is_not_waited_for() {
    let quorum = FaultyQuorum::of(5);
    quorum.next_claims(&[0, 3], Fault::Hang);
    let began = Instant::now();
    assert!(is_granted(&quorum.claim(owner()).await));
    assert!(began.elapsed() < server_timeout(LEASE), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn no_lock_is_granted_without_a_majority() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang] {
        let quorum = FaultyQuorum::of(3);
        quorum.next_claims(&[1, 2], fault);
        let owner = owner();
        let answer = quorum.claim(owner).await;
        assert!(!is_granted(&answer), "granted by one of three servers");
        let error = answer.expect_err("one answer of three");
        assert_eq!(error.may_have_run(), fault != Fault::Refuse, "{error}");
        let words = ["fewer than 2 of the 3 servers", "store 1", "store 2"];
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        quorum.assert_freed(owner).await;
    }
}

#[tokio::test]
async fn an_attempt_without_a_majority_is_undone_before_its_answer() {
    let quorum = FaultyQuorum::of(3);
    let (one, other) = (owner(), owner());
    for store in &quorum.memory[..2] {
        assert!(is_granted(&claim(&**store, one, LEASE).await));
    }
    assert!(matches!(quorum.claim(other).await, Ok(Acquired::Busy(_))));
    assert_eq!(quorum.held_by(other).await, [false; 3], "a vote is left");
}

/// The store has served the claim, and its answer comes never, or late.
#[tokio::test]
async fn a_store_that_did_not_answer_is_freed_as_well() {
    for fault in [Fault::LoseReply, Fault::HangAfter, Fault::Slow(LEASE / 4)] {
        let quorum = FaultyQuorum::of(3);
        quorum.next_claims(&[0], fault);
        quorum.next_claims(&[1, 2], Fault::Refuse);
        // The undo on the same connection is lost as well.
        quorum.faulty[0].next_releases([Fault::Hang]);
        let owner = owner();
        assert!(!is_granted(&quorum.claim(owner).await));
        sleep(LEASE / 3).await;
        quorum.assert_freed(owner).await;
    }
}

/// The undo of the first attempt arrives after the claim of the second one.
#[tokio::test]
async fn a_late_undo_of_an_attempt_does_not_affect_the_next() {
    let quorum = FaultyQuorum::of(3);
    let first = owner();
    quorum.next_claims(&[1, 2], Fault::Refuse);
    // More than the attempts that fit into the test.
    quorum.faulty[0].next_releases(std::iter::repeat_n(Fault::Refuse, 10_000));
    assert!(!is_granted(&quorum.claim(first).await));
    assert_eq!(quorum.held_by(first).await, [true, false, false], "not undone yet");
    let has_own = quorum.locks().capabilities().owner_per_attempt;
    let second = if has_own { owner() } else { first };
    quorum.next_claims(&[2], Fault::Refuse);
    let is_second_granted = is_granted(&quorum.claim(second).await);
    quorum.faulty[0].serve_releases();
    if is_second_granted {
        sleep(LEASE / 2).await;
        let votes = quorum.held_by(second).await.into_iter().filter(|has_vote| *has_vote).count();
        assert!(votes >= 2, "the undo has released a vote of the next attempt: {votes} are left");
    }
    quorum.assert_freed(if has_own { first } else { owner() }).await;
}

/// The engine undoes a claim that is dropped, and nothing is sent after that.
#[tokio::test]
async fn a_claim_that_is_dropped_sends_nothing_more() {
    let quorum = FaultyQuorum::of(3);
    quorum.next_claims(&[0, 1, 2], Fault::Slow(server_timeout(LEASE) / 2));
    let owner = owner();
    {
        let locks = quorum.locks();
        let mut claim = Box::pin(claim(&*locks, owner, LEASE));
        let polled = tokio::time::timeout(Duration::from_millis(1), &mut claim).await;
        assert!(polled.is_err(), "the stores are slow");
    }
    sleep(server_timeout(LEASE)).await;
    assert_eq!(quorum.held_by(owner).await, [false; 3]);
}

/// The store serves the claim after its undo, as when the claim has to be sent again.
#[tokio::test]
async fn a_claim_that_is_served_after_its_undo_on_the_same_connection_is_undone_again() {
    let quorum = FaultyQuorum::of(3);
    quorum.next_claims(&[0], Fault::Slow(server_timeout(LEASE) / 4));
    quorum.next_claims(&[1, 2], Fault::Refuse);
    let owner = owner();
    assert!(!is_granted(&quorum.claim(owner).await));
    sleep(server_timeout(LEASE) / 2).await;
    quorum.assert_freed(owner).await;
}

/// The engine undoes the claim by a release, which one store serves before the claim.
#[tokio::test]
async fn a_late_vote_for_a_claim_that_was_dropped_is_undone() {
    let quorum = FaultyQuorum::of(3);
    quorum.next_claims(&[0], Fault::HangAfter);
    quorum.next_claims(&[1, 2], Fault::Hang);
    let owner = owner();
    {
        let locks = quorum.locks();
        let mut claim = Box::pin(claim(&*locks, owner, LEASE));
        let polled = tokio::time::timeout(Duration::from_millis(1), &mut claim).await;
        assert!(polled.is_err(), "the stores hang");
    }
    assert_eq!(quorum.release(owner).await, Ok(Released::Gone));
    assert!(is_granted(&claim(&*quorum.memory[1], owner, LEASE).await), "the claim arrives");
    quorum.assert_freed(owner).await;
}

/// The last store grants the lock after its release: the claim was sent over another connection, had to be sent again, or
/// has waited for the connection.
#[tokio::test]
async fn a_late_vote_for_a_lock_that_was_released_is_undone() {
    let pause = server_timeout(LEASE) / 4;
    for (fault, is_reconnected) in [
        (Fault::Slow(pause), true),
        (Fault::SentAgain(pause), false),
        (Fault::SentLate(pause), false),
    ] {
        let quorum = FaultyQuorum::of(3);
        if is_reconnected {
            quorum.faulty[2].reconnect();
        }
        quorum.next_claims(&[2], fault);
        let owner = owner();
        assert!(is_granted(&quorum.claim(owner).await));
        assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
        sleep(server_timeout(LEASE)).await;
        quorum.assert_freed(owner).await;
        assert!(quorum.faulty[2].releases() > 1, "the release is repeated");
    }
}

/// The last store answers the claim after the release was sent.
#[tokio::test]
async fn a_release_that_follows_its_claim_is_not_repeated() {
    let quorum = FaultyQuorum::of(3);
    quorum.next_claims(&[2], Fault::SlowAnswer(server_timeout(LEASE) / 4));
    let owner = owner();
    assert!(is_granted(&quorum.claim(owner).await));
    assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
    sleep(server_timeout(LEASE) * 3 / 2).await;
    assert_eq!(quorum.held_by(owner).await, [false; 3]);
    assert_eq!(quorum.faulty[2].releases(), 1, "the release was repeated");
}

#[tokio::test]
async fn claims_with_a_split_vote_end() {
    let quorum = FaultyQuorum::of(3);
    let (one, other) = (owner(), owner());
    assert!(is_granted(&claim(&*quorum.memory[0], one, LEASE).await));
    assert!(is_granted(&claim(&*quorum.memory[1], other, LEASE).await));
    // An attempt that has failed has no votes any more.
    assert!(matches!(quorum.claim(owner()).await, Ok(Acquired::Busy(_))));
    for (store, owner) in [(0, one), (1, other)] {
        let freed = quorum.memory[store].release(release(owner), Lane::Caller).await;
        assert_eq!(freed, Ok(Released::Freed { woken: 0 }));
    }
    assert!(is_granted(&quorum.claim(owner()).await));
}

#[tokio::test]
async fn an_answer_that_comes_after_the_lease_is_no_grant() {
    let quorum = FaultyQuorum::of(3);
    let term = server_timeout(LEASE) / 4;
    quorum.next_claims(&[0, 1, 2], Fault::Slow(term * 2));
    let owner = owner();
    assert!(!is_granted(&quorum.claim_for(owner, term).await), "granted after the lease");
    quorum.assert_freed(owner).await;
}

#[tokio::test]
async fn permanent_errors_of_most_stores_are_errors_of_the_quorum() {
    let quorum = FaultyQuorum::of(3);
    quorum.next_claims(&[0, 2], Fault::Deny);
    assert!(matches!(quorum.claim(owner()).await, Err(StoreError::Denied(_))));
    quorum.next_claims(&[0], Fault::Deny);
    let one = owner();
    assert!(is_granted(&quorum.claim(one).await));
}

#[tokio::test]
async fn a_wait_is_as_long_as_a_majority_of_the_leases() {
    let quorum = FaultyQuorum::of(3);
    for (store, lease) in [(0, LEASE), (1, LEASE * 2), (2, LEASE * 3)] {
        assert!(is_granted(&claim(&*quorum.memory[store], owner(), lease).await));
    }
    let Ok(Acquired::Busy(Left::Time(left))) = quorum.claim(owner()).await else { panic!("busy") };
    assert!(left > LEASE && left <= LEASE * 2, "{left:?}");
}
