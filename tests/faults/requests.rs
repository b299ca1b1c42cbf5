//! Requests whose replies are lost, and requests that arrive after their caller has given up.

use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockError};
use lock_tests::{Proxy, RedisServer, Toward, running_time, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client_with_lease, until, until_idle};

/// A server behind a proxy, and a client that connects through the proxy. The lease of the client
/// outlasts the test.
async fn behind_proxy() -> (RedisServer, Proxy, LockClient) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Without a presence, whose `SET` would be counted.
    let client = LockClient::builder().url(proxy.url()).identity(Identity::none());
    let client = client.lease(LEASE * 60).connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    (server, proxy, client)
}

/// As with a job that runs once an hour.
#[tokio::test]
async fn a_single_attempt_survives_connections_that_were_forgotten_while_they_were_idle() {
    for is_reset in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.port());
        let client = client_with_lease(&proxy.url(), LEASE * 2).await;
        let work = client.periodic("job", LEASE).wait(Duration::ZERO);
        for _ in 0..2 {
            let guard = client.lock("k").try_acquire().await.expect("over another one");
            guard.expect("free").release().await.expect("held");
            // A whole response timeout.
            sleep(LEASE).await;
            proxy.forget(is_reset);
            let guards = client.lock_all(["a", "b"]).try_acquire().await.expect("over another one");
            guards.expect("free").release().await.expect("held");
            sleep(LEASE).await;
            proxy.forget(is_reset);
            work.run(async {}).await.expect("over another one");
            sleep(LEASE).await;
            proxy.forget(is_reset);
        }
    }
}

#[tokio::test]
async fn an_acquisition_whose_answer_was_lost_does_not_wait_for_itself() {
    let (server, proxy, client) = behind_proxy().await;
    for n in 1..=20 {
        proxy.lose_reply_to("SET");
        let begun = Instant::now();
        let lock = client.lock("k").wait(LEASE * 5);
        let guard = lock.acquire().await.expect("the retry finds its own token");
        assert_eq!(proxy.triggered(), n, "the reply was lost");
        assert!(running_time(begun) < LEASE * 3, "{:?}", begun.elapsed());
        let owners: Vec<String> = server.command(&["KEYS", "k*"]);
        assert_eq!(owners, ["k"]);
        guard.release().await.expect("held");
        assert!(!server.exists("k"), "the key is freed by the release");
    }
    until_idle(&client, LEASE * 5).await;
}

/// A request is sent again wherever in it the connection breaks.
#[tokio::test]
async fn a_request_cut_in_the_middle_is_sent_again() {
    let (server, proxy, client) = behind_proxy().await;
    for word in ["SET", "EVALSHA"] {
        for bytes in [0, 1, 5, 17, 40, 90] {
            proxy.cut(word, bytes);
            let lock = client.lock("k").wait(LEASE * 5);
            match lock.acquire().await.expect("the retry is granted").release().await {
                // If the release was cut, it continues in the background.
                Ok(()) | Err(LockError::Unavailable { .. }) => {}
                other => panic!("{word} {bytes}: {other:?}"),
            }
            assert!(until(LEASE * 10, || !server.exists("k")).await.is_some(), "{word} {bytes}");
        }
    }
    assert_eq!(proxy.triggered(), 12);
    until_idle(&client, LEASE * 5).await;
}

#[tokio::test]
async fn a_request_that_arrives_after_its_caller_gave_up_is_undone() {
    let (server, proxy, client) = behind_proxy().await;
    let direct = LockClient::builder().url(server.url()).identity(Identity::none());
    let direct = direct.wait(LEASE * 60).connect().await.expect("up");
    for wait in [LEASE / 20, LEASE / 4] {
        proxy.hold("SET");
        let outcome = client.lock("k").wait(wait).acquire().await;
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        assert!(!server.exists("k"), "the request is still in flight");
        let set = server.calls("set");
        proxy.deliver();
        assert!(
            until(LEASE * 10, || server.calls("set") > set).await.is_some(),
            "the request arrives"
        );
        let gone = until(LEASE * 4, || !server.exists("k")).await;
        assert!(gone.is_some(), "not undone: left for {} ms", server.pttl("k"));
        direct.lock("k").acquire().await.expect("free").release().await.expect("held");
    }
}

/// Requests without an answer do not keep their connection open, so no more of them are sent.
#[tokio::test]
async fn a_silent_connection_is_closed() {
    for quarantine in [None, Some(LEASE)] {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.port());
        let builder = LockClient::builder().url(proxy.url()).lease(LEASE);
        let builder = match quarantine {
            Some(quarantine) => builder.quarantine(quarantine),
            None => builder,
        };
        let client = builder.connect().await.expect("up");
        let connections = || server.command::<String>(&["CLIENT", "LIST"]).lines().count();
        let before = connections();
        proxy.blackhole(Toward::Client);
        // Longer than the answer about a quarantine counts that the connect has got.
        let outcome = client.lock("k").wait(LEASE * 3).acquire().await;
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        let closed = until(LEASE * 3, || connections() < before).await;
        assert!(closed.is_some(), "{} of {before} connections are open", connections());
    }
}

/// No client undoes such a request. The key expires with its lease.
#[tokio::test]
async fn the_key_of_a_request_that_arrives_very_late_expires_with_its_lease() {
    let (server, proxy, client) = behind_proxy().await;
    proxy.hold("SET");
    let lock = client.lock("k").lease(LEASE);
    // Long enough for another attempt over another connection.
    let outcome = lock.wait(LEASE * 5).acquire().await;
    let Ok(guard) = outcome else { panic!("not granted over another connection: {outcome:?}") };
    guard.release().await.expect("held");
    until_idle(&client, LEASE * 5).await;
    let set = server.calls("set");
    proxy.deliver();
    assert!(until(LEASE * 10, || server.calls("set") > set).await.is_some(), "the request arrives");
    let gone = until(LEASE * 3, || !server.exists("k")).await.expect("it expires");
    assert!(gone <= LEASE * 3 / 2, "{gone:?}");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
}

/// The release has already returned, and a successor holds the key.
#[tokio::test]
async fn a_late_release_does_not_free_the_key_of_a_successor() {
    let (server, proxy, client) = behind_proxy().await;
    let guard = client.lock("k").lease(LEASE).acquire().await.expect("free");
    proxy.hold("EVALSHA");
    drop(guard.release().await);
    // The key is released over another connection, or its lease ends.
    assert!(until(LEASE * 3, || !server.exists("k")).await.is_some(), "the key is free");
    until_idle(&client, LEASE * 5).await;
    server.tell(&["SET", "k", "stranger"]);
    let released = server.calls("evalsha");
    proxy.deliver();
    assert!(
        until(LEASE * 10, || server.calls("evalsha") > released).await.is_some(),
        "the request arrives"
    );
    assert!(server.exists("k"), "the key belongs to the successor");
}

/// The first attempt is lost, and the second one is held up. The third attempt is granted, and its
/// lease is extended. Then the second attempt arrives.
#[tokio::test]
async fn a_late_attempt_does_not_shorten_the_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // With a long response timeout, no other attempt fails on a busy machine.
    let client = client_with_lease(&proxy.url(), LEASE * 6).await;
    client.lock("warm").run(async {}).await.expect("free");
    proxy.lose_reply_to("SET");
    proxy.hold("EVALSHA");
    let (brief, long) = (client.lock("k").lease(LEASE * 30), client.lock("k").lease(LEASE * 60));
    let body = async {
        assert_eq!(proxy.triggered(), 2, "two attempts failed");
        let _inner = long.acquire().await.expect("shared, and extended");
        let extended = server.pttl("k");
        let calls = server.calls("evalsha");
        proxy.deliver();
        assert!(
            until(LEASE * 10, || server.calls("evalsha") > calls).await.is_some(),
            "the request arrives"
        );
        sleep(LEASE / 5).await;
        (extended, server.pttl("k"))
    };
    let (extended, now) = brief.run(body).await.expect("the third attempt is granted");
    assert!(extended > 50_000, "{extended}");
    assert!(now > 50_000, "shortened: {now} after {extended}");
}

/// The replies to the burst take longer than one response timeout to arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_requests_causes_no_error() {
    // Few enough that a busy machine polls all of them within a fraction of a response timeout.
    const TASKS: usize = 3_500;
    /// Bytes per second. In a response timeout, that is far less than the 5 bytes of each reply to an acquire, and far more
    /// than the replies to all requests that may be in flight.
    const RATE: u32 = 7_500;
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // The response timeout is a third of the lease: two seconds, its maximum.
    let client = client_with_lease(&proxy.url(), LEASE * 6).await;
    proxy.limit_replies(RATE);
    let mut burst = JoinSet::new();
    for n in 0..TASKS {
        // A fixed lease, so that the background thread renews nothing.
        let lock = client.lock(format!("k{n}")).lease(LEASE * 60);
        burst.spawn(async move { lock.acquire().await?.release().await });
    }
    let mut errors = Vec::new();
    while let Some(outcome) = burst.join_next().await {
        errors.extend(outcome.expect("no panic").err());
    }
    assert!(errors.is_empty(), "{} errors, such as {:?}", errors.len(), errors.first());
    assert_eq!(server.key_count(), 0);
}

/// The requests ahead get no reply in time, and the later requests have to wait for them.
#[tokio::test]
async fn a_request_queued_for_too_long_is_not_sent() {
    const IN_FLIGHT: u64 = 1024;
    const MORE: u64 = 200;
    // Shorter than the response timeout of this client.
    let patience = LEASE * 7 / 4;
    // A busy machine may take so long that the first requests are given up before the later ones.
    for _ in 0..20 {
        let (server, proxy, client) = behind_proxy().await;
        let sent = server.calls("set");
        proxy.delay(Toward::Client, LEASE * 2);
        let (mut burst, mut later) = (JoinSet::new(), JoinSet::new());
        let ask = |burst: &mut JoinSet<_>, from, many, wait| {
            for n in from..from + many {
                let lock = client.lock(format!("k{n}")).wait(wait);
                burst.spawn(async move { lock.acquire().await.map(drop) });
            }
        };
        let began = Instant::now();
        ask(&mut burst, 0, IN_FLIGHT, patience);
        let sent = || server.calls("set") - sent;
        let all_sent = until(LEASE * 3 / 2, || sent() == IN_FLIGHT).await;
        ask(&mut later, IN_FLIGHT, MORE, LEASE / 8);
        let mut waited = 0;
        let mut count = |outcome: Result<(), LockError>| match outcome {
            Err(LockError::Unavailable { cause, .. }) => {
                waited += u64::from(cause.contains("was not sent"));
            }
            other => panic!("{other:?}"),
        };
        later.join_all().await.into_iter().for_each(&mut count);
        let is_in_time = began.elapsed() < patience;
        burst.join_all().await.into_iter().for_each(&mut count);
        let sent_in_all = sent();
        proxy.heal();
        until_idle(&client, LEASE * 5).await;
        assert_eq!(server.key_count(), 0, "the other requests are undone");
        if is_in_time {
            assert!(all_sent.is_some(), "the requests are in flight");
            assert_eq!((sent_in_all, waited), (IN_FLIGHT, MORE), "were sent");
            return;
        }
    }
    panic!("the machine is too slow");
}

/// Each answer extends the time for those behind it, but not beyond the end of the wait.
#[tokio::test(flavor = "multi_thread")]
async fn calls_end_at_their_timeout_while_other_answers_arrive() {
    const CALLS: usize = 1000;
    /// Bytes per lease: the replies of 5 bytes take five leases to arrive.
    const RATE: u32 = 1000;
    let (_server, proxy, client) = behind_proxy().await;
    proxy.limit_replies(RATE);
    let began = Instant::now();
    let mut burst = JoinSet::new();
    for n in 0..CALLS {
        let lock = client.lock(format!("k{n}")).wait(LEASE / 2);
        burst.spawn(async move { lock.acquire().await.map(drop) });
    }
    let mut unanswered = 0;
    while let Some(outcome) = burst.join_next().await {
        unanswered += usize::from(outcome.expect("no panic").is_err());
    }
    let took = running_time(began);
    assert!(unanswered > CALLS / 2, "{unanswered} of {CALLS} got no answer");
    assert!(took < LEASE * 5 / 2, "the calls took {took:?}");
    proxy.heal();
    until_idle(&client, LEASE * 5).await;
}

/// Locks work normally on a slow network.
#[tokio::test]
async fn locks_work_on_a_slow_network() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let lease = LEASE * 3;
    let client = LockClient::builder().url(proxy.url()).lease(lease).connect().await;
    let client = client.expect("up");
    for toward in [Toward::Server, Toward::Client] {
        proxy.delay(toward, LEASE / 20);
    }
    let guard = within(lease, client.lock("k").acquire()).await.expect("in time").expect("free");
    sleep(lease * 3 / 2).await;
    assert!(guard.is_held(), "renewed");
    guard.release().await.expect("held");
    assert!(!server.exists("k"));
}
