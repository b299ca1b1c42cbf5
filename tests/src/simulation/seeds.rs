//! Runs with many seeds, each of which can be repeated.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lock_core::sync::lock;
use tempfile::TempDir;

use crate::shim;

/// The seed of the process.
const SEED: &str = "LOCK_SEED_OF_PROCESS";

/// How many processes run at the same time.
const AT_ONCE: usize = 2;

/// Whether anything has panicked, also a task of the library that nobody awaits.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Runs a test with this many seeds, or with `LOCK_SEEDS` of them, or with `LOCK_SEED` only. `test` is the path of the caller, a
/// test without arguments. `run` returns what differs if a run differs.
///
/// Each run is in a process of its own, in which the random numbers of the system repeat as well: the hash maps of
/// the standard library and `select!` of tokio depend on them, and on what the process did before.
pub fn for_each_seed(test: &str, count: u64, run: impl FnOnce(u64) -> u64) {
    if let Ok(seed) = std::env::var(SEED) {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::Relaxed);
            show(panic);
        }));
        println!("trace {}", run(seed.parse().expect("a number")));
        assert!(!PANICKED.load(Ordering::Relaxed), "a task has panicked");
        return;
    }
    let number = |name| std::env::var(name).ok().map(|it| it.parse::<u64>().expect("a number"));
    let processes = Processes::new(test);
    if let Some(seed) = number("LOCK_SEED") {
        return println!("{}", passed(processes.run(seed)));
    }
    let (next, end) = (AtomicU64::new(0), number("LOCK_SEEDS").unwrap_or(count));
    let failure = Mutex::new(None);
    let run_some = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < end
        {
            if let Err(printed) = processes.run(seed) {
                next.store(end, Ordering::Relaxed);
                let mut failure = lock(&failure);
                // The first seed that fails, so that it is the same one each time.
                if failure.as_ref().is_none_or(|(earlier, _)| seed < *earlier) {
                    *failure = Some((seed, printed));
                }
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| _ = scope.spawn(run_some)));
    if let Some((_, printed)) = failure.into_inner().expect("no panic") {
        passed(Err(printed));
    }
}

fn passed(run: Result<String, String>) -> String {
    run.unwrap_or_else(|printed| panic!("{printed}"))
}

/// Asserts that a test that calls [`for_each_seed`] runs in the same way again with this seed.
pub fn assert_repeats(test: &str, seed: u64) {
    let processes = Processes::new(test);
    let trace = || {
        let printed = passed(processes.run(seed));
        let trace = printed.lines().find(|line| line.starts_with("trace "));
        trace.expect("a trace").to_owned()
    };
    assert_eq!(trace(), trace(), "seed {seed}");
}

/// Starts processes with random numbers that repeat.
struct Processes<'a> {
    test: &'a str,
    library: PathBuf,
    _directory: TempDir,
}

impl<'a> Processes<'a> {
    fn new(test: &'a str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let library = directory.path().join("random.so");
        shim::compile(include_str!("random_shim.c"), &library);
        Self { test, library, _directory: directory }
    }

    /// Returns what the test prints, as an error if it fails.
    fn run(&self, seed: u64) -> Result<String, String> {
        let output = program(self.test, seed, &self.library).output().expect("a child process");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(printed.contains("running 1 test"), "there is no test {}", self.test);
        if output.status.success() {
            Ok(printed)
        } else {
            Err(format!("LOCK_SEED={seed} repeats this run: {printed}"))
        }
    }
}

fn program(test: &str, seed: u64, library: &Path) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", test, "--nocapture"]);
    program.env(SEED, seed.to_string()).env("LD_PRELOAD", library);
    program
}
