//! Locks in etcd without faults.

use std::time::Duration;

use lock_runtime::{LockClient, LockError};
use lock_tests::support::{LEASE, until, until_idle};
use lock_tests::{EtcdCluster, EtcdOptions, running_time, within};

use crate::support::{LONG, RENEWED, client, patient_client, request_counts};

#[tokio::test]
async fn a_call_is_one_key_which_is_gone_afterwards() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let guard = client.lock("order:1").acquire().await.expect("a lock");
    assert_eq!(etcd.keys("order"), ["order:1"]);
    let token = guard.fencing_token().await.expect("a token");
    guard.release().await.expect("a release");
    assert!(etcd.keys("").is_empty());
    let guard = client.lock("order:1").acquire().await.expect("a lock");
    assert!(guard.fencing_token().await.expect("a token") > token);
}

#[tokio::test]
async fn a_call_is_one_request_and_its_release_another_one() {
    let etcd = EtcdCluster::single();
    // Nothing is renewed meanwhile.
    let client = patient_client(&etcd.url(), LONG * 6).await;
    // It is on the shared lease.
    let held = client.lock("held").acquire().await.expect("a lock");
    let before = request_counts(&etcd).transactions;
    for _ in 0..10 {
        let guard = client.lock("k").acquire().await.expect("a lock");
        guard.fencing_token().await.expect("a token");
        guard.release().await.expect("a release");
    }
    assert_eq!(request_counts(&etcd).transactions - before, 20);
    drop(held);
}

#[tokio::test]
async fn renewed_locks_share_a_lease_that_ends_when_nothing_is_held() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let one = client.lock("one").acquire().await.expect("a lock");
    let two = client.lock("two").acquire().await.expect("a lock");
    assert_eq!(etcd.leases().len(), 1);
    tokio::time::sleep(LEASE * 4).await;
    assert!(one.is_held() && two.is_held());
    assert_eq!(etcd.leases().len(), 1);
    drop((one, two));
    until_idle(&client, LEASE * 10).await;
    until(LEASE * 20, || etcd.leases().is_empty()).await.expect("the lease ends");
}

#[tokio::test]
async fn a_fixed_lease_is_its_own_and_ends_with_the_release() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let guard = client.lock("k").lease(LEASE * 60).acquire().await.expect("a lock");
    assert_eq!(etcd.leases().len(), 1);
    guard.release().await.expect("a release");
    until(LEASE * 10, || etcd.leases().is_empty()).await.expect("the lease is revoked");
}

#[tokio::test]
async fn a_short_lease_ends_the_body_by_the_clock_of_the_client() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let lock = client.lock("k").lease(LEASE / 4);
    let ended = lock.run(std::future::pending::<()>()).await;
    assert!(matches!(ended, Err(LockError::Lost { .. })), "{ended:?}");
    // The release frees the key before the lease of etcd ends.
    let free = client.lock("k").wait(LEASE * 10).acquire().await;
    free.expect("a lock").release().await.expect("a release");
}

#[tokio::test]
async fn a_waiter_in_another_process_is_woken_by_the_release() {
    let etcd = EtcdCluster::single();
    let (one, two) = (client(&etcd.url()).await, client(&etcd.url()).await);
    let mut fastest = LEASE;
    for _ in 0..5 {
        let held = one.lock("k").acquire().await.expect("a lock");
        let waiting = tokio::spawn({
            let lock = two.lock("k");
            async move { lock.acquire().await.map(|guard| guard.waited()) }
        });
        // Long enough for its attempts, and shorter than its poll interval.
        tokio::time::sleep(LEASE / 2).await;
        held.release().await.expect("a release");
        let released = std::time::Instant::now();
        waiting.await.expect("no panic").expect("a lock");
        assert!(running_time(released) < LEASE, "woken after {:?}", released.elapsed());
        fastest = fastest.min(released.elapsed());
    }
    assert!(fastest < LEASE / 10, "woken after {fastest:?}");
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_key_and_no_longer() {
    let etcd = EtcdCluster::single();
    let (one, two) = (client(&etcd.url()).await, client(&etcd.url()).await);
    let began = std::time::Instant::now();
    let guard = one.lock("k").min_hold(LEASE * 2).acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    let busy = two.lock("k").try_acquire().await.expect("an answer");
    assert!(busy.is_none());
    let next = two.lock("k").wait(LEASE * 30).acquire().await.expect("a lock");
    assert!(began.elapsed() >= LEASE * 2);
    next.release().await.expect("a release");
}

#[tokio::test]
async fn the_tokens_of_several_keys_are_the_highest_of_them_and_later_ones_are_above() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let set = client.lock_all(["a", "b", "c"]).acquire().await.expect("locks");
    let token = set.fencing_token().await.expect("a token");
    set.release().await.expect("a release");
    for key in ["a", "b", "c"] {
        let guard = client.lock(key).acquire().await.expect("a lock");
        assert!(guard.fencing_token().await.expect("a token") > token);
    }
}

#[tokio::test]
async fn many_locks_are_renewed_together() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let mut guards = Vec::new();
    for number in 0..250 {
        guards.push(client.lock(format!("k{number}")).acquire().await.expect("a lock"));
    }
    tokio::time::sleep(LEASE * 4).await;
    assert!(guards.iter().all(lock_runtime::LockGuard::is_held));
    drop(guards);
    until_idle(&client, LEASE * 20).await;
    assert!(etcd.keys("").is_empty());
}

#[tokio::test]
async fn a_renewal_of_a_hundred_locks_is_three_requests() {
    let etcd = EtcdCluster::single();
    let builder = LockClient::builder().url(etcd.url()).lease(RENEWED).max_keys(100);
    let client = builder.connect().await.expect("a client");
    // Because of its minimum hold, the set is renewed when it is complete, and so are all its locks at a time.
    let keys = (0..100).map(|number| format!("k{number}"));
    let set = client.lock_all(keys).min_hold(LEASE / 100);
    let guard = set.acquire().await.expect("all locks");
    let before = request_counts(&etcd);
    let renewed = until(LEASE * 30, || request_counts(&etcd).extensions >= before.extensions + 3);
    renewed.await.expect("the locks are renewed");
    let after = request_counts(&etcd);
    let extensions = after.extensions - before.extensions;
    let transactions = after.transactions - before.transactions;
    assert_eq!(after.refused, 0, "transactions are refused");
    // That of the first extension may have been answered before.
    assert!(
        transactions <= extensions * 2 + 2,
        "{transactions} transactions for {extensions} extensions"
    );
    assert!(guard.is_held());
}

#[tokio::test]
async fn locks_work_with_the_times_of_etcd_by_default() {
    let options = EtcdOptions { default_times: true, ..EtcdOptions::default() };
    let etcd = EtcdCluster::start(1, &options);
    let client =
        LockClient::builder().url(etcd.url()).lease(Duration::from_secs(3)).connect().await;
    let client = client.expect("a client");
    let guard = client.lock("k").acquire().await.expect("a lock");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    assert!(etcd.keys("").is_empty());
}

#[tokio::test]
async fn the_documented_commands_show_locks_and_free_one() {
    let (_, section) = include_str!("../../../docs/etcd.md")
        .split_once("## Looking at locks")
        .expect("the section");
    let (_, block) = section.split_once("```text").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    let commands = block.lines().filter_map(|line| line.strip_prefix("etcdctl "));
    let commands: Vec<Vec<&str>> = commands.map(|line| line.split(' ').collect()).collect();
    let [keys, fields, lease, free] = &commands[..] else { panic!("{commands:?}") };

    let etcd = EtcdCluster::single();
    let (one, two) = (patient_client(&etcd.url(), LONG).await, client(&etcd.url()).await);
    let held = one.lock("shop:order:1").acquire().await.expect("a lock");
    let other = one.lock("shop:order:2").acquire().await.expect("a lock");
    let shown = etcd.control(keys);
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), ["shop:order:1", "shop:order:2"]);
    let shown = etcd.control(fields);
    let id = shown.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).expect("a lease");
    let id = format!("{:x}", id.trim().parse::<i64>().expect("a number"));
    let lease: Vec<&str> =
        lease.iter().map(|word| if *word == "LEASE" { &id } else { *word }).collect();
    let shown = etcd.control(&lease);
    for expected in ["remaining(", "shop:order:1", "shop:order:2"] {
        assert!(shown.contains(expected), "{expected:?} is missing: {shown}");
    }

    let waiting = tokio::spawn(async move { two.lock("shop:order:1").acquire().await });
    until(LONG, || etcd.keys("shop:order:1").len() == 2).await.expect("the mark of the call");
    etcd.control(free);
    let lost = within(LEASE, held.lost()).await;
    lost.expect("the holder is told at once");
    // An attempt without a message would be made after 3.75 s at the earliest.
    let granted = within(LEASE * 2, waiting).await;
    let granted = granted.expect("the call is told at once");
    granted.expect("no panic").expect("a lock").release().await.expect("a release");
    other.release().await.expect("a release");
}
