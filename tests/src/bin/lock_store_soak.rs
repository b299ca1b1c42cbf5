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
use std::time::{Duration, Instant};

use fastrand::Rng;
use lock_tests::{StoreFaults, TestedStore, sibling_program};

const LEASE: Duration = Duration::from_secs(2);
/// How long faults are injected in a round, each of which has a new store.
const ROUND: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let minutes = args.next().and_then(|text| text.parse::<u64>().ok());
    let seed = args.next().map(|text| text.parse::<u64>());
    let (true, Some(minutes), Ok(seed)) =
        (TestedStore::NAMES.contains(&&*name), minutes, seed.transpose())
    else {
        let names = TestedStore::NAMES.join(", ");
        eprintln!("usage: lock-store-soak STORE MINUTES [SEED]; the stores are {names}");
        return ExitCode::FAILURE;
    };
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("{name}, {minutes} minutes, seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let (mut rounds, mut grants) = (0, 0);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    while Instant::now() < end {
        let store = TestedStore::named(&name).await.expect("one of the names");
        let program = sibling_program("lock-helper");
        let mut faults = StoreFaults::start(&program, store, LEASE, rng.fork());
        faults.inject(ROUND).await;
        let (run, violations) = faults.stop();
        for violation in violations.iter().take(20) {
            println!("VIOLATION: {violation}");
        }
        println!("{} grants, {}", run.grants, run.outcomes);
        if !violations.is_empty() || run.unexpected() > 0 || run.grants == 0 {
            println!("{} violations, seed {seed}", violations.len());
            return ExitCode::FAILURE;
        }
        (rounds, grants) = (rounds + 1, grants + run.grants);
    }
    println!("\n{rounds} rounds, {grants} grants, no violation. Seed {seed}.");
    ExitCode::SUCCESS
}
