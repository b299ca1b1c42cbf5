//! Calls that wait for a lock that others hold.

use std::time::{Duration, Instant};

use lock_runtime::{HolderKind, Identity, LeaderInfo, LockClient, LockError};
use lock_tests::{Quorum, running_time, running_time_between};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{LONG, quorum_client};
use crate::support::{FaultFixture, LEASE, until, until_idle};

/// The longest time for which a call sleeps that no message would wake.
const SAFETY_POLL: Duration = Duration::from_secs(1);

/// How long after its release a waiting call gets the lock: the shortest of several times.
async fn handover(holder: &LockClient, waiter: &LockClient) -> Duration {
    let mut shortest = LONG;
    for _ in 0..4 {
        let guard = holder.lock("k").acquire().await.expect("free");
        let waiting = async {
            let guard = waiter.lock("k").acquire().await.expect("released");
            let now = Instant::now();
            guard.release().await.expect("held");
            now
        };
        let releasing = async {
            // By then the waiter has subscribed.
            sleep(LEASE / 4).await;
            let now = Instant::now();
            guard.release().await.expect("held");
            now
        };
        let (got, released) = tokio::join!(waiting, releasing);
        shortest = shortest.min(running_time_between(released, got));
    }
    shortest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_a_waiter_of_another_client_also_if_a_server_is_down() {
    let mut quorum = Quorum::start(3);
    let (one, two) = (quorum_client(&quorum).await, quorum_client(&quorum).await);
    let took = handover(&one, &two).await;
    assert!(took < SAFETY_POLL / 4, "woken after {took:?}");
    quorum.kill(2);
    let took = handover(&one, &two).await;
    assert!(took < SAFETY_POLL / 4, "woken after {took:?} without one server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_whose_votes_are_split_all_get_the_lock_in_the_end() {
    let quorum = Quorum::start(3);
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let client = quorum_client(&quorum).await;
        calls.spawn(async move {
            for _ in 0..10 {
                client.lock("k").run(async {}).await.expect("granted");
            }
            until_idle(&client, LEASE * 10).await;
        });
    }
    let began = Instant::now();
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
    assert!(running_time(began) < LONG, "fifty calls took {:?}", began.elapsed());
    let freed = until(LEASE * 3, || quorum.having("k").is_empty()).await;
    assert!(freed.is_some(), "left at {:?}", quorum.having("k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_lock_when_the_lease_of_a_killed_holder_has_ended() {
    let mut fixture = FaultFixture::new().await;
    let quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    let (mut process, first) = fixture.keeper(&quorum.url());
    process.kill();
    let guard = client.lock("k").acquire().await.expect("the lease has ended");
    let second = guard.fencing_token().await.expect("issued");
    assert!(second > first, "{second} after {first}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_lock_names_its_holder_also_if_a_server_is_down() {
    let mut quorum = Quorum::start(3);
    let builder = LockClient::builder().url(quorum.url()).lease(LEASE * 5).wait(LONG);
    let named =
        builder.clone().identity(Identity::named("checkout-3")).connect().await.expect("up");
    let other = builder.connect().await.expect("up");
    let _guard = named.lock("k").acquire().await.expect("free");
    for _ in 0..2 {
        match other.lock("k").wait(LEASE).acquire().await {
            Err(LockError::Busy { holder, .. }) => {
                assert_eq!(holder.kind, HolderKind::Elsewhere);
                let shown = holder.to_string();
                assert!(shown.contains("checkout-3"), "{shown}");
            }
            outcome => panic!("{outcome:?}"),
        }
        quorum.kill(1);
    }
}

/// The leader, as soon as it has announced itself under this name.
async fn leader_named(client: &LockClient, name: &str) -> LeaderInfo {
    let began = Instant::now();
    loop {
        let seen = client.leadership("leader").leader().await.expect("a majority answers");
        if let Some(leader) = seen.filter(|leader| leader.name == name) {
            return leader;
        }
        assert!(running_time(began) < LEASE * 10, "{name} is not known as the leader");
        sleep(LEASE / 50).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_known_and_replaced_also_if_a_server_is_down() {
    let mut quorum = Quorum::start(3);
    let (one, two) = (quorum_client(&quorum).await, quorum_client(&quorum).await);
    let leader = one.leadership("leader").named("replica-1").campaign().await.expect("leads");
    assert_eq!(leader_named(&two, "replica-1").await.term, leader.term());
    quorum.kill(0);
    let first = leader_named(&two, "replica-1").await.term;
    let candidate = two.leadership("leader").named("replica-2");
    let (next, resigned) = tokio::join!(candidate.campaign(), leader.resign());
    resigned.expect("it has led");
    let next = next.expect("leads");
    assert!(next.term() > first, "{} after {first}", next.term());
    assert_eq!(leader_named(&one, "replica-2").await.term, next.term());
}

/// A minimum hold, a fixed lease, a nested call, and a hand-off inside the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_options_of_exclusive_locks_work() {
    let quorum = Quorum::start(3);
    let (one, two) = (quorum_client(&quorum).await, quorum_client(&quorum).await);
    let min_hold = LEASE * 2;
    let began = Instant::now();
    one.lock("kept").min_hold(min_hold).run(async {}).await.expect("granted");
    assert!(matches!(
        two.lock("kept").wait(LEASE / 4).acquire().await,
        Err(LockError::Busy { .. })
    ));
    drop(two.lock("kept").acquire().await.expect("free again"));
    assert!(began.elapsed() > min_hold * 9 / 10, "kept for {:?}", began.elapsed());
    let fixed = one.lock("fixed").lease(LEASE / 2).acquire().await.expect("granted");
    assert!(until(LEASE, || !fixed.is_held()).await.is_some(), "the lease is not renewed");
    let nested = one.lock("outer");
    let twice = nested.run(async { nested.run(async { quorum.having("outer").len() }).await });
    assert!(twice.await.expect("granted").expect("shared") >= 2);
    let (guard, lock) = (one.lock("passed").acquire().await.expect("free"), one.lock("passed"));
    let (next, released) = tokio::join!(lock.acquire(), guard.release());
    released.expect("held");
    assert!(next.expect("handed off").is_held());
    one.lock_all(["a", "b"]).run(async {}).await.expect("one after the other");
}
