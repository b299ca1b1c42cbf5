//! Locks of all kinds, each compared with single locks in the same run.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::run::{Load, run};
use crate::contestant::{Contestant, LockKind};
use crate::metric as m;
use crate::process::ContestantProcess;
use crate::results::Measurement;

/// The tasks of all processes.
const TASKS: usize = 64;

pub(crate) const WRITERS: &str = "64 writers, keys of their own";
pub(crate) const READERS: &str = "64 readers, keys of their own";
pub(crate) const SHARED: &str = "64 readers of one key";
pub(crate) const WITH_WRITER: &str = "64 readers and a writer of one key, 1 ms body, 4 processes";
pub(crate) const OWN_KEYS: &str = "1 of 10 permits, keys of their own";
pub(crate) const ONE_KEY: &str = "1 of 64 permits of one key";
pub(crate) const CONTENDED: &str = "64 tasks for 8 permits, 1 ms body";

/// A load of one kind of lock.
struct KindLoad {
    name: &'static str,
    kind: LockKind,
    processes: usize,
    /// What precedes the name of the key of each task.
    prefix: &'static str,
    has_own_keys: bool,
    /// The key of a further task.
    one_more: Option<&'static str>,
    /// How long each task holds its lock.
    work: Duration,
}

const SINGLE: KindLoad = KindLoad {
    name: "a single lock",
    kind: LockKind::Single,
    processes: 1,
    prefix: "",
    has_own_keys: true,
    one_more: None,
    work: Duration::ZERO,
};

const SETS: [KindLoad; 4] = [
    SINGLE,
    KindLoad { name: "2 keys", kind: LockKind::Keys(2), prefix: "2-keys:", ..SINGLE },
    KindLoad { name: "3 keys", kind: LockKind::Keys(3), prefix: "3-keys:", ..SINGLE },
    KindLoad { name: "8 keys", kind: LockKind::Keys(8), prefix: "8-keys:", ..SINGLE },
];

const READ_WRITE: KindLoad =
    KindLoad { kind: LockKind::ReadWrite, prefix: "read:", has_own_keys: false, ..SINGLE };

const READERS_AND_WRITERS: [KindLoad; 5] = [
    SINGLE,
    KindLoad { name: WRITERS, prefix: "write:", has_own_keys: true, ..READ_WRITE },
    KindLoad { name: READERS, has_own_keys: true, ..READ_WRITE },
    KindLoad { name: SHARED, ..READ_WRITE },
    KindLoad {
        name: WITH_WRITER,
        processes: 4,
        work: Duration::from_millis(1),
        one_more: Some("write:s0"),
        ..READ_WRITE
    },
];

const OF_ONE_SEMAPHORE: KindLoad = KindLoad {
    kind: LockKind::Permits,
    prefix: "1/8:",
    has_own_keys: false,
    work: Duration::from_millis(1),
    ..SINGLE
};

const PERMITS: [KindLoad; 6] = [
    SINGLE,
    KindLoad { name: OWN_KEYS, kind: LockKind::Permits, prefix: "1/10:", ..SINGLE },
    KindLoad { name: ONE_KEY, prefix: "1/64:", work: Duration::ZERO, ..OF_ONE_SEMAPHORE },
    KindLoad {
        name: "8 permits each, 512 of one key",
        prefix: "8/512:",
        work: Duration::ZERO,
        ..OF_ONE_SEMAPHORE
    },
    KindLoad { name: CONTENDED, ..OF_ONE_SEMAPHORE },
    KindLoad {
        name: "64 tasks for 8 permits, 1 ms body, 4 processes",
        processes: 4,
        ..OF_ONE_SEMAPHORE
    },
];

impl KindLoad {
    /// The key of each task of a process.
    fn keys(&self) -> String {
        let key = |task: usize| {
            let name = if self.has_own_keys { task } else { 0 };
            format!("{}s{name}", self.prefix)
        };
        (0..TASKS / self.processes).map(key).collect::<Vec<_>>().join(" ")
    }
}

pub(super) fn sets(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    measure(bench, contestant, round, &SETS)
}

pub(super) fn readers_and_writers(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    measure(bench, contestant, round, &READERS_AND_WRITERS)
}

pub(super) fn permits(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    measure(bench, contestant, round, &PERMITS)
}

/// Measures the loads of the kinds that the contestant has.
fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
    loads: &[KindLoad],
) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    let mut single = None;
    for load in loads {
        let Some(program) = contestant.of_kind(load.kind) else { continue };
        let start = || ContestantProcess::start(&program, &bench.programs, &bench.server.url());
        let mut processes = (0..load.processes).map(|_| start()).collect::<Result<Vec<_>>>()?;
        let (tasks, keys) = (TASKS / load.processes, load.keys());
        let parameters = Load { tasks, work: load.work, keys: &keys, one_more: load.one_more };
        let outcome = run(bench, &mut processes, &parameters)?;
        let mut measurement = Measurement::new(load.name, contestant, round);
        outcome.rate(&mut measurement);
        outcome.commands(&mut measurement);
        outcome.pairs(&mut measurement);
        outcome.waits(&mut measurement);
        if !load.has_own_keys {
            // Several tasks have the lock at the same time.
            measurement.overlaps = 0;
            outcome.longest_wait(&mut measurement);
        }
        let grants = measurement.figures.get(&m::GRANTS).copied().unwrap_or_default();
        measurement.set(m::OF_SINGLE, grants / *single.get_or_insert(grants));
        measurements.push(measurement);
    }
    Ok(measurements)
}
