//! A resource that checks fencing tokens accepts no late write.

use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use lock_runtime::{LockClient, LockError};
use lock_tests::RedisServer;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use self::ledger::{Ledger, LedgerError};

/// The source file of the example itself, not a copy.
#[path = "../src/bin/fencing/ledger.rs"]
mod ledger;

fn run(url: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_fencing");
    Command::new(program).env("LOCK_URL", url).output().expect("built with the tests")
}

#[track_caller]
fn tells_the_story(url: &str) {
    let output = run(url);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    let (with, without) = said.split_once("Without a fence").expect("two parts");
    for (part, expected) in [
        (with, "Ada  was stopped: lock \"account:1\" was lost"),
        (with, "Bob  wrote 130"),
        (with, "Ada  wrote too late and was rejected: stale writer"),
        (with, "Ada  wrote 180"),
        (with, "100 + 50 + 30 became 180: nothing was lost."),
        (without, "Bob  wrote 130"),
        (without, "Ada  wrote too late and overwrote Bob's write"),
        (without, "100 + 50 + 30 became 150: 30 were lost"),
    ] {
        assert!(part.contains(expected), "{expected:?} is missing:\n{said}");
    }
}

#[test]
fn the_example_tells_its_story_on_the_memory_store() {
    tells_the_story("memory:");
}

#[test]
fn the_example_tells_its_story_on_redis() {
    tells_the_story(&RedisServer::start().url());
}

#[test]
fn the_example_says_what_is_wrong() {
    let output = run("postgres://localhost");
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.starts_with("fencing: ") && complaint.lines().count() == 1, "{complaint}");
}

#[test]
fn a_ledger_refuses_lower_tokens_and_unknown_accounts() {
    let ledger = Ledger::in_memory().expect("memory");
    ledger.open_account(1, 100).expect("new");
    assert_eq!(ledger.read_fenced(1, 5).expect("the first"), 100);
    ledger.write_fenced(1, 5, 150).expect("the same holder");
    ledger.write_fenced(1, 5, 160).expect("the same holder again");
    // A later holder has read but not yet written.
    assert_eq!(ledger.read_fenced(1, 6).expect("higher"), 160);
    let stale = "stale writer: token 5 is lower than token 6, which account 1 has seen";
    for refused in [ledger.write_fenced(1, 5, 0), ledger.read_fenced(1, 5).map(drop)] {
        assert_eq!(refused.expect_err("a later holder").to_string(), stale);
    }
    assert_eq!(ledger.read(1).expect("there"), 160);

    assert!(matches!(ledger.read_fenced(2, 5), Err(LedgerError::NoAccount(2))));
    assert!(matches!(ledger.write_fenced(2, 5, 0), Err(LedgerError::NoAccount(2))));
    assert!(matches!(ledger.write_unfenced(2, 0), Err(LedgerError::NoAccount(2))));
    assert!(matches!(ledger.write_fenced(1, u64::MAX, 0), Err(LedgerError::Token(_))));
}

/// Makes the random pauses the same in every run. The scheduling still varies.
const SEED: u64 = 0x0fe7_ce5e;
/// Pauses last up to two leases, so about half of the writes arrive after the end of the lease.
const LEASE: Duration = Duration::from_millis(100);

/// Which statements carry the token.
#[derive(Debug, Clone, Copy)]
enum Fence {
    Everywhere,
    AtWrites,
    Nowhere,
}

/// The outcomes of the writes of one or more runs.
#[derive(Debug, Default)]
struct Tally {
    accepted: usize,
    refused: usize,
    /// Accepted after a later holder's write was accepted.
    stale: usize,
    /// Accepted but missing from the final balance.
    lost: usize,
}

/// An account, the lock clients of its two holders, and the tokens of the accepted writes in order.
struct Run {
    locks: [LockClient; 2],
    ledger: Arc<Ledger>,
    account: i64,
    fence: Fence,
    accepted: Mutex<Vec<u64>>,
}

impl Run {
    async fn tally(self) -> Tally {
        self.ledger.open_account(self.account, 0).expect("new");
        let mut random = Rng::with_seed(SEED ^ self.account.unsigned_abs());
        let (one, two) = (random.fork(), random.fork());
        let refused = tokio::join!(self.hold(0, one), self.hold(1, two));
        let accepted = self.accepted.into_inner().expect("no panic");
        let balance = self.ledger.read(self.account).expect("the account was opened");
        Tally {
            accepted: accepted.len(),
            refused: refused.0 + refused.1,
            stale: accepted.windows(2).filter(|pair| pair[1] < pair[0]).count(),
            lost: accepted.len() - usize::try_from(balance).expect("every write adds one"),
        }
    }

    /// Reads the balance and adds one to it, even if the lease has ended in between. Returns the
    /// number of rejected statements.
    async fn hold(&self, holder: usize, mut random: Rng) -> usize {
        let gives_back = random.bool();
        let mut pause = async || sleep(LEASE.mul_f64(2.0 * random.f64())).await;
        let lock = self.locks[holder].lock(format!("account:{}", self.account)).lease(LEASE);
        pause().await;
        let guard = lock.acquire().await.expect("the lease of the other holder ends");
        let token = match guard.fencing_token().await {
            Ok(token) => token,
            // On a busy machine the lease may already have ended. There is no token to write with.
            Err(LockError::Lost { .. }) => return 0,
            Err(error) => panic!("{error}"),
        };
        let read = match self.fence {
            Fence::AtWrites => self.ledger.read(self.account),
            Fence::Everywhere | Fence::Nowhere => self.ledger.read_fenced(self.account, token),
        };
        let balance = match read {
            Ok(balance) => balance,
            Err(LedgerError::StaleWriter { .. }) => return 1,
            Err(error) => panic!("{error}"),
        };
        // From here on, the write is pending. Half of the holders release the lock before the write
        // arrives.
        let guard = (!gives_back).then_some(guard);
        pause().await;
        let refused = self.write(token, balance + 1);
        drop(guard);
        refused
    }

    fn write(&self, token: u64, balance: i64) -> usize {
        // The mutex is held during the write, so that the tokens are in the ledger's order.
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match self.fence {
            Fence::Nowhere => self.ledger.write_unfenced(self.account, balance),
            _ => self.ledger.write_fenced(self.account, token, balance),
        };
        match written {
            Ok(()) => accepted.push(token),
            Err(LedgerError::StaleWriter { .. }) => return 1,
            Err(error) => panic!("{error}"),
        }
        0
    }
}

/// Runs two competing holders for each account and prints the outcomes. The runs are mostly paused,
/// so `at_once` of them run concurrently.
async fn interleave(url: &str, (runs, at_once): (i64, usize), fence: Fence) -> Tally {
    let connect = async || LockClient::connect(url).await.expect("the store is up");
    let locks = [connect().await, connect().await];
    let ledger = Arc::new(Ledger::in_memory().expect("memory"));
    let (mut total, mut running) = (Tally::default(), JoinSet::new());
    for account in 0..runs {
        if running.len() == at_once {
            add(&mut total, running.join_next().await);
        }
        let (locks, ledger, accepted) = (locks.clone(), Arc::clone(&ledger), Mutex::default());
        running.spawn(Run { locks, ledger, account, fence, accepted }.tally());
    }
    while !running.is_empty() {
        add(&mut total, running.join_next().await);
    }
    println!("{url}, seed {SEED:#x}, {runs} runs, fence {fence:?}: {total:?}");
    total
}

fn add(total: &mut Tally, run: Option<Result<Tally, JoinError>>) {
    let run = run.expect("a run is active").expect("no panic");
    total.accepted += run.accepted;
    total.refused += run.refused;
    total.stale += run.stale;
    total.lost += run.lost;
}

fn accepts_no_stale_write(tally: &Tally) {
    assert_eq!((tally.stale, tally.lost), (0, 0), "{tally:?}");
    assert!(tally.refused > 0, "no write was late: {tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stale_write_is_accepted_in_ten_thousand_runs() {
    accepts_no_stale_write(&interleave("memory:fenced", (10_000, 2000), Fence::Everywhere).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stale_write_is_accepted_with_tokens_of_redis() {
    let server = RedisServer::start();
    // Few enough that on a busy machine, most holders have their answer before their lease ends.
    accepts_no_stale_write(&interleave(&server.url(), (1000, 40), Fence::Everywhere).await);
}

/// The negative control of the tests above: the same writes without tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_fence_stale_writes_are_accepted() {
    let tally = interleave("memory:unfenced", (1000, 200), Fence::Nowhere).await;
    assert!(tally.stale > 0 && tally.lost > 0, "{tally:?}");
}

/// Shows why the ledger's reads carry the token as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_at_writes_alone_keeps_their_order_and_loses_some() {
    let tally = interleave("memory:writes", (1000, 200), Fence::AtWrites).await;
    assert!(tally.stale == 0 && tally.lost > 0, "{tally:?}");
}
