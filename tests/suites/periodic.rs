//! Work that runs at most once per period.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lock_runtime::{
    Holder, HolderKind, LockClient, LockError, RunOutcome, Wait, distributed_lock, with_client,
};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, within};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{LEASE, client, on_every_store, until};

/// A period that does not end during a test, unless it began just before its end.
const LONG: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The shortest period.
const SHORT: Duration = Duration::from_secs(1);

fn is_busy<T>(result: &Result<T, LockError>) -> bool {
    matches!(result, Err(LockError::Busy { .. }))
}

on_every_store! {
    async fn a_period_has_one_run(pair: Pair) {
        let runs = Arc::new(AtomicU32::new(0));
        let mut calls = JoinSet::new();
        for n in 0..20 {
            let client = if n % 2 == 0 { &pair.one } else { &pair.two };
            let (work, runs) = (client.periodic("job", LONG).wait(LEASE * 5), Arc::clone(&runs));
            calls.spawn(async move {
                work.run(async { runs.fetch_add(1, Ordering::SeqCst) }).await
            });
        }
        let (mut ran, mut busy) = (0, 0);
        while let Some(call) = calls.join_next().await {
            let result = call.expect("no panic");
            ran += u32::from(result.is_ok());
            busy += u32::from(is_busy(&result));
        }
        assert_eq!((ran, busy, runs.load(Ordering::SeqCst)), (1, 19, 1));
        until_idle(&pair.one, LEASE).await;
    }

    async fn calls_that_are_repeated_run_once_in_each_period(pair: Pair) {
        let periods = Arc::new(Mutex::new(Vec::new()));
        let mut calls = JoinSet::new();
        for client in [&pair.one, &pair.two, &pair.one] {
            let work = client.periodic("job", SHORT).wait(Wait::Forever);
            let (client, periods) = (client.clone(), Arc::clone(&periods));
            calls.spawn(async move {
                loop {
                    let body = async {
                        let run = client.last_run("job").await.expect("up").expect("it runs");
                        let began = run.began.duration_since(SystemTime::UNIX_EPOCH);
                        let period = began.expect("later than 1970").as_secs();
                        periods.lock().expect("no panic").push(period);
                    };
                    match work.run(body).await {
                        Ok(()) => {}
                        Err(LockError::Busy { holder: Holder { kind: HolderKind::NextPeriod, lease_left: Some(left), .. }, .. }) => {
                            tokio::time::sleep(left).await;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let ran = || periods.lock().expect("no panic").len();
        assert!(until(SHORT * 30, || ran() >= 4).await.is_some(), "{} runs", ran());
        calls.shutdown().await;
        let periods = std::mem::take(&mut *periods.lock().expect("no panic"));
        assert!(periods.is_sorted_by(|one, next| one < next), "two runs in one period: {periods:?}");
    }

    /// The periods during the body have no run of their own, and no run beside it.
    async fn a_body_that_takes_longer_than_its_period_has_no_run_beside_it(pair: Pair) {
        let inside = Arc::new(AtomicU32::new(0));
        let body = |inside: &Arc<AtomicU32>, time| {
            let inside = Arc::clone(inside);
            async move {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two runs at a time");
                tokio::time::sleep(time).await;
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        let long = tokio::spawn(pair.one.periodic("job", SHORT).run(body(&inside, SHORT * 5 / 2)));
        let begun = || inside.load(Ordering::SeqCst) == 1;
        assert!(until(LEASE * 20, begun).await.is_some(), "it runs");
        let waits = pair.two.periodic("job", SHORT).wait(Wait::Forever).run(body(&inside, SHORT / 10));
        let waits = tokio::spawn(waits);
        let mut refused = 0;
        while !long.is_finished() {
            let call = pair.two.periodic("job", SHORT).wait(Duration::ZERO).run(async {}).await;
            refused += u32::from(is_busy(&call));
            tokio::time::sleep(SHORT / 10).await;
        }
        assert!(refused > 2, "{refused} calls in its periods were refused");
        long.await.expect("no panic").expect("its lock was renewed all the time");
        let next = within(SHORT * 20, waits).await.expect("soon").expect("no second run");
        assert!(next.is_ok() || is_busy(&next), "{next:?}");
        assert!(pair.one.last_run("job").await.expect("up").is_some_and(|last| last.ended.is_some()));
    }

    async fn a_failed_run_counts_unless_it_is_repeated(pair: Pair) {
        let fails = async || Err::<(), _>("failed");
        let once = pair.one.periodic("once", LONG).wait(Duration::ZERO);
        assert_eq!(once.run_fallible(fails()).await, Ok(Err("failed")));
        assert!(is_busy(&once.run_fallible(fails()).await));
        let last = pair.two.last_run("once").await.expect("up").expect("it has run");
        assert!(last.outcome == RunOutcome::Failed && last.ended.is_some());

        let repeated = pair.one.periodic("repeated", LONG).wait(LEASE).retry_failed();
        for _ in 0..3 {
            assert_eq!(repeated.run_fallible(fails()).await, Ok(Err("failed")));
        }
        let other = pair.two.periodic("repeated", LONG).wait(LEASE).retry_failed();
        assert_eq!(other.run_fallible(async { Ok::<_, ()>(7) }).await, Ok(Ok(7)));
        assert!(is_busy(&repeated.clone().wait(LEASE / 10).run_fallible(fails()).await));
        let last = pair.one.last_run("repeated").await.expect("up").expect("it has run");
        assert_eq!(last.outcome, RunOutcome::Succeeded);
    }

    async fn a_run_that_is_cancelled_or_panics_counts_unless_it_is_repeated(pair: Pair) {
        for (key, repeats) in [("once", false), ("repeated", true)] {
            let work = pair.one.periodic(key, LONG).wait(LEASE * 2);
            let work = if repeats { work.retry_failed() } else { work };
            let call = timeout(LEASE, work.run(std::future::pending::<()>()));
            assert!(call.await.is_err(), "cancelled");
            until_idle(&pair.one, LEASE).await;
            let again = pair.two.periodic(key, LONG).wait(LEASE);
            let again = if repeats { again.retry_failed() } else { again };
            let panics = tokio::spawn(async move { again.run(async { panic!("on purpose") }).await });
            match panics.await {
                Err(error) => assert!(error.is_panic() && repeats),
                Ok(result) => assert!(is_busy(&result) && !repeats),
            }
            until_idle(&pair.two, LEASE).await;
            let result = work.clone().wait(LEASE).run(async {}).await;
            assert_eq!(result.is_ok(), repeats, "{result:?}");
        }
    }

    async fn the_last_run_can_be_read(pair: Pair) {
        assert_eq!(pair.two.last_run("job").await, Ok(None));
        let before = SystemTime::now() - Duration::from_secs(2);
        let work = pair.one.periodic("job", LONG);
        let running = work.run(async { pair.two.last_run("job").await.expect("up") });
        let during = running.await.expect("free").expect("recorded");
        assert!(during.began > before && during.ended.is_none());
        assert_eq!(during.outcome, RunOutcome::Running);
        assert!(during.by.contains(&format!("pid {}", std::process::id())), "{}", during.by);
        let after = pair.two.last_run("job").await.expect("up").expect("recorded");
        assert_eq!((after.began, after.outcome), (during.began, RunOutcome::Succeeded));
        assert!(after.ended.expect("over") >= after.began);
    }

    async fn a_run_inside_the_body_of_the_same_lock_is_an_error(pair: Pair) {
        let client = pair.one.clone();
        let inner = client.lock("job").run(async { client.periodic("job", LONG).run(async {}).await });
        match inner.await.expect("free") {
            Err(LockError::Config { option: "every", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Nothing but the record of the run stays, and a call knows at once when the next period begins.
#[tokio::test]
async fn a_call_in_a_period_that_has_had_its_run_does_not_wait_in_vain() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let work = client.periodic("job", LONG).wait(Duration::from_secs(3600));
    work.run(tokio::time::sleep(LEASE * 2)).await.expect("free");
    match work.run(async {}).await {
        Err(LockError::Busy {
            holder: Holder { kind: HolderKind::NextPeriod, lease_left: Some(left), .. },
            ..
        }) => assert!(left <= LONG),
        other => panic!("{other:?}"),
    }
    until_idle(&client, LEASE).await;
    assert_eq!(server.pttl("job"), -2);
    let keys: Vec<String> = server.command(&["KEYS", "lock_run:*"]);
    let [record] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!(server.command::<String>(&["TYPE", record]), "hash");
    let kept = server.pttl(record);
    assert!((9 * 7 * 86_400_000..=10 * 7 * 86_400_000).contains(&kept), "{kept} ms");
}

/// A body that takes longer than the period does not block the next one.
#[tokio::test]
async fn a_run_that_ends_in_the_next_period_leaves_that_period_free() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let work = client.periodic("job", SHORT);
    work.run(tokio::time::sleep(SHORT * 3 / 2)).await.expect("free");
    work.run(async {}).await.expect("the next period");
}

#[tokio::test]
async fn periods_out_of_range_are_errors() {
    let client = LockClient::memory();
    for every in [Duration::ZERO, Duration::from_millis(999), LONG + SHORT] {
        match client.periodic("job", every).run(async {}).await {
            Err(LockError::Config { option: "every", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(
        client.periodic("", LONG).run(async {}).await,
        Err(LockError::InvalidKey { .. })
    ));
    assert!(matches!(client.last_run("lock_run:x").await, Err(LockError::InvalidKey { .. })));
}

#[distributed_lock(key = "report:<day>", every = "7d", wait = "0s", on_busy = Ok(false))]
async fn report(day: u32) -> Result<bool, LockError> {
    Ok(true)
}

#[distributed_lock(key = "import", every = LONG, retry_failed = true, wait = "1s", guard = held)]
async fn import(succeeds: bool) -> Result<u64, LockError> {
    if succeeds { held.fencing_token().await } else { Err(LockError::ShutDown) }
}

#[distributed_lock(key = "sweep", every = "1h", wait = "0s", on_busy = (), when = enabled)]
async fn sweep(runs: &AtomicU32, enabled: bool) {
    runs.fetch_add(1, Ordering::SeqCst);
}

#[tokio::test]
async fn an_annotated_function_runs_once_per_period() {
    with_client(LockClient::memory(), async {
        assert_eq!(
            (report(1).await, report(1).await, report(2).await),
            (Ok(true), Ok(false), Ok(true))
        );
        assert_eq!(import(false).await, Err(LockError::ShutDown));
        assert!(import(true).await.expect("repeated") > 0);
        assert!(is_busy(&import(true).await));
        let runs = AtomicU32::new(0);
        for enabled in [true, true, false, false] {
            sweep(&runs, enabled).await;
        }
        // Once in this period, or twice if it has just ended, and twice without a lock.
        assert!((3..=4).contains(&runs.load(Ordering::SeqCst)));
    })
    .await;
}

/// Has a method with the name that the macro would use if it were careless.
trait Failing {
    fn has_failed(&self) -> bool {
        true
    }
}

impl<T> Failing for T {}

#[distributed_lock(key = "endless", every = "7d", wait = "0s", or_else = |error| panic!("{error}"))]
async fn never_ends() -> ! {
    std::future::pending().await
}

#[distributed_lock(key = "future", every = "7d", wait = "0s")]
fn returns_a_future(succeeds: bool) -> impl Future<Output = Result<u32, LockError>> + Send {
    async move {
        if !succeeds {
            Err(LockError::ShutDown)?;
        }
        Ok(1)
    }
}

#[distributed_lock(key = "converted", every = "7d", retry_failed = true, wait = "0s")]
fn converts(succeeds: bool) -> impl Future<Output = JobResult<u32>> {
    #[allow(clippy::useless_conversion)]
    async move {
        if succeeds { Ok(1) } else { Err(LockError::ShutDown) }.into()
    }
}

#[distributed_lock(key = "borrowed", every = "7d", wait = "0s")]
async fn borrows<'a>(text: &'a str, _other: &str) -> Result<&'a str, LockError> {
    Ok(text)
}

#[distributed_lock(
    key = "any",
    every = "7d",
    retry_failed = true,
    wait = "0s",
    or_else = |error| panic!("{error}")
)]
async fn generic<T: Send>(result: T) -> T {
    result
}

type JobResult<T> = std::result::Result<T, LockError>;

#[distributed_lock(key = "boxed", every = "7d", retry_failed = true, wait = "0s")]
fn boxed(succeeds: bool) -> std::pin::Pin<Box<dyn Future<Output = JobResult<()>> + Send>> {
    Box::pin(async move { if succeeds { Ok(()) } else { Err(LockError::ShutDown) } })
}

#[tokio::test]
async fn every_shape_of_function_can_be_periodic() {
    with_client(LockClient::memory(), async {
        assert_eq!(returns_a_future(true).await, Ok(1));
        assert!(is_busy(&returns_a_future(true).await));
        // The output of a generic function is no `Result` for the attribute, so it has not failed.
        assert_eq!(generic(Err::<(), _>(7)).await, Err(7));
        assert_eq!(converts(false).await, Err(LockError::ShutDown));
        assert_eq!(converts(true).await, Ok(1));
        assert_eq!(borrows("text", "").await, Ok("text"));
        assert_eq!(boxed(false).await, Err(LockError::ShutDown));
        assert_eq!(boxed(true).await, Ok(()));
        assert!(timeout(LEASE / 10, never_ends()).await.is_err());
        assert!(().has_failed());
        assert!(is_busy(&boxed(true).await));
    })
    .await;
}
