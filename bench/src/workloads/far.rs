//! One task at a time, far from the server.

use std::time::{Duration, Instant};

use anyhow::Result;
use lock_tests::Toward;

use super::Bench;
use super::run::{Load, run};
use crate::contestant::{Contestant, Role};
use crate::figures::Durations;
use crate::metric as m;
use crate::process::ContestantProcess;
use crate::results::Measurement;

/// The delay in each direction.
const DELAY: Duration = Duration::from_millis(1);

/// The number of round trips of which the median is taken.
const PINGS: usize = 50;

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let Some(proxy) = bench.server.behind_proxy() else { return Ok(Vec::new()) };
    proxy.delay(Toward::Server, DELAY);
    proxy.delay(Toward::Client, DELAY);
    let round_trip = round_trip(&proxy.url())?;
    let in_background = Contestant { name: "ours-background", ..*contestant };
    let mut shapes = vec![("release awaited", contestant)];
    if contestant.role == Role::Ours {
        shapes.push(("release in the background", &in_background));
    }
    let mut measurements = Vec::new();
    for (shape, program) in shapes {
        let mut process = [ContestantProcess::start(program, &bench.programs, &proxy.url())?];
        // Many keys, because calls on one key wait for the release before them.
        let load = Load { tasks: 1, work: Duration::ZERO, keys: "zipf:1000", one_more: None };
        let outcome = run(bench, &mut process, &load)?;
        let mut measurement = Measurement::new(shape, contestant, round);
        outcome.rate(&mut measurement);
        outcome.pairs(&mut measurement);
        if let Some(pair) = outcome.median_pair_nanos() {
            measurement.set(m::PAIR_TRIPS, pair as f64 / round_trip);
        }
        measurements.push(measurement);
    }
    Ok(measurements)
}

/// The median round trip of a PING, in nanoseconds.
fn round_trip(url: &str) -> Result<f64> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let mut ping = || {
        let start = Instant::now();
        redis::cmd("PING").exec(&mut connection)?;
        anyhow::Ok(start.elapsed().as_nanos() as u64)
    };
    let trips: Durations = (0..PINGS).map(|_| ping()).collect::<Result<_>>()?;
    Ok(trips.median().unwrap_or_default() as f64)
}
