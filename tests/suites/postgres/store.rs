//! Calls with locks in PostgreSQL, and databases that are not ready.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lock_runtime::store::{
    Acquired, Claim, Fenced, Grant, Lane, Layout, LockStore, OpenStore, OwnerId, POSTGRES_SCHEMA,
    PostgresStore, Release, Released, Renewal, Renewed, RequestTimeout, Resource, SendTrace,
    Settings, StoreError,
};
use lock_runtime::{LockClient, LockError, LockGuard, distributed_lock, with_client};
use lock_tests::support::{LEASE, count_under_contention, outcomes_of};
use lock_tests::{Pooler, with_unusual_settings, within};
use rustix::process::{Pid, Signal, kill_process};

use crate::faults::{CLIENTS, alone, client_of, eventually};
use crate::{Database, session_of};

mod conformance {
    use super::{Database, PostgresStore};

    lock_runtime::store_conformance!(
        let database = Database::new().await;
        PostgresStore::new(&database.url()).expect("a valid URL")
    );
}

mod conformance_of_fresh_requests {
    use lock_runtime::conformance::CheckedStore;

    use super::{Database, PostgresStore};

    lock_runtime::store_conformance!(
        checked: let database = Database::new().await;
        CheckedStore::new(PostgresStore::new(&database.url()).expect("a valid URL")).fresh()
    );
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u32, time: Duration) -> Result<u32, LockError> {
    tokio::time::sleep(time).await;
    Ok(id)
}

#[tokio::test]
async fn an_annotated_function_is_renewed_and_leaves_no_row() {
    let database = Database::new().await;
    let client = database.client().await;
    assert_eq!(with_client(client.clone(), pay(7, LEASE * 3)).await, Ok(7));
    client.shutdown().await.expect("released");
    assert_eq!(database.count().await, 0);
}

/// The number of sessions of clients.
async fn sessions(database: &Database) -> usize {
    let session = database.session(&database.name).await;
    let all =
        format!("SELECT FROM pg_stat_activity WHERE datname = current_database() AND {CLIENTS}");
    session.query(&all, &[]).await.expect("a view").len()
}

#[tokio::test]
async fn a_client_opens_as_many_connections_as_it_has_requests_at_one_time() {
    let database = Database::new().await;
    // A request without an answer would open another connection.
    let client = client_of(&database.url(), LEASE * 60).await;
    for number in 0..16 {
        let guard = client.lock(format!("k{number}")).acquire().await.expect("free");
        guard.release().await.expect("held");
    }
    let has = async |number, what| {
        eventually(what, async || (sessions(&database).await == number).then_some(())).await;
    };
    // The last one is opened in the background.
    has(3, "one for requests, one for renewals, and one for notifications").await;
    let locks = (0..32).map(|number| client.lock(format!("k{number}")).acquire());
    let guards = try_join_all(locks).await.expect("free");
    has(10, "all that are documented").await;
    try_join_all(guards.into_iter().map(LockGuard::release)).await.expect("held");
}

/// Nothing would receive notifications.
#[tokio::test]
async fn a_client_connects_before_its_first_call() {
    for url in ["postgres://app@localhost/shop", " postgresql://app@localhost/shop"] {
        let lazy = LockClient::builder().url(url).connect_lazy().map(drop);
        assert!(matches!(lazy, Err(LockError::Config { option: "url", .. })), "{lazy:?}");
    }
}

/// The plain locks of a client, without its engine.
#[derive(Clone)]
struct PlainLocks(Arc<dyn LockStore>);

impl PlainLocks {
    fn of(store: &PostgresStore) -> Self {
        let client = store.open(&Settings::new(LEASE * 60, LEASE * 60)).expect("a client");
        Self(client.handle(Layout::TOKEN).expect("plain locks"))
    }

    /// An attempt; a `fresh` one begins with the cheapest statement.
    async fn acquire(
        &self,
        (key, owner): (&str, OwnerId),
        term: Duration,
        fresh: bool,
    ) -> Result<Acquired, StoreError> {
        let claim = Claim { fresh, ..Claim::exclusive(key, owner, term) };
        self.0.try_acquire(claim, RequestTimeout::of(LEASE * 60), &SendTrace::default()).await
    }

    async fn renew(
        &self,
        (key, owner): (&str, OwnerId),
        term: Duration,
    ) -> Result<Renewed, StoreError> {
        self.0.renew(&[Renewal::exclusive(key, owner, term)], Lane::Background).await.remove(0)
    }

    async fn release(
        &self,
        (key, owner): (&str, OwnerId),
        keep: Duration,
    ) -> Result<Released, StoreError> {
        let release = Release { keep, ..Release::exclusive(key, owner) };
        self.0.release(release, Lane::Caller).await
    }

    async fn fence(
        &self,
        (key, owner): (&str, OwnerId),
        at_least: u64,
    ) -> Result<Fenced, StoreError> {
        self.0.fence(Resource::exclusive(key), owner, at_least).await
    }
}

fn owner() -> OwnerId {
    OwnerId::new().expect("randomness")
}

/// Locks 16 keys at one time, several times, which executes each statement several times over each connection. Returns the
/// first error.
async fn lock_many(locks: &PlainLocks) -> Result<(), StoreError> {
    let moment = LEASE / 100;
    let times = async |number| {
        let (key, term) = (format!("k{number}"), LEASE * 60);
        for _ in 0..6 {
            let hold = (&*key, owner());
            locks.acquire(hold, term, true).await?;
            locks.acquire(hold, term, false).await?;
            locks.renew(hold, term).await?;
            locks.fence(hold, 0).await?;
            locks.release(hold, Duration::ZERO).await?;
            // Nothing is released.
            locks.release(hold, Duration::ZERO).await?;
            let hold = (&*key, owner());
            locks.acquire(hold, term, true).await?;
            locks.release(hold, moment).await?;
            tokio::time::sleep(moment).await;
        }
        Ok(())
    };
    try_join_all((0..16).map(times)).await.map(drop)
}

/// Statements that were prepared before the change are planned anew.
#[tokio::test]
async fn a_table_that_was_changed_or_made_anew_is_used() {
    let database = Database::new().await;
    let store = PlainLocks::of(&database.store());
    lock_many(&store).await.expect("free");
    database.run("ALTER TABLE distributed_locks ADD COLUMN note text").await;
    lock_many(&store).await.expect("a column of others");
    database.run("ALTER TABLE distributed_locks RENAME TO put_away").await;
    let missing = lock_many(&store).await;
    assert!(matches!(missing, Err(StoreError::Config { option: "url", .. })), "{missing:?}");
    database.run("DROP TABLE put_away").await;
    database.run(POSTGRES_SCHEMA).await;
    lock_many(&store).await.expect("a new table");
}

/// How often the whole table of locks was read. Sessions tell that when they end.
async fn whole_reads(session: &tokio_postgres::Client) -> i64 {
    let others = "SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let are_gone = eventually("the other sessions end", async || {
        session.query(others, &[]).await.expect("a view").is_empty().then_some(())
    });
    are_gone.await;
    let reads =
        "SELECT coalesce(seq_scan, 0) FROM pg_stat_user_tables WHERE relname = 'distributed_locks'";
    session.query_one(reads, &[]).await.expect("a view").get(0)
}

/// A plan that was made while the table was small is kept. Also shows that statements are prepared, because the server would
/// read the whole of a small table otherwise.
#[tokio::test]
async fn no_statement_reads_the_whole_table_however_small_it_was_at_first() {
    for mode in ["disable", "prefer"] {
        let server = alone(&[]).await;
        let session = session_of(&server.url("postgres")).await;
        session.batch_execute("VACUUM distributed_locks").await.expect("a superuser");
        let before = whole_reads(&session).await;
        let url = format!("{}?sslmode={mode}", server.url("postgres"));
        let store = PlainLocks::of(&PostgresStore::new(&url).expect("a valid URL"));
        lock_many(&store).await.expect("free");
        let full = "INSERT INTO distributed_locks SELECT convert_to('row' || n, 'UTF8'), 'x', now() + interval '1 h', 1 FROM generate_series(1, 20000) AS n";
        session.batch_execute(full).await.expect("the table");
        lock_many(&store).await.expect("free");
        drop(store);
        let reads = whole_reads(&session).await - before;
        assert_eq!(reads, 0, "the whole table is read {reads} times, with sslmode={mode}");
    }
}

#[tokio::test]
async fn a_waiting_call_is_notified() {
    let database = Database::new().await;
    let (one, two) = (database.client().await, database.client().await);
    let guard = one.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(two.lock("k").wait(LEASE * 60).acquire());
    let session = database.session(&database.name).await;
    let wanted = "SELECT FROM distributed_locks WHERE wanted";
    while session.query(wanted, &[]).await.expect("the table").is_empty() {
        tokio::time::sleep(LEASE / 100).await;
    }
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("notified").release().await.expect("held");
}

#[tokio::test]
async fn a_database_that_is_not_ready_is_an_error_that_says_what_to_do() {
    let database = Database::empty().await;
    let problem = async || match LockClient::connect(database.url()).await.map(drop) {
        Err(LockError::Config { option: "url", problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    assert!(problem().await.contains("has no table `distributed_locks`"));
    database.run("CREATE TABLE distributed_locks (key text)").await;
    assert!(problem().await.contains("rename it"));
    // The SQL does not touch it either.
    let session = database.session(&database.name).await;
    let refused = session.batch_execute(POSTGRES_SCHEMA).await.expect_err("another table");
    assert!(format!("{refused:?}").contains("is not that of lock-runtime 1"), "{refused:?}");
    assert!(matches!(database.store().migrate().await, Err(LockError::Config { .. })));
    drop(session);
    database.run("COMMENT ON TABLE distributed_locks IS 'lock-runtime 2'").await;
    assert!(problem().await.contains("use a newer program"));
    database.run("DROP TABLE distributed_locks").await;
    database.run(POSTGRES_SCHEMA).await;
    // It can be run again.
    database.run(POSTGRES_SCHEMA).await;
    for (part, remove, restore) in [
        (
            "the column wanted of the type boolean",
            "DROP COLUMN wanted",
            "ADD COLUMN wanted boolean NOT NULL DEFAULT false",
        ),
        (
            "the column until of the type timestamp with time zone",
            "ALTER COLUMN until TYPE text",
            "ALTER COLUMN until TYPE timestamptz USING until::timestamptz",
        ),
        (
            "the constraint distributed_locks_owner",
            "DROP CONSTRAINT distributed_locks_owner",
            "ADD CONSTRAINT distributed_locks_owner UNIQUE (key, owner)",
        ),
    ] {
        database.run(&format!("ALTER TABLE distributed_locks {remove}")).await;
        let lacks = problem().await;
        assert!(lacks.contains(part), "{lacks}");
        match database.store().migrate().await {
            Err(LockError::Config { problem, .. }) => assert!(problem.contains(part), "{problem}"),
            other => panic!("{other:?}"),
        }
        database.run(&format!("ALTER TABLE distributed_locks {restore}")).await;
    }
    database.run("DROP SEQUENCE distributed_lock_fences").await;
    assert!(problem().await.contains("the sequence distributed_lock_fences"));
    assert!(!database.store().migrate().await.expect("the owner"), "it was there");
    let client = database.client().await;
    database.run("DROP TABLE distributed_locks").await;
    match client.lock("k").acquire().await.map(drop) {
        Err(LockError::Config { problem, .. }) => assert!(problem.contains("missing"), "{problem}"),
        other => panic!("{other:?}"),
    }
    let none = LockClient::connect(database.server.url("no_such_database")).await.map(drop);
    assert!(matches!(none, Err(LockError::Config { .. })), "{none:?}");
    let closed = LockClient::connect("postgres://test:secret@127.0.0.1:1/test").await.map(drop);
    match closed {
        Err(LockError::Unavailable { cause, .. }) => assert!(!cause.contains("secret"), "{cause}"),
        other => panic!("{other:?}"),
    }
    let invalid = LockClient::connect("postgres://test:secret@host:port/test").await.map(drop);
    assert!(!format!("{invalid:?}").contains("secret"), "{invalid:?}");
}

#[tokio::test]
async fn a_database_with_unusual_settings_can_be_used() {
    let database = Database::new().await;
    database.run_in("postgres", &with_unusual_settings(&database.name)).await;
    let pooler = Pooler::start(&database.server, "transaction", 20);
    for url in [database.url(), pooler.url(&database.name)] {
        let (one, two) = (client_of(&url, LEASE * 10).await, client_of(&url, LEASE * 10).await);
        count_under_contention([&one, &two], 100).await;
        let tried = (0..100).map(|n| tokio::spawn(one.lock(format!("k{n}")).try_acquire()));
        for outcome in outcomes_of(tried.collect()).await {
            let guard = outcome.expect("up").expect("free");
            guard.fencing_token().await.expect("held");
            guard.release().await.expect("held");
        }
    }
}

#[tokio::test]
async fn a_user_whose_transactions_are_read_only_is_an_error_that_says_so() {
    let database = Database::new().await;
    let client = database.client().await;
    let set = format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name);
    database.run_in("postgres", &set).await;
    match LockClient::connect(database.url()).await.map(drop) {
        Err(LockError::Config { problem, .. }) => {
            assert!(problem.contains("default_transaction_read_only"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    drop(client);
}

#[tokio::test]
async fn a_migration_creates_the_table_also_several_at_once() {
    let database = Database::empty().await;
    let migrations: Vec<_> = (0..8)
        .map(|_| {
            let store = database.store();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    for migration in migrations {
        migration.await.expect("no panic").expect("the owner");
    }
    let client = database.client().await;
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
}

#[tokio::test]
async fn tokens_outlive_the_rows() {
    let database = Database::new().await;
    let client = database.client().await;
    let mut last = 0;
    for _ in 0..3 {
        let guard = client.lock("k").acquire().await.expect("free");
        let token = guard.fencing_token().await.expect("held");
        assert!(token > last, "{token} after {last}");
        last = token;
        guard.release().await.expect("held");
        database.run("TRUNCATE distributed_locks RESTART IDENTITY").await;
    }
}

/// An owner that stalls between the draw of a number and its row. Another one comes and goes in the meantime.
async fn tokens_of_a_slow_owner(is_fresh: bool) {
    let database = Database::new().await;
    database
        .run(
            "CREATE SEQUENCE inserts; \
             CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF nextval('inserts') = 1 THEN WHILE NOT pg_try_advisory_xact_lock(1) LOOP \
             PERFORM pg_sleep(0.01); END LOOP; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER stall BEFORE INSERT ON distributed_locks FOR EACH ROW EXECUTE FUNCTION stall()",
        )
        .await;
    let [one, two] = [(), ()].map(|()| PlainLocks::of(&database.store()));
    let session = database.session(&database.name).await;
    session.execute("SELECT pg_advisory_lock(1)", &[]).await.expect("it is up");
    let slow = tokio::spawn(async move { one.acquire(("k", owner()), LEASE, is_fresh).await });
    let stalls = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    while session.query(stalls, &[]).await.expect("it is up").is_empty() {
        tokio::time::sleep(LEASE / 100).await;
    }
    let of_quick = ("k", owner());
    let quick = two.acquire(of_quick, LEASE, false).await;
    let Ok(Acquired::Granted(Grant { fence: Some(earlier), .. })) = quick else {
        panic!("{quick:?}")
    };
    two.release(of_quick, Duration::ZERO).await.expect("held");
    session.execute("SELECT pg_advisory_unlock(1)", &[]).await.expect("it is up");
    let slow = slow.await.expect("no panic");
    let Ok(Acquired::Granted(Grant { fence: Some(later), .. })) = slow else { panic!("{slow:?}") };
    assert!(later > earlier, "{later} after {earlier}");
    if !is_fresh {
        // It is drawn when the row is locked.
        return;
    }
    // The control: the number that was drawn before the row.
    let row = session.query_one("SELECT fence FROM distributed_locks", &[]).await;
    let drawn: i64 = row.expect("the row").get(0);
    assert!(u64::try_from(drawn).is_ok_and(|drawn| drawn < earlier), "{drawn} and {earlier}");
}

#[tokio::test]
async fn a_token_is_above_those_of_owners_who_came_and_went_during_the_request() {
    for is_fresh in [false, true] {
        tokens_of_a_slow_owner(is_fresh).await;
    }
}

/// Its commit may wait for a standby, and other requests come next on the connection of the attempt.
#[tokio::test]
async fn an_attempt_does_not_wait_for_a_takeover_that_is_not_committed() {
    let database = Database::new().await;
    database
        .run("INSERT INTO distributed_locks VALUES ('k', 'gone', now() - interval '1 h', 1)")
        .await;
    let mut session = database.session(&database.name).await;
    let taking_over = session.transaction().await.expect("it is up");
    let update = "UPDATE distributed_locks SET owner = 'next', until = now() + interval '1 h'";
    assert_eq!(taking_over.execute(update, &[]).await.expect("the table"), 1);
    let (locks, hold) = (PlainLocks::of(&database.store()), ("k", owner()));
    for is_fresh in [false, true] {
        let attempt = within(LEASE * 60, locks.acquire(hold, LEASE, is_fresh)).await;
        let answer = attempt.expect("it does not wait");
        assert!(matches!(answer, Ok(Acquired::Busy(_))), "{answer:?}");
    }
    taking_over.rollback().await.expect("it is up");
    // The control: without the other transaction, the key is granted.
    let answer = locks.acquire(hold, LEASE, true).await;
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
}

/// The processes of the server that wait for a lock of this kind on the sequence of the tokens, or on the table.
async fn waiting_for(session: &tokio_postgres::Client, mode: &str) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_locks WHERE NOT granted AND mode = $1 AND relation IN \
               ('distributed_lock_fences'::regclass, 'distributed_locks'::regclass)";
    let rows = session.query(sql, &[&mode]).await.expect("a view of the system");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn token(locks: &PlainLocks, hold: (&str, OwnerId), at_least: u64) -> u64 {
    for _ in 0..10 {
        match locks.fence(hold, at_least).await {
            Ok(Fenced::With(token)) => return token,
            // On a slow machine, the steps of a test may take longer than the second that a request waits for a lock.
            Err(StoreError::Refused(cause)) if cause.contains("lock timeout") => {}
            other => panic!("a token for the owner: {other:?}"),
        }
    }
    panic!("no token in ten requests");
}

/// Two owners want tokens that are far above the last one, as after a failover. The server suspends the first one when it is
/// about to use the sequence for the first or for the second time.
#[tokio::test]
async fn tokens_rise_when_two_owners_raise_them_at_the_same_time() {
    const USE_SEQUENCE: &str = "RowExclusiveLock";
    const LOCK_SEQUENCE: &str = "ShareRowExclusiveLock";
    // Reads of the sequence go on, and everything else waits.
    let lock_sequence = "BEGIN; ALTER SEQUENCE distributed_lock_fences OWNED BY NONE";
    for uses in [1, 2] {
        let server = alone(&[]).await;
        let url = server.url("postgres");
        let new = || PlainLocks::of(&PostgresStore::new(&url).expect("a valid URL"));
        let (one, two, session) = (new(), new(), session_of(&url).await);
        let (of_one, of_two) = (("a", owner()), ("b", owner()));
        for (locks, hold) in [(&one, of_one), (&two, of_two)] {
            let acquired = locks.acquire(hold, LEASE * 600, false).await;
            assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
        }
        let last = token(&two, of_two, 0).await;
        let mut locker = session_of(&url).await;
        locker.batch_execute(lock_sequence).await.expect("the owner");
        let slow = tokio::spawn(async move { token(&one, of_one, last + 100).await });
        let stalls = async || waiting_for(&session, USE_SEQUENCE).await.first().copied();
        let mut stalled = eventually("it uses the sequence", stalls).await;
        for _ in 1..uses {
            let next = session_of(&url).await;
            let locking = tokio::spawn(async move {
                next.batch_execute(lock_sequence).await.expect("the owner");
                next
            });
            let is_next = async || waiting_for(&session, LOCK_SEQUENCE).await.first().copied();
            eventually("the next lock is queued", is_next).await;
            locker.batch_execute("COMMIT").await.expect("it is up");
            locker = locking.await.expect("no panic");
            stalled = eventually("it uses the sequence again", stalls).await;
        }
        let stalled = Pid::from_raw(stalled).expect("a process of the server");
        kill_process(stalled, Signal::STOP).expect("the server runs");
        locker.batch_execute("COMMIT").await.expect("it is up");
        let quick = tokio::spawn(async move { token(&two, of_two, last + 200).await });
        eventually("the second owner gets its token, or waits for the first", async || {
            let mut waiting = waiting_for(&session, LOCK_SEQUENCE).await;
            waiting.append(&mut waiting_for(&session, USE_SEQUENCE).await);
            (quick.is_finished() || !waiting.is_empty()).then_some(())
        })
        .await;
        kill_process(stalled, Signal::CONT).expect("the server runs");
        let issued = [slow.await.expect("no panic"), quick.await.expect("no panic")];
        assert!(issued[0] >= last + 100 && issued[1] >= last + 200, "{issued:?} after {last}");
        let next = new().acquire(("c", owner()), LEASE, false).await;
        let Ok(Acquired::Granted(Grant { fence: Some(next), .. })) = next else {
            panic!("{next:?}")
        };
        assert!(issued.iter().all(|token| *token < next), "{next} comes after {issued:?}");
    }
}
