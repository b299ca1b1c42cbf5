//! Members that fail, and operators that interfere.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LostReason};
use lock_tests::support::{
    LEASE, calls_go_on_beside_a_blocked_runtime, milliseconds, until, until_idle,
};
use lock_tests::{EtcdCluster, Helper, running_time, running_time_between, within};
use tokio::task::JoinSet;

use crate::support::{LONG, RENEWED, client, is_exclusive, patient_client, request_counts};

#[tokio::test]
async fn a_lock_survives_the_death_of_a_member_and_of_the_leader() {
    let mut etcd = EtcdCluster::three();
    let (one, two) =
        (patient_client(&etcd.url(), LONG).await, patient_client(&etcd.url(), LONG).await);
    let guard = one.lock("k").acquire().await.expect("a lock");
    for number in [etcd.follower(), etcd.leader()] {
        etcd.kill(number);
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            assert!(guard.is_held(), "the lock is lost");
            is_exclusive(&guard, &two).await;
            tokio::time::sleep(LEASE / 4).await;
        }
        etcd.restart(number);
    }
    guard.release().await.expect("a release");
    let next = two.lock("k").acquire().await.expect("a lock");
    next.release().await.expect("a release");
}

#[tokio::test]
async fn locks_are_acquired_again_soon_after_the_leader_was_killed() {
    let mut etcd = EtcdCluster::three();
    let client = patient_client(&etcd.url(), LONG).await;
    for _ in 0..3 {
        let leader = etcd.leader();
        etcd.kill(leader);
        let guard = client.lock("k").wait(LONG).acquire().await.expect("a lock");
        guard.release().await.expect("a release");
        etcd.restart(leader);
    }
    until(LONG, || etcd.keys("").is_empty()).await.expect("no key is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_delays_no_calls_of_others() {
    let etcd = EtcdCluster::single();
    let client = async || patient_client(&etcd.url(), LEASE * 6).await;
    calls_go_on_beside_a_blocked_runtime(&client().await, &client().await).await;
}

#[tokio::test]
async fn no_lock_is_lost_while_the_leader_is_suspended() {
    let etcd = EtcdCluster::three();
    let lease = LEASE * 5;
    // The clients spread over the members, and some of them use the leader.
    let mut held = Vec::new();
    for number in 0..10 {
        let client = patient_client(&etcd.url(), lease).await;
        let guard = client.lock(format!("k{number}")).acquire().await.expect("a lock");
        held.push((client, guard));
    }
    let leader = etcd.leader();
    etcd.freeze(leader);
    tokio::time::sleep(lease * 8 / 5).await;
    let lost = held.iter().filter(|(_, guard)| !guard.is_held()).count();
    etcd.thaw(leader);
    assert_eq!(lost, 0, "locks are lost while the leader is suspended");
    tokio::time::sleep(lease).await;
    let mut lost = Vec::new();
    for (_, guard) in held.iter().filter(|(_, guard)| !guard.is_held()) {
        lost.push(guard.lost().await);
    }
    // The earlier leader may revoke leases that were renewed meanwhile. It notices that it does not lead any more only if it
    // has not ticked yet when it looks for ended leases. Old versions do not look at all.
    println!("{}: lost after the leader is back: {lost:?}", etcd.version());
    lost.retain(|reason| *reason != LostReason::Gone);
    assert!(lost.is_empty(), "locks are lost after the leader is back: {lost:?}");
}

#[tokio::test]
async fn a_client_that_is_cut_off_ends_its_body_before_the_key_is_free() {
    let etcd = EtcdCluster::single();
    let (one, two) = (client(&etcd.url()).await, client(&etcd.url()).await);
    let guard = one.lock("k").acquire().await.expect("a lock");
    // Its renewals get no answer, and nothing else happens at etcd.
    etcd.freeze(0);
    let ended = within(RENEWED * 2, guard.lost()).await;
    ended.expect("the hold ends at its deadline");
    etcd.thaw(0);
    let next = two.lock("k").acquire().await.expect("the key is free after its lease");
    next.release().await.expect("a release");
    drop(guard);
    until_idle(&one, LONG).await;
    assert!(etcd.keys("").is_empty());
}

#[tokio::test]
async fn an_extension_after_one_that_has_failed_extends_the_lease() {
    let etcd = EtcdCluster::single();
    let (one, two) =
        (patient_client(&etcd.url(), LONG).await, patient_client(&etcd.url(), LONG).await);
    let (first, long) = (LEASE * 6, LEASE * 40);
    let guard = one.lock("k").lease(first).acquire().await.expect("a lock");
    etcd.freeze(0);
    let failed = guard.extend(long).await;
    assert!(matches!(failed, Err(LockError::Unavailable { .. })), "{failed:?}");
    etcd.thaw(0);
    // It ends before the one that has failed would end.
    guard.extend(long / 2).await.expect("an extension");
    // etcd may have carried out the first request of the failed extension when it continued.
    let end = Instant::now() + first + LEASE * 3;
    while Instant::now() < end {
        is_exclusive(&guard, &two).await;
        tokio::time::sleep(LEASE / 4).await;
    }
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

#[tokio::test]
async fn a_lock_survives_the_restart_of_all_members() {
    let mut etcd = EtcdCluster::three();
    let client = patient_client(&etcd.url(), LONG * 3).await;
    let guard = client.lock("k").acquire().await.expect("a lock");
    for number in 0..etcd.len() {
        etcd.kill(number);
    }
    for number in 0..etcd.len() {
        etcd.begin_restart(number);
    }
    let _ = etcd.leader();
    tokio::time::sleep(LONG * 3 * 6 / 5).await;
    assert!(guard.is_held(), "the lock is lost");
    guard.release().await.expect("a release");
    assert!(etcd.keys("").is_empty());
}

#[tokio::test]
async fn a_new_leader_by_request_is_not_noticed() {
    let etcd = EtcdCluster::three();
    let client = patient_client(&etcd.url(), LONG).await;
    let guard = client.lock("k").acquire().await.expect("a lock");
    for _ in 0..3 {
        etcd.move_leader();
        let other = client.lock("other").acquire().await.expect("a lock");
        other.release().await.expect("a release");
    }
    assert!(guard.is_held());
}

/// Waits until the first renewal, and asserts that the loss is noticed long before the next one.
async fn assert_lost_at_once(guard: &LockGuard, interfere: impl FnOnce()) {
    tokio::time::sleep(LONG * 4 / 10).await;
    assert!(guard.is_held());
    interfere();
    let began = Instant::now();
    let lost = within(LEASE, guard.lost()).await;
    let reason = lost.expect("the loss is noticed at once");
    println!("noticed after {:?}", began.elapsed());
    assert_eq!(reason, LostReason::Gone);
}

#[tokio::test]
async fn a_lock_whose_key_is_deleted_is_lost_at_once() {
    let etcd = EtcdCluster::single();
    let client = patient_client(&etcd.url(), LONG).await;
    let guard = client.lock("k").acquire().await.expect("a lock");
    let other = client.lock("other").acquire().await.expect("a lock");
    assert_lost_at_once(&guard, || drop(etcd.control(&["del", "k"]))).await;
    assert!(other.is_held());
}

#[tokio::test]
async fn a_fixed_lease_whose_key_is_deleted_is_lost_at_once() {
    let etcd = EtcdCluster::single();
    let client = patient_client(&etcd.url(), LONG).await;
    let guard = client.lock("k").lease(LONG * 2).acquire().await.expect("a lock");
    assert_lost_at_once(&guard, || drop(etcd.control(&["del", "k"]))).await;
}

#[tokio::test]
async fn all_locks_of_a_lease_that_is_revoked_are_lost_at_once_and_the_next_one_has_another_lease()
{
    let etcd = EtcdCluster::single();
    let client = patient_client(&etcd.url(), LONG).await;
    let one = client.lock("one").acquire().await.expect("a lock");
    let two = client.lock("two").acquire().await.expect("a lock");
    let leases = etcd.leases();
    assert_lost_at_once(&one, || drop(etcd.control(&["lease", "revoke", &leases[0]]))).await;
    within(LEASE, two.lost()).await.expect("the other one is lost as well");
    let next = client.lock("one").acquire().await.expect("a lock");
    assert!(!etcd.leases().contains(&leases[0]));
    tokio::time::sleep(LONG / 2).await;
    assert!(next.is_held());
}

#[tokio::test]
async fn a_renewal_notices_that_a_key_is_gone() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let guard = client.lock("k").acquire().await.expect("a lock");
    let other = client.lock("other").acquire().await.expect("a lock");
    etcd.control(&["del", "k"]);
    let lost = tokio::time::timeout(RENEWED, guard.lost()).await;
    assert_eq!(lost.expect("a renewal notices the loss"), LostReason::Gone);
    assert!(other.is_held());
}

#[tokio::test]
async fn dropped_calls_leave_nothing_while_another_lock_keeps_the_lease() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let held = client.lock("held").acquire().await.expect("a lock");
    for number in 0..200 {
        let lock = client.lock(format!("k{}", number % 7));
        let call = async move { lock.acquire().await.map(drop) };
        let within = Duration::from_micros(fastrand::u64(0..3000));
        let _ = tokio::time::timeout(within, call).await;
    }
    let left = until(LONG * 3, || etcd.keys("").len() == 1).await;
    assert!(left.is_some(), "left behind: {:?}", etcd.keys(""));
    assert!(held.is_held());
    let next = client.lock("k0").acquire().await.expect("a lock");
    next.release().await.expect("a release");
}

#[tokio::test]
async fn a_request_without_an_answer_is_undone_although_the_lease_lives_on() {
    let etcd = EtcdCluster::single();
    let client = patient_client(&etcd.url(), LONG).await;
    let held = client.lock("held").acquire().await.expect("a lock");
    etcd.freeze(0);
    // etcd reads these requests when it continues.
    let calls = (0..5).map(|number| {
        let lock = client.lock(format!("k{number}")).wait(LEASE * 2);
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    });
    for call in calls.collect::<Vec<_>>() {
        let outcome = call.await.expect("no panic");
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    etcd.thaw(0);
    let left = until(LONG, || etcd.keys("").len() == 1).await;
    assert!(left.is_some(), "left behind: {:?}", etcd.keys(""));
    assert!(held.is_held());
}

#[tokio::test]
async fn waiting_calls_and_holders_survive_compactions_and_restarts() {
    let mut etcd = EtcdCluster::single();
    // No renewal is due before the end of this test: it would notice the loss as well.
    let lease = LONG * 6;
    let (one, two) =
        (patient_client(&etcd.url(), lease).await, patient_client(&etcd.url(), lease).await);
    let held = one.lock("k").acquire().await.expect("a lock");
    let other = one.lock("other").acquire().await.expect("a lock");
    let waiting = tokio::spawn({
        let lock = two.lock("k");
        async move { lock.acquire().await.map(|guard| (guard, Instant::now())) }
    });
    tokio::time::sleep(LEASE).await;
    for _ in 0..5 {
        etcd.control(&["put", "unrelated", "value"]);
    }
    let status = etcd.control(&["endpoint", "status", "--write-out=fields"]);
    let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
    etcd.control(&["compact", revision.expect("a revision").trim()]);
    etcd.restart(0);
    // The watches are back.
    tokio::time::sleep(LEASE * 2).await;
    assert!(held.is_held() && other.is_held(), "the locks survive");
    held.release().await.expect("a release");
    let released = Instant::now();
    let (guard, granted) = waiting.await.expect("no panic").expect("a lock");
    let took = running_time_between(released, granted);
    assert!(took < LEASE * 2, "woken after the restart, but {took:?} after the release");
    guard.release().await.expect("a release");
    // The stream reports losses again.
    etcd.control(&["del", "other"]);
    let lost = within(LEASE, other.lost()).await;
    lost.expect("the loss is noticed at once after the restart");
}

#[tokio::test]
async fn a_member_without_a_leader_refuses_at_once() {
    let mut etcd = EtcdCluster::three();
    let client = patient_client(&etcd.url_of(0), LONG).await;
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    etcd.kill(1);
    etcd.kill(2);
    // It takes an election timeout until the member knows that it has no leader.
    tokio::time::sleep(LEASE * 3).await;
    let began = Instant::now();
    let refused = client.lock("k").wait(Duration::ZERO).acquire().await;
    let took = running_time(began);
    match refused.map(drop) {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("no leader"), "the member says why: {cause}");
        }
        other => panic!("the member has no leader: {other:?}"),
    }
    assert!(took < LEASE, "refused after {took:?}");
    etcd.restart(1);
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
}

#[tokio::test]
async fn the_locks_of_a_process_that_is_killed_are_free_after_its_lease() {
    let etcd = EtcdCluster::single();
    let (url, lease) = (etcd.url(), milliseconds(RENEWED));
    let hold = ["hold", &url, "k", &lease];
    let mut helper = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &hold);
    // It says that it has the lock.
    helper.line();
    helper.kill();
    let began = Instant::now();
    let client = client(&etcd.url()).await;
    let guard = client.lock("k").acquire().await.expect("a lock");
    assert!(running_time(began) < RENEWED * 5, "free after {:?}", began.elapsed());
    guard.release().await.expect("a release");
}

#[tokio::test]
async fn many_leases_that_end_at_once_leave_their_keys_free() {
    let (count, lease) = (300_u32, RENEWED);
    let mut etcd = EtcdCluster::single();
    let (one, two) = (client(&etcd.url()).await, client(&etcd.url()).await);
    let (mut acquiring, mut guards) = (JoinSet::new(), Vec::new());
    for number in 0..count {
        let lock = one.lock(format!("k{number}")).lease(lease);
        acquiring.spawn(async move { lock.acquire().await });
        // etcd answers that many requests in time.
        if acquiring.len() == 50 || number + 1 == count {
            while let Some(acquired) = acquiring.join_next().await {
                guards.push(acquired.expect("no panic").expect("a lock"));
            }
        }
    }
    // After a restart, all leases begin anew, so they end at the same time.
    etcd.restart(0);
    let restarted = Instant::now();
    let mut waiting = JoinSet::new();
    for number in 0..count {
        let lock = two.lock(format!("k{number}")).wait(lease * 3 + LONG);
        waiting.spawn(async move {
            let guard = lock.acquire().await?;
            let granted = Instant::now();
            guard.release().await.map(|()| granted)
        });
    }
    let granted = waiting.join_all().await.into_iter().collect::<Result<Vec<_>, _>>();
    let granted = granted.expect("every call gets its lock");
    let after = |granted: &Instant| granted.saturating_duration_since(restarted);
    let first = granted.iter().map(after).min().expect("one");
    let last = granted.iter().map(after).max().expect("one");
    // That of a member begins with its restart.
    let transactions = request_counts(&etcd).transactions;
    println!(
        "{count} leases of {lease:?}, free {first:?} to {last:?} after a restart, {transactions} transactions"
    );
    assert!(guards.iter().all(|guard| !guard.is_held()));
    // Each call polls every 5 s; besides, it makes attempts when it begins and is woken, and releases the lock. The client
    // of the first locks verifies them.
    let polls = last.as_secs() / 5 + 1;
    assert!(transactions <= u64::from(count) * (polls + 8), "{transactions} transactions");
}
