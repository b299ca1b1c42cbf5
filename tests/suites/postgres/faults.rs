//! Faults of one server and of its connections.

use std::time::{Duration, Instant};

use lock_runtime::store::POSTGRES_SCHEMA;
use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::support::{LEASE, calls_go_on_beside_a_blocked_runtime, outcomes_of};
use lock_tests::{DatabaseServer, running_time};

use crate::{Database, session_of};

/// A server of this test, with the table.
pub(crate) async fn alone(settings: &[&str]) -> DatabaseServer {
    let server = DatabaseServer::postgres_alone(settings, &[]);
    let session = session_of(&server.url("postgres")).await;
    session.batch_execute(POSTGRES_SCHEMA).await.expect("valid SQL");
    server
}

pub(crate) async fn client_of(url: &str, lease: Duration) -> LockClient {
    let client = LockClient::builder().url(url).lease(lease).connect().await;
    client.expect("the server is up")
}

/// Makes attempts until one has a result.
pub(crate) async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + LEASE * 60;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(LEASE / 20).await;
    }
}

#[tokio::test]
async fn locks_survive_a_server_that_is_killed_and_started_again() {
    let mut server = alone(&[]).await;
    let url = server.url("postgres");
    let (one, two) = (client_of(&url, LEASE * 60).await, client_of(&url, LEASE).await);
    let guard = one.lock("long").acquire().await.expect("free");
    let short = two.lock("short").acquire().await.expect("free");
    server.kill();
    // The holder of a lock that cannot be renewed is told when its lease ends.
    assert_eq!(short.lost().await, LostReason::RenewalFailed);
    server.restart();
    let busy = eventually("no answer after the restart", async || {
        match two.lock("long").wait(Duration::ZERO).acquire().await {
            Err(LockError::Busy { .. }) => Some(()),
            Err(error) => {
                assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
                None
            }
            Ok(_) => panic!("the lock has another holder"),
        }
    });
    busy.await;
    assert!(guard.is_held());
    guard.release().await.expect("held");
    two.lock("long").wait(LEASE * 60).acquire().await.expect("free").release().await.expect("held");
}

#[tokio::test]
async fn a_body_ends_while_the_server_is_frozen_and_another_client_waits_for_its_thaw() {
    let mut server = alone(&[]).await;
    let url = server.url("postgres");
    let (one, two) = (client_of(&url, LEASE).await, client_of(&url, LEASE).await);
    let lock = one.lock("k");
    let (started, began) = tokio::sync::oneshot::channel();
    let body = tokio::spawn(async move {
        let body = async {
            started.send(()).expect("the test waits");
            std::future::pending::<()>().await;
        };
        lock.run(body).await
    });
    began.await.expect("the body starts");
    // The control: the body goes on while the server answers.
    tokio::time::sleep(LEASE * 3).await;
    assert!(!body.is_finished());
    server.freeze();
    let frozen = Instant::now();
    match body.await.expect("no panic") {
        Err(LockError::Lost { reason: LostReason::RenewalFailed, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(running_time(frozen) < LEASE * 2, "{:?}", frozen.elapsed());
    let other = tokio::spawn(two.lock("k").wait(LEASE * 120).acquire());
    tokio::time::sleep(LEASE * 2).await;
    assert!(!other.is_finished());
    server.thaw();
    other.await.expect("no panic").expect("free").release().await.expect("held");
}

/// The control of `locks_survive_a_server_that_is_killed_and_started_again`: a server that answers before it has written.
#[tokio::test]
async fn a_crash_can_lose_a_lock_without_synchronous_commit() {
    let mut server = alone(&["synchronous_commit=off", SLOW_WRITER]).await;
    let url = server.url("postgres");
    let (one, two) = (client_of(&url, LEASE * 60).await, client_of(&url, LEASE * 60).await);
    // What the start of the server has left to write.
    session_of(&url).await.batch_execute("CHECKPOINT").await.expect("a superuser");
    let guard = one.lock("k").acquire().await.expect("free");
    server.kill();
    server.restart();
    let other = eventually("no answer after the restart", async || {
        match two.lock("k").wait(Duration::ZERO).acquire().await {
            Err(LockError::Unavailable { .. }) => None,
            other => Some(other.expect("the lock is forgotten")),
        }
    });
    let other = other.await;
    assert!(other.is_held() && guard.is_held(), "two holders");
}

#[tokio::test]
async fn a_crash_loses_no_acquired_lock_although_releases_do_not_wait_for_the_disk() {
    let mut server = alone(&[SLOW_WRITER]).await;
    let url = server.url("postgres");
    let (one, two) = (client_of(&url, LEASE * 30).await, client_of(&url, LEASE * 30).await);
    // What the start of the server has left to write.
    session_of(&url).await.batch_execute("CHECKPOINT").await.expect("a superuser");
    let mut kept = Vec::new();
    for number in 0..20 {
        let released = one.lock("released").acquire().await.expect("free");
        released.release().await.expect("held");
        kept.push(one.lock(format!("kept:{number}")).acquire().await.expect("free"));
    }
    server.kill();
    server.restart();
    for guard in &kept {
        let key = guard.key();
        let answer = eventually("no answer after the restart", async || {
            match two.lock(key).wait(Duration::ZERO).acquire().await.map(drop) {
                Err(LockError::Unavailable { .. }) => None,
                other => Some(other),
            }
        });
        let answer = answer.await;
        assert!(matches!(answer, Err(LockError::Busy { .. })), "{key} is forgotten: {answer:?}");
        assert!(guard.is_held());
    }
}

/// The price: the key stays taken until the lease ends, as if the holder had died.
#[tokio::test]
async fn a_release_that_a_crash_forgets_frees_the_key_when_the_lease_ends() {
    let mut server = alone(&[SLOW_WRITER]).await;
    let url = server.url("postgres");
    let client = client_of(&url, LEASE).await;
    let (mut forgotten, mut last) = (0, 0);
    // The server may write a release early, because it has filled a page.
    for _ in 0..5 {
        let guard = client.lock("k").lease(LEASE * 3).wait(LEASE * 60).acquire().await;
        let guard = guard.expect("when the last lease has ended");
        let token = guard.fencing_token().await.expect("held");
        assert!(token > last, "{token} after {last}");
        last = token;
        guard.release().await.expect("held");
        server.kill();
        server.restart();
        let row = "SELECT FROM distributed_locks WHERE key = 'k'";
        let session = session_of(&url).await;
        forgotten += session.query(row, &[]).await.expect("the table").len();
    }
    assert!(forgotten > 0, "each release was on the disk when it had an answer");
    let next = client.lock("k").wait(LEASE * 60).acquire().await.expect("when the lease has ended");
    next.release().await.expect("held");
}

/// The server writes what no commit waits for as late as it can.
const SLOW_WRITER: &str = "wal_writer_delay=10s";

pub(crate) const CLIENTS: &str =
    "application_name LIKE 'lock-runtime%' AND pid <> pg_backend_pid()";

#[tokio::test]
async fn locks_are_kept_while_connections_are_terminated() {
    let database = Database::new().await;
    // Connections are terminated for one and a half leases.
    let lease = LEASE * 4;
    let (one, two) =
        (client_of(&database.url(), lease).await, client_of(&database.url(), lease).await);
    let guard = one.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(two.lock("k").wait(LEASE * 60).acquire());
    let session = database.session(&database.name).await;
    let terminate = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND {CLIENTS}"
    );
    let mut terminated = 0;
    for _ in 0..12 {
        terminated += session.query(&terminate, &[]).await.expect("a superuser").len();
        tokio::time::sleep(LEASE / 2).await;
    }
    assert!(terminated > 6, "{terminated} connections were terminated");
    assert!(guard.is_held());
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("free").release().await.expect("held");
    assert_eq!(database.count().await, 0);
}

#[tokio::test]
async fn a_listener_that_was_cut_off_comes_back() {
    let database = Database::new().await;
    let (one, two) = (database.client().await, database.client().await);
    let session = database.session(&database.name).await;
    let listeners = format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' AND {CLIENTS}"
    );
    let pids = async || -> Vec<i32> {
        let rows = session.query(&listeners, &[]).await.expect("a superuser");
        rows.iter().map(|row| row.get(0)).collect()
    };
    let before =
        eventually("no listeners", async || Some(pids().await).filter(|it| it.len() == 2)).await;
    for pid in &before {
        session.execute("SELECT pg_terminate_backend($1)", &[pid]).await.expect("a superuser");
    }
    eventually("the listeners do not come back", async || {
        let now = pids().await;
        (now.len() == 2 && now.iter().all(|pid| !before.contains(pid))).then_some(())
    })
    .await;
    let guard = one.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(two.lock("k").wait(LEASE * 60).acquire());
    tokio::time::sleep(LEASE / 2).await;
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("woken").release().await.expect("held");
}

/// The clock of the server is not that of its clients.
#[tokio::test]
async fn leases_end_by_the_clock_of_the_server() {
    let server = DatabaseServer::postgres_with_own_clock();
    let url = server.url("postgres");
    let session = session_of(&url).await;
    session.batch_execute(POSTGRES_SCHEMA).await.expect("valid SQL");
    // Long enough for several renewals, however busy the machine is.
    let (one, two) = (client_of(&url, LEASE * 9).await, client_of(&url, LEASE * 9).await);
    let hour: i64 = 3600;
    for ahead in [hour, -hour] {
        server.set_clock(ahead);
        let guard = one.lock("k").lease(LEASE * 30).acquire().await.expect("free");
        let sql =
            "SELECT extract(epoch FROM until - clock_timestamp())::float8 FROM distributed_locks";
        let left: f64 = session.query_one(sql, &[]).await.expect("the row").get(0);
        let is_term = left > 0.0 && left <= (LEASE * 30).as_secs_f64();
        assert!(is_term, "{left} s are left by the clock of the server");
        let busy = two.lock("k").wait(Duration::ZERO).acquire().await.map(drop);
        assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
        guard.release().await.expect("held");
    }
    // When it jumps, the lease has ended, and its holder is told.
    let guard = one.lock("k").acquire().await.expect("free");
    server.set_clock(hour);
    let reason = guard.lost().await;
    assert!(matches!(reason, LostReason::Gone), "{reason:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_delays_no_calls_of_others() {
    let database = Database::new().await;
    let client = async || client_of(&database.url(), LEASE * 6).await;
    calls_go_on_beside_a_blocked_runtime(&client().await, &client().await).await;
}

/// As an operator may do with one row.
#[tokio::test]
async fn a_row_that_another_session_has_locked_costs_no_other_lock() {
    for statement in [
        "SELECT FROM distributed_locks WHERE key = 'k0' FOR UPDATE",
        "DELETE FROM distributed_locks WHERE key = 'k0'",
    ] {
        let database = Database::new().await;
        let client = client_of(&database.url(), LEASE * 2).await;
        let mut guards = Vec::new();
        for number in 0..20 {
            guards.push(client.lock(format!("k{number}")).acquire().await.expect("free"));
        }
        let mut session = database.session(&database.name).await;
        let open = session.transaction().await.expect("it is up");
        open.batch_execute(statement).await.expect("the row");
        assert_eq!(guards[0].lost().await, LostReason::RenewalFailed);
        tokio::time::sleep(LEASE * 2).await;
        let lost: Vec<_> = guards[1..].iter().filter(|guard| !guard.is_held()).collect();
        assert!(lost.is_empty(), "another lock is lost: {lost:?}");
        open.rollback().await.expect("it is up");
    }
}

/// They are more than a client has connections.
#[tokio::test]
async fn calls_for_locked_rows_delay_no_other_call() {
    let database = Database::new().await;
    let (one, two) = (client_of(&database.url(), LEASE * 60).await, database.client().await);
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(one.lock(format!("k{number}")).acquire().await.expect("free"));
    }
    let mut session = database.session(&database.name).await;
    let open = session.transaction().await.expect("it is up");
    open.batch_execute("SELECT FROM distributed_locks FOR UPDATE").await.expect("the rows");
    let waiting = guards.iter().map(|guard| {
        let lock = two.lock(guard.key()).wait(LEASE * 60);
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    });
    let waiting: Vec<_> = waiting.collect();
    tokio::time::sleep(LEASE / 2).await;
    for number in 0..20 {
        let lock = two.lock(format!("other{number}")).wait(LEASE);
        let guard = lock.acquire().await.expect("a locked row delays no other call");
        guard.release().await.expect("held");
    }
    // The releases of these rows as well.
    drop(guards);
    for number in 0..20 {
        let lock = one.lock(format!("other{number}")).wait(LEASE);
        lock.acquire().await.expect("free").release().await.expect("held");
    }
    open.rollback().await.expect("it is up");
    for call in waiting {
        call.await.expect("no panic").expect("it gets its turn");
    }
}

/// As after an `INSERT` by hand whose transaction was left open. Calls for other keys go together with calls for this one.
#[tokio::test]
async fn a_row_that_is_not_committed_delays_no_call_for_another_key() {
    let database = Database::new().await;
    let client = client_of(&database.url(), LEASE * 6).await;
    let mut session = database.session(&database.name).await;
    let open = session.transaction().await.expect("it is up");
    let row =
        "INSERT INTO distributed_locks VALUES ('k0', 'stranger', now() + interval '1 hour', 0)";
    open.batch_execute(row).await.expect("the table");
    let calls = (0..200).map(|number| {
        let lock = client.lock(format!("k{number}")).wait(LEASE * 2);
        tokio::spawn(async move { lock.acquire().await?.release().await })
    });
    for (number, outcome) in outcomes_of(calls.collect()).await.into_iter().enumerate() {
        assert_eq!(outcome.is_ok(), number > 0, "k{number}: {outcome:?}");
    }
    open.rollback().await.expect("it is up");
}

#[tokio::test]
async fn a_table_that_was_truncated_loses_its_locks_and_tokens_rise() {
    let database = Database::new().await;
    let client = database.client().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let earlier = guard.fencing_token().await.expect("held");
    database.run("TRUNCATE distributed_locks").await;
    assert_eq!(guard.lost().await, LostReason::Gone);
    let next = client.lock("k").wait(LEASE * 60).acquire().await.expect("free");
    let later = next.fencing_token().await.expect("held");
    assert!(later > earlier, "{later} after {earlier}");
    drop(next);
    // The control, and the way out: without the sequence, tokens start anew, until the SQL is run again.
    database.run("ALTER SEQUENCE distributed_lock_fences RESTART").await;
    let low = client.lock("other").acquire().await.expect("free");
    assert!(low.fencing_token().await.expect("held") < earlier);
    low.release().await.expect("held");
    database.run(POSTGRES_SCHEMA).await;
    let high = client.lock("other").acquire().await.expect("free");
    assert!(high.fencing_token().await.expect("held") > later);
    high.release().await.expect("held");
}

#[tokio::test]
async fn a_user_without_permissions_is_denied() {
    let database = Database::new().await;
    let user = format!("app_{}", database.name);
    database.run(&format!("CREATE USER {user}; REVOKE ALL ON distributed_locks FROM PUBLIC")).await;
    let url = database.url().replace("test@", &format!("{user}@"));
    let client = LockClient::builder().url(&url).lease(LEASE).connect().await.expect("a login");
    let denied = client.lock("k").acquire().await.map(drop);
    assert!(matches!(denied, Err(LockError::Denied { .. })), "{denied:?}");
    // Those of the file are enough.
    let grants = POSTGRES_SCHEMA.lines().filter_map(|line| line.strip_prefix("-- GRANT "));
    let grants: Vec<String> = grants
        .map(|grant| format!("GRANT {}", grant.replace(" app;", &format!(" {user};"))))
        .collect();
    assert_eq!(grants.len(), 4);
    database.run(&grants.concat()).await;
    let client = client_of(&url, LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    guard.fencing_token().await.expect("held");
    guard.release().await.expect("held");
    client.semaphore("s", 2).acquire().await.expect("free").release().await.expect("held");
}
