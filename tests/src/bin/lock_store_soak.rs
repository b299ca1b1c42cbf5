//! The soak test of any store: processes work under its locks for a given time, while they and the servers of the store are
//! suspended and killed.
//!
//! ```text
//! lock-store-soak STORE MINUTES [SEED]
//! ```
//!
//! The faults are chosen at random from the seed. The first violation ends the soak with an error and keeps the
//! recordings.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use lock_tests::{SoakRun, StoreFaults, TestedStore, sibling_program};

const LEASE: Duration = Duration::from_secs(2);
/// How long faults are injected in a round, each of which has a new store.
const ROUND: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let names = TestedStore::NAMES.join(", ");
    let usage = format!("lock-store-soak STORE MINUTES [SEED]; the stores are {names}");
    if !TestedStore::NAMES.contains(&&*name) {
        eprintln!("usage: {usage}");
        return ExitCode::FAILURE;
    }
    let Some(mut soak) = SoakRun::of_arguments(args, &usage) else { return ExitCode::FAILURE };
    let (mut rounds, mut grants) = (0, 0);
    while soak.goes_on() {
        let store = TestedStore::named(&name).await.expect("one of the names");
        let program = sibling_program("lock-helper");
        let mut faults = StoreFaults::start(&program, store, LEASE, soak.rng.fork());
        faults.inject(ROUND).await;
        let (run, violations) = faults.stop();
        println!("{} grants, {}", run.grants, run.outcomes);
        if !soak.accepts(&violations, &name) || run.unexpected() > 0 || run.grants == 0 {
            return ExitCode::FAILURE;
        }
        (rounds, grants) = (rounds + 1, grants + run.grants);
    }
    println!("\n{rounds} rounds, {grants} grants, no violation. Seed {}.", soak.seed);
    ExitCode::SUCCESS
}
