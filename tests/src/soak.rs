//! What the programs of the soak tests share: their arguments, and the end of a run.

use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Violation;

/// How long a soak test runs, and its random choices.
#[derive(Debug)]
pub struct SoakRun {
    /// The seed of the random choices.
    pub seed: u64,
    /// The source of the random choices.
    pub rng: Rng,
    end: Instant,
}

impl SoakRun {
    /// Reads the arguments `MINUTES [SEED]`. Prints the usage of the program and returns `None` if they are wrong.
    #[must_use]
    pub fn of_arguments(mut args: impl Iterator<Item = String>, usage: &str) -> Option<Self> {
        let minutes = args.next().and_then(|text| text.parse::<u64>().ok());
        let seed = args.next().map(|text| text.parse::<u64>());
        let (Some(minutes), Ok(seed)) = (minutes, seed.transpose()) else {
            eprintln!("usage: {usage}");
            return None;
        };
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("{minutes} minutes, seed {seed}");
        let end = Instant::now() + Duration::from_secs(60 * minutes);
        Some(Self { seed, rng: Rng::with_seed(seed), end })
    }

    /// Whether another round begins.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// Prints the violations of a round. Returns whether there are none.
    #[must_use]
    pub fn accepts(&self, violations: &[Violation], round: &str) -> bool {
        for violation in violations.iter().take(20) {
            println!("VIOLATION: {violation}");
        }
        if !violations.is_empty() {
            println!("{} violations, {round}, seed {}", violations.len(), self.seed);
        }
        violations.is_empty()
    }
}
