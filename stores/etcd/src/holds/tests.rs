//! Tests of the entries, without etcd.

use super::*;

const SHARED: KeyLease = KeyLease { id: 1, is_shared: true };
const OWN: KeyLease = KeyLease { id: 2, is_shared: false };
const TERM: Duration = Duration::from_secs(10);

fn owned() -> Owned {
    Owned::new("k", "owner")
}

/// An entry with a claim in flight, and the time of the claim.
fn claimed(lease: KeyLease) -> (KeyHolds, BootInstant) {
    let (mut holds, now) = (KeyHolds::default(), BootInstant::now());
    assert!(holds.claim(&owned(), lease, now.after(TERM)));
    (holds, now)
}

fn held(lease: KeyLease) -> (KeyHolds, BootInstant) {
    let (mut holds, now) = claimed(lease);
    holds.granted(&owned(), (lease, lease), 7);
    (holds, now)
}

#[test]
fn a_claim_that_is_declined_leaves_nothing() {
    let (mut holds, now) = claimed(SHARED);
    assert!(holds.uses(SHARED.id, now));
    holds.declined(&owned(), SHARED);
    assert!(holds.is_empty() && !holds.uses(SHARED.id, now));
}

#[test]
fn a_hold_that_is_released_leaves_nothing() {
    for lease in [SHARED, OWN] {
        let (mut holds, now) = held(lease);
        assert_eq!(holds.releasing(&owned(), now).map(|hold| hold.lease), Some(lease));
        assert!(holds.due(now.after(TERM * 100), 9).delete.is_empty(), "the release is in flight");
        assert!(holds.released(&owned(), true, now));
        assert!(holds.is_empty());
    }
}

#[test]
fn a_release_without_an_answer_is_repeated_until_it_has_one() {
    let (mut holds, now) = held(SHARED);
    holds.releasing(&owned(), now);
    holds.not_released(&owned(), now, Duration::ZERO);
    assert!(!holds.uses(SHARED.id, now));
    assert!(!holds.renew(&owned(), now.after(TERM)), "it cannot be renewed any more");
    assert!(!holds.claim(&owned(), SHARED, now.after(TERM)), "nor be acquired");
    let due = holds.due(now, 9);
    assert!(due.delete.is_empty());
    let next = due.next.expect("it is repeated");
    assert_eq!(holds.due(next, 9).delete, [owned()]);
    holds.retry(&owned(), next, Duration::ZERO);
    let later = holds.due(next, 9).next.expect("it is repeated");
    assert!(later.since(next) > next.since(now), "after a longer pause");
    assert!(holds.freed(&owned(), false, later));
    assert!(holds.is_empty());
}

#[test]
fn a_release_that_keeps_the_key_is_repeated_after_that_time() {
    let (mut holds, now) = held(SHARED);
    holds.releasing(&owned(), now);
    holds.not_released(&owned(), now, TERM * 2);
    assert!(holds.due(now.after(TERM), 9).delete.is_empty());
    assert_eq!(holds.due(now.after(TERM * 2), 9).delete, [owned()]);
    assert!(holds.uses(SHARED.id, now.after(TERM)), "its lease is not revoked before");
    assert!(!holds.uses(SHARED.id, now.after(TERM * 2)));
}

#[test]
fn a_fixed_lease_is_left_to_its_end() {
    let (mut holds, now) = held(OWN);
    holds.releasing(&owned(), now);
    holds.not_released(&owned(), now, Duration::ZERO);
    assert!(holds.is_empty());
    let (mut holds, now) = claimed(OWN);
    holds.doubted(&owned(), OWN);
    let released = holds.releasing(&owned(), now).map(|hold| hold.lease);
    assert_eq!(released, Some(OWN), "the release ends it, so the acquire does not arrive later");
    assert!(holds.released(&owned(), false, now));
    assert!(holds.is_empty());
    let (mut holds, now) = held(OWN);
    assert!(holds.due(now.after(TERM * 2), 9).delete.is_empty());
    assert!(holds.is_empty());
}

#[test]
fn an_acquire_that_may_still_arrive_is_undone_until_its_lease_has_ended() {
    let (mut holds, now) = claimed(SHARED);
    holds.doubted(&owned(), SHARED);
    assert!(holds.due(now.after(TERM / 2), 9).delete.is_empty(), "its owner may ask again");
    assert!(holds.uses(SHARED.id, now) && !holds.uses(SHARED.id, now.after(TERM)));
    holds.releasing(&owned(), now);
    assert!(!holds.released(&owned(), false, now), "it may arrive after the release");
    let next = holds.due(now, 9).next.expect("it is deleted later");
    assert_eq!(holds.due(next, 9).delete, [owned()]);
    assert!(!holds.freed(&owned(), false, next));
    holds.lease_ended(OWN.id);
    assert!(!holds.is_empty());
    holds.lease_ended(SHARED.id);
    assert!(holds.is_empty());
}

#[test]
fn an_acquire_that_has_arrived_does_not_arrive_again() {
    let (mut holds, now) = claimed(SHARED);
    holds.doubted(&owned(), SHARED);
    holds.releasing(&owned(), now);
    assert!(holds.released(&owned(), true, now), "it had taken the key");
    assert!(holds.is_empty());
}

#[test]
fn a_later_grant_does_not_answer_for_an_earlier_acquire() {
    let (mut holds, now) = claimed(SHARED);
    holds.doubted(&owned(), SHARED);
    let later = KeyLease { id: 3, is_shared: true };
    assert!(holds.claim(&owned(), later, now.after(TERM)));
    holds.granted(&owned(), (later, later), 8);
    holds.releasing(&owned(), now);
    assert!(!holds.released(&owned(), true, now), "the first one may still arrive");
    holds.lease_ended(SHARED.id);
    assert!(holds.is_empty());
}

#[test]
fn the_lease_of_an_acquire_in_flight_is_used() {
    let (mut holds, now) = claimed(SHARED);
    let later = KeyLease { id: 3, is_shared: true };
    assert!(holds.claim(&owned(), later, now.after(TERM)));
    let late = now.after(TERM * 9);
    assert!(holds.uses(SHARED.id, late) && holds.uses(later.id, late));
    holds.declined(&owned(), SHARED);
    assert!(!holds.uses(SHARED.id, late) && holds.uses(later.id, late));
}

#[test]
fn doubts_end_with_their_leases_in_any_order() {
    let [one, two] = [3, 4].map(|id| KeyLease { id, is_shared: true });
    for order in [[one, two], [two, one]] {
        for is_released in [false, true] {
            let (mut holds, now) = claimed(one);
            holds.doubted(&owned(), one);
            assert!(holds.claim(&owned(), two, now.after(TERM)));
            holds.doubted(&owned(), two);
            if is_released {
                holds.releasing(&owned(), now);
                assert!(!holds.released(&owned(), true, now), "either of them had taken it");
            }
            holds.lease_ended(order[0].id);
            assert!(!holds.is_empty());
            holds.lease_ended(order[1].id);
            assert!(holds.is_empty());
        }
    }
    let (mut holds, now) = claimed(one);
    holds.doubted(&owned(), one);
    assert!(holds.claim(&owned(), two, now.after(TERM)));
    holds.granted(&owned(), (two, two), 7);
    holds.lease_ended(one.id);
    holds.releasing(&owned(), now);
    assert!(holds.released(&owned(), true, now), "nothing is in doubt any more");
}

#[test]
fn a_key_that_may_get_another_lease_is_deleted_although_its_lease_has_ended() {
    let (mut holds, now) = held(SHARED);
    holds.moving(&owned());
    holds.releasing(&owned(), now);
    holds.not_released(&owned(), now, Duration::ZERO);
    holds.lease_ended(SHARED.id);
    assert_eq!(holds.due(now.after(TERM), 9).delete, [owned()]);
    assert!(holds.freed(&owned(), true, now));
    let (mut holds, now) = held(SHARED);
    holds.moving(&owned());
    holds.moved(&owned(), SHARED);
    holds.releasing(&owned(), now);
    holds.not_released(&owned(), now, Duration::ZERO);
    holds.lease_ended(SHARED.id);
    assert!(holds.is_empty());
}

#[test]
fn a_hold_that_nobody_renews_has_ended() {
    let (mut holds, now) = held(SHARED);
    assert!(holds.renew(&owned(), now.after(TERM * 2)));
    assert!(holds.due(now.after(TERM), 9).delete.is_empty());
    assert_eq!(holds.due(now.after(TERM * 2), 9).delete, [owned()]);
    assert!(!holds.renew(&owned(), now.after(TERM * 3)));
}

#[test]
fn a_renewal_without_an_answer_proves_nothing() {
    let (mut holds, now) = held(OWN);
    let lasts = |holds: &KeyHolds, until| holds.get(&owned()).is_some_and(|hold| hold.lasts(until));
    let (first, later) = (now.after(TERM), now.after(TERM * 2));
    assert!(lasts(&holds, first) && !lasts(&holds, later));
    assert!(holds.renew(&owned(), later));
    assert!(!lasts(&holds, later), "it was only asked for");
    holds.lasts(&owned(), OWN, later);
    assert!(lasts(&holds, later));
    let other = KeyLease { id: 3, ..OWN };
    holds.moved(&owned(), other);
    assert!(!lasts(&holds, first), "nothing is known of another lease");
    holds.lasts(&owned(), OWN, later);
    assert!(!lasts(&holds, first), "an answer about the lease that it had");
    let (mut holds, _) = claimed(OWN);
    holds.granted(&owned(), (OWN, other), 7);
    assert!(!lasts(&holds, first), "an earlier request has taken the key");
}

#[test]
fn a_limited_number_is_deleted_at_a_time() {
    let (mut holds, now) = (KeyHolds::default(), BootInstant::now());
    for number in 0..5 {
        let owned = Owned::new(&number.to_string(), "owner");
        holds.claim(&owned, SHARED, now);
        holds.granted(&owned, (SHARED, SHARED), 1);
    }
    let due = holds.due(now, 3);
    assert_eq!((due.delete.len(), due.next), (3, Some(now)));
    assert_eq!(holds.due(now, 3).delete.len(), 2);
}

/// A look at the holds of a moment ago.
fn watched(holds: &mut KeyHolds) -> Vec<(String, i64)> {
    assert!(holds.take_unwatched().is_empty(), "it was granted since the last look");
    assert!(holds.has_unwatched());
    let watched = holds.take_unwatched();
    assert!(!holds.has_unwatched() && holds.take_unwatched().is_empty());
    watched
}

#[test]
fn a_key_that_is_held_for_a_moment_is_to_be_watched_once() {
    let (mut holds, _) = held(SHARED);
    assert_eq!(watched(&mut holds), [("k".to_owned(), 7)]);
    assert!(holds.was_lost(&owned()), "it was watched");
    assert!(holds.is_empty());
    let (mut holds, now) = held(SHARED);
    holds.releasing(&owned(), now);
    assert!(watched(&mut holds).is_empty(), "it was released before");
}

#[test]
fn the_watch_of_a_hold_ends_once() {
    for lease in [SHARED, OWN] {
        let (mut holds, now) = held(lease);
        watched(&mut holds);
        assert!(holds.releasing(&owned(), now).is_some_and(|hold| hold.was_watched));
        assert!(!holds.releasing(&owned(), now).is_some_and(|hold| hold.was_watched));
        assert!(!holds.was_lost(&owned()));
        let (mut holds, now) = held(lease);
        watched(&mut holds);
        assert!(holds.due(now, 9).unwatch.is_empty());
        assert_eq!(holds.due(now.after(TERM), 9).unwatch, ["k"], "nobody has released it");
        assert!(holds.due(now.after(TERM * 2), 9).unwatch.is_empty());
        assert!(!holds.releasing(&owned(), now).is_some_and(|hold| hold.was_watched));
    }
}

/// A claim whose owner was released while it was in flight.
fn released_claim(lease: KeyLease) -> (KeyHolds, BootInstant) {
    let (mut holds, now) = claimed(lease);
    holds.releasing(&owned(), now);
    assert!(!holds.released(&owned(), false, now), "the claim may still arrive");
    assert!(holds.due(now.after(TERM / 2), 9).delete.is_empty(), "nothing is known of it");
    (holds, now)
}

#[test]
fn a_claim_that_is_granted_after_its_release_is_deleted() {
    for lease in [SHARED, OWN] {
        let (mut holds, now) = released_claim(lease);
        assert!(!holds.granted(&owned(), (lease, lease), 7));
        for is_gone in [false, true] {
            assert_eq!(holds.due(now, 9).delete, [owned()]);
            assert_eq!(holds.freed(&owned(), true, now), is_gone, "it is deleted twice");
        }
        assert!(holds.is_empty());
    }
}

#[test]
fn a_claim_that_is_declined_after_its_release_leaves_nothing() {
    let (mut holds, _) = released_claim(SHARED);
    holds.declined(&owned(), SHARED);
    assert!(holds.is_empty());
}

#[test]
fn a_claim_that_is_in_doubt_after_its_release_is_deleted_until_its_lease_ends() {
    let (mut holds, now) = released_claim(SHARED);
    holds.doubted(&owned(), SHARED);
    assert_eq!(holds.due(now, 9).delete, [owned()]);
    assert!(!holds.freed(&owned(), false, now));
    holds.lease_ended(SHARED.id);
    assert!(holds.is_empty());
    let (mut holds, _) = released_claim(OWN);
    holds.doubted(&owned(), OWN);
    assert!(holds.is_empty(), "a fixed lease ends by itself");
}

#[test]
fn a_claim_that_is_in_flight_after_its_term_is_deleted_and_its_lease_is_retired() {
    for is_released in [false, true] {
        let (mut holds, now) = if is_released { released_claim(SHARED) } else { claimed(SHARED) };
        assert!(holds.due(now, 9).retire.is_empty());
        let late = now.after(TERM);
        let due = holds.due(late, 9);
        assert_eq!(due.retire, [SHARED.id]);
        assert_eq!(due.delete, [owned()]);
        assert!(!holds.uses(SHARED.id, late), "the lease can be revoked");
        assert!(!holds.granted(&owned(), (SHARED, SHARED), 7), "nobody relies on it");
        assert_eq!(holds.due(late, 9).delete, [owned()]);
        holds.lease_ended(SHARED.id);
        assert!(holds.is_empty());
    }
    let (mut holds, now) = claimed(OWN);
    holds.due(now.after(TERM), 9);
    assert!(holds.is_empty(), "a fixed lease ends by itself");
}

#[test]
fn a_deletion_without_effect_is_repeated_once_if_the_claim_was_granted_meanwhile() {
    let (mut holds, now) = claimed(SHARED);
    holds.releasing(&owned(), now);
    assert!(!holds.granted(&owned(), (SHARED, SHARED), 7));
    assert!(!holds.released(&owned(), false, now), "the deletion came first");
    assert_eq!(holds.due(now, 9).delete, [owned()]);
    assert!(holds.freed(&owned(), false, now) && holds.is_empty());
}

#[test]
fn nothing_else_frees_the_key_while_a_release_is_in_flight() {
    let (mut holds, now) = held(SHARED);
    let later = now.after(TERM / 2);
    // The same owner makes another attempt, because the answer to the first one is late.
    assert!(holds.claim(&owned(), SHARED, now.after(TERM)));
    holds.releasing(&owned(), now);
    assert!(!holds.granted(&owned(), (SHARED, SHARED), 7));
    holds.releasing(&owned(), now);
    assert!(holds.due(later, 9).delete.is_empty(), "the key is freed twice");
    assert!(holds.uses(SHARED.id, later), "the lease is not revoked");
    assert!(!holds.released(&owned(), true, now));
    assert!(!holds.uses(SHARED.id, later));
    assert_eq!(holds.due(later, 9).delete, [owned()], "the attempt may have come last");
    assert!(holds.freed(&owned(), false, now) && holds.is_empty());
}

#[test]
fn deletions_are_not_repeated_for_a_claim_in_flight() {
    let (mut holds, now) = claimed(SHARED);
    holds.releasing(&owned(), now);
    holds.not_released(&owned(), now, Duration::ZERO);
    let next = holds.due(now, 9).next.expect("it is repeated");
    assert_eq!(holds.due(next, 9).delete, [owned()]);
    assert!(!holds.freed(&owned(), false, next), "the claim may still arrive");
    assert!(holds.due(next, 9).delete.is_empty());
}
