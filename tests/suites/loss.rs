//! A body never outlives its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, distributed_lock};
use lock_tests::{CapturedLog, RedisServer};
use tokio::time::Instant;

use crate::support::{LEASE, client, helper, milliseconds, until};

/// Runs an endless body, makes it lose its lock by `how`, and returns the reason and the time until
/// the body ended.
async fn lose(server: &RedisServer, how: impl FnOnce()) -> (LostReason, Duration) {
    let lock = client(&server.url()).await.lock("k");
    let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
    assert!(until(LEASE * 10, || server.exists("k")).await.is_some(), "the lock is held");
    let start = Instant::now();
    how();
    match body.await.expect("no panic") {
        Err(LockError::Lost { reason, .. }) => (reason, start.elapsed()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal() {
    let server = RedisServer::start();
    let (reason, after) = lose(&server, || server.tell(&["DEL", "k"])).await;
    assert_eq!(reason, LostReason::Gone);
    assert!(after < LEASE, "{after:?}");
    assert!(!server.exists("k"), "the key is not created again");
}

#[tokio::test]
async fn a_body_whose_key_was_taken_is_dropped_and_the_key_is_not_changed() {
    let server = RedisServer::start();
    let (reason, _) = lose(&server, || server.tell(&["SET", "k", "stranger"])).await;
    assert_eq!(reason, LostReason::Taken);
    assert_eq!(server.command::<String>(&["GET", "k"]), "stranger");
    let (reason, _) = {
        server.tell(&["DEL", "k"]);
        lose(&server, || {
            server.tell(&["DEL", "k"]);
            server.tell(&["LPUSH", "k", "no lock"]);
        })
        .await
    };
    assert_eq!(reason, LostReason::Taken);
    assert_eq!(server.command::<String>(&["TYPE", "k"]), "list");
}

#[tokio::test]
async fn a_release_before_the_loss_is_known_does_not_affect_the_successor() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (released, dropped) = (client.lock("k"), client.lock("l"));
    let released = released.acquire().await.expect("free");
    let dropped = dropped.acquire().await.expect("free");
    server.tell(&["MSET", "k", "stranger", "l", "stranger"]);
    assert!(released.is_held(), "the next renewal is not due yet");
    match released.release().await {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
        other => panic!("{other:?}"),
    }
    drop(dropped);
    client.shutdown().await.expect("all locks are released");
    let values: Vec<String> = server.command(&["MGET", "k", "l"]);
    assert_eq!(values, ["stranger", "stranger"]);
}

/// A client whose lease outlasts every test, so that the release finds a loss before any renewal
/// does.
async fn client_with_long_lease(server: &RedisServer) -> LockClient {
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 60);
    builder.connect().await.expect("the server is up")
}

/// A short body during which `mishap` affects its lock.
#[distributed_lock(key = "k", client = client)]
async fn aborting(client: &LockClient, mishap: impl FnOnce()) -> Result<&'static str, LockError> {
    mishap();
    Ok("done")
}

#[distributed_lock(key = "<key>", client = client, on_lost = "report")]
async fn reporting(
    client: &LockClient,
    key: &str,
    mishap: impl FnOnce(),
) -> Result<&'static str, LockError> {
    mishap();
    Ok("done")
}

#[tokio::test]
async fn a_loss_found_by_the_release_is_an_error_with_on_lost_report() {
    let server = RedisServer::start();
    let client = client_with_long_lease(&server).await;
    assert_eq!(reporting(&client, "k", || {}).await, Ok("done"), "the lock is not lost");

    let delete = || server.tell(&["DEL", "k"]);
    let replace = || server.tell(&["SET", "k", "stranger"]);
    for (mishap, expected) in
        [(&delete as &dyn Fn(), LostReason::Gone), (&replace, LostReason::Taken)]
    {
        assert_eq!(aborting(&client, mishap).await, Ok("done"), "{expected:?}");
        delete();
        match reporting(&client, "k", mishap).await {
            Err(LockError::Lost { key, reason, .. }) => {
                assert_eq!((key.as_str(), reason), ("k", expected));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.command::<String>(&["GET", "k"]), "stranger");
}

/// Operators write alerts for these words.
#[tokio::test]
async fn a_loss_that_a_renewal_notices_is_logged_with_its_reason() {
    let log = CapturedLog::here();
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let key = |name: &str| format!("noticed:{}:{name}", server.port());
    for (name, reason) in [
        ("gone", LostReason::Gone),
        ("taken", LostReason::Taken),
        ("renewal_failed", LostReason::RenewalFailed),
    ] {
        let guard = client.lock(key(name)).acquire().await.expect("free");
        match reason {
            LostReason::Gone => server.tell(&["DEL", &key(name)]),
            LostReason::Taken => server.tell(&["SET", &key(name), "stranger"]),
            _ => server.freeze(),
        }
        assert_eq!(guard.lost().await, reason);
        let word = format!("reason={name:?}");
        let logged = || log.lines(&["WARN", &key(name), "lock lost", &word]).len() == 1;
        assert!(until(LEASE * 10, logged).await.is_some(), "{:?}", log.lines(&[&key(name)]));
        assert_eq!(reason.as_str(), name);
    }
}

/// This does not depend on `on_lost`, nor on how the hold ends.
#[tokio::test]
async fn a_loss_found_by_the_release_is_counted_and_logged() {
    let log = CapturedLog::here();
    let server = RedisServer::start();
    let client = client_with_long_lease(&server).await;
    let key = |n: u64| format!("found:{}:{n}", server.port());
    let delete = |n| server.tell(&["DEL", &key(n)]);
    let reason = format!("reason={:?}", LostReason::Gone.as_str());
    let found = |n| log.lines(&["WARN", &key(n), "lock lost", &reason]).len() == 1;

    let body = async { delete(1) };
    client.lock(key(1)).run(body).await.expect("the result of the body");
    let guard = client.lock(key(2)).acquire().await.expect("free");
    delete(2);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    drop({
        let guard = client.lock(key(3)).acquire().await.expect("free");
        delete(3);
        guard
    });
    for n in 1..=3 {
        assert!(until(LEASE * 10, || found(n)).await.is_some(), "{:?}", log.lines(&[&key(n)]));
    }
    assert!(until(LEASE * 10, || client.stats().lost == 3).await.is_some(), "{:?}", client.stats());

    // Without a loss, nothing is counted or logged.
    client.lock(key(4)).run(async {}).await.expect("free");
    drop(client.lock(key(5)).acquire().await.expect("free"));
    assert!(until(LEASE * 10, || client.stats().is_idle()).await.is_some());
    assert_eq!(client.stats().lost, 3);
    assert!(log.lines(&["WARN", &key(4)]).is_empty() && log.lines(&["WARN", &key(5)]).is_empty());
}

/// A hand-off does not ask the store. With `on_lost = "report"`, the release must ask it.
#[tokio::test]
async fn a_loss_is_reported_even_if_another_task_waits_for_the_lock() {
    let server = RedisServer::start();
    let client = client_with_long_lease(&server).await;
    let delete = || server.tell(&["DEL", "k"]);
    for (report, expected) in [(false, Ok("done")), (true, Err(LostReason::Gone))] {
        let waiting = std::cell::Cell::new(None);
        let mishap = || {
            let lock = client.lock("k");
            waiting.set(Some(tokio::spawn(async move { lock.run(async {}).await })));
        };
        let with_a_waiter = async |mishap: &dyn Fn()| {
            let body = async {
                mishap();
                let queued = until(LEASE * 10, || client.stats().queued == 1).await;
                assert!(queued.is_some(), "a task waits");
                delete();
                "done"
            };
            body.await
        };
        let outcome = if report {
            reporting_slowly(&client, with_a_waiter(&mishap)).await
        } else {
            client.lock("k").run(with_a_waiter(&mishap)).await
        };
        let outcome = outcome.map_err(|error| match error {
            LockError::Lost { reason, .. } => reason,
            other => panic!("{other:?}"),
        });
        assert_eq!(outcome, expected);
        let waiting = waiting.take().expect("the task was started");
        // The waiting task sees the loss by the next renewal at the latest.
        drop(waiting.await.expect("no panic"));
        delete();
    }
}

#[distributed_lock(key = "k", client = client, on_lost = "report")]
async fn reporting_slowly(
    client: &LockClient,
    body: impl Future<Output = &'static str>,
) -> Result<&'static str, LockError> {
    Ok(body.await)
}

#[tokio::test]
async fn a_release_that_gets_no_answer_reports_no_loss() {
    let log = CapturedLog::here();
    let mut server = RedisServer::start();
    let client = client_with_long_lease(&server).await;
    let outcome = reporting(&client, "unanswered", || server.kill()).await;
    assert_eq!(outcome, Ok("done"));
    assert_eq!(log.lines(&["was not released", "unanswered"]).len(), 1);
}

#[tokio::test]
async fn a_body_whose_server_is_silent_is_dropped_at_its_deadline() {
    let server = RedisServer::start();
    let (reason, after) = lose(&server, || server.freeze()).await;
    assert_eq!(reason, LostReason::RenewalFailed);
    assert!(after > LEASE / 2, "too early: {after:?}");
    assert!(after < LEASE * 2, "too late: {after:?}");
    server.thaw();
}

#[tokio::test]
async fn a_body_whose_server_lost_its_data_is_dropped() {
    let mut server = RedisServer::start();
    let lock = client(&server.url()).await.lock("k");
    let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
    assert!(until(LEASE * 10, || server.exists("k")).await.is_some());
    server.restart();
    match body.await.expect("no panic") {
        Err(LockError::Lost { reason, .. }) => {
            let reasons = [LostReason::Gone, LostReason::Failover, LostReason::RenewalFailed];
            assert!(reasons.contains(&reason), "{reason:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!server.exists("k"), "a lost lock is not created again");
}

/// Starts a process that runs an always ready body, suspends it past its lease, and returns the
/// number of polls that began after the deadline.
fn late_polls(how: &str) -> u64 {
    let server = RedisServer::start();
    let mut process = helper(&["spin", &server.url(), "k", &milliseconds(LEASE), how]);
    assert_eq!(process.line(), "held");
    std::thread::sleep(LEASE / 4);
    process.freeze();
    std::thread::sleep(LEASE * 2);
    process.thaw();
    let line = process.line();
    line.strip_prefix("late ").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn no_poll_begins_after_the_deadline_even_in_a_suspended_process() {
    for _ in 0..3 {
        // One late poll is allowed, because the process may have been suspended between the check
        // of the deadline and the poll. No lease can prevent this.
        assert!(late_polls("guarded") <= 1);
    }
}

/// The control of the test above: only the check before each poll stops such a body.
#[test]
fn without_the_check_before_each_poll_polls_begin_after_the_deadline() {
    assert!(late_polls("unguarded") > 100);
}

/// A future that wakes itself in every poll.
async fn busy(polls: Arc<AtomicU32>) {
    loop {
        polls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

/// A body that blocks past its deadline is not polled again.
#[tokio::test(flavor = "current_thread")]
async fn a_poll_that_blocks_past_the_deadline_is_the_last_poll() {
    let server = RedisServer::start();
    let again = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&again);
    let lock = client(&server.url()).await.lock("k").lease(LEASE);
    let outcome = lock
        .run(async move {
            std::thread::sleep(LEASE * 3 / 2);
            tokio::task::yield_now().await;
            seen.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        })
        .await;
    assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
    assert!(!again.load(Ordering::SeqCst));
}

/// The control of the tests above: code that only holds a guard continues after the loss.
#[tokio::test]
async fn a_guard_alone_does_not_stop_a_body() {
    let server = RedisServer::start();
    let guard =
        client(&server.url()).await.lock("k").lease(LEASE / 4).acquire().await.expect("free");
    let polls = Arc::new(AtomicU32::new(0));
    let body = tokio::spawn(busy(Arc::clone(&polls)));
    guard.lost().await;
    let at_the_loss = polls.load(Ordering::SeqCst);
    assert!(until(LEASE * 10, || polls.load(Ordering::SeqCst) > at_the_loss).await.is_some());
    body.abort();
}
