//! A fence in the same transaction as the write.

use std::time::Duration;

use lock_recipes::fenced::{FencedAccounts, FencedError, deposit};
use lock_runtime::LockClient;
use lock_runtime::fence::FenceError;

use crate::new_database;

#[tokio::test]
async fn a_holder_whose_lease_has_ended_cannot_write_after_a_later_one() {
    let (database, _directory) = new_database().await;
    let locks = LockClient::memory();
    let accounts = FencedAccounts::open(locks.clone(), database.clone(), 7, 100).await;
    let accounts = accounts.expect("new tables");

    // A process that is paused does not notice that its lease ends.
    let lock = locks.lock("account:7").lease(Duration::from_secs(1));
    let paused = lock.acquire().await.expect("the lock is free");
    let token = paused.fencing_token().await.expect("held");
    paused.lost().await;
    deposit(&accounts, 7, 30).await.expect("the lock is free");
    match accounts.begin_fenced(7, token).await {
        Err(FencedError::Fence(FenceError::Stale {
            resource, token: refused, recorded, ..
        })) => {
            assert_eq!((resource.as_str(), refused), ("account:7", token));
            assert!(recorded > token);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(accounts.balance(7).await.expect("an account"), 130);

    // The same holder without a fence.
    let late = "UPDATE account SET balance = 150 WHERE id = 7";
    sqlx::query(late).execute(&database).await.expect("nothing refuses it");
    assert_eq!(accounts.balance(7).await.expect("an account"), 150);
}

#[tokio::test]
async fn a_holder_may_write_after_its_lease_if_nobody_else_has() {
    let (database, _directory) = new_database().await;
    let locks = LockClient::memory();
    let accounts = FencedAccounts::open(locks.clone(), database, 7, 100).await.expect("new tables");
    let lock = locks.lock("account:7").lease(Duration::from_secs(1));
    let paused = lock.acquire().await.expect("the lock is free");
    let token = paused.fencing_token().await.expect("held");
    paused.lost().await;
    let transaction = accounts.begin_fenced(7, token).await.expect("the highest token");
    transaction.rollback().await.expect("the only writer");
}

#[tokio::test]
async fn a_database_without_the_table_is_reported() {
    let (database, _directory) = new_database().await;
    let accounts = FencedAccounts::open(LockClient::memory(), database.clone(), 7, 100).await;
    let accounts = accounts.expect("new tables");
    sqlx::query("DROP TABLE lock_fence").execute(&database).await.expect("a table");
    let refused = deposit(&accounts, 7, 30).await.expect_err("no table");
    assert!(matches!(refused, FencedError::Fence(FenceError::NoTable { .. })), "{refused:?}");
    assert!(matches!(accounts.balance(8).await, Err(FencedError::Database(_))), "no account");
}
