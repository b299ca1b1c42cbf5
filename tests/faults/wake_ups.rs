//! Lost wake-ups.

use std::time::Duration;

use lock_runtime::{Lock, LockClient, WireFormat};
use lock_tests::{Proxy, RedisServer, running_time_between};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, acquire_many, assert_all_held, client, milliseconds, until};

/// The longest time for which a waiter sleeps without a wake-up.
const SAFETY_POLL: Duration = Duration::from_secs(1);

/// Lets a client wait for a held key, and returns how long after `free` it acquires the key, and how much of that is running
/// time.
async fn waited(
    server: &RedisServer,
    client: &LockClient,
    free: impl AsyncFnOnce(),
) -> (Duration, Duration) {
    let lock = client.lock("k").wait(SAFETY_POLL * 20);
    let waiting = async {
        let guard = lock.acquire().await.expect("the key becomes free");
        let now = Instant::now();
        drop(guard);
        now
    };
    let freeing = async {
        // By then the client waits and has subscribed.
        sleep(LEASE / 4).await;
        free().await;
        Instant::now()
    };
    assert!(server.exists("k"));
    let (got, freed) = tokio::join!(waiting, freeing);
    (got.saturating_duration_since(freed), running_time_between(freed, got))
}

#[tokio::test]
async fn a_key_deleted_without_a_message_is_found_free_by_the_safety_poll() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for _ in 0..3 {
        server.tell(&["SET", "k", "stranger", "PX", "100000"]);
        let (_, took) = waited(&server, &client, async || server.tell(&["DEL", "k"])).await;
        assert!(took < SAFETY_POLL * 2, "{took:?}");
    }
}

#[tokio::test]
async fn a_key_that_expires_is_found_free_at_once() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["SET", "k", "stranger", "PX", &milliseconds(LEASE / 2)]);
    let mut left = Duration::ZERO;
    let look = async || {
        // Zero if the key has already expired.
        left = Duration::from_millis(server.pttl("k").try_into().unwrap_or(0));
    };
    let (took, running) = waited(&server, &client, look).await;
    assert!(took + LEASE / 50 >= left, "too early: {took:?} of {left:?}");
    assert!(
        running < left + LEASE * 2 / 5,
        "too late, by the next safety poll: {took:?} of {left:?}"
    );
}

/// The connection of the subscription is lost before the release, and reconnects after it.
#[tokio::test]
async fn a_release_during_a_reconnection_is_noticed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    for n in 0..10_u32 {
        let guard = one.lock("k").lease(LEASE * 60).acquire().await.expect("free");
        let (_, took) = waited(&server, &two, async || {
            proxy.refuse(true);
            proxy.reset();
            guard.release().await.expect("over another connection");
            sleep(LEASE * n / 100).await;
            proxy.refuse(false);
        })
        .await;
        assert!(took < SAFETY_POLL * 2, "{took:?}");
    }
}

/// The release comes after the last attempt that was made without a subscription.
#[tokio::test]
async fn a_release_just_before_the_subscription_takes_effect_is_noticed_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    for n in 1..=3 {
        let guard = one.lock("k").lease(LEASE * 60).acquire().await.expect("free");
        // The client subscribes again with the next call that waits.
        server.kill_connections("pubsub");
        let subscribed = || server.channels("*").len();
        assert!(until(LEASE * 10, || subscribed() == 0).await.is_some());
        let is_cluster = server.url().contains("cluster");
        proxy.hold(if is_cluster { "SSUBSCRIBE" } else { "SUBSCRIBE" });
        let (lock, before) = (two.lock("k").wait(LEASE * 20), server.calls("evalsha"));
        let waiting = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
        let held_up = until(LEASE * 10, || proxy.triggered() == n).await;
        assert!(held_up.is_some(), "the waiter subscribes");
        // Without a wake-up, the next attempt would be a second later.
        let tried = until(LEASE * 10, || server.calls("evalsha") > before).await;
        assert!(tried.is_some(), "the waiter tries without a subscription");
        guard.release().await.expect("held");
        proxy.deliver();
        let live = Instant::now();
        let got = waiting.await.expect("no panic").expect("free");
        let took = running_time_between(live, got);
        assert!(took < LEASE * 2 / 3, "{took:?}");
    }
}

/// The connection carries nothing else, and no error shows that it is lost.
#[tokio::test]
async fn a_silent_subscription_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    let guard = one.lock("silent").lease(LEASE * 60).acquire().await.expect("free");
    let subscribed = || server.channels("*").len();
    let lock = two.lock("silent").wait(LEASE * 20);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
    assert!(until(LEASE * 10, || subscribed() == 1).await.is_some());
    // The waiter sleeps after its second attempt.
    sleep(LEASE / 4).await;
    let connections = proxy.connections();
    proxy.hold("silent");
    let noticed = until(SAFETY_POLL + LEASE, || proxy.connections() > connections).await;
    assert!(noticed.is_some(), "the silence is noticed");
    assert!(until(LEASE * 10, || subscribed() == 1).await.is_some());
    guard.release().await.expect("held");
    let released = Instant::now();
    let got = waiting.await.expect("no panic").expect("free");
    let took = running_time_between(released, got);
    assert!(took < LEASE / 2, "{took:?}");
}

/// The client subscribes denied channels again after about ten seconds.
#[tokio::test]
async fn a_waiter_subscribes_when_its_user_gets_the_permission() {
    let _alone = crate::support::MISSING_PERMISSION.lock().await;
    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "deaf", "on", ">password", "~*", "resetchannels", "+@all"]);
    let client = client(&server.url_as("deaf:password")).await;
    server.tell(&["SET", "k", "stranger"]);
    let lock = client.lock("k").wait(LEASE * 60);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    let denied = || !server.command::<Vec<redis::Value>>(&["ACL", "LOG"]).is_empty();
    assert!(until(LEASE * 10, denied).await.is_some(), "the subscription is denied");
    server.tell(&["ACL", "SETUSER", "deaf", "&*"]);
    let subscribed = || server.channels("*").len() == 1;
    assert!(until(LEASE * 20, subscribed).await.is_some());
    waiting.abort();
}

/// A server limits the output buffer of a subscriber (to 32 MB by default), and closes the
/// connection if the limit is exceeded. The confirmations of all subscriptions at once exceed the
/// limit of this test. A client counts as a subscriber from its first channel on. Here, this is the
/// channel of a lock with another wire format.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_subscriptions_are_restored_and_no_lock_is_lost() {
    const WAITING: usize = 600;
    let server = RedisServer::with(&["--client-output-buffer-limit", "pubsub", "256kb", "0", "0"]);
    let client = client(&server.url()).await;
    let held = acquire_many(&client, 20).await;
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
        set.arg(&key).arg("stranger").arg(1).exec(&mut stranger).expect("permitted");
        wait(client.lock(key).wire_format(WireFormat::Redisson));
    }
    let subscribed = || server.channels("*").len();
    let all = async || until(LEASE * 10, || subscribed() == WAITING + 1).await.is_some();
    assert!(all().await, "only {} channels are subscribed", subscribed());
    let requests = || server.calls("subscribe") + server.calls("ssubscribe");
    let before = requests();
    server.kill_connections("pubsub");
    let again = until(LEASE * 10, || requests() > before).await;
    assert!(again.is_some(), "all subscriptions were lost");
    assert!(all().await, "only {} channels are back", subscribed());
    sleep(LEASE).await;
    assert_all_held(&held);
}
