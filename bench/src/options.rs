//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::contestant::{self, ByDefault, Contestant, Program, Programs, ServerKind, StoreKind};
use crate::workloads::{self, Workload};

/// Measures lock-runtime against other lock libraries.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
// Each is a flag of its own.
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Take fewer and shorter measurements: about three minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also measure 100,000 held locks of the peers
    #[arg(long)]
    pub(crate) long: bool,
    /// The workloads to run [default: all]
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', value_parser = workloads())]
    only: Vec<String>,
    /// The contestants [default: all but `baseline`, `exported`, `exported-memory`, `bsm` and `semaphore`]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = contestants())]
    contestants: Vec<String>,
    /// The numbers of clients in the workload `clients` [default: 2 to 1000]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=5_000),
    )]
    clients: Vec<u32>,
    /// The number of rounds per workload
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// The duration of one rate measurement in milliseconds
    #[arg(long, value_name = "N")]
    pub(crate) millis: Option<u64>,
    /// Add the contestant `baseline`: `ours` in another build of this program
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Connect with TLS. Only `raw`, `ours` and `baseline` take part
    #[arg(long)]
    tls: bool,
    /// Use a cluster. Only `raw`, `ours`, `baseline` and `redis-rs-cluster` take part, in the
    /// workload `uncontended`
    #[arg(long, conflicts_with_all = ["tls", "only"])]
    cluster: bool,
    /// Fail if a peer is not built
    #[arg(long)]
    pub(crate) require_peers: bool,
    /// The directory of the peers in other languages
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../peers"))]
    peers: PathBuf,
    /// The directory for the results
    #[arg(long, value_name = "DIR", default_value = env!("CARGO_MANIFEST_DIR"))]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a contestant. Used by the driver.
    #[command(hide = true)]
    Contestant { name: String, url: String },
    /// Draws how the tasks of several processes take turns with one lock, as an SVG file
    Picture {
        #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contended.svg"))]
        file: PathBuf,
    },
    /// Measures every store of this library, each with the peers that use it, and writes `STORES.md`
    Stores(StoreOptions),
}

/// The options of the comparison of stores.
#[derive(Debug, Args)]
pub(crate) struct StoreOptions {
    /// Take fewer and shorter measurements: about two minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// The stores to measure [default: all]
    #[arg(long, value_name = "STORE", value_delimiter = ',', value_enum)]
    only: Vec<StoreKind>,
    /// The number of rounds per store
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// The duration of one rate measurement of a hot key in milliseconds; those without contention take half as long
    #[arg(long, value_name = "N")]
    millis: Option<u64>,
    /// Fail if a peer is not built
    #[arg(long)]
    pub(crate) require_peers: bool,
    /// The directory of the peers in other languages
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../peers"))]
    peers: PathBuf,
    /// The directory for the results
    #[arg(long, value_name = "DIR", default_value = env!("CARGO_MANIFEST_DIR"))]
    pub(crate) out: PathBuf,
}

impl StoreOptions {
    /// The stores to measure, in the order of their declaration.
    pub(crate) fn stores(&self) -> Vec<StoreKind> {
        let all = StoreKind::value_variants().iter().copied();
        all.filter(|store| self.only.is_empty() || self.only.contains(store)).collect()
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// The duration of one rate measurement of a hot key.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.millis.unwrap_or(if self.quick { 400 } else { 1_000 }))
    }

    /// How often each round measures all contestants without contention.
    pub(crate) fn turns(&self) -> usize {
        if self.quick { 1 } else { 5 }
    }

    pub(crate) fn programs(&self) -> Programs {
        Programs { peers: self.peers.clone(), baseline: None }
    }
}

impl Options {
    /// The contestants that take part, in the order of [`contestant::ALL`].
    pub(crate) fn contestants(&self) -> Vec<Contestant> {
        let takes_part = |contestant: &Contestant| match contestant.program {
            _ if !contestant.servers.contains(&self.servers()) => false,
            Program::Baseline => self.baseline.is_some(),
            _ if self.contestants.is_empty() => contestant.by_default != ByDefault::Never,
            _ => self.contestants.iter().any(|name| name == contestant.name),
        };
        contestant::ALL.into_iter().filter(takes_part).collect()
    }

    /// Whether a contestant that takes part does so in this workload.
    pub(crate) fn includes(&self, contestant: &Contestant, workload: &Workload) -> bool {
        let is_left_out = self.contestants.is_empty()
            && matches!(contestant.by_default, ByDefault::OnlyIn(name) if name != workload.name);
        (workload.takes)(contestant) && !is_left_out
    }

    /// The numbers of clients in the workload `clients`.
    pub(crate) fn clients(&self) -> Vec<u32> {
        match &self.clients[..] {
            [] if self.quick => vec![2, 32],
            [] => vec![2, 4, 8, 32, 128, 256, 1_000],
            named => named.to_vec(),
        }
    }

    pub(crate) fn programs(&self) -> Programs {
        Programs { peers: self.peers.clone(), baseline: self.baseline.clone() }
    }

    pub(crate) fn servers(&self) -> ServerKind {
        match (self.tls, self.cluster) {
            (true, _) => ServerKind::Tls,
            (false, true) => ServerKind::Cluster,
            (false, false) => ServerKind::Plain,
        }
    }

    pub(crate) fn wants(&self, workload: &Workload) -> bool {
        if self.cluster {
            return workload.runs_on_cluster;
        }
        self.only.is_empty() || self.only.iter().any(|only| only == workload.name)
    }
}

fn workloads() -> PossibleValuesParser {
    workloads::ALL.iter().map(|workload| PossibleValue::new(workload.name)).into()
}

fn contestants() -> PossibleValuesParser {
    let named = contestant::ALL
        .iter()
        .filter(|contestant| contestant.name != "baseline" && !contestant.servers.is_empty());
    named.map(|contestant| PossibleValue::new(contestant.name)).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::contestant::Role;

    fn parse(words: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["lock-bench"], words].concat())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn misspelt_names_are_errors() {
        for words in [
            &["--only", "hott"],
            &["--contestants", "ours,theirs"],
            &["--contestants", "baseline"],
            &["--fast"][..],
            &["--tls", "--cluster"],
            &["--only"],
            &["--clients", "2,0"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn all_workloads_are_wanted_unless_some_are_named() {
        let wanted = |words: &[&str]| -> Vec<&str> {
            let options = parse(words).unwrap();
            workloads::ALL.iter().filter(|all| options.wants(all)).map(|all| all.name).collect()
        };
        assert_eq!(wanted(&["--only", "hot,idle"]), ["hot", "idle"]);
        assert_eq!(wanted(&[]).len(), workloads::ALL.len());
        assert_eq!(wanted(&["--cluster"]), ["uncontended"]);
    }

    #[test]
    fn the_numbers_of_clients_can_be_chosen() {
        let clients = |words: &[&str]| parse(words).unwrap().clients();
        assert_eq!(clients(&["--clients", "2,8", "--quick"]), [2, 8]);
        assert!(clients(&["--quick"]).len() < clients(&[]).len());
    }

    #[test]
    fn few_contestants_use_tls_or_a_cluster() {
        let named = |words: &[&str]| -> Vec<&str> {
            parse(words).unwrap().contestants().iter().map(|contestant| contestant.name).collect()
        };
        assert_eq!(named(&["--tls"]), ["raw", "ours"]);
        assert_eq!(named(&["--cluster"]), ["raw", "ours", "redis-rs-cluster"]);
        assert!(!named(&[]).contains(&"redis-rs-cluster"));
        assert_eq!(named(&["--tls", "--contestants", "ours,rslock"]), ["ours"]);
    }

    #[test]
    fn all_stores_are_measured_unless_some_are_named() {
        let stores = |words: &[&str]| match parse(words).unwrap().command {
            Some(Command::Stores(options)) => options.stores(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            stores(&["stores", "--only", "etcd-cluster,redis"]),
            [StoreKind::Redis, StoreKind::EtcdCluster]
        );
        for store in stores(&["stores"]) {
            let measured = contestant::ALL.iter().filter(|one| one.stores.contains(&store));
            let measured: Vec<Role> = measured.map(|contestant| contestant.role).collect();
            assert!(measured.contains(&Role::Ours) && measured.contains(&Role::Peer), "{store:?}");
        }
        assert!(parse(&["stores", "--only", "zookeeper"]).is_err());
        assert!(parse(&["--contestants", "etcd-mutex"]).is_err(), "not a library for Redis");
    }

    #[test]
    fn a_baseline_takes_part_if_its_program_is_given() {
        let names = |words: &[&str]| -> Vec<&str> {
            parse(words).unwrap().contestants().iter().map(|contestant| contestant.name).collect()
        };
        assert!(!names(&[]).contains(&"baseline"));
        assert_eq!(
            names(&["--contestants", "ours,raw", "--baseline", "old/lock-bench"]),
            ["raw", "ours", "baseline"]
        );
    }
}
