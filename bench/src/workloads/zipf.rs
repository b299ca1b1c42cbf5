//! A few popular keys, and many unpopular ones.

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
    let load = Load { tasks: 4000, work: Duration::ZERO, keys: "zipf:1000", one_more: None };
    let outcome = run(bench, &mut process, &load)?;
    let mut measurement = Measurement::new("", contestant, round);
    outcome.rate(&mut measurement);
    outcome.waits(&mut measurement);
    outcome.fairness(&mut measurement);
    Ok(vec![measurement])
}
