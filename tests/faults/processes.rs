//! Processes that are killed, that are suspended, or that exit.

use lock_tests::{Expected, Helper, running_time, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{FaultFixture, LEASE, client, milliseconds, take, until};

/// The time after the end of a lease within which a waiter notices it without a wake-up.
const WAKE: std::time::Duration = LEASE.checked_div(2).expect("two is not zero");

#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_when_its_lease_ends() {
    let mut fixture = FaultFixture::new().await;
    let (mut process, first) = fixture.keeper(&fixture.server.url());
    let client = client(&fixture.server.url()).await;
    let waiting = take(&client, &fixture);
    let killing = async {
        sleep(LEASE).await;
        fixture.kill(&mut process);
        (Instant::now(), fixture.server.pttl("k"))
    };
    let (token, (killed, left)) = tokio::join!(timeout(LEASE * 5, waiting), killing);
    let token = token.expect("after the lease").expect("the server is up");
    assert!(left > 0, "it was killed while it held the lock");
    let took = killed.elapsed();
    assert!(took.as_millis() >= u128::from(left.unsigned_abs()) / 2, "too early: {took:?}");
    assert!(running_time(killed + LEASE) < WAKE, "too late: {took:?}");
    assert!(token > first);
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_suspended_past_its_lease_does_not_resume_its_body() {
    let mut fixture = FaultFixture::new().await;
    let (mut process, first) = fixture.keeper(&fixture.server.url());
    process.freeze();
    let client = client(&fixture.server.url()).await;
    let token =
        within(LEASE * 5, take(&client, &fixture)).await.expect("after the lease").expect("up");
    assert!(token > first);
    let guard = client.lock("k").acquire().await.expect("free");
    process.thaw();
    let outcome = tokio::task::spawn_blocking(move || {
        let mut line = process.line();
        // A write that was in flight when the process was suspended.
        while line == "refused" {
            line = process.line();
        }
        line
    });
    let outcome = within(LEASE * 5, outcome).await.expect("at once").expect("no panic");
    assert!(outcome.starts_with("lost "), "{outcome}");
    // The release and the renewal of the lost hold do not affect this hold.
    sleep(LEASE).await;
    assert!(guard.is_held());
    guard.release().await.expect("held");
    // A write that began before the process was suspended arrives late. Only the fence refuses it.
    fixture.assert_history(Expected { exclusion: true, no_stale_write: false });
}

#[tokio::test]
async fn a_process_suspended_for_less_than_its_lease_keeps_its_lock() {
    let mut fixture = FaultFixture::new().await;
    let (process, first) = fixture.keeper(&fixture.server.url());
    let owner: String = fixture.server.command(&["GET", "k"]);
    for _ in 0..3 {
        // The last renewal was up to a third of a lease ago.
        process.freeze();
        sleep(LEASE / 5).await;
        process.thaw();
        sleep(LEASE / 3).await;
        let now: Option<String> = fixture.server.command(&["GET", "k"]);
        assert_eq!(now.as_deref(), Some(&*owner));
    }
    let client = client(&fixture.server.url()).await;
    assert_eq!(client.lock("k").try_acquire().await.expect("up").map(drop), None);
    assert!(first > 0);
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn the_lock_of_a_process_that_exits_expires_with_its_lease() {
    let fixture = FaultFixture::new().await;
    let args = ["exit", &fixture.server.url(), "k", &milliseconds(LEASE)];
    let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_eq!(process.line(), "held");
    assert_eq!(process.line(), "", "the process has exited");
    let exited = Instant::now();
    let gone = until(LEASE * 2, || !fixture.server.exists("k")).await.expect("it expires");
    assert!(running_time(exited + LEASE) < WAKE, "{gone:?}");
}
