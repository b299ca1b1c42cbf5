//! Renewals that fail, and renewals that race with a release.

use std::time::Duration;

use lock_tests::CapturedLog;
use lock_tests::simulation::{RequestFault, Simulation};
use tokio::time::sleep;

use super::{builder, holds_within, idle, locks};
use crate::renewals::hold_and_release;

const LEASE: Duration = Duration::from_secs(3);

/// The renewal is due a third of a lease after the grant. The releases begin before, during and
/// after it. A renewal that is already in flight extends nothing, and none is sent later.
#[test]
fn no_renewal_is_sent_after_the_release_has_begun() {
    Simulation::run(0, async |simulation| {
        let client = builder(simulation, "one", LEASE).connect().await.expect("up");
        // Renewals are in flight for a while.
        simulation.delay(LEASE / 50);
        let holds = 200;
        hold_and_release(&client, holds, |n| LEASE / 5 + LEASE * (n % 20) / 100).await;
        // Every release and every renewal reads its key once. A renewal in time also extends it.
        let extended = simulation.calls("pexpire");
        assert!((10..190).contains(&extended), "some are renewed before the release: {extended}");
        idle(&client, LEASE).await;
        let late = simulation.calls("get") - u64::from(holds) - simulation.calls("pexpire");
        assert!(late < 60, "{late} renewals after the release, more than were in flight");
        // From now on, any renewal would be far too late.
        let looked = (simulation.calls("get"), simulation.calls("pexpire"));
        sleep(LEASE).await;
        assert_eq!((simulation.calls("get"), simulation.calls("pexpire")), looked);
        assert_eq!(locks(simulation), [""; 0]);
    });
}

/// Releases `k` while a renewal is in flight, calls `then`, and lets the renewal arrive. Returns
/// the time to live of the key in milliseconds, before and after the renewal.
fn late_renewal(min_hold: Option<Duration>, then: impl FnOnce(&Simulation)) -> (i64, i64) {
    Simulation::run(0, async |simulation| {
        let client = builder(simulation, "one", LEASE).connect().await.expect("up");
        let lock = client.lock("k");
        let lock = min_hold.map_or(lock.clone(), |min_hold| lock.min_hold(min_hold));
        let guard = lock.acquire().await.expect("free");
        simulation.fail_next("EVALSHA", RequestFault::HeldBack);
        assert!(holds_within(LEASE, || simulation.failed() == 1).await, "a renewal is in flight");
        guard.release().await.expect("over the other connection");
        then(simulation);
        let (left, asked) = (simulation.pttl("k"), simulation.calls("evalsha"));
        simulation.deliver();
        assert!(simulation.calls("evalsha") > asked, "the renewal arrives");
        idle(&client, LEASE).await;
        (left, simulation.pttl("k"))
    })
}

#[test]
fn a_renewal_that_arrives_after_the_release_does_not_recreate_the_key() {
    let (before, after) = late_renewal(None, |_| {});
    assert_eq!((before, after), (-2, -2), "the key does not exist");
}

#[test]
fn a_renewal_that_arrives_after_the_release_does_not_extend_the_lock_of_a_successor() {
    let (before, after) =
        late_renewal(None, |simulation| simulation.set("k", "stranger", LEASE / 3));
    assert!(before > 0 && after <= before, "{after} after {before}");
}

/// With `min_hold`, the key still exists after the release.
#[test]
fn a_renewal_that_arrives_after_the_release_does_not_extend_the_min_hold() {
    let (before, after) = late_renewal(Some(LEASE * 2 / 3), |_| {});
    assert!(before > 0 && after <= before, "{after} after {before}");
}

#[test]
fn a_renewal_that_fails_once_or_twice_costs_no_lock_and_is_logged() {
    let log = CapturedLog::here();
    for failures in [1, 2] {
        Simulation::run(0, async |simulation| {
            let client = builder(simulation, "one", LEASE).connect().await.expect("up");
            let key = format!("failing:{failures}:simulated");
            let guard = client.lock(&key).acquire().await.expect("free");
            for _ in 0..failures {
                // The client sends only renewals.
                simulation.fail_next("EVALSHA", RequestFault::LostReply);
            }
            let have_failed = holds_within(LEASE, || simulation.failed() == failures).await;
            assert!(have_failed, "the renewals fail");
            let works = || !log.lines(&["INFO", &key, "renewal works again"]).is_empty();
            assert!(holds_within(LEASE, works).await, "the renewal is repeated");
            assert!(!log.lines(&["WARN", &key, "renewal failed"]).is_empty(), "it is logged");
            assert!(log.lines(&[&key, "lost"]).is_empty());
            for _ in 0..20 {
                assert!(guard.is_held());
                sleep(LEASE / 10).await;
            }
            guard.release().await.expect("held");
        });
    }
}
