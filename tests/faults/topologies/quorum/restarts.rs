//! Servers that have restarted without their data.

use std::time::Instant;

use lock_runtime::{LockClient, LockError, LockGuard};
use lock_tests::Quorum;
use tokio::time::timeout;

use super::{LONG, QUORUM_LEASE, quorum_client};
use crate::support::{LEASE, number, until};

/// The lease of a lock that is not renewed, so that its holder does not notice the loss of a vote.
const FIXED: std::time::Duration = LEASE.saturating_mul(2);

/// Two of three servers have granted the lock. One of them loses it, and the third one never had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_restarted_does_not_vote_until_its_locks_have_ended() {
    let mut quorum = Quorum::start(3);
    let (one, two) = (quorum_client(&quorum).await, quorum_client(&quorum).await);
    quorum.kill(2);
    let guard = one.lock("k").lease(FIXED).acquire().await.expect("two servers are a majority");
    quorum.restart(1);
    quorum.restart(2);
    let second = two.lock("k").acquire().await.expect("granted after the first lease");
    assert!(!guard.is_held(), "there are two holders");
    second.release().await.expect("held");
}

/// One after the other. Otherwise, each of them would be without its votes for as long as the locks are held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_get_the_votes_back_of_servers_that_restart_or_are_suspended() {
    let mut quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    let keys = ["a", "b", "c", "d", "e"];
    let mut guards = Vec::new();
    for key in keys {
        guards.push(client.lock(key).acquire().await.expect("free"));
    }
    for round in 0..2 * number("LOCK_HELD_ROUNDS", 1) {
        for server in 0..3 {
            if round % 2 == 0 {
                quorum.restart(server);
            } else {
                quorum.server(server).freeze();
                tokio::time::sleep(QUORUM_LEASE * 3 / 2).await;
                quorum.server(server).thaw();
            }
            let has_votes = || keys.iter().all(|key| quorum.server(server).exists(key));
            assert!(until(LONG, has_votes).await.is_some(), "a vote is not restored");
            assert!(guards.iter().all(LockGuard::is_held), "lost in round {round}");
        }
    }
    for guard in guards {
        guard.release().await.expect("held");
    }
    for server in 0..3 {
        let are_free = || !keys.iter().any(|key| quorum.server(server).exists(key));
        assert!(until(QUORUM_LEASE, are_free).await.is_some(), "a vote is left");
    }
}

/// The lease of the first client is longer than the quarantine of the second one. One of the two servers that have
/// granted the lock loses it, and the third one never had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_shorter_quarantine_waits_for_the_longest_one() {
    let mut quorum = Quorum::start(3);
    let long = LEASE * 8;
    let url = quorum.url();
    let builder = || LockClient::builder().url(url.clone()).lease(LEASE).wait(LONG);
    let one = builder().quarantine(long + LEASE).connect().await.expect("up");
    let two = builder().connect().await.expect("up");
    two.lock("other").run(async {}).await.expect("granted");
    quorum.kill(2);
    let guard = one.lock("k").lease(long).acquire().await.expect("two servers are a majority");
    quorum.restart(1);
    quorum.restart(2);
    let second = acquired_by_attempts(&two).await;
    assert!(!guard.is_held(), "there are two holders");
    second.release().await.expect("held");
}

/// Makes one attempt after the other, because a call would wait for the end of the lease that a server has.
async fn acquired_by_attempts(client: &LockClient) -> LockGuard {
    let end = Instant::now() + LONG;
    loop {
        match client.lock("k").wait(LEASE / 10).acquire().await {
            Ok(guard) => return guard,
            Err(error) => assert!(Instant::now() < end, "never granted: {error}"),
        }
    }
}

/// The second client has seen that the server has restarted.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_does_not_end_early_when_the_clock_of_its_server_is_set_forward() {
    let mut quorum = Quorum::with_own_clocks(3);
    let long = LEASE * 6;
    let builder = LockClient::builder().url(quorum.url()).lease(LEASE).quarantine(long + LEASE);
    let (one, two) = (builder.clone().connect().await, builder.wait(LONG).connect().await);
    let (one, two) = (one.expect("up"), two.expect("up"));
    quorum.kill(2);
    let guard = one.lock("k").lease(long).acquire().await.expect("two servers are a majority");
    quorum.restart(1);
    let end = Instant::now() + LONG;
    loop {
        match two.lock("other").wait(LEASE / 4).acquire().await {
            Err(LockError::Unavailable { cause, .. }) if cause.contains("may have lost") => break,
            other => assert!(Instant::now() < end, "the restart is not noticed: {other:?}"),
        }
    }
    quorum.server(1).set_clock(1000);
    quorum.restart_unnoticed(2);
    let second = acquired_by_attempts(&two).await;
    assert!(!guard.is_held(), "there are two holders");
    second.release().await.expect("held");
}

/// Servers that clients have never used may have lost the locks of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_servers_vote_after_a_lease_and_have_a_record_of_it() {
    let quorum = Quorum::new(3);
    let began = Instant::now();
    let client = quorum_client(&quorum).await;
    match client.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("may have lost locks"), "{cause}");
        }
        other => panic!("a new server votes at once: {other:?}"),
    }
    drop(client.lock("k").acquire().await.expect("granted"));
    assert!(began.elapsed() > LEASE * 2, "granted after {:?}", began.elapsed());
    let later = quorum_client(&quorum).await;
    let at_once = timeout(LEASE * 2, later.lock("k").acquire()).await;
    drop(at_once.expect("the servers have a record of it").expect("granted"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_no_longer_than_the_quarantine() {
    let quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    match client.lock("k").lease(LEASE * 10).acquire().await {
        Err(LockError::Config { option: "lease", problem, .. }) => {
            assert!(problem.contains("quarantine"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    let builder = LockClient::builder().url(quorum.url()).lease(LEASE).quarantine(LEASE * 20);
    let client = builder.connect().await.expect("up");
    drop(client.lock("k").lease(LEASE * 10).acquire().await.expect("shorter than the quarantine"));
}

/// The loss of a vote does not end a lock that the other servers have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_survives_the_restart_of_a_minority_and_is_lost_with_the_majority() {
    let mut quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    let guard = client.lock("k").acquire().await.expect("granted");
    quorum.restart(0);
    let lost = until(QUORUM_LEASE, || !guard.is_held()).await;
    assert!(lost.is_none(), "lost although two servers have it");
    assert_eq!(quorum.having("k"), [1, 2], "a server in quarantine has a vote");
    quorum.restart(1);
    assert!(
        until(QUORUM_LEASE * 3, || !guard.is_held()).await.is_some(),
        "held by one of three servers"
    );
    assert!(guard.release().await.is_err_and(|error| matches!(error, LockError::Lost { .. })));
    let freed = until(LEASE * 3, || quorum.having("k").is_empty()).await;
    assert!(freed.is_some(), "left at {:?}", quorum.having("k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_although_servers_restart_one_after_the_other() {
    let mut quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    let mut last = 0;
    let mut issued = 0;
    for round in 0..12 {
        let guard = client.lock("k").acquire().await.expect("granted");
        // On a busy machine, the lock may be lost.
        if let Ok(token) = guard.fencing_token().await {
            assert!(token > last, "a token went back: {token} after {last}");
            (last, issued) = (token, issued + 1);
        }
        drop(guard);
        quorum.restart(round % 3);
        if issued == 6 {
            return;
        }
    }
    panic!("{issued} tokens were issued");
}

/// The clock of one server is ahead. The next holder has a majority without it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_although_the_clock_of_a_server_is_ahead() {
    let quorum = Quorum::with_own_clocks(3);
    quorum.server(0).set_clock(1000);
    // Longer than the clocks differ.
    let builder = LockClient::builder().quorum(quorum.urls()).quarantine(LEASE * 2000);
    let builder = builder.lease(LEASE).wait(LONG);
    let client = builder.connect().await.expect("up");
    client.lock("k").run(async {}).await.expect("connected");
    let token = async || {
        let guard = client.lock("k").acquire().await.expect("a majority answers");
        let token = guard.fencing_token().await.expect("issued");
        guard.release().await.expect("held");
        token
    };
    quorum.freeze(2);
    let first = token().await;
    quorum.thaw(2);
    drop(client.lock("other").acquire().await.expect("all answer"));
    quorum.freeze(0);
    let second = token().await;
    quorum.thaw(0);
    assert!(second > first, "a token went back: {second} after {first}");
}

/// All servers answer, so the token is that of the two whose clocks agree.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_far_ahead_at_one_server_does_not_prevent_tokens() {
    let quorum = Quorum::with_own_clocks(3);
    quorum.server(0).set_clock(300);
    let builder = LockClient::builder().url(quorum.url()).lease(QUORUM_LEASE).wait(LONG);
    let client = builder.connect().await.expect("up");
    let mut last = 0;
    // A first majority that contains the server is as likely as one without it.
    for _ in 0..12 {
        let guard = client.lock("k").acquire().await.expect("granted");
        let token = match guard.fencing_token().await {
            // On a busy machine, the lock may be lost.
            Err(LockError::Lost { .. }) => continue,
            token => token.expect("two clocks agree"),
        };
        assert!(token > last, "a token went back: {token} after {last}");
        last = token;
        guard.release().await.expect("held");
    }
}

/// The clocks were ahead, and are set back. The last tokens of all servers are far ahead of their clocks.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_the_clocks_of_most_servers_refuse_is_an_error_at_once() {
    let quorum = Quorum::with_own_clocks(3);
    let set_clocks = |ahead| (0..3).for_each(|server| quorum.server(server).set_clock(ahead));
    set_clocks(300);
    let wait = LEASE * 20;
    let builder = LockClient::builder().url(quorum.url()).lease(QUORUM_LEASE).wait(wait);
    let client = builder.connect().await.expect("up");
    let guard = client.lock("k").acquire().await.expect("granted");
    guard.fencing_token().await.expect("the clocks agree");
    guard.release().await.expect("held");
    set_clocks(0);
    let guard = client.lock("k").acquire().await.expect("granted");
    match guard.fencing_token().await {
        Err(LockError::Unavailable { waited, cause, .. }) => {
            let server = quorum.server(1).address();
            assert!(cause.contains(&server) && cause.contains("ms ahead"), "{cause}");
            assert!(waited < wait / 2, "the request was repeated for {waited:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(guard.is_held(), "the lock does not depend on the clocks");
}

/// The clock of one server is ahead. The next holder has a majority without it, of which one server has lost its data.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_although_a_clock_is_ahead_and_a_server_loses_its_data() {
    // The quarantine is about three seconds.
    for (ahead, is_far) in [(1, false), (300, true)] {
        let mut quorum = Quorum::with_own_clocks(3);
        quorum.server(0).set_clock(ahead);
        // One server is suspended, so the request for a token is repeated for as long.
        let wait = LEASE * 20;
        let builder = LockClient::builder().quorum(quorum.urls()).lease(LEASE).wait(wait);
        let client = builder.connect().await.expect("up");
        client.lock("k").run(async {}).await.expect("connected");
        let token = async || {
            let guard = client.lock("k").acquire().await.expect("a majority answers");
            let token = guard.fencing_token().await;
            guard.release().await.expect("held");
            token
        };
        quorum.freeze(2);
        let first = token().await;
        quorum.thaw(2);
        quorum.restart(1);
        quorum.freeze(0);
        let second = token().await.expect("the clocks of these servers agree");
        quorum.thaw(0);
        match first {
            Ok(first) => {
                assert!(second > first, "a token went back: {second} after {first}");
                assert!(!is_far, "a token far ahead of the clocks was issued");
            }
            Err(LockError::Unavailable { cause, .. }) if is_far => {
                let server = quorum.server(1).address();
                assert!(cause.contains(&server) && cause.contains("ms ahead"), "{cause}");
            }
            Err(error) => panic!("the clocks differ by less than the quarantine: {error}"),
        }
    }
}
