//! The choice of the next key of a task.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::library::Library;

/// The keys of a run.
#[derive(Clone)]
pub(super) enum RunKeys {
    /// One key for all tasks, or one key per task.
    Named(Arc<[String]>),
    /// A new key for each call, drawn at random.
    Zipf(Arc<Zipf>),
}

/// The locks of one task.
pub(super) enum Locks<L: Library> {
    One { lock: L::Lock, key: u32 },
    Drawn { library: L, zipf: Arc<Zipf> },
}

/// Draws key `n` with a probability proportional to 1/(n+1).
pub(super) struct Zipf {
    names: Vec<String>,
    /// The cumulative share of each key.
    shares: Vec<f64>,
}

impl RunKeys {
    /// Reads the arguments after the numbers.
    pub(super) fn parse(words: &[&str], tasks: usize) -> Result<Self> {
        if let [word] = words
            && let Some(count) = word.strip_prefix("zipf:")
        {
            let count = count.parse().context("zipf:COUNT")?;
            return Ok(Self::Zipf(Arc::new(Zipf::new(count))));
        }
        ensure!(words.len() == 1 || words.len() == tasks, "expected one key, or one key per task");
        Ok(Self::Named(words.iter().map(ToString::to_string).collect()))
    }

    pub(super) fn locks<L: Library>(&self, library: &L, task: u32) -> Locks<L> {
        match self {
            Self::Named(names) => {
                let key = if names.len() == 1 { 0 } else { task };
                Locks::One { lock: library.lock(&names[key as usize]), key }
            }
            Self::Zipf(zipf) => Locks::Drawn { library: library.clone(), zipf: Arc::clone(zipf) },
        }
    }
}

impl Zipf {
    fn new(count: usize) -> Self {
        let weights = (1..=count).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        let mut shares: Vec<f64> = weights.collect();
        let whole = shares.last().copied().unwrap_or(1.0);
        for share in &mut shares {
            *share /= whole;
        }
        Self { names: (0..count).map(|key| format!("z{key}")).collect(), shares }
    }

    /// The key at this cumulative share.
    fn at(&self, share: f64) -> usize {
        self.shares.partition_point(|upper| *upper <= share).min(self.names.len() - 1)
    }

    pub(super) fn draw(&self) -> (&str, u32) {
        let key = self.at(fastrand::f64());
        (&self.names[key], key as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_three_zipf_keys_has_six_elevenths() {
        let zipf = Zipf::new(3);
        assert_eq!(zipf.at(0.0), 0);
        assert_eq!(zipf.at(0.545), 0);
        assert_eq!(zipf.at(0.546), 1);
        assert_eq!(zipf.at(0.818), 1);
        assert_eq!(zipf.at(0.819), 2);
        assert_eq!(zipf.at(1.0), 2);
    }

    #[test]
    fn two_keys_for_three_tasks_are_an_error() {
        assert!(RunKeys::parse(&["a", "b"], 3).is_err());
        assert!(RunKeys::parse(&["a"], 3).is_ok());
    }
}
