//! What a client measures.

use std::time::Duration;

use lock_runtime::telemetry::{
    AcquisitionOutcome as Outcome, HistogramSnapshot, RenewalOutcome, SiteSnapshot, StoreOperation,
    StoreOutcome,
};
use lock_runtime::{
    LockClient, LockError, LostReason, Periodic, Wait, distributed_lock, with_client,
};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, running_time};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, on_every_store, until};

/// The measurements of a template; those of an unused one before its first use.
fn site(client: &LockClient, template: &str) -> SiteSnapshot {
    client.snapshot().site(template).unwrap_or_else(|| panic!("{template} was used"))
}

/// The outcomes that were counted, and how often.
fn outcomes(site: &SiteSnapshot) -> Vec<(&'static str, u64)> {
    let counts = Outcome::ALL.map(|outcome| (outcome.as_str(), site.acquisitions(outcome)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[distributed_lock(key = "order:<id>", wait = "0s")]
async fn once(id: u32) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u32) -> Result<(), LockError> {
    once(id).await?;
    let busy = tokio::spawn(with_client(lock_runtime::global()?, async move { once(id).await }));
    assert!(matches!(busy.await.expect("no panic"), Err(LockError::Busy { .. })));
    Ok(())
}

on_every_store! {
    #[doc = "Two functions share a template. Each of them is measured on its own as well."]
    async fn each_call_is_counted_once(pair: Pair) {
        let client = &pair.one;
        with_client(client.clone(), async { pay(7).await }).await.expect("free");
        let orders = site(client, "order:<id>");
        assert_eq!(outcomes(&orders), [("granted", 1), ("busy", 1), ("reentrant", 1)]);
        assert_eq!((orders.function, orders.hold.count(), orders.held), (None, 1, 0));
        let of_functions: Vec<_> =
            client.snapshot().sites.iter().map(|site| (site.function, outcomes(site))).collect();
        let name = |function| Some(format!("{}::{function}", module_path!()).replace("::each_call_is_counted_once", ""));
        let named = |at: usize| of_functions[at].0.map(str::to_owned);
        assert_eq!((named(0), named(1)), (name("once"), name("pay")));
        assert_eq!(of_functions[0].1, [("busy", 1), ("reentrant", 1)]);
        assert_eq!(of_functions[1].1, [("granted", 1)]);
        assert!(client.snapshot().site("unused").is_none());
    }

    async fn waits_and_holds_are_measured(pair: Pair) {
        let lock = pair.one.lock("k").template("wait");
        let first = lock.acquire().await.expect("free");
        assert_eq!((site(&pair.one, "wait").held, site(&pair.one, "wait").waiting), (1, 0));
        let other = lock.clone();
        let next = tokio::spawn(async move { other.acquire().await });
        assert!(until(LEASE, || site(&pair.one, "wait").waiting == 1).await.is_some());
        sleep(LEASE / 4).await;
        let held_for = first.held_for();
        assert!(site(&pair.one, "wait").oldest_hold.is_some_and(|age| age >= held_for));
        first.release().await.expect("held");
        let next = next.await.expect("no panic").expect("passed on");
        let waited = next.waited();
        assert!(waited >= LEASE / 4 && next.held_for() < LEASE, "{waited:?}");
        next.release().await.expect("held");
        let site = site(&pair.one, "wait");
        assert_eq!(outcomes(&site), [("granted", 1), ("handed_over", 1)]);
        assert_eq!((site.held, site.waiting, site.oldest_hold), (0, 0, None));
        assert_eq!(site.wait(Outcome::HandedOver).expect("timed").sum(), waited);
        assert!(site.hold.count() == 2 && site.hold.sum() >= held_for, "{:?}", site.hold);
        assert!(site.wait(Outcome::Cancelled).is_none());
    }

    async fn a_call_from_another_client_that_waits_is_granted_by_the_store(pair: Pair) {
        let held = pair.one.lock("k").acquire().await.expect("free");
        let lock = pair.two.lock("k").template("other");
        let next = tokio::spawn(async move { lock.acquire().await });
        assert!(until(LEASE, || pair.two.snapshot().site("other").is_some_and(|it| it.waiting == 1)).await.is_some());
        sleep(LEASE / 4).await;
        held.release().await.expect("held");
        let next = next.await.expect("no panic").expect("free");
        assert!(next.waited() >= LEASE / 4, "{:?}", next.waited());
        let site = site(&pair.two, "other");
        assert_eq!((outcomes(&site), site.held), (vec![("granted", 1)], 1));
        assert_eq!(site.wait(Outcome::Granted).expect("timed").sum(), next.waited());
    }

    async fn a_call_that_is_dropped_or_times_out_is_counted(pair: Pair) {
        let _held = pair.two.lock("k").acquire().await.expect("free");
        let lock = pair.one.lock("k").template("ends");
        assert!(timeout(LEASE / 10, lock.acquire()).await.is_err());
        // The store has to answer meanwhile, also on a busy machine.
        let waited = lock.clone().wait(LEASE).acquire().await;
        let Err(LockError::Busy { waited, .. }) = waited else { panic!("{waited:?}") };
        assert!(lock.try_acquire().await.expect("busy").is_none());
        let site = site(&pair.one, "ends");
        assert_eq!(outcomes(&site), [("busy", 2), ("cancelled", 1)]);
        assert!(site.wait(Outcome::Busy).expect("timed").sum() >= waited);
        assert_eq!((site.waiting, site.hold.count()), (0, 0));
    }

    async fn errors_of_the_call_itself_are_counted(pair: Pair) {
        let client = &pair.one;
        let lock = |text: &str| client.lock(text).template("errors");
        lock("").acquire().await.expect_err("no key");
        lock("k").lease(Duration::MAX).acquire().await.expect_err("too long");
        client.periodic("", LEASE).template("errors").run(async {}).await.expect_err("no key");
        client.periodic("k", Duration::ZERO).template("errors").run(async {}).await.expect_err("no period");
        client.lock_all([""]).template("errors").acquire().await.expect_err("no key");
        client.lock_all::<&str>([]).template("errors").acquire().await.expect_err("no keys");
        let rows = client.read_write("rw").template("errors");
        let nested = rows.read().run(async { rows.write().acquire().await }).await.expect("free");
        assert!(matches!(nested, Err(LockError::WouldDeadlock { .. })));
        client.shutdown().await.expect("idle");
        lock("k").acquire().await.expect_err("shut down");
        let expected = [("granted", 1), ("would_deadlock", 1), ("invalid_key", 3), ("config", 3), ("shut_down", 1)];
        assert_eq!(outcomes(&site(client, "errors")), expected);
    }

    async fn a_set_counts_as_one_call_and_its_locks_as_holds(pair: Pair) {
        let set = pair.one.lock_all(["a", "b", "c"]).template("set");
        let start = Instant::now();
        let guard = set.acquire().await.expect("free");
        assert_eq!(site(&pair.one, "set").held, 3);
        sleep(LEASE / 20).await;
        assert!(guard.held_for() >= LEASE / 20 && guard.held_for() <= start.elapsed());
        set.clone().wait(Duration::ZERO).acquire().await.expect_err("busy");
        guard.release().await.expect("held");
        let site = site(&pair.one, "set");
        assert_eq!(outcomes(&site), [("granted", 1), ("busy", 1)]);
        assert_eq!((site.held, site.hold.count(), site.waiting), (0, 3, 0));
    }

    async fn the_locks_of_a_set_that_waits_are_no_holds(pair: Pair) {
        let first = pair.two.lock("b").acquire().await.expect("free");
        let busy = pair.two.lock("c").acquire().await.expect("free");
        let set = pair.one.lock_all(["a", "b", "c"]).template("waiting").wait(LEASE * 2);
        let waiting = tokio::spawn(async move { set.acquire().await });
        // After a quarter of its wait, a call keeps the locks that it has while it waits for the next one.
        sleep(LEASE * 3 / 4).await;
        drop(first);
        let is_taken = async || {
            let one = pair.two.lock("a").wait(Duration::ZERO).acquire().await;
            one.is_err()
        };
        let start = Instant::now();
        while !is_taken().await {
            assert!(running_time(start) < LEASE, "it takes the first lock, and waits for the last one");
            sleep(LEASE / 100).await;
        }
        let known = site(&pair.one, "waiting");
        assert_eq!((known.held, known.oldest_hold, known.waiting), (0, None, 1));
        drop(busy);
        let guard = waiting.await.expect("no panic").expect("free");
        let known = site(&pair.one, "waiting");
        assert_eq!((known.held, known.hold.count()), (3, 0));
        guard.release().await.expect("held");
        let known = site(&pair.one, "waiting");
        assert_eq!((known.held, known.hold.count(), known.waiting), (0, 3, 0));
    }

    async fn readers_that_share_a_hold_are_handed_over(pair: Pair) {
        let readers = pair.one.read_write("k").template("readers");
        let one = readers.read().acquire().await.expect("free");
        let two = readers.read().acquire().await.expect("shared");
        one.release().await.expect("held");
        assert_eq!(site(&pair.one, "readers").held, 1);
        two.release().await.expect("held");
        let site = site(&pair.one, "readers");
        assert_eq!(outcomes(&site), [("granted", 1), ("handed_over", 1)]);
        assert_eq!((site.held, site.hold.count()), (0, 1));
    }

    async fn a_second_run_in_a_period_counts_as_busy(pair: Pair) {
        let day = Duration::from_secs(24 * 60 * 60);
        let report: Periodic = pair.one.periodic("report", day).template("report");
        report.run(async {}).await.expect("the first run");
        report.run(async {}).await.expect_err("the second run");
        let site = site(&pair.one, "report");
        assert_eq!(outcomes(&site), [("granted", 1), ("busy", 1)]);
        assert_eq!((site.waiting, site.held), (0, 0));
    }

    async fn losses_are_counted_by_reason(pair: Pair) {
        let lock = |text: &str| pair.one.lock(text).template("lost");
        lock("fixed").lease(LEASE / 20).run(std::future::pending::<()>()).await.expect_err("over");
        lock("max").max_hold(LEASE / 20).run(std::future::pending::<()>()).await.expect_err("over");
        let unwatched = lock("guard").lease(LEASE / 20).acquire().await.expect("free");
        sleep(unwatched.remaining() + LEASE / 100).await;
        let age = unwatched.held_for();
        unwatched.release().await.expect_err("over");
        assert!(age < LEASE, "it has stopped at the loss: {age:?}");
        let site = site(&pair.one, "lost");
        assert_eq!((site.lost(LostReason::LeaseOver), site.lost(LostReason::MaxHold)), (2, 1));
        assert_eq!(site.losses.iter().map(|(_, count)| count).sum::<u64>(), 3);
        assert_eq!((site.held, site.hold.count()), (0, 3));
        assert_eq!(pair.one.stats().lost, 3);
    }

    async fn many_threads_count_together(pair: Pair) {
        let threads: Vec<_> = (0..20)
            .map(|thread| {
                let lock = pair.one.lock(format!("k{}", thread % 3)).template("threads");
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.expect("a runtime").block_on(async {
                        for _ in 0..10 {
                            lock.run(tokio::task::yield_now()).await.expect("free");
                        }
                    });
                })
            })
            .collect();
        let all = tokio::task::spawn_blocking(|| threads.into_iter().for_each(|it| it.join().expect("no panic")));
        all.await.expect("no panic");
        let site = site(&pair.one, "threads");
        let granted = site.acquisitions(Outcome::Granted);
        assert_eq!(granted + site.acquisitions(Outcome::HandedOver), 200);
        assert_eq!((site.held, site.waiting), (0, 0));
        // A call that is not polled in time gives its hold back, and gets another one later.
        assert!((200..250).contains(&site.hold.count()), "{}", site.hold.count());
    }
}

/// A client that begins after another one has ended may get its counters.
#[tokio::test]
async fn each_client_has_measurements_of_its_own() {
    for _ in 0..3 {
        let (one, two) = (LockClient::memory(), LockClient::memory());
        for client in [&one, &one, &two] {
            with_client(client.clone(), async { once(1).await }).await.expect("free");
            client.lock("k").run(async {}).await.expect("free");
        }
        for (client, calls) in [(&one, 2), (&two, 1)] {
            assert_eq!(outcomes(&site(client, "order:<id>")), [("granted", calls)]);
            assert_eq!(outcomes(&site(client, "(none)")), [("granted", calls)]);
        }
    }
}

#[tokio::test]
async fn a_key_that_is_an_expression_is_measured_under_its_text() {
    #[distributed_lock(key = format!("tenant:{id}"))]
    async fn by_expression(id: u32) -> Result<u32, LockError> {
        Ok(id)
    }

    let client = LockClient::memory();
    with_client(client.clone(), by_expression(7)).await.expect("free");
    let templates: Vec<_> = client.snapshot().sites.iter().map(|site| site.template).collect();
    assert_eq!(templates.len(), 1);
    assert!(templates[0].contains("tenant:{id}"), "{templates:?}");
}

/// Readers that wait for a writer share a hold of the first one.
#[tokio::test]
async fn readers_that_wait_are_measured_from_the_beginning_of_their_calls() {
    let client = LockClient::memory();
    let locks = client.read_write("k").template("turn");
    let writer = locks.write().acquire().await.expect("free");
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let reader = locks.read();
        readers.spawn(async move { reader.acquire().await.expect("free").held_for() });
    }
    assert!(until(LEASE, || site(&client, "turn").waiting == 4).await.is_some());
    sleep(LEASE / 4).await;
    writer.release().await.expect("held");
    while let Some(reader) = readers.join_next().await {
        reader.expect("no panic");
    }
    let site = site(&client, "turn");
    let waits: u64 = [Outcome::Granted, Outcome::HandedOver]
        .map(|outcome| site.wait(outcome).expect("timed"))
        .iter()
        .map(|waits| {
            let short: u64 = waits
                .cumulative()
                .filter(|(end, _)| end.is_some_and(|end| end < LEASE / 4))
                .map(|(_, count)| count)
                .max()
                .unwrap_or_default();
            waits.count() - short
        })
        .sum();
    assert_eq!((waits, site.waiting), (4, 0), "{:?}", outcomes(&site));
}

/// With the default limit of hand-offs, and with a second client that waits.
#[tokio::test]
async fn the_limit_of_hand_offs_is_counted() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let compete = |client: LockClient, tasks: usize| async move {
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            let lock = client.lock("k").template("hot").wait(Wait::Forever);
            running.spawn(async move {
                for _ in 0..40 {
                    lock.run(tokio::task::yield_now()).await.expect("free");
                }
            });
        }
        while let Some(done) = running.join_next().await {
            done.expect("no panic");
        }
    };
    compete(one.clone(), 8).await;
    let alone = site(&one, "hot").handoff_limits;
    assert!(alone.continued > 0, "nobody else waits: {alone:?}");
    tokio::join!(compete(one.clone(), 8), compete(two.clone(), 8));
    let freed = [&one, &two].map(|client| site(client, "hot").handoff_limits.freed);
    assert!(freed.iter().any(|freed| *freed > 0), "{freed:?}");
}

#[tokio::test]
async fn requests_and_renewals_are_measured() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let before = client.snapshot();
    assert!(before.store_up);
    let guard = client.lock("k").template("renewed").acquire().await.expect("free");
    guard.fencing_token().await.expect("held");
    let renewed = |count: u64| {
        let renewals = client.snapshot().renewals;
        renewals.iter().any(|(outcome, n)| *outcome == RenewalOutcome::Extended && *n >= count)
    };
    assert!(until(LEASE * 5, || renewed(2)).await.is_some(), "it is renewed each third");
    guard.release().await.expect("held");
    let snapshot = client.snapshot();
    let answered = |operation: StoreOperation| {
        let of = |row: &&(StoreOperation, StoreOutcome, _)| {
            (row.0, row.1) == (operation, StoreOutcome::Ok)
        };
        snapshot.requests.iter().find(of).map_or(0, |(_, _, durations)| durations.count())
    };
    let counts = [StoreOperation::Acquire, StoreOperation::Release, StoreOperation::Fence];
    assert_eq!(counts.map(answered), [1, 1, 1]);
    assert!(answered(StoreOperation::Renew) >= 2);
    let slack = &snapshot.renewal_slack;
    assert!(slack.count() >= 2 && slack.counts[..5].iter().sum::<u64>() < slack.count());
    let losses = [
        (vec!["DEL", "l"], LostReason::Gone, RenewalOutcome::Gone),
        (vec!["SET", "l", "stranger"], LostReason::Taken, RenewalOutcome::Taken),
    ];
    for (command, reason, outcome) in losses {
        let lost = client.lock("l").template("renewed");
        let lost = tokio::spawn(async move { lost.run(std::future::pending::<()>()).await });
        assert!(until(LEASE, || server.exists("l")).await.is_some());
        server.tell(&command);
        lost.await.expect("no panic").expect_err("lost");
        assert_eq!(site(&client, "renewed").lost(reason), 1);
        let is_counted = || client.snapshot().renewals.contains(&(outcome, 1));
        assert!(until(LEASE, is_counted).await.is_some(), "{:?}", client.snapshot().renewals);
    }
    assert!(client.snapshot().store_up);
    let is_failure = |row: &&(StoreOperation, StoreOutcome, HistogramSnapshot)| {
        row.1 != StoreOutcome::Ok && row.2.count() > 0
    };
    let failed = client.snapshot().requests.into_iter();
    assert_eq!(
        failed.as_slice().iter().find(is_failure),
        None,
        "the first use of a script is none"
    );
    until_idle(&client, LEASE).await;
}

/// The release is the first to notice the loss: in the foreground, and in the background.
#[tokio::test]
async fn a_loss_that_the_release_notices_is_counted_for_its_function() {
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).lease(LEASE * 20).tracking(false);
    let client = client.connect().await.expect("it runs");
    for text in ["awaited", "dropped"] {
        let guard = client.lock(text).template("late").acquire().await.expect("free");
        server.tell(&["DEL", text]);
        if text == "awaited" {
            guard.release().await.expect_err("gone");
        } else {
            drop(guard);
        }
    }
    until_idle(&client, LEASE).await;
    let site = site(&client, "late");
    assert_eq!((site.lost(LostReason::Gone), site.hold.count(), site.held), (2, 2, 0));
}

#[tokio::test]
async fn an_outage_is_measured() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let lock = client.lock("k").template("outage").wait(LEASE / 2);
    lock.run(async {}).await.expect("it runs");
    server.kill();
    let began = Instant::now();
    lock.acquire().await.expect_err("it does not run");
    assert!(!client.snapshot().store_up);
    let down = site(&client, "outage");
    assert_eq!(outcomes(&down), [("granted", 1), ("unavailable", 1)]);
    let waited = down.wait(Outcome::Unavailable).expect("timed").sum();
    assert!((LEASE / 4..=began.elapsed()).contains(&waited), "{waited:?}");
    let is_refused = |row: &(StoreOperation, StoreOutcome, _)| {
        (row.0, row.1) == (StoreOperation::Acquire, StoreOutcome::Refused)
    };
    let refused = client.snapshot().requests.into_iter().find(is_refused);
    assert!(refused.is_some_and(|(_, _, durations)| durations.count() > 0));
    server.restart();
    lock.run(async {}).await.expect("it runs again");
    assert!(client.snapshot().store_up);
}

#[tokio::test]
async fn a_foreign_value_and_a_missing_permission_are_counted() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["LPUSH", "list", "no lock"]);
    let lock = |text: &str| client.lock(text).template("refused").wait(Duration::ZERO);
    assert!(matches!(lock("list").acquire().await, Err(LockError::WrongFormat { .. })));
    server.tell(&["ACL", "SETUSER", "default", "-set"]);
    assert!(matches!(lock("k").acquire().await, Err(LockError::Denied { .. })));
    server.tell(&["ACL", "SETUSER", "default", "+set"]);
    assert_eq!(outcomes(&site(&client, "refused")), [("denied", 1), ("wrong_format", 1)]);
    assert!(client.snapshot().store_up, "the server answers");
}
