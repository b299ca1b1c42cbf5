//! Members that are replaced, and addresses that members announce.

use lock_runtime::{LockClient, LockError};
use lock_tests::support::LEASE;
use lock_tests::{EtcdCluster, EtcdOptions, within};
use tokio::time::sleep;

use crate::support::{LONG, RENEWED, member_of, patient_client};

#[tokio::test]
async fn a_lock_stays_while_all_members_of_the_url_are_replaced() {
    // Otherwise, etcd waits for five seconds after each change.
    let more = vec!["--strict-reconfig-check=false".to_owned()];
    let mut etcd = EtcdCluster::start(3, &EtcdOptions { more, ..EtcdOptions::default() });
    let client = patient_client(&etcd.url(), LONG).await;
    let held = client.lock("held").acquire().await.expect("a lock");
    for _ in 0..3 {
        let used = member_of(&etcd, &client).await;
        etcd.add();
        let mut of_the_url = (0..3).filter(|number| etcd.is_running(*number));
        let first = of_the_url.next().expect("one for each round");
        let is_used = used == first || of_the_url.any(|number| number == used);
        etcd.remove(if is_used { used } else { first });
        let call = within(LONG, client.lock("k").acquire()).await;
        let guard = call.expect("calls go on by another member").expect("a lock");
        guard.release().await.expect("a release");
        assert!(held.is_held(), "the lock is lost");
        // The client asks the other member for the list, and again after a second if there was no leader.
        sleep(LEASE * 3).await;
    }
    assert!(member_of(&etcd, &client).await >= 3);
    assert!(held.is_held(), "the lock is lost");
    held.release().await.expect("a release");
    assert!(etcd.keys("").is_empty());
}

#[tokio::test]
async fn an_announced_address_that_leads_to_another_cluster_is_not_used() {
    let foreign = EtcdCluster::single();
    let more = vec![format!("--advertise-client-urls=http://127.0.0.1:{}", foreign.port(0))];
    let mut etcd = EtcdCluster::start(3, &EtcdOptions { more, ..EtcdOptions::default() });
    let builder = LockClient::builder().url(etcd.url_of(0)).lease(RENEWED).wait(LEASE * 4);
    let client = builder.connect().await.expect("a member is up");
    // The client has learned the addresses by then.
    sleep(LEASE).await;
    etcd.kill(0);
    let refused = client.lock("k").acquire().await.map(drop);
    assert!(refused.is_err(), "granted by another cluster");
    assert!(matches!(refused, Err(LockError::Unavailable { .. })), "{refused:?}");
    assert!(foreign.leases().is_empty());
    etcd.restart(0);
    let guard = client.lock("k").wait(LONG).acquire().await.expect("a lock");
    guard.release().await.expect("a release");
}

/// Two owners would get a lock: each client begins at another member.
#[tokio::test]
async fn members_of_different_clusters_are_a_configuration_error() {
    let (one, other) = (EtcdCluster::single(), EtcdCluster::single());
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", one.port(0), other.port(0));
    match LockClient::connect(&url).await.map(drop) {
        Err(LockError::Config { option: "url", problem, .. }) => {
            for port in [one.port(0), other.port(0)] {
                assert!(problem.contains(&port.to_string()), "{problem}");
            }
        }
        outcome => panic!("two clusters are used as one: {outcome:?}"),
    }
}

#[tokio::test]
async fn a_member_that_answers_later_and_belongs_to_another_cluster_is_not_used() {
    let (mut own, mut other) = (EtcdCluster::single(), EtcdCluster::single());
    other.kill(0);
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", own.port(0), other.port(0));
    let builder = LockClient::builder().url(url).lease(RENEWED).wait(LEASE * 4);
    let client = builder.connect().await.expect("a member is up");
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    other.restart(0);
    own.kill(0);
    match client.lock("k").acquire().await.map(drop) {
        Err(LockError::Unavailable { .. }) => {}
        outcome => panic!("granted by another cluster: {outcome:?}"),
    }
    assert!(other.keys("").is_empty() && other.leases().is_empty());
    own.restart(0);
    let guard = client.lock("k").wait(LONG).acquire().await.expect("a lock");
    guard.release().await.expect("a release");
}

/// As after a restoration from a backup, which makes a new cluster.
#[tokio::test]
async fn a_cluster_that_takes_the_place_of_another_one_is_used() {
    let mut etcd = EtcdCluster::single();
    let builder = LockClient::builder().url(etcd.url()).lease(RENEWED).wait(LONG);
    let client = builder.connect().await.expect("a member is up");
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    etcd.begin_anew();
    let guard = client.lock("k").acquire().await.expect("a lock of the new cluster");
    guard.release().await.expect("a release");
}
