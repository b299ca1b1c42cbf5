//! A customer clicks twice on "pay". With the commit inside the annotated function, the order is paid once; with a
//! commit by its caller, it is paid twice.
//!
//! ```text
//! cargo run -p lock-recipes --bin payments
//! LOCK_URL=redis://127.0.0.1:6379 cargo run -p lock-recipes --bin payments
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use lock_recipes::payments::PaymentDesk;
use lock_runtime::LockClient;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".into());
    let locks = LockClient::connect(&url).await?;
    let directory = tempfile::tempdir()?;
    // In this mode, readers do not wait for a transaction that writes, as in other databases.
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("payments.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let desk = PaymentDesk::open(locks.clone(), SqlitePool::connect_with(options).await?).await?;

    println!("Two clicks, and the commit inside the annotated function:");
    for outcome in desk.click_twice(7).await {
        match outcome {
            Ok(()) => println!("  paid"),
            Err(error) => println!("  refused: {error}"),
        }
    }
    println!("  payments of order 7: {}", desk.payments(7).await?);

    println!("Two clicks, and the commit after the annotated function has returned:");
    desk.click_twice_on_the_wrong_page(8).await?;
    println!("  payments of order 8: {}", desk.payments(8).await?);

    locks.shutdown().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payments: {error}");
            ExitCode::FAILURE
        }
    }
}
