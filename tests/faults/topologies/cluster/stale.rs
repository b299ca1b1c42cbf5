//! Nodes that the others cannot reach, so that they do not learn of a failover.

use std::collections::HashMap;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{Cluster, Expected, Proxy, SplitNetwork, within};

use super::{LONG_LEASE, SOON, errors, until_replicated};
use crate::support::{FaultFixture, LEASE, client_with_lease, start_keeper, take, until};

/// The replicas of two shards. The third shard fails over without them.
const STALE: [usize; 2] = [4, 5];

/// Asserts that the nodes that are cut off name the earlier master of a key still.
fn assert_stale(cluster: &Cluster, key: &str, earlier: usize) {
    for node in STALE {
        assert_eq!(cluster.master_named_by(node, key), Some(earlier), "the node {node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_cut_off_do_not_lead_back_to_an_earlier_master() {
    let network = SplitNetwork::new();
    let cluster = Cluster::split(&network, &STALE);
    let key = |number| cluster.key_of(0, number);
    let known = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let guard = known.lock(key(0)).acquire().await.expect("free");
    until_replicated(&cluster, 3, &key(0)).await;
    network.part();
    cluster.fail_over(&key(0), 3).await;
    assert_stale(&cluster, &key(0), 0);
    let before = errors(&cluster, 0, "MOVED");
    // It knows nothing but what a stale node says.
    let late = client_with_lease(&cluster.url_of(&STALE[..1]), LONG_LEASE).await;
    for number in 1..=20 {
        for client in [&known, &late] {
            let guard = client.lock(key(number)).acquire().await.expect("free");
            assert!(cluster.node(3).exists(&key(number)), "the lock is at the new master");
            guard.release().await.expect("held");
        }
        // A lost connection is a reason to ask all nodes.
        cluster.node(1).kill_connections("normal");
        tokio::time::sleep(LEASE / 10).await;
    }
    assert_stale(&cluster, &key(0), 0);
    let redirected = errors(&cluster, 0, "MOVED") - before;
    println!("{redirected} redirections");
    assert!(redirected <= 4, "{redirected} redirections by the earlier master");
    assert!(guard.is_held());
    guard.release().await.expect("held");
}

/// The only node that has heard of the failover and answers is the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_cut_off_do_not_hide_the_successor_of_a_killed_master() {
    let network = SplitNetwork::new();
    let mut cluster = Cluster::split(&network, &STALE);
    let dead = Proxy::to(cluster.node(1).port());
    dead.refuse(true);
    let (others, nowhere) = ([1, 2].map(|node| cluster.node(node).port()), dead.port());
    let builder = LockClient::builder().url(cluster.url_of(&STALE)).lease(LONG_LEASE);
    let builder = builder.wait(LONG_LEASE * 2).address_map(move |host, port| {
        (host.to_owned(), if others.contains(&port) { nowhere } else { port })
    });
    let client = builder.connect().await.expect("up");
    let key = cluster.key_of(0, 0);
    let guard = client.lock(&*key).acquire().await.expect("free");
    until_replicated(&cluster, 3, &key).await;
    network.part();
    cluster.kill(0);
    assert_eq!(cluster.wait_for_another_master(&key, 0).await, 3);
    assert_stale(&cluster, &key, 0);
    for number in 1..=20 {
        let served = within(SOON * 2, client.lock(cluster.key_of(0, number)).run(async {})).await;
        served.expect("the new master is found").expect("free");
        tokio::time::sleep(LEASE / 10).await;
    }
    assert_stale(&cluster, &key, 0);
    assert!(guard.is_held());
    guard.release().await.expect("held");
}

/// The client beside the earlier master reaches no other node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_grants_nothing_after_its_failover() {
    let (fixture, network) = (FaultFixture::new().await, SplitNetwork::new());
    let cluster = Cluster::split(&network, &[1]);
    assert_eq!(cluster.master_of("k"), Some(1));
    let replica = cluster.replica_of(1);
    let proxies: HashMap<u16, Proxy> = (0..cluster.size())
        .map(|node| cluster.node(node).port())
        .map(|port| (port, Proxy::to(port)))
        .collect();
    let reached: HashMap<u16, u16> =
        proxies.iter().map(|(port, proxy)| (*port, proxy.port())).collect();
    let earlier = cluster.node(1).port();
    let url = format!("redis+cluster://127.0.0.1:{}", reached[&earlier]);
    let builder = LockClient::builder().url(url).lease(LEASE * 2).wait(LEASE * 60);
    let builder = builder.address_map(move |host, port| (host.to_owned(), reached[&port]));
    let near = builder.connect().await.expect("up");
    let far = client_with_lease(&cluster.url(), LEASE * 2).await;
    let (keeper, first) = start_keeper(&near, &fixture).await;
    until_replicated(&cluster, replica, "k").await;
    network.part();
    let others = || proxies.iter().filter(|(port, _)| **port != earlier).map(|(_, proxy)| proxy);
    others().for_each(Proxy::partition);
    assert_eq!(cluster.wait_for_another_master("k", 1).await, replica);
    let second = within(LONG_LEASE, take(&far, &fixture)).await.expect("its lease has ended");
    assert!(second.expect("free") > first);
    let assert_refused = async |number: usize| {
        let lock = near.lock(cluster.key_of(1, number)).wait(Duration::ZERO);
        match lock.acquire().await {
            Err(LockError::Unavailable { .. }) => {}
            other => panic!("granted by a master that was replaced: {other:?}"),
        }
    };
    for number in 0..5 {
        assert_refused(number).await;
    }
    // It learns of its successor, and the client does not reach that one.
    network.heal();
    let is_replica = || {
        let info = cluster.try_command::<String>(1, &["INFO", "replication"]);
        info.is_ok_and(|info| info.contains("role:slave"))
    };
    let mut number = 5;
    while !is_replica() {
        assert_refused(number).await;
        number += 1;
    }
    assert_refused(number).await;
    others().for_each(Proxy::heal);
    let again = within(LONG_LEASE, take(&near, &fixture)).await.expect("it follows");
    again.expect("free");
    assert!(until(LONG_LEASE, || keeper.is_finished()).await.is_some(), "its lock is lost");
    let ended = keeper.await.expect("no panic");
    assert!(
        matches!(ended, Err(LockError::Lost { reason: LostReason::RenewalFailed, .. })),
        "{ended:?}"
    );
    fixture.assert_history(Expected::EVERYTHING);
}
