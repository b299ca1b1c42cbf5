//! Processes that are suspended at random while they write under a lock: none of them overwrites what a later holder has
//! written, if the transaction verifies the lock or has a fence.
//!
//! Each process reads the balance of an account, works for a moment, and writes the balance plus one. A write of a late
//! holder undoes the one of another holder, so the balance is lower than the number of deposits.

use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_runtime::{LockClient, fence};
use lock_tests::RedisServer;
use lock_tests::support::LEASE;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;

use crate::Database;

/// Short, so that there are many pauses in a short time. Renewals that come too late are what is tested.
const SHORT_LEASE: Duration = LEASE.checked_div(10).expect("not zero");

/// The accounts, and the processes for each.
const ACCOUNTS: usize = 2;
const PROCESSES: usize = 3;

/// How the data is protected beside the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protection {
    /// Not at all.
    Nothing,
    /// By `verify_in`.
    Verified,
    /// By a fence in a table.
    Fence,
}

/// How many pauses a test makes: several hundred, unless `scripts/soak verify` says more.
fn pauses() -> usize {
    let wanted = std::env::var("LOCK_PAUSES").ok().and_then(|number| number.parse().ok());
    wanted.unwrap_or(300)
}

/// The deposits, and those that are missing in the balances.
#[derive(Debug)]
struct Deposits {
    count: i64,
    undone: i64,
}

/// Processes that write to the accounts. They end when this is dropped.
struct Depositors {
    children: Vec<Child>,
}

impl Depositors {
    fn start(locks: &str, database: &str, protection: Protection) -> Self {
        let start = |number: usize| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--ignored", "--exact", "pauses::depositor"]);
            command.env("LOCK_DEPOSITOR_LOCKS", locks).env("LOCK_DEPOSITOR_DATABASE", database);
            command.env("LOCK_DEPOSITOR_PROTECTION", format!("{protection:?}"));
            command.env("LOCK_DEPOSITOR_ACCOUNT", (number % ACCOUNTS).to_string());
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.spawn().expect("this program starts again")
        };
        Self { children: (0..ACCOUNTS * PROCESSES).map(start).collect() }
    }

    /// Suspends each process at random, until all together were suspended this often or `is_enough` is true.
    async fn pause(&self, count: usize, is_enough: &mut impl AsyncFnMut() -> bool) -> usize {
        let mut paused = 0;
        while paused < count && !is_enough().await {
            // A tenth of the pauses between two looks.
            let each = (count / self.children.len() / 10).max(1);
            let suspended = self.children.iter().map(|child| {
                let pid = Pid::from_child(child);
                tokio::spawn(async move {
                    for _ in 0..each {
                        sleep(SHORT_LEASE.mul_f64(fastrand::f64())).await;
                        // Children are waited for at the end, so the id still belongs to them.
                        let _ = kill_process(pid, Signal::STOP);
                        sleep(SHORT_LEASE.mul_f64(0.25 + 2.0 * fastrand::f64())).await;
                        let _ = kill_process(pid, Signal::CONT);
                    }
                })
            });
            for child in suspended.collect::<Vec<_>>() {
                child.await.expect("no panic");
                paused += each;
            }
        }
        paused
    }
}

impl Drop for Depositors {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the processes have done, and how often they were suspended: `pauses()` times, or until a deposit was undone.
async fn run(locks: Option<&str>, protection: Protection, until_undone: bool) -> Deposits {
    let database = Database::new().await;
    database
        .run(&format!(
            "CREATE TABLE account (id int8 PRIMARY KEY, balance int8 NOT NULL); \
             CREATE TABLE deposit (account int8 NOT NULL); \
             INSERT INTO account SELECT id, 0 FROM generate_series(0, {}) AS id; {}",
            ACCOUNTS - 1,
            fence::POSTGRES_TABLE
        ))
        .await;
    let session = database.session(&database.name).await;
    let deposits = async || {
        let sql = "SELECT (SELECT count(*) FROM deposit), \
                   (SELECT count(*) FROM deposit) - (SELECT sum(balance) FROM account)::int8";
        let row = session.query_one(sql, &[]).await.expect("the tables");
        Deposits { count: row.get(0), undone: row.get(1) }
    };
    let url = database.url();
    let depositors = Depositors::start(locks.unwrap_or(&url), &url, protection);
    while deposits().await.count == 0 {
        sleep(SHORT_LEASE).await;
    }
    let mut is_enough = async || until_undone && deposits().await.undone > 0;
    let paused = depositors.pause(pauses(), &mut is_enough).await;
    drop(depositors);
    let deposits = deposits().await;
    println!(
        "{protection:?}, locks in {}: {paused} pauses, {deposits:?}",
        locks.map_or("PostgreSQL", |_| "Redis")
    );
    deposits
}

#[tokio::test]
async fn a_verified_transaction_is_never_that_of_a_late_holder() {
    let deposits = run(None, Protection::Verified, false).await;
    assert!(deposits.count > 0 && deposits.undone == 0, "{deposits:?}");
}

/// The control.
#[tokio::test]
async fn late_holders_undo_deposits_without_a_verification() {
    let deposits = run(None, Protection::Nothing, true).await;
    assert!(deposits.undone > 0, "{deposits:?}");
}

/// The same with Redis.
#[tokio::test]
async fn a_fenced_transaction_is_never_that_of_a_late_holder() {
    let redis = RedisServer::start();
    let deposits = run(Some(&redis.url()), Protection::Fence, false).await;
    assert!(deposits.count > 0 && deposits.undone == 0, "{deposits:?}");
}

/// The control.
#[tokio::test]
async fn late_holders_undo_deposits_without_a_fence() {
    let redis = RedisServer::start();
    let deposits = run(Some(&redis.url()), Protection::Nothing, true).await;
    assert!(deposits.undone > 0, "{deposits:?}");
}

/// One of the processes.
#[tokio::test]
#[ignore = "the tests above start it"]
async fn depositor() {
    let Ok(locks) = std::env::var("LOCK_DEPOSITOR_LOCKS") else { return };
    let of = |name: &str| std::env::var(format!("LOCK_DEPOSITOR_{name}")).expect("it is set");
    let account: i64 = of("ACCOUNT").parse().expect("a number");
    let protection = match of("PROTECTION").as_str() {
        "Verified" => Protection::Verified,
        "Fence" => Protection::Fence,
        _ => Protection::Nothing,
    };
    let client = LockClient::builder().url(locks).lease(SHORT_LEASE).wait(LEASE);
    let client = client.connect().await.expect("the server is up");
    let mut session = PgConnection::connect(&of("DATABASE")).await.expect("the server is up");
    loop {
        // An error is one of a lock that was lost, or of a server that had no time. The next deposit begins anew.
        let _ = deposit(&client, &mut session, account, protection).await;
    }
}

async fn deposit(
    client: &LockClient,
    session: &mut PgConnection,
    account: i64,
    protection: Protection,
) -> Result<(), Box<dyn Error>> {
    let guard = client.lock(format!("account:{account}")).acquire().await?;
    if protection == Protection::Fence {
        let token = guard.fencing_token().await?;
        let mut transaction = session.begin().await?;
        if let Err(late) = fence::raise(&mut transaction, guard.key(), token).await {
            transaction.rollback().await?;
            return Err(late.into());
        }
        let balance = balance(&mut transaction, account).await?;
        write(&mut transaction, account, balance + 1).await?;
        transaction.commit().await?;
    } else {
        let balance = balance(session, account).await?;
        let mut transaction = session.begin().await?;
        write(&mut transaction, account, balance + 1).await?;
        if protection == Protection::Verified
            && let Err(lost) = guard.verify_in(&mut transaction).await
        {
            // A dropped transaction of sqlx is only rolled back when its connection is used again.
            transaction.rollback().await?;
            return Err(lost.into());
        }
        transaction.commit().await?;
    }
    guard.release().await?;
    Ok(())
}

async fn balance(session: &mut PgConnection, account: i64) -> Result<i64, sqlx::Error> {
    let sql = "SELECT balance FROM account WHERE id = $1";
    let balance = sqlx::query_scalar(sql).bind(account).fetch_one(session).await?;
    work().await;
    Ok(balance)
}

async fn write(session: &mut PgConnection, account: i64, balance: i64) -> Result<(), sqlx::Error> {
    let sql = "UPDATE account SET balance = $2 WHERE id = $1";
    sqlx::query(sql).bind(account).bind(balance).execute(&mut *session).await?;
    let sql = "INSERT INTO deposit VALUES ($1)";
    sqlx::query(sql).bind(account).execute(session).await?;
    work().await;
    Ok(())
}

async fn work() {
    sleep(SHORT_LEASE.mul_f64(fastrand::f64() / 8.0)).await;
}
