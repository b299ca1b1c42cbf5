//! The soak test of failovers: processes work under locks for a given time, while the servers of a
//! topology fail over, and slots of a cluster move.
//!
//! ```text
//! lock-failover-soak MINUTES [SEED]
//! ```
//!
//! Each round has its own servers, with sentinels or as a cluster, and a setting of the clients,
//! which determines the properties that are checked. The faults are chosen at random from the seed.
//! The first violation ends the soak with an error and keeps the recordings.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lock_tests::support::until;
use lock_tests::workload::Outcomes;
use lock_tests::{
    Cluster, Expected, ProcessPlan, Sentinels, SoakRun, Violation, WorkloadProcesses,
};

/// Longer than a failover takes.
const LEASE: Duration = Duration::from_secs(6);
/// How long faults are injected in a round.
const ROUND: Duration = Duration::from_secs(60);
/// How long servers may take to replace a master, and to synchronize with it.
const FAILOVER: Duration = Duration::from_secs(60);
const WORKLOADS: usize = 3;
const KEYS: u32 = 6;
const TASKS: u32 = 6;

/// How the clients use the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    /// Without options.
    Plain,
    /// `acknowledged_by = "all"`, and servers that need a replica to accept writes.
    Acknowledged,
    /// With a quarantine of two leases.
    Quarantine,
}

const SETTINGS: [Setting; 3] = [Setting::Plain, Setting::Acknowledged, Setting::Quarantine];

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Acknowledged => "acknowledged",
            Self::Quarantine => "quarantine",
        }
    }

    fn server_options(self) -> &'static [&'static str] {
        match self {
            Self::Acknowledged => &["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"],
            Self::Plain | Self::Quarantine => &[],
        }
    }

    fn expected(self) -> Expected {
        match self {
            Self::Plain => Expected::THE_LEAST,
            // A write that was in flight when its lock was lost arrives late.
            Self::Acknowledged | Self::Quarantine => {
                Expected { exclusion: true, no_stale_write: false }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FailoverFault {
    PlannedFailover,
    KillMaster,
    SuspendMaster,
    MoveSlot,
    SuspendProcess,
    KillProcess,
}

/// The servers of one round.
enum SoakServers {
    Sentinels(Box<Sentinels>),
    Cluster(Cluster),
}

impl SoakServers {
    fn name(&self) -> &'static str {
        match self {
            Self::Sentinels(_) => "Sentinel",
            Self::Cluster(_) => "Cluster",
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Sentinels(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn faults(&self) -> &'static [FailoverFault] {
        use FailoverFault::{
            KillMaster, KillProcess, MoveSlot, PlannedFailover, SuspendMaster, SuspendProcess,
        };
        match self {
            Self::Sentinels(_) => {
                &[PlannedFailover, KillMaster, SuspendMaster, SuspendProcess, KillProcess]
            }
            Self::Cluster(_) => {
                &[PlannedFailover, KillMaster, SuspendMaster, MoveSlot, SuspendProcess, KillProcess]
            }
        }
    }

    /// Replaces the master of a key, in one of these ways, and waits until its predecessor is a
    /// replica with all data.
    async fn fail_over(&mut self, key: &str, fault: FailoverFault) {
        let master = match self {
            Self::Sentinels(sentinels) => sentinels.master(),
            Self::Cluster(cluster) => cluster.master_of(key),
        };
        let master = master.expect("all agree");
        match (&mut *self, fault) {
            (Self::Sentinels(sentinels), FailoverFault::PlannedFailover) => {
                sentinels.fail_over(master).await;
            }
            (Self::Cluster(cluster), FailoverFault::PlannedFailover) => {
                let replica = cluster.replica_now_of(master).expect("a replica");
                cluster.fail_over(key, replica).await;
            }
            (Self::Sentinels(sentinels), FailoverFault::KillMaster) => sentinels.kill(master),
            (Self::Cluster(cluster), FailoverFault::KillMaster) => cluster.kill(master),
            (Self::Sentinels(sentinels), _) => sentinels.freeze(master),
            (Self::Cluster(cluster), _) => cluster.freeze(master),
        }
        match self {
            Self::Sentinels(sentinels) => {
                sentinels.wait_for_another_master(master).await;
            }
            Self::Cluster(cluster) => {
                cluster.wait_for_another_master(key, master).await;
            }
        }
        match (self, fault) {
            (Self::Sentinels(sentinels), FailoverFault::KillMaster) => sentinels.restart(master),
            (Self::Cluster(cluster), FailoverFault::KillMaster) => cluster.restart(master),
            (Self::Sentinels(sentinels), FailoverFault::SuspendMaster) => sentinels.thaw(master),
            (Self::Cluster(cluster), FailoverFault::SuspendMaster) => cluster.thaw(master),
            _ => {}
        }
    }

    /// Waits until each master has its replicas.
    async fn until_in_sync(&self) {
        let is_in_sync = || match self {
            Self::Sentinels(sentinels) => sentinels.is_in_sync(),
            Self::Cluster(cluster) => cluster.is_in_sync(),
        };
        assert!(until(FAILOVER, is_in_sync).await.is_some(), "the replicas are in sync");
    }

    /// The keys of locks that still exist.
    fn keys(&self) -> Vec<String> {
        match self {
            Self::Sentinels(sentinels) => {
                let master = sentinels.master().expect("all agree");
                sentinels.server(master).command(&["KEYS", "work:*"])
            }
            Self::Cluster(cluster) => (0..cluster.size())
                .filter_map(|node| {
                    cluster.try_command::<Vec<String>>(node, &["KEYS", "work:*"]).ok()
                })
                .flatten()
                .collect(),
        }
    }
}

/// The totals of all rounds.
#[derive(Default)]
struct FailoverFigures {
    rounds: BTreeMap<(&'static str, Setting), [u64; 4]>,
    faults: BTreeMap<FailoverFault, u64>,
    outcomes: Outcomes,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = std::env::args().skip(1);
    let Some(mut soak) = SoakRun::of_arguments(args, "lock-failover-soak MINUTES [SEED]") else {
        return ExitCode::FAILURE;
    };
    let mut figures = FailoverFigures::default();
    let mut round = 0;
    while soak.goes_on() {
        // All combinations in turn.
        let setting = SETTINGS[round / 2 % SETTINGS.len()];
        let servers = if round % 2 == 0 {
            SoakServers::Sentinels(Sentinels::with(setting.server_options()).into())
        } else {
            SoakServers::Cluster(Cluster::with(setting.server_options()))
        };
        round += 1;
        let violations = run(servers, setting, &mut soak.rng, &mut figures).await;
        if !soak.accepts(&violations, &format!("{setting:?}")) {
            return ExitCode::FAILURE;
        }
    }
    figures.print(soak.seed);
    ExitCode::SUCCESS
}

/// Runs one round and returns the violations.
async fn run(
    mut servers: SoakServers,
    setting: Setting,
    rng: &mut Rng,
    figures: &mut FailoverFigures,
) -> Vec<Violation> {
    let plan = ProcessPlan {
        lease: LEASE,
        keys: KEYS,
        tasks: TASKS,
        work: LEASE / 60,
        wait: LEASE * 3,
        setting: setting.name(),
    };
    let urls = (0..WORKLOADS).map(|_| servers.url());
    let mut workloads = WorkloadProcesses::start(plan, urls);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        servers.until_in_sync().await;
        tokio::time::sleep(LEASE.mul_f64(rng.f64() / 2.0)).await;
        let fault = servers.faults()[rng.usize(..servers.faults().len())];
        *figures.faults.entry(fault).or_default() += 1;
        let (process, key) = (rng.usize(..WORKLOADS), format!("work:{}", rng.u32(..KEYS)));
        match fault {
            FailoverFault::SuspendProcess => {
                workloads.freeze(process);
                tokio::time::sleep(LEASE.mul_f64(rng.f64() * 1.5)).await;
                workloads.thaw(process);
            }
            FailoverFault::KillProcess => workloads.replace(process, &servers.url()),
            FailoverFault::MoveSlot => {
                if let SoakServers::Cluster(cluster) = &servers {
                    let masters = cluster.masters();
                    let from = cluster.master_of(&key).expect("all agree");
                    let others: Vec<_> =
                        masters.into_iter().filter(|other| *other != from).collect();
                    let to = others[rng.usize(..others.len())];
                    cluster.move_slot(cluster.slot_of(&key), from, to);
                }
            }
            _ => servers.fail_over(&key, fault).await,
        }
    }
    servers.until_in_sync().await;
    let outcomes = Outcomes::default();
    let history = workloads.stop(LEASE * 20, &outcomes);
    figures.outcomes.add(&outcomes.to_string());
    let mut violations = history.violations(setting.expected());
    let (overlaps, stale) = history.overlaps_and_stale_writes();
    let is_free = || servers.keys().is_empty();
    if until(LEASE * 3, is_free).await.is_none() {
        violations.extend(servers.keys().into_iter().map(|key| Violation::Leaked { key }));
    }
    assert_eq!(outcomes.unexpected.load(Ordering::Relaxed), 0, "unexpected errors");
    let (name, grants) = (servers.name(), history.grants());
    println!(
        "{name}, {setting:?}: {grants} grants, {outcomes}, {overlaps} overlaps, {stale} stale"
    );
    let totals = figures.rounds.entry((name, setting)).or_default();
    let grants = u64::try_from(grants).expect("few");
    for (total, more) in totals.iter_mut().zip([1, grants, overlaps, stale]) {
        *total += more;
    }
    if !violations.is_empty() {
        println!("the recordings are in {}", workloads.keep().display());
    }
    violations
}

impl FailoverFigures {
    fn print(&self, seed: u64) {
        println!("\nSeed {seed}. Calls: {}.", self.outcomes);
        println!(
            "\n| servers | setting | rounds | grants | overlaps | stale writes without a fence |"
        );
        println!("|---|---|---|---|---|---|");
        for ((servers, setting), [rounds, grants, overlaps, stale]) in &self.rounds {
            println!("| {servers} | {setting:?} | {rounds} | {grants} | {overlaps} | {stale} |");
        }
        println!("\n| fault | count |\n|---|---|");
        for (fault, count) in &self.faults {
            println!("| {fault:?} | {count} |");
        }
    }
}
