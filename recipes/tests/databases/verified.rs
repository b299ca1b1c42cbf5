//! A transaction that commits only if the lock is still held then.

use futures_util::future::join_all;
use lock_recipes::verified::{VerifiedAccounts, VerifiedError, deposit_verified};
use lock_runtime::{LockError, LostReason};
use lock_tests::DatabaseServer;

#[tokio::test]
async fn a_deposit_whose_lock_was_lost_is_not_committed() {
    let server = DatabaseServer::postgres_alone(&[], &[]);
    let accounts = VerifiedAccounts::open(&server.url("postgres"), 7, 100).await;
    let accounts = accounts.expect("a new database");
    let deposits = join_all((0..10).map(|_| deposit_verified(&accounts, 7, 5))).await;
    assert!(deposits.iter().all(Result::is_ok), "{deposits:?}");
    assert_eq!(accounts.balance(7).await.expect("an account"), 150);

    // The lock is taken by force while the deposit is written.
    let force = "CREATE FUNCTION force() RETURNS trigger LANGUAGE plpgsql AS $$ \
                 BEGIN DELETE FROM distributed_locks; RETURN NULL; END $$; \
                 CREATE TRIGGER force AFTER UPDATE ON account EXECUTE FUNCTION force()";
    sqlx::raw_sql(force).execute(accounts.database()).await.expect("valid SQL");
    match deposit_verified(&accounts, 7, 5).await {
        Err(VerifiedError::Lock(LockError::Lost { reason: LostReason::Gone, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(accounts.balance(7).await.expect("an account"), 150);
    // The same without a verification.
    let late = "UPDATE account SET balance = 155 WHERE id = 7";
    sqlx::query(late).execute(accounts.database()).await.expect("nothing refuses it");
    assert_eq!(accounts.balance(7).await.expect("an account"), 155);
}
