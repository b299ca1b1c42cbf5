//! Masters of a cluster that are replaced by their replicas.

use std::time::{Duration, Instant};

use lock_runtime::LostReason;
use lock_tests::{Cluster, Expected, within};

use super::{
    KeyTraffic, LONG_LEASE, SOON, client_uses, keys_of_others, subscribed_channels,
    until_replicated, was_renewed_since,
};
use crate::kinds::{CONTESTED, KindContention};
use crate::support::{
    Contention, FaultFixture, LEASE, client_with_lease, number, start_keeper, until,
};

/// How soon a lease is renewed at a new master whose predecessor was not cut off: the next renewal is
/// at most a third of the lease away, and may get no answer once.
const RENEWED: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_master_delays_no_other_shard_and_its_locks_survive() {
    let fixture = FaultFixture::new().await;
    let cluster = Cluster::start();
    let shard = cluster.master_of("k").expect("all agree");
    let replica = cluster.replica_of(shard);
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let other = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let (keeper, _) = start_keeper(&holder, &fixture).await;
    until_replicated(&cluster, replica, "k").await;
    let others = keys_of_others(&cluster, shard, 4);
    let calm = KeyTraffic::start(&other, others.clone());
    tokio::time::sleep(LEASE * 2).await;
    let calm = calm.end().await;
    println!("{} calls, p99 {:?} before", calm.len(), calm[calm.len() * 99 / 100]);
    let traffic = KeyTraffic::start(&other, others);
    tokio::time::sleep(LEASE / 2).await;
    let since = Instant::now();
    cluster.freeze(shard);
    // A call that waits all the time.
    let key = cluster.key_of(shard, 0);
    let waiting = tokio::spawn({
        let other = other.clone();
        async move {
            other.lock(key).run(async {}).await.expect("served by the successor");
            Instant::now()
        }
    });
    assert_eq!(cluster.wait_for_another_master("k", shard).await, replica);
    let promoted = Instant::now();
    let back = within(SOON, waiting).await.expect("the shard is back").expect("no panic");
    println!(
        "the shard is back {:?} after the promotion",
        back.saturating_duration_since(promoted)
    );
    let renewed = until(RENEWED, || was_renewed_since(&cluster, replica, "k", since)).await;
    assert!(renewed.is_some(), "the lease is renewed at the new master");
    let took = traffic.end().await;
    let (p99, longest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    println!("{} calls to the other shards, p99 {p99:?}, longest {longest:?}", took.len());
    assert!(longest < LEASE, "a call to another shard took {longest:?}");

    cluster.thaw(shard);
    for number in 0..20 {
        let key = cluster.key_of(shard, number);
        let guard = other.lock(&*key).acquire().await.expect("granted");
        assert!(cluster.node(replica).exists(&key), "the lock is at the new master");
        guard.release().await.expect("held");
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(!keeper.is_finished(), "the lock is still held");
    keeper.abort();
    assert_eq!(holder.stats().lost, 0);
    fixture.assert_history(Expected::EVERYTHING);
}

/// Lets two clients contend for `k`. Returns them, the master that has the lock, and its replica,
/// which has it as well.
async fn contend(cluster: &Cluster) -> (Contention, usize, usize) {
    let contention = Contention::start(&cluster.url(), LONG_LEASE).await;
    let shard = cluster.master_of("k").expect("all agree");
    let replica = cluster.replica_of(shard);
    until_replicated(cluster, replica, "k").await;
    (contention, shard, replica)
}

async fn assert_a_lock_outlasts_its_master(mut cluster: Cluster) {
    let (contention, shard, replica) = contend(&cluster).await;
    let killing = async {
        let since = Instant::now();
        cluster.kill(shard);
        assert_eq!(cluster.wait_for_another_master("k", shard).await, replica);
        let renewed = until(SOON, || was_renewed_since(&cluster, replica, "k", since)).await;
        assert!(renewed.is_some(), "the lease is renewed at the new master at once");
    };
    contention.outlasts(Box::pin(killing), LONG_LEASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_its_waiters_continue_when_a_master_is_killed() {
    assert_a_lock_outlasts_its_master(Cluster::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_its_waiters_continue_when_a_master_with_tls_is_killed() {
    assert_a_lock_outlasts_its_master(Cluster::with_tls()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_all_kinds_and_their_waiters_continue_when_a_master_is_killed() {
    let mut cluster = Cluster::start();
    let replica = cluster.replica_of(1);
    let keys = (0..CONTESTED).map(|number| cluster.key_of(1, number)).collect();
    let url = cluster.url();
    let contention = KindContention::start(&url, LONG_LEASE, (cluster.node(1), keys)).await;
    for key in contention.keys() {
        until_replicated(&cluster, replica, key).await;
    }
    let other = cluster.key_of(1, CONTESTED);
    cluster.kill(1);
    assert_eq!(cluster.wait_for_another_master(&other, 1).await, replica);
    contention.use_all_clients(&other).await;
    contention.end(LONG_LEASE, cluster.node(replica)).await;
}

async fn assert_a_planned_failover_costs_nothing(cluster: Cluster) {
    let (contention, shard, replica) = contend(&cluster).await;
    let keys = cluster.keys_of(shard, 4).into_iter().filter(|key| key != "k").collect();
    let traffic = KeyTraffic::start(&contention.waiter, keys);
    let failover = async {
        let since = Instant::now();
        cluster.fail_over("k", replica).await;
        let renewed = until(RENEWED, || was_renewed_since(&cluster, replica, "k", since)).await;
        assert!(renewed.is_some(), "the lease is renewed at the new master");
        let took = traffic.end().await;
        println!("{} calls, longest {:?}", took.len(), took[took.len() - 1]);
    };
    contention.outlasts(Box::pin(failover), SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_costs_no_lock_and_no_error() {
    assert_a_planned_failover_costs_nothing(Cluster::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_with_tls_costs_no_lock_and_no_error() {
    assert_a_planned_failover_costs_nothing(Cluster::with_tls()).await;
}

/// `LOCK_TESTS_FAILOVERS` sets the number of failovers.
#[tokio::test]
async fn a_held_lock_survives_planned_failovers() {
    let rounds = number("LOCK_TESTS_FAILOVERS", 3);
    let cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    let mut master = cluster.master_of("k").expect("all agree");
    let mut replica = cluster.replica_of(master);
    for round in 0..rounds {
        until_replicated(&cluster, replica, "k").await;
        let since = Instant::now();
        cluster.fail_over("k", replica).await;
        (master, replica) = (replica, master);
        let renewed = until(RENEWED, || was_renewed_since(&cluster, master, "k", since)).await;
        assert!(renewed.is_some() && guard.is_held(), "round {round}");
    }
    guard.release().await.expect("held");
    assert_eq!(client.stats().lost, 0);
}

#[tokio::test]
async fn a_lock_that_the_promoted_replica_does_not_have_is_lost_at_once() {
    let mut cluster = Cluster::start();
    // The next renewal is a third of this lease away.
    let lease = LONG_LEASE * 10;
    let client = client_with_lease(&cluster.url(), lease).await;
    let keys = cluster.keys_of(1, 2);
    let (kept, missing) = (&keys[0], &keys[1]);
    let lost = client.lock(&**missing).acquire().await.expect("free");
    let replica = cluster.replica_of(1);
    until_replicated(&cluster, replica, missing).await;
    // As if the replication had been delayed.
    cluster.node(replica).tell(&["CONFIG", "SET", "replica-read-only", "no"]);
    cluster.node(replica).tell(&["FLUSHALL"]);
    let held = client.lock(&**kept).acquire().await.expect("free");
    until_replicated(&cluster, replica, kept).await;
    cluster.kill(1);
    cluster.wait_for_another_master(missing, 1).await;
    let reason = within(SOON, lost.lost()).await.expect("the loss is noticed at once");
    assert_eq!(reason, LostReason::Failover);
    assert!(held.is_held());
    held.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_hang_do_not_delay_the_news_of_a_failover() {
    let mut cluster = Cluster::start();
    let key = cluster.key_of(0, 0);
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    client.lock(&*key).run(async {}).await.expect("free");
    // All nodes are asked, and these do not answer.
    for shard in [1, 2] {
        cluster.freeze(cluster.replica_of(shard));
    }
    let traffic = KeyTraffic::start(&client, keys_of_others(&cluster, 0, 2));
    cluster.kill(0);
    let waiting = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move { client.lock(key).run(async {}).await }
    });
    cluster.wait_for_another_master(&key, 0).await;
    let served = within(SOON, waiting).await.expect("the shard is back");
    served.expect("no panic").expect("served by the successor");
    let took = traffic.end().await;
    assert!(took[took.len() * 9 / 10] < LEASE / 2, "the other shards are not delayed");
}

/// The waiters of several slots, whose master fails as `fail` says, are subscribed at its
/// successor.
async fn assert_waiters_follow_a_failover(fail: impl FnOnce(&mut Cluster, usize)) {
    let mut cluster = Cluster::start();
    let (shard, replica) = (1, cluster.replica_of(1));
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let waiter = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let keys = cluster.keys_of(shard, 9);
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for key in &keys {
        held.push(holder.lock(&**key).acquire().await.expect("free"));
        let lock = waiter.lock(&**key);
        waiting.push(tokio::spawn(async move {
            lock.run(async {}).await.expect("served by the successor");
            Instant::now()
        }));
        until_replicated(&cluster, replica, key).await;
    }
    let all = until(SOON, || subscribed_channels(&cluster, shard) == keys.len()).await;
    assert!(all.is_some(), "all of them wait");
    fail(&mut cluster, shard);
    assert_eq!(cluster.wait_for_another_master(&keys[0], shard).await, replica);
    let all = until(SOON, || subscribed_channels(&cluster, replica) == keys.len()).await;
    let count = subscribed_channels(&cluster, replica);
    assert!(all.is_some(), "{count} of {} channels are subscribed", keys.len());
    // The holder has sent nothing meanwhile, so it may not know of the failover.
    client_uses(&holder, &cluster.key_of(shard, 0)).await;
    let mut times = Vec::new();
    for (guard, waiting) in held.into_iter().zip(waiting) {
        let released = Instant::now();
        guard.release().await.expect("held");
        let served = within(LONG_LEASE, waiting).await.expect("woken").expect("no panic");
        times.push(served.saturating_duration_since(released));
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("woken {median:?} after the release, at most {:?}", times[times.len() - 1]);
    assert!(median < LEASE / 5, "woken {median:?} after the release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_subscribed_at_the_successor_of_a_killed_master() {
    assert_waiters_follow_a_failover(Cluster::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_subscribed_at_the_successor_of_a_suspended_master() {
    assert_waiters_follow_a_failover(|cluster, node| cluster.freeze(node)).await;
}
