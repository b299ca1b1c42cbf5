//! A write that arrives after its lock was lost, and a table that rejects the write.
//!
//! ```text
//! cargo run -p lock-example-sqlite --bin fencing
//! LOCK_URL=redis://127.0.0.1:6379 cargo run -p lock-example-sqlite --bin fencing
//! ```
//!
//! Ada's write is delayed, as by a slow disk or a paused process. Her lease expires, and Bob
//! acquires the lock and writes. Then Ada's write arrives.

#![forbid(unsafe_code)]

mod ledger;

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, distributed_lock};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::ledger::{Ledger, LedgerError};

/// A short lease, so that the example does not wait long for its end.
const LEASE: Duration = Duration::from_secs(1);
const ACCOUNT: i64 = 1;

struct Teller {
    name: &'static str,
    locks: LockClient,
    ledger: Arc<Ledger>,
    /// The pending write. It is stored here because the body that started the write may be dropped
    /// before the write completes.
    write: Option<JoinHandle<Result<(), LedgerError>>>,
    /// Whether writes carry their fencing token.
    fenced: bool,
    /// Delays the next write until the sender is dropped.
    stuck: Option<mpsc::Receiver<Infallible>>,
    story: TellerStory,
}

/// Why a deposit failed, or why its outcome is unknown.
#[derive(Debug, thiserror::Error)]
enum TellerError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("the ledger's thread failed: {0}")]
    Thread(#[from] JoinError),
}

#[distributed_lock(key = "account:<account>", guard = lock, client = teller.locks, lease = LEASE)]
async fn deposit(teller: &mut Teller, account: i64, amount: i64) -> Result<(), TellerError> {
    let token = lock.fencing_token().await?;
    let balance = ask(&teller.ledger, move |ledger| ledger.read_fenced(account, token)).await?;
    teller.tell(&format!("acquired the lock with token {token}, read {balance}, adds {amount}"));
    teller.begin_write(account, token, balance + amount);
    teller.written().await?;
    teller.tell(&format!("wrote {}", balance + amount));
    Ok(())
}

impl Teller {
    /// Starts a write on a thread that may block, because SQLite blocks. If the lock is lost, the
    /// body is dropped, but the thread continues and its write can be late. The fencing token
    /// protects against late writes.
    fn begin_write(&mut self, account: i64, token: u64, balance: i64) {
        let (ledger, fenced, stuck) = (Arc::clone(&self.ledger), self.fenced, self.stuck.take());
        if stuck.is_some() {
            self.tell("started a write that is delayed, as by a slow disk or a paused process");
        }
        self.write = Some(spawn_blocking(move || {
            if let Some(stuck) = stuck {
                // `recv` returns when the sender is dropped. No message is ever sent.
                let _ = stuck.recv();
            }
            if fenced {
                ledger.write_fenced(account, token, balance)
            } else {
                ledger.write_unfenced(account, balance)
            }
        }));
    }

    /// Waits for the pending write. Cancel safe: the next call waits for the same write.
    async fn written(&mut self) -> Result<(), TellerError> {
        let Some(write) = &mut self.write else { return Ok(()) };
        let written = write.await;
        self.write = None;
        Ok(written??)
    }

    fn tell(&self, what: &str) {
        self.story.tell(self.name, what);
    }
}

/// Runs an operation of the ledger on a thread that may block.
async fn ask<T: Send + 'static>(
    ledger: &Arc<Ledger>,
    question: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, TellerError> {
    let ledger = Arc::clone(ledger);
    Ok(spawn_blocking(move || question(&ledger)).await??)
}

/// Prints events with the time since the start.
#[derive(Clone, Copy)]
struct TellerStory(Instant);

impl TellerStory {
    fn tell(self, who: &str, what: &str) {
        println!("{:>5.2} s  {who:<4} {what}", self.0.elapsed().as_secs_f64());
    }
}

/// Ada adds 50 to an account with a balance of 100, Bob adds 30, and Ada's write is late.
async fn two_deposits(
    story: TellerStory,
    locks: &LockClient,
    fenced: bool,
) -> Result<(), TellerError> {
    let ledger = Arc::new(Ledger::in_memory()?);
    ask(&ledger, |ledger| ledger.open_account(ACCOUNT, 100)).await?;
    let teller = |name| Teller {
        name,
        locks: locks.clone(),
        ledger: Arc::clone(&ledger),
        write: None,
        fenced,
        stuck: None,
        story,
    };
    let (mut ada, mut bob) = (teller("Ada"), teller("Bob"));

    let (release, stuck) = mpsc::channel();
    ada.stuck = Some(stuck);
    match deposit(&mut ada, ACCOUNT, 50).await {
        Err(TellerError::Lock(error @ LockError::Lost { .. })) => {
            ada.tell(&format!("was stopped: {error}"));
            ada.tell("still has a pending write, which cannot be cancelled");
        }
        other => other?,
    }
    deposit(&mut bob, ACCOUNT, 30).await?;
    drop(release);
    match ada.written().await {
        Err(TellerError::Ledger(error @ LedgerError::StaleWriter { .. })) => {
            ada.tell(&format!("wrote too late and was rejected: {error}"));
            ada.tell("retries, because nothing was written");
            deposit(&mut ada, ACCOUNT, 50).await?;
        }
        other => {
            other?;
            ada.tell("wrote too late and overwrote Bob's write");
        }
    }

    let balance = ask(&ledger, |ledger| ledger.read(ACCOUNT)).await?;
    let verdict = match 100 + 50 + 30 - balance {
        0 => "nothing was lost".to_owned(),
        lost => format!("{lost} were lost without an error"),
    };
    story.tell("", &format!("100 + 50 + 30 became {balance}: {verdict}."));
    Ok(())
}

async fn run() -> Result<(), TellerError> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".into());
    let locks = LockClient::connect(&url).await?;
    if url.starts_with("memory:") {
        println!("Locks are stored in memory. Set LOCK_URL=redis://… to store them in Redis.\n");
    } else {
        println!("Locks are stored in Redis.\n");
    }
    let story = TellerStory(Instant::now());

    println!("With a fence: the table rejects a token that is lower than one it has already seen.");
    two_deposits(story, &locks, true).await?;
    println!("\nWithout a fence: a lock alone cannot stop a pending write.");
    two_deposits(story, &locks, false).await?;

    locks.shutdown().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fencing: {error}");
            ExitCode::FAILURE
        }
    }
}
