//! Several keys that are locked together, and are free.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::run::{Load, run};
use crate::contestant::Contestant;
use crate::metric as m;
use crate::process::ContestantProcess;
use crate::results::Measurement;

/// The shapes, and the contestants that lock this number of keys.
const SHAPES: [(&str, &str); 4] = [
    ("a single lock", "ours"),
    ("2 keys", "ours-2-keys"),
    ("3 keys", "ours-3-keys"),
    ("8 keys", "ours-8-keys"),
];

const TASKS: usize = 64;

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let keys: Vec<String> = (0..TASKS).map(|task| format!("s{task}")).collect();
    let keys = keys.join(" ");
    let mut measurements = Vec::new();
    let mut single = None;
    for (shape, name) in SHAPES {
        let program = Contestant { name, ..*contestant };
        let mut process =
            [ContestantProcess::start(&program, &bench.programs, &bench.server.url())?];
        let load = Load { tasks: TASKS, work: Duration::ZERO, keys: &keys };
        let outcome = run(bench, &mut process, &load)?;
        let mut measurement = Measurement::new(shape, contestant, round);
        outcome.rate(&mut measurement);
        outcome.commands(&mut measurement);
        outcome.pairs(&mut measurement);
        let grants = measurement.figures.get(&m::GRANTS).copied().unwrap_or_default();
        measurement.set(m::OF_SINGLE, grants / *single.get_or_insert(grants));
        measurements.push(measurement);
    }
    Ok(measurements)
}
