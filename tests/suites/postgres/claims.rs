//! Claims that wait in queues, and read-write locks and semaphores, which are claims to shares of a capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lock_runtime::conformance::{self, CheckedStore};
use lock_runtime::store::POSTGRES_SCHEMA;
use lock_runtime::{Lock, LockClient, LockError, LostReason};
use lock_tests::support::{LEASE, until_idle};
use lock_tests::{Helper, Pooler, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::faults::{alone, client_of, eventually};
use crate::{Database, session_of};

/// Longer than any of these tests takes.
const LONG: Duration = LEASE.saturating_mul(60);

/// Longer than a claim without attempts stands in the queue, and than the lease that it may get then.
const GIVEN_UP: Duration = Duration::from_secs(8);

async fn rows(database: &Database, of: &str) -> i64 {
    let session = database.session(&database.name).await;
    let count = format!("SELECT count(*) FROM distributed_lock_claims WHERE {of}");
    session.query_one(&count, &[]).await.expect("the table").get(0)
}

/// Waits until so many claims stand in queues.
async fn queued(database: &Database, claims: i64) {
    eventually("the claims stand in the queue", async || {
        (rows(database, "ticket IS NOT NULL").await == claims).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_table_of_the_version_before_is_upgraded_beside_its_services() {
    let database = Database::new().await;
    let user = format!("old_{}", database.name);
    database
        .run(&format!(
            "DROP TABLE distributed_lock_claims; DROP FUNCTION distributed_lock_claim; CREATE USER {user}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_locks TO {user}; \
             GRANT USAGE, UPDATE, SELECT ON distributed_lock_fences TO {user}"
        ))
        .await;
    match LockClient::connect(database.url()).await.map(drop) {
        Err(LockError::Config { problem, .. }) => {
            assert!(problem.contains("lacks the table distributed_lock_claims"), "{problem}");
            assert!(problem.contains("run `lockctl migrate`"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!database.store().migrate().await.expect("the owner"), "the first table was there");
    database.run("DROP FUNCTION distributed_lock_leave").await;
    let lacks = LockClient::connect(database.url()).await.map(drop).expect_err("a function");
    assert!(lacks.to_string().contains("the function distributed_lock_leave"), "{lacks}");
    database.store().migrate().await.expect("the owner");
    // Those who may use the first table may use the second one.
    let client = client_of(&database.url().replace("test@", &format!("{user}@")), LEASE).await;
    let plain = client.lock("k").acquire().await.expect("free");
    let permit = client.semaphore("s", 2).acquire().await.expect("free");
    // Again, while services run.
    database.run(POSTGRES_SCHEMA).await;
    assert!(plain.is_held() && permit.is_held());
    permit.release().await.expect("held");
    plain.release().await.expect("held");
    database.run("COMMENT ON TABLE distributed_lock_claims IS 'somebody else'").await;
    match database.store().migrate().await {
        Err(error) => assert!(error.to_string().contains("distributed_lock_claims"), "{error}"),
        Ok(_) => panic!("the table of somebody else"),
    }
}

#[tokio::test]
async fn nothing_is_left_of_locks_that_were_released() {
    let database = Database::new().await;
    let (one, two) = (database.client().await, database.client().await);
    let writer = one.read_write("rw").write().acquire().await.expect("free");
    let reader = two.read_write("rw").read().wait(LONG);
    let reader = tokio::spawn(async move { reader.acquire().await });
    let permit = one.semaphore("s", 3).permits(2).acquire().await.expect("free");
    queued(&database, 1).await;
    writer.release().await.expect("held");
    reader.await.expect("no panic").expect("its turn").release().await.expect("held");
    permit.release().await.expect("held");
    assert_eq!((rows(&database, "true").await, database.count().await), (0, 0));
}

/// The queue is in the order of arrival, so nobody waits for more than the claims before it.
#[tokio::test]
async fn a_claim_that_waits_is_granted_when_its_turn_comes_without_an_attempt() {
    let database = Database::new().await;
    let one = client_of(&database.url(), LONG).await;
    let holder = one.semaphore("s", 2).permits(2).acquire().await.expect("free");
    let mut calls = Vec::new();
    for count in 1..=3 {
        // The calls of one client wait in its own queue.
        let client = client_of(&database.url(), LONG).await;
        let lock = client.semaphore("s", 2).permits(1).wait(LONG);
        calls.push(tokio::spawn(async move { lock.acquire().await.expect("its turn") }));
        queued(&database, count).await;
    }
    holder.release().await.expect("held");
    // The shares are given in the same transaction.
    assert_eq!(rows(&database, "ticket IS NULL").await, 2);
    let last = calls.pop().expect("three");
    for call in calls {
        let permit = within(LONG, call).await.expect("told").expect("no panic");
        assert!(!last.is_finished() || permit.is_held());
        permit.release().await.expect("held");
    }
    within(LONG, last).await.expect("told").expect("no panic").release().await.expect("held");
}

/// Also with several releases at the same time, and beside calls that make one attempt only.
#[tokio::test]
async fn exclusive_locks_are_given_in_the_order_of_arrival() {
    let database = Database::new().await;
    let holder = client_of(&database.url(), LONG).await;
    let guard = holder.lock("k").acquire().await.expect("free");
    let (order, mut calls) = (Arc::new(AtomicI64::new(0)), JoinSet::new());
    for number in 0..6 {
        let client = client_of(&database.url(), LONG).await;
        let (lock, order) = (client.lock("k").wait(LONG), Arc::clone(&order));
        calls.spawn(async move {
            let guard = lock.acquire().await.expect("its turn");
            assert_eq!(order.fetch_add(1, Ordering::SeqCst), number, "its turn");
            guard.release().await.expect("held");
        });
        queued(&database, number + 1).await;
    }
    assert!(holder.lock("k").try_acquire().await.expect("it is up").is_none());
    guard.release().await.expect("held");
    let by = client_of(&database.url(), LONG).await;
    while order.load(Ordering::SeqCst) < 5 {
        // It would overtake the claims.
        assert!(
            by.lock("k").try_acquire().await.expect("it is up").is_none()
                || order.load(Ordering::SeqCst) > 5
        );
    }
    calls.join_all().await;
    eventually("nothing is left", async || {
        (rows(&database, "true").await + database.count().await == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_a_process_that_was_killed_or_is_frozen_delays_the_others_for_seconds_only() {
    for freezes in [false, true] {
        let database = Database::new().await;
        let (one, two) =
            (client_of(&database.url(), LONG).await, client_of(&database.url(), LONG).await);
        let guard = one.read_write("k").write().acquire().await.expect("free");
        let lease = LONG.as_millis().to_string();
        let mut process = Helper::start(
            env!("CARGO_BIN_EXE_lock-helper"),
            &["mode", &database.url(), "k", &lease, "write"],
        );
        queued(&database, 1).await;
        let reader = two.read_write("k").read().wait(LONG);
        let reader = tokio::spawn(async move { reader.acquire().await });
        queued(&database, 2).await;
        if freezes {
            process.freeze();
        } else {
            process.kill();
        }
        let began = Instant::now();
        guard.release().await.expect("held");
        let reader = within(LONG, reader).await.expect("its turn").expect("no panic");
        assert!(began.elapsed() < GIVEN_UP + LEASE * 2, "{:?}", began.elapsed());
        reader.expect("its turn").release().await.expect("held");
        if freezes {
            process.thaw();
        }
    }
}

#[tokio::test]
async fn shares_end_with_the_lease_of_a_holder_that_is_gone() {
    let database = Database::new().await;
    let client = client_of(&database.url(), LONG).await;
    let permit =
        client.semaphore("s", 1).permits(1).lease(LEASE / 2).acquire().await.expect("free");
    std::mem::forget(permit);
    let next = client_of(&database.url(), LONG).await;
    let next =
        next.semaphore("s", 1).permits(1).wait(LONG).acquire().await.expect("after the lease");
    next.release().await.expect("held");
    // Another kind of lock may have the key when the row of the key has ended as well.
    let writer = client.read_write("s").write().wait(LONG).acquire().await.expect("free");
    writer.release().await.expect("held");
    assert_eq!((rows(&database, "true").await, database.count().await), (0, 0));
}

/// As an operator may do with the row of one key.
#[tokio::test]
async fn a_row_that_another_session_has_locked_delays_no_other_lock_and_no_renewal() {
    let database = Database::new().await;
    let client = client_of(&database.url(), LEASE * 2).await;
    let held = client.semaphore("s", 2).acquire().await.expect("free");
    let other = client.semaphore("other", 2).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let open = session.transaction().await.expect("it is up");
    open.batch_execute("SELECT FROM distributed_locks WHERE key = 's' FOR UPDATE")
        .await
        .expect("the row");
    let waiting = client.semaphore("s", 2).permits(1).wait(LONG);
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    for number in 0..10 {
        let lock = client.semaphore(format!("free{number}"), 2).permits(1).wait(LEASE * 4);
        lock.acquire()
            .await
            .expect("a locked row delays no other call")
            .release()
            .await
            .expect("held");
    }
    // The row of the key lasts for three terms, so the lease of its holder is extended until then.
    sleep(LEASE * 3).await;
    assert!(held.is_held() && other.is_held());
    open.rollback().await.expect("it is up");
    waiting.await.expect("no panic").expect("free").release().await.expect("held");
    held.release().await.expect("held");
    other.release().await.expect("held");
}

#[tokio::test]
async fn a_verified_share_stays_taken_until_the_transaction_ends() {
    let database = Database::new().await;
    for kind in ["reader", "permit"] {
        let (one, two) = (database.client().await, database.client().await);
        let lock = |client: &LockClient, alone: bool| match (kind, alone) {
            ("reader", false) => client.read_write(kind).read(),
            ("reader", true) => client.read_write(kind).write(),
            (_, alone) => client.semaphore(kind, 2).permits(1 + u32::from(alone)),
        };
        // Nothing renews it.
        let guard = lock(&one, false).lease(LEASE * 2).acquire().await.expect("free");
        let mut session = database.session(&database.name).await;
        let mut transaction = session.transaction().await.expect("it is up");
        guard.verify_in(&mut transaction).await.expect("held");
        assert_eq!(guard.lost().await, LostReason::LeaseOver);
        sleep(LEASE).await;
        let busy = lock(&two, true).wait(LEASE * 2).acquire().await.map(drop);
        assert!(matches!(busy, Err(LockError::Busy { .. })), "{kind}: {busy:?}");
        // The control: what is free is granted.
        let beside = lock(&two, false).wait(LONG).acquire().await.expect("free");
        beside.release().await.expect("held");
        transaction.commit().await.expect("it is up");
        let alone = lock(&two, true).wait(LONG).acquire().await.expect("free");
        alone.release().await.expect("held");
    }
}

#[tokio::test]
async fn behind_a_pooler_in_transaction_mode_claims_wait_in_the_queue_and_poll() {
    let database = Database::new().await;
    let pooler = Pooler::start(&database.server, "transaction", 3);
    let url = pooler.url(&database.name);
    let (one, two) = (client_of(&url, LONG).await, client_of(&url, LONG).await);
    let reader = one.read_write("k").read().acquire().await.expect("free");
    let writer = two.read_write("k").write().wait(LONG);
    let writer = tokio::spawn(async move { writer.acquire().await });
    queued(&database, 1).await;
    // A reader does not overtake the writer.
    let late = one.read_write("k").read().wait(LEASE).lease(LONG).acquire().await.map(drop);
    assert!(matches!(late, Err(LockError::Busy { .. })), "{late:?}");
    reader.release().await.expect("held");
    let writer = within(LONG, writer).await.expect("polled").expect("no panic");
    writer.expect("its turn").release().await.expect("held");
    assert_eq!((rows(&database, "true").await, database.count().await), (0, 0));
}

fn any_lock(client: &LockClient, rng: &mut Rng) -> (Lock, i64) {
    match rng.u8(0..4) {
        0 => (client.read_write("shared").write(), 100),
        1 | 2 => (client.read_write("shared").read(), 1),
        _ => {
            let permits = rng.u32(1..=5);
            (client.semaphore("permits", 5).permits(permits), i64::from(permits))
        }
    }
}

/// Acquires a lock, and does something with it, or gives up. `sums` are the shares of all bodies.
async fn one_call(client: &LockClient, rng: &mut Rng, sums: &[AtomicI64; 2]) {
    let pause = |rng: &mut Rng| Duration::from_micros(rng.u64(0..5000));
    let (lock, shares) = any_lock(client, rng);
    let way = rng.u8(0..6);
    let lock = if way == 0 { lock.min_hold(pause(rng)) } else { lock };
    let limit = if way == 1 { pause(rng) } else { LONG };
    let Ok(Ok(guard)) = timeout(limit, lock.wait(LEASE).acquire()).await else { return };
    let (sum, most) = if guard.permits().is_some() { (&sums[1], 5) } else { (&sums[0], 100) };
    // Nobody reads beside a writer, who counts like a hundred readers.
    let now = sum.fetch_add(shares, Ordering::SeqCst) + shares;
    assert!(now <= most || shares == 1 && now < 100, "{now} of {most}");
    sleep(pause(rng)).await;
    sum.fetch_sub(shares, Ordering::SeqCst);
    match way {
        2 => drop(guard),
        3 => {
            if let Some(hold) = guard.read_write() {
                let _ = hold.try_upgrade().await;
                let _ = hold.downgrade().await;
            }
            drop(guard.release().await);
        }
        _ => drop(guard.release().await),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_never_have_more_than_the_capacity_and_leave_nothing() {
    let database = Database::new().await;
    let clients = [database.client().await, database.client().await, database.client().await];
    let sums = Arc::new([AtomicI64::new(0), AtomicI64::new(0)]);
    let (seed, end) = (fastrand::u64(..), Instant::now() + LEASE * 3);
    let mut tasks = JoinSet::new();
    for task in 0..24 {
        let (client, sums) = (clients[task % 3].clone(), Arc::clone(&sums));
        tasks.spawn(async move {
            let mut rng = Rng::with_seed(seed.wrapping_add(task as u64));
            while Instant::now() < end {
                one_call(&client, &mut rng, &sums).await;
            }
        });
    }
    tasks.join_all().await;
    for client in &clients {
        until_idle(client, LONG).await;
    }
    eventually("nothing is left", async || {
        let session = database.session(&database.name).await;
        // What stays taken for a moment, or was given to a claim that has just given up, has an end.
        let expired = "DELETE FROM distributed_lock_claims WHERE until <= clock_timestamp()";
        session.batch_execute(expired).await.expect("the table");
        (rows(&database, "true").await == 0).then_some(())
    })
    .await;
}

/// What an operator may do, or a test: the row of the key is gone, and the claim is not.
#[tokio::test]
async fn a_holder_without_the_row_of_its_key_has_lost_it_at_its_next_renewal() {
    let database = Database::new().await;
    let client = client_of(&database.url(), LEASE * 4).await;
    let guard = client.semaphore("s", 2).acquire().await.expect("free");
    database.run("TRUNCATE distributed_locks").await;
    assert_eq!(guard.lost().await, LostReason::Gone);
    let writer = client.read_write("s").write().wait(LONG).acquire().await.expect("nobody has it");
    writer.release().await.expect("held");
}

/// Also under another kind of lock: the row of the key is locked as well.
#[tokio::test]
async fn a_verified_share_keeps_other_kinds_of_locks_out() {
    let database = Database::new().await;
    let (one, two) = (database.client().await, database.client().await);
    let guard = one.read_write("k").read().lease(LEASE / 2).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let mut transaction = session.transaction().await.expect("it is up");
    guard.verify_in(&mut transaction).await.expect("held");
    assert_eq!(guard.lost().await, LostReason::LeaseOver);
    // Until the row of the key has ended, too.
    sleep(LEASE * 2).await;
    let exclusive = two.lock("k").wait(LEASE).acquire().await.map(drop);
    assert!(matches!(exclusive, Err(LockError::Busy { .. })), "{exclusive:?}");
    let permit = two.semaphore("k", 1).permits(1).wait(LEASE).acquire().await.map(drop);
    assert!(matches!(permit, Err(LockError::Busy { .. })), "{permit:?}");
    transaction.commit().await.expect("it is up");
    let exclusive = two.lock("k").wait(LONG).acquire().await.expect("free");
    exclusive.release().await.expect("held");
}

/// A crash forgets what the disk does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_nothing_that_was_given_to_a_claim() {
    for round in 0..5 {
        // So long that the server has nothing else that would write it to the disk.
        let mut server = alone(&["wal_writer_delay=10s"]).await;
        let (one, two) = (
            client_of(&server.url("postgres"), LONG).await,
            client_of(&server.url("postgres"), LONG).await,
        );
        let held = one.lock("k").acquire().await.expect("free");
        let waiting = two.lock("k").wait(LONG);
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        let session = session_of(&server.url("postgres")).await;
        let count = "SELECT FROM distributed_lock_claims WHERE ticket IS NOT NULL";
        while session.query(count, &[]).await.expect("the table").is_empty() {
            sleep(LEASE / 100).await;
        }
        let permit = one.semaphore("s", 1).acquire().await.expect("free");
        let (mut given, mut shared) = (None, None);
        if round % 2 == 0 {
            held.release().await.expect("held");
            given = Some(
                within(LONG, waiting).await.expect("told").expect("no panic").expect("its turn"),
            );
        } else {
            shared = Some(one.read_write("rw").read().acquire().await.expect("free"));
        }
        server.kill();
        server.restart();
        let session = session_of(&server.url("postgres")).await;
        let kept = async |table: &str, owner: &str| {
            let kept =
                format!("SELECT FROM {table} WHERE key = '{owner}' AND until > clock_timestamp()");
            !session.query(&kept, &[]).await.expect("the table").is_empty()
        };
        assert!(kept("distributed_locks", "k").await && kept("distributed_lock_claims", "s").await);
        assert!(shared.is_none() || kept("distributed_lock_claims", "rw").await);
        drop((permit, given, shared));
    }
}

/// The same store, in which a trigger changes each row that is written.
async fn with_rows_changed(change: &str) -> (Database, [CheckedStore; 2]) {
    with_rows_of("distributed_lock_claims", change).await
}

async fn with_rows_of(table: &str, change: &str) -> (Database, [CheckedStore; 2]) {
    let database = Database::new().await;
    database
        .run(&format!(
            "CREATE FUNCTION change_claim() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN {change}; RETURN NEW; END $$; \
             CREATE TRIGGER change_claim BEFORE INSERT OR UPDATE ON {table} \
             FOR EACH ROW EXECUTE FUNCTION change_claim()"
        ))
        .await;
    let stores = [CheckedStore::url(database.url()), CheckedStore::url(database.url())];
    (database, stores)
}

/// The controls of the conformance: with such rows, its checks fail.
#[tokio::test]
#[should_panic(expected = "a writer and two readers")]
async fn a_store_that_forgets_shares_is_found() {
    let (_database, [one, two]) = with_rows_changed("NEW.shares := 0").await;
    conformance::readers_share_and_writers_do_not(one, two).await;
}

#[tokio::test]
#[should_panic(expected = "the claims that come first")]
async fn a_store_that_serves_the_last_claim_first_is_found() {
    let (_database, [one, two]) = with_rows_changed("NEW.ticket := -abs(NEW.ticket)").await;
    conformance::claims_are_served_in_their_order(one, two).await;
}

#[tokio::test]
#[should_panic(expected = "a share outlives its lease")]
async fn a_store_whose_shares_never_end_is_found() {
    let (_database, [one, _]) =
        with_rows_changed("NEW.until := NEW.until + interval '1 hour'").await;
    conformance::shares_belong_to_their_owner(one).await;
}

#[tokio::test]
#[should_panic(expected = "the second request has shortened a lease")]
async fn a_store_whose_second_request_shortens_the_lease_is_found() {
    let again = "IF TG_OP = 'UPDATE' AND NEW.until = OLD.until AND NEW.fence <> OLD.fence THEN \
                 NEW.until := clock_timestamp() + interval '1 ms'; END IF";
    let (_database, [one, _]) = with_rows_of("distributed_locks", again).await;
    conformance::the_second_request_shortens_nothing(one).await;
}

#[tokio::test]
#[should_panic(expected = "the number of owners")]
async fn a_store_whose_leases_end_at_once_is_found() {
    let at_once = "NEW.until := clock_timestamp() - interval '1 ms'";
    let (_database, [one, two]) = with_rows_of("distributed_locks", at_once).await;
    conformance::one_of_many_requests_is_granted(one, two).await;
}
