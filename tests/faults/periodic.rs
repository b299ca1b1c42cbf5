//! Faults of processes that run work once per period.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{
    Holder, HolderKind, LockClient, LockError, LostReason, Periodic, ReleaseMode, RunOutcome, Wait,
    distributed_lock,
};
use lock_tests::{Helper, Proxy, RedisServer, running_time};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, client_with_lease, milliseconds, number, until, until_idle};

/// Long enough that a busy machine runs the work again in the same period.
const PERIOD: Duration = Duration::from_secs(3);

/// Twenty processes run work once per period, and are killed and replaced at random. Returns how many
/// runs were begun and completed in each of the periods from the second to the last but one.
async fn run_with_kills(how: &str, periods: u32) -> Vec<(u64, u64)> {
    let (server, register) = (RedisServer::start(), RedisServer::start());
    let (url, counters) = (server.url(), register.plain_url());
    // Without kills, no process loses its lock, even on a busy machine.
    let lease = if how == "recipe" { LEASE * 10 } else { LEASE / 2 };
    let (lease, every) = (milliseconds(lease), milliseconds(PERIOD));
    let args = ["periodic", &url, &counters, "job", &lease, &every, how];
    let start = || Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    let connected = || register.command::<String>(&["CLIENT", "LIST"]).lines().count();
    let mut processes: Vec<Helper> = (0..20).map(|_| start()).collect();
    let now = || {
        let (seconds, _): (u64, u64) = server.command(&["TIME"]);
        seconds / PERIOD.as_secs()
    };
    // They connect to the counters last, and wait for the key then. One connection is the one that counts.
    let all = until(LEASE * 60, || connected() > processes.len()).await;
    assert!(all.is_some(), "{} connections", connected());
    let (first, end) = (now() + 1, Instant::now() + PERIOD * periods);
    let observer = client(&server.url()).await;
    while Instant::now() < end {
        if how == "recipe" {
            sleep(PERIOD / 10).await;
            continue;
        }
        if fastrand::bool() {
            // Some processes are killed just when the period begins: when a lock is granted, or its run
            // is recorded, begins, or has ended.
            let (seconds, micros): (u64, u64) = server.command(&["TIME"]);
            let since =
                Duration::from_secs(seconds % PERIOD.as_secs()) + Duration::from_micros(micros);
            sleep(PERIOD.saturating_sub(since) + PERIOD * fastrand::u32(..20) / 1_000).await;
            for _ in 0..3 {
                let victim = fastrand::usize(..processes.len());
                processes[victim].kill();
                processes[victim] = start();
            }
        }
        let run = observer.last_run("job").await.expect("up");
        let Some(run) = run.filter(|run| run.ended.is_none()) else {
            sleep(PERIOD / 100).await;
            continue;
        };
        // The process that runs is killed in the middle of its run, and then one that waits.
        let is_runner = |process: &Helper| run.by.contains(&format!("pid {})", process.id()));
        let runner = processes.iter().position(is_runner).unwrap_or_default();
        for victim in [runner, fastrand::usize(..processes.len())] {
            processes[victim].kill();
            processes[victim] = start();
        }
        // At most every second run is killed.
        sleep(PERIOD * fastrand::u32(12..18) / 10).await;
    }
    let last = now();
    drop(processes);
    let count = |name: &str, period| -> u64 {
        let counter: Option<u64> = register.command(&["GET", &format!("{name}:{period}")]);
        counter.unwrap_or_default()
    };
    (first..last).map(|period| (count("begun", period), count("done", period))).collect()
}

#[tokio::test]
async fn a_period_never_has_two_runs_although_processes_are_killed() {
    let periods = number("LOCK_PERIODS", 5).try_into().expect("small");
    let runs = run_with_kills("once", periods).await;
    assert!(runs.iter().all(|(begun, _)| *begun <= 1), "two runs in one period: {runs:?}");
    let completed = runs.iter().filter(|(_, done)| *done == 1).count();
    assert!(completed > 0 && completed < runs.len(), "some of the runs were killed: {runs:?}");
}

#[tokio::test]
async fn each_period_has_a_run_that_succeeds_if_failed_runs_are_repeated() {
    let periods = number("LOCK_PERIODS", 5).try_into().expect("small");
    let runs = run_with_kills("retried", periods).await;
    assert!(runs.iter().all(|(_, done)| *done >= 1), "a period without a run: {runs:?}");
}

#[tokio::test]
async fn the_recipe_for_twenty_replicas_runs_once_in_each_period() {
    let runs = run_with_kills("recipe", 4).await;
    assert!(runs.len() > 1 && runs.iter().all(|run| *run == (1, 1)), "{runs:?}");
}

/// A period that does not end during a test, unless it began just before its end.
const LONG: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A server, clients with and without a proxy between, and the key of the record of `job`, which
/// exists no more.
struct RunFixture {
    server: RedisServer,
    proxy: Proxy,
    client: LockClient,
    direct: LockClient,
    record: String,
}

impl RunFixture {
    async fn new(server: RedisServer) -> Self {
        let proxy = Proxy::to(server.port());
        let behind = client(&proxy.url()).await;
        let direct = client(&server.url()).await;
        direct.periodic("job", LONG).run(async {}).await.expect("the first run");
        let records: Vec<String> = server.command(&["KEYS", "lock_run:*"]);
        let [record] = &records[..] else { panic!("{records:?}") };
        server.tell(&["DEL", record]);
        Self { server, proxy, client: behind, direct, record: record.clone() }
    }

    fn work(&self, repeats: bool) -> Periodic {
        let work = self.client.periodic("job", LONG);
        if repeats { work.retry_failed() } else { work }
    }

    /// Asserts that there was a run in this period.
    async fn assert_has_run(&self) {
        let again = self.direct.periodic("job", LONG).retry_failed().run(async {}).await;
        let is_over = matches!(
            again,
            Err(LockError::Busy {
                holder: Holder { kind: HolderKind::NextPeriod, lease_left: Some(_), .. },
                ..
            })
        );
        assert!(is_over, "{again:?}");
    }

    async fn outcome(&self) -> Option<RunOutcome> {
        self.direct.last_run("job").await.expect("up").map(|run| run.outcome)
    }
}

/// The request is repeated, and finds that it was executed.
#[tokio::test]
async fn a_run_whose_start_or_end_was_not_answered_is_the_only_one() {
    for at_end in [false, true] {
        for repeats in [false, true] {
            let fixture = RunFixture::new(RedisServer::start()).await;
            let (runs, lose) = (AtomicU32::new(0), || fixture.proxy.lose_reply_to(&fixture.record));
            if !at_end {
                lose();
            }
            let body = async {
                if at_end {
                    lose();
                }
                runs.fetch_add(1, Ordering::SeqCst)
            };
            assert_eq!(fixture.work(repeats).run(body).await, Ok(0), "{at_end} {repeats}");
            assert_eq!(fixture.proxy.triggered(), 1);
            fixture.assert_has_run().await;
            assert_eq!(fixture.outcome().await, Some(RunOutcome::Succeeded));
        }
    }
}

/// The request is held back until the body has begun, and the period in which it was sent is over.
#[tokio::test]
async fn a_late_request_for_the_start_of_a_run_does_not_take_the_next_period() {
    let fixture = RunFixture::new(RedisServer::with_own_clock(&[])).await;
    let client = client_with_lease(&fixture.proxy.url(), LEASE * 60).await;
    let hour = Duration::from_secs(3600);
    let (seconds, _): (u64, u64) = fixture.server.command(&["TIME"]);
    // Of the next hour, because this one may be nearly over.
    let before_end = i64::try_from(7200 - seconds % 3600 - 10).expect("small");
    fixture.server.set_clock(before_end);
    fixture.proxy.hold(&fixture.record);
    let delivered = Notify::new();
    let body = async {
        assert_eq!(fixture.proxy.triggered(), 1);
        fixture.server.set_clock(before_end + 15);
        let requests = fixture.server.calls("evalsha");
        fixture.proxy.deliver();
        let is_served = || fixture.server.calls("evalsha") > requests;
        assert!(until(LEASE * 10, is_served).await.is_some(), "the request arrives");
        delivered.notify_one();
        pending::<()>().await;
    };
    tokio::select! {
        outcome = client.periodic("job", hour).run(body) => panic!("{outcome:?}"),
        () = delivered.notified() => {}
    }
    let next = fixture.direct.periodic("job", hour).run(async {}).await;
    assert!(next.is_ok(), "the next period is taken: {next:?}");
}

#[distributed_lock(key = "job", every = "7d", client = client, on_lost = "report")]
async fn reporting(client: &LockClient, mishap: impl FnOnce()) -> Result<&'static str, LockError> {
    mishap();
    Ok("done")
}

/// The body has ended while the lock was held.
#[tokio::test]
async fn the_output_of_a_run_is_not_lost_with_the_lock_while_its_end_is_recorded() {
    for reports in [false, true] {
        let fixture = RunFixture::new(RedisServer::start()).await;
        let mishap = || {
            fixture.proxy.hold(&fixture.record);
        };
        let call = async {
            if reports {
                reporting(&fixture.client, mishap).await
            } else {
                let body = async {
                    mishap();
                    "done"
                };
                fixture.work(false).run(body).await
            }
        };
        let delete = async {
            assert!(until(LEASE * 5, || fixture.proxy.triggered() == 1).await.is_some());
            fixture.server.tell(&["DEL", "job"]);
        };
        let (result, ()) = tokio::join!(call, delete);
        match (reports, result) {
            (false, result) => assert_eq!(result, Ok("done")),
            (true, Err(LockError::Lost { reason: LostReason::Gone, .. })) => {}
            (true, other) => panic!("{other:?}"),
        }
        fixture.proxy.deliver();
        fixture.assert_has_run().await;
        until_idle(&fixture.client, LEASE * 5).await;
    }
}

/// A run that counts from its start counts also if the call was dropped.
#[tokio::test]
async fn a_call_that_is_dropped_at_the_start_or_the_end_frees_the_lock() {
    for at_end in [false, true] {
        for repeats in [false, true] {
            let fixture = RunFixture::new(RedisServer::start()).await;
            let hold = || fixture.proxy.hold(&fixture.record);
            if !at_end {
                hold();
            }
            let body = async {
                if at_end {
                    hold();
                }
            };
            let call = timeout(LEASE / 4, fixture.work(repeats).run(body));
            assert!(call.await.is_err(), "{at_end} {repeats}");
            fixture.proxy.deliver();
            until_idle(&fixture.client, LEASE * 5).await;
            // At the start, the request may have come after the release, and at the end of a run that
            // may be repeated as well. Then nothing counts.
            let again = fixture.work(repeats).run(async {}).await;
            assert!(again.is_ok() || at_end || !repeats, "{again:?}");
            assert!(again.is_err() || !at_end || repeats, "{again:?}");
            fixture.assert_has_run().await;
        }
    }
}

/// The lock goes from one to the next without a request if it is handed off.
#[tokio::test]
async fn calls_of_one_process_run_once() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (runs, mut calls) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for _ in 0..20 {
        let (work, runs) = (client.periodic("job", LONG).wait(LEASE * 20), Arc::clone(&runs));
        let body = async move { runs.fetch_add(1, Ordering::SeqCst) };
        calls.spawn(async move { work.run(body).await });
    }
    while let Some(call) = calls.join_next().await {
        let result = call.expect("no panic");
        assert!(matches!(result, Ok(_) | Err(LockError::Busy { .. })), "{result:?}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1, "two runs in one period");
}

/// Checks in its destructor, after a while, whether the lock exists.
struct SlowDrop<'a>(&'a RedisServer, &'a AtomicU32);

impl Drop for SlowDrop<'_> {
    fn drop(&mut self) {
        std::thread::sleep(LEASE / 5);
        self.1.fetch_add(u32::from(self.0.exists("job")), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_body_is_dropped_before_the_lock_of_its_run_is_free() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (held, limit) = (AtomicU32::new(0), LEASE / 2);
    for limits in [false, true] {
        let work = client.periodic("job", LONG).retry_failed();
        let work = if limits { work.max_hold(limit) } else { work };
        let body = async {
            let _slow = SlowDrop(&server, &held);
            std::future::pending::<()>().await;
        };
        match timeout(if limits { LEASE * 5 } else { limit }, work.run(body)).await {
            Err(_) => assert!(!limits),
            Ok(lost) => assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}"),
        }
        until_idle(&client, LEASE * 5).await;
    }
    assert_eq!(held.load(Ordering::SeqCst), 2, "a destructor has run without the lock");
}

/// Its fields are no times, or are missing: it counts as none, and costs no connection.
#[tokio::test]
async fn a_record_that_was_changed_by_hand_counts_as_none() {
    let fixture = RunFixture::new(RedisServer::start()).await;
    let connections = |server: &RedisServer| -> u64 {
        let info: String = server.command(&["INFO", "stats"]);
        let count = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.expect("a field").trim().parse().expect("a number")
    };
    fixture.direct.periodic("job", LONG).run(async {}).await.expect("free");
    let before = connections(&fixture.server);
    let mut own = 0;
    for began in ["abc", "1.5", "-5", "nan", "", "99999999999999999999"] {
        fixture.server.tell(&["HSET", &fixture.record, "began", began]);
        assert_eq!(fixture.direct.last_run("job").await, Ok(None), "{began}");
        assert_eq!(fixture.direct.periodic("job", LONG).run(async {}).await, Ok(()), "{began}");
        // Each command of the test has a connection of its own.
        own += 1;
    }
    fixture.server.tell(&["HDEL", &fixture.record, "began"]);
    assert_eq!(fixture.direct.periodic("job", LONG).run(async {}).await, Ok(()));
    assert!(connections(&fixture.server) <= before + own + 2, "connections were closed");
}

/// The record has a foreign value: nothing runs, and no output is lost.
#[tokio::test]
async fn a_record_that_cannot_be_written_is_an_error_before_the_run_only() {
    let fixture = RunFixture::new(RedisServer::start()).await;
    let replace = || fixture.server.tell(&["SET", &fixture.record, "stranger", "EX", "1000"]);
    // An error that no wait can mend does not use it up.
    let client = LockClient::builder().url(fixture.server.url()).lease(LEASE).wait(Wait::Forever);
    let client = client.connect().await.expect("up");
    let work = client.periodic("job", LONG);
    let body = async {
        replace();
        "done"
    };
    assert_eq!(work.run(body).await, Ok("done"));
    until_idle(&client, LEASE).await;
    let error = work.run(async { panic!("runs without a record") }).await.expect_err("foreign");
    let names_it = |error: &LockError| {
        matches!(error, LockError::WrongFormat { key, found, .. }
            if *key == fixture.record && found == "string")
    };
    assert!(names_it(&error), "{error}");
    until_idle(&client, LEASE).await;
    let error = client.last_run("job").await.expect_err("foreign");
    assert!(names_it(&error), "{error}");
    assert!(!fixture.server.exists("job"));
}

/// A clock that is set back does not begin the period anew.
#[tokio::test]
async fn a_period_has_one_run_although_the_clock_of_the_server_is_set_back() {
    let fixture = RunFixture::new(RedisServer::with_own_clock(&[])).await;
    let hour = Duration::from_secs(3600);
    let (seconds, _): (u64, u64) = fixture.server.command(&["TIME"]);
    // Half an hour into a period of the server.
    let ahead = i64::try_from(2 * 3600 - seconds % 3600 - 1800).expect("small");
    fixture.server.set_clock(ahead);
    fixture.direct.periodic("job", hour).run(async {}).await.expect("free");
    for by in [0, -600, 600] {
        fixture.server.set_clock(ahead + by);
        let again = fixture.direct.periodic("job", hour).run(async {}).await;
        assert!(matches!(again, Err(LockError::Busy { .. })), "{by}: {again:?}");
    }
    fixture.server.set_clock(ahead + 1900);
    fixture.direct.periodic("job", hour).run(async {}).await.expect("the next period");
    // The clock is set back to the period before, which has had its run as well.
    for at in [1700, 1800, 1900] {
        fixture.server.set_clock(ahead + at);
        let again = fixture.direct.periodic("job", hour).run(async {}).await;
        assert!(matches!(again, Err(LockError::Busy { .. })), "{at}: {again:?}");
    }
    // A clock that was wrong by days does not block the work for days.
    fixture.server.set_clock(ahead - 4 * 3600);
    fixture.direct.periodic("job", hour).run(async {}).await.expect("another period");
}

#[tokio::test]
async fn the_end_of_a_run_that_cannot_be_recorded_delays_its_output_only_briefly() {
    let server = RedisServer::plain(&["--maxmemory-policy", "noeviction"]);
    let client = LockClient::builder().url(server.url()).lease(LEASE).wait(Wait::Forever);
    let client = client.connect().await.expect("up");
    let body = async {
        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        Instant::now()
    };
    let ended = client.periodic("job", LONG).run(body).await.expect("free");
    // Two response timeouts, of a third of the lease each, and the release, on a machine that may be busy.
    assert!(running_time(ended) < LEASE * 2, "{:?}", ended.elapsed());
}

/// Neither a linger time nor releases in the background change what a period means.
#[tokio::test]
async fn the_defaults_of_the_client_apply_to_runs_and_the_key_is_free_after_them() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE).linger(LEASE * 3 / 10);
    let builder = builder.release(ReleaseMode::Background).wait(LEASE);
    let client = builder.connect().await.expect("up");
    let work = client.periodic("job", LONG);
    work.run(async {}).await.expect("free");
    let free = until(LEASE / 4, || !server.exists("job")).await;
    assert!(free.is_some(), "it does not linger");
    assert!(work.run(async {}).await.is_err());
}
