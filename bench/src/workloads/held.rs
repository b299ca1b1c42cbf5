//! Many locks that are held and renewed for a long time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bench;
use crate::contestant::{Contestant, Role};
use crate::metric as m;
use crate::process::{Answer, ContestantProcess};
use crate::results::Measurement;
use crate::server::Monitor;

/// How long acquiring or releasing all locks may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time between two checks of the remaining leases.
const INTERVAL: Duration = Duration::from_millis(250);
/// The number of keys per check.
const SAMPLE: usize = 5_000;

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let (few, many) = ((10_000, "10,000 locks"), (100_000, "100,000 locks"));
    // Takes a minute per peer and shows little, because most peers use a task and a timer per lock.
    let is_measured = |count| match contestant.role {
        Role::Ours | Role::Baseline => !bench.quick || count == few,
        _ => bench.long || (!bench.quick && count == few),
    };
    let counts: Vec<(u32, &str)> = [few, many].into_iter().filter(|c| is_measured(*c)).collect();
    let mut measurements = Vec::new();
    for (count, shape) in counts {
        let mut measurement = Measurement::new(shape, contestant, round);
        let mut process = bench.start(contestant)?;
        if let Err(error) = hold(bench, &mut process, count, &mut measurement) {
            measurement.note = Some(format!("{error:#}"));
        }
        let unsupported = measurement.note.as_deref() == Some("does not renew locks");
        measurements.push(measurement);
        if unsupported {
            break;
        }
    }
    Ok(measurements)
}

fn hold(
    bench: &mut Bench,
    process: &mut ContestantProcess,
    count: u32,
    measurement: &mut Measurement,
) -> Result<()> {
    // Long enough for two renewals of a 30 s lease that is renewed at a third. In a quick run, for
    // one.
    let time = Duration::from_secs(if bench.quick { 12 } else { 23 });
    bench.server.clear()?;
    let memory = process.memory()?;
    let start = Instant::now();
    let ticket = process.tell(&format!("hold {count} {}", time.as_millis()))?;
    while bench.server.keys()? < count as usize {
        match process.answer(ticket, Duration::from_millis(5))? {
            Answer::Unsupported => anyhow::bail!("does not renew locks"),
            Answer::Ok => anyhow::bail!("not all locks were held"),
            Answer::Late => {
                ensure!(start.elapsed() < TIMEOUT, "not all locks acquired after {TIMEOUT:?}");
            }
        }
    }
    measurement.set(m::TAKE, start.elapsed().as_nanos() as f64);
    measurement.set(m::PER_LOCK, (process.memory()? - memory) / f64::from(count));

    let names = bench.server.expiring()?;
    let (mut lowest, mut lease) = (i64::MAX, 0);
    let processor = process.processor()?;
    let monitor = Monitor::start(&bench.server)?;
    let watched = Instant::now();
    let end = watched + time.saturating_sub(Duration::from_millis(500));
    while Instant::now() < end {
        let next = Instant::now() + INTERVAL;
        let some = fastrand::choose_multiple(names.iter(), SAMPLE);
        let some: Vec<String> = some.into_iter().cloned().collect();
        for left in bench.server.left(&some)? {
            lowest = lowest.min(left);
            lease = lease.max(left);
        }
        sleep(next.saturating_duration_since(Instant::now()));
    }
    let seconds = watched.elapsed().as_secs_f64();
    let seen = monitor.stop()?;
    measurement.set(m::TRAFFIC, seen.by_clients as f64 / seconds);
    measurement.set(m::PROCESSOR, (process.processor()? - processor) / seconds);
    measurement.set(m::LEASE, lease as f64 * 1e6);
    if lowest < 0 {
        measurement.note = Some("locks were lost".to_owned());
    }
    measurement.set(m::LATEST, (lease - lowest.max(0)) as f64 / lease.max(1) as f64);
    process.done(ticket, time + TIMEOUT)
}
