//! The soak test of the store in etcd: processes work under locks in a cluster of three members, for a given time, while the
//! leader is killed every 20 s, and members and processes are suspended in between.
//!
//! ```text
//! lock-etcd-soak MINUTES [SEED]
//! ```
//!
//! There is a majority of members all the time. The faults are chosen at random from the seed. The first violation ends the
//! soak with an error and keeps the recordings.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lock_tests::support::until;
use lock_tests::workload::Outcomes;
use lock_tests::{EtcdCluster, Expected, ProcessPlan, SoakRun, Violation, WorkloadProcesses};

const LEASE: Duration = Duration::from_secs(5);
/// How long faults are injected in a round.
const ROUND: Duration = Duration::from_secs(60);
/// The leader is killed so often.
const LEADER: Duration = Duration::from_secs(20);
/// How long it stays down.
const DOWN: Duration = Duration::from_secs(5);
/// How long others are suspended at most.
const SUSPENDED: Duration = Duration::from_secs(8);
const MEMBERS: usize = 3;
const WORKLOADS: usize = 4;
const KEYS: u32 = 6;
const TASKS: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MemberFault {
    KillLeader,
    SuspendLeader,
    SuspendFollower,
    MoveLeader,
    SuspendProcess,
    KillProcess,
}

/// A leader that resumes after longer than a lease may revoke leases that were renewed meanwhile, and the bodies of two
/// owners then overlap for a moment: see `docs/etcd.md`. So leaders are suspended only for a part of a lease.
const OTHERS: [MemberFault; 5] = [
    MemberFault::SuspendLeader,
    MemberFault::SuspendFollower,
    MemberFault::MoveLeader,
    MemberFault::SuspendProcess,
    MemberFault::KillProcess,
];

/// The totals of all rounds.
#[derive(Default)]
struct EtcdFigures {
    grants: usize,
    overlaps: u64,
    stale: u64,
    faults: BTreeMap<MemberFault, u64>,
    outcomes: Outcomes,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = std::env::args().skip(1);
    let Some(mut soak) = SoakRun::of_arguments(args, "lock-etcd-soak MINUTES [SEED]") else {
        return ExitCode::FAILURE;
    };
    let mut figures = EtcdFigures::default();
    while soak.goes_on() {
        let violations = run(EtcdCluster::three(), &mut soak.rng, &mut figures).await;
        if !soak.accepts(&violations, "etcd") {
            return ExitCode::FAILURE;
        }
    }
    figures.print(soak.seed);
    ExitCode::SUCCESS
}

/// Runs one round and returns the violations.
async fn run(mut etcd: EtcdCluster, rng: &mut Rng, figures: &mut EtcdFigures) -> Vec<Violation> {
    let plan = ProcessPlan {
        lease: LEASE,
        keys: KEYS,
        tasks: TASKS,
        work: LEASE / 50,
        wait: LEASE * 12,
        setting: "plain",
    };
    let mut workloads = WorkloadProcesses::start(plan, (0..WORKLOADS).map(|_| etcd.url()));
    let end = Instant::now() + ROUND;
    let mut next = Instant::now() + LEADER / 2;
    while Instant::now() < end {
        let fault = if Instant::now() >= next {
            next += LEADER;
            MemberFault::KillLeader
        } else {
            OTHERS[rng.usize(..OTHERS.len())]
        };
        inject(&mut etcd, &mut workloads, fault, rng).await;
        *figures.faults.entry(fault).or_default() += 1;
        tokio::time::sleep(LEASE.mul_f64(rng.f64() / 2.0)).await;
    }
    let outcomes = Outcomes::default();
    let history = workloads.stop(LEASE * 30, &outcomes);
    figures.outcomes.add(&outcomes.to_string());
    // A write that was in flight when its lock was lost arrives late.
    let mut violations = history.violations(Expected { exclusion: true, no_stale_write: false });
    let (overlaps, stale) = history.overlaps_and_stale_writes();
    if until(LEASE * 5, || etcd.keys("work:").is_empty()).await.is_none() {
        violations.extend(etcd.keys("work:").into_iter().map(|key| Violation::Leaked { key }));
    }
    assert_eq!(outcomes.unexpected.load(Ordering::Relaxed), 0, "unexpected errors");
    // A call waits much longer than any fault lasts.
    let unserved = [&outcomes.busy, &outcomes.unavailable].map(|it| it.load(Ordering::Relaxed));
    assert_eq!(unserved, [0, 0], "calls that waited in vain, because of holders and of etcd");
    let grants = history.grants();
    println!("{grants} grants, {outcomes}, {overlaps} overlaps, {stale} stale");
    figures.grants += grants;
    figures.overlaps += overlaps;
    figures.stale += stale;
    if !violations.is_empty() {
        println!("the recordings are in {}", workloads.keep().display());
    }
    violations
}

/// Injects a fault, and ends it.
async fn inject(
    etcd: &mut EtcdCluster,
    workloads: &mut WorkloadProcesses,
    fault: MemberFault,
    rng: &mut Rng,
) {
    let (process, lasts) = (rng.usize(..WORKLOADS), SUSPENDED.mul_f64(rng.f64()));
    match fault {
        MemberFault::KillLeader => {
            let leader = etcd.leader();
            etcd.kill(leader);
            tokio::time::sleep(DOWN).await;
            etcd.restart(leader);
        }
        MemberFault::SuspendLeader | MemberFault::SuspendFollower => {
            let leader = etcd.leader();
            let is_leader = fault == MemberFault::SuspendLeader;
            let lasts = if is_leader { lasts.min(LEASE / 2) } else { lasts };
            let member = if is_leader { leader } else { (leader + 1) % MEMBERS };
            etcd.freeze(member);
            tokio::time::sleep(lasts).await;
            etcd.thaw(member);
        }
        MemberFault::MoveLeader => etcd.move_leader(),
        MemberFault::SuspendProcess => {
            workloads.freeze(process);
            tokio::time::sleep(lasts).await;
            workloads.thaw(process);
        }
        MemberFault::KillProcess => workloads.replace(process, &etcd.url()),
    }
}

impl EtcdFigures {
    fn print(&self, seed: u64) {
        let Self { grants, overlaps, stale, faults, outcomes } = self;
        println!("\nSeed {seed}. Calls: {outcomes}.");
        println!("\n| grants | overlaps | stale writes without a fence |\n|---|---|---|");
        println!("| {grants} | {overlaps} | {stale} |");
        println!("\n| fault | count |\n|---|---|");
        for (fault, count) in faults {
            println!("| {fault:?} | {count} |");
        }
    }
}
