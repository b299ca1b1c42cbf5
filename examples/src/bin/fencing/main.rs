//! A write that arrives after its lock is gone, and a table that refuses it.
//!
//! ```text
//! cargo run -p lock-examples --bin fencing
//! LOCK_URL=redis://127.0.0.1:6379 cargo run -p lock-examples --bin fencing
//! ```
//!
//! Ada's write is stuck on its way, as behind a slow disk or in a process that is paused. Her lease
//! ends meanwhile, and Bob takes the lock and writes. Then Ada's write arrives.

mod ledger;

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, distributed_lock};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::ledger::{Ledger, LedgerError};

/// Short, so that its end can be watched.
const LEASE: Duration = Duration::from_secs(1);
const ACCOUNT: i64 = 1;

struct Teller {
    name: &'static str,
    locks: LockClient,
    ledger: Arc<Ledger>,
    /// The write that is on its way. Kept here, because the body that began it may be dropped before
    /// it arrives.
    write: Option<JoinHandle<Result<(), LedgerError>>>,
    /// For the story: whether writes carry their token.
    fenced: bool,
    /// For the story: holds up the next write until the other end is dropped.
    stuck: Option<mpsc::Receiver<Infallible>>,
    story: Story,
}

/// Why a deposit was not made, as far as the teller knows.
#[derive(Debug, thiserror::Error)]
enum TellerError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("the ledger's thread did not finish: {0}")]
    Thread(#[from] JoinError),
}

#[distributed_lock(key = "account:<account>", guard = lock, client = teller.locks, lease = LEASE)]
async fn deposit(teller: &mut Teller, account: i64, amount: i64) -> Result<(), TellerError> {
    let token = lock.fencing_token().await?;
    let balance = ask(&teller.ledger, move |ledger| ledger.read_fenced(account, token)).await?;
    teller.tell(&format!("has the lock, with token {token}; reads {balance}, adds {amount}"));
    teller.begin_write(account, token, balance + amount);
    teller.written().await?;
    teller.tell(&format!("wrote {}", balance + amount));
    Ok(())
}

impl Teller {
    /// SQLite blocks, so it runs on a thread where it may. When the lock is lost, the body is
    /// dropped, but nothing stops that thread: its write can be late. This is what the token is for.
    fn begin_write(&mut self, account: i64, token: u64, balance: i64) {
        let (ledger, fenced, stuck) = (Arc::clone(&self.ledger), self.fenced, self.stuck.take());
        if stuck.is_some() {
            self.tell("writes, but it takes long: a slow disk, or a process that is paused");
        }
        self.write = Some(spawn_blocking(move || {
            if let Some(stuck) = stuck {
                // The other end sends nothing; it is dropped.
                let _ = stuck.recv();
            }
            if fenced {
                ledger.write_fenced(account, token, balance)
            } else {
                ledger.write_unfenced(account, balance)
            }
        }));
    }

    /// Waits for what is on its way. Dropped half-way, it can be called again.
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

/// Asks the ledger, on a thread that may block.
async fn ask<T: Send + 'static>(
    ledger: &Arc<Ledger>,
    question: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, TellerError> {
    let ledger = Arc::clone(ledger);
    Ok(spawn_blocking(move || question(&ledger)).await??)
}

/// Says what happens, and when.
#[derive(Clone, Copy)]
struct Story(Instant);

impl Story {
    fn tell(self, who: &str, what: &str) {
        println!("{:>5.2} s  {who:<4} {what}", self.0.elapsed().as_secs_f64());
    }
}

/// Ada adds 50 to an account with 100 on it, Bob adds 30, and Ada's write is late.
async fn two_deposits(story: Story, locks: &LockClient, fenced: bool) -> Result<(), TellerError> {
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
            ada.tell(&format!("is stopped: {error}"));
            ada.tell("has a write on its way, which nobody can call back");
        }
        other => other?,
    }
    deposit(&mut bob, ACCOUNT, 30).await?;
    drop(release);
    match ada.written().await {
        Err(TellerError::Ledger(error @ LedgerError::StaleWriter { .. })) => {
            ada.tell(&format!("is late, and is refused: {error}"));
            ada.tell("knows that nothing was written, and tries again");
            deposit(&mut ada, ACCOUNT, 50).await?;
        }
        other => {
            other?;
            ada.tell("is late, and overwrites what Bob wrote");
        }
    }

    let balance = ask(&ledger, |ledger| ledger.read(ACCOUNT)).await?;
    let verdict = match 100 + 50 + 30 - balance {
        0 => "nothing was lost".to_owned(),
        lost => format!("{lost} are lost, and nobody was told"),
    };
    story.tell("", &format!("100 + 50 + 30 became {balance}: {verdict}."));
    Ok(())
}

async fn run() -> Result<(), TellerError> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".into());
    let locks = LockClient::connect(&url).await?;
    if url.starts_with("memory:") {
        println!("Locks are kept in memory. Set LOCK_URL=redis://… to keep them in Redis.\n");
    } else {
        println!("Locks are kept in Redis.\n");
    }
    let story = Story(Instant::now());

    println!("With a fence: the table refuses a token that is lower than one which it has seen.");
    two_deposits(story, &locks, true).await?;
    println!("\nWithout one: a lock alone cannot stop what is on its way.");
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
