//! Readers and writers, on keys of their own and on one key.

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

/// A load: the tasks that write, those that read, and whether each task has a key of its own.
struct Shape {
    name: &'static str,
    contestant: &'static str,
    processes: usize,
    writers: usize,
    has_own_keys: bool,
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "a single lock",
        contestant: "ours",
        processes: 1,
        writers: TASKS,
        has_own_keys: true,
    },
    Shape {
        name: WRITERS,
        contestant: "ours-read-write",
        processes: 1,
        writers: TASKS,
        has_own_keys: true,
    },
    Shape {
        name: READERS,
        contestant: "ours-read-write",
        processes: 1,
        writers: 0,
        has_own_keys: true,
    },
    Shape {
        name: SHARED,
        contestant: "ours-read-write",
        processes: 1,
        writers: 0,
        has_own_keys: false,
    },
    Shape {
        name: "15 readers and a writer of one key, 4 processes",
        contestant: "ours-read-write",
        processes: 4,
        writers: 1,
        has_own_keys: false,
    },
];

pub(crate) const WRITERS: &str = "64 writers, keys of their own";
pub(crate) const READERS: &str = "64 readers, keys of their own";
pub(crate) const SHARED: &str = "64 readers of one key";

impl Shape {
    /// The key of each task of a process.
    fn keys(&self) -> String {
        let key = |task: usize| {
            let name = if self.has_own_keys { task } else { 0 };
            match self.contestant {
                "ours" => format!("s{name}"),
                _ if task < self.writers => format!("write:s{name}"),
                _ => format!("read:s{name}"),
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
    for shape in SHAPES {
        let program = Contestant { name: shape.contestant, ..*contestant };
        let start = || ContestantProcess::start(&program, &bench.programs, &bench.server.url());
        let mut processes = (0..shape.processes).map(|_| start()).collect::<Result<Vec<_>>>()?;
        let (tasks, keys) = (TASKS / shape.processes, shape.keys());
        let load = Load { tasks, work: Duration::ZERO, keys: &keys };
        let outcome = run(bench, &mut processes, &load)?;
        let mut measurement = Measurement::new(shape.name, contestant, round);
        outcome.rate(&mut measurement);
        outcome.commands(&mut measurement);
        outcome.pairs(&mut measurement);
        outcome.waits(&mut measurement);
        if !shape.has_own_keys {
            // Readers have the lock at the same time.
            measurement.overlaps = 0;
        }
        let grants = measurement.figures.get(&m::GRANTS).copied().unwrap_or_default();
        measurement.set(m::OF_SINGLE, grants / *single.get_or_insert(grants));
        measurements.push(measurement);
    }
    Ok(measurements)
}
