//! Permits of semaphores, on keys of their own and on one key.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::run::{Load, run};
use crate::contestant::Contestant;
use crate::metric as m;
use crate::process::ContestantProcess;
use crate::results::Measurement;

/// The tasks of all processes.
const TASKS: usize = 64;

/// A load: what each task wants, whether it has a key of its own, and how long it holds the permits.
struct PermitLoad {
    name: &'static str,
    /// The number of permits and their limit; none for a single lock.
    permits: Option<(u32, u32)>,
    processes: usize,
    has_own_keys: bool,
    work: Duration,
}

const LOADS: [PermitLoad; 6] = [
    PermitLoad {
        name: "a single lock",
        permits: None,
        processes: 1,
        has_own_keys: true,
        work: Duration::ZERO,
    },
    PermitLoad {
        name: OWN_KEYS,
        permits: Some((1, 10)),
        processes: 1,
        has_own_keys: true,
        work: Duration::ZERO,
    },
    PermitLoad {
        name: ONE_KEY,
        permits: Some((1, 64)),
        processes: 1,
        has_own_keys: false,
        work: Duration::ZERO,
    },
    PermitLoad {
        name: "8 permits each, 512 of one key",
        permits: Some((8, 512)),
        processes: 1,
        has_own_keys: false,
        work: Duration::ZERO,
    },
    PermitLoad {
        name: CONTENDED,
        permits: Some((1, 8)),
        processes: 1,
        has_own_keys: false,
        work: Duration::from_millis(1),
    },
    PermitLoad {
        name: "64 tasks for 8 permits, 1 ms body, 4 processes",
        permits: Some((1, 8)),
        processes: 4,
        has_own_keys: false,
        work: Duration::from_millis(1),
    },
];

pub(crate) const OWN_KEYS: &str = "1 of 10 permits, keys of their own";
pub(crate) const ONE_KEY: &str = "1 of 64 permits of one key";
pub(crate) const CONTENDED: &str = "64 tasks for 8 permits, 1 ms body";

impl PermitLoad {
    /// The key of each task of a process.
    fn keys(&self) -> String {
        let key = |task: usize| {
            let name = if self.has_own_keys { task } else { 0 };
            match self.permits {
                None => format!("s{name}"),
                Some((count, limit)) => format!("{count}/{limit}:p{name}"),
            }
        };
        (0..TASKS / self.processes).map(key).collect::<Vec<_>>().join(" ")
    }
}

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    let mut single = None;
    for wanted in LOADS {
        let name = if wanted.permits.is_some() { "ours-permits" } else { "ours" };
        let program = Contestant { name, ..*contestant };
        let start = || ContestantProcess::start(&program, &bench.programs, &bench.server.url());
        let mut processes = (0..wanted.processes).map(|_| start()).collect::<Result<Vec<_>>>()?;
        let (tasks, keys) = (TASKS / wanted.processes, wanted.keys());
        let load = Load { tasks, work: wanted.work, keys: &keys };
        let outcome = run(bench, &mut processes, &load)?;
        let mut measurement = Measurement::new(wanted.name, contestant, round);
        outcome.rate(&mut measurement);
        outcome.commands(&mut measurement);
        outcome.pairs(&mut measurement);
        outcome.waits(&mut measurement);
        if !wanted.has_own_keys {
            // Several tasks have permits at the same time.
            measurement.overlaps = 0;
        }
        let grants = measurement.figures.get(&m::GRANTS).copied().unwrap_or_default();
        measurement.set(m::OF_SINGLE, grants / *single.get_or_insert(grants));
        measurements.push(measurement);
    }
    Ok(measurements)
}
