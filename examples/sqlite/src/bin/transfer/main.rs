//! Transfers between accounts. Each one locks both accounts, and tasks take random pairs in any
//! order. No transfer is lost, and none waits for another one forever.
//!
//! ```text
//! cargo run -p lock-example-sqlite --bin transfer
//! LOCK_URL=redis://127.0.0.1:6379 ACCOUNTS=accounts.db cargo run -p lock-example-sqlite --bin transfer
//! ```
//!
//! With the second command, several processes may share the accounts. Kill one of them at any time:
//! its locks are free after a lease, and the sum of all balances stays the same.

#![forbid(unsafe_code)]

mod accounts;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, distributed_lock};
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use crate::accounts::{Accounts, AccountsError};

/// A short lease, so that the locks of a process that is killed are soon free.
const LEASE: Duration = Duration::from_secs(1);
const ACCOUNTS: u32 = 6;
const BALANCE: i64 = 1000;
const TASKS: u32 = 8;
const TRANSFERS: u32 = 25;

#[derive(Clone)]
struct Bank {
    locks: LockClient,
    accounts: Arc<Accounts>,
}

#[derive(Debug, thiserror::Error)]
enum BankError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    #[error("a thread failed: {0}")]
    Thread(#[from] JoinError),
}

/// Moves an amount from one account to another. The token is one for both accounts, and higher than
/// those of all earlier holders of either lock.
#[distributed_lock(
    keys = ["account:<from>", "account:<to>"], guard = both, client = bank.locks, wait = "1m"
)]
async fn transfer(bank: &Bank, from: u32, to: u32, amount: i64) -> Result<(), BankError> {
    let token = both.fencing_token().await?;
    let [before_from, before_to] = bank.ask(move |it| it.read([from, to], token)).await?;
    // Time in which another holder of the locks would do damage.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let after = [(from, before_from - amount), (to, before_to + amount)];
    bank.ask(move |it| it.write(after, token)).await
}

impl Bank {
    /// Runs an operation on a thread that may block.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Accounts) -> Result<T, AccountsError> + Send + 'static,
    ) -> Result<T, BankError> {
        let accounts = Arc::clone(&self.accounts);
        Ok(spawn_blocking(move || question(&accounts)).await??)
    }
}

/// Makes random transfers. Returns how many succeeded.
async fn teller(bank: Bank) -> Result<u32, BankError> {
    let mut done = 0;
    while done < TRANSFERS {
        let (from, other) = (fastrand::u32(0..ACCOUNTS), fastrand::u32(1..ACCOUNTS));
        let to = (from + other) % ACCOUNTS;
        match transfer(&bank, from, to, fastrand::i64(1..100)).await {
            Ok(()) => done += 1,
            // The locks were lost, or a write came too late. Nothing was written, so it can be tried
            // again.
            Err(
                BankError::Lock(LockError::Lost { .. }) | BankError::Accounts(AccountsError::Stale),
            ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

async fn run() -> Result<(), BankError> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".to_owned());
    let file = std::env::var_os("ACCOUNTS").map(PathBuf::from);
    let locks = LockClient::builder().url(url).lease(LEASE).connect().await?;
    // A file of this name is in memory.
    let file = file.unwrap_or_else(|| PathBuf::from(":memory:"));
    let accounts = spawn_blocking(move || Accounts::open(&file, ACCOUNTS, BALANCE)).await??;
    let bank = Bank { locks, accounts: Arc::new(accounts) };
    let mut tellers = JoinSet::new();
    for _ in 0..TASKS {
        tellers.spawn(teller(bank.clone()));
    }
    let mut transfers = 0;
    while let Some(teller) = tellers.join_next().await {
        transfers += teller??;
    }
    let sum = bank.ask(Accounts::sum).await?;
    println!("{transfers} transfers between {ACCOUNTS} accounts, whose sum is {sum}");
    bank.locks.shutdown().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}
