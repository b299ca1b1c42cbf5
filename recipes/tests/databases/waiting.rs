//! What happens when two transactions raise the same fence, in databases that lock rows.

use std::time::{Duration, Instant};

use lock_runtime::fence::{self, FenceError};
use lock_runtime::{LockClient, LockError};
use sqlx::{Pool, Transaction};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::cases::{FenceFixture, TestedDatabase, assert_stale};

/// How long a transaction may take to begin to wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database that can tell how many transactions wait.
pub(crate) trait BlockingDatabase: TestedDatabase {
    const WAITING: &'static str;
}

/// Makes a test of each case. `$database` returns a pool, and what the database needs to stay.
macro_rules! every_waiting_case {
    ($database:path) => {
        crate::waiting::every_waiting_case! {
            $database:
            an_earlier_holder_waits_for_the_commit_of_a_later_one_and_is_refused
            an_earlier_holder_waits_for_the_rollback_of_a_later_one_and_is_accepted
            a_later_holder_waits_for_an_earlier_one_and_sees_what_it_has_written
            a_deadlock_is_a_conflict
            a_commit_under_the_lock_pays_once
            a_commit_after_the_release_pays_twice
        }
    };
    ($database:path: $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                let (pool, _kept) = $database().await;
                crate::waiting::$case(pool).await;
            }
        )*
    };
}
pub(crate) use every_waiting_case;

/// Waits until a transaction waits for another one.
pub(crate) async fn until_waiting<DB: BlockingDatabase>(database: &FenceFixture<DB>) {
    let end = Instant::now() + PATIENCE;
    while database.number(DB::WAITING).await == 0 {
        assert!(Instant::now() < end, "no transaction waits");
        sleep(Duration::from_millis(10)).await;
    }
}

impl<DB: BlockingDatabase> FenceFixture<DB> {
    /// What a holder with the token 2 reads, whose transaction has also read before an earlier holder has written 130.
    pub(crate) async fn balance_under_a_fence_after_a_read(&self) -> i64 {
        let balance = "SELECT balance FROM account";
        let mut later = self.begin().await;
        assert_eq!(DB::number(&mut later, balance).await, 100);
        let mut earlier = self.begin().await;
        fence::raise(&mut earlier, "account", 1).await.expect("the first");
        DB::execute(&mut earlier, "UPDATE account SET balance = 130").await;
        earlier.commit().await.expect("the server is up");
        fence::raise(&mut later, "account", 2).await.expect("higher");
        DB::number(&mut later, balance).await
    }

    /// What this holder reads in a transaction that begins with the fence.
    pub(crate) async fn balance_under_a_fence(&self) -> i64 {
        let mut later = self.begin().await;
        fence::raise(&mut later, "account", 2).await.expect("the highest");
        DB::number(&mut later, "SELECT balance FROM account").await
    }
}

type Raised<DB> = (Transaction<'static, DB>, Result<(), FenceError>);

/// Raises a fence in a transaction that stays open.
fn raise_later<DB: BlockingDatabase>(
    mut transaction: Transaction<'static, DB>,
    resource: &'static str,
    token: u64,
) -> JoinHandle<Raised<DB>> {
    tokio::spawn(async move {
        let raised = fence::raise(&mut transaction, resource, token).await;
        (transaction, raised)
    })
}

/// Both for a resource that is new, and for one that is on record.
pub(crate) async fn an_earlier_holder_waits_for_the_commit_of_a_later_one_and_is_refused<
    DB: BlockingDatabase,
>(
    pool: Pool<DB>,
) {
    let database = FenceFixture::new(pool).await;
    for token in [2, 4] {
        let mut later = database.begin().await;
        fence::raise(&mut later, "account", token).await.expect("not lower");
        let earlier = raise_later(database.begin().await, "account", token - 1);
        until_waiting(&database).await;
        later.commit().await.expect("the server is up");
        let (_, refused) = earlier.await.expect("no panic");
        assert_stale(refused, ("account", token - 1, token));
    }
}

pub(crate) async fn an_earlier_holder_waits_for_the_rollback_of_a_later_one_and_is_accepted<
    DB: BlockingDatabase,
>(
    pool: Pool<DB>,
) {
    let database = FenceFixture::new(pool).await;
    for token in [1, 2] {
        let mut later = database.begin().await;
        fence::raise(&mut later, "account", 9).await.expect("not lower");
        let earlier = raise_later(database.begin().await, "account", token);
        until_waiting(&database).await;
        later.rollback().await.expect("the server is up");
        let (earlier, raised) = earlier.await.expect("no panic");
        raised.expect("9 is not on record");
        earlier.commit().await.expect("the server is up");
        assert_eq!(database.recorded("account").await, Some(token.cast_signed()));
    }
}

pub(crate) async fn a_later_holder_waits_for_an_earlier_one_and_sees_what_it_has_written<
    DB: BlockingDatabase,
>(
    pool: Pool<DB>,
) {
    let database = FenceFixture::with_account(pool).await;
    let mut earlier = database.begin().await;
    fence::raise(&mut earlier, "account", 1).await.expect("the first");
    DB::execute(&mut earlier, "UPDATE account SET balance = 130").await;
    let later = raise_later(database.begin().await, "account", 2);
    until_waiting(&database).await;
    earlier.commit().await.expect("the server is up");
    let (mut later, raised) = later.await.expect("no panic");
    raised.expect("higher");
    assert_eq!(DB::number(&mut later, "SELECT balance FROM account").await, 130);
    later.commit().await.expect("the server is up");
    assert_eq!(database.recorded("account").await, Some(2));
}

pub(crate) async fn a_deadlock_is_a_conflict<DB: BlockingDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    for resource in ["one", "two"] {
        database.raise(resource, 1).await.expect("the first");
    }
    let (mut ada, mut bob) = (database.begin().await, database.begin().await);
    fence::raise(&mut ada, "one", 2).await.expect("higher");
    fence::raise(&mut bob, "two", 2).await.expect("higher");
    let ada = raise_later(ada, "two", 2);
    until_waiting(&database).await;
    let bob = raise_later(bob, "one", 2);
    // The database ends one of the two, and the other one continues when the transaction has been rolled back.
    let ended = async |raised: JoinHandle<Raised<DB>>| {
        let (transaction, raised) = raised.await.expect("no panic");
        match raised {
            Ok(()) => transaction.commit().await.expect("the server is up"),
            Err(FenceError::Conflict { .. }) => {
                transaction.rollback().await.expect("the server is up");
                return 1;
            }
            Err(error) => panic!("{error}"),
        }
        0
    };
    let (ada, bob) = tokio::join!(ended(ada), ended(bob));
    assert_eq!(ada + bob, 1);
}

/// Pays an order that is not yet paid. Returns the transaction, which is open.
async fn begin_payment<DB: BlockingDatabase>(
    database: &FenceFixture<DB>,
) -> Option<Transaction<'static, DB>> {
    let mut transaction = database.begin().await;
    if DB::number(&mut transaction, "SELECT count(*) FROM payment WHERE order_id = 7").await > 0 {
        return None;
    }
    DB::execute(&mut transaction, "INSERT INTO payment VALUES (7)").await;
    Some(transaction)
}

async fn with_payments<DB: BlockingDatabase>(pool: Pool<DB>) -> FenceFixture<DB> {
    let database = FenceFixture::new(pool).await;
    database.execute("CREATE TABLE payment (order_id BIGINT NOT NULL)").await;
    database
}

pub(crate) async fn a_commit_under_the_lock_pays_once<DB: BlockingDatabase>(pool: Pool<DB>) {
    let database = with_payments(pool).await;
    let locks = LockClient::memory();
    let pay = async || {
        locks
            .lock("order:7")
            .run(async {
                if let Some(transaction) = begin_payment(&database).await {
                    transaction.commit().await.expect("the server is up");
                }
            })
            .await
    };
    let (one, other) = tokio::join!(pay(), pay());
    one.and(other).expect("the lock is free");
    assert_eq!(database.number("SELECT count(*) FROM payment").await, 1);
}

/// The negative control of the case above: both transactions see an order that is not paid.
pub(crate) async fn a_commit_after_the_release_pays_twice<DB: BlockingDatabase>(pool: Pool<DB>) {
    let database = with_payments(pool).await;
    let locks = LockClient::memory();
    let begin = async || -> Result<_, LockError> {
        locks.lock("order:7").run(async { begin_payment(&database).await }).await
    };
    let one = begin().await.expect("the lock is free").expect("not paid");
    let other = begin().await.expect("the lock is free").expect("not paid");
    one.commit().await.expect("the server is up");
    other.commit().await.expect("the server is up");
    assert_eq!(database.number("SELECT count(*) FROM payment").await, 2);
}
