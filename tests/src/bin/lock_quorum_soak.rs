//! The soak test of quorums: processes work under locks that three of five servers have to grant, for a given time, while
//! up to two servers at a time are killed, suspended, or restarted without their data.
//!
//! ```text
//! lock-quorum-soak MINUTES [SEED]
//! ```
//!
//! Three kinds of rounds take turns. In the first, a server that has restarted counts as disturbed until it votes again, so
//! that there is a majority all the time. In the second, servers also restart one after the other, and no lock is granted
//! for a while. In both, the clocks of servers are set back, by up to three seconds. In the third, all clocks are set back
//! and forward by up to a minute, and no server loses its data. A clock that is set forward ends leases early, against which a
//! quorum has no protection, so exclusion is not expected there; tokens have to rise all the same.
//!
//! The faults are chosen at random from the seed. The first violation ends the soak with an error and keeps the
//! recordings.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lock_tests::support::until;
use lock_tests::workload::Outcomes;
use lock_tests::{Expected, ProcessPlan, Quorum, SoakRun, Violation, WorkloadProcesses};

const LEASE: Duration = Duration::from_secs(2);
/// How long faults are injected in a round.
const ROUND: Duration = Duration::from_secs(60);
/// The longest fault.
const FAULT: Duration = LEASE.saturating_mul(2);
const SERVERS: usize = 5;
/// How long a server does not vote after a restart: a lease, and two seconds.
const QUARANTINE: Duration = Duration::from_millis(4020);
/// How many servers may be disturbed at a time.
const MINORITY: usize = 2;
/// How far clocks are set back, in seconds: by less than a quarantine, so that fencing tokens are issued.
const FURTHEST_BACK: i64 = -3;
const WORKLOADS: usize = 3;
const KEYS: u32 = 6;
const TASKS: u32 = 6;

/// How far clocks are set in rounds of clocks, in seconds.
const FURTHEST: i64 = 60;

/// What a round is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoundKind {
    /// A majority votes all the time.
    Majority,
    /// Sometimes no majority votes.
    AnyServers,
    Clocks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum QuorumFault {
    /// The server is down for a while, and comes back without its data.
    Kill,
    /// The server comes back at once, without its data.
    Restart,
    Suspend,
    /// The clock of the server is set back by a second.
    SetClockBack,
    /// The clock of the server is set to a time within a minute of the right one.
    SetClock,
    SuspendProcess,
    KillProcess,
}

impl RoundKind {
    const ALL: [Self; 3] = [Self::Majority, Self::AnyServers, Self::Clocks];

    fn faults(self) -> &'static [QuorumFault] {
        match self {
            Self::Majority | Self::AnyServers => &[
                QuorumFault::Kill,
                QuorumFault::Restart,
                QuorumFault::Suspend,
                QuorumFault::SetClockBack,
                QuorumFault::SuspendProcess,
                QuorumFault::KillProcess,
            ],
            Self::Clocks => &[
                QuorumFault::SetClock,
                QuorumFault::Suspend,
                QuorumFault::SuspendProcess,
                QuorumFault::KillProcess,
            ],
        }
    }

    fn expected(self) -> Expected {
        match self {
            // A write that was in flight when its lock was lost arrives late.
            Self::Majority | Self::AnyServers => {
                Expected { exclusion: true, no_stale_write: false }
            }
            Self::Clocks => Expected::THE_LEAST,
        }
    }
}

/// The totals of all rounds.
#[derive(Default)]
struct QuorumFigures {
    rounds: usize,
    grants: usize,
    overlaps: u64,
    stale: u64,
    faults: BTreeMap<QuorumFault, u64>,
    outcomes: Outcomes,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = std::env::args().skip(1);
    let Some(mut soak) = SoakRun::of_arguments(args, "lock-quorum-soak MINUTES [SEED]") else {
        return ExitCode::FAILURE;
    };
    let mut figures = QuorumFigures::default();
    while soak.goes_on() {
        let violations = run(Quorum::with_own_clocks(SERVERS), &mut soak.rng, &mut figures).await;
        if !soak.accepts(&violations, "quorum") {
            return ExitCode::FAILURE;
        }
    }
    figures.print(soak.seed);
    ExitCode::SUCCESS
}

/// Runs one round and returns the violations.
async fn run(mut quorum: Quorum, rng: &mut Rng, figures: &mut QuorumFigures) -> Vec<Violation> {
    let plan = ProcessPlan {
        lease: LEASE,
        keys: KEYS,
        tasks: TASKS,
        work: LEASE / 20,
        wait: LEASE * 5,
        setting: "plain",
    };
    let kind = *RoundKind::ALL.iter().cycle().nth(figures.rounds).expect("some");
    let has_majority = kind == RoundKind::Majority;
    let faults = kind.faults();
    let mut workloads = WorkloadProcesses::start(plan, (0..WORKLOADS).map(|_| quorum.url()));
    // The servers that are disturbed, and until when.
    let mut disturbed: BTreeMap<usize, (QuorumFault, Instant)> = BTreeMap::new();
    let mut clocks = [0; SERVERS];
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        tokio::time::sleep(LEASE.mul_f64(rng.f64() / 2.0)).await;
        restore(&mut quorum, &mut disturbed, (Instant::now(), has_majority));
        let fault = faults[rng.usize(..faults.len())];
        let process = rng.usize(..WORKLOADS);
        let lasts = match fault {
            QuorumFault::Restart => QUARANTINE,
            _ => FAULT.mul_f64(rng.f64()),
        };
        let until = Instant::now() + lasts;
        match fault {
            QuorumFault::SuspendProcess => {
                workloads.freeze(process);
                tokio::time::sleep(FAULT.mul_f64(rng.f64())).await;
                workloads.thaw(process);
            }
            QuorumFault::KillProcess => workloads.replace(process, &quorum.url()),
            QuorumFault::SetClockBack => {
                let server = rng.usize(..SERVERS);
                clocks[server] = (clocks[server] - 1).max(FURTHEST_BACK);
                quorum.server(server).set_clock(clocks[server]);
            }
            QuorumFault::SetClock => {
                let by = rng.i64(-FURTHEST..=FURTHEST);
                quorum.server(rng.usize(..SERVERS)).set_clock(by);
            }
            _ if disturbed.len() >= MINORITY => continue,
            _ => {
                let others: Vec<_> =
                    (0..SERVERS).filter(|server| !disturbed.contains_key(server)).collect();
                let server = others[rng.usize(..others.len())];
                match fault {
                    QuorumFault::Suspend => quorum.freeze(server),
                    QuorumFault::Restart => quorum.restart(server),
                    _ => quorum.kill(server),
                }
                disturbed.insert(server, (fault, until));
            }
        }
        *figures.faults.entry(fault).or_default() += 1;
    }
    restore(&mut quorum, &mut disturbed, (end + ROUND, false));
    let outcomes = Outcomes::default();
    let history = workloads.stop(LEASE * 30, &outcomes);
    figures.outcomes.add(&outcomes.to_string());
    let mut violations = history.violations(kind.expected());
    let (overlaps, stale) = history.overlaps_and_stale_writes();
    if kind == RoundKind::Clocks {
        // The votes of processes that were killed may be those of clocks that were ahead.
        (0..SERVERS).for_each(|server| quorum.server(server).set_clock(FURTHEST));
    }
    // The votes of processes that were killed last for a lease, and for the time by which a clock was set back meanwhile.
    let back = Duration::from_secs(FURTHEST_BACK.unsigned_abs());
    if until(LEASE + back + LEASE / 4, || left(&quorum).is_empty()).await.is_none() {
        violations.extend(left(&quorum).into_iter().map(|key| Violation::Leaked { key }));
    }
    assert_eq!(outcomes.unexpected.load(Ordering::Relaxed), 0, "unexpected errors");
    let grants = history.grants();
    println!("{kind:?}: {grants} grants, {outcomes}, {overlaps} overlaps, {stale} stale");
    figures.rounds += 1;
    figures.grants += grants;
    figures.overlaps += overlaps;
    figures.stale += stale;
    if !violations.is_empty() {
        println!("the recordings are in {}", workloads.keep().display());
    }
    violations
}

/// Ends the faults whose time is over. A server that has restarted counts as disturbed until it votes again if there
/// is to be a majority.
fn restore(
    quorum: &mut Quorum,
    disturbed: &mut BTreeMap<usize, (QuorumFault, Instant)>,
    (now, has_majority): (Instant, bool),
) {
    disturbed.retain(|server, (fault, until)| {
        let waits = *fault == QuorumFault::Restart && !has_majority;
        if *until > now && !waits {
            return true;
        }
        match fault {
            QuorumFault::Suspend => quorum.thaw(*server),
            QuorumFault::Kill => {
                quorum.restart(*server);
                (*fault, *until) = (QuorumFault::Restart, Instant::now() + QUARANTINE);
                return has_majority;
            }
            _ => {}
        }
        false
    });
}

/// The keys of locks that still exist.
fn left(quorum: &Quorum) -> Vec<String> {
    let keys = |server| quorum.server(server).command::<Vec<String>>(&["KEYS", "work:*"]);
    (0..SERVERS).flat_map(keys).collect()
}

impl QuorumFigures {
    fn print(&self, seed: u64) {
        let Self { rounds, grants, overlaps, stale, faults, outcomes } = self;
        println!("\nSeed {seed}. Calls: {outcomes}.");
        println!(
            "\n| rounds | grants | overlaps | stale writes without a fence |\n|---|---|---|---|"
        );
        println!("| {rounds} | {grants} | {overlaps} | {stale} |");
        println!("\n| fault | count |\n|---|---|");
        for (fault, count) in faults {
            println!("| {fault:?} | {count} |");
        }
    }
}
