//! Acquiring locks of a quorum.

use super::*;
use crate::store::contract::Left;

#[tokio::test]
async fn a_lock_is_granted_by_a_majority_and_excludes_others() {
    for stores in [3, 5] {
        let votes = Votes::of(stores);
        let (one, other) = (owner(), owner());
        assert!(is_granted(&votes.claim(one).await));
        assert!(matches!(votes.claim(other).await, Ok(Acquired::Busy(Left::Time(_)))));
        assert_eq!(votes.release(other).await, Ok(Released::Taken));
        assert_eq!(votes.release(one).await, Ok(Released::Freed { woken: 0 }));
        assert!(is_granted(&votes.claim(other).await));
    }
}

#[tokio::test]
async fn a_minority_that_does_not_answer_is_not_waited_for() {
    let votes = Votes::of(5);
    votes.next_claims(&[0, 3], Fault::Hang);
    let began = Instant::now();
    assert!(is_granted(&votes.claim(owner()).await));
    assert!(began.elapsed() < server_timeout(LEASE), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn no_lock_is_granted_without_a_majority() {
    for fault in [Fault::Refuse, Fault::LoseReply, Fault::Hang] {
        let votes = Votes::of(3);
        votes.next_claims(&[1, 2], fault);
        let owner = owner();
        let answer = votes.claim(owner).await;
        assert!(!is_granted(&answer), "granted by one of three servers");
        let error = answer.expect_err("one answer of three");
        assert_eq!(error.may_have_run(), fault != Fault::Refuse, "{error}");
        let words = ["fewer than 2 of the 3 servers", "store 1", "store 2"];
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        votes.assert_freed(owner).await;
    }
}

#[tokio::test]
async fn an_attempt_without_a_majority_is_undone_before_its_answer() {
    let votes = Votes::of(3);
    let (one, other) = (owner(), owner());
    for store in &votes.memory[..2] {
        assert!(is_granted(&claim(&**store, one, LEASE).await));
    }
    assert!(matches!(votes.claim(other).await, Ok(Acquired::Busy(_))));
    assert_eq!(votes.held_by(other).await, [false; 3], "a vote is left");
}

/// The store has served the claim, and its answer comes never, or late.
#[tokio::test]
async fn a_store_that_did_not_answer_is_freed_as_well() {
    for fault in [Fault::LoseReply, Fault::HangAfter, Fault::Slow(LEASE / 4)] {
        let votes = Votes::of(3);
        votes.next_claims(&[0], fault);
        votes.next_claims(&[1, 2], Fault::Refuse);
        // The undo on the same connection is lost as well.
        votes.faulty[0].next_releases([Fault::Hang]);
        let owner = owner();
        assert!(!is_granted(&votes.claim(owner).await));
        sleep(LEASE / 3).await;
        votes.assert_freed(owner).await;
    }
}

/// A claim that is dropped is undone by the engine, and nothing is sent after that.
#[tokio::test]
async fn a_claim_that_is_dropped_sends_nothing_more() {
    let votes = Votes::of(3);
    votes.next_claims(&[0, 1, 2], Fault::Slow(server_timeout(LEASE) / 2));
    let owner = owner();
    {
        let locks = votes.locks();
        let mut claim = Box::pin(claim(&*locks, owner, LEASE));
        let polled = tokio::time::timeout(Duration::from_millis(1), &mut claim).await;
        assert!(polled.is_err(), "the stores are slow");
    }
    sleep(server_timeout(LEASE)).await;
    assert_eq!(votes.held_by(owner).await, [false; 3]);
}

/// The store serves the claim behind its undo, as when the claim has to be sent again.
#[tokio::test]
async fn a_claim_that_comes_behind_its_undo_on_the_same_connection_is_undone_again() {
    let votes = Votes::of(3);
    votes.next_claims(&[0], Fault::Slow(server_timeout(LEASE) / 4));
    votes.next_claims(&[1, 2], Fault::Refuse);
    let owner = owner();
    assert!(!is_granted(&votes.claim(owner).await));
    sleep(server_timeout(LEASE) / 2).await;
    votes.assert_freed(owner).await;
}

/// The engine undoes the claim by a release, which one store serves before the claim.
#[tokio::test]
async fn a_late_vote_for_a_claim_that_was_dropped_is_undone() {
    let votes = Votes::of(3);
    votes.next_claims(&[0], Fault::HangAfter);
    votes.next_claims(&[1, 2], Fault::Hang);
    let owner = owner();
    {
        let locks = votes.locks();
        let mut claim = Box::pin(claim(&*locks, owner, LEASE));
        let polled = tokio::time::timeout(Duration::from_millis(1), &mut claim).await;
        assert!(polled.is_err(), "the stores hang");
    }
    assert_eq!(votes.release(owner).await, Ok(Released::Gone));
    assert!(is_granted(&claim(&*votes.memory[1], owner, LEASE).await), "the claim arrives");
    votes.assert_freed(owner).await;
}

/// The last store grants the lock after its release.
#[tokio::test]
async fn a_late_vote_for_a_lock_that_was_released_is_undone() {
    let votes = Votes::of(3);
    votes.next_claims(&[2], Fault::Slow(server_timeout(LEASE) / 2));
    let owner = owner();
    assert!(is_granted(&votes.claim(owner).await));
    assert_eq!(votes.release(owner).await, Ok(Released::Freed { woken: 0 }));
    sleep(server_timeout(LEASE)).await;
    votes.assert_freed(owner).await;
}

#[tokio::test]
async fn claims_that_divide_the_votes_end() {
    let votes = Votes::of(3);
    let (one, other) = (owner(), owner());
    assert!(is_granted(&claim(&*votes.memory[0], one, LEASE).await));
    assert!(is_granted(&claim(&*votes.memory[1], other, LEASE).await));
    // Both have given up their votes for a third one by now.
    assert!(matches!(votes.claim(owner()).await, Ok(Acquired::Busy(_))));
    for (store, owner) in [(0, one), (1, other)] {
        let freed = votes.memory[store].release(release(owner), Lane::Caller).await;
        assert_eq!(freed, Ok(Released::Freed { woken: 0 }));
    }
    assert!(is_granted(&votes.claim(owner()).await));
}

#[tokio::test]
async fn an_answer_that_comes_after_the_lease_is_no_grant() {
    let votes = Votes::of(3);
    let term = server_timeout(LEASE) / 4;
    votes.next_claims(&[0, 1, 2], Fault::Slow(term * 2));
    let owner = owner();
    assert!(!is_granted(&votes.claim_for(owner, term).await));
    votes.assert_freed(owner).await;
}

#[tokio::test]
async fn permanent_errors_of_most_stores_are_errors_of_the_quorum() {
    let votes = Votes::of(3);
    votes.next_claims(&[0, 2], Fault::Deny);
    assert!(matches!(votes.claim(owner()).await, Err(StoreError::Denied(_))));
    votes.next_claims(&[0], Fault::Deny);
    let one = owner();
    assert!(is_granted(&votes.claim(one).await));
}

#[tokio::test]
async fn a_wait_is_as_long_as_a_majority_of_the_leases() {
    let votes = Votes::of(3);
    for (store, lease) in [(0, LEASE), (1, LEASE * 2), (2, LEASE * 3)] {
        assert!(is_granted(&claim(&*votes.memory[store], owner(), lease).await));
    }
    let Ok(Acquired::Busy(Left::Time(left))) = votes.claim(owner()).await else { panic!("busy") };
    assert!(left > LEASE && left <= LEASE * 2, "{left:?}");
}
