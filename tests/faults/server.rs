//! Servers that die, that lose their data, that become unreachable, or whose clock is wrong.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{Expected, Proxy, RedisServer, Toward, running_time, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{FaultFixture, LEASE, client, client_with_lease, start_keeper, take, until};

/// The longest pause between two looks at the address of a server, with short leases.
const LOOK: Duration = Duration::from_secs(10);

fn lost(outcome: Result<(), LockError>) -> LostReason {
    match outcome {
        Err(LockError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_restart_without_persistence_ends_the_hold() {
    let mut fixture = FaultFixture::new().await;
    let client = client(&fixture.server.url()).await;
    let (keeper, first) = start_keeper(&client, &fixture).await;
    fixture.server.restart();
    let outcome = within(LEASE * 5, keeper).await.expect("by its next renewal");
    let reason = lost(outcome.expect("no panic"));
    let reasons = [LostReason::Gone, LostReason::Failover, LostReason::RenewalFailed];
    assert!(reasons.contains(&reason), "{reason:?}");
    sleep(LEASE / 2).await;
    assert!(!fixture.server.exists("k"), "a lost lock is not created again");
    let second = take(&client, &fixture).await.expect("free");
    assert!(second > first, "{second} after {first}");
    // Two holders are possible for a moment, because the server lost its data.
    fixture.assert_history(Expected::THE_LEAST);
}

/// A name that gets another address, a virtual address that moves, a balancer. Nothing tells the connections that are open.
#[tokio::test]
async fn a_lock_of_a_server_to_which_the_address_no_longer_leads_is_lost() {
    let (earlier, later) = (RedisServer::plain(&[]), RedisServer::plain(&[]));
    let proxy = Proxy::to(earlier.port());
    let (holder, other) = (client(&proxy.url()).await, LockClient::builder().url(proxy.url()));
    let guard = holder.lock("k").acquire().await.expect("free");
    proxy.move_to(later.port());
    let other = other.lease(LEASE).connect().await.expect("up");
    let second = other.lock("k").acquire().await.expect("free at the later server");
    // The client looks at the address at the latest ten seconds after the last time.
    let lost = until(LOOK + LEASE * 3, || !guard.is_held()).await;
    assert!(lost.is_some(), "there are two holders");
    drop(guard);
    second.release().await.expect("held");
    let guard = holder.lock("k").wait(LEASE * 3).acquire().await.expect("free");
    assert!(later.exists("k"), "the client goes on with the later server");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_hold_survives_a_server_restart_with_persistence() {
    let server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut fixture = FaultFixture::on(server).await;
    let lease = LEASE * 6;
    let client = LockClient::builder().url(fixture.server.url()).lease(lease);
    let client = client.connect().await.expect("up");
    let (keeper, first) = start_keeper(&client, &fixture).await;
    let owner: String = fixture.server.command(&["GET", "k"]);
    fixture.server.kill();
    // Longer than the time between two renewals.
    sleep(lease / 3 + LEASE / 5).await;
    fixture.server.restart();
    sleep(lease).await;
    assert!(!keeper.is_finished(), "{:?}", keeper.await);
    assert_eq!(fixture.server.command::<String>(&["GET", "k"]), owner);
    keeper.abort();
    assert!(
        until(LEASE * 10, || !fixture.server.exists("k")).await.is_some(),
        "the lock is released"
    );
    assert!(take(&client, &fixture).await.expect("free") > first);
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn a_loading_server_is_unavailable_and_waited_for() {
    let mut fixture = FaultFixture::new().await;
    let fill = "for n = 1, 20000 do redis.call('set', 'n:' .. n, n) end";
    fixture.server.tell(&["EVAL", fill, "0"]);
    fixture.server.tell(&["SAVE"]);
    let client = client(&fixture.server.url()).await;
    // Loading takes 100 µs per key. The server replies to clients meanwhile.
    fixture.server.restart_with(&[
        "--key-load-delay",
        "100",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    loop {
        match client.lock("k").wait(LEASE / 3).acquire().await {
            Err(LockError::Unavailable { cause, .. }) if cause.contains("LOADING") => break,
            // The old connection has failed, or the wait ended during a request.
            Err(LockError::Unavailable { .. }) => {}
            other => panic!("loading takes two seconds: {other:?}"),
        }
    }
    let guard = client.lock("k").wait(LEASE * 20).acquire().await.expect("granted after loading");
    assert_eq!(fixture.server.key_count(), 20_001);
    guard.release().await.expect("held");
}

#[tokio::test]
async fn an_unreachable_server_ends_the_hold_at_its_deadline() {
    let fixture = FaultFixture::new().await;
    let proxy = Proxy::to(fixture.server.port());
    // Long enough for a busy machine to notice the deadline within a tenth of the lease.
    let lease = LEASE * 4;
    let far = client_with_lease(&proxy.url(), lease).await;
    let near = client(&fixture.server.url()).await;
    let (keeper, first) = start_keeper(&far, &fixture).await;
    // After a renewal, and long before the next one, so that no answer is lost.
    let renewals = fixture.server.calls("evalsha");
    let renewed = until(lease, || fixture.server.calls("evalsha") > renewals).await;
    assert!(renewed.is_some(), "a renewal is sent");
    sleep(lease / 20).await;
    let left = fixture.server.pttl("k");
    proxy.partition();
    let cut = Instant::now();
    let waiting = far.lock("other").wait(LEASE / 2).acquire();
    match waiting.await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("an unreachable server is not busy: {other:?}"),
    }
    let outcome = within(lease, keeper).await.expect("at its deadline").expect("no panic");
    let after = cut.elapsed();
    assert_eq!(lost(outcome), LostReason::RenewalFailed);
    let left = Duration::from_millis(left.try_into().expect("the key exists"));
    assert!(after <= left + lease / 10, "too late: {after:?} of {left:?}");
    assert!(after + lease / 10 >= left, "too early: {after:?} of {left:?}");
    let second = within(lease * 2, take(&near, &fixture)).await.expect("expired").expect("up");
    assert!(second > first);
    let guard = near.lock("k").acquire().await.expect("free");
    proxy.heal();
    sleep(LEASE).await;
    assert!(guard.is_held(), "delayed requests do not affect the new hold");
    guard.release().await.expect("held");
    far.lock("k").acquire().await.expect("the network works again").release().await.expect("held");
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn an_answer_that_arrives_after_the_lease_is_not_a_grant() {
    let fixture = FaultFixture::new().await;
    let proxy = Proxy::to(fixture.server.port());
    // The response timeout of this client is longer than the delay.
    let client = LockClient::builder().url(proxy.url()).lease(LEASE * 6).connect().await;
    let client = client.expect("up");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    proxy.delay(Toward::Client, LEASE * 3 / 4);
    let lease = LEASE / 2;
    match client.lock("k").lease(lease).try_acquire().await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("longer than the lease"), "{cause}");
        }
        other => panic!("the lease had already expired: {other:?}"),
    }
    assert!(until(LEASE * 4, || !fixture.server.exists("k")).await.is_some());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_holder_learns_of_its_loss_after_the_server_clock_is_set_forward() {
    let fixture = FaultFixture::on(RedisServer::with_own_clock(&[])).await;
    let url = fixture.server.url();
    // The first renewal comes long after `two` has had the lock. From then on, the server would report changes.
    let (one, two) = (client_with_lease(&url, LEASE * 12).await, client(&url).await);
    let (keeper, first) = start_keeper(&one, &fixture).await;
    fixture.server.set_clock(60);
    let second =
        within(LEASE * 10, take(&two, &fixture)).await.expect("by the safety poll").expect("up");
    assert!(second > first, "{second} after {first}");
    let outcome = within(LEASE * 10, keeper).await.expect("by its next renewal").expect("no panic");
    let reason = lost(outcome);
    assert!(matches!(reason, LostReason::Gone | LostReason::Taken), "{reason:?}");
    // For a moment there are two holders. Only the fence distinguishes them.
    fixture.assert_history(Expected::THE_LEAST);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn waiters_get_the_lock_and_tokens_rise_after_the_server_clock_is_set_back() {
    let fixture = FaultFixture::on(RedisServer::with_own_clock(&[])).await;
    let url = fixture.server.url();
    let (one, two) = (client(&url).await, client(&url).await);
    let (keeper, first) = start_keeper(&one, &fixture).await;
    fixture.server.set_clock(-120);
    let stretched = until(LEASE * 10, || fixture.server.pttl("k") > 100_000).await;
    assert!(stretched.is_some(), "the server has extended the lease");
    let waiting = take(&two, &fixture);
    let releasing = async {
        sleep(LEASE / 2).await;
        keeper.abort();
        Instant::now()
    };
    let (second, released) = tokio::join!(timeout(LEASE * 10, waiting), releasing);
    let second = second.expect("at the release").expect("up");
    // The waiter notices by a wake-up or by the safety poll.
    assert!(running_time(released) < LEASE * 3 / 2, "{:?}", released.elapsed());
    assert!(second > first, "{second} after {first}");
    fixture.assert_history(Expected::EVERYTHING);
}
