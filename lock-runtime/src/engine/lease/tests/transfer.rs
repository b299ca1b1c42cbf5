//! Leases that the store has given to a claim in a queue.

use super::*;
use crate::store::contract::Grant;
use crate::store::memory::MemoryStore;

/// Shorter than the term.
const GIVEN: Duration = Duration::from_secs(3);

/// A hold of a lock that the store has given to its claim some time after `not_before`.
fn given(not_before: BootInstant, terms: &Terms) -> Hold {
    given_with(not_before, terms, None)
}

fn given_with(not_before: BootInstant, terms: &Terms, permit: Option<Permit>) -> Hold {
    let grant = Grant { is_transfer: true, ..Grant::of(GIVEN) };
    let locked = testing::locked_in("k", MemoryStore::new());
    Hold::new(locked, terms, (grant, (not_before, BootInstant::now())), permit, true)
}

#[test]
fn the_deadline_counts_from_the_last_confirmation_of_the_place() {
    let not_before = BootInstant::now();
    let hold = given(not_before, &terms());
    assert_eq!(hold.deadline(), deadline(not_before, GIVEN));
    assert_eq!(hold.lease().term(), TERM, "renewals have the whole term");
    assert_eq!(hold.lease().renewal_due(true), (not_before.after(GIVEN / 2), GIVEN));
    // The key may have been given to the claim just now.
    assert!(hold.lease().gone_by() >= not_before.after(GIVEN));
}

#[test]
fn the_first_renewal_extends_the_lease_to_its_term() {
    let not_before = BootInstant::now();
    let hold = given(not_before, &terms());
    let sent = not_before.after(GIVEN / 2);
    assert_eq!(hold.lease().about_to_renew(sent), Some(TERM));
    hold.lease().extended(sent, None);
    assert_eq!(hold.deadline(), deadline(sent, TERM));
    assert_eq!(hold.lease().renewal_due(true), (sent.after(TERM / 3), TERM));
}

#[test]
fn the_limit_of_a_hold_counts_from_the_grant() {
    let (now, earlier, max_hold) = (BootInstant::now(), GIVEN / 2, GIVEN / 4);
    let not_before = BootInstant::PAST.after(now.since(BootInstant::PAST).saturating_sub(earlier));
    let hold = given(not_before, &Terms { max_hold: Some(max_hold), ..terms() });
    assert!(hold.is_valid(now), "it would be over if it counted from the place in the queue");
    let latest = BootInstant::now().after(max_hold);
    assert!(hold.deadline() >= now.after(max_hold) && hold.deadline() <= latest);
}

#[test]
fn the_lock_is_handed_off_before_its_first_renewal() {
    let queues = Arc::new(LocalQueues::default());
    let permit = testing::permit(&queues, "k");
    let hold = given_with(BootInstant::now(), &terms(), Some(permit));
    assert!(hand_off(&hold).is_some());
}
