//! Wake-ups that get lost.

use std::time::Duration;

use lock_runtime::{Lock, LockClient, LockGuard, WireFormat};
use lock_tests::{Proxy, RedisServer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client, milliseconds, until};

/// The longest that a contender sleeps.
const SAFETY_POLL: Duration = Duration::from_secs(1);

/// Lets a client wait for a key that a stranger holds, and returns how long after `free` it has it.
async fn waited(server: &RedisServer, client: &LockClient, free: impl AsyncFnOnce()) -> Duration {
    let lock = client.lock("k").wait(SAFETY_POLL * 20);
    let waiting = async {
        let guard = lock.acquire().await.expect("it becomes free");
        let now = Instant::now();
        drop(guard);
        now
    };
    let freeing = async {
        // It waits by then, and has subscribed.
        sleep(LEASE / 4).await;
        free().await;
        Instant::now()
    };
    assert!(server.exists("k"));
    let (got, freed) = tokio::join!(waiting, freeing);
    got.saturating_duration_since(freed)
}

#[tokio::test]
async fn a_key_that_is_deleted_without_a_word_is_found_free_by_the_safety_poll() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for _ in 0..3 {
        server.tell(&["SET", "k", "stranger", "PX", "100000"]);
        let took = waited(&server, &client, async || server.tell(&["DEL", "k"])).await;
        assert!(took < SAFETY_POLL + LEASE / 4, "{took:?}");
    }
}

#[tokio::test]
async fn a_key_that_expires_is_found_free_at_that_moment() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let left = milliseconds(LEASE / 4 + LEASE / 2);
    server.tell(&["SET", "k", "stranger", "PX", &left]);
    // From here on, half a lease is left.
    let took = waited(&server, &client, async || {}).await;
    assert!(took >= LEASE * 9 / 20, "not before: {took:?}");
    assert!(took < LEASE / 2 + LEASE / 4, "and not by the next poll: {took:?}");
}

/// The connection that would tell of the release is lost before it, and comes back after it.
#[tokio::test]
async fn a_release_that_falls_into_a_reconnection_is_noticed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    for n in 0..10_u32 {
        let guard = one.lock("k").acquire().await.expect("free");
        let took = waited(&server, &two, async || {
            proxy.refuse(true);
            proxy.reset();
            guard.release().await.expect("over another connection");
            sleep(LEASE * n / 100).await;
            proxy.refuse(false);
        })
        .await;
        assert!(took < SAFETY_POLL + LEASE / 4, "{took:?}");
    }
}

/// It falls behind the last try that was made without the subscription.
#[tokio::test]
async fn a_release_just_before_the_subscription_is_live_is_noticed_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    for n in 1..=3 {
        let guard = one.lock("k").lease(LEASE * 60).acquire().await.expect("free");
        let subscribed = || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len();
        assert!(until(LEASE, || subscribed() == 0).await.is_some());
        proxy.hold("\nSUBSCRIBE");
        let (lock, before) = (two.lock("k").wait(LEASE * 20), server.calls("evalsha"));
        let waiting = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
        let held_up = until(LEASE, || proxy.struck() == n).await;
        assert!(held_up.is_some(), "it subscribes");
        // One that is not woken tries every second, and it has just done so.
        let tried = until(LEASE, || server.calls("evalsha") > before).await;
        assert!(tried.is_some(), "it tries without");
        guard.release().await.expect("held");
        proxy.deliver();
        let live = Instant::now();
        let got = waiting.await.expect("no panic").expect("free");
        assert!(got.saturating_duration_since(live) < LEASE / 3, "{:?}", got - live);
    }
}

/// Nothing else goes over it, and nothing says that it is lost.
#[tokio::test]
async fn a_subscription_that_has_gone_silent_is_made_again() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    let guard = one.lock("silent").acquire().await.expect("free");
    let subscribed = || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "*silent*"]).len();
    let lock = two.lock("silent").wait(LEASE * 20);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
    assert!(until(LEASE, || subscribed() == 1).await.is_some());
    // It sleeps from its second try on.
    sleep(LEASE / 4).await;
    let connections = proxy.connections();
    proxy.hold("silent");
    let noticed = until(SAFETY_POLL + LEASE, || proxy.connections() > connections).await;
    assert!(noticed.is_some(), "it is noticed");
    assert!(until(LEASE, || subscribed() == 1).await.is_some());
    guard.release().await.expect("held");
    let released = Instant::now();
    let got = waiting.await.expect("no panic").expect("free");
    assert!(got.saturating_duration_since(released) < LEASE / 3, "{:?}", got - released);
}

/// The server's confirmations of all of them at once are more than it holds back for a client that
/// subscribes, and it closes the connection. That is 32 MB if nothing else is configured. A client
/// counts as one that subscribes from its first channel on: here, that of a lock of another format.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_subscriptions_are_made_again_and_cost_no_lock() {
    const WAITING: usize = 600;
    let server = RedisServer::with(&["--client-output-buffer-limit", "pubsub", "256kb", "0", "0"]);
    let client = client(&server.url()).await;
    let mut held: Vec<LockGuard> = Vec::new();
    for n in 0..20 {
        held.push(client.lock(format!("held{n}")).acquire().await.expect("free"));
    }
    let mut waiting = JoinSet::new();
    let mut wait = |lock: Lock| {
        let lock = lock.wait(LEASE * 60);
        waiting.spawn(async move { lock.acquire().await.map(drop) });
    };
    server.tell(&["SET", "first", "stranger"]);
    wait(client.lock("first"));
    let mut stranger = server.connection();
    for n in 0..WAITING {
        let key = format!("{n:0>1000}");
        let mut set = redis::cmd("HSET");
        set.arg(&key).arg("stranger").arg(1).exec(&mut stranger).expect("it may");
        wait(client.lock(key).format(WireFormat::Redisson));
    }
    let subscribed = || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len();
    let all = async || until(LEASE * 5, || subscribed() == WAITING + 1).await.is_some();
    assert!(all().await, "only {} channels", subscribed());
    server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let lost = until(LEASE, || subscribed() <= WAITING).await;
    assert!(lost.is_some(), "all of them are lost");
    assert!(all().await, "only {} channels are back", subscribed());
    sleep(LEASE).await;
    assert!(held.iter().all(LockGuard::is_held), "they are renewed");
}
