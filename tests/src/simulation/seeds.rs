//! Runs with many seeds, each of which can be repeated.

use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::shim;

/// The seeds of a process that runs them, as `FIRST-END`.
const SEEDS: &str = "LOCK_SEEDS_OF_PROCESS";

/// How many processes share the seeds.
const PROCESSES: u64 = 2;

/// Runs a test with this many seeds, or with `LOCK_SEEDS` of them, or with `LOCK_SEED` only. `test` is the path of the caller, a
/// test without arguments.
///
/// The runs are in processes of their own, in which the random numbers of the system repeat as well: the hash maps of
/// the standard library and `select!` of tokio depend on them. Each run has a thread of its own.
pub fn for_each_seed(test: &str, count: u64, run: impl Fn(u64) + Sync) {
    let Ok(seeds) = std::env::var(SEEDS) else { return share(test, count) };
    let (first, end) = seeds.split_once('-').expect("two numbers");
    let run = &run;
    for seed in first.parse().expect("a number")..end.parse().expect("a number") {
        let ended = std::thread::scope(|scope| scope.spawn(move || run(seed)).join());
        assert!(ended.is_ok(), "LOCK_SEED={seed} repeats this run");
    }
}

/// Starts the processes, and waits for them.
fn share(test: &str, count: u64) {
    let number = |name| std::env::var(name).ok().map(|it| it.parse::<u64>().expect("a number"));
    let all = match number("LOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCK_SEEDS").unwrap_or(count),
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let library = directory.path().join("random.so");
    shim::compile(include_str!("random_shim.c"), &library);
    let each = (all.end - all.start).div_ceil(PROCESSES);
    let parts = (all.start..all.end).step_by(usize::try_from(each).expect("few"));
    let parts = parts.map(|first| start(test, first..all.end.min(first + each), &library));
    for process in parts.collect::<Vec<_>>() {
        let output = process.wait_with_output().expect("a child process");
        let printed =
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(printed.contains("running 1 test"), "there is no test {test}");
        assert!(output.status.success(), "{printed}");
        if all.end - all.start == 1 {
            println!("{printed}");
        }
    }
}

fn start(test: &str, seeds: Range<u64>, library: &Path) -> Child {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", test, "--nocapture"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    program.env(SEEDS, format!("{}-{}", seeds.start, seeds.end)).env("LD_PRELOAD", library);
    program.spawn().expect("a child process")
}
