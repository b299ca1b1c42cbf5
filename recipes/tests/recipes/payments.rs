//! Commit before release.

use std::process::{Command, Output};

use lock_recipes::payments::{PaymentDesk, PaymentError, pay, pay_without_commit};
use lock_runtime::{LockClient, LockError};
use lock_tests::RedisServer;
use tokio::time::timeout;

use crate::{PATIENCE, new_database};

#[tokio::test]
async fn a_commit_inside_the_annotated_function_pays_once() {
    let (database, _directory) = new_database().await;
    let desk = PaymentDesk::open(LockClient::memory(), database).await.expect("a new table");
    let outcomes = desk.click_twice(7).await;
    assert!(
        matches!(outcomes, [Ok(()), Err(PaymentError::AlreadyPaid(7))]),
        "the calls get the lock in order: {outcomes:?}"
    );
    assert_eq!(desk.payments(7).await.expect("a number"), 1);
    assert!(matches!(pay_without_commit(&desk, 7).await, Err(PaymentError::AlreadyPaid(7))));
}

/// The negative control of the test above.
#[tokio::test]
async fn a_commit_after_the_annotated_function_pays_twice() {
    let (database, _directory) = new_database().await;
    let desk = PaymentDesk::open(LockClient::memory(), database).await.expect("a new table");
    let clicks = desk.click_twice_on_the_wrong_page(7);
    timeout(PATIENCE, clicks).await.expect("in time").expect("nothing refuses it");
    assert_eq!(desk.payments(7).await.expect("a number"), 2);
}

#[tokio::test]
async fn a_call_that_is_dropped_pays_nothing() {
    let (database, _directory) = new_database().await;
    let desk = PaymentDesk::open(LockClient::memory(), database).await.expect("a new table");
    drop(pay_without_commit(&desk, 7).await.expect("not paid"));
    assert_eq!(desk.payments(7).await.expect("a number"), 0);
    pay(&desk, 7).await.expect("not paid, and the lock is free");
}

#[tokio::test]
async fn the_errors_of_the_lock_and_of_the_database_are_returned() {
    let (database, _directory) = new_database().await;
    let locks = LockClient::memory();
    let desk = PaymentDesk::open(locks.clone(), database.clone()).await.expect("a new table");
    let again = PaymentDesk::open(locks.clone(), database.clone()).await;
    assert!(matches!(again, Err(PaymentError::Database(_))), "the table exists");
    sqlx::query("DROP TABLE payment").execute(&database).await.expect("a table");
    assert!(matches!(pay(&desk, 7).await, Err(PaymentError::Database(_))), "no table");
    locks.shutdown().await.expect("nothing is held");
    assert!(matches!(pay(&desk, 7).await, Err(PaymentError::Lock(LockError::ShutDown))));
}

fn run(url: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_payments");
    Command::new(program).env("LOCK_URL", url).output().expect("built with the tests")
}

#[test]
fn the_program_shows_both() {
    let server = RedisServer::start();
    for url in ["memory:", &server.url()] {
        let output = run(url);
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}{complained}");
        assert_eq!(
            said,
            "Two clicks, and the commit inside the annotated function:\n  paid\n  refused: order 7 is already paid\n  \
             payments of order 7: 1\nTwo clicks, and the commit after the annotated function has returned:\n  \
             payments of order 8: 2\n"
        );
    }
}

#[test]
fn the_program_says_what_is_wrong() {
    let output = run("postgres://localhost");
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.starts_with("payments: ") && complaint.lines().count() == 1, "{complaint}");
}
