//! Which key a task locks next.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::library::Library;

/// The keys of a run.
#[derive(Clone)]
pub(super) enum Keys {
    /// One for all tasks, or one for each.
    Named(Arc<[String]>),
    /// Drawn for each round.
    Zipf(Arc<Zipf>),
}

/// The locks of one task.
pub(super) enum Locks<L: Library> {
    One { lock: L::Lock, key: u32 },
    Drawn { library: L, zipf: Arc<Zipf> },
}

/// Key `n` is drawn with a probability that is proportional to 1/(n+1).
pub(super) struct Zipf {
    names: Vec<String>,
    /// The share of this key and all before it.
    shares: Vec<f64>,
}

impl Keys {
    /// Reads the arguments after the numbers.
    pub(super) fn parse(words: &[&str], tasks: usize) -> Result<Self> {
        if let [word] = words
            && let Some(count) = word.strip_prefix("zipf:")
        {
            let count = count.parse().context("zipf:COUNT")?;
            return Ok(Self::Zipf(Arc::new(Zipf::new(count))));
        }
        ensure!(words.len() == 1 || words.len() == tasks, "one key, or as many as tasks");
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

    /// The key at this share of the whole.
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
    fn two_keys_do_not_do_for_three_tasks() {
        assert!(Keys::parse(&["a", "b"], 3).is_err());
        assert!(Keys::parse(&["a"], 3).is_ok());
    }
}
