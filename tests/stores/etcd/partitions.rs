//! Members that are cut off from the others, while clients still reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_tests::support::{LEASE, until};
use lock_tests::workload::run;
use lock_tests::{EtcdCluster, EtcdOptions, Expected, Recorder, running_time_between, within};
use tokio::time::sleep;

use crate::support::{LONG, client_at, is_exclusive, member_of, patient_client, request_counts_of};

/// Long enough for a client to use another member: it waits 0.7 s for an answer.
const SWITCH: Duration = LEASE.saturating_mul(3);

/// Three members that can be cut off from each other. Their elections take half a lease.
fn cluster() -> EtcdCluster {
    EtcdCluster::start(3, &EtcdOptions { can_be_cut_off: true, ..EtcdOptions::default() })
}

#[tokio::test]
async fn calls_go_on_and_locks_stay_when_the_member_of_their_client_is_cut_off() {
    let mut etcd = cluster();
    let (follower, lease) = (etcd.follower(), LEASE * 5);
    let other = patient_client(&etcd.url_of(etcd.leader()), lease).await;
    let client = client_at(&etcd, follower, lease).await;
    let held = client.lock("held").acquire().await.expect("a lock");
    etcd.cut_off(follower);
    let began = Instant::now();
    let call = within(SWITCH, client.lock("other").acquire()).await;
    let guard = call.expect("calls go on by another member").expect("a lock");
    println!("granted after {:?}", began.elapsed());
    guard.release().await.expect("a release");
    while began.elapsed() < lease * 8 / 5 {
        assert!(held.is_held(), "the lock is lost");
        is_exclusive(&held, &other).await;
        sleep(LEASE / 4).await;
    }
    etcd.heal();
    held.release().await.expect("a release");
    until(LONG, || etcd.keys("").is_empty()).await.expect("no key is left");
}

#[tokio::test]
async fn a_waiter_at_a_member_that_is_cut_off_is_woken() {
    let mut etcd = cluster();
    let follower = etcd.follower();
    let one = patient_client(&etcd.url_of(etcd.leader()), LONG).await;
    let two = client_at(&etcd, follower, LONG).await;
    let held = one.lock("k").acquire().await.expect("a lock");
    let waiting = tokio::spawn({
        let lock = two.lock("k");
        async move { lock.acquire().await.map(|guard| (guard, Instant::now())) }
    });
    // It has made its attempts by then, and waits for its stream.
    sleep(LEASE / 2).await;
    let before = request_counts_of(&etcd, follower).ended_watches;
    etcd.cut_off(follower);
    // The member ends its streams when it has had no leader for three times the time of an election.
    let ended = || request_counts_of(&etcd, follower).ended_watches;
    until(LONG, || ended() > before).await.expect("the stream of the waiter ends");
    held.release().await.expect("a release");
    let released = Instant::now();
    let (guard, granted) = waiting.await.expect("no panic").expect("a lock");
    let took = running_time_between(released, granted);
    assert!(took < LEASE, "woken after {took:?}");
    println!("woken after {took:?}");
    guard.release().await.expect("a release");
}

#[tokio::test]
async fn a_leader_that_is_cut_off_for_longer_than_the_lease_grants_nothing_twice() {
    let mut etcd = cluster();
    let (leader, follower, lease) = (etcd.leader(), etcd.follower(), LEASE * 4);
    let mut clients = Vec::new();
    for member in [leader, leader, follower] {
        clients.push(client_at(&etcd, member, lease).await);
    }
    let (recorder, is_over) = (Recorder::default(), Arc::new(AtomicBool::new(false)));
    let (mut served, mut tasks) = (Vec::new(), Vec::new());
    for client in clients {
        let count = Arc::new(AtomicUsize::new(0));
        served.push(Arc::clone(&count));
        let (recorder, is_over) = (recorder.clone(), Arc::clone(&is_over));
        tasks.push(tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let body = async |_: &lock_tests::workload::WorkloadHolder| sleep(LEASE / 50).await;
                if run(&client, "k", &recorder, body).await.is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    sleep(LEASE).await;
    etcd.cut_off(leader);
    for is_whole in [false, true] {
        let before: Vec<_> = served.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let more = || {
            let pairs = served.iter().zip(&before);
            pairs.map(|(count, before)| count.load(Ordering::Relaxed) - before).collect::<Vec<_>>()
        };
        sleep(lease * 3 / 2).await;
        println!("calls that were served: {:?}", more());
        assert!(more().iter().all(|more| *more > 0), "a client is not served: {:?}", more());
        if !is_whole {
            etcd.heal();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let history = recorder.history();
    let violations = history.violations(Expected { exclusion: true, no_stale_write: false });
    assert!(violations.is_empty(), "two have the lock: {violations:?}");
}

#[tokio::test]
async fn a_member_that_was_cut_off_is_used_again() {
    let mut etcd = cluster();
    let client = patient_client(&etcd.url(), LONG).await;
    let mut used = Vec::new();
    // One of three members is the first that is used twice.
    let again = loop {
        let began = Instant::now();
        let member = member_of(&etcd, &client).await;
        if used.contains(&member) {
            println!("used again after {used:?}: {member}, in {:?}", began.elapsed());
            break member;
        }
        used.push(member);
        etcd.cut_off(member);
        let call = within(LONG, client.lock("k").acquire()).await;
        let guard = call.expect("calls go on by another member").expect("a lock");
        guard.release().await.expect("a release");
        etcd.heal();
    };
    // Its watches tell of releases.
    let other = patient_client(&etcd.url_of((again + 1) % 3), LONG).await;
    let held = other.lock("k").acquire().await.expect("a lock");
    let waiting = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await.map(drop) }
    });
    sleep(LEASE / 2).await;
    held.release().await.expect("a release");
    let woken = within(LEASE * 2, waiting).await.expect("it is woken by the release");
    woken.expect("no panic").expect("a lock");
}
