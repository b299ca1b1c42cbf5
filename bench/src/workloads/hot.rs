//! One hot key: many tasks, in one or several processes.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::run::{Load, run};
use crate::contestant::Contestant;
use crate::results::Measurement;

pub(super) fn one_process(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let mut process = [bench.start(contestant)?];
    let mut measurements = Vec::new();
    let numbers: &[(usize, &str)] =
        if bench.quick { &[(64, "64")] } else { &[(2, "2"), (64, "64"), (1024, "1,024")] };
    for (work, body) in [(Duration::ZERO, "empty body"), (Duration::from_millis(1), "1 ms body")] {
        for (tasks, number) in numbers {
            let shape = format!("{number} tasks, {body}");
            let outcome = match run(
                bench,
                &mut process,
                &Load { tasks: *tasks, work, keys: "hot", one_more: None },
            ) {
                Ok(outcome) => outcome,
                Err(error) => {
                    measurements.push(Measurement::failed(&shape, contestant, round, &error));
                    return Ok(measurements);
                }
            };
            let mut measurement = Measurement::new(shape, contestant, round);
            outcome.rate(&mut measurement);
            outcome.commands(&mut measurement);
            outcome.waits(&mut measurement);
            outcome.fairness(&mut measurement);
            measurements.push(measurement);
        }
    }
    Ok(measurements)
}

pub(super) fn processes(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let counts: &[usize] = if bench.quick { &[4] } else { &[2, 4, 8] };
    let mut all = bench.start_several(contestant, if bench.quick { 4 } else { 8 })?;
    let mut measurements = Vec::new();
    for count in counts {
        let load = Load { tasks: 16, work: Duration::ZERO, keys: "hot", one_more: None };
        let outcome = run(bench, &mut all[..*count], &load)?;
        let mut measurement = Measurement::new(format!("{count} processes"), contestant, round);
        outcome.rate(&mut measurement);
        outcome.commands(&mut measurement);
        outcome.waits(&mut measurement);
        outcome.fairness(&mut measurement);
        outcome.crossings(&mut measurement, bench.round_trip);
        measurements.push(measurement);
    }
    Ok(measurements)
}
