//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::contestant::{self, Contestant};
use crate::workloads;

pub(crate) const HELP: &str = "\
Measures lock-runtime against other lock libraries.

  --quick               less of everything, in three minutes
  --long                100,000 held locks for the peers too
  --only WORKLOAD,…     uncontended, hot, processes, waiters, zipf, held, idle, re-entrant
  --contestants NAME,…  raw, tokio-mutex, ours-memory, ours, rslock, async-redis-lock, distkit,
                        redisson, redsync, rueidislock, redlock, redis-py, bsm, semaphore
  --rounds N            how often each is measured
  --millis N            how long one measurement of a rate takes
  --require-peers       a peer that is not built is an error
  --peers DIR           where the peers of other languages are, if not in `peers/`
  --out DIR             where the results go, if not to `bench/`";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) long: bool,
    /// Names of workloads; all of them if empty.
    pub(crate) only: Vec<String>,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) rounds: Option<usize>,
    pub(crate) time: Option<Duration>,
    pub(crate) require_peers: bool,
    pub(crate) peers: PathBuf,
    pub(crate) out: PathBuf,
}

impl Options {
    /// `None` if only help is wanted.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut options = Self {
            quick: false,
            long: false,
            only: Vec::new(),
            contestants: contestant::ALL.into_iter().filter(|c| c.by_default).collect(),
            rounds: None,
            time: None,
            require_peers: false,
            peers: here.join("../peers"),
            out: here.to_owned(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => return Ok(None),
                "--quick" => options.quick = true,
                "--long" => options.long = true,
                "--require-peers" => options.require_peers = true,
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--contestants" => {
                    options.contestants = value()?.split(',').map(named).collect::<Result<_>>()?;
                }
                "--rounds" => options.rounds = Some(value()?.parse().context("--rounds")?),
                "--millis" => {
                    let millis = value()?.parse().context("--millis")?;
                    options.time = Some(Duration::from_millis(millis));
                }
                "--peers" => options.peers = value()?.into(),
                "--out" => options.out = value()?.into(),
                _ => bail!("there is no option {word:?}; see --help"),
            }
        }
        for only in &options.only {
            if !workloads::ALL.iter().any(|workload| workload.name == only) {
                bail!("there is no workload {only:?}; see --help");
            }
        }
        Ok(Some(options))
    }

    pub(crate) fn wants(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == workload)
    }
}

fn named(name: &str) -> Result<Contestant> {
    let found = contestant::ALL.into_iter().find(|contestant| contestant.name == name);
    found.with_context(|| format!("there is no contestant {name:?}; see --help"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Options>> {
        Options::parse(words.iter().map(ToString::to_string))
    }

    #[test]
    fn misspelt_names_are_errors() {
        assert!(parse(&["--only", "hott"]).is_err());
        assert!(parse(&["--contestants", "ours,theirs"]).is_err());
        assert!(parse(&["--fast"]).is_err());
        assert!(parse(&["--only"]).is_err());
    }

    #[test]
    fn all_workloads_are_wanted_unless_some_are_named() {
        let options = parse(&["--only", "hot,idle"]).unwrap().unwrap();
        assert!(options.wants("hot") && !options.wants("zipf"));
        assert!(parse(&[]).unwrap().unwrap().wants("zipf"));
    }
}
