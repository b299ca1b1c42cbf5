//! A key that very many wait for.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Bench;
use crate::column as c;
use crate::contestant::{Contestant, Reach};
use crate::figures::{Grant, History, percentile};
use crate::process::Answer;
use crate::record;
use crate::results::Measurement;
use crate::server::Monitor;

/// The holder's lease, in milliseconds, if the library renews none.
const LEASE: u64 = 120_000;
/// How long the waiters may take to line up.
const LINE_UP: Duration = Duration::from_secs(20);
/// How long they may take to drain.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long their commands are told from those of scripts: all would slow the server down.
const SAMPLE: Duration = Duration::from_millis(300);

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let count = if bench.quick { 1_000 } else { 10_000 };
    let mut measurement = Measurement::new(
        format!("{} waiters", c::GRANTS.write(f64::from(count))),
        contestant,
        round,
    );
    bench.server.clear()?;
    let before = bench.server.clients()?;
    // Those that reach only their own process hold the key in it.
    let mut holder = match contestant.reach {
        Reach::Server => Some(bench.start(contestant)?),
        Reach::Process => None,
    };
    let with_holder = bench.server.clients()?;
    let mut waiting = bench.start(contestant)?;
    let holding = holder.as_mut().unwrap_or(&mut waiting);
    let acquired = holding.tell("acquire hot 5000 0")?;
    if holding.answer(acquired, LINE_UP)? != Answer::Ok {
        holding.ask(&format!("acquire hot 5000 {LEASE}"), LINE_UP)?;
    }

    sleep(Duration::from_millis(200));
    let memory = waiting.memory()?;
    waiting.ask(&format!("waiters hot {count}"), LINE_UP)?;
    sleep(Duration::from_millis(500));
    measurement.set(c::PER_WAITER, (waiting.memory()? - memory) / f64::from(count));
    let clients = bench.server.clients()?;
    measurement.set(c::CONNECTIONS, clients.connections as f64 - with_holder.connections as f64);
    measurement.set(c::SUBSCRIBERS, clients.subscribers as f64 - before.subscribers as f64);

    let commands = bench.server.commands()?;
    let monitor = Monitor::start(&bench.server)?;
    let start = Instant::now();
    let (path, file) = bench.file(0)?;
    let release = holder.as_mut().unwrap_or(&mut waiting).tell("release hot")?;
    let drain = waiting.tell(&format!("drain {file}"))?;
    let drained = match waiting.answer(drain, SAMPLE)? {
        Answer::Late => None,
        answer => Some(answer),
    };
    let sample = monitor.stop()?;
    let drained = match drained {
        Some(answer) => answer,
        None => waiting.answer(drain, PATIENCE.saturating_sub(start.elapsed()))?,
    };
    if drained != Answer::Ok {
        measurement.note = Some(format!("not drained after {PATIENCE:?}"));
        return Ok(vec![measurement]);
    }
    let commands = bench.server.commands()? - commands - 1;
    holder.as_ref().unwrap_or(&waiting).done(release, PATIENCE)?;

    let records = record::read(&path)?;
    let mut grants: Vec<Grant> =
        records.into_iter().map(|record| Grant { process: 0, record }).collect();
    let history = History::of(&mut grants);
    measurement.overlaps = history.overlaps;
    measurement.set(c::COMMANDS, commands as f64 * sample.share() / f64::from(count));
    let mut hand_overs: Vec<u64> =
        history.hand_overs.iter().map(|hand_over| hand_over.nanos).collect();
    measurement.set_nanos(c::HAND_OVER_P50, percentile(&mut hand_overs, 0.5));
    let granted = grants.iter().map(|grant| grant.record.granted);
    if let (Some(first), Some(last)) = (granted.clone().min(), granted.max()) {
        measurement.set(c::DRAIN, (last - first) as f64);
    }
    Ok(vec![measurement])
}
