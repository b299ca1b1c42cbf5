//! The client for tests, with paused time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lock_runtime::telemetry::AcquisitionOutcome;
use lock_runtime::testing::{TakenEnd, TestLocks, errors, pretend_locked};
use lock_runtime::{
    HolderKind, LockClient, LockError, LostReason, RunOutcome, assert_locked, distributed_lock,
    held_keys, with_client,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// What wake-ups, and the margin of the deadline, may take or add.
const MARGIN: Duration = Duration::from_millis(60);

/// Runs a test in paused time, which takes little time in reality.
fn paused(test: impl AsyncFnOnce()) {
    let started = std::time::Instant::now();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test());
    // Milliseconds, and the machine may be busy.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// Whether a duration of a test with a clock that jumps from timer to timer is this one.
#[track_caller]
fn assert_about(found: Duration, expected: Duration) {
    let margin = MARGIN + expected / 50;
    assert!(
        found + margin >= expected && found <= expected + margin,
        "{found:?}, not {expected:?}"
    );
}

#[distributed_lock(key = "import:<id>", lease = "5s")]
async fn import(id: u32, time: Duration) -> Result<(), LockError> {
    sleep(time).await;
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u32, time: Duration) -> Result<(), LockError> {
    sleep(time).await;
    Ok(())
}

mod documented {
    //! The examples of the chapter about tests.

    use super::{Duration, LockClient, LockError, LostReason, distributed_lock, with_client};

    #[derive(Debug)]
    enum PayError {
        Lock(LockError),
    }

    impl From<LockError> for PayError {
        fn from(error: LockError) -> Self {
            Self::Lock(error)
        }
    }

    #[distributed_lock(key = "order:<id>")]
    async fn pay(id: u32) -> Result<(), PayError> {
        panic!("the order is busy");
    }

    #[distributed_lock(key = "import:<id>")]
    async fn import(id: u32) -> Result<(), LockError> {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    }

    async fn import_with_retry(id: u32) -> Result<(), LockError> {
        match import(id).await {
            Err(LockError::Lost { .. }) => import(id).await,
            result => result,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_order_is_a_conflict() {
        let locks = LockClient::testing();
        let _other = locks.elsewhere("order:7"); // another process has it
        let outcome = with_client(locks.client(), pay(7)).await;
        assert!(matches!(outcome, Err(PayError::Lock(LockError::Busy { .. }))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_import_that_loses_its_lock_is_repeated() {
        let locks = LockClient::testing();
        locks.when("import:<id>").lost_after(Duration::from_secs(3), LostReason::Gone).times(1);
        with_client(locks.client(), import_with_retry(7)).await.unwrap();
        assert_eq!(locks.taken().len(), 2);
    }
}

#[test]
fn a_fixed_lease_ends_while_its_body_sleeps() {
    paused(async || {
        let (locks, began) = (LockClient::testing(), Instant::now());
        let outcome = with_client(locks.client(), import(7, SECOND * 20)).await;
        match outcome {
            Err(LockError::Lost { reason: LostReason::LeaseOver, held_for, .. }) => {
                assert_about(held_for, SECOND * 5);
            }
            other => panic!("{other:?}"),
        }
        assert_about(began.elapsed(), SECOND * 5);
        with_client(locks.client(), import(7, SECOND * 4)).await.expect("in time");
    });
}

#[test]
fn a_wait_passes_while_somebody_else_holds_the_lock() {
    paused(async || {
        let locks = LockClient::testing();
        let other = locks.elsewhere_for("order:7", SECOND * 60);
        let began = Instant::now();
        match with_client(locks.client(), pay(7, SECOND)).await {
            Err(LockError::Busy { key, waited, holder, .. }) => {
                assert_eq!(key, "order:7");
                assert_about(waited, SECOND * 30);
                assert_eq!(holder.kind, HolderKind::Elsewhere);
                assert_about(holder.lease_left.expect("known"), SECOND * 30);
                assert_about(holder.held_for.expect("known"), SECOND * 30);
            }
            other => panic!("{other:?}"),
        }
        assert_about(began.elapsed(), SECOND * 30);
        assert!(other.renew(SECOND * 60));
        let waiting = tokio::spawn(with_client(locks.client(), pay(7, SECOND)));
        sleep(SECOND * 10).await;
        assert!(other.release());
        waiting.await.expect("no panic").expect("released");
        assert_about(began.elapsed(), SECOND * 41);
    });
}

#[test]
fn a_lock_that_somebody_else_has_forgotten_is_free_after_its_lease() {
    paused(async || {
        let (locks, began) = (LockClient::testing(), Instant::now());
        drop(locks.elsewhere_for("order:7", SECOND * 5));
        with_client(locks.client(), pay(7, Duration::ZERO)).await.expect("after the lease");
        assert_about(began.elapsed(), SECOND * 5);
    });
}

#[test]
fn other_clients_refuse_paused_time() {
    paused(async || {
        for url in ["memory:", "memory:shared", "redis://127.0.0.1:1"] {
            if !cfg!(feature = "redis") && url.starts_with("redis") {
                continue;
            }
            match LockClient::connect(url).await {
                Err(LockError::Config { option: "runtime", problem, .. }) => {
                    assert!(problem.contains("LockClient::testing()"), "{problem}");
                }
                other => panic!("{url}: {other:?}"),
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        LockClient::connect("memory:").await.expect("time is not paused");
    });
}

#[test]
fn a_renewed_lock_is_held_for_as_long_as_its_body_takes() {
    paused(async || {
        let locks = LockClient::testing();
        with_client(locks.client(), pay(7, SECOND * 3600)).await.expect("renewed");
        let extended = locks.snapshot().renewals[0].1;
        assert!((300..=400).contains(&extended), "one for each third of the lease: {extended}");
        let limited = locks.lock("report").max_hold(SECOND * 10).run(sleep(SECOND * 20)).await;
        assert!(matches!(limited, Err(LockError::Lost { reason: LostReason::MaxHold, .. })));
    });
}

#[test]
fn tasks_take_turns_in_order() {
    paused(async || {
        let locks = LockClient::testing();
        let began = Instant::now();
        let calls = (0..5).map(|n| {
            let lock = locks.lock("turns").template("turns").wait(SECOND * 100);
            tokio::spawn(async move { lock.run(async { (n, sleep(SECOND).await).0 }).await })
        });
        let calls: Vec<_> = calls.collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.expect("no panic").expect("its turn"), n);
        }
        assert_about(began.elapsed(), SECOND * 5);
        let waited: Vec<u64> = locks.taken().iter().map(|taken| taken.waited.as_secs()).collect();
        assert_eq!(waited, [0, 1, 2, 3, 4]);
        let lingers = locks.lock("lingers").linger(SECOND);
        for _ in 0..2 {
            lingers.run(async {}).await.expect("free");
        }
        locks.assert_taken_in_order(&["lingers", "lingers"]);
    });
}

#[test]
fn calls_meet_their_script() {
    paused(async || {
        let locks = LockClient::testing();
        let call = async |id| with_client(locks.client(), pay(id, SECOND)).await;
        locks.when("order:<id>").busy().times(1);
        let began = Instant::now();
        assert!(matches!(call(1).await, Err(LockError::Busy { .. })));
        assert_about(began.elapsed(), SECOND * 30);
        call(1).await.expect("only the first call");

        locks.when("order:2").busy_for(SECOND * 7).named("a long transaction");
        let began = Instant::now();
        call(2).await.expect("after a while");
        assert_about(began.elapsed(), SECOND * 8);

        locks.when("order:3*").unavailable("the server is down");
        for id in [3, 33] {
            match call(id).await {
                Err(LockError::Unavailable { cause, waited, .. }) => {
                    assert_eq!(cause, "the server is down");
                    assert_about(waited, SECOND * 30);
                }
                other => panic!("{other:?}"),
            }
        }

        locks.when("order:4").lost_after(SECOND / 2, LostReason::Gone).times(1);
        match call(4).await {
            Err(LockError::Lost { reason: LostReason::Gone, held_for, .. }) => {
                assert_about(held_for, SECOND / 2);
            }
            other => panic!("{other:?}"),
        }
        let began = Instant::now();
        call(4).await.expect("only the first hold");
        assert_about(began.elapsed(), SECOND);

        locks.when("order:5").slow(SECOND).times(2);
        let began = Instant::now();
        call(5).await.expect("slow");
        assert_about(began.elapsed(), SECOND * 2);
        let short = locks.lock("order:5").wait(SECOND / 2).acquire().await;
        assert!(matches!(short, Err(LockError::Unavailable { .. })), "{short:?}");
        locks.when("order:55").slow(SECOND * 60).times(2);
        let began = Instant::now();
        call(55).await.expect("the call asks again after a response timeout");
        assert_about(began.elapsed(), SECOND * 3);
        let once = locks.lock("order:55").wait(Duration::ZERO).acquire().await;
        assert!(matches!(once, Err(LockError::Unavailable { .. })), "{once:?}");

        locks.when("order:6").unknown().times(2);
        call(6).await.expect("the call asks again");
        let once = locks.lock("order:6").wait(Duration::ZERO).acquire().await;
        assert!(matches!(once, Err(LockError::Unavailable { .. })), "{once:?}");
        call(6).await.expect("the grant is undone");
    });
}

#[test]
fn a_script_may_be_about_each_kind_of_lock() {
    paused(async || {
        let locks = LockClient::testing();
        locks.when("busy*").busy().times(4);
        let busy = |outcome: Result<(), LockError>| {
            assert!(matches!(outcome, Err(LockError::Busy { .. })), "{outcome:?}");
        };
        busy(locks.read_write("busy-rw").read().run(async {}).await);
        busy(locks.semaphore("busy-permits", 3).permits(1).run(async {}).await);
        busy(locks.lock_all(["a", "busy-b"]).run(async {}).await);
        busy(locks.lock("busy-fair").fair().run(async {}).await);
        locks.lock_all(["a", "busy-b"]).run(async {}).await.expect("the script is over");
        locks.when("two:*").lost_after(SECOND, LostReason::Taken).times(1);
        let lost = locks.lock_all(["two:a", "other"]).run(sleep(SECOND * 5)).await;
        let is_lost = matches!(lost, Err(LockError::Lost { reason: LostReason::Taken, .. }));
        assert!(is_lost, "{lost:?}");
    });
}

#[test]
fn only_the_scripted_hold_is_lost() {
    paused(async || {
        let locks = LockClient::testing();
        locks.when("k").lost_after(SECOND * 5, LostReason::Gone).times(1);
        locks.lock("k").run(sleep(SECOND)).await.expect("released before");
        locks.lock("k").run(sleep(SECOND * 20)).await.expect("another hold");
        locks.when("permits").lost_after(SECOND, LostReason::Gone).times(1);
        let [one, two] = [(); 2].map(|()| locks.semaphore("permits", 2).permits(1));
        let (one, two) = tokio::join!(one.run(sleep(SECOND * 3)), two.run(sleep(SECOND * 3)));
        assert_eq!([one.is_ok(), two.is_ok()].iter().filter(|held| **held).count(), 1);
    });
}

/// Each call counts once, also those that wait for each other.
#[test]
fn calls_count_for_a_script_wherever_they_wait() {
    paused(async || {
        let locks = LockClient::testing();
        locks.when("order:<id>").busy().times(3);
        let calls =
            [1, 1, 2, 1].map(|id| tokio::spawn(with_client(locks.client(), pay(id, SECOND))));
        let mut busy = 0;
        for call in calls {
            busy += usize::from(call.await.expect("no panic").is_err());
        }
        assert_eq!(busy, 3);
        locks.when("another:<id>").busy().optional();
        with_client(locks.client(), pay(7, SECOND)).await.expect("of another template");
        locks.when("set").unavailable("down");
        let set = locks.lock_all(["x", "y"]).template("set").wait(SECOND).acquire().await;
        assert!(matches!(set, Err(LockError::Unavailable { .. })), "{set:?}");
    });
}

#[test]
fn a_script_that_no_call_meets_fails_the_test() {
    let failure = |script: fn(&TestLocks)| {
        let test = || {
            paused(async || {
                let locks = LockClient::testing();
                script(&locks);
                with_client(locks.client(), pay(1, SECOND)).await.expect("free");
            });
        };
        let failed = catch_unwind(AssertUnwindSafe(test)).err();
        failed.map(|text| text.downcast_ref::<String>().expect("a message").clone())
    };
    let misspelt = failure(|locks| {
        locks.when("oder:<id>").busy().named("a conflict");
    });
    let text = misspelt.expect("nothing was scripted");
    assert!(text.contains("oder:<id> Busy (a conflict): at least one"), "{text}");
    let too_few = failure(|locks| {
        locks.when("order:<id>").slow(SECOND).times(2);
    });
    assert!(too_few.expect("one call").contains("1 more"));
    let optional = failure(|locks| {
        locks.when("oder:<id>").busy().optional();
    });
    assert_eq!(optional, None);
    let met = failure(|locks| {
        locks.when("order:<id>").slow(SECOND);
    });
    assert_eq!(met, None);
}

#[test]
fn locks_can_be_stolen_and_forgotten_by_the_store() {
    paused(async || {
        let locks = LockClient::testing();
        for (name, reason) in [("stolen", LostReason::Taken), ("gone", LostReason::Gone)] {
            let lock = locks.lock(name);
            let held = tokio::spawn(async move { lock.run(sleep(SECOND * 100)).await });
            sleep(SECOND).await;
            let other = (name == "stolen").then(|| locks.steal(name));
            if other.is_none() {
                locks.wipe();
            }
            match held.await.expect("no panic") {
                Err(LockError::Lost { reason: found, held_for, .. }) => {
                    assert_eq!(found, reason);
                    // At a renewal.
                    assert!((SECOND * 8..SECOND * 11).contains(&held_for), "{held_for:?}");
                }
                outcome => panic!("{outcome:?}"),
            }
        }
    });
}

#[test]
fn what_was_taken_is_recorded() {
    paused(async || {
        let locks = LockClient::builder().namespace("shop").testing().expect("valid");
        with_client(locks.client(), pay(7, SECOND)).await.expect("free");
        with_client(locks.client(), import(8, SECOND * 20)).await.expect_err("lost");
        let lock = locks.lock("outer");
        let inner = locks.lock("inner");
        lock.run(async { inner.run(async {}).await }).await.expect("free").expect("free");
        let guard = locks.lock("held").acquire().await.expect("free");
        locks.assert_taken("order:7");
        locks.assert_taken_in_order(&["order:7", "outer", "inner"]);
        for wrong in [&["inner", "outer"][..], &["order:8"]] {
            let check = || locks.assert_taken_in_order(wrong);
            let failed = catch_unwind(AssertUnwindSafe(check)).expect_err("it was not taken");
            let text = failed.downcast_ref::<String>().expect("a message");
            assert!(text.contains("was not taken") && text.contains("shop:outer"), "{text}");
        }
        let taken = locks.taken();
        assert_eq!(taken.len(), 5);
        assert_eq!((&*taken[0].key, taken[0].template), ("shop:order:7", "order:<id>"));
        assert_eq!(taken[0].function, Some(concat!(module_path!(), "::pay")));
        match taken[0].end {
            Some(TakenEnd::Released(held_for)) => assert_about(held_for, SECOND),
            other => panic!("{other:?}"),
        }
        assert_eq!(taken[1].end, Some(TakenEnd::Lost(LostReason::LeaseOver)));
        assert_eq!(taken[4].end, None);
        drop(guard);
    });
}

#[test]
fn an_outcome_that_no_call_meets_fails_the_test() {
    paused(async || {
        let locks = LockClient::testing();
        locks.when("order:*").busy().times(2).named("both calls");
        locks.lock("order:1").wait(SECOND).acquire().await.expect_err("busy");
        let failed = catch_unwind(AssertUnwindSafe(|| drop(locks))).expect_err("one is left");
        let text = failed.downcast_ref::<String>().expect("a message");
        assert!(text.contains("order:* Busy (both calls): 1 more"), "{text}");
    });
}

#[distributed_lock(key = "account:<from>")]
async fn debit(from: u32, to: u32) -> Result<(), LockError> {
    credit(to).await
}

#[distributed_lock(key = "account:<to>")]
async fn credit(to: u32) -> Result<(), LockError> {
    Ok(())
}

/// The calls do not meet.
#[test]
fn locks_that_are_taken_in_both_orders_are_found() {
    let found = catch_unwind(|| {
        paused(async || {
            let locks = LockClient::testing();
            let debit = async |from, to| with_client(locks.client(), debit(from, to)).await;
            debit(1, 2).await.expect("free");
            debit(1, 3).await.expect("free");
            debit(2, 1).await.expect("not reached");
        });
    });
    let failed = found.expect_err("found");
    let text = failed.downcast_ref::<String>().expect("a message");
    let functions = [concat!(module_path!(), "::debit"), concat!(module_path!(), "::credit")];
    for word in functions.iter().chain(&["possible deadlock", "\"account:1\"", "\"account:2\""]) {
        assert!(text.contains(word), "{text}");
    }
    paused(async || {
        let locks = LockClient::testing();
        for keys in [["a", "b"], ["b", "a"]] {
            locks.lock_all(keys).run(async {}).await.expect("together");
            let inner = locks.lock(keys[1]).wait(Duration::ZERO);
            let single = locks.lock(keys[0]).run(async { inner.run(async {}).await }).await;
            single.expect("free").expect("a single attempt does not wait");
        }
    });
}

#[test]
fn a_test_fails_although_nobody_awaits_the_task_that_panics() {
    let found = catch_unwind(|| {
        paused(async || {
            let locks = LockClient::testing();
            for (from, to) in [(1, 2), (2, 1)] {
                let call = tokio::spawn(with_client(locks.client(), debit(from, to)));
                let _ = call.await;
            }
        });
    });
    let failed = found.expect_err("found");
    let text = failed.downcast_ref::<String>().expect("a message");
    assert!(text.contains("possible deadlocks"), "{text}");
    paused(async || {
        let locks = LockClient::builder().deadlock_warnings(false).testing().expect("valid");
        for (from, to) in [(1, 2), (2, 1)] {
            with_client(locks.client(), debit(from, to)).await.expect("not looked for");
        }
    });
}

#[test]
fn a_body_knows_its_locks() {
    paused(async || {
        let locks = LockClient::builder().namespace("shop").testing().expect("valid");
        let inner = locks.lock("inner");
        let body = async {
            assert_locked!();
            assert_locked!("outer");
            inner.run(async { assert_eq!(held_keys(), ["inner", "outer"]) }).await.expect("free");
            let outside = tokio::spawn(async { held_keys() }).await.expect("no panic");
            assert_eq!(outside, [""; 0]);
            catch_unwind(|| assert_locked!("other")).expect_err("not held");
        };
        locks.lock("outer").run(body).await.expect("free");
        let failed = catch_unwind(|| assert_locked!()).expect_err("outside");
        assert_eq!(failed.downcast_ref::<&str>(), Some(&"no lock is held here"));
        pretend_locked(["outer"], async { assert_locked!(&String::from("outer")) }).await;
        let lost = async {
            locks.wipe();
            sleep(SECOND * 30).await;
        };
        locks.lock("lost").run(lost).await.expect_err("gone");
    });
}

#[test]
fn periods_and_leaders_follow_the_clock_as_well() {
    paused(async || {
        let locks = LockClient::testing();
        let work = locks.periodic("job", SECOND * 3600);
        work.run(sleep(SECOND)).await.expect("the first run");
        work.run(async {}).await.expect_err("once in an hour");
        sleep(SECOND * 3600).await;
        work.run(async {}).await.expect("the next period");
        let last = locks.last_run("job").await.expect("known").expect("recorded");
        assert_eq!(last.outcome, RunOutcome::Succeeded);

        let candidate = locks.leadership("reports");
        let leader = candidate.campaign().await.expect("free");
        let next = tokio::spawn(async move { candidate.campaign().await });
        sleep(SECOND * 600).await;
        assert!(leader.is_leader() && !next.is_finished());
        leader.resign().await.expect("leads");
        let next = next.await.expect("no panic").expect("elected");
        assert!(next.is_leader());
    });
}

#[test]
fn nothing_is_left_by_calls_that_are_cancelled() {
    paused(async || {
        let locks = LockClient::testing();
        locks.when("order:<id>").slow(SECOND);
        for part in 0..40 {
            let call = with_client(locks.client(), pay(7, SECOND));
            let _ = tokio::time::timeout(SECOND * part / 20, call).await;
        }
        locks.lock("order:7").wait(SECOND * 2).run(async {}).await.expect("free");
        sleep(SECOND).await;
        assert!(locks.stats().is_idle(), "{:?}", locks.stats());
    });
}

/// The outcomes of a user's own mapping.
#[test]
fn errors_can_be_made() {
    let all: [(LockError, AcquisitionOutcome); 5] = [
        (errors::busy("k"), AcquisitionOutcome::Busy),
        (errors::unavailable("k", "down"), AcquisitionOutcome::Unavailable),
        (errors::lost("k", LostReason::Gone), AcquisitionOutcome::Lost),
        (errors::denied("no"), AcquisitionOutcome::Denied),
        (errors::wrong_format("k", "list"), AcquisitionOutcome::WrongFormat),
    ];
    let is_transient = all.map(|(error, _)| error.is_transient());
    assert_eq!(is_transient, [true, true, true, false, false]);
    assert!(errors::busy("k").to_string().contains("another client holds the lock"));
    for error in [
        errors::invalid_key("k", "too long"),
        errors::would_deadlock("k"),
        errors::config("lease", "too short"),
    ] {
        assert!(!error.is_transient());
    }
}

/// Time that is not paused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_also_works_in_real_time() {
    let locks = LockClient::testing();
    let lock = locks.lock("k").lease(Duration::from_millis(100));
    let lost = lock.run(sleep(SECOND * 10)).await;
    assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::LeaseOver, .. })), "{lost:?}");
}

#[test]
fn without_a_runtime_there_is_no_client() {
    assert!(matches!(LockClient::builder().testing(), Err(LockError::Config { .. })));
    catch_unwind(LockClient::testing).expect_err("no runtime");
}
