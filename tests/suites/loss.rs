//! A body never outlives its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, distributed_lock};
use lock_tests::{Log, RedisServer};
use tokio::time::Instant;

use crate::support::{LEASE, client, helper, milliseconds, until};

/// Runs a body for ever, does something to its lock, and returns why and when the body ended.
async fn lose(server: &RedisServer, how: impl FnOnce()) -> (LostReason, Duration) {
    let lock = client(&server.url()).await.lock("k");
    let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
    assert!(until(LEASE * 10, || server.exists("k")).await.is_some(), "it is taken");
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
    assert!(after < LEASE * 2 / 3, "{after:?}");
    assert!(!server.exists("k"), "it is not made again");
}

#[tokio::test]
async fn a_body_whose_key_was_taken_is_dropped_and_the_key_left_alone() {
    let server = RedisServer::start();
    let (reason, _) = lose(&server, || server.tell(&["SET", "k", "somebody"])).await;
    assert_eq!(reason, LostReason::Taken);
    assert_eq!(server.command::<String>(&["GET", "k"]), "somebody");
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
async fn a_release_by_one_who_does_not_know_of_the_loss_yet_leaves_the_successor_alone() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (released, dropped) = (client.lock("k"), client.lock("l"));
    let released = released.acquire().await.expect("free");
    let dropped = dropped.acquire().await.expect("free");
    server.tell(&["MSET", "k", "somebody", "l", "somebody"]);
    assert!(released.is_held(), "its next renewal is to come");
    match released.release().await {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
        other => panic!("{other:?}"),
    }
    drop(dropped);
    client.shutdown().await.expect("nothing of ours is left");
    let values: Vec<String> = server.command(&["MGET", "k", "l"]);
    assert_eq!(values, ["somebody", "somebody"]);
}

/// A client whose lease outlasts every test, so that no renewal finds a loss before the release does.
async fn patient(server: &RedisServer) -> LockClient {
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 60);
    builder.connect().await.expect("the server is up")
}

/// A short body, and what befalls its lock meanwhile.
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
async fn a_loss_that_only_the_release_finds_is_told_to_who_wants_it_reported() {
    let server = RedisServer::start();
    let client = patient(&server).await;
    assert_eq!(reporting(&client, "k", || {}).await, Ok("done"), "nothing was lost");

    let delete = || server.tell(&["DEL", "k"]);
    let replace = || server.tell(&["SET", "k", "somebody"]);
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
    assert_eq!(server.command::<String>(&["GET", "k"]), "somebody");
}

/// Whether or not anybody wants it reported, and however the hold ends.
#[tokio::test]
async fn a_loss_that_only_the_release_finds_is_counted_and_logged() {
    let log = Log::here();
    let server = RedisServer::start();
    let client = patient(&server).await;
    let key = |n: u64| format!("found:{}:{n}", server.port());
    let delete = |n| server.tell(&["DEL", &key(n)]);
    let found = |n| log.lines(&["WARN", &key(n), "lock lost"]).len() == 1;

    let body = async { delete(1) };
    client.lock(key(1)).run(body).await.expect("its own result");
    let guard = client.lock(key(2)).acquire().await.expect("free");
    delete(2);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    drop({
        let guard = client.lock(key(3)).acquire().await.expect("free");
        delete(3);
        guard
    });
    for n in 1..=3 {
        assert!(until(LEASE, || found(n)).await.is_some(), "{:?}", log.lines(&[&key(n)]));
    }
    assert!(until(LEASE, || client.stats().lost == 3).await.is_some(), "{:?}", client.stats());

    // Nothing of the like without a loss.
    client.lock(key(4)).run(async {}).await.expect("free");
    drop(client.lock(key(5)).acquire().await.expect("free"));
    assert!(until(LEASE, || client.stats().is_idle()).await.is_some());
    assert_eq!(client.stats().lost, 3);
    assert!(log.lines(&["WARN", &key(4)]).is_empty() && log.lines(&["WARN", &key(5)]).is_empty());
}

/// A lock that is passed on asks the store nothing; one whose loss is to be reported has to.
#[tokio::test]
async fn a_loss_is_reported_although_another_task_waits_for_the_lock() {
    let server = RedisServer::start();
    let client = patient(&server).await;
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
                let queued = until(LEASE, || client.stats().queued == 1).await;
                assert!(queued.is_some(), "somebody waits");
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
        let waiting = waiting.take().expect("it was started");
        // By the next renewal at the latest it hears of the loss as well.
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
    let log = Log::here();
    let mut server = RedisServer::start();
    let client = patient(&server).await;
    let outcome = reporting(&client, "unanswered", || server.kill()).await;
    assert_eq!(outcome, Ok("done"));
    assert_eq!(log.lines(&["was not released", "unanswered"]).len(), 1);
}

#[tokio::test]
async fn a_body_whose_server_is_silent_is_dropped_at_its_deadline() {
    let server = RedisServer::start();
    let (reason, after) = lose(&server, || server.freeze()).await;
    assert_eq!(reason, LostReason::RenewalFailed);
    assert!(after > LEASE / 2, "not before: {after:?}");
    assert!(after < LEASE * 3 / 2, "and not later: {after:?}");
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
            assert!(matches!(reason, LostReason::Gone | LostReason::RenewalFailed), "{reason:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!server.exists("k"), "a lock that is lost is not made again");
}

/// Lets a process run a body that is always ready, freezes it past its lease, and returns how many
/// polls began after the deadline.
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
fn no_poll_begins_after_the_deadline_not_even_in_a_process_that_slept() {
    for _ in 0..3 {
        // The process may have been frozen between the check and the body's own look at its guard:
        // that is the one poll which no lease can stop.
        assert!(late_polls("guarded") <= 1);
    }
}

/// The control of the test above: nothing but the check before each poll stops such a body.
#[test]
fn without_the_check_before_each_poll_they_do() {
    assert!(late_polls("unguarded") > 100);
}

/// Wakes itself all the time.
async fn busy(polls: Arc<AtomicU32>) {
    loop {
        polls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

/// A body that blocks past its deadline is polled no more when it comes back.
#[tokio::test(flavor = "current_thread")]
async fn a_poll_that_blocks_past_the_deadline_is_the_last() {
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

/// The control of the tests above: code that only holds a guard runs on.
#[tokio::test]
async fn a_guard_alone_stops_nobody() {
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
