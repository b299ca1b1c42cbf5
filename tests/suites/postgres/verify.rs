//! Verifying a lock in a transaction of the program.

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::support::{LEASE, until};

use crate::Database;

/// A table that a transaction of the program writes to.
pub(crate) const ACCOUNT: &str =
    "CREATE TABLE account (balance int8 NOT NULL); INSERT INTO account VALUES (0)";
pub(crate) const DEPOSIT: &str = "UPDATE account SET balance = balance + 1";

pub(crate) async fn balance(database: &Database) -> i64 {
    let session = database.session(&database.name).await;
    session.query_one("SELECT balance FROM account", &[]).await.expect("the table").get(0)
}

#[tokio::test]
async fn nobody_gets_a_verified_lock_before_the_transaction_ends() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let (one, two) = (database.client().await, database.client().await);
    // Nothing renews it.
    let guard = one.lock("k").lease(LEASE * 2).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let mut transaction = session.transaction().await.expect("it is up");
    transaction.execute(DEPOSIT, &[]).await.expect("the table");
    guard.verify_in(&mut transaction).await.expect("held");
    assert_eq!(guard.lost().await, LostReason::LeaseOver);
    tokio::time::sleep(LEASE).await;
    let busy = two.lock("k").wait(LEASE * 2).acquire().await.map(drop);
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    transaction.commit().await.expect("it is up");
    two.lock("k").wait(LEASE * 60).acquire().await.expect("free").release().await.expect("held");
    assert_eq!(balance(&database).await, 1);
}

/// The control: without the verification, the lease ends under the open transaction.
#[tokio::test]
async fn somebody_gets_a_lock_that_the_transaction_has_not_verified() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let (one, two) = (database.client().await, database.client().await);
    let guard = one.lock("k").lease(LEASE / 2).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let transaction = session.transaction().await.expect("it is up");
    transaction.execute(DEPOSIT, &[]).await.expect("the table");
    assert_eq!(guard.lost().await, LostReason::LeaseOver);
    let other = two.lock("k").wait(LEASE * 60).acquire().await.expect("free");
    transaction.commit().await.expect("a stale commit");
    assert!(other.is_held());
}

/// The next call of the same process would otherwise run before the transaction has ended, on the same lease.
#[tokio::test]
async fn a_verified_lock_is_not_handed_off_before_the_transaction_ends() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let client = database.client().await;
    // The control: without the verification, the lock is handed off at once.
    for verifies in [false, true] {
        let guard = client.lock("k").lease(LEASE * 60).acquire().await.expect("free");
        let waiting = {
            let lock = client.lock("k").wait(LEASE * 60);
            tokio::spawn(async move { lock.acquire().await })
        };
        let mut session = database.session(&database.name).await;
        let mut transaction = session.transaction().await.expect("it is up");
        transaction.execute(DEPOSIT, &[]).await.expect("the table");
        if verifies {
            guard.verify_in(&mut transaction).await.expect("held");
        }
        let is_waiting = || client.stats().queued == 1;
        assert!(until(LEASE * 20, is_waiting).await.is_some(), "the call waits");
        drop(guard);
        if verifies {
            tokio::time::sleep(LEASE).await;
            assert!(!waiting.is_finished(), "handed off under an open transaction");
        } else {
            let handed_off = until(LEASE * 20, || waiting.is_finished()).await;
            assert!(handed_off.is_some(), "a lock that was not verified");
        }
        transaction.commit().await.expect("it is up");
        let next = waiting.await.expect("no panic").expect("after the transaction");
        next.release().await.expect("held");
    }
    assert_eq!(balance(&database).await, 2);
}

#[tokio::test]
async fn a_lost_lock_is_not_verified() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let client = database.client().await;
    let mut session = database.session(&database.name).await;
    for (sql, reason) in [
        ("DELETE FROM distributed_locks", LostReason::Gone),
        ("UPDATE distributed_locks SET owner = 'other'", LostReason::Taken),
    ] {
        let guard = client.lock("k").acquire().await.expect("free");
        let mut transaction = session.transaction().await.expect("it is up");
        transaction.execute(DEPOSIT, &[]).await.expect("the table");
        database.run(sql).await;
        match guard.verify_in(&mut transaction).await {
            Err(LockError::Lost { reason: found, .. }) => assert_eq!(found, reason),
            other => panic!("{other:?}"),
        }
        drop(transaction);
        database.run("DELETE FROM distributed_locks").await;
    }
    assert_eq!(balance(&database).await, 0);
    let elsewhere = LockClient::memory();
    let guard = elsewhere.lock("k").acquire().await.expect("free");
    let mut transaction = session.transaction().await.expect("it is up");
    let refused = guard.verify_in(&mut transaction).await;
    assert!(matches!(refused, Err(LockError::Config { option: "url", .. })), "{refused:?}");
}

#[tokio::test]
async fn a_lock_is_renewed_while_a_transaction_has_verified_it() {
    let database = Database::new().await;
    let client = database.client().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let mut transaction = session.transaction().await.expect("it is up");
    guard.verify_in(&mut transaction).await.expect("held");
    tokio::time::sleep(LEASE * 3).await;
    assert!(guard.is_held());
    transaction.commit().await.expect("it is up");
    guard.release().await.expect("held");
    assert_eq!(database.count().await, 0);
}

/// Such a transaction sees the lease that the lock had when it began.
#[tokio::test]
async fn a_transaction_with_an_old_snapshot_cannot_verify_a_renewed_lock_and_says_so() {
    let database = Database::new().await;
    let client = database.client().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let pool = sqlx::PgPool::connect(&database.url()).await.expect("it is up");
    let mut session = database.session(&database.name).await;
    for (level, sees_renewals) in
        [("READ COMMITTED", true), ("REPEATABLE READ", false), ("SERIALIZABLE", false)]
    {
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}");
        let mut transaction = session.transaction().await.expect("it is up");
        let mut of_sqlx = pool.begin().await.expect("it is up");
        transaction.batch_execute(&begin).await.expect("a level");
        sqlx::raw_sql(&begin).execute(&mut *of_sqlx).await.expect("a level");
        // Takes the snapshot, and shows that a fresh one is enough.
        guard.verify_in(&mut of_sqlx).await.expect("held");
        transaction.batch_execute("SELECT FROM distributed_locks").await.expect("the table");
        tokio::time::sleep(LEASE * 2).await;
        let outcomes =
            [guard.verify_in(&mut transaction).await, guard.verify_in(&mut of_sqlx).await];
        for outcome in outcomes {
            match outcome {
                Ok(()) => assert!(sees_renewals, "{level}"),
                Err(LockError::Unavailable { cause, .. }) => {
                    assert!(!sees_renewals && cause.contains("READ COMMITTED"), "{level}: {cause}");
                }
                other => panic!("{level}: {other:?}"),
            }
        }
        assert!(guard.is_held(), "{level}");
    }
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_transaction_of_sqlx_verifies_a_lock_too() {
    let database = Database::new().await;
    database.run(ACCOUNT).await;
    let client = database.client().await;
    let pool = sqlx::PgPool::connect(&database.url()).await.expect("it is up");
    let guard = client.lock("k").acquire().await.expect("free");
    let mut transaction = pool.begin().await.expect("it is up");
    sqlx::query(DEPOSIT).execute(&mut *transaction).await.expect("the table");
    guard.verify_in(&mut transaction).await.expect("held");
    transaction.commit().await.expect("it is up");
    for (sql, reason) in [
        ("UPDATE distributed_locks SET owner = 'other'", LostReason::Taken),
        ("DELETE FROM distributed_locks", LostReason::Gone),
    ] {
        let mut transaction = pool.begin().await.expect("it is up");
        sqlx::query(DEPOSIT).execute(&mut *transaction).await.expect("the table");
        database.run(sql).await;
        match guard.verify_in(&mut transaction).await {
            Err(LockError::Lost { reason: found, .. }) => {
                assert!(found == reason || found == LostReason::Taken, "{found:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(balance(&database).await, 1);
}

#[tokio::test]
async fn several_locks_are_verified_together() {
    let database = Database::new().await;
    let client = database.client().await;
    let guard = client.lock_all(["b", "a"]).acquire().await.expect("free");
    let mut session = database.session(&database.name).await;
    let mut transaction = session.transaction().await.expect("it is up");
    guard.verify_in(&mut transaction).await.expect("held");
    transaction.commit().await.expect("it is up");
    database.run("DELETE FROM distributed_locks WHERE key = 'b'").await;
    let mut transaction = session.transaction().await.expect("it is up");
    match guard.verify_in(&mut transaction).await {
        Err(LockError::Lost { reason: LostReason::Gone, key, .. }) => assert_eq!(key, "b"),
        other => panic!("{other:?}"),
    }
}
