//! Locks that are held for long, and kept alive meanwhile.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bench;
use crate::column as c;
use crate::contestant::{Contestant, Role};
use crate::process::{Answer, Process};
use crate::results::Measurement;
use crate::server::Monitor;

/// How long taking all of them may take, and giving them back.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what is left of the leases.
const LOOK: Duration = Duration::from_millis(250);
/// How many keys are looked at each time.
const SAMPLE: usize = 5_000;

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let (few, many) = ((10_000, "10,000 locks"), (100_000, "100,000 locks"));
    // A minute for each peer, which shows little: most have a task and a timer for each lock.
    let is_measured = |count| match contestant.role {
        Role::Ours => !bench.quick || count == few,
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
        let unsupported = measurement.note.as_deref() == Some("renews nothing");
        measurements.push(measurement);
        if unsupported {
            break;
        }
    }
    Ok(measurements)
}

fn hold(
    bench: &mut Bench,
    process: &mut Process,
    count: u32,
    measurement: &mut Measurement,
) -> Result<()> {
    // Two renewals of a 30 s lease that is renewed at a third, or one.
    let time = Duration::from_secs(if bench.quick { 12 } else { 23 });
    bench.server.clear()?;
    let memory = process.memory()?;
    let start = Instant::now();
    let ticket = process.tell(&format!("hold {count} {}", time.as_millis()))?;
    while bench.server.keys()? < count as usize {
        match process.answer(ticket, Duration::from_millis(5))? {
            Answer::Unsupported => anyhow::bail!("renews nothing"),
            Answer::Ok => anyhow::bail!("it did not hold them all"),
            Answer::Late => ensure!(start.elapsed() < PATIENCE, "not all taken after {PATIENCE:?}"),
        }
    }
    measurement.set(c::TAKE, start.elapsed().as_nanos() as f64);
    measurement.set(c::PER_LOCK, (process.memory()? - memory) / f64::from(count));

    let names = bench.server.expiring()?;
    let (mut lowest, mut lease) = (i64::MAX, 0);
    let processor = process.processor()?;
    let monitor = Monitor::start(&bench.server)?;
    let watched = Instant::now();
    let end = watched + time.saturating_sub(Duration::from_millis(500));
    while Instant::now() < end {
        let next = Instant::now() + LOOK;
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
    measurement.set(c::TRAFFIC, seen.by_clients as f64 / seconds);
    measurement.set(c::PROCESSOR, (process.processor()? - processor) / seconds);
    measurement.set(c::LEASE, lease as f64 * 1e6);
    if lowest < 0 {
        measurement.note = Some("locks were lost".to_owned());
    }
    measurement.set(c::LATEST, (lease - lowest.max(0)) as f64 / lease.max(1) as f64);
    process.done(ticket, time + PATIENCE)
}
