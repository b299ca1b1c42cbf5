//! Tasks on distinct keys.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::run::{Load, run};
use crate::contestant::Contestant;
use crate::results::Measurement;

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let mut process = [bench.start(contestant)?];
    let mut measurements = Vec::new();
    for (tasks, shape) in [(1, "1 task"), (8, "8 tasks"), (64, "64 tasks"), (1024, "1,024 tasks")] {
        let keys: Vec<String> = (0..tasks).map(|key| format!("u{key}")).collect();
        let load = Load { tasks, work: Duration::ZERO, keys: &keys.join(" "), one_more: None };
        let outcome = match run(bench, &mut process, &load) {
            Ok(outcome) => outcome,
            Err(error) => {
                measurements.push(Measurement::failed(shape, contestant, round, &error));
                break;
            }
        };
        let mut measurement = Measurement::new(shape, contestant, round);
        outcome.rate(&mut measurement);
        outcome.pairs(&mut measurement);
        measurements.push(measurement);
    }
    Ok(measurements)
}
