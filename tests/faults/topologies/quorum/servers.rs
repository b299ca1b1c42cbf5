//! Servers that are down, suspended or slow.

use std::time::Instant;

use lock_runtime::{LockClient, LockError, distributed_lock};
use lock_tests::support::count_under_contention;
use lock_tests::{CapturedLog, Proxy, Quorum, running_time};

use super::{LONG, QUORUM_LEASE, quorum_client, unavailable};
use crate::support::{LEASE, until, until_idle};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_two_clients_exclude_each_other() {
    let quorum = Quorum::start(3);
    let (one, two) = (quorum_client(&quorum).await, quorum_client(&quorum).await);
    count_under_contention([&one, &two], 20).await;
    until_idle(&one, LEASE * 5).await;
    until_idle(&two, LEASE * 5).await;
    let is_free = || quorum.having("k").is_empty();
    assert!(until(LEASE * 3, is_free).await.is_some(), "left at {:?}", quorum.having("k"));
}

#[tokio::test]
async fn an_annotated_function_needs_the_url_alone() {
    #[distributed_lock(key = "k", client = client, wait = "60s")]
    async fn locked(client: &LockClient, quorum: &Quorum) -> Result<usize, LockError> {
        Ok(quorum.having("k").len())
    }
    let quorum = Quorum::start(3);
    let client = LockClient::connect(quorum.url()).await.expect("up");
    assert!(locked(&client, &quorum).await.expect("granted") >= 2);
    client.shutdown().await.expect("drained");
    // The last server may answer after the others.
    let freed = until(LEASE * 5, || quorum.having("k").is_empty()).await;
    assert!(freed.is_some(), "left at {:?}", quorum.having("k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_servers_may_be_down() {
    let mut quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    let before = client.lock("before").acquire().await.expect("granted");
    quorum.kill(1);
    let during = client.lock("during").acquire().await.expect("two servers are a majority");
    let log = CapturedLog::here();
    let late = quorum_client(&quorum).await;
    let words = ["WARN", "a server of the quorum cannot be used yet", &quorum.server(1).address()];
    assert_eq!(log.lines(&words).len(), 1);
    let began = Instant::now();
    while let Err(error) = late.ready().await {
        // A busy machine may take longer for an answer.
        assert!(running_time(began) < LONG, "{error}");
    }
    assert!(matches!(
        late.lock("during").wait(LEASE / 2).acquire().await,
        Err(LockError::Busy { .. })
    ));
    let lost = until(QUORUM_LEASE * 2, || !before.is_held() || !during.is_held()).await;
    assert!(lost.is_none(), "renewed by two servers");
    before.release().await.expect("held");
    during.release().await.expect("held");
    drop(late.lock("during").acquire().await.expect("free"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_or_three_of_three_servers_down_are_an_outage() {
    for down in [2, 3] {
        let mut quorum = Quorum::start(3);
        let client = quorum_client(&quorum).await;
        let held = client.lock("held").acquire().await.expect("granted");
        (0..down).for_each(|index| quorum.kill(index));
        let cause = unavailable(client.lock("k").wait(LEASE / 2).acquire().await);
        assert!(cause.contains("fewer than 2 of the 3 servers"), "{cause}");
        let not_ready = unavailable(client.ready().await);
        assert!(not_ready.contains("fewer than 2 of the 3 servers"), "{not_ready}");
        let builder = LockClient::builder().url(quorum.url()).lease(LEASE);
        unavailable(builder.connect().await);
        let lost = until(QUORUM_LEASE * 3, || !held.is_held()).await;
        assert!(lost.is_some(), "held without a majority");
        if down == 2 {
            let undone = until(LEASE * 5, || quorum.having("k").is_empty()).await;
            assert!(undone.is_some(), "an attempt is undone where it was granted");
        }
        (0..down).for_each(|index| quorum.restart(index));
        // As soon as the servers have had their quarantines.
        drop(client.lock("k").acquire().await.expect("the servers are back"));
    }
}

/// A server that does not answer is not waited for, so even the slowest of these calls takes less than the time for
/// which one server is waited for (a tenth of the lease), or only a little longer on a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_servers_are_not_waited_for_and_are_freed_when_they_resume() {
    for suspended in [1, 2] {
        let quorum = Quorum::start(5);
        let client = quorum_client(&quorum).await;
        client.lock("k").run(async {}).await.expect("connected");
        (0..suspended).for_each(|index| quorum.freeze(index));
        let mut fastest = LONG;
        for _ in 0..5 {
            let began = Instant::now();
            let guard = client.lock("k").acquire().await.expect("a majority answers");
            guard.release().await.expect("held");
            fastest = fastest.min(began.elapsed());
        }
        assert!(fastest < QUORUM_LEASE / 10, "waited for a suspended server: {fastest:?}");
        (0..suspended).for_each(|index| quorum.thaw(index));
        let is_free = || quorum.having("k").is_empty();
        let freed = until(LEASE * 3, is_free).await;
        assert!(freed.is_some(), "left at {:?}", quorum.having("k"));
    }
}

/// The lease is so long that it does not end during the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_at_servers_that_did_not_answer() {
    let quorum = Quorum::start(3);
    let builder = || LockClient::builder().url(quorum.url()).lease(LEASE * 60).wait(LONG);
    let client = builder().connect().await.expect("up");
    client.lock("k").run(async {}).await.expect("connected");
    quorum.freeze(0);
    quorum.freeze(1);
    // The suspended servers receive the claim, and serve it later.
    unavailable(client.lock("k").wait(LEASE).acquire().await);
    drop(client);
    quorum.thaw(0);
    quorum.thaw(1);
    let freed = until(LEASE * 15, || quorum.having("k").is_empty()).await;
    assert!(freed.is_some(), "the votes are left at {:?}", quorum.having("k"));
}

/// One server receives the claim after the release, which uses another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_vote_is_freed_although_the_lock_was_released_before() {
    let quorum = Quorum::start(3);
    let proxy = Proxy::to(quorum.server(2).port());
    let mut urls = quorum.urls();
    urls[2] = proxy.url();
    let builder = LockClient::builder().quorum(urls).lease(LEASE * 60).wait(LONG);
    let client = builder.connect().await.expect("up");
    client.lock("k").run(async {}).await.expect("connected");
    let is_free = || quorum.having("k").is_empty();
    let mut arrived = false;
    // On a busy machine, the connection may be discarded before the claim is delivered.
    for _ in 0..20 {
        assert!(until(LEASE * 15, is_free).await.is_some(), "the late vote is left");
        let before = proxy.triggered();
        proxy.hold("NX");
        let guard = client.lock("k").acquire().await.expect("a majority answers");
        let is_held_back = || proxy.triggered() > before;
        assert!(until(LEASE * 5, is_held_back).await.is_some(), "the claim is held back");
        drop(guard);
        let others_are_free = || !quorum.server(0).exists("k") && !quorum.server(1).exists("k");
        assert!(until(LEASE * 5, others_are_free).await.is_some());
        proxy.deliver();
        arrived |= until(LEASE / 4, || quorum.server(2).exists("k")).await.is_some();
        if arrived {
            break;
        }
    }
    assert!(arrived, "no claim has arrived late");
    assert!(until(LEASE * 15, is_free).await.is_some(), "the late vote is left");
    until_idle(&client, LEASE * 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_dropped_at_any_time_leaves_nothing() {
    let quorum = Quorum::start(3);
    let builder = LockClient::builder().url(quorum.url()).lease(LEASE * 60).wait(LONG);
    let client = builder.connect().await.expect("up");
    client.lock("k").run(async {}).await.expect("connected");
    for times in 0..12 {
        let lock = client.lock("k");
        let acquiring = async { drop(lock.acquire().await) };
        crate::support::polled(acquiring, times, LEASE).await;
    }
    until_idle(&client, LEASE * 15).await;
    let freed = until(LEASE * 5, || quorum.having("k").is_empty()).await;
    assert!(freed.is_some(), "left at {:?}", quorum.having("k"));
}
