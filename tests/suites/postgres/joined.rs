//! Acquires and releases that go together.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard, LostReason};
use lock_tests::support::{LEASE, outcomes_of, until_idle};
use lock_tests::within;
use tokio::task::JoinHandle;

use crate::Database;

/// More than a client has connections for, and more than one statement has.
const CALLS: usize = 200;

/// How many of them a client has for the calls of one runtime.
const CONNECTIONS: usize = 8;

/// Counts the statements that insert or delete rows.
const COUNTED: &str = "CREATE SEQUENCE statements; \
    CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    PERFORM nextval('statements'); RETURN NULL; END $$; \
    CREATE TRIGGER counted AFTER INSERT OR DELETE ON distributed_locks FOR EACH STATEMENT EXECUTE FUNCTION counted()";

impl Database {
    /// The number of statements since the last call.
    async fn statements(&self) -> usize {
        let session = self.session(&self.name).await;
        let count = session.query_one("SELECT nextval('statements')", &[]).await.expect("it is up");
        session.execute("ALTER SEQUENCE statements RESTART", &[]).await.expect("it is up");
        usize::try_from(count.get::<_, i64>(0) - 1).expect("a count")
    }

    /// A client whose leases are longer than the test.
    async fn patient_client(&self) -> LockClient {
        let client = LockClient::builder().url(self.url()).lease(LEASE * 100).connect().await;
        client.expect("the server is up")
    }
}

/// The outcomes of calls that begin at the same time.
async fn try_all(
    client: &LockClient,
    keys: impl IntoIterator<Item = String>,
) -> Vec<Result<Option<LockGuard>, LockError>> {
    let calls = keys.into_iter().map(|key| tokio::spawn(client.lock(key).try_acquire()));
    outcomes_of(calls.collect()).await
}

/// The outcomes of these calls, which begin while the table is locked, and the number of statements for them.
async fn while_locked<T: Send + 'static>(
    database: &Database,
    calls: impl FnOnce() -> Vec<JoinHandle<T>>,
) -> (Vec<T>, usize) {
    database.statements().await;
    let mut session = database.session(&database.name).await;
    let locked = session.transaction().await.expect("it is up");
    locked.batch_execute("LOCK TABLE distributed_locks").await.expect("the table");
    let calls = calls();
    let waiting =
        "SELECT FROM pg_locks WHERE NOT granted AND relation = 'distributed_locks'::regclass";
    let all_wait = async {
        while locked.query(waiting, &[]).await.expect("a view of the system").len() < CONNECTIONS {
            tokio::time::sleep(LEASE / 100).await;
        }
    };
    within(LEASE * 100, all_wait).await.expect("all connections are used");
    locked.commit().await.expect("it is up");
    let outcomes = outcomes_of(calls).await;
    (outcomes, database.statements().await)
}

fn keys() -> impl Iterator<Item = String> {
    (0..CALLS).map(|number| format!("k{number}"))
}

#[tokio::test]
async fn a_call_alone_is_a_statement_and_its_release_another_one() {
    let database = Database::new().await;
    database.run(COUNTED).await;
    let client = database.patient_client().await;
    database.statements().await;
    for _ in 0..10 {
        let guard = client.lock("k").acquire().await.expect("free");
        guard.fencing_token().await.expect("a token");
        guard.release().await.expect("held");
    }
    assert_eq!(database.statements().await, 20);
}

/// Each lock has to be renewed twice at least.
#[tokio::test]
async fn the_renewals_of_many_locks_share_statements() {
    let database = Database::new().await;
    database.run(&COUNTED.replace("INSERT OR DELETE", "UPDATE")).await;
    let lease = LEASE * 6;
    let client = LockClient::builder().url(database.url()).lease(lease).connect().await;
    let client = client.expect("the server is up");
    let guards: Vec<_> =
        try_all(&client, keys()).await.into_iter().map(|it| it.expect("an answer")).collect();
    database.statements().await;
    tokio::time::sleep(lease).await;
    assert!(guards.iter().flatten().all(LockGuard::is_held), "a lock is lost");
    let sent = database.statements().await;
    assert!(sent > 0 && sent < CALLS / 4, "{sent} statements for {CALLS} locks");
    assert_eq!(guards.into_iter().flatten().count(), CALLS, "each was free");
}

#[tokio::test]
async fn calls_at_the_same_time_share_statements_and_have_their_own_outcomes() {
    let database = Database::new().await;
    database.run(COUNTED).await;
    let (one, two) = (database.patient_client().await, database.patient_client().await);
    let others = try_all(&two, keys().step_by(3)).await;
    // An ended lease, for which the short statement is not enough.
    database
        .run("INSERT INTO distributed_locks VALUES ('k1', 'gone', now() - interval '1 h', 1)")
        .await;
    let calls = || keys().map(|key| tokio::spawn(one.lock(key).try_acquire()));
    let (outcomes, sent) = while_locked(&database, || calls().collect()).await;
    let mut guards = Vec::new();
    let mut tokens = Vec::new();
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let guard = outcome.expect("an answer");
        assert_eq!(guard.is_none(), number % 3 == 0, "a key that is taken: {number}");
        guards.extend(guard);
    }
    assert!(sent < CALLS / 4, "{sent} statements for {CALLS} acquires");
    let session = database.session(&database.name).await;
    for guard in &guards {
        let token = guard.fencing_token().await.expect("a token");
        let row = "SELECT fence FROM distributed_locks WHERE key = convert_to($1, 'UTF8')";
        let row = session.query_one(row, &[&guard.key()]).await.expect("a row");
        // The token was drawn after the number in the row. For the ended lease it is this number: the row was locked before.
        let drawn = u64::try_from(row.get::<_, i64>(0)).expect("a positive number");
        let first = drawn + u64::from(guard.key() != "k1");
        assert!(
            first <= token && token <= drawn + CALLS as u64 * 2,
            "{token}, and {drawn} was drawn before"
        );
        tokens.push(token);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), guards.len(), "each has its own token");

    // Their releases find nothing, or another owner, or somebody who waits.
    let waiting = tokio::spawn(two.lock("k7").wait(LEASE * 60).acquire());
    while session
        .query("SELECT FROM distributed_locks WHERE wanted", &[])
        .await
        .expect("the table")
        .is_empty()
    {
        tokio::time::sleep(LEASE / 100).await;
    }
    let changes = "DELETE FROM distributed_locks WHERE key = 'k10'; \
                   UPDATE distributed_locks SET owner = 'other' WHERE key = 'k11'; \
                   UPDATE distributed_locks SET until = now() - interval '1 h' WHERE key = 'k13'";
    database.run(changes).await;
    let names: Vec<_> = guards.iter().map(|guard| guard.key().to_owned()).collect();
    let releases = || guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let (outcomes, sent) = while_locked(&database, || releases().collect()).await;
    assert!(sent < names.len() / 4, "{sent} statements for {} releases", names.len());
    for (key, outcome) in names.iter().zip(outcomes) {
        let is_expected = match (key.as_str(), &outcome) {
            ("k10" | "k13", Err(LockError::Lost { reason, .. })) => *reason == LostReason::Gone,
            ("k11", Err(LockError::Lost { reason, .. })) => *reason == LostReason::Taken,
            ("k10" | "k11" | "k13", _) => false,
            (_, outcome) => outcome.is_ok(),
        };
        assert!(is_expected, "{key}: {outcome:?}");
    }
    let woken = waiting.await.expect("no panic").expect("it is notified");
    drop((woken, others));
    until_idle(&two, LEASE * 10).await;
    assert_eq!(database.count().await, 1, "that of the other owner");
}

/// Triggers, row-level security and constraints may refuse one of the rows.
#[tokio::test]
async fn a_call_that_is_refused_refuses_no_other_one() {
    for code in ["P0001", "42501"] {
        a_row_is_refused(code).await;
    }
}

async fn a_row_is_refused(code: &str) {
    let database = Database::new().await;
    database
        .run(&format!(
            "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF coalesce(NEW.key, OLD.key) = 'k100' THEN RAISE 'not this one' USING ERRCODE = '{code}'; END IF; \
             RETURN coalesce(NEW, OLD); END $$; \
             CREATE TRIGGER refused BEFORE INSERT OR DELETE ON distributed_locks FOR EACH ROW EXECUTE FUNCTION refused()",
        ))
        .await;
    let client = database.patient_client().await;
    let mut guards = Vec::new();
    for (key, outcome) in keys().zip(try_all(&client, keys()).await) {
        match outcome {
            Ok(Some(guard)) => guards.push(guard),
            Err(LockError::Unavailable { cause, .. } | LockError::Denied { cause, .. })
                if key == "k100" =>
            {
                assert!(cause.contains("not this one"), "{cause}");
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    assert_eq!(guards.len(), CALLS - 1);
    database.run("ALTER TABLE distributed_locks DISABLE TRIGGER refused").await;
    let held = client.lock("k100").acquire().await.expect("free");
    guards.push(held);
    database.run("ALTER TABLE distributed_locks ENABLE TRIGGER refused").await;
    let releases = guards.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    let refused = outcomes_of(releases).await.into_iter().filter(Result::is_err).count();
    assert_eq!(refused, 1);
    assert_eq!(database.count().await, 1);
}

/// Two clients that ask for the same keys, in opposite orders.
#[tokio::test]
async fn statements_that_share_keys_do_not_wait_for_each_other_in_a_circle() {
    let database = Database::new().await;
    // A circle is found before a statement has waited for as long as it may.
    let name = &database.name;
    database.run(&format!("ALTER DATABASE \"{name}\" SET deadlock_timeout = '20ms'")).await;
    // So that the insertions of two statements take place at the same time.
    database
        .run(&format!(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM pg_sleep({}); RETURN NEW; END $$; \
             CREATE TRIGGER slow BEFORE INSERT ON distributed_locks FOR EACH ROW EXECUTE FUNCTION slow()",
            (LEASE / 200).as_secs_f64()
        ))
        .await;
    let (one, two) = (database.patient_client().await, database.patient_client().await);
    for round in 0..5 {
        let granted = tokio::join!(granted(&one, round, false), granted(&two, round, true));
        assert_eq!(granted.0 + granted.1, 8 + 8 + 24, "each key has one owner");
    }
    // A process of the server reports what it has counted with a later statement.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    tokio::join!(granted(&one, 5, false), granted(&two, 5, true));
    let session = database.session(&database.name).await;
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = session.query_one(sql, &[]).await.expect("a view of the system").get(0);
    assert_eq!(deadlocks, 0, "statements wait for each other in a circle");
}

/// Tries keys that both clients want, in one of two orders. Returns how many were granted.
async fn granted(client: &LockClient, round: usize, is_reversed: bool) -> usize {
    // The first ones take the connections.
    let own = (0..8).map(|number| format!("{is_reversed}-{round}-{number}"));
    let mut shared: Vec<_> = (0..24).map(|number| format!("{round}-{number:02}")).collect();
    if is_reversed {
        shared.reverse();
    }
    let outcomes = try_all(client, own.chain(shared)).await;
    outcomes
        .into_iter()
        .filter_map(|outcome| outcome.expect("an answer"))
        .map(std::mem::forget)
        .count()
}
