//! Transfers lock both accounts, and the sum of all balances stays the same.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_tests::RedisServer;

const TRANSFERS: &str = "200 transfers between 6 accounts, whose sum is 6000\n";

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_transfer"))
}

#[track_caller]
fn assert_sum_is_constant(output: &Output) {
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    assert_eq!(said, TRANSFERS);
}

/// A process that is killed when it is dropped.
struct TransferProcess(Option<Child>);

impl TransferProcess {
    fn start(server: &RedisServer, accounts: &Path) -> Self {
        let mut command = command();
        command.env("LOCK_URL", server.url()).env("ACCOUNTS", accounts);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(Some(child.expect("built with the tests")))
    }

    fn finish(mut self) -> Output {
        let child = self.0.take().expect("not finished before");
        child.wait_with_output().expect("it ends")
    }
}

impl Drop for TransferProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Both calls fail if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn transfers_within_one_process_keep_the_sum() {
    assert_sum_is_constant(&command().output().expect("built with the tests"));
}

/// Two processes, and a third one that is killed with SIGKILL and replaced at random times.
#[test]
fn transfers_keep_the_sum_although_processes_are_killed() {
    let server = RedisServer::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let accounts = directory.path().join("accounts.db");
    let start = Instant::now();
    let tellers = [(); 2].map(|()| TransferProcess::start(&server, &accounts));
    let mut kills = 0;
    while start.elapsed() < Duration::from_secs(5) {
        let victim = TransferProcess::start(&server, &accounts);
        sleep(Duration::from_millis(fastrand::u64(100..700)));
        drop(victim);
        kills += 1;
    }
    assert!(kills > 3, "{kills}");
    for teller in tellers {
        assert_sum_is_constant(&teller.finish());
    }
    assert_sum_is_constant(&TransferProcess::start(&server, &accounts).finish());
}

/// The negative control of the tests above: without locks and tokens, the same transfers change the sum.
#[test]
fn without_locks_the_same_transfers_change_the_sum() {
    let accounts = Mutex::new([1000_i64; 6]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let from = fastrand::usize(..6);
                    let (to, amount) = ((from + fastrand::usize(1..6)) % 6, fastrand::i64(1..100));
                    let before = *accounts.lock().expect("no panic");
                    sleep(Duration::from_millis(1));
                    let mut after = accounts.lock().expect("no panic");
                    (after[from], after[to]) = (before[from] - amount, before[to] + amount);
                }
            });
        }
    });
    let sum: i64 = accounts.into_inner().expect("no panic").iter().sum();
    assert_ne!(sum, 6000, "no transfer was lost");
}
