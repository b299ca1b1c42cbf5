//! The time from a release to the grant of a sleeping waiter.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bench;
use crate::contestant::{Contestant, Reach};
use crate::figures::Durations;
use crate::metric as m;
use crate::record::{self, Record};
use crate::results::Measurement;

/// The time in milliseconds within which the task of the holder must start. It is shorter than the
/// hold, so that there is only one grant.
const START: u64 = 20;
/// How long one hand-off may take.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let mut releasing = bench.start(contestant)?;
    let mut other = match contestant.reach {
        Reach::Server => Some(bench.start(contestant)?),
        Reach::Process => None,
    };
    let ((path, file), (waited_path, waited_file)) = (bench.files.file(0)?, bench.files.file(1)?);
    let mut measurement = Measurement::new("", contestant, round);
    let mut latencies = Vec::new();
    // The first samples are a warm-up.
    let (warm_up, all) = if bench.quick { (1, 7) } else { (2, 16) };
    for sample in 0..all {
        bench.server.clear()?;
        let work = fastrand::u64(40_000..120_000);
        let held = releasing.tell(&format!("run {file} 1 {START} {work} idle"))?;
        match contestant.reach {
            Reach::Process => sleep(Duration::from_millis(5)),
            Reach::Server => {
                let end = Instant::now() + TIMEOUT;
                while bench.server.keys()? == 0 {
                    ensure!(Instant::now() < end, "the holder does not acquire the lock");
                    sleep(Duration::from_millis(1));
                }
            }
        }
        let waiting = other.as_mut().unwrap_or(&mut releasing);
        waiting.ask("waiters idle 1", TIMEOUT)?;
        waiting.ask(&format!("drain {waited_file}"), TIMEOUT)?;
        releasing.done(held, TIMEOUT)?;
        let (held, waited) = (record::read(&path)?, record::read(&waited_path)?);
        let waited_for = |waited: &Record| {
            held.iter().find(|held| (held.granted..held.released).contains(&waited.requested))
        };
        for waited in &waited {
            let Some(held) = waited_for(waited) else { continue };
            match waited.granted.checked_sub(held.released) {
                None => measurement.overlaps += 1,
                Some(_) if sample < warm_up => {}
                Some(latency) => latencies.push(latency),
            }
        }
    }
    let latencies: Durations = latencies.into_iter().collect();
    measurement.set_nanos(m::IDLE_P99, latencies.quantile(0.99));
    if let Some(median) = latencies.median() {
        measurement.set(m::IDLE_P50, median as f64);
        measurement.set(m::IDLE_TRIPS, median as f64 / bench.round_trip);
    }
    Ok(vec![measurement])
}
