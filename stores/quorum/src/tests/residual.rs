//! Votes that remain at a store which did not answer.

use super::*;

/// A lock that a majority has released. Store 0 has not answered the release.
async fn released_by_others(quorum: &FaultyQuorum) -> OwnerId {
    let owner = owner();
    assert!(is_granted(&quorum.claim(owner).await));
    quorum.faulty[0].next_releases([Fault::Hang]);
    assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
    owner
}

#[tokio::test]
async fn a_shutdown_releases_residual_votes() {
    let quorum = FaultyQuorum::of(3);
    let owner = released_by_others(&quorum).await;
    quorum.backend.finish().await;
    assert_eq!(quorum.held_by(owner).await, [false; 3], "a vote is left by the shutdown");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_store_that_does_not_answer() {
    let quorum = FaultyQuorum::of(3);
    let owner = released_by_others(&quorum).await;
    quorum.faulty[0].next_releases([Fault::Hang; 100]);
    let finished = tokio::time::timeout(LEASE, quorum.backend.finish()).await;
    finished.expect("one attempt takes two timeouts of a store");
    assert_eq!(quorum.held_by(owner).await, [true, false, false]);
}

/// The claim arrives after the first release.
#[tokio::test]
async fn a_shutdown_releases_the_vote_of_a_claim_without_an_answer_again() {
    let quorum = FaultyQuorum::of(3);
    let owner = owner();
    quorum.next_claims(&[0], Fault::Hang);
    assert!(is_granted(&quorum.claim(owner).await));
    assert_eq!(quorum.release(owner).await, Ok(Released::Freed { woken: 0 }));
    let late = async {
        // After the release of the call, and before the last release of the shutdown.
        sleep(server_timeout(LEASE) / 2).await;
        assert!(is_granted(&claim(&*quorum.memory[0], owner, LEASE).await), "the claim arrives");
    };
    tokio::join!(quorum.backend.finish(), late);
    assert_eq!(quorum.held_by(owner).await, [false; 3], "the late vote is left");
}

#[tokio::test]
async fn a_shutdown_does_not_release_the_votes_of_a_lost_lock() {
    let quorum = FaultyQuorum::of(3);
    let owner = owner();
    quorum.next_claims(&[2], Fault::Refuse);
    assert!(is_granted(&quorum.claim(owner).await));
    let _ = quorum.memory[1].release(release(owner), Lane::Caller).await;
    assert_eq!(quorum.renew(owner).await, Ok(Renewed::Gone));
    quorum.backend.finish().await;
    let held = quorum.held_by(owner).await;
    assert_eq!(held, [true, false, false], "released before the deadline of its body");
}
