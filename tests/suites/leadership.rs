//! Leadership, on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock_runtime::{LeaderInfo, LeaderObserver, LockClient, LockError, LostReason};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, running_time, within};
use tokio::time::{Instant, timeout};

use crate::support::{LEASE, client, on_every_store, until};

/// The next result of an observer, which must not be long in coming.
async fn next(leaders: &mut LeaderObserver) -> Option<LeaderInfo> {
    within(LEASE * 5, leaders.next()).await.expect("soon").expect("the store is up")
}

on_every_store! {
    async fn one_candidate_leads_and_the_next_one_after_it(pair: Pair) {
        let (one, two) = (pair.one.leadership("l").named("one"), pair.two.leadership("l"));
        let leader = one.campaign().await.expect("no leader");
        assert!(leader.is_leader() && !leader.remaining().is_zero());
        let next = tokio::spawn(async move { two.campaign().await });
        tokio::time::sleep(LEASE / 4).await;
        assert!(!next.is_finished(), "one leader at a time");
        let (first, resigned) = (leader.term(), Instant::now());
        leader.resign().await.expect("it led");
        let next = within(LEASE, next).await.expect("at once").expect("no panic").expect("elected");
        assert!(running_time(resigned) < LEASE / 2, "{:?}", resigned.elapsed());
        assert!(next.term() > first);
        drop(next);
        until_idle(&pair.two, LEASE).await;
    }

    async fn the_candidate_that_has_waited_longest_leads_next(pair: Pair) {
        let first = pair.one.leadership("l").campaign().await.expect("no leader");
        let order = Arc::new(AtomicUsize::new(0));
        let mut waiting = Vec::new();
        for n in 0..4 {
            let leadership = pair.two.leadership("l");
            let order = Arc::clone(&order);
            waiting.push(tokio::spawn(async move {
                let leader = leadership.campaign().await.expect("elected");
                assert_eq!(order.fetch_add(1, Ordering::SeqCst), n);
                leader.resign().await.expect("it led");
            }));
            tokio::time::sleep(LEASE / 50).await;
        }
        first.resign().await.expect("it led");
        for candidate in waiting {
            within(LEASE * 2, candidate).await.expect("soon").expect("in order");
        }
    }

    async fn run_returns_the_output_of_the_body_and_resigns(pair: Pair) {
        let leadership = pair.one.leadership("l");
        let terms = Arc::new(AtomicUsize::new(0));
        for n in 1..4 {
            let terms = Arc::clone(&terms);
            let output = leadership.run(|term| {
                terms.fetch_add(1, Ordering::SeqCst);
                async move { (n, term) }
            });
            let (output, term) = output.await.expect("elected");
            assert!(output == n && term > 0);
            assert_eq!(terms.load(Ordering::SeqCst), n);
        }
        assert!(pair.two.lock("l").try_acquire().await.expect("up").is_some(), "it has resigned");
    }

    async fn observers_see_each_lasting_leader(pair: Pair) {
        let mut leaders = pair.two.leadership("l").observe();
        assert_eq!(next(&mut leaders).await, None);
        for name in ["ada", "bob \u{1f512}"] {
            let leader = pair.one.leadership("l").named(name).campaign().await.expect("elected");
            let seen = next(&mut leaders).await.expect("a leader");
            assert_eq!((seen.name.as_str(), seen.term), (name, leader.term()));
            leader.announce("renamed").await.expect("it leads");
            assert_eq!(next(&mut leaders).await.expect("a leader").name, "renamed");
            let now = pair.two.leadership("l").leader().await.expect("up");
            assert_eq!(now.expect("a leader").name, "renamed");
            leader.resign().await.expect("it led");
            assert_eq!(next(&mut leaders).await, None);
        }
    }

    async fn candidates_of_other_processes_come_first(pair: Pair) {
        let leader = pair.one.leadership("l").campaign().await.expect("no leader");
        let order = Arc::new(AtomicUsize::new(0));
        let mut waiting = Vec::new();
        for (n, client) in [(1, &pair.one), (0, &pair.two)] {
            let (leadership, order) = (client.leadership("l"), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let leader = leadership.campaign().await.expect("elected");
                assert_eq!(order.fetch_add(1, Ordering::SeqCst), n);
                leader.resign().await.expect("it led");
            }));
            tokio::time::sleep(LEASE / 2).await;
        }
        leader.resign().await.expect("it led");
        for candidate in waiting {
            within(LEASE * 2, candidate).await.expect("soon").expect("in order");
        }
    }

    /// A plain call of the same client gets the lock next.
    async fn a_leader_that_has_resigned_is_no_longer_shown(pair: Pair) {
        let leader = pair.one.leadership("l").named("first").campaign().await.expect("no leader");
        let shown = async || pair.two.leadership("l").leader().await.expect("up");
        assert_eq!(shown().await.map(|leader| leader.name).as_deref(), Some("first"));
        let lock = pair.one.lock("l");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(LEASE / 10).await;
        leader.resign().await.expect("it led");
        let guard = within(LEASE, waiter).await.expect("soon").expect("no panic").expect("free");
        assert_eq!(shown().await, None);
        guard.release().await.expect("held");
    }

    async fn a_campaign_inside_the_body_of_the_leadership_is_an_error(pair: Pair) {
        let client = pair.one.clone();
        let leadership = client.leadership("l");
        let output = leadership.run(|_| {
            let client = client.clone();
            async move { client.leadership("l").campaign().await.map(drop) }
        });
        match output.await.expect("elected") {
            Err(LockError::Config { option: "leadership", .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    async fn a_cancelled_campaign_leaves_nothing(pair: Pair) {
        let leader = pair.one.leadership("l").campaign().await.expect("no leader");
        for _ in 0..5 {
            let leadership = pair.two.leadership("l");
            let campaign = tokio::spawn(async move { leadership.campaign().await.map(drop) });
            tokio::time::sleep(LEASE / 50).await;
            campaign.abort();
            let _ = campaign.await;
        }
        until_idle(&pair.two, LEASE * 2).await;
        leader.resign().await.expect("it led");
        assert!(pair.one.lock("l").try_acquire().await.expect("up").is_some(), "nobody was elected");
    }

    async fn a_shutdown_ends_campaigns_and_terms(pair: Pair) {
        let leadership = pair.one.leadership("l");
        let leader = pair.two.leadership("l").campaign().await.expect("no leader");
        let waiting = tokio::spawn(async move { leadership.run(|_| async {}).await });
        tokio::time::sleep(LEASE / 10).await;
        pair.one.shutdown().await.expect("nothing is held");
        assert_eq!(waiting.await.expect("no panic"), Err(LockError::ShutDown));
        let observed = pair.one.leadership("l").leader().await;
        assert_eq!(observed, Err(LockError::ShutDown));
        drop(leader);
    }
}

#[tokio::test]
async fn a_candidate_whose_leadership_is_lost_campaigns_again() {
    let server = RedisServer::start();
    let one = client(&server.url()).await;
    let (started, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let leadership = one.leadership("l").named("one");
    let leading = tokio::spawn(async move {
        let last = leadership.run(|term| {
            let started = started.clone();
            async move {
                let (end, ended) = tokio::sync::oneshot::channel::<()>();
                started.send((term, end)).expect("awaited");
                ended.await.expect("told to end");
                term
            }
        });
        last.await
    });
    let mut last = 0;
    let mut ends = Vec::new();
    for words in [["DEL", "l"].as_slice(), &["SET", "l", "stranger", "PX", "200"], &["FLUSHALL"]] {
        let (term, end) = within(LEASE * 5, terms.recv()).await.expect("soon").expect("a term");
        assert!(term > last, "{term} after {last}");
        last = term;
        server.tell(words);
        // The body is dropped, and with it the receiver.
        let dropped = || end.is_closed();
        assert!(until(LEASE * 2, dropped).await.is_some(), "the body is dropped");
        ends.push(end);
    }
    let (term, end) = within(LEASE * 5, terms.recv()).await.expect("soon").expect("a term");
    assert!(term > last);
    end.send(()).expect("the body runs");
    assert_eq!(leading.await.expect("no panic"), Ok(term));
    until_idle(&one, LEASE).await;
}

#[tokio::test]
async fn a_leader_learns_that_it_no_longer_leads() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let leader = client.leadership("l").campaign().await.expect("no leader");
    server.tell(&["SET", "l", "stranger", "PX", "100000"]);
    assert_eq!(within(LEASE * 2, leader.lost()).await.expect("soon"), LostReason::Taken);
    assert!(!leader.is_leader());
    assert!(matches!(leader.announce("late").await, Err(LockError::Lost { .. })));
    // The foreign client excludes all candidates, and is no leader.
    assert_eq!(client.leadership("l").leader().await, Ok(None));
    assert!(matches!(leader.resign().await, Err(LockError::Lost { .. })));
}

/// The announcement is the first request after the lock was taken by force.
#[tokio::test]
async fn an_announcement_that_finds_another_owner_ends_the_leadership() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).tracking(false);
    let client = builder.connect().await.expect("up");
    let leader = client.leadership("l").campaign().await.expect("no leader");
    server.tell(&["SET", "l", "stranger", "PX", "100000"]);
    match leader.announce("late").await {
        Err(LockError::Lost { reason: LostReason::Taken, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(!leader.is_leader());
    assert_eq!(timeout(LEASE, leader.lost()).await, Ok(LostReason::Taken));
}

#[tokio::test]
async fn names_that_are_too_long_and_invalid_keys_are_errors() {
    let client = LockClient::memory();
    let long = "x".repeat(257);
    match client.leadership("l").named(&long).campaign().await {
        Err(LockError::Config { option: "name", .. }) => {}
        other => panic!("{other:?}"),
    }
    let leader = client.leadership("l").named(&long[1..]).campaign().await.expect("elected");
    assert!(matches!(leader.announce(long).await, Err(LockError::Config { option: "name", .. })));
    assert!(matches!(client.leadership("").campaign().await, Err(LockError::InvalidKey { .. })));
    assert!(matches!(client.leadership("").leader().await, Err(LockError::InvalidKey { .. })));
    let mut observer = client.leadership("lock_leader:x").observe();
    assert!(matches!(observer.next().await, Err(LockError::InvalidKey { .. })));
}

/// The name of the host and the process id.
#[tokio::test]
async fn a_candidate_has_a_name_by_default() {
    let client = LockClient::memory();
    let _leader = client.leadership("l").campaign().await.expect("elected");
    let mut leaders = client.leadership("l").observe();
    let name = loop {
        if let Some(info) = next(&mut leaders).await {
            break info.name;
        }
    };
    assert!(name.contains(&std::process::id().to_string()), "{name}");
}
