use super::*;

#[test]
fn times_to_live_are_rounded_up() {
    for (millis, ttl) in [(1, 1), (1000, 1), (1001, 2), (30_000, 30)] {
        assert_eq!(seconds(Duration::from_millis(millis)), ttl);
    }
}

#[test]
fn a_retired_lease_gets_no_holds_and_neither_does_a_missing_one() {
    let (leases, term) = (SharedLeases::default(), Duration::from_secs(3));
    let set = |id| {
        let until = BootInstant::now().after(term);
        *lock(&leases.slot(term).current) = Some(SharedLease::new(id, until));
    };
    let current = || lock(&leases.slot(term).current).map(|lease| lease.id);
    set(1);
    assert!(leases.retire(1) && !leases.retire(1));
    assert_eq!((current(), leases.retired()), (None, vec![1]));
    set(2);
    leases.missing(1);
    assert_eq!(leases.retired(), [1], "it is revoked, for a definite answer");
    assert!(!leases.is_being_revoked(1));
    leases.begin_revocation(1);
    leases.ended(1);
    assert_eq!((current(), leases.retired()), (Some(2), vec![]));
    assert!(leases.is_being_revoked(1) && !leases.is_being_revoked(2));
    leases.missing(2);
    assert_eq!(current(), None);
}

#[test]
fn one_acquire_has_a_lease_extended_before_the_others_have_to_wait_for_it() {
    let (slot, now) = (LeaseSlot::default(), BootInstant::now());
    let until = now.after(Duration::from_secs(30));
    let set = |lease| *lock(&slot.current) = Some(lease);
    set(SharedLease::new(1, until));
    let of_lease = Attachable::new(1);
    assert_eq!(slot.freshness(now), Freshness::Fresh(of_lease));
    assert_eq!(slot.freshness(until), Freshness::Aging(of_lease));
    assert_eq!(slot.freshness(until), Freshness::Fresh(of_lease), "it is being extended");
    assert_eq!(slot.freshness(until.after(EARLY)), Freshness::Stale);
    set(SharedLease::new(1, until));
    assert_eq!(slot.freshness(until), Freshness::Aging(of_lease), "nobody has extended it");
}

#[test]
fn an_extension_counts_when_a_later_transaction_confirms_it() {
    let (leases, term) = (SharedLeases::default(), Duration::from_secs(30));
    let slot = leases.slot(term);
    let until = BootInstant::now().after(term);
    let later = until.after(EARLY * 2);
    *lock(&slot.current) = Some(SharedLease::new(1, until));
    let extension = LeaseExtension { until: later, raft_term: 4 };
    slot.extended(2, extension);
    assert_eq!(slot.freshness(later), Freshness::Stale, "of another lease");
    slot.extended(1, extension);
    let (Freshness::Fresh(known), Freshness::Aging(longer)) =
        (slot.freshness(until), slot.freshness(later))
    else {
        panic!("it was extended");
    };
    assert!(leases.lasts(&known, 5) && !leases.lasts(&longer, 5), "by another leader");
    assert_eq!(slot.freshness(later), Freshness::Stale, "it does not count");
    slot.extended(1, extension);
    assert!(leases.lasts(&longer, 4));
    let current = lock(&slot.current).expect("it stays");
    assert_eq!((current.until, current.unconfirmed), (later, None));
}

#[test]
fn an_extension_is_confirmed_in_its_own_term_of_raft_only() {
    let extension = LeaseExtension { until: BootInstant::now(), raft_term: 4 };
    assert!(extension.is_confirmed_in(4));
    assert!(!extension.is_confirmed_in(5), "confirmed by another leader");
    let unknown = LeaseExtension { raft_term: 0, ..extension };
    assert!(!unknown.is_confirmed_in(0));
}

#[cfg(lock_controls)]
#[test]
fn controls_of_leases() {
    lock_core::safeguard::assert_fails_without(
        "extensions-are-confirmed",
        "leases::tests::an_extension_is_confirmed_in_its_own_term_of_raft_only",
        "confirmed by another leader",
    );
}
