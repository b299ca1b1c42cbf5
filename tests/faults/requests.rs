//! Requests whose answers get lost, and requests that arrive when nobody wants them any more.

use lock_runtime::{LockClient, LockError};
use lock_tests::{Proxy, RedisServer, Toward};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, until, until_at_rest};

/// A server behind a proxy, and a client that goes through it; its watchdog's lease says nothing.
async fn behind_proxy() -> (RedisServer, Proxy, LockClient) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = LockClient::builder().url(proxy.url()).watchdog(LEASE * 60);
    let client = client.connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    (server, proxy, client)
}

#[tokio::test]
async fn an_acquire_whose_answer_was_lost_does_not_wait_for_itself() {
    let (server, proxy, client) = behind_proxy().await;
    for n in 1..=20 {
        proxy.lose_reply_to("SET");
        let begun = Instant::now();
        let lock = client.lock("k").wait(LEASE * 5);
        let guard = lock.acquire().await.expect("it was its own");
        assert_eq!(proxy.struck(), n, "the answer was lost");
        assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
        let owners: Vec<String> = server.command(&["KEYS", "k*"]);
        assert_eq!(owners, ["k"]);
        guard.release().await.expect("held");
        assert!(!server.exists("k"), "and what was undone is undone at once");
    }
    until_at_rest(&client, LEASE * 5).await;
}

/// Wherever the connection breaks in the middle of a request, it is sent again.
#[tokio::test]
async fn a_request_that_was_cut_in_the_middle_is_made_again() {
    let (server, proxy, client) = behind_proxy().await;
    for word in ["SET", "EVALSHA"] {
        for bytes in [0, 1, 5, 17, 40, 90] {
            proxy.cut(word, bytes);
            let lock = client.lock("k").wait(LEASE * 5);
            match lock.acquire().await.expect("at the second try").release().await {
                // Not if it was the release that was cut, which goes on in the background.
                Ok(()) | Err(LockError::Unavailable { .. }) => {}
                other => panic!("{word} {bytes}: {other:?}"),
            }
            assert!(until(LEASE, || !server.exists("k")).await.is_some(), "{word} {bytes}");
        }
    }
    assert_eq!(proxy.struck(), 12);
    until_at_rest(&client, LEASE * 5).await;
}

#[tokio::test]
async fn a_request_that_arrives_after_its_caller_gave_up_is_undone() {
    let (server, proxy, client) = behind_proxy().await;
    let direct = super::support::client(&server.url()).await;
    for wait in [LEASE / 20, LEASE / 4] {
        proxy.hold("SET");
        let outcome = client.lock("k").wait(wait).acquire().await;
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        assert!(!server.exists("k"), "it is still on its way");
        let set = server.calls("set");
        proxy.deliver();
        assert!(until(LEASE, || server.calls("set") > set).await.is_some(), "there it comes");
        let gone = until(LEASE * 4, || !server.exists("k")).await;
        assert!(gone.is_some(), "not undone: left for {} ms", server.pttl("k"));
        direct.lock("k").acquire().await.expect("free").release().await.expect("held");
    }
}

/// Nobody can know of it any more; what is left ends with its lease.
#[tokio::test]
async fn a_request_that_arrives_very_late_ends_with_its_lease() {
    let (server, proxy, client) = behind_proxy().await;
    proxy.hold("SET");
    let lock = client.lock("k").lease(LEASE);
    // Long enough for another try over another connection.
    let outcome = lock.wait(LEASE * 5).acquire().await;
    let Ok(guard) = outcome else { panic!("over another connection: {outcome:?}") };
    guard.release().await.expect("held");
    until_at_rest(&client, LEASE * 5).await;
    let set = server.calls("set");
    proxy.deliver();
    assert!(until(LEASE, || server.calls("set") > set).await.is_some(), "there it comes");
    let gone = until(LEASE * 3, || !server.exists("k")).await.expect("it expires");
    assert!(gone <= LEASE * 3 / 2, "{gone:?}");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
}

/// Its holder has long been told, and somebody else has the key.
#[tokio::test]
async fn a_release_that_arrives_when_a_successor_has_the_key_frees_nothing() {
    let (server, proxy, client) = behind_proxy().await;
    let guard = client.lock("k").lease(LEASE).acquire().await.expect("free");
    proxy.hold("EVALSHA");
    drop(guard.release().await);
    // Over another connection it was done by then, or its lease is over.
    assert!(until(LEASE * 3, || !server.exists("k")).await.is_some(), "it is free");
    until_at_rest(&client, LEASE * 5).await;
    server.tell(&["SET", "k", "somebody"]);
    let released = server.calls("evalsha");
    proxy.deliver();
    assert!(until(LEASE, || server.calls("evalsha") > released).await.is_some(), "there it comes");
    assert!(server.exists("k"), "it is somebody else's");
}

/// A first and a second try are lost or held up, the third is granted, and the hold made longer. Then
/// the second one arrives.
#[tokio::test]
async fn a_try_that_arrives_late_shortens_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    client.lock("warm").run(async {}).await.expect("free");
    proxy.lose_reply_to("SET");
    proxy.hold("EVALSHA");
    let (brief, long) = (client.lock("k").lease(LEASE * 5), client.lock("k").lease(LEASE * 60));
    let body = async {
        assert_eq!(proxy.struck(), 2, "two tries went wrong");
        let _inner = long.acquire().await.expect("shared, and extended");
        let extended = server.pttl("k");
        let calls = server.calls("evalsha");
        proxy.deliver();
        assert!(until(LEASE, || server.calls("evalsha") > calls).await.is_some(), "there it comes");
        sleep(LEASE / 5).await;
        (extended, server.pttl("k"))
    };
    let (extended, now) = brief.run(body).await.expect("by the third");
    assert!(extended > 50_000, "{extended}");
    assert!(now > 50_000, "shortened: {now} after {extended}");
}

/// More requests at once than the server answers within a response timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_requests_waits_for_itself_and_costs_no_error() {
    const TASKS: usize = 50_000;
    let server = RedisServer::start();
    // So that an answer may take a lease.
    let client = LockClient::builder().url(server.url()).watchdog(LEASE * 3).wait(LEASE * 60);
    let client = client.connect().await.expect("up");
    let mut burst = JoinSet::new();
    for n in 0..TASKS {
        // Of a lease of its own, because the keeper's renewals are not what is tested here.
        let lock = client.lock(format!("k{n}")).lease(LEASE * 60);
        burst.spawn(async move { lock.acquire().await?.release().await });
    }
    let mut errors = Vec::new();
    while let Some(outcome) = burst.join_next().await {
        errors.extend(outcome.expect("no panic").err());
    }
    assert!(errors.is_empty(), "{} errors, such as {:?}", errors.len(), errors.first());
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// Those before it get no answer in time, and it has to wait for them.
#[tokio::test]
async fn a_request_that_had_to_wait_for_others_for_too_long_was_not_sent() {
    const UNDER_WAY: u64 = 1024;
    const MORE: u64 = 200;
    let (server, proxy, client) = behind_proxy().await;
    let sent = server.calls("set");
    proxy.delay(Toward::Client, LEASE);
    let mut burst = JoinSet::new();
    let mut ask = |from, many, wait| {
        for n in from..from + many {
            let lock = client.lock(format!("k{n}")).wait(wait);
            burst.spawn(async move { lock.acquire().await.map(drop) });
        }
    };
    ask(0, UNDER_WAY, LEASE * 3 / 4);
    let sent = || server.calls("set") - sent;
    assert!(until(LEASE / 2, || sent() == UNDER_WAY).await.is_some(), "they are under way");
    ask(UNDER_WAY, MORE, LEASE / 10);
    let mut waited = 0;
    while let Some(outcome) = burst.join_next().await {
        match outcome.expect("no panic") {
            Err(LockError::Unavailable { cause, .. }) => {
                waited += u64::from(cause.contains("was not sent"));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sent(), UNDER_WAY, "were sent");
    assert_eq!(waited, MORE);
    proxy.heal();
    until_at_rest(&client, LEASE * 5).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0, "and the others were undone");
}

/// Locks and their guards do not mind that everything takes long.
#[tokio::test]
async fn a_slow_network_costs_time_and_nothing_else() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let lease = LEASE * 3;
    let client = LockClient::builder().url(proxy.url()).watchdog(lease).connect().await;
    let client = client.expect("up");
    for toward in [Toward::Server, Toward::Client] {
        proxy.delay(toward, LEASE / 20);
    }
    let guard = timeout(lease, client.lock("k").acquire()).await.expect("in time").expect("free");
    sleep(lease * 3 / 2).await;
    assert!(guard.is_held(), "renewed");
    guard.release().await.expect("held");
    assert!(!server.exists("k"));
}
